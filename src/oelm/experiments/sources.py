"""Where an experiment's text comes from: the embedded corpus, a folder below a data root, or the hub."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oelm.data.corpora import CORPORA, Source, find_source
from oelm.data.prepare import prepare
from oelm.data.tokenization import tokenizer_label
from oelm.data.tokens import TokenData, data_directory, fingerprint, read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import DataRecipe, Experiment
from oelm.experiments.plan import PreparedData

ROOT_VARIABLE = "OELM_SHARED_DATA"


def data_root(scale: str, given: Path | None = None) -> Path | None:
    """The folder with local copies of the corpora. Full scale takes none by itself: a sample must not pass for it."""
    if given is not None:
        if not given.is_dir():
            raise OelmError(f"--data-root {given} is not a folder")
        return given.resolve()  # "./fables" must not become "fables", which is a corpus
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).resolve() if named and scale != "full" and Path(named).is_dir() else None


def prepare_at_scale(
    experiment: Experiment, root: Path | None, say: Callable[[str], None] = lambda message: None
) -> TokenData:
    """The experiment's tokens, prepared once in the data directory."""
    recipe = _recipe(experiment)
    if not _folder(experiment).is_dir():
        say(f"preparing {recipe.corpus} with tokenizer {recipe.tokenizer}")
    local = root / "gpt2-bpe" if root and recipe.tokenizer == "gpt2" else None
    tokenizer = local if local and local.is_dir() else recipe.tokenizer
    return prepare(source_of(recipe, root), _folder(experiment), tokenizer)


def prepared(experiment: Experiment, say: Callable[[str], None] = lambda message: None) -> PreparedData:
    """Data that an experiment names as prepared."""
    from oelm.lab import data_folder

    try:
        return PreparedData(data_folder(str(_recipe(experiment).path), say))
    except OelmError as error:
        raise OelmError(f"{experiment.where}: {error}") from None


def expected(experiment: Experiment) -> PreparedData:
    """Where the tokens are or will be, without preparing them."""
    folder = _folder(experiment)
    known = (folder / "manifest.json").is_file()
    return PreparedData(folder, fingerprint(read_manifest(folder)) if known else None)


def source_of(recipe: DataRecipe, root: Path | None) -> Source:
    if recipe.corpus in CORPORA and CORPORA[recipe.corpus].hub is None:
        amounts = (recipe.megabytes, recipe.validation_megabytes)
        return find_source([recipe.corpus], megabytes=amounts[0], validation_megabytes=amounts[1])
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


def _recipe(experiment: Experiment) -> DataRecipe:
    if experiment.data is None:
        raise OelmError(f"{experiment.name} has no text to prepare; it is a classification task")
    return experiment.data


def _folder(experiment: Experiment) -> Path:
    """Full scale shares its folders with 'oelm data prepare'; samples and the demo keep to themselves."""
    recipe = _recipe(experiment)
    own = "demo" if experiment.name == "demo" else experiment.scale
    place = data_directory() if own == "full" else data_directory() / own
    text = "-".join(_folders(recipe)) if isinstance(recipe.folder, list) else recipe.corpus
    return place / f"{text}-{tokenizer_label(recipe.tokenizer)}"
