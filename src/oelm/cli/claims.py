"""`oelm claims`: every published claim, what follows from it, our figure, and a verdict. No torch."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oelm.cli.console import command_console
from oelm.errors import OelmError

if TYPE_CHECKING:
    from oelm.analysis.claims.checks import Verdict
    from oelm.analysis.claims.evidence import Evidence
    from oelm.analysis.compare.results import Loaded

_COLOURS = {"impossible": "red", "not tested": "dim"} | dict.fromkeys(
    ("inconsistent", "circular", "not reproduced"), "yellow"
)


def claims(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs to judge by, or folders above them. (default: those that came with oelm)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check the original study's claims by arithmetic, and by measured runs: those that came with oelm, or yours."""
    from oelm.analysis.compare.results import load_runs
    from oelm.analysis.evidence.records import shipped

    for path in runs or []:
        if not path.exists():
            raise OelmError(f"{path} does not exist; give folders with runs, or none for those that came with oelm")
    loaded = load_runs(runs) if runs else shipped()
    for skipped in loaded.skipped:
        typer.echo(f"left out: {skipped.path}: {skipped.reason}", err=True)
    verdicts = judged(loaded)
    if as_json:
        typer.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=2, ensure_ascii=False))
    else:
        _print(verdicts)


def judged(loaded: "Loaded") -> "list[Verdict]":
    """The verdicts on the published claims by these runs."""
    from oelm.analysis.claims.checks import judge
    from oelm.experiments.entries import read

    return judge(read("claims")["claims"], evidence(loaded))


def evidence(loaded: "Loaded | None") -> "Evidence":
    """The catalog as plain data, and the finished runs."""
    from oelm.analysis.claims.evidence import Evidence
    from oelm.experiments.entries import catalog, experiment, read, suites

    corpora = read("scales")["mini"]["corpora"]
    return Evidence(
        experiments={
            name: {**experiment(name).model_dump(exclude_none=True), "dataset": experiment(name).dataset}
            for name in catalog()
        },
        suites=suites(),
        models=read("facts")["models"],
        datasets=read("facts")["datasets"],
        stand_ins={name: change["corpus"] for name, change in corpora.items() if "corpus" in change},
        loaded=loaded,
    )


def _print(verdicts: "list[Verdict]") -> None:
    console = command_console()
    for one in verdicts:
        console.print(f"[bold {_COLOURS.get(one.verdict, 'green')}]{one.verdict}[/]  [bold]{one.claim}[/]")
        lines = {"published": one.published, "follows": one.follows, "ours": one.ours, "because": one.reason}
        for label, text in lines.items():
            if text:
                console.print(f"  {label:<9}  {text}", markup=False)
    found = [one.verdict for one in verdicts]
    counts = ", ".join(f"{found.count(name)} {name}" for name in dict.fromkeys(found))
    console.print(f"\n{len(verdicts)} claims: {counts}")
