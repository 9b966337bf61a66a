"""Text to tokens: streamed, in parallel, resumable, complete or absent.

Documents are gathered into chunks, worker threads encode them, and one writer appends the ids in order to a token
file. Once they are on disk, a journal gets a line per chunk: a killed run continues behind the last line and ends with
the same bytes. All of it happens in `NAME.unfinished`, which becomes `NAME` by a rename at the very end.

Threads, not processes: the tokenizers library releases the interpreter lock while it encodes. Measured on two cores,
threads that each encode small chunks beat both processes and the library's own pool, which works on one big batch.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oelm.data.corpora import Source, documents, find_source
from oelm.data.tokenization import (
    SAMPLE_BYTES,
    bpe_size,
    end_of_text_id,
    load_tokenizer,
    tokenizer_hash,
    tokenizer_label,
    vocabulary_size,
)
from oelm.data.tokens import FILES, FORMAT, UNFINISHED, TokenData, data_directory, read_manifest, sha256_of
from oelm.errors import OelmError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK_BYTES = 256 << 10  # small enough to stay in cache, large enough to cost far more than its bookkeeping
FLUSH_SECONDS = 1.0  # a kill loses about this much encoding


@dataclass(frozen=True)
class Progress:
    """How far a split has come. `expected_bytes` is a guess, or None."""

    split: str
    documents: int
    bytes_of_text: int
    tokens: int
    expected_bytes: int | None


def prepare(
    source: Source | str | Path,
    out_dir: str | Path | None = None,
    tokenizer_spec: str | Path = "gpt2",
    *,
    workers: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] = lambda progress: None,
    note: Callable[[str], None] = lambda remark: None,
) -> TokenData:
    """Turn a source into a prepared folder and open it; a finished folder with the same settings is left as it is.

    `out_dir` defaults to `<data_dir>/<name>-<tokenizer>`. `force` replaces a finished folder or unfinished work that
    has other settings. `progress` is called after each chunk, `note` with remarks worth a line.
    """
    if not isinstance(source, Source):
        source = find_source([source], seed=seed)
    if workers is not None and workers < 1:
        raise OelmError(f"{workers} workers are not possible; give 1 or more")
    # A tokenizer on disk is read now, to know which it is; the others are not needed to find finished work.
    on_disk = bpe_size(tokenizer_spec) is None and str(tokenizer_spec) != "gpt2"
    tokenizer = load_tokenizer(tokenizer_spec) if on_disk else None
    identity = tokenizer_hash(tokenizer) if tokenizer else None
    label = tokenizer_label(tokenizer_spec, identity)
    out = Path(out_dir) if out_dir is not None else data_directory(data_dir) / f"{source.name}-{label}"
    # gpt2 and bpe:N are what they are called; for any other, the hash counts and not the file's name.
    named = identity is None or label == "gpt2"
    settings = {"name": source.name, **source.settings(), "tokenizer": label if named else identity}
    if _is_finished(out, settings, force):
        return replace(TokenData.open(out), unchanged=True)
    with _disk_errors(out), _staging(out, settings, force) as staging:
        provenance = source.provenance()
        if bpe_size(tokenizer_spec) is not None:
            note(f"training {tokenizer_spec} on at most {SAMPLE_BYTES / 1e6:.0f} MB of the training text")
        tokenizer = tokenizer or load_tokenizer(tokenizer_spec, documents(source, "train"))
        encoder = _Encoder(tokenizer, identity or tokenizer_hash(tokenizer), workers or os.cpu_count() or 1)
        with encoder:
            splits = {split: _encode_split(source, split, staging, encoder, progress, note) for split in FILES}
        trained = {"trained_on_first_bytes": SAMPLE_BYTES} if bpe_size(tokenizer_spec) is not None else {}
        manifest = {
            "format": FORMAT,
            "name": source.name,
            "dtype": encoder.dtype,
            "tokenizer": {"spec": str(tokenizer_spec), **encoder.facts, **trained},
            "splits": splits,
            "source": provenance,
            "settings": settings,
            "created_with": {package: version(package) for package in ("oelm", "tokenizers", "datasets", "numpy")},
        }
        _write_durably(staging / "tokenizer.json", tokenizer.to_str())
        _write_durably(staging / "manifest.json", json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        _publish(staging, out)
    return TokenData.open(out)


def _encode_split(
    source: Source,
    split: str,
    staging: Path,
    encoder: "_Encoder",
    progress: Callable[[Progress], None],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Write one token file, taking over what its journal already has; what the manifest says of it."""
    expected = source.expected_bytes(split)
    done = _Entry("", 0, 0, 0, 0.0)
    pending: deque[tuple[_Entry, Future[bytes]]] = deque()  # in order, so the file does not depend on the workers
    with _TokenLog(staging / FILES[split], _journal(staging, split), encoder.dtype) as log:

        def count(entry: _Entry) -> None:
            nonlocal done
            done = done.plus(entry)
            progress(Progress(split, done.documents, done.bytes_of_text, done.tokens, expected))

        def write_oldest() -> None:
            entry, encoded = pending.popleft()
            count(log.append(entry, encoded.result()))

        for texts, entry in _chunks(source.texts(split), encoder.identity):
            kept = log.take_over(entry.key)
            if kept is not None:
                count(kept)
                continue
            if done.documents and not pending and log.taken_over == done.documents:
                note(f"continuing {split} after {done.documents:,} documents encoded earlier")
            pending.append((entry, encoder.submit(texts)))
            if len(pending) > 2 * encoder.workers:
                write_oldest()
        while pending:
            write_oldest()
    if not done.documents:
        raise OelmError(
            f"no document of {source.name!r} falls in its {split} split; "
            "give --validation PATH or a larger --validation-fraction"
        )
    facts = {"documents": done.documents, "tokens": done.tokens, "bytes_of_text": done.bytes_of_text}
    entropy = {} if done.nats is None else {"true_entropy_nats": done.nats}
    return {**facts, "sha256": sha256_of(staging / FILES[split]), **entropy}


