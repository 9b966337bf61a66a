"""What several commands have in common: they measure models, keep the records in run folders, and compare arms."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from oelm.evaluation.subjects import Subject


Models = Annotated[
    list[str], typer.Argument(metavar="RUN|FOLDER|NAME…", help="Runs, checkpoints, model folders or names on the hub.")
]
Which = Annotated[str, typer.Option("--checkpoint", help="best or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def survey(
    models: Sequence[str], checkpoint: str, measure: "Callable[[Subject], list[dict[str, Any]]]", **options: Any
) -> dict[str, list[dict[str, Any]]]:
    """All records, and their headlines as one row per arm.

    Each record has a `name`, `headlines` and perhaps figures to stand `beside` them.
    """
    from oelm.analysis.report.evaluations import Measured, across
    from oelm.evaluation.subjects import load

    records, measured = [], []
    beside: dict[str, Measured] = {}
    for name in models:
        subject = load(name, checkpoint, **options)
        values: dict[str, float] = {}
        for facts in measure(subject):
            file = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in facts["name"])
            kept = subject.record(file, facts)
            records.append({"model": name, **facts, "file": kept and str(kept)})
            values |= facts["headlines"]
            for label, figures in facts.get("beside", {}).items():
                if beside.setdefault(label, Measured(label, None, figures)).values != figures:
                    label = f"{label} ({name})"  # other data, or a shorter context
                    beside[label] = Measured(label, None, figures)
        measured.append(Measured(name, subject.run, values))
    return {"models": records, "arms": across([*measured, *beside.values()])}


def show(found: dict[str, list[dict[str, Any]]], as_json: bool, leave_out: str = "-") -> None:
    from oelm.analysis.report.evaluations import arms_table
    from oelm.cli.console import command_console

    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=2))
    else:
        command_console().print(arms_table(found["arms"], leave_out))
