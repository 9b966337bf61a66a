"""oelm bench --decode: writing with a cache, ours and Hugging Face's, in turns."""

import json

import pytest
import torch
from typer.testing import CliRunner

import oelm
from oelm.bench.decode import TOKENS, _steps, build_decoder
from oelm.bench.measure import Shape
from oelm.cli.main import app

SMALL = ["--size", "demo", "--length", "16", "--vocab", "64", "--rounds", "6", "--device", "cpu", "--threads", "1"]


def run(*words):
    return CliRunner().invoke(app, ["bench", "--decode", *map(str, words)])


def test_caches_are_as_large_as_their_tensors_and_a_stream_is_half_of_one(tmp_path):
    result = run(*SMALL, "--batch", 2, "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    arms = facts["contexts"]["16"]
    assert list(arms) == ["baseline", "oelm_freeze", "signs_qk", "gpt2", "llama"] and facts["reference"] == "baseline"
    whole = 2 * 2 * 2 * 16 * 64 * 4  # keys and values × layers × sequences × tokens × width × bytes
    assert {name: arm["cache_bytes"] for name, arm in arms.items()} == dict.fromkeys(arms, whole)
    assert {name: arm["stream_bytes"] for name, arm in arms.items() if arm["stream_bytes"]} == {"signs_qk": whole // 2}
    for arm in arms.values():
        median = sorted(arm["seconds"])[2:4]
        assert arm["tokens_per_second"] == pytest.approx(TOKENS * 2 / (sum(median) / 2))
        assert arm["prefill"]["rounds"] == 6 and arm["rounds"] == 6
    assert json.loads((tmp_path / "decode.json").read_text()) == facts
    assert "| signs_qk |" in (tmp_path / "decode.md").read_text()


def test_a_turn_leaves_the_cache_as_it_was_and_writes_what_the_whole_text_says():
    for name in ("signs_qk", "baseline+offset", "llama"):
        model = build_decoder(name, Shape("demo", 1, 16 + TOKENS, 64).model()).eval()
        ids = torch.randint(64, (1, 16 + TOKENS))
        with torch.no_grad():
            read, write, cache = _steps(model, ids, 16)
            write(0)
            assert cache.get_seq_length() == 16
            again = model(ids[:, 16:17], past_key_values=cache, attention_mask=torch.ones(1, 17)).logits[0, -1]
            torch.testing.assert_close(again, model(ids[:, :17]).logits[0, -1], atol=1e-5, rtol=1e-4)
            assert read(0).get_seq_length() == 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plain"], "arm 'plain' is unknown"),
        (["baseline", "--compile"], "leave --compile"),
        (["signs_qk+shift"], "no cache holds"),
        (["baseline", "--rounds", "3"], "at least 6"),
    ],
)
def test_what_cannot_write_is_refused_in_one_line(words, said):
    result = run(*SMALL[:6], *words)
    assert isinstance(result.exception, oelm.OelmError) and said in str(result.exception), result.output
    assert "\n" not in str(result.exception)
