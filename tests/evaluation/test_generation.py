"""oelm generate: any model writes, in pieces or many at once."""

import json

import pytest
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.evaluation.generation import generate, write
from oelm.evaluation.subjects import load


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
        (["--checkpoint", "worst"], "'worst' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(stock, more, words):
    result = run("generate", stock, *more)
    assert isinstance(result.exception, oelm.OelmError) and words in str(result.exception)
    assert "\n" not in str(result.exception)
