"""`oelm report [PATH]`: a self-contained page about all runs below a folder."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    path: Annotated[Path, typer.Argument(help="A folder that holds run folders.")] = Path("runs"),
    lang: Annotated[str, typer.Option("--lang", help="Language of the report: en or zh.")] = "en",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="html, md, pdf, csv, svg or png; may be repeated.", show_default="html and md"),
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
    """Report on finished runs: tables, figures, verdicts, settings; html, markdown, PDF, CSV."""
    import json

    from oelm.analysis.plots import print_language
    from oelm.analysis.report import write_report
    from oelm.analysis.texts import texts

    chosen = tuple(dict.fromkeys(formats or ("html", "md")))
    written = write_report(path, out or path, lang=lang, formats=chosen, title=title, csv_dir=csv)
    if as_json:
        typer.echo(json.dumps({"files": [str(file) for file in written]}, indent=2, ensure_ascii=False))
        return
    for file in written:
        typer.echo(file)
    if {"pdf", "png"} & set(chosen) and print_language(lang) != lang:
        typer.echo(texts("en")("english_in_print"), err=True)
