import types

import pytest
import torch
import yaml

import oelm
from oelm.errors import OelmError
from oelm.freezing.apply import freeze
from oelm.freezing.methods import METHODS, Method, method, methods
from oelm.freezing.modifiers import equal_baseline
from oelm.freezing.orthogonal import INITIALISATIONS
from oelm.models.gpt import GPT, GPTConfig

NAMED = [
    "baseline", "oelm_freeze", "oelm_random", "oelm_random_matched", "oelm_global", "orthogonal_trained",
    "q_only", "k_only",
]  # fmt: skip


def test_the_named_methods_exist():
    assert set(NAMED) <= {m.name for m in methods()}


@pytest.mark.parametrize(("alias", "name"), [("oelm_v2", "oelm_freeze"), ("oelm_v1", "oelm_global")])
def test_published_aliases_lead_to_their_methods(alias, name):
    assert method(alias) is METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_round_trips_through_yaml(name):
    assert Method.from_dict(yaml.safe_load(yaml.safe_dump(METHODS[name].to_dict()))) == METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_uses_known_initialisations(name):
    for part in (METHODS[name].query, METHODS[name].key):
        assert part.init in INITIALISATIONS
        assert part.init_pretrained is None or part.init_pretrained in INITIALISATIONS


def test_every_method_says_what_it_is_for():
    assert all(m.summary for m in methods())


def test_a_method_can_be_given_as_a_mapping():
    mine = method({"name": "mine", "query": {"init": "matched_normal", "frozen": True}})
    assert mine.query.frozen
    assert mine.key == method("baseline").key


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("oelm_frieze", "method 'oelm_frieze' is unknown; did you mean 'oelm_freeze'"),
        ({"query": {}}, "a method needs a name"),
        ({"name": "x", "qurey": {}}, "field of method 'x' 'qurey' is unknown; did you mean 'query'"),
        ({"name": "x", "query": {"frozn": True}}, "'frozn' is unknown; did you mean 'frozen'"),
        (
            {"name": "x", "query": {"frozen": "false"}},
            "frozen of query of method 'x' is 'false'; it must be true or false",
        ),
        ({"name": "x", "key": {"init": 5}}, "init of key of method 'x' is 5; it must be a name"),
        ({"name": "x", "aliases": 5}, "aliases of method 'x' is 5; it must be a list"),
        ({"name": "x", "query": "frozen"}, "query of method 'x' is 'frozen'; give a mapping"),
        ({"name": "x", "query": None}, "query of method 'x' is None; it must be a mapping"),
        ({"name": "x", 1: 2}, "field of method 'x' 1 is unknown; known: name"),
        ({1: 2}, "a method needs a name; given: 1"),
        ({"name": "x", "thaw": {"at": ["1e-1"]}}, "at of thaw of method 'x' is '1e-1'; it must be a number"),
        ({"name": "x", "thaw": {"at": [0.5, None]}}, "at of thaw of method 'x' is None; it must be a number"),
        ({"name": "x", "aliases": [3]}, "aliases of method 'x' is 3; it must be a name"),
        ("oelm_freeze+thaw=top-down:nan", r"thaw times are \[nan\]; give at least one, in rising order"),
        ("oelm_freeze+thaw=top-down:inf", r"thaw times are \[inf\]"),
        ("oelm_freeze+thaw=top-down:0.5+refreeze=nan", "refreeze is nan; it is a time"),
        ("baseline+lr=nan", "lr is nan; it is a factor of the learning rate"),
        ("baseline+lr=inf", "lr is inf"),
        ("oelm_ffn+orthogonal_ffn", "says how FFN matrices that train begin, but they are frozen"),
        ("oelm_freeze+orthogonal_ffn+ffn", "ffn of method 'oelm_freeze' freezes FFN matrices, which it has said train"),
        ("oelm_freeze+orthogonal_ffn+ratio=0.2", "ratio=0.2 of method 'oelm_freeze' freezes FFN matrices"),
        (
            {"name": "mine", "query": {"projection": "permutation"}},
            "projection permutation has no weights, so it never trains; say frozen: true",
        ),
        (
            "oelm_freeze+orthogonal",
            "orthogonal of method 'oelm_freeze' says how .* that train begin, but both are frozen",
        ),
        ({"name": "oelm_freeze"}, r"'oelm_freeze' is a named one, but its fields here say something else"),
        ({"name": "oelm_v2", "layer_lr": 0.9}, "give yours another name"),
        (
            {"name": "oelm_freeze+rank=8", "query": {"frozen": True}},
            r"write it as a word \(method: oelm_freeze\+rank=8",
        ),
        ({"name": "baseline", "query": {"frozen": True}}, "'baseline' is a named one"),
        ("oelm_freeze+rank=0", "rank is 0; an update needs at least 1"),
        ("oelm_freeze+rank=8+rank=16", "modifier 'rank' of method 'oelm_freeze' is given 2 times"),
        ("oelm_freeze+every=4", "says when queries and keys train, but both are frozen"),
        ("oelm_freeze+thaw=top-down:1.5", r"thaw times are \[1.5\]; .* whole steps above"),
        ("oelm_freeze+warmup=10", "says more about thawing, so thaw must come before"),
        ("baseline+layer_lr=nan", "layer_lr of method 'baseline' is nan; it must be a number above 0"),
    ],
)
def test_a_wrong_method_is_refused_by_name(spec, message):
    with pytest.raises(OelmError, match=message):
        method(spec)


