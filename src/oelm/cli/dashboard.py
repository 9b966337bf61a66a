"""`oelm dashboard`: the live page over run folders. No torch."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oelm.errors import OelmError

if TYPE_CHECKING:
    from oelm.analysis.compare.results import Loaded


def dashboard(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders with runs. (default: runs)", metavar="RUNS_DIR…")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 8265,
    token: Annotated[
        str | None,
        typer.Option(envvar="OELM_DASHBOARD_TOKEN", help="Word that whoever opens the page must know.", metavar="WORD"),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Serve a live page: all runs, comparisons, each run in detail, the published claims. It only reads.

    On a machine far away, forward the port instead of opening it: ssh -L 8265:127.0.0.1:8265 HOST
    """
    try:
        from oelm.dashboard.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise OelmError(f"the dashboard needs {error.name}; run: pip install 'oelm[dashboard]'") from error

    def ready(address: str) -> None:
        typer.echo(f"oelm dashboard: {address}\nCtrl-C ends it; the runs go on.")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(folders or [Path("runs")], host, port, token, judge, ready)


def judge(loaded: "Loaded") -> list[dict[str, Any]]:
    """The verdicts on the published claims, as `oelm claims` gives them; without finished runs, by those of oelm."""
    from oelm.analysis.evidence.records import shipped
    from oelm.cli.claims import judged

    return [asdict(verdict) for verdict in judged(loaded if loaded.finished else shipped())]
