"""A token file and the journal of its chunks: what a killed run has written, and how much of that can be trusted."""

import contextlib
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oelm.files import sync, write_atomically

FLUSH_SECONDS = 1.0  # a kill loses about this much encoding


@dataclass(frozen=True)
class Entry:
    """A chunk in the journal; `key` names its text and tokenizer, `sha256` its ids on disk."""

    key: str
    documents: int
    bytes_of_text: int
    tokens: int
    nats: float | None
    sha256: str = ""

    def plus(self, other: "Entry") -> "Entry":
        nats = None if self.nats is None or other.nats is None else self.nats + other.nats
        documents, size = self.documents + other.documents, self.bytes_of_text + other.bytes_of_text
        return Entry("", documents, size, self.tokens + other.tokens, nats)


class TokenLog:
    """A token file that only grows, and its journal. A chunk is journalled after its ids are safely on disk."""

    def __init__(self, tokens: Path, journal: Path, dtype: str) -> None:
        self.taken_over = 0  # documents
        self._itemsize = np.dtype(dtype).itemsize
        self._journal_path = journal
        self._file = open(tokens, "r+b" if tokens.exists() else "w+b")  # noqa: SIM115  closed in __exit__
        self._old = deque(self._intact_entries())
        self._kept: list[Entry] = []
        self._journal: Any = None  # open once there is something to add
        self._unsafe: list[Entry] = []  # written, perhaps not yet on disk
        self._flushed = time.monotonic()

    def take_over(self, key: str) -> Entry | None:
        """The next chunk, if an earlier run has encoded it; after the first that differs, none."""
        if self._old and self._old[0].key == key:
            self._kept.append(self._old.popleft())
            self.taken_over += self._kept[-1].documents
            return self._kept[-1]
        self._old.clear()
        return None

    def append(self, entry: Entry, ids: bytes) -> Entry:
        self._start()
        self._file.write(ids)
        entry = replace(entry, tokens=len(ids) // self._itemsize, sha256=hashlib.sha256(ids).hexdigest())
        self._unsafe.append(entry)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()
        return entry

    def _start(self) -> None:
        """Cut both files behind what was taken over, and open the journal."""
        if self._journal is None:
            self._file.truncate(self._file.seek(sum(entry.tokens for entry in self._kept) * self._itemsize))
            write_atomically(self._journal_path, "".join(map(_line, self._kept)))
            sync(self._journal_path.parent)
            self._journal = open(self._journal_path, "a", encoding="utf-8")  # noqa: SIM115

    def _flush(self) -> None:
        entries, self._unsafe = self._unsafe, []  # given up if the disk refuses
        self._file.flush()
        os.fsync(self._file.fileno())
        self._journal.write("".join(map(_line, entries)))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._flushed = time.monotonic()

    def _intact_entries(self) -> Iterator[Entry]:
        """Journal lines up to the first that is torn or whose ids are not what was written."""
        if not self._journal_path.exists():
            return
        self._file.seek(0)
        for line in self._journal_path.read_text("utf-8").splitlines():
            try:
                entry = Entry(**json.loads(line))
            except (ValueError, TypeError):
                return
            if hashlib.sha256(self._file.read(entry.tokens * self._itemsize)).hexdigest() != entry.sha256:
                return
            yield entry

    def __enter__(self) -> "TokenLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if kind is None:
                self._start()  # cuts what an earlier run had beyond the end
                self._flush()
            elif self._journal is not None and not issubclass(kind, OSError):
                self._flush()  # interrupted, or a bad document: what was written so far is good
        finally:
            for file in filter(None, (self._file, self._journal)):
                with contextlib.suppress(OSError):
                    file.close()


def journal_path(staging: Path, split: str) -> Path:
    return staging / f"journal-{split}.jsonl"


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"
