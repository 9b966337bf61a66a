"""`fables`: an endless corpus of children's stories whose exact entropy is known.

    >>> story = next(stories("train", seed=0))
    >>> story.text[:52], round(story.nats, 2)
    ('Once there was a young sheep who lived by the tower.', 78.8)

Every story draws children, toys, colours, places, animals and a song early and needs them again many sentences
later, several of a kind at once, so nearness alone does not tell which one: it takes attention.

The grammar is data, in `fables.yaml`; this file tells it and keeps the accounts.

Why a text has only one derivation: a choice is spoken the moment it is made, and no option of a choice begins another
option of it. The text is thus a prefix code of the choices, -ln P(text) is the sum of ln(number of options), and the
end of a story is known without a mark. The tests decode stories back into choices by that rule alone.
"""

import hashlib
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from oelm.errors import unknown

SPLITS = ("train", "validation")
VALIDATION_ONE_IN = 8


class Story(NamedTuple):
    """One story and its surprisal under the grammar: `nats` = -ln P(text)."""

    text: str
    nats: float
    recalls: tuple["Recall", ...] = ()  # the words that are said again


def stories(split: str, seed: int = 0) -> Iterator[Story]:
    """Stories without end, the same ones for the same split and seed on every machine."""
    if split not in SPLITS:
        raise unknown("fables split", split, SPLITS)
    key = hashlib.sha256(f"fables/{split}/{seed}".encode()).digest()
    draw = random.Random(int.from_bytes(key, "big")).random  # only random() is promised to stay as it is

    def story() -> Story:
        teller = Teller(lambda options: int(draw() * len(options)))
        teller.tell(FABLE)
        return Story(teller.text, teller.nats, tuple(teller.recalls))

    return (told for told in iter(story, None) if split_of(told.text) == split)


def split_of(text: str) -> str:
    """The split a text belongs to, by its hash alone: the splits are disjoint for all seeds and amounts.

    The hash takes one text in eight, blind to what the text says, so given the split a story has probability
    P(text) * 8 (validation) or P(text) * 8/7 (train) where the hash agrees, and 0 elsewhere. A predictor that used
    this would save ln 8 or ln 8/7 nats per story, but only by evaluating SHA-256 of texts not yet read. For every
    other predictor the thinning is a fair sample of the grammar, and -ln P(text) is the floor of its loss.
    """
    digest = hashlib.sha256(text.encode()).digest()
    return "validation" if digest[0] % VALIDATION_ONE_IN == 0 else "train"


def until(endless: Iterator[Story], size_in_bytes: int) -> Iterator[Story]:
    """The first of them that together have at least `size_in_bytes` bytes of UTF-8."""
    made = 0
    while made < size_in_bytes:
        story = next(endless)
        made += len(story.text.encode())
        yield story


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


_GRAMMAR = yaml.safe_load(Path(__file__).with_name("fables.yaml").read_text("utf-8"))
_WORDS = {pool: tuple(words.split()) for pool, words in _GRAMMAR["pools"].items()}
GIRLS = _WORDS.pop("girl")
POOLS: Mapping[str, Sequence[str]] = {"name": GIRLS + _WORDS.pop("boy"), **_WORDS}
FABLE = _beats(_GRAMMAR["fable"])


class Piece(NamedTuple):
    """One part of a sentence: a literal (`slot` empty), a draw (`pool` given) or a recall."""

    literal: str = ""
    slot: str = ""
    pool: str = ""
    form: str = ""
    article: bool = False


class Recall(NamedTuple):
    """A word said again: characters `start` to `end`, first said at character `source`, at no cost in nats."""

    start: int
    end: int
    source: int


class Teller:
    """Tells beats and pays for every choice; `choose` gets the texts of the options and answers with an index."""

    def __init__(self, choose: Callable[[Sequence[str]], int], pools: Mapping[str, Sequence[str]] = POOLS) -> None:
        self.choose = choose
        self.pools = pools
        self.nats = 0.0
        self.length = 0
        self.recalls: list[Recall] = []
        self._said: list[str] = []
        self._words: dict[str, str] = {}  # slot -> word
        self._first_said: dict[str, int] = {}  # slot -> character
        self._unused: dict[str, list[str]] = {}  # pool -> words this story has not used

    @property
    def text(self) -> str:
        return "".join(self._said)

    def pick(self, options: Sequence[str]) -> int:
        """The one place where chance enters, and where it is paid for."""
        self.nats += math.log(len(options))
        return self.choose(options)

    def tell(self, beats: Sequence[Beat]) -> None:
        for beat in beats:
            if isinstance(beat, str):
                self._sentence(beat)
            elif isinstance(beat, OneOf):
                leads = [self._lead(branch[0]) for branch in beat.branches]
                self.tell(beat.branches[self.pick(leads)])
            else:
                left = list(beat.sentences)
                for _ in range(beat.count):
                    self._sentence(left.pop(self.pick([self._lead(sentence) for sentence in left])))

    def _sentence(self, sentence: str) -> None:
        self._say(self._gap(sentence))
        for piece in _pieces(sentence):
            if piece.pool:
                self._draw(piece)
            elif piece.slot:
                word = self._recalled(piece)
                if not piece.form:
                    self.recalls.append(Recall(self.length, self.length + len(word), self._first_said[piece.slot]))
                self._say(word)
            else:
                self._say(piece.literal)

    def _draw(self, piece: Piece) -> None:
        unused = self._unused.setdefault(piece.pool, list(self.pools[piece.pool]))
        spoken = [_with_article(word) for word in unused] if piece.article else unused
        index = self.pick(spoken)
        self._first_said[piece.slot] = self.length
        self._say(spoken[index])
        self._words[piece.slot] = unused.pop(index)

    def _recalled(self, piece: Piece) -> str:
        word = self._words[piece.slot]
        if piece.form:
            return _PRONOUNS[piece.form][word not in GIRLS]
        return _with_article(word) if piece.article else word

    def _lead(self, sentence: Beat) -> str:
        """What a sentence says before its first draw: known beforehand, so options can be told apart by it."""
        assert isinstance(sentence, str), "a branch must start with a sentence"
        said = [self._gap(sentence)]
        for piece in _pieces(sentence):
            if piece.pool:
                break
            said.append(self._recalled(piece) if piece.slot else piece.literal)
        return "".join(said)

    def _gap(self, sentence: str) -> str:
        return " " if self.length and not sentence.startswith("\n") else ""

    def _say(self, text: str) -> None:
        self._said.append(text)
        self.length += len(text)


_SLOT = re.compile(r"\{(an )?(\w+)(?:\.(\w+))?(?::(\w+))?\}")
_PRONOUNS = {"her": ("her", "his")}  # form -> for a girl, for a boy


@cache
def _pieces(sentence: str) -> tuple[Piece, ...]:
    """A sentence cut at its slots, once."""
    pieces, at = [], 0
    for match in _SLOT.finditer(sentence):
        pieces.append(Piece(literal=sentence[at : match.start()]))
        article, slot, form, pool = match.groups()
        pieces.append(Piece(slot=slot, pool=pool or "", form=form or "", article=bool(article)))
        at = match.end()
    pieces.append(Piece(literal=sentence[at:]))
    return tuple(piece for piece in pieces if piece.literal or piece.slot)


def _with_article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
