"""Text to tokens: streamed, in parallel, resumable, complete or absent.

Documents are gathered into chunks, worker threads encode them, and one writer appends the ids in order to a token
file. Once they are on disk, a journal gets a line per chunk: a killed run continues behind the last line and ends with
the same bytes. All of it happens in `NAME.unfinished`, which becomes `NAME` by a rename at the very end.

Threads, not processes: the tokenizers library releases the interpreter lock while it encodes. Measured on two cores,
threads that each encode small chunks beat both processes and the library's own pool, which works on one big batch.
"""

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.data.corpora import MadeSource, documents, find_source
from oelm.data.sources import DEFAULT_FRACTION, Source
from oelm.data.staging import SOURCE, Entry, TokenLog, disk_errors, is_finished, publish, staging_folder
from oelm.data.tokenization import (
    SAMPLE_BYTES,
    bpe_size,
    end_of_text_id,
    load_tokenizer,
    tokenizer_hash,
    tokenizer_label,
    vocabulary_size,
)
from oelm.data.tokens import FILES, FORMAT, TokenData, data_directory
from oelm.errors import OelmError
from oelm.files import file_hash, write_atomically, write_json
from oelm.validation import require_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Encoded = tuple[NDArray[Any], list[int]]
FEW_DOCUMENTS = 10  # of validation: fewer say little
CHUNK_BYTES = 256 << 10  # small enough to stay in cache, large enough to cost far more than its bookkeeping
MORE = "give --validation PATH or a larger --validation-fraction"


Note = Callable[[str], None]
Progress = Callable[[str, Entry, int | None], None]
"""Is told of a split what is done of it, and how many bytes of text it may have: a guess, or None."""


def prepare(
    source: Source | str | Path,
    out_dir: str | Path | None = None,
    tokenizer_spec: str | Path = "gpt2",
    *,
    max_tokens: int | None = None,
    workers: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    force: bool = False,
    progress: Progress = lambda split, done, expected_bytes: None,
    note: Note = lambda remark: None,
) -> TokenData:
    """Turn a source into a prepared folder and open it; a finished folder with the same settings is left as it is.

    `out_dir` defaults to `<data_dir>/<name>-<tokenizer>`. `max_tokens` ends the training text with the document that
    reaches so many tokens, the validation text with the held-out share of them. `force` replaces a finished folder or
    unfinished work that has other settings. `progress` is called after each chunk, `note` with remarks worth a line.
    """
    if not isinstance(source, Source):
        source = find_source([source], seed=seed)
    if workers is not None and workers < 1:
        raise OelmError(f"{workers} workers are not possible; give 1 or more")
    if max_tokens is not None and (max_tokens < 1 or isinstance(source, MadeSource)):
        way_out = "ask for --megabytes of it" if isinstance(source, MadeSource) else "give 1 or more"
        raise OelmError(f"max_tokens {max_tokens} is not possible of {source.name}; {way_out}")
    # A tokenizer on disk is read now, to know which it is; the others are not needed to find finished work.
    on_disk = bpe_size(tokenizer_spec) is None and str(tokenizer_spec) != "gpt2"
    tokenizer = load_tokenizer(tokenizer_spec) if on_disk else None
    identity = tokenizer_hash(tokenizer) if tokenizer else None
    label = tokenizer_label(tokenizer_spec, identity)
    require_name("name", source.name)
    out = Path(out_dir) if out_dir is not None else data_directory(data_dir) / f"{source.name}-{label}"
    # gpt2 and bpe:N are what they are called; for any other, the hash counts and not the file's name.
    named = identity is None or label == "gpt2"
    settings = {"name": source.name, **source.settings(), "tokenizer": label if named else identity}
    limits: dict[str, int] = {}
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
        held_out = settings.get("validation_fraction") or DEFAULT_FRACTION
        limits = {"train": max_tokens, "validation": math.ceil(held_out * max_tokens)}
    sample = min(SAMPLE_BYTES, 4 * max_tokens) if max_tokens else SAMPLE_BYTES
    if is_finished(out, settings, force):
        return replace(TokenData.open(out), unchanged=True)
    with disk_errors(out), staging_folder(out, settings, force) as staging:
        if (staging / SOURCE).exists():
            source = source.pinned(json.loads((staging / SOURCE).read_text("utf-8")))
        provenance = source.provenance()
        write_json(staging / SOURCE, provenance)
        if bpe_size(tokenizer_spec) is not None:
            for split in FILES:  # what cannot be read is refused before anything is announced
                _require_some(source, split, next(source.texts(split), None))
            note(f"training {tokenizer_spec} on at most {sample / 1e6:.3g} MB of the training text")
        tokenizer = tokenizer or load_tokenizer(tokenizer_spec, documents(source, "train"), sample_bytes=sample)
        encoder = _Encoder(tokenizer, identity or tokenizer_hash(tokenizer), workers or os.cpu_count() or 1)
        with encoder:
            splits = {
                split: _encode_split(source, split, limits.get(split), staging, encoder, progress, note)
                for split in FILES
            }
        trained = {"trained_on_first_bytes": sample} if bpe_size(tokenizer_spec) is not None else {}
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
        write_atomically(staging / "tokenizer.json", tokenizer.to_str())
        write_json(staging / "manifest.json", manifest)
        publish(staging, out)
    return TokenData.open(out)


