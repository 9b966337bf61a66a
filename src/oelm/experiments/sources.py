"""The data of an experiment: text from the embedded corpus, a folder below a data root or the hub; or a task's rows."""

import csv
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.data.corpora import CORPORA, Source, documents, find_source
from oelm.data.labelled import MAX_LENGTH, prepare_task
from oelm.data.prepare import prepare
from oelm.data.tasks import Task, TaskSource, find_task
from oelm.data.tokenization import tokenizer_label
from oelm.data.tokens import TokenData, data_directory, fingerprint, read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import DataRecipe, Experiment, TaskRecipe
from oelm.experiments.plan import PreparedData
from oelm.records import named_model
from oelm.training.config import with_settings

ROOT_VARIABLE = "OELM_SHARED_DATA"
TOY_ROWS = {"train": 96, "validation": 24}


def data_root(scale: str, given: Path | None = None) -> Path | None:
    """The folder with local copies of the corpora. Full scale takes none by itself: a sample must not pass for it."""
    if given is not None:
        if not given.is_dir():
            raise OelmError(f"--data-root {given} is not a folder")
        return given.resolve()  # "./fables" must not become "fables", which is a corpus
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).resolve() if named and scale != "full" and Path(named).is_dir() else None


def expected(experiment: Experiment) -> PreparedData:
    """Where tokens or rows are or will be, without preparing them."""
    folder = _folder(experiment)
    known = experiment.data and (folder / "manifest.json").is_file()
    return PreparedData(folder, fingerprint(read_manifest(folder)) if known else None)


def prepared(experiment: Experiment, say: Callable[[str], None] = lambda message: None) -> PreparedData:
    """Data that an experiment names as prepared."""
    from oelm.lab import data_folder

    assert experiment.data is not None
    try:
        return PreparedData(data_folder(str(experiment.data.path), say))
    except OelmError as error:
        raise OelmError(f"{experiment.where}: {error}") from None


def prepare_at_scale(
    experiment: Experiment, root: Path | None, say: Callable[[str], None] = lambda message: None
) -> TokenData:
    """The experiment's tokens, prepared once in the data directory."""
    recipe = experiment.data
    assert recipe is not None
    folder = _folder(experiment)
    if not folder.is_dir():
        say(f"preparing {recipe.corpus} with tokenizer {recipe.tokenizer}")
    local = root / "gpt2-bpe" if root and recipe.tokenizer == "gpt2" else None
    return prepare(source_of(recipe, root), folder, local if local and local.is_dir() else recipe.tokenizer)


def source_of(recipe: DataRecipe, root: Path | None) -> Source:
    if CORPORA[recipe.corpus].hub is None:
        validation = recipe.validation_megabytes
        return find_source([recipe.corpus], megabytes=recipe.megabytes, validation_megabytes=validation)
    names = _folders(recipe)
    if root is not None:
        for name in names:
            if not (root / name).is_dir():
                raise OelmError(
                    f"{root} has no folder {name!r} with {recipe.corpus}; put train.* and validation.* into it"
                )
        return find_source([root / name for name in names], name=recipe.corpus)
    if not recipe.download:
        raise OelmError(
            f"{recipe.corpus} is too large to download for this scale; put a sample (train.jsonl, validation.jsonl) "
            f"into a folder {names[0]!r} and give the folder above it with --data-root"
        )
    source = find_source([recipe.corpus])
    first = {"train": recipe.documents, "validation": recipe.validation_documents}
    return replace(source, first={split: n for split, n in first.items() if n})  # type: ignore[type-var]


def _folders(recipe: DataRecipe) -> list[str]:
    given = recipe.folder or recipe.corpus
    return given if isinstance(given, list) else [given]


def _folder(experiment: Experiment) -> Path:
    """Full scale shares its folders with 'oelm data prepare'; samples and the demo keep to themselves.

    Of a task there is one for every selection of rows.
    """
    if task := experiment.task:
        selected = (task.train_rows, task.validation, "held-out" if task.held_out else None)
        return data_directory() / experiment.scale / "-".join(["task", task.name, *(str(s) for s in selected if s)])
    recipe = experiment.data
    assert recipe is not None
    own = "demo" if experiment.name == "demo" else experiment.scale
    place = data_directory() if own == "full" else data_directory() / own
    text = "-".join(_folders(recipe)) if isinstance(recipe.folder, list) else recipe.corpus
    return place / f"{text}-{tokenizer_label(recipe.tokenizer)}"


def prepare_rows(experiment: Experiment, settings: Sequence[str], root: Path | None) -> PreparedData:
    """A task's rows, tokenised; `--set model.encoder=FOLDER` puts another encoder in the catalog's place."""
    from oelm.training.setup import model_folder  # with torch, so not before it is needed

    task = experiment.task
    assert task is not None
    model = with_settings({"model": experiment.model}, [s for s in settings if s.startswith("model.")])["model"]
    # A pretrained model has a tokenizer; a fresh one is an architecture only.
    name = named_model(model).get("name")
    own = not model.get("fresh") or task.tokenizer == experiment.model.get("name")
    found = find_task(task.name) if not task.target else Task(task.name, (str(task.source), task.target), label="")
    if task.toy:  # never to be taken for the task itself
        found = replace(found, name=f"toy-{task.name}")
    chosen: dict[str, Any] = {"validation": task.validation, "held_out": task.held_out}
    data = prepare_task(
        TaskSource(found, _files(task, root), task.language, **chosen),
        model_folder(str(name if name and own else task.tokenizer), experiment.arms[0], experiment.seeds[0]),
        _folder(experiment),
        max_length=experiment.training.get("sequence_length") or MAX_LENGTH,
        train_rows=task.train_rows,
    )
    return PreparedData(data.path, data.fingerprint)


def _files(task: TaskRecipe, root: Path | None) -> Path | None:
    """The folder with the task's own files; None if it is to come from the hub."""
    if task.toy:
        return _toy_files(task)
    if root is None:
        return None
    if not (root / task.name).is_dir():
        raise OelmError(f"{root} has no folder {task.name!r}; put train.tsv and validation.tsv into it")
    return root / task.name


def _toy_files(task: TaskRecipe) -> Path:
    """A task of the right form from the embedded corpus, for runs of seconds: is a text in order, or scrambled?"""
    folder = data_directory() / "smoke" / f"toy-{task.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in TOY_ROWS.items():
        with (folder / f"{split}.tsv").open("w", newline="") as file:
            csv.writer(file, delimiter="\t").writerows(_toy_rows(task, split, rows))
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
