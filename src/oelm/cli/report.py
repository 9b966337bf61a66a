"""`oelm compare`, `report`, `dashboard` and `claims`: what finished runs say, of themselves and of claims. No torch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.errors import OelmError
from oelm.files import write_atomically

if TYPE_CHECKING:
    from oelm.analysis.claims.checks import Verdict
    from oelm.analysis.claims.evidence import Evidence
    from oelm.analysis.compare.results import Loaded

FORMATS = "html, md, csv, svg or png; repeatable."
_COLOURS = dict.fromkeys(("inconsistent", "circular", "not reproduced"), "yellow")
_COLOURS |= {"impossible": "red", "not tested": "dim"}


def compare(
    runs: Annotated[
        list[Path] | None,
        Argument(help="Run folders, or folders that hold run folders.", metavar="RUN…", show_default="runs"),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the table and the notes as JSON.")] = False,
    csv: Annotated[Path | None, Option(help="Also write the table to this CSV file.", metavar="FILE")] = None,
) -> None:
    """Compare finished runs: quality, gap to the baseline with its interval, parameters, step time."""
    from oelm.analysis.compare.results import require_finished
    from oelm.analysis.report.tables import summary_table
    from oelm.analysis.report.texts import texts
    from oelm.analysis.report.words import first_looks, notes

    loaded, t = require_finished(runs or [Path("runs")]), texts("en")
    table, said = summary_table(loaded), [*first_looks(loaded, t), *(t.note(note) for note in notes(loaded))]
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
        return echo_json(facts, ensure_ascii=False)
    console = command_console()
    for part in table.rich(console.width):
        console.print(part, "")
    for line in said:
        console.print(line, style="yellow" if line.startswith("*") else "dim", markup=False)


def report(
    what: Annotated[
        list[str] | None,
        Argument(help="Folders, or names of 'oelm experiments'; several need --out.", show_default="runs"),
    ] = None,
    scale: Annotated[str, Option(help="Of which scale, for a name: full, mini or smoke.")] = "full",
    root: Annotated[Path, Option("--runs", help="Where runs lie, a folder per scale.", metavar="DIR")] = Path("runs"),
    lang: Annotated[str, Option(help="Language of the report: en or zh.")] = "en",
    formats: Annotated[list[str] | None, Option("--format", help=FORMATS, show_default="html and md")] = None,
    out: Annotated[Path | None, Option(help="Where to write it; default: beside the runs.", metavar="DIR")] = None,
    csv: Annotated[Path | None, Option(help="Also write every table as CSV into this folder.", metavar="DIR")] = None,
    title: Annotated[str | None, Option(help="Its heading.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the written files as JSON.")] = False,
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
        return echo_json({"files": [str(file) for file in written]}, ensure_ascii=False)
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


def dashboard(
    folders: Annotated[list[Path] | None, Argument(help="Where runs lie. (default: runs)", metavar="RUNS_DIR…")] = None,
    host: Annotated[str, Option(help="Address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8265,
    token: Annotated[str | None, Option(envvar="OELM_DASHBOARD_TOKEN", help="What whoever opens it must know.")] = None,
    browser: Annotated[bool, Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Serve a live page: all runs, comparisons, each run in detail, the published claims. It only reads.

    On a machine far away, forward the port instead of opening it: ssh -L 8265:127.0.0.1:8265 HOST
    """
    try:
        from oelm.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise OelmError(f"the dashboard needs {error.name}; run: pip install '.[dashboard]' in your clone") from error

    def ready(address: str) -> None:
        typer.echo(f"oelm dashboard: {address}\nCtrl-C ends it; the runs go on.")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(folders or [Path("runs")], host, port, token, judge, ready)


def judge(loaded: "Loaded") -> list[dict[str, Any]]:
    """The verdicts on the published claims, as `oelm claims` gives them; without finished runs, by those of oelm."""
    from oelm.analysis.evidence.records import shipped

    return [asdict(verdict) for verdict in judged(loaded if loaded.finished else shipped())]


def claims(
    runs: Annotated[list[Path] | None, Argument(help="Runs, or folders above them. (default: those of oelm)")] = None,
    as_json: AsJson = False,
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
        return echo_json([asdict(verdict) for verdict in verdicts], ensure_ascii=False)
    _print_verdicts(verdicts)


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


def _print_verdicts(verdicts: "list[Verdict]") -> None:
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
