"""The web server: `build(folders)` is the application, `serve(folders)` runs it until Ctrl-C."""

import json
import os
import socket
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from oelm.analysis.report.texts import LANGUAGES
from oelm.dashboard.board import Board
from oelm.dashboard.comparisons import Comparisons
from oelm.dashboard.plain import for_json, number
from oelm.dashboard.run_page import curves, details, log_end
from oelm.dashboard.security import Guard, require_safe
from oelm.dashboard.series import Series
from oelm.errors import OelmError

_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
Judge = Callable[[Any], list[dict[str, Any]]]
"""From loaded runs to the verdicts on the published claims."""


def build(
    folders: list[Path], judge: Judge | None = None, hosts: tuple[str, ...] = (), token: str | None = None
) -> Any:
    """The application over these folders."""
    board, series = Board(folders), Series()
    board.refresh()
    smaller = Middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)  # the way may be an ssh tunnel
    app = Starlette(routes=_routes(_Pages(board, series, Comparisons(board, series), judge)), middleware=[smaller])
    return Guard(app, hosts, token)


def serve(
    folders: list[Path], host: str, port: int, token: str | None, judge: Judge, ready: Callable[[str], None]
) -> None:
    """Answer until interrupted. `ready` is told the address; port 0 takes any that is free."""
    import uvicorn

    require_safe(host, token)
    if hasattr(os, "nice"):
        os.nice(5)  # training comes first
    app = build(folders, judge, (host,), token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            raise OelmError(f"cannot listen on {host} port {port}: {error.strerror or error}; try --port 0") from error
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        ready(f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else ""))
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


class _Pages:
    """What each address answers. Reading happens in threads, so that a slow disk keeps nobody else waiting."""

    def __init__(self, board: Board, series: Series, comparisons: Comparisons, judge: Judge | None) -> None:
        self.board, self.series, self.comparisons, self.judge = board, series, comparisons, judge

    def runs(self, request: Request) -> Any:
        self.board.refresh()
        self.comparisons.update_gaps()
        return self.board.changes(request.query_params.get("since", ""))

    def run(self, request: Request) -> Any:
        run = request.path_params["run"]
        return {**details(self.board.folder(run)), "row": self.board.row(run)}

    def run_curves(self, request: Request) -> Any:
        axis = request.query_params.get("x", "step")
        return curves(self.board.folder(request.path_params["run"]), self.series, axis, _weight(request))

    def run_log(self, request: Request) -> Any:
        start = request.query_params.get("from", "")
        return log_end(self.board.folder(request.path_params["run"]), int(start) if start.isdigit() else None)

    def compare(self, request: Request) -> Any:
        given = request.query_params.get("lang", "en")
        return self.comparisons.overview(_scope(request), given if given in LANGUAGES else "en")

    def compare_csv(self, request: Request) -> Response:
        text = self.comparisons.csv(_scope(request), request.query_params.get("c", ""))
        return _download(text, "comparison.csv")

    def curves(self, request: Request) -> Any:
        return {"lines": self.comparisons.lines(_scope(request), *_curve(request), weight=_weight(request))}

    def curves_csv(self, request: Request) -> Response:
        return _download(self.comparisons.lines_csv(_scope(request), *_curve(request)), "curves.csv")

    def claims(self, request: Request) -> Any:
        return self.judge(self.comparisons.loaded("")) if self.judge else []


def _routes(pages: _Pages) -> list[Route]:
    asked = {
        "/api/runs": pages.runs,
        "/api/run/{run}": pages.run,
        "/api/run/{run}/curves": pages.run_curves,
        "/api/run/{run}/log": pages.run_log,
        "/api/compare": pages.compare,
        "/api/compare.csv": pages.compare_csv,
        "/api/curves": pages.curves,
        "/api/curves.csv": pages.curves_csv,
        "/api/claims": pages.claims,
    }
    found = [Route(path, _answering(answer)) for path, answer in asked.items()]
    return [*found, Route("/plotly.min.js", _plotly), Route("/", _static), Route("/static/{name}", _static)]


def _answering(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An address that answers in JSON, also about what a user can mend."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await run_in_threadpool(answer, request)
        except KeyError:
            return _json({"error": "there is no such run or comparison any more"}, 404)
        except (OelmError, OSError) as error:
            return _json({"error": " ".join(str(error).split())}, 400)
        return found if isinstance(found, Response) else _json(found)

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(for_json(value), allow_nan=False), status, media_type="application/json")


def _download(text: str, name: str) -> Response:
    return Response(text, media_type="text/csv", headers={"Content-Disposition": f'attachment; filename="{name}"'})


async def _static(request: Request) -> Response:
    """Our own few files, by name; no other name opens anything."""
    name = request.path_params.get("name", "index.html")
    there = {file.name: file for file in files("oelm.dashboard").joinpath("static").iterdir() if file.is_file()}
    if name not in there:
        return PlainTextResponse("there is no such file", 404)
    kind = _KINDS.get(Path(name).suffix, "text/plain")
    return Response(there[name].read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


async def _plotly(request: Request) -> Response:
    """The charting library, as the installed package has it."""
    import importlib.util

    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        return PlainTextResponse("plotly is not installed; run: pip install 'oelm[dashboard]'", 404)
    file = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return FileResponse(file, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


def _scope(request: Request) -> str:
    return request.query_params.get("scope", "")


def _curve(request: Request) -> tuple[str, str, str]:
    """Comparison, metric (kind.name) and axis."""
    asked = request.query_params
    return asked.get("c", ""), asked.get("y", ""), asked.get("x", "step")


def _weight(request: Request) -> float:
    try:
        return min(0.99, max(0.0, number(float(request.query_params.get("smooth", "0"))) or 0.0))
    except ValueError:
        return 0.0