@pytest.mark.parametrize("name", ["oelm_freeze", "q_only+rank=8+thaw=top-down:0.5"])
def test_a_named_method_that_was_written_down_is_that_method(name):
    assert method(method(name).to_dict()) == method(name)
    assert method({**method(name).to_dict(), "summary": "in older words"}).key == method(name).key


def test_pausing_applies_to_what_trains():
    assert [(m.query.every, m.key.every) for m in map(method, ("q_only+every=4", "baseline+every=4"))] == [
        (1, 4),
        (4, 4),
    ]


def test_what_trains_may_start_orthonormal():
    start, trained = method("baseline+orthogonal"), method("orthogonal_trained")
    assert (start.query, start.key) == (trained.query, trained.key)
    free = method("identity_q+orthogonal+qrank=8")
    assert free.query.projection == "identity" and free.query.init == "keep"
    assert free.key.init == "head_orthogonal" and not free.key.frozen
    assert equal_baseline(free.name) == "baseline+orthogonal+qrank=8"


def test_the_ffn_may_start_orthonormal_and_train():
    control, frozen = method("baseline+orthogonal_ffn"), method("oelm_ffn")
    assert control.ffn.init == frozen.ffn.init and not control.ffn.frozen and control.is_trained
    model = GPT(GPTConfig.of_size("demo", vocab_size=64))
    report = freeze(model, control, seed=3)
    twin = GPT(GPTConfig.of_size("demo", vocab_size=64))
    freeze(twin, frozen, seed=3)
    assert report.frozen_parameters == 0
    weights = dict(twin.named_parameters())
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters() if "ffn" in n and "weight" in n)


@pytest.mark.parametrize(
    ("frozen", "baseline"),
    [
        ("oelm_freeze", "baseline"),
        ("oelm_freeze+rank=8+mix", "baseline+mix+rank=8"),
        ("q_only+qrank=4", "baseline+qrank=4"),
        ("identity_q+orthogonal", "orthogonal_trained"),
        ("oelm_freeze+rank=8+layers=last2", "baseline+rank=8+layers=last2"),
        ("oelm_freeze+thaw=top-down:0.5+mix", "baseline+mix"),
        ("oelm_ffn", "baseline"),
    ],
)
def test_an_equal_baseline_has_the_same_equipment_and_trains(frozen, baseline):
    made, equal = method(frozen), method(baseline)
    assert made.freezes and not made.is_trained
    assert equal.is_trained and equal.equipment == made.equipment
    assert method(equal_baseline(frozen)).equipment == made.equipment
    assert made.equipment != method("baseline+scale").equipment


def test_no_public_name_is_hidden_by_a_module_of_that_name():
    assert [name for name in oelm.__all__ if isinstance(getattr(oelm, name), types.ModuleType)] == []
    assert oelm.methods() == methods()
