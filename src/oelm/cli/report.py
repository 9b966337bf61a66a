"""`oelm report [PATH|ID|SUITE]…`: a self-contained page about the runs below folders, or those of experiments."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.errors import OelmError


def report(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders that hold run folders, or names from 'oelm experiments'. Several need --out.",
            show_default="runs",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="Of which scale, for a name: full, mini or smoke.")] = "full",
    root: Annotated[
        Path, typer.Option("--runs", help="Where runs of a name lie, in a folder per scale.", metavar="DIR")
    ] = Path("runs"),
    lang: Annotated[str, typer.Option("--lang", help="Language of the report: en or zh.")] = "en",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="html, md, csv, svg or png; may be repeated.", show_default="html and md"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write it; default: beside the runs.", metavar="DIR")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write every table as CSV into this folder.", metavar="DIR")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Its heading.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Report on finished runs: tables, figures, verdicts, settings; html (which prints), markdown, CSV.

    Example: oelm report phase3 --scale mini --lang zh
    """
    from oelm.analysis.report.page import write_report

    chosen = tuple(dict.fromkeys(formats or ("html", "md")))
    found = [_found(place, scale, root, lang) for place in dict.fromkeys(what or ["runs"])]
    if len(found) > 1 and out is None:
        raise OelmError(f"a report on {len(found)} folders or names lies beside none of them; say where (--out DIR)")
    folders = [folder for some, _ in found for folder in some]
    written = write_report(folders, out or found[0][1], lang=lang, formats=chosen, title=title, csv_dir=csv)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in written]}, indent=2, ensure_ascii=False))
        return
    for file in written:
        typer.echo(file)


def _found(what: str, scale: str, root: Path, lang: str) -> tuple[list[Path], Path]:
    """Where the runs are, and where the report on them lies unless told otherwise."""
    if what == "runs" or "/" in what or Path(what).exists():
        return [Path(what)], Path(what)
    from oelm.experiments.entries import SCALES
    from oelm.experiments.suite import runs_of

    try:
        found = runs_of([what], root / scale, scale)
    except OelmError as error:
        raise OelmError(f"{what} is no folder; {error}") from None
    if not found:
        elsewhere = [other for other in SCALES if runs_of([what], root / other, other)]
        hint = f"there are some at scale {elsewhere[0]}" if elsewhere else f"make them: oelm run {what} --scale {scale}"
        raise OelmError(f"{what} has no runs at scale {scale} in {root / scale}; {hint}")
    suffix = "" if lang == "en" else f".{lang}"
    return [run.folder for run in found], root / scale / f"report-{what}{suffix}.html"