def _encode_split(
    source: Source, split: str, limit: int | None, staging: Path, encoder: "_Encoder", progress: Progress, note: Note
) -> dict[str, Any]:
    """Write one token file, taking over what its journal already has; what the manifest says of it."""
    expected = source.expected_bytes(split)
    done = Entry("", 0, 0, 0, 0.0)
    pending: deque[tuple[Entry, list[str], Future[Encoded]]] = deque()  # in order, however many workers there are
    with TokenLog(staging, split, encoder.dtype) as log:

        def count(entry: Entry) -> None:
            nonlocal done
            done = done.plus(entry)
            progress(split, done, expected)

        def write_oldest() -> None:
            entry, texts, encoded = pending.popleft()
            ids, ends = encoded.result()
            whole = int(np.searchsorted(ends, limit - done.tokens)) + 1 if limit is not None else len(ends)
            if whole < len(ends):  # the document that reaches the limit is the last
                size = sum(len(text.encode()) for text in texts[:whole])
                entry, ids = replace(entry, documents=whole, bytes_of_text=size), ids[: ends[whole - 1]]
            count(log.append(entry, ids.tobytes()))

        # Where little is wanted, chunks are small: those that wait to be encoded were read for nothing at the limit.
        size = CHUNK_BYTES if limit is None else min(CHUNK_BYTES, max(1024, limit // 4))
        for texts, entry in _chunks(source.texts(split), encoder.identity, size):
            if limit is not None and done.tokens >= limit:
                break
            kept = log.take_over(entry.key)
            if kept is not None:
                count(kept)
                continue
            if done.documents and not pending and log.taken_over == done.documents:
                note(f"continuing {split} after {done.documents:,} documents encoded earlier")
            pending.append((entry, texts, encoder.submit(texts)))
            if len(pending) > 2 * encoder.workers:
                write_oldest()
        while pending and not (limit is not None and done.tokens >= limit):
            write_oldest()
    progress(split, done, done.bytes_of_text)  # no guess any more
    _require_some(source, split, done.documents)
    if done.documents < FEW_DOCUMENTS and split == "validation":
        few = "a single document" if done.documents == 1 else f"{done.documents} documents"
        note(f"validation is {few} and says little; {MORE}")
    facts = {"documents": done.documents, "tokens": done.tokens, "bytes_of_text": done.bytes_of_text}
    entropy = {} if done.nats is None else {"true_entropy_nats": done.nats}
    return {**facts, "sha256": file_hash(staging / FILES[split]), **entropy}


def _require_some(source: Source, split: str, found: object) -> None:
    if not found:
        way = "it has too few; give more text or --validation PATH"
        raise OelmError(f"no document of {source.name!r} falls in its {split} split: {way}")


def _chunks(
    texts: Iterable[tuple[str, float | None]], identity: str, chunk_bytes: int
) -> Iterator[tuple[list[str], Entry]]:
    """Documents in groups of about `chunk_bytes`, cut by the text alone, so that every run cuts alike."""
    group: list[str] = []
    nats: list[float | None] = []
    size = 0
    digest = hashlib.sha256(identity.encode())

    def entry() -> Entry:
        known = [value for value in nats if value is not None]
        return Entry(digest.hexdigest(), len(group), size, 0, math.fsum(known) if len(known) == len(nats) else None)

    for text, surprisal in texts:
        raw = text.encode()
        digest.update(b"%d:" % len(raw) + raw)
        group.append(text)
        nats.append(surprisal)
        size += len(raw)
        if size >= chunk_bytes:
            yield group, entry()
            group, nats, size, digest = [], [], 0, hashlib.sha256(identity.encode())
    if group:
        yield group, entry()


class _Encoder:
    """A pool of threads: a chunk of texts goes in, its ids come out, and where each document ends."""

    def __init__(self, tokenizer: "Tokenizer", identity: str, workers: int) -> None:
        self.workers = workers
        size, self._end = vocabulary_size(tokenizer), end_of_text_id(tokenizer)
        self.facts = {"hash": identity, "vocab_size": size, "end_of_text_id": self._end}
        self.dtype = "<u2" if size <= 1 << 16 else "<u4"
        self.identity = json.dumps([self.facts, self.dtype])
        self._tokenizer = tokenizer
        # Text that happens to spell a special token is text; only we may end a document.
        self._tokenizer.encode_special_tokens = True
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="encode")

    def submit(self, texts: list[str]) -> "Future[Encoded]":
        return self._pool.submit(self._encode, texts)

    def _encode(self, texts: list[str]) -> Encoded:
        ids: list[int] = []
        ends: list[int] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids += encoding.ids
            ids.append(self._end)
            ends.append(len(ids))
        return np.array(ids, self.dtype), ends

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
