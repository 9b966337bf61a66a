"""From run folders to arms that can be compared: `load_runs(["runs/demo"])`.

What cannot be read is skipped and named; what is not finished is listed and never averaged.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from oelm.analysis.compare.arms import Arm, Comparison, Note, Rates, Run, is_number
from oelm.analysis.compare.comparison import FAILED as NO_SCORE
from oelm.analysis.compare.comparison import group_into_comparisons, place_of
from oelm.analysis.compare.times import checked
from oelm.errors import OelmError, printable
from oelm.runs import DEAD, FINISHED, RunFolder, diverged, find_files, find_runs

BESIDE = ("questions.json", "step_time.json", "samples.json", "sweep.json")  # what is read in the folders above runs
UNREADABLE = (OelmError, OSError, ValueError, KeyError, TypeError, AttributeError)
Content = TypeVar("Content")


@dataclass(frozen=True)
class Skipped:
    path: Path
    note: Note

    @property
    def reason(self) -> str:
        from oelm.analysis.report.texts import texts  # the words are the report's

        return texts("en").note(self.note)


@dataclass(frozen=True)
class Loaded:
    runs: list[Run]
    skipped: list[Skipped]
    samples: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[Path, dict[str, Rates]] = field(default_factory=dict)  # tried before these runs, by folder and method
    questions: list[dict[str, str]] = field(default_factory=list)  # what the experiment was made to answer

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.result is not None]

    @property
    def incomplete(self) -> list[Run]:
        return [run for run in self.runs if run.result is None]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        # A run that failed of itself was tried; a full disk says nothing of a learning rate.
        failed = [run for run in self.incomplete if diverged(run.folder.status())]
        return group_into_comparisons(self.finished, self.sweeps, failed)

    @property
    def arms(self) -> list[Arm]:
        return [arm for comparison in self.comparisons for arm in comparison.arms]

    def only(self, comparison: Comparison) -> "Loaded":
        """One of these comparisons alone, with the unfinished runs that would belong to it."""
        place = place_of(comparison.runs[0])
        waiting = [run for run in self.incomplete if place_of(run) == place]
        one = replace(self, runs=[*comparison.runs, *waiting])
        one.__dict__["comparisons"] = [comparison]  # as it is here: its names depend on what else there is
        return one


def load_runs(paths: str | Path | Iterable[str | Path]) -> Loaded:
    """Read run folders, and all run folders below other folders."""
    given = [paths] if isinstance(paths, str | Path) else paths
    folders: dict[Path, RunFolder] = {}
    missing: list[Run | Skipped] = []
    for path in map(Path, given):
        # Also folders that were runs once: a missing config is a reason to be named, not to be overlooked.
        traces = [file for name in ("status.json", "result.json") for file in find_files(path, name)]
        found = {folder.path for folder in find_runs(path)} | {file.parent for file in traces}
        if not found:
            missing.append(Skipped(path, Note("skip_no_run" if path.exists() else "skip_missing")))
        for folder in sorted(found):
            folders.setdefault(folder.resolve(), RunFolder(folder))
    read = [read_run(folder) for folder in folders.values()]
    return gather([*missing, *read], dict.fromkeys(path.parent for path in folders))


def gather(found: Iterable[Run | Skipped], beside: Iterable[Path]) -> Loaded:
    """What was read, with what lies beside it in these folders, ready to be compared."""
    found = list(found)
    skipped = [one for one in found if isinstance(one, Skipped)]
    step_times: dict[Path, tuple[dict[str, Any], ...]] = {}
    loaded = Loaded([], skipped)
    for folder in beside:
        questions = _beside(folder / "questions.json", lambda asked: [question.items() for question in asked], skipped)
        loaded.questions.extend({str(key): str(value) for key, value in question} for question in questions or [])
        if measured := _beside(folder / "step_time.json", checked, skipped):
            step_times[folder] = (measured,)
        for name, text in _beside(folder / "samples.json", lambda content: content.items(), skipped) or []:
            loaded.samples[f"{name} ({folder.name})" if name in loaded.samples else name] = text
        if rates := _beside(folder / "sweep.json", lambda content: read_rates(content["rates"]), skipped):
            loaded.sweeps[folder] = rates
    runs = [one for one in found if isinstance(one, Run)]
    timed = [replace(run, measured=step_times.get(run.folder.path.resolve().parent, ())) for run in runs]
    kept, repeated = _one_per_seed(_named(timed))
    return replace(loaded, runs=kept, skipped=skipped + repeated)


def require_finished(paths: str | Path | Iterable[str | Path]) -> Loaded:
    """`load_runs`, refusing to go on with nothing to show."""
    loaded = load_runs(paths)
    if loaded.finished:
        return loaded
    waiting = [f"{run.folder.path} is {run.state} at step {run.step}" for run in loaded.incomplete]
    found = waiting + [f"{skipped.path}: {skipped.reason}" for skipped in loaded.skipped]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    way_out = "wait for it or 'oelm resume' it" if waiting else "give folders made by 'oelm train' or 'oelm demo'"
    raise OelmError(f"no finished run to show: {'; '.join(found[:3])}{more}; {way_out}")


def read_run(folder: RunFolder) -> Run | Skipped:
    """One run, or why it cannot be read."""
    try:
        config, result, status = RunFolder.open(folder.path).config(), folder.result(), folder.status()
        run = Run(
            name=folder.name,
            folder=folder,
            config=config,
            state=FINISHED if result is not None else {FINISHED: DEAD}.get(status["state"], status["state"]),
            step=(result or status).get("steps") or status.get("step", 0),
            result=result,
            environment=folder.environment() or {},
            validations=folder.metrics("validation"),
        )
        if result is not None and "train_tokens" not in result:
            run = replace(run, result={**result, **_prepared(folder.path, run.data_key)})
        run.method  # noqa: B018 - one that this version does not know, or knows as something else, is refused here
        if result is not None and not is_number(value := run.final[run.metric.key]):
            raise OelmError(f"{folder.result_file}: {run.metric.name} is {value!r}")
        return run
    except UNREADABLE as error:
        return _unreadable(folder.path, error)


def _prepared(run: Path, fingerprint: str) -> dict[str, Any]:
    """What a run of before did not record of its data, from the manifest kept in a folder `data` above it."""
    for folder in list(run.resolve().parents)[:4]:
        file = folder / "data" / f"{fingerprint}.json"
        if fingerprint.isalnum() and file.is_file():
            manifest = json.loads(file.read_text(encoding="utf-8"))
            tokens, share = manifest["splits"]["train"]["tokens"], manifest.get("share_of_corpus")
            return {"train_tokens": tokens, "text_share": share}
    return {}


def _named(runs: list[Run]) -> list[Run]:
    parts = [run.folder.path.resolve().parts for run in runs]
    depth = 1
    while len({path[-depth:] for path in parts}) < len(parts):
        depth += 1
    return [replace(run, name=printable("/".join(path[-depth:]))) for run, path in zip(runs, parts, strict=True)]


def _one_per_seed(runs: list[Run]) -> tuple[list[Run], list[Skipped]]:
    """The same computation in two folders is one observation, not two; step times beside the copy count."""
    kept: dict[str, Run] = {}
    repeated = []
    for run in runs:
        key = f"{run.arm_key} seed {run.seed}" if run.result is not None else str(run.folder.path)
        twin = kept.setdefault(key, run)
        if twin is not run:
            repeated.append(Skipped(run.folder.path, Note("skip_repeated", {"path": str(twin.folder.path)})))
            kept[key] = replace(twin, measured=twin.measured + run.measured)
    return list(kept.values()), repeated


def _beside(file: Path, check: Callable[[Any], Content], skipped: list[Skipped]) -> Content | None:
    """The content of a file above runs; None if there is none, or none that can be used."""
    try:
        return check(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
    except UNREADABLE as error:
        skipped.append(_unreadable(file, error))
        return None


def read_rates(arms: Mapping[str, Mapping[str, float | None]]) -> dict[str, Rates]:
    """By method and learning rate; no score where no run came to its end."""
    found = {}
    for name, scores in arms.items():
        found[name] = {float(rate): NO_SCORE if score is None else float(score) for rate, score in scores.items()}
        if not all(map(is_number, [*found[name], *(score for score in scores.values() if score is not None)])):
            raise OelmError(f"{name} has a figure that is no number")
    return found


def _unreadable(path: Path, error: Exception) -> Skipped:
    return Skipped(path, Note("skip_unreadable", {"error": in_words(error)}))


def in_words(error: Exception) -> str:
    """In one line; an error that was not meant for users has its kind before it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, OelmError | OSError) else f"{type(error).__name__}: {text}"
