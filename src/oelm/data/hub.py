"""Datasets on the hub: what is known of one (`Corpus`), and its documents (`HubSource`)."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
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


def commit_of(dataset: str, revision: str | None) -> str:
    """The commit that a revision means; one that is a commit needs no asking, so that what is cached works offline."""
    unreachable()
    if revision and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(dataset, revision=revision, timeout=20).sha)


def load_at(dataset: str, config: str | None, split: str, commit: str) -> Any:
    """A split of a dataset at a commit. Without a network, `datasets` takes whatever commit it has; we do not."""
    import datasets

    loaded = datasets.load_dataset(dataset, name=config, split=split, revision=commit)
    cached = {Path(file["filename"]).parent.name for file in loaded.cache_files}  # named by commit
    if others := sorted(name for name in cached if _COMMIT.fullmatch(name) and name != commit):
        raise OelmError(
            f"dataset {dataset} is cached at commit {others[0]}, not at {commit}, and the hub cannot be reached; "
            "try again with a network, or with files of your own"
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
    _commit: list[str] = dataclasses.field(default_factory=list, compare=False, repr=False)

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
            "revision": self._resolved(),
        }

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        carved = self.corpus.validation_fraction
        dataset = self._load("train" if carved is not None else split)
        column = self.corpus.field
        rows: Iterator[str] = (text for batch in dataset.iter(batch_size=1000) for text in batch[column])
        if self.corpus.rows_are_lines:
            rows = joined_rows(rows)
        kept = (text for text in (rows if carved is None else carve(rows, split, carved, self.seed)) if text)
        yield from ((text, None) for text in islice(kept, self.first.get(split)))

    def _load(self, split: str) -> Any:
        try:
            dataset = load_at(str(self.corpus.hub), self.corpus.config, split, self._resolved())
        except OelmError:
            raise
        except Exception as error:  # the hub's clients raise many unrelated types
            raise self._unreachable(error) from error
        if self.corpus.field not in dataset.column_names:
            raise OelmError(f"dataset {self.corpus.hub} has no column {self.corpus.field!r}: {dataset.column_names}")
        return dataset

    def _resolved(self) -> str:
        if not self._commit:
            try:
                self._commit.append(commit_of(str(self.corpus.hub), self.revision))
            except Exception as error:
                raise self._unreachable(error) from error
        return self._commit[0]

    def _unreachable(self, error: Exception) -> OelmError:
        at = f" at revision {self.revision!r}" if self.revision else ""
        return Unavailable(
            f"dataset {self.corpus.hub}{at} could not be reached on the hub ({reason(error)}); "
            f"a local copy works in its place: oelm data prepare PATH --name {self.name}"
        )
