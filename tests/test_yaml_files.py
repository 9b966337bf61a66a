"""YAML that would hang or mislead is refused at once, wherever it is read."""

import time

import pytest

from oelm.errors import OelmError
from oelm.runs import RunFolder
from oelm.training.config import RunConfig
from oelm.yaml_files import parse_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
HOSTILE = {
    "deep": ("a: " + "[" * 100_000, "nested more than 32 levels"),
    "deep-block": ("\n".join(" " * i + "a:" for i in range(400)), "nested more than 32 levels"),
    "recursive": ("a: &a [*a]", r"contains itself \(\*a\)"),
    "bomb": (BOMB, "more than 32 aliases"),
    "huge": ("a: " + "x" * 10_000_000, "larger than 128 KiB"),
    "twice": ("seed: 1\nseed: 2", "key 'seed' is given twice"),
    "code": ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "no-date": ("a: 2020-13-45", "month must be in"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_within_a_second_in_one_line(name, tmp_path):
    text, words = HOSTILE[name]
    (tmp_path / "config.yaml").write_text(text)
    for read in (lambda: RunConfig.load(tmp_path / "config.yaml"), RunFolder(tmp_path).config):
        started = time.process_time()
        with pytest.raises(OelmError, match=words) as caught:
            read()
        assert time.process_time() - started < 1
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_only_decimal_numbers_are_numbers():
    read = parse_yaml("{a: 010, b: 1_0, c: 1:30, d: 0x1F, e: 12, f: -3, g: 0, h: 1.5}", "it")
    assert read == {"a": "010", "b": "1_0", "c": "1:30", "d": "0x1F", "e": 12, "f": -3, "g": 0, "h": 1.5}


def test_a_few_aliases_and_merges_are_fine():
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}", "it")["b"] == {"x": 1, "y": 2}
