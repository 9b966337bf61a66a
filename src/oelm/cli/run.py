"""`oelm experiments` and `oelm run`: what the catalog has, and its experiments or your own as a queue of runs."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Argument, Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.cli.progress import SuiteBoard
from oelm.cli.train import Settings
from oelm.errors import OelmError
from oelm.lab import run_folder
from oelm.runs import RunFolder, facts_of
from oelm.training.config import RunConfig
from oelm.training.tracking import TRACKERS, require_installed
from oelm.validation import SECONDS, amount, plain_number

if TYPE_CHECKING:
    from oelm.experiments.engines import Engine
    from oelm.experiments.entries import Experiment
    from oelm.experiments.plan import PlannedRun
    from oelm.experiments.runner import Job

_say = partial(typer.echo, err=True)


def experiments(
    root: Annotated[Path, Option("--runs", help="Where runs lie, in a folder per scale.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the published experiments and our comparisons, with the published result and the state of our own runs."""
    from oelm.experiments.entries import SCALES, catalog, chosen, suites
    from oelm.experiments.suite import runs_of

    rows = {e.name: _row(e) for e in chosen(["all", *catalog()])}  # the published ones first
    for scale in SCALES:
        for run in runs_of(catalog(), root / scale, scale) if (root / scale).is_dir() else []:
            facts = facts_of(RunFolder(run.folder))
            kept = {key: facts.get(key) for key in ("run", "state", "step", "max_steps", "perplexity", "accuracy")}
            rows[run.experiment]["runs"].setdefault(scale, []).append({"arm": run.arm, "seed": run.seed, **kept})
    if as_json:
        return echo_json({"experiments": list(rows.values()), "suites": suites()})
    console = command_console()
    table = Table("id", "what", "published", "full", "mini", box=None, pad_edge=False)
    for row in rows.values():
        published = _score(row["published"]) if row["published"] else ""
        table.add_row(row["id"], row["summary"], published, *(_state(row, scale) for scale in SCALES[:2]))
    console.print(table)
    for name, members in suites().items():
        console.print(f"[bold]{name}[/]: {', '.join(members)}")


def _row(experiment: "Experiment") -> dict[str, Any]:
    return {
        "id": experiment.name,
        "summary": experiment.summary,
        "kind": "classification" if experiment.task else "language-model",
        "dataset": experiment.dataset,
        "arms": experiment.arms,
        "variants": [variant.name for variant in experiment.variants],
        "published": experiment.published and experiment.published.model_dump(exclude_defaults=True),
        "runs": {},
    }


def _score(figures: dict[str, Any]) -> str:
    accuracy = figures.get("accuracy")
    return f"PPL {figures['perplexity']:.2f}" if accuracy is None else f"{accuracy:.2%}"


def _state(row: dict[str, Any], scale: str) -> str:
    """How many runs are finished, and the mean result where they are all of one arm."""
    runs = row["runs"].get(scale, [])
    finished = [run for run in runs if run["state"] == "finished"]
    said = f"{len(finished)}/{len(runs)}" if runs else ""
    if finished and len(row["arms"]) == 1 and not row["variants"]:
        key = "perplexity" if finished[0]["perplexity"] is not None else "accuracy"
        mean = sum(run[key] for run in finished) / len(finished)
        said += f": {mean:.2%}" if key == "accuracy" else f": {mean:.2f}"
    running = sum(run["state"] == "running" for run in runs)
    return said + (f", {running} running" if running else "")


