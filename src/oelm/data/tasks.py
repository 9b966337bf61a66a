"""Where labelled texts come from: the study's three tasks on the hub, or files on disk with named columns.

A `Task` says which columns hold the texts and the label and what the classes are; a `TaskSource` yields checked rows.
Nothing here knows about tokens.

>>> TASKS["mnli"].classes
('entailment', 'neutral', 'contradiction')
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oelm.data.hub import HubDataset
from oelm.data.order import permute
from oelm.data.textfiles import TABLES, is_unicode, read_columns, require_columns
from oelm.errors import OelmError, unknown
from oelm.files import file_hash
from oelm.validation import plain_number, require_name

_OR_SUFFIXES = f"{', '.join(TABLES[:-1])} or {TABLES[-1]}"
FILES = f"a train and a validation file ({_OR_SUFFIXES})"
_OTHER_NAMES = {"validation": ("validation", "valid", "val", "dev"), "validation_matched": ("validation", "dev")}
_MOST_CLASSES = 1_000
_TARGET = "target"  # the one class of pairs, which have none
_COLUMNS = "--text-column and --label-column of oelm data task"


@dataclass(frozen=True)
class Task:
    """One or two texts and a class; without a label, pairs of a source and the target to write for it."""

    name: str
    texts: tuple[str, ...]
    label: str = "label"
    classes: tuple[str, ...] = ()  # without any, those of the training rows, sorted
    hub: str | None = None
    config: str | None = None
    revision: str | None = None  # the commit it is read at, unless another revision is asked for
    languages: bool = False  # whether the hub's config is a language
    validation: str = "validation"  # the split to validate on, unless another is asked for

    @property
    def is_pairs(self) -> bool:
        return not self.label


_GLUE: dict[str, Any] = {"hub": "nyu-mll/glue", "revision": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"}
_XNLI: dict[str, Any] = {"hub": "facebook/xnli", "revision": "b8dd5d7af51114dbda02c0e3f6133f332186418e"}
_NLI = ("premise", "hypothesis"), "label", ("entailment", "neutral", "contradiction")
TASKS = {
    task.name: task
    for task in (
        # Sentiment of film review phrases, 67,349 + 872.
        Task("sst2", ("sentence",), "label", ("negative", "positive"), config="sst2", **_GLUE),
        # Does one sentence follow from another? 392,702 + 9,815; also validation_mismatched.
        Task("mnli", *_NLI, config="mnli", validation="validation_matched", **_GLUE),
        # The same in 15 languages, 392,702 + 2,490; also test.
        Task("xnli", *_NLI, config="en", languages=True, **_XNLI),
    )
}
"""The study's tasks. A label may be written as the class's name or as its number."""


class Row(NamedTuple):
    texts: tuple[str, ...]
    label: int


def find_task(name: str, texts: Sequence[str] = (), label: str | None = None, classes: Sequence[str] = ()) -> Task:
    """A task of the table, with other columns or classes where given; any other name needs its text columns."""
    given = {"texts": tuple(texts), "label": label, "classes": tuple(classes)}
    chosen = {key: value for key, value in given.items() if value}
    if len(texts) > 2:
        raise OelmError(f"task {name!r} has {len(texts)} text columns ({', '.join(texts)}); one or two are possible")
    if name in TASKS:
        return dataclasses.replace(TASKS[name], **chosen)  # type: ignore[arg-type]
    if not texts:
        own = f"'oelm data task {name} --text-column …' prepares one of your own, for 'oelm train --dataset FOLDER'"
        raise OelmError(f"{unknown('task', name, TASKS)}; {own}")
    require_name("task", name)
    return Task(name, **chosen)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TaskSource:
    """The rows of a task, from `path` (a folder with train.tsv, validation.tsv …) or, without one, from the hub."""

    task: Task
    path: Path | None = None
    language: str | None = None
    validation: str | None = None
    revision: str | None = None
    held_out: float | None = None
    """Validate on so many training rows, or on this share of them, that are not trained on."""

    def __post_init__(self) -> None:
        if self.held_out is not None and self.validation:
            raise OelmError(f"--validation {self.validation} has rows already; leave --validation-fraction out")
        if self.language and not self.task.languages:
            raise OelmError(f"task {self.task.name!r} has no languages (given: {self.language}); leave --language out")

    @property
    def splits(self) -> dict[str, str]:
        held_out = "train" if self.held_out is not None else None
        return {"train": "train", "validation": held_out or self.validation or self.task.validation}

    def settings(self) -> dict[str, Any]:
        """What decides the rows; for files their hashes, since the same rows from elsewhere are the same data."""
        task: dict[str, Any] = {"texts": list(self.task.texts), "label": self.task.label}
        task["classes"] = list(self.task.classes)
        if self.held_out is not None:
            task["held_out"] = self.held_out
        if self.path is not None:
            return task | {split: file_hash(self._file(name)) for split, name in self.splits.items()}
        return task | {"hub": self.task.hub, "config": self._config(), "revision": self._there.commit, **self.splits}

    def provenance(self) -> dict[str, Any]:
        if self.path is None:
            return {"kind": "hub", "dataset": self.task.hub, "config": self._config(), "revision": self._there.commit}
        files = {split: self._file(name) for split, name in self.splits.items()}
        return {"kind": "files", **{s: {"file": f.name, "sha256": file_hash(f)} for s, f in files.items()}}

    def classes(self) -> tuple[str, ...]:
        """Those of the task or, where it names none, every label of the training rows."""
        if self.task.is_pairs:
            return (_TARGET,)
        if named := self.task.classes:
            if len(set(named)) < max(2, len(named)):
                raise OelmError(f"classes {', '.join(named)}: at least two, each named once (--classes)")
            return named
        found = sorted({label for _, _, label in self._raw("train")})
        if all(label.isdecimal() for label in found):
            found.sort(key=int)
        if not 2 <= len(found) <= _MOST_CLASSES:
            there = f"column {self.task.label!r} of {self._where('train')} has {len(found)} different labels"
            raise OelmError(
                f"{there}; a classifier needs 2 to {_MOST_CLASSES}: is it the right column (--label-column)?"
            )
        return tuple(found)

    def rows(self, split: str, classes: Sequence[str]) -> Iterator[Row]:
        """Every row of "train" or "validation", its label as a number; refuses a label that is no class."""
        if self.held_out is None:
            yield from self._labelled(split, classes)
            return
        rows = list(self._labelled("train", classes))
        count = round(self.held_out * len(rows)) if self.held_out < 1 else int(self.held_out)
        if not 1 <= count < len(rows):
            raise OelmError(f"{self.held_out:g} of {len(rows)} training rows cannot be held out; choose another share")
        order = permute(np.arange(len(rows)), len(rows), seed=1, stream=0)  # a fixed random choice
        yield from (rows[i] for i in (order[count:] if split == "train" else order[:count]))

    def _labelled(self, split: str, classes: Sequence[str]) -> Iterator[Row]:
        numbers = {name: i for i, name in enumerate(classes)}
        numbers |= {str(i): numbers[name] for i, name in enumerate(self._numbered(classes))}
        for number, texts, label in self._raw(split):
            if label not in numbers:
                raise self._bad(split, number, f"label {label!r} is not one of {', '.join(classes)}")
            yield Row(texts, numbers[label])

    def _numbered(self, classes: Sequence[str]) -> Sequence[str]:
        """The classes in the order in which data may number them: the task's own, whatever order is asked for."""
        own = TASKS[self.task.name].classes if self.task.name in TASKS else ()
        if set(own) == set(classes):
            return own
        # A number that is a name means that class only; classes that were merely found have no order.
        return () if not self.task.classes or any(name.isdecimal() for name in classes) else classes

    def _raw(self, split: str) -> Iterator[tuple[int, tuple[str, ...], str]]:
        columns = (*self.task.texts, *([self.task.label] if self.task.label else []))
        number = 0
        for number, values in enumerate(self._values(split, columns), start=1):
            *texts, label = (*values, _TARGET) if self.task.is_pairs else values
            blank = self.task.is_pairs and not all(isinstance(text, str) and text.strip() for text in texts)
            if blank or label in (None, "") or label != label or any(text is None for text in texts):
                raise self._bad(split, number, f"a value of {', '.join(columns)} is missing")
            if other := [text for text in texts if not isinstance(text, str)]:
                raise self._bad(split, number, f"{other[0]!r} is no text")
            if not all(map(is_unicode, texts)):
                raise self._bad(split, number, "the text is no valid Unicode")
            name = _class_name(label)
            if name is None:
                raise self._bad(split, number, f"label {label!r} is no class; use names or whole numbers")
            yield number, tuple(texts), name
        if not number:
            raise OelmError(f"{self._where(split)} has no rows; a task needs some in each split")

    def _values(self, split: str, columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
        if self.path is not None:
            return read_columns(self._file(self.splits[split]), columns, self._options)
        dataset = self._there.load(self.splits[split])
        require_columns(self._where(split), columns, dataset.column_names, self._options)
        return zip(*(dataset[column] for column in columns), strict=True)

    @property
    def _options(self) -> str:
        return "--source-field and --target-field" if self.task.is_pairs else _COLUMNS

    def _where(self, split: str) -> str:
        name = self.splits[split]
        return str(self._file(name)) if self.path is not None else f"{self.task.hub} ({self._config()}, {name})"

    def _bad(self, split: str, row: int, problem: str) -> OelmError:
        return OelmError(f"{self._where(split)}, row {row}: {problem}")

    def _file(self, split: str) -> Path:
        folder = self.path
        assert folder is not None
        if folder.is_file() and split == "train":
            return folder
        if not folder.is_dir():
            raise OelmError(f"task data {folder} is no folder; give one with {FILES}")
        language = self.language or self.task.config
        endings = [f".{language}"] if self.task.languages else []
        endings += [""] if language == self.task.config else []  # without a name, it is the language that the task has
        stems = dict.fromkeys((split, *_OTHER_NAMES.get(split, ())))
        names = [f"{stem}{end}{suffix}" for end in endings for stem in stems for suffix in TABLES]
        for name in (f"{name}{packing}" for name in names for packing in ("", ".gz", ".zst")):
            if (folder / name).is_file():
                return folder / name
        stem = names[0].removesuffix(TABLES[0])
        raise OelmError(f"{folder} has no {split} split; its file should be called {stem}, with {_OR_SUFFIXES}")

    def _config(self) -> str | None:
        return self.language if self.task.languages and self.language else self.task.config

    @cached_property
    def _there(self) -> HubDataset:
        if not self.task.hub:
            raise OelmError(f"task {self.task.name!r} is on no hub; say where its files are (--data-path)")
        failure = (
            f"dataset {self.task.hub} ({self._config()}) could not be had from the hub ({{reason}}); "
            f"a folder with {FILES} works in its place (--data-path)"
        )
        return HubDataset(self.task.hub, self._config(), self.revision or self.task.revision, failure)


def _class_name(label: Any) -> str | None:
    """What a label names (1, "1" and 1.0 name the same: files differ); None for a truth value, a list and a score."""
    value = plain_number(label) if isinstance(label, str) else label
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not (whole or value is None):
        return None
    return str(int(label)) if isinstance(label, float) else str(label)
