"""oelm probe: what a model takes up again, measured on texts whose answers are known."""

import itertools
import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.data import recall
from oelm.data.fables import stories
from oelm.data.tokenization import load_tokenizer
from oelm.evaluation import probes
from oelm.evaluation.subjects import Subject, load
from oelm.records import read_json


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


class Oracle(torch.nn.Module):
    """Foretells the token that followed the last occurrence of the current one; else token 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(size, 1)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, ids, **_):
        guess = torch.zeros(*ids.shape, self.embedding.num_embeddings)
        for row, at in itertools.product(range(ids.shape[0]), range(ids.shape[1])):
            earlier = [t for t in range(at) if ids[row, t] == ids[row, at]]
            guess[row, at, ids[row, earlier[-1] + 1] if earlier else 0] = 1.0
        return SimpleNamespace(logits=guess)


@pytest.fixture
def oracle(fables_folder):
    tokenizer = load_tokenizer(fables_folder)
    return Subject("oracle", Oracle(512), tokenizer, context=70, start=0, end=0)


def asked(subject, samples=3):
    words = probes.probe_words(subject)
    trials = probes._trials(subject, words, samples, torch.Generator().manual_seed(0))
    return [row for trial in trials for row in probes._asked(subject, trial)]


def test_a_model_with_a_perfect_induction_head_answers_every_probe(oracle):
    rows = asked(oracle)
    assert {row["probe"] for row in rows} == {"recall", "induction", "copy", "previous"}
    assert {row["size"] for row in rows if row["probe"] == "recall"} == {2, 4, 8, 16}  # 32 do not fit
    for row in rows:
        assert row["accuracy"] == row["choice"] == 1, row


def test_one_that_forgets_what_is_far_fails_by_distance(oracle):
    near = oracle.model.forward

    def forward(ids, **more):
        logits = near(ids, **more).logits
        for row, at in itertools.product(range(ids.shape[0]), range(ids.shape[1])):
            if not any(ids[row, t] == ids[row, at] for t in range(max(0, at - 8), at)):
                logits[row, at] = torch.eye(512)[0]
        return SimpleNamespace(logits=logits)

    oracle.model.forward = forward
    for row in asked(oracle):
        if row["probe"] == "recall" and row["distance"]:
            assert row["accuracy"] == (row["distance"] <= 8), row
        if row["probe"] == "induction":
            assert row["accuracy"] == (row["size"] <= 8), row


def test_an_untrained_model_chooses_by_chance(runs):
    subject = load(runs / "baseline-0")
    rows = [row for row in asked(subject, samples=48) if row["probe"] == "recall" and row["distance"] is None]
    for row in rows:
        assert row["chance"] == pytest.approx(1 / row["size"])
        error = math.sqrt(row["chance"] / row["answers"] * row["size"])  # answers of one text are not independent
        assert abs(row["choice"] - row["chance"]) < 4 * error


def test_the_word_that_asks_is_no_candidate(oracle):
    """A model that says the current word again chooses by chance among the others, not below it."""
    oracle.model.forward = lambda ids, **_: SimpleNamespace(
        logits=torch.nn.functional.one_hot(ids, 512) + torch.rand(*ids.shape, 512) / 2
    )
    torch.manual_seed(0)
    rows = [row for row in asked(oracle, samples=120) if row["probe"] != "recall" and row["size"] == 4]
    assert {row["probe"]: row["chance"] for row in rows} == {"induction": 1 / 3, "copy": 1 / 3, "previous": 1 / 7}
    for row in rows:
        assert row["accuracy"] == 0 and abs(row["choice"] - row["chance"]) < 4 * math.sqrt(0.25 / row["answers"]), row


def test_heads_are_found_by_where_their_weight_goes(runs, monkeypatch):
    subject = load(runs / "baseline-0")
    length = 32

    def weights(_, ids):
        size = ids.shape[1]
        places = torch.arange(size)
        back = lambda by: torch.eye(size)[(places - by).clamp(min=0)].expand(len(ids), -1, -1)  # noqa: E731
        even = torch.ones(size, size).tril() / (places[:, None] + 1.0)
        return [torch.stack([back(1), even.expand(len(ids), -1, -1), back(length - 1), -back(1)], dim=1)]

    monkeypatch.setattr(probes, "_weights", weights)
    found = probes.heads(subject, probes.probe_words(subject), 4, 0)
    assert found["entropy"] == [[None] * 4]  # one head's weights are no probabilities: nothing is said of the layer
    monkeypatch.setattr(probes, "_weights", lambda *given: [weights(*given)[0][:, :3]])
    found = probes.heads(subject, probes.probe_words(subject), 4, 0)
    assert [(head["kind"], head["head"]) for head in found["found"]] == [("previous", 0), ("induction", 2)]
    assert found["entropy"][0] == pytest.approx([0, found["even_attention"]["entropy"], 0], abs=1e-4)
    assert found["span"][0][0] == pytest.approx(1) and found["span"][0][2] == pytest.approx(length - 1)


def test_weights_of_a_stock_model_and_of_ours_have_one_shape(runs, stock):
    ids = torch.randint(500, (2, 20))
    for folder, heads in ((runs / "oelm_freeze-0", 4), (stock, 2)):
        found = probes._weights(load(folder, attn_implementation="eager"), ids)
        assert [tuple(one.shape) for one in found] == [(2, heads, 20, 20)] * 2
        torch.testing.assert_close(found[1].sum(-1), torch.ones(2, heads, 20))


def test_fables_are_right_only_where_the_word_is_foretold(oracle):
    subject = replace(oracle, context=300)

    def answers(shift):  # shift 1 knows the next token of every place, 0 always says the current one
        subject.model.forward = lambda ids, **_: SimpleNamespace(
            logits=torch.nn.functional.one_hot(ids.roll(-shift, 1), 512).float()
        )
        return probes.fable_recall(subject, 3, 0)["rows"]

    by_kind = {row["kind"]: row["answers"] for row in answers(1) if row["distance"] is None}
    assert 0 < by_kind["all"] == by_kind["name"] + by_kind["object"] + by_kind["place"]
    assert all(row["accuracy"] == 1 for row in answers(1)) and any(row["nearest"] < 1 for row in answers(1))
    assert all(row["accuracy"] == 0 for row in answers(0))
    assert next(stories("validation", 0)).recalls


def test_probe_writes_a_sealed_record_a_figure_and_one_row_per_arm(runs, stock):
    result = run("probe", runs / "baseline-0", runs / "baseline-1", stock, "--samples", 2, "--fables", 1, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [(arm["arm"], len(arm["runs"])) for arm in facts["arms"]] == [
        ("baseline", 2),
        (str(stock), 1),
        ("chance", 1),
        (f"chance ({stock})", 1),  # a shorter context has fewer sizes
    ]
    mean = facts["arms"][0]["values"]["recall choice %"]
    assert mean["count"] == 2 and (mean["interval"] is None or mean["interval"]["low"] < mean["mean"])
    record = read_json(runs / "baseline-0" / "evaluation" / "probe.json", "heads", "probes", "headlines", "step")
    assert record["step"] == 3 and record["caveat"] == probes.CAVEAT and record["fables"]["stories"] == 1
    assert (runs / "baseline-1" / "evaluation" / "heads.png").read_bytes().startswith(b"\x89PNG")
    assert not (stock / "evaluation").exists()


def test_probe_prints_chance_the_heads_and_what_not_to_conclude(runs):
    said = run("probe", runs / "oelm_freeze-0", "--samples", 2, "--fables", 0)
    assert said.exit_code == 0 and "chance" in said.stdout and probes.CAVEAT in said.stdout


def test_what_cannot_be_probed_is_refused_in_one_line(stock, tmp_path):
    def refused(*words):
        result = run("probe", *words)
        assert isinstance(result.exception, oelm.OelmError) and "\n" not in str(result.exception), result.output
        return str(result.exception)

    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in refused(tmp_path / "empty")
    assert "holds no checkpoint" in refused("nothing-of-this-name")
    assert "is for one model" in refused(stock, stock, "--figure", tmp_path / "x.png")
    small = tmp_path / "small"
    shutil.copytree(stock, small)
    config = json.loads((small / "config.json").read_text())
    tokenizer = json.loads((small / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 600, "content": "<more>"})
    tokenizer["model"]["vocab"]["<more>"] = 600
    (small / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "601 entries, its model 512" in refused(small)
    config["architectures"] = ["GPT2ForSequenceClassification"]
    (small / "config.json").write_text(json.dumps(config))
    assert "is a classifier" in refused(small)


def test_the_recall_corpus_asks_for_every_pair_once_and_keeps_its_accounts(tmp_path):
    def first(split, count):
        return list(itertools.islice(recall.documents(split, 3), count))

    texts = first("validation", 50)
    assert texts == first("validation", 50) and not {*texts} & {*first("train", 200)}
    for one in texts:
        words, nats = one.text.split(), one.nats
        pairs = list(zip(words[::2], words[1::2], strict=True))
        half = len(pairs) // 2
        assert len({*words}) == 2 * half and sorted(pairs[:half]) == sorted(pairs[half:])
        free = math.lgamma(129) - math.lgamma(129 - 2 * half) + math.lgamma(half + 1) + math.log(15)
        assert nats == pytest.approx(free)
    made = run("data", "prepare", "recall", "--tokenizer", "bpe:512", "--megabytes", 0.02, "--validation-megabytes",
               0.01, "--out", tmp_path / "recall", "--json")  # fmt: skip
    assert made.exit_code == 0 and json.loads(made.stdout)["true_entropy_nats_per_token"] > 0
