"""`oelm compare RUN…`: finished runs side by side, with the gap to the baseline and how sure it is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.console import command_console
from oelm.files import write_atomically


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold run folders.", metavar="RUN…")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the table and the notes as JSON.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write the table to this CSV file.", metavar="FILE")
    ] = None,
) -> None:
    """Compare finished runs: quality, gap to the baseline with its interval, parameters, step time."""
    from oelm.analysis.compare.results import require_finished
    from oelm.analysis.report.tables import summary_table
    from oelm.analysis.report.texts import texts
    from oelm.analysis.report.words import notes

    loaded = require_finished(runs)
    table, said = summary_table(loaded), [texts("en").note(note) for note in notes(loaded)]
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(csv, table.csv())
    if as_json:
        facts = {
            "arms": table.facts(),
            "notes": said,
            "incomplete": [str(run.folder.path) for run in loaded.incomplete],
            "skipped": [{"path": str(skipped.path), "reason": skipped.reason} for skipped in loaded.skipped],
        }
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    console = command_console()
    for part in table.rich(console.width):
        console.print(part, "")
    for line in said:
        console.print(line, style="yellow" if line.startswith("*") else "dim", markup=False)
