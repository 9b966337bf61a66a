"""`recall`: the synthetic task of multi-query associative recall as an endless corpus whose exact entropy is known.

>>> next(documents("train", seed=0)).text[:20]
' si xu gay gor lu ba'

A document names pairs of words, all different, then asks for every first word in a new order and answers. Nothing but
the answers can be foretold: a model that recalls reaches the entropy, one that cannot stays above it.
"""

import hashlib
import math
import random
from collections.abc import Iterator

from oelm.data.fables import Story, split_of

WORDS = tuple(f"{first}{rest}" for first in "bcdfghjklmnprstx" for rest in ("a", "e", "i", "o", "u", "ay", "en", "or"))
PAIRS = (2, 16)  # fewest and most in a document


def documents(split: str, seed: int = 0) -> Iterator[Story]:
    """Texts without end, each with -ln P(text); train and validation share none."""
    key = hashlib.sha256(f"recall/{split}/{seed}".encode()).digest()
    draw = random.Random(int.from_bytes(key, "big")).random  # only random() is promised to stay as it is

    def drawn(count: int, options: list[str]) -> list[str]:
        return [options.pop(int(draw() * len(options))) for _ in range(count)]

    while True:
        count = PAIRS[0] + int(draw() * (PAIRS[1] - PAIRS[0] + 1))
        words = drawn(2 * count, list(WORDS))
        pairs = [f" {key} {value}" for key, value in zip(words[::2], words[1::2], strict=True)]
        text = "".join(pairs + drawn(count, list(pairs)))
        # The first word that comes again says how many pairs there are, so a text has only one derivation.
        choices = [PAIRS[1] - PAIRS[0] + 1, *range(len(WORDS), len(WORDS) - 2 * count, -1), *range(count, 0, -1)]
        if split_of(text) == split:
            yield Story(text, math.fsum(map(math.log, choices)))