@dataclass(frozen=True)
class _Entry:
    """A chunk in the journal; `key` names its text and tokenizer, `sha256` its ids on disk."""

    key: str
    documents: int
    bytes_of_text: int
    tokens: int
    nats: float | None
    sha256: str = ""

    def plus(self, other: "_Entry") -> "_Entry":
        nats = None if self.nats is None or other.nats is None else self.nats + other.nats
        return _Entry(
            "",
            self.documents + other.documents,
            self.bytes_of_text + other.bytes_of_text,
            self.tokens + other.tokens,
            nats,
        )


def _chunks(texts: Iterable[tuple[str, float | None]], identity: str) -> Iterator[tuple[list[str], _Entry]]:
    """Documents in groups of about CHUNK_BYTES, cut by the text alone, so that every run cuts alike."""
    group: list[str] = []
    nats: list[float | None] = []
    size = 0
    digest = hashlib.sha256(identity.encode())

    def entry() -> _Entry:
        known = [value for value in nats if value is not None]
        return _Entry(digest.hexdigest(), len(group), size, 0, math.fsum(known) if len(known) == len(nats) else None)

    for text, surprisal in texts:
        raw = text.encode()
        digest.update(b"%d:" % len(raw) + raw)
        group.append(text)
        nats.append(surprisal)
        size += len(raw)
        if size >= CHUNK_BYTES:
            yield group, entry()
            group, nats, size, digest = [], [], 0, hashlib.sha256(identity.encode())
    if group:
        yield group, entry()


class _Encoder:
    """A pool of threads: a chunk of texts goes in, the bytes of its ids come out."""

    def __init__(self, tokenizer: "Tokenizer", identity: str, workers: int) -> None:
        self.workers = workers
        self.facts: dict[str, Any] = {
            "hash": identity,
            "vocab_size": vocabulary_size(tokenizer),
            "end_of_text_id": end_of_text_id(tokenizer),
        }
        self.dtype = "<u2" if self.facts["vocab_size"] <= 1 << 16 else "<u4"
        self.identity = json.dumps([self.facts, self.dtype])
        self._tokenizer = tokenizer
        # Text that happens to spell a special token is text; only we may end a document.
        self._tokenizer.encode_special_tokens = True
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="encode")

    def submit(self, texts: list[str]) -> "Future[bytes]":
        return self._pool.submit(self._encode, texts)

    def _encode(self, texts: list[str]) -> bytes:
        end = self.facts["end_of_text_id"]
        ids: list[int] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids += encoding.ids
            ids.append(end)
        return np.array(ids, self.dtype).tobytes()

    def __enter__(self) -> "_Encoder":
        # Our threads are the parallelism: the library's own would ignore `workers`.
        self._parallelism = os.environ.get("TOKENIZERS_PARALLELISM")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        del os.environ["TOKENIZERS_PARALLELISM"]
        if self._parallelism is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = self._parallelism


