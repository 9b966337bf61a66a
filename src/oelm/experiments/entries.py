"""Experiments as data: the catalog, by name, at three scales, and users' own files of the same form. No torch.

>>> experiment("GPT-02").arms, experiment("GPT-02").published.perplexity
(['oelm_freeze'], 4.6857)
>>> experiment("GPT-06", "mini").data.corpus
'wikitext2'
>>> [e.name for e in chosen(["phase2"])]
['GPT-01', 'GPT-02']
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from oelm.data.corpora import CORPORA
from oelm.errors import OelmError, unknown
from oelm.training.config import Section, one_line
from oelm.validation import require_name
from oelm.yaml_files import parse_yaml, read_yaml

SCALES = ("full", "mini", "smoke")
CATALOG = resources.files("oelm.experiments").joinpath("catalog")


class DataRecipe(Section):
    """Data that are prepared already, or text for a language model: what 'oelm data prepare' is asked for."""

    path: str | None = Field(None, min_length=1, description="prepared data, by name or folder, instead of a corpus")
    corpus: str = ""
    tokenizer: str = ""
    megabytes: float = 2.0
    validation_megabytes: float = 0.15
    folder: str | list[str] | None = Field(None, description="its folders below --data-root; default: its name")
    download: bool = Field(True, description="whether the hub may stand in for that folder")
    documents: int | None = Field(None, ge=1, description="from the hub, only the first so many training documents")
    validation_documents: int | None = Field(None, ge=1, description="the same for validation")

    @model_validator(mode="after")
    def _one_source(self) -> "DataRecipe":
        if self.path is not None and (self.corpus or self.tokenizer):
            raise ValueError(f"path {self.path!r} names prepared data; leave corpus and tokenizer out")
        if self.path is None and self.corpus not in CORPORA:
            known = unknown("corpus", self.corpus, CORPORA)
            raise ValueError(f"{known}; any other text is prepared first (oelm data prepare), then named: data: NAME")
        if self.path is None and not self.tokenizer:
            raise ValueError(f"a tokenizer for {self.corpus} is missing, e.g. bpe:2048")
        return self


class TaskRecipe(Section):
    """A classification task for an encoder."""

    name: str
    language: str | None = None
    train_rows: int | None = Field(None, description="only so many training rows; default: all")
    validation: str | None = Field(None, description="the split to validate on; default: the task's own")
    held_out: int | None = Field(None, ge=1, description="validate on so many training rows that are not trained on")
    source: str | None = Field(None, description="of pairs of texts: the column that a model reads")
    target: str | None = Field(None, description="of pairs of texts: the column that it writes")
    tokenizer: str = Field("bpe:300", description="where there is no encoder that has one")
    toy: bool = Field(False, description="rows made from the embedded corpus instead of the task's own")


class Published(Section):
    """What the original study reports for an experiment. None where it reports nothing."""

    seeds: int | None = None
    perplexity: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    wall_seconds: float | None = None
    step_seconds: float | None = None
    wall_is_sum_of_steps: bool = Field(False, description="its total is no other measurement than its step time")
    rows_per_timed_step: int | None = Field(None, description="where its timer takes less than an optimizer step")
    validation_seconds: float | None = None
    checkpoint_mib: float | None = None
    perplexity_at: dict[int, float] = Field(default_factory=dict, description="validation perplexity by step")


class Variant(Section):
    """A named change of settings that every arm, or some of them, is run with."""

    name: str
    arms: list[str] | None = None
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


class Question(Section):
    """What the report on an experiment answers first (`oelm.analysis.report.words` has the kinds)."""

    asks: Literal["cost", "orthogonality", "recovery"]
    arm: str
    against: str
    rest: str | None = Field(None, description="a second opponent: what is left to it is told as well")


class Experiment(Section):
    """Arms × variants × seeds of one model on one data set, at one scale."""

    name: str
    summary: str = ""
    scale: str = "full"
    data: DataRecipe | None = None
    task: TaskRecipe | None = None
    arms: list[str] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    variants: list[Variant] = Field(default_factory=list)
    published: Published | None = None
    questions: list[Question] = Field(default_factory=list)
    _file: str = PrivateAttr("")

    @property
    def where(self) -> str:
        """How errors call it."""
        return f"experiment file {self._file}: {self.name}" if self._file else self.name

    @property
    def own(self) -> bool:
        """Whether a user wrote it: new models have rotary positions, those of the catalog what their entry says."""
        return bool(self._file) and Path(self._file).resolve().parent != Path(str(CATALOG)).resolve()

    def with_text(self, old: str, new: str) -> "Experiment":
        """The same experiment with one text for another in all of its values."""
        quoted = json.dumps(new)[1:-1]
        changed = Experiment.model_validate_json(self.model_dump_json().replace(old, quoted))
        changed._file = self._file
        return changed

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, values: Any) -> Any:
        """`data: NAME` is data that are prepared; methods are what the arms of an experiment are."""
        values = dict(values)
        if isinstance(values.get("data"), str):
            values["data"] = {"path": values["data"]}
        if "methods" in values and "arms" not in values:
            values["arms"] = values.pop("methods")
        if isinstance(values.get("arms"), str):
            values["arms"] = [name.strip() for name in values["arms"].split(",")]
        if type(values.get("seeds")) is int:
            values["seeds"] = [values["seeds"]]
        return values

    @model_validator(mode="after")
    def _one_kind(self) -> "Experiment":
        if (self.data is None) == (self.task is None):
            raise ValueError("an experiment has either data or a task; give one of them, e.g. data: fables-bpe1024")
        for part in (self.name, *(variant.name or "-" for variant in self.variants)):
            require_name("experiment", part)
        return self

    @property
    def dataset(self) -> str:
        return (self.data.corpus or str(self.data.path)) if self.data else self.task.name  # type: ignore[union-attr]


def catalog() -> list[str]:
    """Names of all experiments."""
    return list(_entries())


def suites() -> dict[str, list[str]]:
    """The experiments of every suite, by the suite's name."""
    return {name: list(dict.fromkeys(_members(name))) for name in read("suites")}


