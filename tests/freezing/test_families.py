"""Fifty families of transformers: found, split, frozen, saved and loaded again; docs/models.md has the table of it."""

import copy
from pathlib import Path

import pytest
import torch

import oelm
from families import CAUSAL, FAMILIES, REFUSED, SETTINGS, build, inputs, logits
from oelm.freezing.apply import freeze, verify_frozen
from oelm.freezing.fused import SplitProjection
from oelm.freezing.sites import attention_sites

DOC = Path(__file__).parents[2] / "docs" / "models.md"
METHODS = {
    "dense": ["oelm_freeze", "head_polar_scaled"],
    "global": ["oelm_global"],
    "weightless": ["identity_qk", "permutation_qk", "signs_qk", "hadamard_qk+rank=2"],
    "FFN": ["oelm_ffn"],
    "scale": ["oelm_freeze+scale"],
    "gain, mix, rank": ["oelm_freeze+gain+mix+rank=2"],
    "shift": ["oelm_freeze+shift"],
}
REASONS = {"a norm comes after": "no: norm", "all experts in one tensor": "no: experts"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_frozen_saved_and_loaded_with_the_outputs_and_files_of_the_stock_model(family, tmp_path):
    model = build(family)
    stock_names, before = set(model.state_dict()), logits(model, family)
    sites = attention_sites(model)
    torch.testing.assert_close(logits(model, family), before, atol=1e-6, rtol=1e-5)  # a split changes nothing
    report = freeze(model, "oelm_freeze")
    assert report.worst_orthonormality_error < 1e-5
    assert set(model.state_dict()) == stock_names
    frozen = logits(model, family)
    assert not torch.allclose(frozen, before, atol=1e-5)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(logits(loaded, family), frozen, atol=1e-6, rtol=1e-5)
    oelm.freeze_from_report(loaded, report)
    assert {site.path for site in sites} == {site.path for site in report.sites}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_method_works_on_a_family_or_says_why_not_as_documented(family):
    model = build(family)
    cells = [_cell(model, family, methods) for methods in METHODS.values()]
    assert _row(model, family, cells) in DOC.read_text().splitlines()


def test_the_documented_table_has_these_families_and_no_others():
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `") and line.count("|") > 9]
    assert [line.split("`")[1] for line in rows] == FAMILIES
    assert len(FAMILIES) >= 40


@pytest.mark.parametrize("family", REFUSED)
def test_attention_without_queries_and_keys_of_its_own_is_refused_by_name_with_the_reason(family):
    with pytest.raises(oelm.OelmError, match=rf"its \w+ at '.*{REFUSED[family]}"):
        attention_sites(build(family, device="meta"))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
        ("falcon", {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4}),
        ("gpt_bigcode", {"multi_query": False}),
        ("persimmon", {"qk_layernorm": False}),
        ("gpt_neox", {"attention_bias": False}),
    ],
)
def test_other_ways_to_fuse_are_split_as_exactly(family, settings, monkeypatch):
    monkeypatch.setitem(SETTINGS, family, settings)
    model = build(family)
    before = logits(model, family)
    stock = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attention_sites(model)
    torch.testing.assert_close(logits(model, family), before, atol=1e-6, rtol=1e-5)
    assert all(torch.equal(stock[name], tensor) for name, tensor in model.state_dict().items())
    model.load_state_dict(build(family).state_dict())
    torch.testing.assert_close(logits(model, family), before, atol=1e-6, rtol=1e-5)


def test_the_parts_of_a_fused_matrix_are_queries_and_keys_and_not_values(monkeypatch):
    """Without queries there is nothing to attend by: all keys weigh the same, so their own values do not matter."""
    monkeypatch.setitem(SETTINGS, "deberta", {"relative_attention": False})
    for family in (
        "bloom",
        "codegen",
        "deberta",
        "falcon",
        "gpt_neox",
        "modernbert",
        "mpt",
        "persimmon",
        "phi3",
        "gpt2",
    ):
        model = build(family)
        attention_sites(model)
        splits = [module for module in model.modules() if isinstance(module, SplitProjection)]
        with torch.no_grad():
            for split in splits:
                for tensor in split.query.parameters():
                    tensor.zero_()
            before = logits(model, family)
            for split in splits:
                split.key.weight.normal_()
        assert torch.allclose(logits(model, family), before, atol=1e-6), family


def test_shared_layers_are_frozen_once():
    report = freeze(build("albert"), "oelm_freeze")
    assert len(report.sites) == 2
    assert report.frozen_parameters == 2 * (32 * 32 + 32)


def test_queries_that_carry_a_gate_are_refused():
    model = build("qwen3")
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(32, 64)  # half of it would be a gate
    model.model.layers[0].self_attn.__class__ = type("GatedAttention", (torch.nn.Module,), {})
    with pytest.raises(
        oelm.OelmError, match=r"GatedAttention at .* has 64 query and 16 key rows, which 4 heads of size 8"
    ):
        attention_sites(model)


def _cell(model, family, methods):
    for method in methods:
        frozen = copy.deepcopy(model)
        try:
            report = freeze(frozen, method)
        except oelm.OelmError as error:
            return next(word for reason, word in REASONS.items() if reason in str(error))
        kwargs = {"use_cache": False} if family in CAUSAL else {}
        with torch.no_grad():
            assert torch.isfinite(frozen(**inputs(family), **kwargs).logits).all()
        verify_frozen(frozen, report)
    return "yes"


def _row(model, family, cells):
    sites = attention_sites(model)
    query, key = sites[0], sites[1]
    parent = model.get_submodule(query.path.rpartition(".")[0])
    if isinstance(parent, SplitProjection):
        path = query.path.rpartition(".")[0]
        parent, names = model.get_submodule(path.rpartition(".")[0]), f"`{path.rpartition('.')[2]}`, fused"
    else:
        names = f"`{query.path.rpartition('.')[2]}`, `{key.path.rpartition('.')[2]}`"
    facts = [f"`{family}`", f"`{type(parent).__name__}`", names, f"{query.num_heads}/{key.num_heads}", *cells]
    return f"| {' | '.join(facts)} |"
