"""Where text comes from: the embedded corpus, datasets on the hub, and files on disk.

A `Source` says what it is (`settings`, `provenance`) and streams its documents; nothing here knows about tokens.

>>> source = find_source(["fables"], megabytes=0.01)
>>> next(documents(source, "train"))[:1].isupper()
True
"""

import codecs
import dataclasses
import hashlib
import io
import itertools
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from oelm.errors import OelmError, unknown

SPLITS = ("train", "validation")
LOCAL_VALIDATION_FRACTION = 0.05
_VALIDATION_STEMS = ("validation", "val", "valid", "dev")
SUFFIXES = (".txt", ".jsonl", ".parquet")  # each also with .gz or .zst
_PACKINGS = {".gz": "gzip", ".zst": "zstd"}
SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Corpus:
    """A corpus known by name. `hub` is None for the one that is embedded."""

    name: str
    summary: str
    hub: str | None = None
    config: str | None = None
    revision: str | None = None  # a branch is resolved to its commit when preparing; the manifest records the commit
    field: str = "text"
    rows_are_lines: bool = False  # rows are lines of articles, to be joined again
    validation_fraction: float | None = None  # set where the hub has no validation split


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("fables", "embedded story grammar with known entropy; any amount, no download"),
        Corpus("tinystories", "2.1 million short stories for children", "roneneldan/TinyStories"),
        # The dataset's own script no longer loads; the hub's parquet conversion does, under the config "default".
        # 0.05 % for validation is the customary share: about 4,000 of 8 million documents.
        Corpus(
            "openwebtext",
            "8 million web documents, 40 GB",
            "Skylion007/openwebtext",
            revision="refs/convert/parquet",
            validation_fraction=0.0005,
        ),
        Corpus(
            "wikitext103",
            "28,475 Wikipedia articles, 103 million words",
            "Salesforce/wikitext",
            config="wikitext-103-raw-v1",
            rows_are_lines=True,
        ),
        Corpus(
            "wikitext2",
            "600 Wikipedia articles, 2 million words",
            "Salesforce/wikitext",
            config="wikitext-2-raw-v1",
            rows_are_lines=True,
        ),
    )
}


class Source:
    """What `prepare` reads: a name, what identifies it, and its documents."""

    name: str

    def settings(self) -> dict[str, Any]:
        """What the user asked for, known without the network: two equal settings give the same documents."""
        raise NotImplementedError

    def provenance(self) -> dict[str, Any]:
        """What was really read, for the manifest; resolves what only the hub knows."""
        raise NotImplementedError

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        """Documents of a split, each with its true surprisal in nats where that is known."""
        raise NotImplementedError

    def expected_bytes(self, split: str) -> int | None:
        """Roughly how much text is coming, for a progress bar; None if unknown."""
        return None