def run(
    names: Annotated[list[str], Argument(help="Of 'oelm experiments', or files: mine.yaml.", metavar="ID|SUITE|FILE…")],
    scale: Annotated[str, Option(help="full (as published), mini (real text, a CPU) or smoke.")] = "full",
    seeds: Annotated[str | None, Option(help="Seeds, e.g. 0,1,2. (default: the catalog's)")] = None,
    settings: Settings = None,
    gpus: Annotated[str | None, Option(help="GPUs to use, e.g. 2,3; one run on each. (default: all)")] = None,
    slots: Annotated[int | None, Option(min=1, help="Runs at a time on the CPU. (default: one per core)")] = None,
    nproc: Annotated[int, Option(min=1, help="Processes (GPUs) per run.")] = 1,
    engine: Annotated[str, Option(help="local, ray or slurm.")] = "local",
    address: Annotated[str | None, Option(help="Ray cluster to join. (default: start one here)")] = None,
    slurm: Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="As slurm_partition=gpu. Repeatable.")] = None,
    data_root: Annotated[Path | None, Option(help="Folder with corpora (tinystories/, …). (default: the hub)")] = None,
    out: Annotated[Path | None, Option(help="Where run folders go. (default: runs/SCALE; of own files: runs)")] = None,
    budget: Annotated[str | None, Option(help="Run only what a trial shows to fit into this time: 2h, 90m.")] = None,
    time_steps: Annotated[bool, Option("--time", help="Afterwards time the arms' steps side by side, here.")] = False,
    track: Annotated[
        list[str] | None, Option("--track", "--report-to", help=f"{', '.join(TRACKERS)}; repeatable.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be run and what it needs.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the runs and their outcome as JSON.")] = False,
) -> None:
    """Run experiments of the catalog, or of a file of your own.

    Finished runs are not repeated, interrupted ones go on: just run it again.

    Ctrl-C checkpoints and stops all runs. Watch from elsewhere with 'oelm watch'; report with 'oelm report'.

    A file of your own has the form of the catalog's: data (a prepared name), methods, seeds, model, training.

    Example: oelm run GPT-01 GPT-02 --scale smoke
    Example: oelm run my-experiment.yaml --budget 2h --time
    """
    from oelm.experiments.engines import find_engine
    from oelm.experiments.entries import chosen, is_file
    from oelm.experiments.suite import plan_experiments, require_possible

    if track:
        require_installed(track)
        settings = [*(settings or []), f"runtime.trackers=[{','.join(track)}]"]
    if budget and (dry_run or engine != "local"):
        other = "--dry-run starts nothing" if dry_run else f"of --engine {engine} nobody knows the places"
        raise OelmError(f"--budget {budget} tries a few steps of every arm here, but {other}; leave one of them out")
    seconds = amount("--budget", budget, SECONDS) if budget else None
    experiments = chosen(names, scale)
    root = out or (Path("runs") if all(map(is_file, names)) else Path("runs") / scale)
    queue = find_engine(
        engine, gpus=numbers("--gpus", gpus), slots=slots, nproc=nproc, address=address, scheduler_options=slurm or ()
    )
    asked: dict[str, Any] = {"seeds": numbers("--seeds", seeds), "settings": settings or [], "data_root": data_root}
    if dry_run:
        return _preview(
            plan_experiments(experiments, root, prepare_data=False, say=_say, **asked), experiments, as_json
        )
    planned = plan_experiments(experiments, root, threads=queue.threads, say=_say, **asked)
    if engine == "local":
        own = [experiment.name for experiment in experiments if experiment.own]
        require_possible([run for run in planned if run.experiment in own])
    work_off(planned, queue, root, time_steps, seconds, as_json)


def work_off(
    planned: "list[PlannedRun]", queue: "Engine", root: Path, time_steps: bool, budget: float | None, as_json: bool
) -> None:
    """Run a plan, or what of it fits into the budget (in seconds); time its arms; say what came of it."""
    from oelm.experiments.engines import Local
    from oelm.experiments.plan import unique
    from oelm.experiments.preview import within
    from oelm.experiments.suite import time_planned

    runs = unique(planned)
    if budget is not None:
        assert isinstance(queue, Local)
        runs = within(runs, budget, queue, say=_say)
    with SuiteBoard(quiet=as_json) as board:
        jobs = queue.run(runs, watch=board.show)
        if time_steps and not any(job.failed or job.stopped for job in jobs):
            time_planned(planned, say=board.say)
    _conclude(jobs, root, as_json)


