"""Datasets on the hub: what is known of one (`Corpus`), and its documents (`HubSource`)."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from oelm.data.sources import DEFAULT_FRACTION, VALIDATION_NAMES, Source, carve
from oelm.data.textfiles import checked_texts, require_columns, wikitext_documents
from oelm.errors import OelmError, Unavailable
from oelm.files import file_hash
from oelm.hub import reason, unreachable

_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Corpus:
    """A corpus known by name, or any dataset of the hub. `hub` is None for what is embedded."""

    name: str
    hub: str | None = None
    config: str | None = None
    revision: str | None = None  # the commit it is read at, unless another revision is asked for
    field: str = "text"
    rows_are_lines: bool = False  # rows are lines of articles, to be joined again
    train: str = "train"
    validation: str | None = "validation"  # the split; None: by its usual names, else documents are held out
    validation_fraction: float | None = None  # set where the hub has no validation split


@dataclass(frozen=True)
class HubDataset:
    """A dataset at a revision, or a folder of the same layout, whose "commit" is a hash of its files."""

    dataset: str
    config: str | None
    revision: str | None
    failure: str  # what to say when it cannot be had, with {reason} in it

    @property
    def is_local(self) -> bool:
        return Path(self.dataset).is_dir()

    @cached_property
    def commit(self) -> str:
        """What the revision means; one that is a commit needs no asking, so that what is cached works offline."""
        if self.is_local:
            root = Path(self.dataset)
            files = sorted(path for path in root.rglob("*") if path.is_file())
            named = "".join(f"{path.relative_to(root).as_posix()} {file_hash(path)}\n" for path in files)
            return hashlib.sha256(named.encode()).hexdigest()[:40]
        try:
            unreachable()
            if self.revision and _COMMIT.fullmatch(self.revision):
                return self.revision
            from huggingface_hub import HfApi

            return str(HfApi().dataset_info(self.dataset, revision=self.revision, timeout=20).sha)
        except Exception as error:  # the hub's clients raise many unrelated types
            raise self._refused(error) from error

    def load(self, split: str, stream: bool = False) -> Any:
        """A split at the commit. Without a network, `datasets` takes whatever commit it has; we do not."""
        import datasets

        commit = self.commit
        datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = 3
        how = {"streaming": True} if stream else {}
        try:
            loaded = datasets.load_dataset(self.dataset, name=self.config, split=split, revision=commit, **how)
        except Exception as error:
            raise self._refused(error) from error
        cached = {} if stream or self.is_local else {Path(file["filename"]).parent.name for file in loaded.cache_files}
        if others := sorted(name for name in cached if _COMMIT.fullmatch(name) and name != commit):
            there = f"dataset {self.dataset} is cached at commit {others[0]}, not at {commit}"
            raise OelmError(f"{there}, and the hub cannot be reached; try again with a network, or with your own files")
        return loaded

    def splits(self) -> list[str]:
        import datasets

        commit = self.commit
        try:
            return list(datasets.get_dataset_split_names(self.dataset, config_name=self.config, revision=commit))
        except Exception as error:
            raise self._refused(error) from error

    def texts(self, split: str, column: str, stream: bool) -> Iterator[str]:
        """The texts of a column, row by row; a connection that breaks is told, and what was read is not lost."""
        dataset = self.load(split, stream)
        where = f"dataset {self.dataset}, split {split}"
        require_columns(where, (column,), dataset.column_names or next(iter(dataset), {}), "--field")
        batches = dataset.select_columns([column]).iter(batch_size=100 if stream else 1000)
        values = (value for batch in self._unbroken(batches) for value in batch[column])
        return checked_texts(values, where, column)

    def _unbroken(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except Exception as error:
            again = "run the same command again: what is encoded is kept"
            raise Unavailable(f"dataset {self.dataset} broke off ({reason(error, self.dataset)}); {again}") from error

    def _refused(self, error: Exception) -> OelmError:
        if isinstance(error, ValueError) and (self.is_local or not unreachable()):
            said = reason(error, self.dataset).rstrip(".")  # it is there, but not what was asked of it
            return OelmError(f"dataset {self.dataset}: {said}; choose with --config and --split")
        return Unavailable(self.failure.replace("{reason}", reason(error, self.dataset)))


@dataclass(frozen=True)
class HubSource(Source):
    """A dataset on the hub, through `datasets`: downloaded once to its cache and memory-mapped, or streamed."""

    name: str
    corpus: Corpus
    revision: str | None
    seed: int
    stream: bool = False  # no setting: the documents are the same
    first: dict[str, int] = dataclasses.field(default_factory=dict)  # only so many documents of a split

    @cached_property
    def _there(self) -> HubDataset:
        at = f" at revision {self.revision!r}" if self.revision else ""
        own = "" if self.corpus.name else "is no folder here and "
        failure = (
            f"dataset {self.corpus.hub}{at} {own}could not be reached on the hub ({{reason}}); "
            f"a local copy works in its place: oelm data prepare PATH --name {self.name}"
        )
        return HubDataset(str(self.corpus.hub), self.corpus.config, self.revision, failure)

    def settings(self) -> dict[str, Any]:
        corpus = self.corpus
        source = self._there.commit if self._there.is_local else corpus.hub
        settings: dict[str, Any] = {"source": source, "config": corpus.config, "revision": self.revision}
        for key in ("field", "train", "validation"):  # those of the table are not repeated
            if (value := getattr(corpus, key)) != getattr(Corpus, key):
                settings[key] = value
        if corpus.validation_fraction is not None or corpus.validation is None:
            settings |= {"validation_fraction": corpus.validation_fraction, "seed": self.seed}
        return settings | ({"first_documents": self.first} if self.first else {})

    def provenance(self) -> dict[str, Any]:
        asked = {"dataset": self.corpus.hub, "config": self.corpus.config, "requested_revision": self.revision}
        return {"kind": "hub", **asked, "revision": self._there.commit}

    def pinned(self, provenance: dict[str, Any]) -> "HubSource":
        return dataclasses.replace(self, revision=provenance["revision"])

    @cached_property
    def _held_out(self) -> tuple[str, float | None]:
        """The split that validation documents come from, and the share of it that they are; None: all of it."""
        corpus = self.corpus
        if corpus.validation_fraction is not None:
            return corpus.train, corpus.validation_fraction
        names = [corpus.validation] if corpus.validation else [n for n in VALIDATION_NAMES if n in self._there.splits()]
        return (names[0], None) if names else (corpus.train, DEFAULT_FRACTION)

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        place, fraction = self._held_out
        rows = self._there.texts(self.corpus.train if split == "train" else place, self.corpus.field, self.stream)
        if self.corpus.rows_are_lines:
            rows = wikitext_documents(rows)
        kept = (text for text in (rows if fraction is None else carve(rows, split, fraction, self.seed)) if text)
        yield from ((text, None) for text in islice(kept, self.first.get(split)))
