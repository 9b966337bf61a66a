"""oelm evaluate --text: the perplexity of any text, against a direct computation."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.evaluation.perplexity import nats
from oelm.evaluation.subjects import load
from oelm.records import read_json


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("length", [2, 50, 97, 98, 300])
@pytest.mark.parametrize("stride", [1, 40, 96])
def test_every_token_is_foretold_once_from_the_window_that_ends_behind_it(runs, length, stride):
    subject = load(runs / "oelm_freeze-0")
    ids = torch.randint(500, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    if stride == 1 and length == 300:
        ids = ids[:130]
    room, total, done, start = subject.context, 0.0, 1, 0
    with torch.no_grad():
        while done < len(ids):  # one window after another, a token at a time
            start = min(start, max(0, len(ids) - 1 - room))
            logits = subject.model(torch.tensor([ids[start : start + room]])).logits[0].double().log_softmax(-1)
            for place in range(done, min(start + room, len(ids) - 1) + 1):
                total -= float(logits[place - 1 - start, ids[place]])
            done, start = min(start + room, len(ids) - 1) + 1, start + stride
    assert nats(subject, ids, stride) == pytest.approx(total, rel=1e-5)


def test_a_text_within_the_context_has_the_loss_that_the_model_gives_it(runs, stock, tmp_path):
    file = tmp_path / "a text.txt"
    file.write_text("The fox — and the crow.")
    for folder in (runs / "baseline-0", stock):
        result = run("evaluate", folder, "--text", file, "--json")
        assert result.exit_code == 0, result.output
        (facts,) = json.loads(result.stdout)["models"]
        subject = load(folder)
        ids = torch.tensor([subject.encode(file.read_text())])
        loss = subject.model(ids, labels=ids).loss.item()
        assert facts["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
        bits = loss * (ids.numel() - 1) / math.log(2) / len(file.read_bytes())
        assert facts["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    record = read_json(runs / "baseline-0" / "evaluation" / "text-a-text.txt.json", "perplexity")
    assert record["headlines"] == {
        "a text.txt perplexity": record["perplexity"], "a text.txt bits per byte": record["bits_per_byte"]
    }  # fmt: skip


def test_what_is_no_text_is_refused_in_one_line(runs, tmp_path):
    def refused(*words):
        result = run("evaluate", runs / "baseline-0", "--text", *words)
        assert isinstance(result.exception, oelm.OelmError) and "\n" not in str(result.exception), result.output
        return str(result.exception)

    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "bytes").write_bytes(b"abc\xff")
    (tmp_path / "text").write_text("a text")
    assert "is empty" in refused(tmp_path / "empty")
    assert "line 1 is not UTF-8" in refused(tmp_path / "bytes")
    assert "does not exist" in run("evaluate", runs / "baseline-0", "--text", tmp_path / "missing").stderr
    assert "leap over tokens" in refused(tmp_path / "text", "--stride", 97)
