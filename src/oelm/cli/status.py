"""`oelm status`, `watch`, `logs` and `stop`: what runs are doing, seen through their folders. No torch."""

import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.cli.progress import below_common, duration
from oelm.errors import OelmError, printable
from oelm.files import has_open
from oelm.runs import RunFolder, facts_of, find_runs

Folders = Annotated[list[Path] | None, Argument(help="Run folders or folders above them. (default: runs)")]
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "dead": "red", "interrupted": "yellow"}


def status(paths: Folders = None, as_json: AsJson = False) -> None:
    """One line per run: state, step, loss, score, speed, time left. A dead process is shown as dead."""
    rows = [facts_of(folder) for folder in _runs(paths)]
    if as_json:
        return echo_json(rows)
    console = command_console()
    console.print(runs_table(rows))
    for row in rows:
        if row.get("error"):
            console.print(printable(f"{row['run']}: {row['error']}"), style="red", markup=False)
    console.print(_summary(rows))


def watch(
    paths: Folders = None,
    every: Annotated[float, Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, Option("--once", help="Look once and leave.")] = False,
) -> None:
    """A live table of the runs with their validation curves. Ctrl-C leaves; the runs go on."""
    from rich.live import Live

    console = command_console()
    if once or not console.is_terminal:
        return console.print(*_picture(paths).renderables)
    live = Live(_picture(paths), console=console, auto_refresh=False, screen=True)
    with contextlib.suppress(KeyboardInterrupt), live:
        while True:
            time.sleep(every)
            live.update(_picture(paths), refresh=True)


def logs(
    run: Annotated[Path, Argument(help="A run folder.")],
    follow: Annotated[bool, Option("--follow", "-f", help="Go on as the run does; Ctrl-C leaves.")] = False,
    lines: Annotated[int, Option("--lines", "-n", min=1, help="How many lines of the end.")] = 20,
) -> None:
    """Print the end of a run's log."""
    folder = RunFolder.open(run)
    position = _say_end(folder.log_file, lines)
    if follow:
        _follow(folder, position)
    # A run that was refused has no log; the reason is what it printed.
    if not folder.log_file.exists() and not _say_end(folder.output_file, lines):
        state = folder.status()["state"]
        raise OelmError(f"{run} has no log yet; it is {state}. Start it: oelm resume {run}, or wait with --follow")


def stop(
    runs: Annotated[list[Path] | None, Argument(help="Run folders.", metavar="RUN…")] = None,
    everything: Annotated[bool, Option("--all", help="All runs below --in, and the suites behind them.")] = False,
    within: Annotated[Path, Option("--in", help="Where --all looks for runs.")] = Path("runs"),
    wait: Annotated[float, Option(min=0, help="Seconds to wait until they have left.")] = 120.0,
) -> None:
    """Ask runs to write a checkpoint and leave. 'oelm resume', or the same 'oelm run', goes on later."""
    if bool(runs) == everything:
        raise OelmError("name the runs to stop, or give --all")
    if everything and not within.is_dir():
        raise OelmError(f"{within} is not a folder; say with --in where the runs lie")
    folders = find_runs(within) if everything else [RunFolder.open(run) for run in runs or []]
    suites: dict[RunFolder, int] = {}
    if everything:
        # A suite stops its own runs, and would start the next one in the place of one that we stop. Its runs must not
        # be asked by us as well: a second request means "at once", without a checkpoint.
        suites = {folder: claim["pid"] for folder in folders if (claim := _here(folder.claimant()))}
        locks = {pid: folder.claim_file for folder, pid in suites.items()}
        heard = {pid for pid, lock in locks.items() if _terminate(pid, "a suite", lock)}
        suites = {folder: pid for folder, pid in suites.items() if pid in heard}
    asked = [folder for folder in folders if folder in suites or _ask(folder, quiet=everything)]
    deadline = time.monotonic() + wait
    while any(folder.holder() for folder in asked) and time.monotonic() < deadline:
        time.sleep(0.2)
    for folder in asked:
        left = folder.holder() is None
        if left and folder.status()["state"] in ("queued", "finished"):
            continue  # it was in the queue of a suite, not at work
        typer.echo(f"{folder.path}: {folder.status()['state'] if left else 'asked to stop, still at work'}")
    if not asked:
        typer.echo(f"nothing is running in {within}" if everything else "nothing is running")


def _runs(paths: list[Path] | None) -> list[RunFolder]:
    given = paths or [Path("runs")]
    missing = [str(path) for path in given if not path.exists()]
    if missing and paths:
        raise OelmError(f"{', '.join(missing)} does not exist; give run folders or folders above them")
    found = [folder for path in given for folder in find_runs(path)]
    if not found:
        raise OelmError(f"no runs in {', '.join(map(str, given))}; start some with 'oelm run' or 'oelm train'")
    return found


