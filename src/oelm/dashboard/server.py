"""The web server: `build(folders)` is the application, `serve(folders)` runs it until Ctrl-C."""

import json
import os
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from oelm.analysis.compare.record import for_json
from oelm.analysis.report.texts import LANGUAGES
from oelm.dashboard.board import Board
from oelm.dashboard.comparisons import Comparisons
from oelm.dashboard.plain import number
from oelm.dashboard.run_page import curves, details, log_end
from oelm.dashboard.security import Guard, require_safe
from oelm.dashboard.series import Series
from oelm.errors import OelmError
from oelm.validation import whole_number

_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
Judge = Callable[[Any], list[dict[str, Any]]]  # from loaded runs to the verdicts on the published claims


def build(
    folders: list[Path], judge: Judge | None = None, hosts: tuple[str, ...] = (), token: str | None = None
) -> Any:
    """The application over these folders."""
    board, series = Board(folders), Series()
    board.refresh()
    smaller = Middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)  # the way may be an ssh tunnel
    routes = [Route(path, _answering(answer)) for path, answer in _answers(board, series, judge).items()]
    routes += [Route("/plotly.min.js", _plotly), Route("/", _static), Route("/static/{name}", _static)]
    return Guard(Starlette(routes=routes, middleware=[smaller]), hosts, token)


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


class _Asked:
    """What a request asks for; what it leaves out is as usual."""

    def __init__(self, request: Request) -> None:
        given = request.query_params
        self.run = request.path_params.get("run", "")
        self.since, self.scope, self.axis = given.get("since", ""), given.get("scope", ""), given.get("x", "step")
        self.comparison, self.metric = given.get("c", ""), given.get("y", "")
        self.lang = given["lang"] if given.get("lang") in LANGUAGES else "en"
        self.start = whole_number(given.get("from", ""))
        try:
            self.weight = min(0.99, max(0.0, number(float(given.get("smooth", "0"))) or 0.0))
        except ValueError:
            self.weight = 0.0


def _answers(board: Board, series: Series, judge: Judge | None) -> dict[str, Callable[[_Asked], Any]]:
    """What each address answers."""
    comparisons = Comparisons(board, series)

    def runs(asked: _Asked) -> Any:
        board.refresh()
        comparisons.update_gaps()
        return board.changes(asked.since)

    def curves_of(asked: _Asked) -> tuple[str, str, str, str]:
        return asked.scope, asked.comparison, asked.metric, asked.axis

    return {
        "/api/runs": runs,
        "/api/run/{run}": lambda asked: {**details(board.folder(asked.run)), "row": board.row(asked.run)},
        "/api/run/{run}/curves": lambda asked: curves(board.folder(asked.run), series, asked.axis, asked.weight),
        "/api/run/{run}/log": lambda asked: log_end(board.folder(asked.run), asked.start),
        "/api/compare": lambda asked: comparisons.overview(asked.scope, asked.lang),
        "/api/compare.csv": lambda asked: _download(comparisons.csv(asked.scope, asked.comparison), "comparison.csv"),
        "/api/curves": lambda asked: {"lines": comparisons.lines(*curves_of(asked), asked.weight)},
        "/api/curves.csv": lambda asked: _download(comparisons.lines_csv(*curves_of(asked)), "curves.csv"),
        "/api/claims": lambda asked: judge(comparisons.loaded("")) if judge else [],
    }


def _answering(answer: Callable[[_Asked], Any]) -> Callable[[Request], Any]:
    """An address that answers in JSON, also about what a user can mend; a slow disk keeps nobody else waiting."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await run_in_threadpool(answer, _Asked(request))
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
    there = {file.name: file for file in (Path(__file__).parent / "static").iterdir() if file.is_file()}
    file = there.get(request.path_params.get("name", "index.html"))
    if file is None:
        return PlainTextResponse("there is no such file", 404)
    return FileResponse(file, media_type=_KINDS[file.suffix], headers={"Cache-Control": "no-cache"})


async def _plotly(request: Request) -> Response:
    """The charting library, as the installed package has it."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        return PlainTextResponse("plotly is not installed; run: pip install '.[dashboard]' in your clone", 404)
    file = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return FileResponse(file, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})