def experiment(name: str, scale: str = "full") -> Experiment:
    """An experiment by its name, ignoring case, as it is at a scale."""
    known = {entry.lower(): entry for entry in _entries()}
    if name.lower() not in known:
        raise unknown("experiment", name, [*_entries(), *read("suites")])
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    values = at_scale(_entries()[known[name.lower()]], scale)
    return _validated(values, scale, f"catalog entry {name!r} is not valid at scale {scale}")


def experiments_in(file: Path, scale: str = "full") -> list[Experiment]:
    """The experiments of a user's own file, of the same form as the catalog's; only its own scales change them."""
    content = read_yaml(file, "experiment file")
    if not isinstance(content, dict):
        raise OelmError(f"experiment file {file} is no mapping; it needs data, methods and seeds (docs/experiments.md)")
    several = isinstance(content.get("experiments"), dict)
    found = []
    for name, entry in _entries_of(content if several else {"name": file.stem, **content}, str(file)).items():
        scales = entry.pop("scales", None) or {}
        if not (isinstance(scales, dict) and all(isinstance(change, dict) for change in scales.values())):
            raise OelmError(f"experiment file {file}: key 'scales' is {scales!r}; give each a mapping, as smoke: {{…}}")
        if scale != "full" and scale not in scales:
            known = ", ".join(["full", *scales])
            raise OelmError(f"experiment file {file}: {name} has no scale {scale!r}; its scales: {known}")
        found.append(_validated(merged(entry, scales.get(scale, {})), scale, f"experiment file {file}"))
        found[-1]._file = str(file)
    return found


def _validated(values: dict[str, Any], scale: str, where: str) -> Experiment:
    try:
        return Experiment.model_validate({**values, "scale": scale})
    except ValidationError as error:
        problems = re.sub(r"\barms\b", "methods", one_line(error, Experiment, "key"))  # as the documentation says
        raise OelmError(f"{where}: {problems} (docs/experiments.md has an example)") from None


def chosen(names: Iterable[str], scale: str = "full") -> list[Experiment]:
    """The experiments meant by names of experiments and suites, and by files, each once, in the order given."""
    known = {suite.lower(): suite for suite in read("suites")}
    found: dict[str, Experiment] = {}
    for name in names:
        if is_file(name):
            found.update({one.name: one for one in experiments_in(Path(name), scale)})
            continue
        members = _members(known[name.lower()]) if name.lower() in known else [experiment(name).name]
        found.update({member: experiment(member, scale) for member in members if member not in found})
    return list(found.values())


def is_file(name: str) -> bool:
    """Whether a word names an experiment file rather than an experiment."""
    return name.endswith((".yaml", ".yml"))


def at_scale(entry: dict[str, Any], scale: str) -> dict[str, Any]:
    """An entry with what its scale changes: first for all of its kind, then for its corpus, then for itself."""
    profile = read("scales")[scale]
    kind = "classification" if "task" in entry else "language-model"
    corpus = profile.get("corpora", {}).get(entry.get("data", {}).get("corpus"), {})
    values = {key: value for key, value in entry.items() if key != "scales"}
    of_kind = dict(profile.get(kind, {}))
    if "name" in entry.get("model", {}):  # a model of transformers has its own sizes
        of_kind.pop("model", None)
    for change in (of_kind, {"data": corpus} if corpus else {}, entry.get("scales", {}).get(scale, {})):
        values = merged(values, change)
    return values


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` on top, section by section; values and lists are replaced.

    >>> merged({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3}, "b": [2]})
    {'a': {'x': 1, 'y': 3}, 'b': [2]}
    """
    result = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@cache
def read(name: str) -> dict[str, Any]:
    """A file of the catalog. Shared: not to be changed."""
    text = CATALOG.joinpath(f"{name}.yaml").read_text("utf-8")
    return parse_yaml(text, f"catalog file {name}.yaml")


@cache
def _entries() -> dict[str, dict[str, Any]]:
    """All experiments of the catalog's files."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted(CATALOG.iterdir(), key=lambda file: file.name):
        content = read(file.name.removesuffix(".yaml")) if file.name.endswith(".yaml") else {}
        entries |= _entries_of(content, file.name)
    return entries


def _entries_of(content: dict[str, Any], file: str) -> dict[str, dict[str, Any]]:
    """A file has either one experiment, or several with what they share."""
    if "name" in content:
        return {str(content["name"]): dict(content)}
    entries, shared = content.get("experiments", {}), content.get("defaults") or {}
    for name, entry in {"defaults": shared, **entries}.items():
        if not isinstance(entry, dict):
            raise OelmError(f"experiment file {file}: {name} is {entry!r}; give its keys, e.g. data, methods, seeds")
    if entries and (others := [key for key in content if key not in ("defaults", "experiments")]):
        raise OelmError(f"experiment file {file}: key {others[0]!r} belongs into an experiment, or into defaults")
    return {str(name): merged(shared, {"name": str(name), **entry}) for name, entry in entries.items()}


def _members(suite: str) -> list[str]:
    found = read("suites")[suite]
    return [name for member in found for name in (_members(member) if member in read("suites") else [member])]
