"""`oelm demo`: the whole idea in a few minutes on a laptop."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from typer import Option

from oelm.cli.console import command_console, echo_json
from oelm.cli.progress import GOES_ON, SuiteBoard
from oelm.errors import OelmError
from oelm.files import write_json

if TYPE_CHECKING:
    from oelm.experiments.runner import Job

SAMPLE_PROMPT = "By the"
SAMPLES_FILE = "samples.json"


def demo(
    out: Annotated[Path, Option(help="Where runs and report go.")] = Path("runs/demo"),
    slots: Annotated[int | None, Option(min=1, help="Runs at a time. (default: one per core)")] = None,
    steps: Annotated[int | None, Option(min=1, help="Steps per run, for a shorter or longer look.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train four arms of a small GPT, six seeds each, and answer three questions about frozen queries and keys.

    Finished runs are reused and interrupted ones resumed, so the command can be repeated at will.
    """
    from oelm.evaluation.generation import generate
    from oelm.experiments import sources
    from oelm.experiments.engines import find_engine
    from oelm.experiments.entries import experiment as find_experiment
    from oelm.experiments.plan import plan
    from oelm.experiments.suite import time_planned, write_questions

    experiment = find_experiment("demo")
    if steps:
        experiment.training.update(max_steps=steps, warmup_steps=max(1, steps // 20), eval_every=max(1, steps // 20))
    queue = find_engine("local", slots=slots)
    with SuiteBoard(quiet=as_json) as board:
        data = sources.prepare_at_scale(experiment, None, board.say)
        planned = plan(experiment, data, out, threads=queue.threads)
        board.say(f"{len(planned)} runs in {out}")
        _require_success(queue.run(planned, watch=board.show))
        write_questions(experiment, out)
        time_planned(planned, rounds=24, say=board.say)
        if not (out / SAMPLES_FILE).is_file():
            board.say("letting the arms write")  # each its first seed, with the same prompt and sampling seed
            first = {arm: out / f"{arm}-{experiment.seeds[0]}" for arm in experiment.arms}
            texts = {arm: generate(run, SAMPLE_PROMPT, tokens=110, temperature=0.7) for arm, run in first.items()}
            write_json(out / SAMPLES_FILE, {arm: {"prompt": SAMPLE_PROMPT, "text": t} for arm, t in texts.items()})
    _conclude(out, as_json)


def _require_success(jobs: "list[Job]") -> None:
    from oelm.experiments.runner import last_words

    failed, stopped = [job for job in jobs if job.failed], [job for job in jobs if job.stopped]
    if stopped:
        raise OelmError(f"{len(stopped)} of {len(jobs)} runs were stopped; {GOES_ON}")
    if failed:
        folder = failed[0].folder
        raise OelmError(f"{len(failed)} of {len(jobs)} runs failed; {folder.path}: {last_words(folder, lines=1)}")


def _conclude(out: Path, as_json: bool) -> None:
    from oelm.analysis.compare.results import load_runs
    from oelm.analysis.report.page import write_report
    from oelm.analysis.report.tables import summary_table
    from oelm.analysis.report.texts import texts
    from oelm.analysis.report.words import notes, verdict_lines

    loaded = load_runs([out])
    table = summary_table(loaded)
    report = write_report(out, out / "report.html", formats=("html",), title="oelm demo")[0]
    answers = verdict_lines(loaded, texts("en"))
    if as_json:
        return echo_json({"answers": answers, "table": table.facts(), "report": str(report)})
    console = command_console()
    for part in table.rich(console.width):
        console.print(part)
    console.print()
    for line in answers:
        console.print(f"[bold]•[/] {escape(line)}")
    for note in notes(loaded):
        console.print(texts("en").note(note), markup=False)
    for arm, sample in json.loads((out / SAMPLES_FILE).read_text()).items():
        console.print(f"[bold]{arm}[/] writes: ", end="")
        console.print(sample["prompt"] + sample["text"], markup=False)
    console.print(f"report: {report}")
