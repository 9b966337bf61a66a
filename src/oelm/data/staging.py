"""The folder that `prepare` works in, and its journals: what a killed run has written and how far it can be trusted."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oelm.data.tokens import FILES, UNFINISHED, read_manifest
from oelm.errors import OelmError
from oelm.files import exclusive, sync, write_atomically, write_json

FLUSH_SECONDS = 1.0  # a kill loses about this much encoding
SOURCE = "source.json"  # what the first start found: one that goes on reads the same commit
_SCAFFOLDS = ("settings.json", SOURCE, "lock", *(f"journal-{split}.jsonl" for split in FILES))
_OURS = {*FILES.values(), "tokenizer.json", "manifest.json", *_SCAFFOLDS}
"""What a prepared folder holds; one with anything else is not ours to replace."""


@contextlib.contextmanager
def staging_folder(out: Path, settings: dict[str, Any], force: bool) -> Iterator[Path]:
    """The folder to work in, ours alone; it goes away again if nothing worth keeping came of it."""
    staging = out.with_name(out.name + UNFINISHED)
    staging.mkdir(parents=True, exist_ok=True)
    here = staging / "lock"
    with exclusive(here, f"another process is preparing {out}; wait for it or choose another --out") as lock:
        ours = here.exists() and os.stat(here).st_ino == os.fstat(lock.fileno()).st_ino
        if not ours or is_finished(out, settings, force):  # while we came for the lock
            if ours:
                shutil.rmtree(staging, ignore_errors=True)
            raise OelmError(f"another process has just prepared {out}; run the command again to use it")
        begun = staging / "settings.json"
        if begun.exists():
            # Another text under the same settings is fine: the journal's keys tell which chunks it shares.
            differing = _differences(json.loads(begun.read_text("utf-8")), settings, ignore=("train", "validation"))
            if differing and not force:
                raise OelmError(f"{staging} was begun with other settings ({differing}); --force starts afresh")
            if differing:
                (staging / SOURCE).unlink(missing_ok=True)
                for split, name in FILES.items():
                    (staging / name).unlink(missing_ok=True)
                    journal_path(staging, split).unlink(missing_ok=True)
        write_json(begun, settings)
        try:
            yield staging
        except BaseException:
            journals = [journal_path(staging, split) for split in FILES]
            if not any(journal.exists() and journal.stat().st_size for journal in journals):
                shutil.rmtree(staging, ignore_errors=True)
            raise


def is_finished(out: Path, settings: dict[str, Any], force: bool) -> bool:
    """Whether `out` holds what is asked for; refuses to touch anything else without `force`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / "manifest.json").exists():
        raise OelmError(f"{out} exists and is not prepared data; choose another --out")
    if force:
        torn = tuple(f".{name}." for name in _OURS)  # what a kill left of atomic writes
        if others := sorted(p.name for p in out.iterdir() if p.name not in _OURS and not p.name.startswith(torn)):
            raise OelmError(f"{out} holds {others[0]}, which is no prepared data and would be lost; move it away first")
        return False
    differing = _differences(read_manifest(out)["settings"], settings)
    if differing:
        raise OelmError(f"{out} is prepared with other settings ({differing}); use --force or another --out")
    return True


def publish(staging: Path, out: Path) -> None:
    """Give the finished folder its name; one that it replaces stays until then."""
    sync(staging)
    replaced = out.with_name(f".{out.name}.replaced")
    if out.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(out, replaced)
    os.rename(staging, out)
    sync(out.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    torn = out.glob(".*.json*.*")  # what a kill left of atomic writes
    for scaffold in (*(out / name for name in _SCAFFOLDS), *torn):
        scaffold.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OelmError(f"the disk is full ({out}); free space and run again: what is encoded is kept") from error
        raise OelmError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error


def _differences(old: dict[str, Any], new: dict[str, Any], ignore: tuple[str, ...] = ()) -> str:
    def told(key: str) -> str:
        if isinstance(old.get(key, new.get(key)), list):
            return f"{key} text differs"
        return f"{key} {old.get(key)!r} there, {new.get(key)!r} now"

    return "; ".join(told(key) for key in {**old, **new} if key not in ignore and old.get(key) != new.get(key))


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

    def __init__(self, staging: Path, split: str, dtype: str) -> None:
        self.taken_over = 0  # documents
        self._itemsize = np.dtype(dtype).itemsize
        self._journal_path, tokens = journal_path(staging, split), staging / FILES[split]
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