def documents(source: Source, split: str) -> Iterator[str]:
    """Stream the documents of `split` ("train" or "validation")."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return (text for text, _ in source.texts(split))


def find_source(
    what: Sequence[str | Path],
    *,
    name: str | None = None,
    field: str | None = None,
    revision: str | None = None,
    validation: str | Path | None = None,
    validation_fraction: float | None = None,
    seed: int = 0,
    megabytes: float = 2.0,
    validation_megabytes: float = 0.15,
) -> Source:
    """The source meant by a corpus name or by one or more paths."""
    if not what:
        raise OelmError(f"no corpus given; name one of {', '.join(CORPORA)} or a path")
    first = str(what[0])
    if len(what) == 1 and first in CORPORA:
        corpus = CORPORA[first]
        if validation is not None or validation_fraction is not None or field is not None:
            raise OelmError(f"{first!r} has its own validation split and field; such options are for local paths")
        if corpus.hub is None:
            if min(megabytes, validation_megabytes) <= 0:
                raise OelmError(
                    f"{first} of {megabytes} + {validation_megabytes} MB is not possible; both must be above 0"
                )
            return FablesSource(name or first, int(megabytes * 1e6), int(validation_megabytes * 1e6), seed)
        return HubSource(name or first, corpus, revision or corpus.revision, seed)
    paths = [Path(item) for item in what]
    for path in paths:
        if not path.exists():
            if len(what) == 1 and path.name == first and not path.suffix:
                raise unknown("corpus", first, CORPORA)
            raise OelmError(f"path {str(path)!r} does not exist; give a file, a folder or one of {', '.join(CORPORA)}")
    train, held_out = _split_paths(paths, validation)
    fraction = None
    if held_out and validation_fraction is not None:
        raise OelmError(
            f"validation text is already in {str(held_out[0])!r}; leave --validation-fraction {validation_fraction} out"
        )
    if not held_out:
        fraction = LOCAL_VALIDATION_FRACTION if validation_fraction is None else validation_fraction
        if not 0 < fraction <= 0.5:
            raise OelmError(f"validation fraction {fraction} is out of range; choose above 0 and at most 0.5")
    label = name or paths[0].resolve().name.split(".")[0] or "corpus"
    return FilesSource(label, train, held_out, field or "text", fraction, seed)


@dataclass(frozen=True)
class FablesSource(Source):
    """The embedded corpus: as much as is asked for, with the true entropy of every story."""

    name: str
    train_bytes: int
    validation_bytes: int
    seed: int

    def settings(self) -> dict[str, Any]:
        return {
            "source": "fables",
            "train_bytes": self.train_bytes,
            "validation_bytes": self.validation_bytes,
            "seed": self.seed,
        }

    def provenance(self) -> dict[str, Any]:
        return {"kind": "embedded", "corpus": "fables", "seed": self.seed}

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        from oelm.data import fables

        for story in fables.stories_of_size(split, self.seed, self.expected_bytes(split)):
            yield story.text, story.nats

    def expected_bytes(self, split: str) -> int:
        return self.train_bytes if split == "train" else self.validation_bytes


@dataclass(frozen=True)
class FilesSource(Source):
    """Files on disk. With no validation files, a fixed share of the documents is held out."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...]
    field: str
    fraction: float | None
    seed: int
    _hashes: dict[Path, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        # Hashes, not paths: the same text from another place is the same data.
        settings: dict[str, Any] = {split: [self._sha256(path) for path in self._files(split)] for split in SPLITS}
        if any(_format(path) != ".txt" for path in self.train + self.validation):
            settings["field"] = self.field
        if self.fraction is not None:
            settings |= {"validation_fraction": self.fraction, "seed": self.seed}
        return settings

    def provenance(self) -> dict[str, Any]:
        files = [
            {"split": split, "path": str(path), "bytes": path.stat().st_size, "sha256": self._sha256(path)}
            for split in SPLITS
            for path in self._files(split)
        ]
        return {"kind": "files", "files": files}

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        paths = self._files(split) if self.fraction is None else self.train
        stream = (text for path in paths for text in file_documents(path, self.field))
        for text in stream if self.fraction is None else _carve(stream, split, self.fraction, self.seed):
            yield text, None

    def expected_bytes(self, split: str) -> int | None:
        paths = self._files(split) if self.fraction is None else self.train
        if any(path.suffix not in (".txt", ".jsonl") for path in paths):
            return None  # compressed or columnar: the size on disk says little about the text
        share = 1.0 if self.fraction is None else self.fraction if split == "validation" else 1 - self.fraction
        return int(share * sum(path.stat().st_size for path in paths))

    def _files(self, split: str) -> tuple[Path, ...]:
        return self.train if split == "train" else self.validation

    def _sha256(self, path: Path) -> str:
        if path not in self._hashes:
            digest = hashlib.sha256()
            try:
                with open(path, "rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            except OSError as error:
                raise OelmError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
            self._hashes[path] = digest.hexdigest()
        return self._hashes[path]


@dataclass(frozen=True)
class HubSource(Source):
    """A dataset on the hub, through `datasets`: downloaded once to its cache, then read memory-mapped."""

    name: str
    corpus: Corpus
    revision: str | None
    seed: int
    _commit: list[str] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"source": self.corpus.hub, "config": self.corpus.config, "revision": self.revision}
        if self.corpus.validation_fraction is not None:
            settings |= {"validation_fraction": self.corpus.validation_fraction, "seed": self.seed}
        return settings

    def provenance(self) -> dict[str, Any]:
        return {
            "kind": "hub",
            "dataset": self.corpus.hub,
            "config": self.corpus.config,
            "requested_revision": self.revision,
            "revision": self._resolved(),
        }

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        carved = self.corpus.validation_fraction
        dataset = self._load("train" if carved is not None else split)
        column = self.corpus.field
        rows: Iterator[str] = (text for batch in dataset.iter(batch_size=1000) for text in batch[column])
        if self.corpus.rows_are_lines:
            # The hub stores an empty string where the raw file has the line " \n".
            rows = articles(row or " \n" for row in rows)
        for text in rows if carved is None else _carve(rows, split, carved, self.seed):
            if text:
                yield text, None

    def _load(self, split: str) -> Any:
        import datasets

        try:
            dataset = datasets.load_dataset(
                self.corpus.hub, name=self.corpus.config, split=split, revision=self._resolved()
            )
        except OelmError:
            raise
        except Exception as error:  # the hub's clients raise many unrelated types
            raise self._unreachable(error) from error
        if self.corpus.field not in dataset.column_names:
            raise OelmError(f"dataset {self.corpus.hub} has no column {self.corpus.field!r}: {dataset.column_names}")
        return dataset

    def _resolved(self) -> str:
        if not self._commit:
            from huggingface_hub import HfApi

            try:
                info = HfApi().dataset_info(str(self.corpus.hub), revision=self.revision, timeout=20)
            except Exception as error:
                raise self._unreachable(error) from error
            self._commit.append(str(info.sha))
        return self._commit[0]

    def _unreachable(self, error: Exception) -> OelmError:
        at = f" at revision {self.revision!r}" if self.revision else ""
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return OelmError(
            f"dataset {self.corpus.hub}{at} could not be reached on the hub ({reason}); "
            f"a local copy works in its place: oelm data prepare PATH --name {self.name}"
        )


def _carve(texts: Iterator[str], split: str, fraction: float, seed: int) -> Iterator[str]:
    """Hold out documents by a hash of their number: fixed for a seed, spread over the corpus, needs no counting."""
    threshold = int(fraction * 2**64)
    for number, text in enumerate(texts):
        digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "big") < threshold) == (split == "validation"):
            yield text


