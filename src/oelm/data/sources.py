"""What a source of text is, how its validation documents are held out, and the user's own files as one."""

import dataclasses
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.data.textfiles import SUFFIXES, file_documents, text_format, wikitext_documents
from oelm.errors import OelmError
from oelm.files import file_hash

SPLITS = ("train", "validation")
VALIDATION_NAMES = ("validation", "val", "valid", "dev")
DEFAULT_FRACTION = 0.05  # of the documents, to validate on where there is no text for it


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


@dataclass(frozen=True)
class FilesSource(Source):
    """Files on disk. With no validation files, a fixed share of the documents is held out."""

    name: str
    train: tuple[Path, ...]
    validation: tuple[Path, ...]
    field: str
    fraction: float | None
    seed: int
    rows_are_lines: bool = False
    """In files of rows, that these may be lines of articles, to be joined again (see `Corpus`)."""
    _hashes: dict[Path, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        # Hashes, not paths: the same text from another place is the same data.
        settings: dict[str, Any] = {split: [self._sha256(path) for path in self._files(split)] for split in SPLITS}
        if any(text_format(path) != ".txt" for path in self.train + self.validation):
            settings["field"] = self.field
            if self.rows_are_lines:
                settings["rows_are_lines"] = True
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
        stream = self._documents(paths)
        for text in stream if self.fraction is None else carve(stream, split, self.fraction, self.seed):
            yield text, None

    def _documents(self, paths: Iterable[Path]) -> Iterator[str]:
        for is_text, files in itertools.groupby(paths, lambda path: text_format(path) == ".txt"):
            lines = self.rows_are_lines and not is_text
            rows = (text for path in files for text in file_documents(path, self.field, keep_blank=lines))
            yield from wikitext_documents(rows) if lines else rows  # an article may go on in the next file

    def expected_bytes(self, split: str) -> int | None:
        paths = self._files(split) if self.fraction is None else self.train
        if any(path.suffix not in (".txt", ".jsonl", ".csv", ".tsv") for path in paths):
            return None  # compressed or columnar: the size on disk says little about the text
        share = 1.0 if self.fraction is None else self.fraction if split == "validation" else 1 - self.fraction
        return int(share * sum(path.stat().st_size for path in paths))

    def _files(self, split: str) -> tuple[Path, ...]:
        return self.train if split == "train" else self.validation

    def _sha256(self, path: Path) -> str:
        if path not in self._hashes:
            try:
                self._hashes[path] = file_hash(path)
            except OSError as error:
                raise OelmError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
        return self._hashes[path]


def split_paths(paths: list[Path], validation: str | Path | None) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Which files are for training and which for validation."""
    train: list[Path] = []
    held_out: list[Path] = []
    for path in paths:
        if path.is_dir():
            held_out += _held_out_in(path)
    if validation is not None:
        given = Path(validation)
        if not given.exists():
            raise OelmError(f"validation path {str(given)!r} does not exist; give a file or a folder")
        held_out = (_held_out_in(given) or _text_files(given)) if given.is_dir() else [given]
    kept = {path.resolve() for path in held_out}
    for path in paths:
        if path.is_dir():
            named = _starting_with(path, "train") or ([] if _held_out_in(path) else _text_files(path))
            train += [file for file in named if file.resolve() not in kept]
        else:
            train.append(path)
    _require_apart(train, kept)
    for path in train + held_out:
        if path.exists() and not path.is_file():
            raise OelmError(f"{str(path)!r} is a pipe or a device, not a file; write its text to a file first")
        if text_format(path) not in SUFFIXES:
            raise OelmError(f"file {str(path)!r} has no known format; known: {', '.join(SUFFIXES)}, also .gz or .zst")
    if not train:
        known = f"train{', '.join(SUFFIXES)} (also .gz, .zst), and validation.* beside it"
        raise OelmError(f"folder {str(paths[0])!r} has no training text; expected {known}")
    return tuple(train), tuple(held_out)


def _held_out_in(folder: Path) -> list[Path]:
    return next((files for stem in VALIDATION_NAMES if (files := _starting_with(folder, stem))), [])


def _require_apart(train: list[Path], held_out: set[Path]) -> None:
    """No text may be trained on twice, nor be validated on after it was trained on."""
    seen: set[Path] = set()
    for path in train:
        file = path.resolve()
        if file in held_out:
            raise OelmError(f"{str(path)!r} is given for training and for validation; give other text for one of them")
        if file in seen:
            raise OelmError(f"{str(path)!r} is given twice; give it once, or only the folder it is in")
        seen.add(file)


def _text_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and text_format(path) in SUFFIXES)


def _starting_with(folder: Path, stem: str) -> list[Path]:
    """`train.txt`, and shards such as `train-00000-of-00004.parquet`, but not `training-notes.txt`."""
    return [p for p in _text_files(folder) if p.name.startswith((f"{stem}.", f"{stem}-", f"{stem}_"))]
