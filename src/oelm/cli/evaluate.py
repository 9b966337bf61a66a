"""`oelm evaluate`: downstream tasks, and the perplexity of any text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.surveys import AsJson, Models, Which, show, survey


def evaluate(
    models: Models,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks or groups of lm-eval, with commas: piqa,arc_easy,blimp. 'lm-eval ls tasks' has all."),
    ] = None,
    task_data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder with the rows, TASK_SPLIT.jsonl, instead of the hub's: no network.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows of each task.")] = None,
    fewshot: Annotated[
        int | None, typer.Option(min=0, help="Solved examples before each question. (default: the task's own)")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Text file whose perplexity to measure.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from window to window in --text. (default: half the context)")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts at once in --tasks.")] = 8,
    checkpoint: Which = "best",
    as_json: AsJson = False,
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
    from oelm.evaluation import downstream, perplexity

    named = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    asked = downstream.find_tasks(named, task_data) if tasks else []

    def measure(subject: Any) -> list[dict[str, Any]]:
        found = [downstream.evaluate(subject, one, limit=limit, fewshot=fewshot, batch=batch) for one in asked]
        return [*found, perplexity.file_perplexity(subject, text, stride)] if text else found

    found = survey(models, checkpoint, measure)
    for facts in found["models"]:
        which = f"{facts['model']}: {facts.get('task')}"
        if left_out := facts.get("left_out"):
            typer.echo(f"{which}: {len(facts['scores'])} tasks; {len(left_out)} others have no file", err=True)
        if cut := facts.get("cut"):
            typer.echo(f"{which}: {cut} texts are longer than the context and were cut from the left", err=True)
    show(found, as_json)
