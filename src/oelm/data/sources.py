"""What a source of text is, whatever it reads: `Source`, and holding out its validation documents."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

SPLITS = ("train", "validation")
VALIDATION_NAMES = ("validation", "val", "valid", "dev")
DEFAULT_FRACTION = 0.05
"""Of the documents, to validate on where there is no text for it."""


class Source(ABC):
    """What `prepare` reads: a name, what identifies it, and its documents."""

    name: str

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the user asked for, known without the network: two equal settings give the same documents."""

    @abstractmethod
    def provenance(self) -> dict[str, Any]:
        """What was really read, for the manifest; resolves what only the hub knows."""

    def pinned(self, provenance: dict[str, Any]) -> "Source":
        """The same source as an earlier start of the same preparation read it."""
        return self

    @abstractmethod
    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        """Documents of a split, each with its true surprisal in nats where that is known."""

    def expected_bytes(self, split: str) -> int | None:
        """Roughly how much text is coming, for a progress bar; None if unknown."""
        return None


def carve(texts: Iterator[str], split: str, fraction: float, seed: int) -> Iterator[str]:
    """Hold out documents by a hash of their number: fixed for a seed, spread over the corpus, needs no counting."""
    threshold = int(fraction * 2**64)
    for number, text in enumerate(texts):
        digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "big") < threshold) == (split == "validation"):
            yield text
