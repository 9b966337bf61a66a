"""The data of a classification experiment: its task prepared for its encoder."""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.data.corpora import documents, find_source
from oelm.data.labelled import MAX_LENGTH, prepare_task
from oelm.data.tasks import Task, TaskSource, find_task
from oelm.data.tokens import data_directory
from oelm.errors import OelmError
from oelm.experiments.entries import Experiment, TaskRecipe
from oelm.experiments.plan import PreparedData
from oelm.experiments.sources import data_root
from oelm.records import named_model
from oelm.training.config import with_settings

TOY_ROWS = {"train": 96, "validation": 24}


def prepare_rows(experiment: Experiment, settings: Sequence[str], given: Path | None) -> PreparedData:
    """Its rows, tokenised; `--set model.encoder=FOLDER` puts another encoder in the catalog's place."""
    from oelm.training.setup import model_folder  # with torch, so not before it is needed

    task = experiment.task
    assert task is not None
    model = with_settings({"model": experiment.model}, [s for s in settings if s.startswith("model.")])["model"]
    found = find_task(task.name) if not task.target else Task(task.name, (str(task.source), task.target), label="")
    if task.toy:  # never to be taken for the task itself
        found = replace(found, name=f"toy-{task.name}")
    chosen: dict[str, Any] = {"validation": task.validation, "held_out": task.held_out}
    source = TaskSource(found, _files(experiment, given), task.language, **chosen)
    data = prepare_task(
        source,
        model_folder(_tokenizer_of(model) or task.tokenizer, experiment.arms[0], experiment.seeds[0]),
        _folder(experiment),
        max_length=experiment.training.get("sequence_length") or MAX_LENGTH,
        train_rows=task.train_rows,
    )
    return PreparedData(data.path, data.fingerprint)


def _tokenizer_of(model: dict[str, Any]) -> str | None:
    """A pretrained model has a tokenizer; a fresh one is an architecture only."""
    return None if model.get("fresh") else named_model(model).get("name")


def _files(experiment: Experiment, given: Path | None) -> Path | None:
    """The folder with the task's own files; None if it is to come from the hub."""
    if experiment.task is not None and experiment.task.toy:
        return _toy_files(experiment.task)
    local = data_root(experiment.scale, given)
    if local is None:
        return None
    if not (local / experiment.dataset).is_dir():
        raise OelmError(f"{local} has no folder {experiment.dataset!r}; put train.tsv and validation.tsv into it")
    return local / experiment.dataset


def expected(experiment: Experiment) -> PreparedData:
    """Where the rows are or will be, without preparing them."""
    return PreparedData(_folder(experiment))


def _folder(experiment: Experiment) -> Path:
    """One for every selection of rows."""
    task = experiment.task
    assert task is not None
    selected = (task.train_rows, task.validation, "held-out" if task.held_out else None)
    return data_directory() / experiment.scale / "-".join(["task", task.name, *(str(s) for s in selected if s)])


def _toy_files(task: TaskRecipe) -> Path:
    """A task of the right form from the embedded corpus, for runs of seconds: is a text in order, or scrambled?"""
    folder = data_directory() / "smoke" / f"toy-{task.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in TOY_ROWS.items():
        with (folder / f"{split}.tsv").open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t")
            writer.writerows(_toy_rows(task, split, rows))
    return folder


def _toy_rows(task: TaskRecipe, split: str, rows: int) -> Iterator[list[Any]]:
    texts = documents(find_source(["fables"], megabytes=0.2, validation_megabytes=0.05), split)
    lines = [" ".join(text.split()[:12]) for text, _ in zip(texts, range(rows), strict=False)]
    draw = random.Random(0)
    one, pairs = task.name == "sst2", task.target is not None
    yield ["sentence", "label"] if one else [task.source, task.target] if pairs else ["premise", "hypothesis", "label"]
    for number, line in enumerate(lines):
        words = line.split()
        draw.shuffle(words)
        if pairs:
            yield [" ".join(words), line]
        elif one:
            yield [line, 1] if number % 2 else [" ".join(words), 0]
        else:
            label = ("entailment", "neutral", "contradiction")[number % 3]
            yield [line, {"entailment": line, "neutral": lines[0]}.get(label, " ".join(words)), label]
