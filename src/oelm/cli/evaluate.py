"""`oelm evaluate`: downstream tasks, and the perplexity of any text."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER|NAME…", help="Runs, checkpoints, model folders or names on the hub."),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks or groups of lm-eval, with commas: piqa,arc_easy,blimp. 'lm-eval ls tasks' has all."),
    ] = None,
    task_data: Annotated[
        Path | None,
        typer.Option(help="Folder with the rows as JSON lines, TASK_SPLIT.jsonl, instead of the hub's: no network."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows of each task.")] = None,
    fewshot: Annotated[
        int | None, typer.Option(min=0, help="Solved examples before each question. (default: the task's own)")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Text file whose perplexity to measure.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from window to window in --text. (default: half the context)")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts at once in --tasks.")] = 8,
    checkpoint: Annotated[str, typer.Option(help="best or latest.")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Evaluate models on tasks through lm-eval, or on a text of your own.

    A run keeps each result in its folder, evaluation/*.json, where 'oelm report' finds it. Several runs: one table,
    means over seeds with their 95 % intervals. Files for --task-data are named after the task or its dataset
    (piqa_validation.jsonl, winogrande_xl_validation.jsonl; in blimp/ one per paradigm) and have the original fields;
    a group is evaluated on those of its tasks that have a file. Few-shot examples come from the training file, or
    from the other rows.

    Example: oelm evaluate runs/demo/* --tasks piqa,blimp --task-data data/eval
    """
    from oelm.errors import OelmError

    if not tasks and text is None:
        raise OelmError("nothing to evaluate: give --tasks (of lm-eval), --text FILE, or both")
    from oelm.analysis.compare.across import Measured, across, arms_table
    from oelm.cli.console import command_console
    from oelm.evaluation import downstream, perplexity
    from oelm.evaluation.subjects import load

    asked = (
        downstream.find_tasks([name.strip() for name in tasks.split(",") if name.strip()], task_data) if tasks else []
    )
    records: list[dict[str, Any]] = []
    measured, console = [], command_console(stderr=as_json)
    for name in models:
        subject = load(name, checkpoint)
        found = [downstream.evaluate(subject, one, limit=limit, fewshot=fewshot, batch=batch) for one in asked]
        found += [perplexity.file_perplexity(subject, text, stride)] if text else []
        for facts in found:
            kept = subject.record(_file_name(facts), facts)
            records.append({"model": name, **facts, "file": kept and str(kept)})
            for note in _notes(facts):
                console.print(f"{name}: {note}", style="dim", markup=False)
        measured.append(Measured(name, subject.run, {k: v for facts in found for k, v in facts["headlines"].items()}))
    arms = across(measured)
    if as_json:
        typer.echo(json.dumps({"results": records, "arms": arms}, indent=2))
    else:
        console.print(arms_table(arms))


def _file_name(facts: dict[str, Any]) -> str:
    name = f"text-{facts['text']}" if "text" in facts else f"task-{facts['label']}"
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)


def _notes(facts: dict[str, Any]) -> list[str]:
    found = []
    if facts.get("left_out"):
        asked = len(facts["scores"])
        found.append(f"{facts['task']}: {asked} of {asked + len(facts['left_out'])} tasks, the others have no file")
    if facts.get("cut"):
        found.append(f"{facts['task']}: {facts['cut']} texts are longer than the context and were cut from the left")
    return found
