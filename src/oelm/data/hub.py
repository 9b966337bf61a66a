"""Datasets on the hub: what is known of one (`Corpus`), and its documents (`HubSource`)."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from oelm.data.sources import Source, carve
from oelm.data.textfiles import joined_rows
from oelm.errors import OelmError, Unavailable
from oelm.hub import reason, unreachable

_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Corpus:
    """A corpus known by name. `hub` is None for the one that is embedded."""

    name: str
    summary: str
    hub: str | None = None
    config: str | None = None
    revision: str | None = None  # the commit it is read at, unless another revision is asked for
    field: str = "text"
    rows_are_lines: bool = False  # rows are lines of articles, to be joined again
    validation_fraction: float | None = None  # set where the hub has no validation split


@dataclass(frozen=True)
class HubDataset:
    """A dataset at a revision; whatever the hub's clients raise is one line that names the way out."""

    dataset: str
    config: str | None
    revision: str | None
    failure: str
    """What to say when it cannot be had, with {reason} in it."""

    @cached_property
    def commit(self) -> str:
        """What the revision means; one that is a commit needs no asking, so that what is cached works offline."""
        try:
            unreachable()
            if self.revision and _COMMIT.fullmatch(self.revision):
                return self.revision
            from huggingface_hub import HfApi

            return str(HfApi().dataset_info(self.dataset, revision=self.revision, timeout=20).sha)
        except Exception as error:  # the hub's clients raise many unrelated types
            raise Unavailable(self.failure.replace("{reason}", reason(error))) from error

    def load(self, split: str) -> Any:
        """A split at the commit. Without a network, `datasets` takes whatever commit it has; we do not."""
        import datasets

        commit = self.commit
        try:
            loaded = datasets.load_dataset(self.dataset, name=self.config, split=split, revision=commit)
        except Exception as error:
            raise Unavailable(self.failure.replace("{reason}", reason(error))) from error
        cached = {Path(file["filename"]).parent.name for file in loaded.cache_files}  # named by commit
        if others := sorted(name for name in cached if _COMMIT.fullmatch(name) and name != commit):
            raise OelmError(
                f"dataset {self.dataset} is cached at commit {others[0]}, not at {commit}, and the hub cannot be "
                "reached; try again with a network, or with files of your own"
            )
        return loaded


@dataclass(frozen=True)
class HubSource(Source):
    """A dataset on the hub, through `datasets`: downloaded once to its cache, then read memory-mapped."""

    name: str
    corpus: Corpus
    revision: str | None
    seed: int
    first: dict[str, int] = dataclasses.field(default_factory=dict)  # only so many documents of a split

    @cached_property
    def _there(self) -> HubDataset:
        at = f" at revision {self.revision!r}" if self.revision else ""
        failure = (
            f"dataset {self.corpus.hub}{at} could not be reached on the hub ({{reason}}); "
            f"a local copy works in its place: oelm data prepare PATH --name {self.name}"
        )
        return HubDataset(str(self.corpus.hub), self.corpus.config, self.revision, failure)

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"source": self.corpus.hub, "config": self.corpus.config, "revision": self.revision}
        if self.corpus.validation_fraction is not None:
            settings |= {"validation_fraction": self.corpus.validation_fraction, "seed": self.seed}
        return settings | ({"first_documents": self.first} if self.first else {})

    def provenance(self) -> dict[str, Any]:
        return {
            "kind": "hub",
            "dataset": self.corpus.hub,
            "config": self.corpus.config,
            "requested_revision": self.revision,
            "revision": self._there.commit,
        }

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        carved = self.corpus.validation_fraction
        dataset, column = self._there.load("train" if carved is not None else split), self.corpus.field
        if column not in dataset.column_names:
            raise OelmError(f"dataset {self.corpus.hub} has no column {column!r}: {dataset.column_names}")
        rows: Iterator[str] = (text for batch in dataset.iter(batch_size=1000) for text in batch[column])
        if self.corpus.rows_are_lines:
            rows = joined_rows(rows)
        kept = (text for text in (rows if carved is None else carve(rows, split, carved, self.seed)) if text)
        yield from ((text, None) for text in islice(kept, self.first.get(split)))