def train_several(
    config: RunConfig, methods: str | None, seeds: str | None, root: Path | None, time_steps: bool, as_json: bool
) -> None:
    """`oelm train --methods a,b --seeds 0,1`: an experiment without a file, here."""
    from oelm.experiments.engines import find_engine
    from oelm.experiments.plan import several
    from oelm.experiments.suite import require_possible

    names = [name.strip() for name in methods.split(",")] if methods else [config.method_name]
    queue = find_engine("local", nproc=config.runtime.nproc)
    config.runtime.threads = config.runtime.threads or queue.threads
    root = root or run_folder(config, of_all=True)
    planned = several(config, names, numbers("--seeds", seeds) or [config.seed], root)
    require_possible(planned)
    work_off(planned, queue, root, time_steps, None, as_json)


def numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = [plain_number(part.strip()) for part in text.split(",")]
    whole = [number for number in numbers if isinstance(number, int)]
    if len(whole) < len(numbers):
        raise OelmError(f"{option} {text!r} is not a list of whole numbers, e.g. 0,1,2")
    return list(dict.fromkeys(whole))


def _preview(planned: "list[PlannedRun]", experiments: "list[Experiment]", as_json: bool) -> None:
    from oelm.experiments.plan import unique
    from oelm.experiments.preview import preview

    by_name = {experiment.name: experiment for experiment in experiments}
    facts = [preview(run, by_name[run.experiment]) for run in unique(planned)]
    if as_json:
        return echo_json(facts)
    table = Table("arm", "runs", "weights", "frozen", "steps", "tokens", "PFLOP", "memory", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    arms: dict[tuple[str, ...], list[bool]] = {}
    for row in facts:
        arms.setdefault((row["arm"], *_needs(row)), []).append(row["finished"])
    last = None
    for (arm, *needs), finished in arms.items():
        experiment, _, name = arm.rpartition("/")
        if experiment != last:
            table.add_row(f"[bold]{experiment}[/]")
        last = experiment
        table.add_row(f"  {name}", f"{len(finished)}" + (f", {sum(finished)} done" if any(finished) else ""), *needs)
    console = command_console()
    console.print(table)
    done = sum(row["finished"] for row in facts)
    console.print(f"{len(facts)} runs, {done} of them finished; nothing was started.")
    console.print("PFLOP is per run; memory is an estimate, on the device.")


def _needs(row: dict[str, Any]) -> list[str]:
    total, frozen, memory = row["total_parameters"], row["frozen_parameters"], row["memory_bytes"]
    return [
        f"{total / 1e6:.2f}M" if total else "?",
        f"{frozen / total:.1%}" if total else "?",
        f"{row['steps']:,}",
        f"{row['tokens'] / 1e6:,.1f}M",
        f"{row['petaflops']:,.2f}" if row["petaflops"] is not None else "?",
        f"{memory / 2**30:.1f} GiB" if memory else "?",
    ]


def _conclude(jobs: "list[Job]", root: Path, as_json: bool) -> None:
    failed, stopped = [job for job in jobs if job.failed], [job for job in jobs if job.stopped]
    if as_json:
        echo_json([_record(job) for job in jobs])
    else:
        for job in failed:
            words = job.last_words.replace("\n", "\n  ")
            typer.echo(f"{job.folder.path} {job.reason}:\n  {words}", err=True)
        counts = f"{len(jobs) - len(failed) - len(stopped)} of {len(jobs)} runs finished"
        more = "".join(f", {len(some)} {what}" for some, what in ((failed, "failed"), (stopped, "stopped")) if some)
        parents = {job.folder.path.parent for job in jobs}
        typer.echo(f"{counts}{more}; see: oelm report {parents.pop() if len(parents) == 1 else root}")
    if failed or stopped:
        raise typer.Exit(1)


def _record(job: "Job") -> dict[str, object]:
    state = "failed" if job.failed else "stopped" if job.stopped else "finished"
    words = {"reason": job.reason, "last_words": job.last_words} if job.failed else {}
    return {"experiment": job.run.experiment, "run": str(job.folder.path), "state": state, **words}
