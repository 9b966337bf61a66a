"""`oelm demo`: the whole idea in a few minutes on a laptop."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from oelm.experiments.plan import Experiment
    from oelm.experiments.runner import Job

SAMPLE_PROMPT = "By the"
SAMPLES_FILE = "samples.json"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where runs and report go.")] = Path("runs/demo"),
    slots: Annotated[int | None, typer.Option(min=1, help="Runs at a time. [default: one per core]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per run, for a shorter or longer look.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train four arms of a small GPT, two seeds each, and show what frozen queries and keys cost.

    Finished runs are reused and interrupted ones resumed, so the command can be repeated at will.
    """
    from oelm.experiments.plan import load
    from oelm.experiments.suite import run_suite, time_arms

    experiment = load("demo")
    if steps:
        experiment.training.update(max_steps=steps, warmup_steps=max(1, steps // 20), eval_every=max(1, steps // 20))
    with _board(as_json) as board:
        jobs = run_suite(experiment, out, slots=slots, watch=board.show, say=board.say)
        _require_success(jobs)
        board.say("timing the arms side by side")
        time_arms(experiment, out)
        board.say("letting the arms write")
        _write_samples(experiment, out)
    _conclude(out, as_json)


def _require_success(jobs: "list[Job]") -> None:
    from oelm.errors import OelmError
    from oelm.experiments.runner import last_words

    failed = [job for job in jobs if job.failed]
    if failed:
        folder = failed[0].folder
        raise OelmError(f"{len(failed)} of {len(jobs)} runs failed; {folder.path}: {last_words(folder, lines=1)}")


def _write_samples(experiment: "Experiment", out: Path) -> None:
    """One sample per arm from its first seed, same prompt and sampling seed; kept beside the runs."""
    from oelm.evaluation.generation import generate
    from oelm.files import write_json

    file = out / SAMPLES_FILE
    if file.is_file():
        return
    samples = {}
    for arm in experiment.arms:
        text = generate(out / f"{arm}-{experiment.seeds[0]}", SAMPLE_PROMPT, tokens=110, temperature=0.7)
        samples[arm] = {"prompt": SAMPLE_PROMPT, "text": text}
    write_json(file, samples)


def _conclude(out: Path, as_json: bool) -> None:
    from rich.console import Console

    from oelm.analysis.report import write_report
    from oelm.analysis.results import load_runs
    from oelm.analysis.tables import notes, summary_table
    from oelm.analysis.texts import texts

    loaded = load_runs([out])
    table = summary_table(loaded)
    report = write_report(out, out / "report.html", formats=("html",), title="oelm demo")[0]
    if as_json:
        typer.echo(json.dumps({"table": table.records, "report": str(report)}, indent=2))
        return
    console = Console(highlight=False)
    for part in table.rich(console.width):
        console.print(part)
    for note in notes(loaded):
        console.print(texts("en").note(note), markup=False)
    for arm, sample in json.loads((out / SAMPLES_FILE).read_text()).items():
        console.print(f"[bold]{arm}[/] writes: ", end="")
        console.print(sample["prompt"] + sample["text"], markup=False)
    console.print(f"report: {report}")


class _Board:
    """Live table of all runs on a terminal; a line per change elsewhere."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal and not quiet else None
        self.states: dict[str, str] = {}

    def __enter__(self) -> "_Board":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, message: str) -> None:
        self.console.print(message)

    def show(self, jobs: "list[Job]") -> None:
        if self.live:
            self.live.update(self._table(jobs))
            return
        from oelm.cli.progress import describe

        for job in jobs:
            state = job.status.get("state", "queued")
            if self.states.get(job.folder.name) != state:
                self.states[job.folder.name] = state
                self.console.print(
                    f"{job.folder.name}: {state} {describe(job.status) if state != 'queued' else ''}".strip()
                )

    def _table(self, jobs: "list[Job]") -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        from oelm.cli.progress import describe

        table = Table("run", "state", "progress", "now", box=None)
        done, total = 0, 0
        for job in jobs:
            steps = job.run.config.training.max_steps
            step = job.status.get("step", 0)
            done, total = done + step, total + steps
            table.add_row(
                job.folder.name, job.status.get("state", ""), ProgressBar(steps, step, width=24), describe(job.status)
            )
        left = sum((j.status.get("eta_seconds") or 0) for j in jobs if not j.done)
        overall = Table.grid(padding=(0, 1))
        overall.add_row(
            "overall", ProgressBar(total, done, width=50), f"{100 * done / max(total, 1):.0f} %", _left(jobs)
        )
        return Group(table, overall) if left or done < total else table


def _left(jobs: "list[Job]") -> str:
    """Time left for all runs, from the speed of those that are running."""
    running = [job for job in jobs if not job.done and job.status.get("eta_seconds")]
    if not running:
        return ""
    per_step = [j.status["eta_seconds"] / max(1, j.status["max_steps"] - j.status["step"]) for j in running]
    steps = sum(j.run.config.training.max_steps - j.status.get("step", 0) for j in jobs if not j.done)
    minutes, seconds = divmod(round(steps * sum(per_step) / len(per_step) / len(running)), 60)
    return f"ETA {minutes}:{seconds:02d}"


def _board(quiet: bool) -> _Board:
    return _Board(quiet)