def _format(path: Path) -> str:
    """The suffix that names the format, below any compression.

    >>> _format(Path("train.jsonl.zst"))
    '.jsonl'
    """
    return Path(path.stem).suffix if path.suffix in _PACKINGS else path.suffix


def _split_paths(paths: list[Path], validation: str | Path | None) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Which files are for training and which for validation."""
    train: list[Path] = []
    held_out: list[Path] = []
    for path in paths:
        if path.is_dir():
            by_stem = {stem: _starting_with(path, stem) for stem in ("train", *_VALIDATION_STEMS)}
            train += by_stem.pop("train") or (_text_files(path) if not any(by_stem.values()) else [])
            held_out += next((files for files in by_stem.values() if files), [])
        else:
            train.append(path)
    if validation is not None:
        given = Path(validation)
        if not given.exists():
            raise OelmError(f"validation path {str(given)!r} does not exist; give a file or a folder")
        held_out = _text_files(given) if given.is_dir() else [given]
    for path in train + held_out:
        if _format(path) not in SUFFIXES:
            raise OelmError(
                f"file {str(path)!r} has no known format; known: {', '.join(SUFFIXES)}, also with .gz or .zst"
            )
    if not train:
        raise OelmError(
            f"folder {str(paths[0])!r} has no training text; expected train.txt, train.jsonl or train.parquet "
            "(also .gz, .zst), and validation.* beside it"
        )
    return tuple(train), tuple(held_out)


def _text_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and _format(path) in SUFFIXES)


def _starting_with(folder: Path, stem: str) -> list[Path]:
    """`train.txt`, and shards such as `train-00000-of-00004.parquet`, but not `training-notes.txt`."""
    return [p for p in _text_files(folder) if p.name.startswith((f"{stem}.", f"{stem}-", f"{stem}_"))]


# Files: bytes, then lines, then documents.


def file_documents(path: Path, field: str = "text") -> Iterator[str]:
    """Stream the documents of one file; what is wrong with it is told with its name and line.

    `.jsonl` and `.parquet` hold one document per row in `field`. In `.txt`, documents end at a line
    `<|endoftext|>`; a file that begins with a WikiText heading (` = Title = `) has one document per article; any other
    text is cut at blank lines into documents of about 64 kB, so that a book of any length streams.
    """
    reader = {".txt": _text_documents, ".jsonl": _jsonl_documents, ".parquet": _parquet_documents}[_format(path)]
    empty = True
    try:
        for text in reader(path, field):
            if text and not text.isspace():
                empty = False
                yield text
    except (OSError, EOFError) as error:  # missing, unreadable, truncated or not compressed at all
        raise OelmError(f"{path} cannot be read ({error}); is it complete?") from error
    if empty:
        raise OelmError(f"{path} holds no text; remove it or give another file")


def _text_documents(path: Path, _: str) -> Iterator[str]:
    lines = _lines(path, limit=1 << 20)
    head = list(_up_to(lines, 1 << 20))
    lines = itertools.chain(head, lines)
    title = next((line for line in head if not line.isspace()), "")
    if _HEADING.fullmatch(title):
        return articles(lines)
    separated = any(line.strip() == SEPARATOR for line in head)
    return _passages(lines, longest=(8 << 20) if separated else (64 << 10))


def _passages(lines: Iterator[str], longest: int) -> Iterator[str]:
    passage: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        ends = line.strip() == SEPARATOR
        if not ends:
            passage.append(line)
        if ends or size >= 2 * longest or (size >= longest and line.isspace()):
            yield "".join(passage).strip("\r\n")
            passage, size = [], 0
    yield "".join(passage).strip("\r\n")


_HEADING = re.compile(r" = (?!= ).*(?<! =) = *\r?\n?")


def articles(lines: Iterator[str]) -> Iterator[str]:
    """Join WikiText lines into articles. A heading stands between blank lines; the same form inside a table does not.

    >>> list(articles(iter([" = A = \\n", " \\n", "x\\n", " \\n", " = B = \\n", " \\n", "y\\n"])))
    [' = A = \\n \\nx\\n \\n', ' = B = \\n \\ny\\n']
    """
    article: list[str] = []
    heading = None  # seen after a blank line; it counts if a blank line follows
    after_blank = True
    for line in lines:
        blank = line.isspace()
        if heading is not None:
            if blank and not all(part.isspace() for part in article):
                yield "".join(article)
                article = []
            article.append(heading)
            heading = None
        if after_blank and _HEADING.fullmatch(line):
            heading = line
        else:
            article.append(line)
        after_blank = blank
    yield "".join(article) + (heading or "")


def _jsonl_documents(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path), start=1):
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise OelmError(f"{path} line {number} is not JSON ({error}); mend or remove that line") from error
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            keys = f"its fields: {', '.join(row)}" if isinstance(row, dict) else "not an object"
            raise OelmError(f"{path} line {number} has no text in field {field!r} ({keys}); choose one with --field")
        if not row[field].isascii():
            try:
                row[field].encode()
            except UnicodeEncodeError as error:
                raise OelmError(f"{path} line {number} has half a surrogate pair; mend or remove that line") from error
        yield row[field]


def _parquet_documents(path: Path, field: str) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryFile() as unpacked:
        if path.suffix in _PACKINGS:  # parquet is read from its end, a compressed stream cannot be
            with _open(path) as stream:
                while block := stream.read(1 << 20):
                    unpacked.write(block)
        try:
            table = pyarrow.parquet.ParquetFile(unpacked if path.suffix != ".parquet" else path)
        except pyarrow.ArrowInvalid as error:
            raise OelmError(f"{path} is not a parquet file ({error}); is it complete?") from error
        column = table.schema_arrow.field(field).type if field in table.schema_arrow.names else None
        if column not in (pyarrow.string(), pyarrow.large_string()):
            known = ", ".join(table.schema_arrow.names)
            raise OelmError(f"{path} has no text column {field!r} (its columns: {known}); choose one with --field")
        for batch in table.iter_batches(batch_size=1000, columns=[field]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)


def _lines(path: Path, limit: int = -1) -> Iterator[str]:
    """Decoded lines, so that a bad byte is told with its line; `limit` cuts lines that would not fit in memory."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number = 0
    with _open(path) as stream:
        try:
            while raw := stream.readline(limit):
                number += 1
                yield decoder.decode(raw)
            decoder.decode(b"", final=True)  # refuses half a character at the end
        except UnicodeDecodeError as error:
            raise OelmError(f"{path} line {number} is not UTF-8 ({error.reason}); convert the file first") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix not in _PACKINGS:
        return open(path, "rb")
    import pyarrow  # its streams, unlike zstandard's, notice a truncated file

    return io.BufferedReader(pyarrow.input_stream(str(path), compression=_PACKINGS[path.suffix]), 1 << 18)


def _up_to(lines: Iterator[str], size: int) -> Iterator[str]:
    for line in lines:
        yield line
        size -= len(line)
        if size <= 0:
            return
