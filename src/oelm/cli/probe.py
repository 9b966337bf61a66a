"""`oelm probe`: what attention takes up again, and which heads do it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.surveys import AsJson, Models, Which, show, survey

NAMES = ("recall", "induction", "copy", "previous")


def probe(
    models: Models,
    samples: Annotated[int, typer.Option(min=1, max=4096, help="Texts per probe and size.")] = 64,
    fables: Annotated[
        int | None, typer.Option(min=0, help="Fables to read. (default: 50 for models trained on fables, else 0)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts; the same for all models.")] = 0,
    checkpoint: Which = "best",
    figure: Annotated[
        Path | None, typer.Option(help="Layer × head as PNG, of one model. (default: RUN/evaluation/heads.png)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Probe attention: associative recall, induction, copying, the previous token, and the heads that do it.

    Every model gets texts of random words of its own vocabulary. "choice" is how often the right word is the likeliest
    among those that could be meant (never the word that asks), "accuracy" among all tokens. Models trained on fables
    are also asked for the names, objects and places of unread stories. A run keeps its results in
    evaluation/probe.json. Several models: one table, means over seeds with their 95 % intervals.
    """
    from oelm.analysis.figures.commands import heads_figure
    from oelm.errors import OelmError
    from oelm.evaluation import probes
    from oelm.files import write_atomically

    if figure is not None and len(models) > 1:
        raise OelmError(f"--figure {figure} is for one model, not {len(models)}; every run has its own in its folder")

    def measure(subject: Any) -> list[dict[str, Any]]:
        told = fables if fables is not None else 50 if _trained_on_fables(subject.run) else 0
        record = probes.probe(subject, samples=samples, seed=seed, fables=told)
        return [{"name": "probe", **record, **_headlines(record)}]

    found = survey(models, checkpoint, measure, attn_implementation="eager")
    for record in found["models"]:
        place = figure or (record["file"] and Path(record["file"]).with_name("heads.png"))
        if place:
            write_atomically(place, heads_figure(record["heads"], Path(record["model"]).name))
        record["figure"] = place and str(place)
    if len(models) == 1 and not as_json:
        _print(found["models"][0])
    else:
        show(found, as_json, " accuracy %")
    typer.echo(probes.CAVEAT, err=as_json)


def _trained_on_fables(run: Any) -> bool:
    return run is not None and "fables" in str((run.result() or {}).get("dataset") or run.config()["data"]["path"])


def _headlines(record: dict[str, Any]) -> dict[str, Any]:
    """One figure per probe, its mean over sizes; the strongest heads; the fables; beside them, what is easy to get."""
    found: dict[str, float] = {}
    beside: dict[str, dict[str, float]] = {"chance": {}}
    for name in NAMES:
        rows = [row for row in record["probes"] if row["probe"] == name and row["distance"] is None]
        if rows:
            means = {key: 100 * sum(row[key] for row in rows) / len(rows) for key in ("choice", "accuracy", "chance")}
            beside["chance"][f"{name} choice %"] = means.pop("chance")
            found |= {f"{name} {key} %": mean for key, mean in means.items()}
    for name in ("induction", "previous"):
        shares = [share for layer in record["heads"][name] for share in layer if share is not None]
        if shares:
            found[f"{name} head %"] = 100 * max(shares)
    for row in record.get("fables", {}).get("rows", []):
        if row["distance"] is None:
            measure = f"fables {row['kind']} recalled %"
            found[measure] = 100 * row["accuracy"]
            beside.setdefault("the latest word of its kind", {})[measure] = 100 * row["nearest"]
    return {"headlines": found, "beside": beside}


def _print(record: dict[str, Any]) -> None:
    from rich.table import Table

    from oelm.cli.console import command_console

    console, figures = command_console(), ("choice", "chance", "nearest", "accuracy")
    table = Table("probe", "size", "distance up to", "answers", *figures, box=None)
    for row in [*record["probes"], *record.get("fables", {}).get("rows", [])]:
        name = row.get("probe") or f"fables {row['kind']}"
        cells = [f"{row[what]:.1%}" if what in row else "" for what in figures]
        table.add_row(name, str(row.get("size", "")), str(row["distance"] or "all"), str(row["answers"]), *cells)
    console.print(table, "")
    for head in record["heads"]["found"]:
        console.print(f"layer {head['layer']} head {head['head']}: {head['kind']} head, {head['share']:.0%}")
    console.print(*(f"written: {record[what]}" for what in ("file", "figure") if record[what]), sep="\n")
