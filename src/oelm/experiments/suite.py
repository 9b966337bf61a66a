"""Whole experiments: prepare their data, plan their runs, run them, then time the arms side by side."""

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.experiments import sources
from oelm.experiments.entries import Experiment, chosen
from oelm.experiments.plan import PlannedRun, PreparedData, plan, share
from oelm.files import write_json
from oelm.freezing.methods import method
from oelm.runs import RunFolder, config_differences
from oelm.training.config import RunConfig

STEP_TIME_FILE, QUESTIONS_FILE = "step_time.json", "questions.json"
MOST_SEEDS = 10  # seeds from 0 that are looked for among existing runs
NAMED = 3  # runs that a warning names one by one
Say = Callable[[str], None]
log = logging.getLogger("oelm")


def plan_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    data_root: Path | None = None,
    threads: int | None = None,
    prepare_data: bool = True,
    say: Say = lambda message: None,
) -> list[PlannedRun]:
    """The runs of all experiments below `out`, those that compute the same in one folder; data prepared if asked."""
    planned: list[PlannedRun] = []
    for experiment in experiments:
        root, local = out / experiment.name, sources.data_root(experiment.scale, data_root)
        experiment = experiment.with_text("{runs}", str(out))  # models and tokenizers that another experiment makes
        data: TokenData | PreparedData
        if experiment.data and experiment.data.path:
            data = sources.prepared(experiment, say)
        elif not prepare_data:
            data = sources.expected(experiment)
        elif experiment.task:
            data = sources.prepare_rows(experiment, settings, local)
        else:
            data = sources.prepare_at_scale(experiment, local, say)
        planned += plan(experiment, data, root, threads=threads, seeds=seeds, settings=settings)
        if prepare_data:
            write_questions(experiment, root)
    return share(planned, out)


def require_possible(planned: Sequence[PlannedRun]) -> None:
    """Refuse what a run would refuse before the first one is started: a run of each arm is set up, without weights.

    Runs that were begun, and those that start from a run that may be still to come, speak for themselves.
    """
    from oelm.training.setup import open_data, prepare  # with torch

    arms = {(run.arm, run.config.model.model_dump_json(), run.config.data.path): run for run in reversed(planned)}
    data = {path: open_data(Path(path)) for _, _, path in arms if Path(path).is_dir()}
    for run in reversed(arms.values()):
        name, path = run.config.model.name or "", run.config.data.path
        if path not in data or run.folder.exists() or "{" in name or Path(name).is_relative_to(run.folder.parents[1]):
            continue
        unbound = run.config.runtime.model_copy(update={"threads": None})  # they are this process's, too
        prepare(run.config.model_copy(update={"runtime": unbound}), RunFolder(run.folder), data=data[path])


def runs_of(names: Sequence[str], root: Path, scale: str) -> list[PlannedRun]:
    """Runs that are there below `root`; those that were made with other settings than the catalog's are left out."""
    planned: list[PlannedRun] = []
    for experiment in chosen(names, scale):
        with contextlib.suppress(OelmError):  # not to be run by this version, so there is none
            seeds = sorted({*range(MOST_SEEDS), *experiment.seeds})
            planned += plan_experiments([experiment], root, prepare_data=False, seeds=seeds)
    there = [run for run in planned if (run.folder / "config.yaml").is_file()]
    others = {run.folder: change for run in there if (change := _change(run))}
    if others:
        named = ", ".join(f"{folder} ({change})" for folder, change in list(others.items())[:NAMED])
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        log.warning("left out, since other settings than the catalog's were given: %s%s", named, more)
    return [run for run in there if run.folder not in others]


def _change(run: PlannedRun) -> str | None:
    """What was set otherwise when the run was made, if anything was; where its data lay is no setting."""
    try:
        differences = config_differences(RunFolder(run.folder).config(), run.config.to_dict())
    except OelmError as error:
        return str(error)
    return next((change for change in differences if not change.startswith("data.path ")), None)


def time_planned(planned: Sequence[PlannedRun], *, rounds: int = 48, say: Say = lambda message: None) -> None:
    """Interleaved step times of arms that differ in their method only, measured once and kept beside their runs."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in planned:
        training, data = run.config.training, run.config.data.path
        same = (training.batch_size, training.sequence_length, training.accumulation, training.precision, data)
        groups.setdefault(f"{run.config.model.model_dump_json()} {same}", []).append(run)
    several = [{run.folder.parent for run in runs} for runs in groups.values()]
    for runs in groups.values():
        folders = dict.fromkeys(run.folder.parent for run in runs)
        if any(sum(folder in others for others in several) > 1 for folder in folders):
            say(f"not timing {runs[0].folder.parent}: it holds models of several sizes, and one file cannot say whose")
            continue
        wanted = [run for run in runs if not method(run.arm).moves]
        timed = {folder: _timed_arms(folder, runs[0].config) for folder in folders}
        lacking = [f for f in folders if {r.arm for r in wanted if r.folder.parent == f} - set(timed[f])]
        if not lacking:
            continue
        # Such a folder gets all times anew: only what was measured together can be compared.
        arms = dict.fromkeys([*(run.arm for run in wanted), *(arm for folder in lacking for arm in timed[folder])])
        say(f"timing {', '.join(arms)} side by side")
        try:
            from oelm.bench.measure import compare_step_times  # with torch

            def watch(what: str, done: int, total: int) -> None:
                if done and done % max(1, total // 4) == 0:
                    say(f"{what}: {done} of {total} steps")

            times = compare_step_times(arms, runs[0].config, rounds=rounds, say=watch)
        except OelmError as error:  # the runs are there all the same
            say(f"not timing {', '.join(map(str, lacking))}: {error}")
            continue
        for folder in lacking:
            write_json(folder / STEP_TIME_FILE, times)


def _timed_arms(folder: Path, config: RunConfig) -> list[str]:
    """The arms whose step times a folder has already as they are trained, the reference among them."""
    try:
        times = json.loads((folder / STEP_TIME_FILE).read_text())
        protocol = {"precision": "fp32", "accumulation": 1, "compiled": False} | times.get("protocol", {})
        measured = tuple(protocol[key] for key in ("precision", "accumulation", "compiled"))
        trained = (config.training.precision, config.training.accumulation, config.runtime.compile)
        return [times["reference"], *times["arms"]] if measured == trained else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_questions(experiment: Experiment, root: Path) -> None:
    """What the experiment asks, beside its runs: reports read folders, not the catalog."""
    if experiment.questions:
        root.mkdir(parents=True, exist_ok=True)
        write_json(root / QUESTIONS_FILE, [question.model_dump(exclude_none=True) for question in experiment.questions])