def _summary(rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["state"] for row in rows)
    return f"{len(rows)} runs: {', '.join(f'{count} {state}' for state, count in counts.items())}"


def _picture(paths: list[Path] | None) -> Any:
    shown = [(facts_of(folder), sparkline(_losses(folder))) for folder in _runs(paths)]
    rows, curves = zip(*sorted(shown, key=lambda one: one[0]["state"] != "running"), strict=True)  # at work first
    return Group(runs_table(rows, curves), _summary([row for row, _ in shown]))


def _losses(folder: RunFolder) -> list[float]:
    """For a picture only: a damaged file has none, and the commands that compute with it say so."""
    try:
        return folder.losses()
    except OelmError:
        return []


def _say_end(file: Path, lines: int) -> int:
    """Print the end of a file, if there is one; its size."""
    content = file.read_bytes() if file.exists() else b""
    for line in content.decode(errors="replace").splitlines()[-lines:]:
        typer.echo(printable(line))
    return len(content)


def _follow(folder: RunFolder, position: int) -> None:
    while True:
        queued = folder.claimant() is not None and folder.status()["state"] == "queued"
        alive = queued or folder.holder() is not None
        if folder.log_file.exists():
            with folder.log_file.open("rb") as file:
                file.seek(position)
                fresh = file.read()
            position += len(fresh)
            for line in fresh.decode(errors="replace").splitlines(keepends=True):
                typer.echo(printable(line.rstrip("\r\n")), nl=line.endswith("\n"))
        if not alive:
            return
        time.sleep(0.5)


def _here(owner: dict[str, Any] | None) -> dict[str, Any] | None:
    return owner if owner and owner["host"] == socket.gethostname() else None


def _ask(folder: RunFolder, quiet: bool) -> bool:
    """Signal the process that holds the folder's lock, and no other; whether there was one."""
    holder = folder.holder()
    if holder is None:
        if not quiet:
            typer.echo(f"{folder.path}: not running ({folder.status()['state']})")
        return False
    if not _here(holder):
        typer.echo(f"{folder.path}: runs on {holder['host']}; stop it there", err=True)
        return False
    return _terminate(holder["pid"], str(folder.path), folder.lock_file)


def _terminate(pid: int, what: str, lock: Path) -> bool:
    """Signal a process that has this lock file open and is ours: what a file says may be anybody's number."""
    if pid <= 1 or has_open(pid, lock) is False:
        said = f"{what}: {lock.name} names process {pid}, which does not hold it; nothing was done"
        typer.echo(printable(said), err=True)
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:  # it has just left
        return True
    except PermissionError:
        typer.echo(f"{what}: process {pid} belongs to another user", err=True)
        return False
    return True


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """A curve in one line of text.

    >>> sparkline([4, 3, 2, 1])
    '█▆▃▁'
    """
    if not values:
        return ""
    last = len(values) - 1
    chosen = [values[round(i * last / (width - 1))] for i in range(width)] if len(values) > width else list(values)
    low, high = min(chosen), max(chosen)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in chosen)


def runs_table(rows: Sequence[dict[str, Any]], curves: Sequence[str] | None = None) -> Table:
    heads = ["run", "state", "step", "loss", "score", "tok/s", "ETA", "device", "heartbeat"]
    table = Table(*heads, *(["curve"] if curves else []), box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[2:7]:
        column.justify, column.no_wrap = "right", True
    names = below_common([row["run"] for row in rows])
    for name, row, curve in zip(names, rows, curves or [""] * len(rows), strict=True):
        state = Text(row["state"], style=_COLOURS.get(row["state"], ""))
        table.add_row(Text(printable(name)), state, *_cells(row), *([curve] if curves else []))
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    if row["state"] == "unreadable":
        return [""] * 7
    steps = f"{row['step']:,}" + (f"/{row['max_steps']:,}" if row["max_steps"] else "")
    score = f"{row['perplexity']:.3f}" if row["perplexity"] else f"{row['accuracy']:.2%}" if row["accuracy"] else ""
    speed = f"{row['tokens_per_second']:,.0f}" if row["tokens_per_second"] and row["state"] == "running" else ""
    silence = time.time() - row["heartbeat"] if row["heartbeat"] else 0.0
    silent = duration(silence) + " ago" if silence > 0 and row["state"] in ("running", "dead") else ""
    loss = f"{row['loss']:.4f}" if row["loss"] is not None else ""
    return [steps, loss, score, speed, duration(row["eta_seconds"]), printable(row["device"] or ""), silent]
