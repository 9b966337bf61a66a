"""oelm generate: any model writes, in pieces or many at once."""

import json
import math

import pytest
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.evaluation.generation import figures, generate, write
from oelm.evaluation.perplexity import nats
from oelm.evaluation.subjects import load
from oelm.records import read_json


def run(*words, **options):
    return CliRunner().invoke(app, [str(word) for word in words], **options)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_pieces_add_up_to_the_text_and_a_seed_repeats_it(runs, temperature):
    subject, pieces = load(runs / "baseline-0"), []
    (text,) = write(subject, "By the", tokens=12, temperature=temperature, stream=pieces.append)
    assert len(pieces) > 1 and "".join(pieces) == text
    assert generate(runs / "baseline-0", "By the", tokens=12, temperature=temperature) == text
    assert (write(subject, "By the", tokens=12, temperature=temperature, seed=1) != [text]) == (temperature > 0)


def test_a_narrow_nucleus_writes_what_the_likeliest_token_writes(runs):
    subject = load(runs / "baseline-0")
    greedy = write(subject, tokens=8, temperature=0)
    assert write(subject, tokens=8, temperature=1, top_p=0.0001) == greedy
    assert write(subject, tokens=8, temperature=1, top_k=1, batch=3) == greedy * 3


def test_a_stock_folder_writes_many_at_once_and_after_every_line(stock):
    facts = json.loads(run("generate", stock, "--prompt", "a", "--tokens", 3, "--batch", 2, "--json").stdout)
    assert len(facts["texts"]) == 2 and facts["text"] == facts["texts"][0]
    said = run("generate", stock, "--interactive", "--tokens", 2, "--temperature", 0, input="one\ntwo\n")
    assert said.exit_code == 0
    assert said.stdout == "".join(generate(stock, word, tokens=2, temperature=0) + "\n" for word in ("one", "two"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--prompt", "a " * 200], "shorten the prompt"),
        (["--interactive", "--json"], "one text at a time"),
        (["somewhere/else"], "--quality compares several"),
        (["--quality", "--temperature", 0], "texts that differ"),
        (["--reference", "gpt2"], "is for --quality"),
        (["--quality", "--prompt", "a " * 200], "shorten the prompt"),
        (["--checkpoint", "worst"], "'worst' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(stock, more, words):
    result = run("generate", stock, *more)
    assert isinstance(result.exception, oelm.OelmError) and words in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not result.stdout


def test_quality_counts_words_that_are_new_and_words_that_come_again():
    assert figures(["a b c d e f"]) == {
        "words per text": 6, "distinct-1 %": 100, "distinct-2 %": 100, "distinct-3 %": 100, "repetition %": 0
    }  # fmt: skip
    said_twice = figures(["a b c d", "a b c d"])  # new in its own text, but not in all of them
    assert said_twice["distinct-2 %"] == 50 and said_twice["repetition %"] == 0
    assert figures(["", "one"]) == {"words per text": 0.5, "distinct-1 %": 100}


def test_quality_is_a_row_per_arm_beside_the_validation_text(runs, stock):
    models = [runs / "baseline-0", runs / "baseline-1", stock]
    result = run("generate", *models, "--quality", "--batch", 3, "--tokens", 20, "--reference", stock, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [arm["arm"] for arm in facts["arms"]] == ["baseline", str(stock), "validation text"]
    record = read_json(runs / "baseline-0" / "evaluation" / "generation.json", "headlines", "beside", "step")
    assert record["reference"] == str(stock) and record["samples"] == 3
    texts, judge = record["texts"], load(stock)
    ids = [judge.encode(text) for text in texts]
    loss = sum(nats(judge, one, 32) for one in ids) / sum(len(one) - 1 for one in ids)
    assert record["headlines"] == pytest.approx({**figures(texts), "reference perplexity": math.exp(loss)})
    words = record["beside"]["validation text"]
    assert words["words per text"] > 5 and words["repetition %"] == 0
    said = run("generate", runs / "baseline-0", "--quality", "--batch", 2, "--tokens", 8)
    assert said.exit_code == 0 and "distinct-2 %" in said.stdout and "validation text" in said.stdout
