"""The words and sentences of the fables, as `fables.yaml` has them; that file says what it is made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class OneOf:
    """Tell one of several branches; each branch is a run of beats that starts with a sentence."""

    branches: tuple[tuple["Beat", ...], ...]


@dataclass(frozen=True)
class InAnyOrder:
    """Tell `count` of these sentences, none twice, in an order left to chance."""

    sentences: tuple[str, ...]
    count: int


Beat = str | OneOf | InAnyOrder


def _numbered(lines: Sequence[Any]) -> Iterator[Any]:
    """A sentence with # once for every number."""
    for line in lines:
        many = isinstance(line, str) and "#" in line
        yield from (line.replace("#", number) for number in "123") if many else (line,)


def _beats(lines: Sequence[Any]) -> tuple[Beat, ...]:
    return tuple(_beat(line) for line in _numbered(lines))


def _beat(line: Any) -> Beat:
    if isinstance(line, str):
        return line.replace("¶ ", "\n")
    if "count" in line:
        return InAnyOrder(tuple(_numbered(line["in_any_order"])), line["count"])
    branches = _GRAMMAR[line["one_of"]] if isinstance(line["one_of"], str) else line["one_of"]
    branches = list(branches.values()) if isinstance(branches, dict) else branches
    return OneOf(tuple(_beats([branch] if isinstance(branch, str) else branch) for branch in _numbered(branches)))


_GRAMMAR = yaml.safe_load(resources.files("oelm.data").joinpath("fables.yaml").read_text("utf-8"))
_WORDS = {pool: tuple(words.split()) for pool, words in _GRAMMAR["pools"].items()}
GIRLS = _WORDS.pop("girl")
POOLS: Mapping[str, Sequence[str]] = {"name": GIRLS + _WORDS.pop("boy"), **_WORDS}
FABLE = _beats(_GRAMMAR["fable"])