class _TokenLog:
    """A token file that only grows, and its journal. A chunk is journalled after its ids are safely on disk."""

    def __init__(self, tokens: Path, journal: Path, dtype: str) -> None:
        self.taken_over = 0  # documents
        self._itemsize = np.dtype(dtype).itemsize
        self._journal_path = journal
        self._file = open(tokens, "r+b" if tokens.exists() else "w+b")  # noqa: SIM115  closed in __exit__
        self._old = deque(self._intact_entries())
        self._kept: list[_Entry] = []
        self._journal: Any = None  # open once there is something to add
        self._unsafe: list[_Entry] = []  # written, perhaps not yet on disk
        self._flushed = time.monotonic()

    def take_over(self, key: str) -> _Entry | None:
        """The next chunk, if an earlier run has encoded it; after the first that differs, none."""
        if self._old and self._old[0].key == key:
            self._kept.append(self._old.popleft())
            self.taken_over += self._kept[-1].documents
            return self._kept[-1]
        self._old.clear()
        return None

    def append(self, entry: _Entry, ids: bytes) -> _Entry:
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
            _write_durably(self._journal_path, "".join(map(_line, self._kept)))
            self._journal = open(self._journal_path, "a", encoding="utf-8")  # noqa: SIM115

    def _flush(self) -> None:
        entries, self._unsafe = self._unsafe, []  # given up if the disk refuses
        self._file.flush()
        os.fsync(self._file.fileno())
        self._journal.write("".join(map(_line, entries)))
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._flushed = time.monotonic()

    def _intact_entries(self) -> Iterator[_Entry]:
        """Journal lines up to the first that is torn or whose ids are not what was written."""
        if not self._journal_path.exists():
            return
        self._file.seek(0)
        for line in self._journal_path.read_text("utf-8").splitlines():
            try:
                entry = _Entry(**json.loads(line))
            except (ValueError, TypeError):
                return
            if hashlib.sha256(self._file.read(entry.tokens * self._itemsize)).hexdigest() != entry.sha256:
                return
            yield entry

    def __enter__(self) -> "_TokenLog":
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


def _line(entry: _Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


def _journal(staging: Path, split: str) -> Path:
    return staging / f"journal-{split}.jsonl"


@contextlib.contextmanager
def _staging(out: Path, settings: dict[str, Any], force: bool) -> Iterator[Path]:
    """The folder to work in, ours alone; it goes away again if nothing worth keeping came of it."""
    staging = out.with_name(out.name + UNFINISHED)
    staging.mkdir(parents=True, exist_ok=True)
    with open(staging / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OelmError(f"another process is preparing {out}; wait for it or choose another --out") from None
        here = staging / "lock"
        ours = here.exists() and os.stat(here).st_ino == os.fstat(lock.fileno()).st_ino
        if not ours or _is_finished(out, settings, force):  # while we came for the lock
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
                for split, name in FILES.items():
                    (staging / name).unlink(missing_ok=True)
                    _journal(staging, split).unlink(missing_ok=True)
        _write_durably(begun, json.dumps(settings))
        try:
            yield staging
        except BaseException:
            if not any(
                _journal(staging, split).exists() and _journal(staging, split).stat().st_size for split in FILES
            ):
                shutil.rmtree(staging, ignore_errors=True)
            raise


def _is_finished(out: Path, settings: dict[str, Any], force: bool) -> bool:
    """Whether `out` holds what is asked for; refuses to touch anything else without `force`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / "manifest.json").exists():
        raise OelmError(f"{out} exists and is not prepared data; choose another --out")
    if force:
        return False
    differing = _differences(read_manifest(out)["settings"], settings)
    if differing:
        raise OelmError(f"{out} is prepared with other settings ({differing}); use --force or another --out")
    return True


def _differences(old: dict[str, Any], new: dict[str, Any], ignore: tuple[str, ...] = ()) -> str:
    def told(key: str) -> str:
        if isinstance(old.get(key, new.get(key)), list):
            return f"{key} text differs"
        return f"{key} {old.get(key)!r} there, {new.get(key)!r} now"

    return "; ".join(told(key) for key in {**old, **new} if key not in ignore and old.get(key) != new.get(key))


def _publish(staging: Path, out: Path) -> None:
    """Give the finished folder its name; one that it replaces stays until then."""
    replaced = out.with_name(out.name + ".replaced")
    if out.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(out, replaced)
    os.rename(staging, out)
    _sync_folder(out.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    for scaffold in (*(_journal(out, split) for split in FILES), out / "settings.json", out / "lock"):
        scaffold.unlink(missing_ok=True)


def _write_durably(path: Path, text: str) -> None:
    """Complete or absent: written aside, on disk, then renamed."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OelmError(
                f"the disk is full ({out}); free some space and run again: what is encoded is kept"
            ) from error
        raise OelmError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error
