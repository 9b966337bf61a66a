"""`oelm status`, `watch`, `logs` and `stop`: what runs are doing, seen through their folders. No torch."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from oelm.cli.board import runs_table, sparkline
from oelm.cli.console import command_console
from oelm.errors import OelmError, printable
from oelm.files import has_open
from oelm.runs import RunFolder, facts_of, find_runs

Folders = Annotated[list[Path] | None, typer.Argument(help="Run folders or folders above them. (default: runs)")]


def status(
    paths: Folders = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """One line per run: state, step, loss, score, speed, time left. A dead process is shown as dead."""
    rows = [facts_of(folder) for folder in _runs(paths)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = command_console()
    console.print(runs_table(rows))
    for row in rows:
        if row.get("error"):
            console.print(printable(f"{row['run']}: {row['error']}"), style="red", markup=False)
    console.print(_summary(rows))


def watch(
    paths: Folders = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
) -> None:
    """A live table of the runs with their validation curves. Ctrl-C leaves; the runs go on."""
    from rich.live import Live

    console = command_console()
    if once or not console.is_terminal:
        console.print(*_picture(paths).renderables)
        return
    with Live(_picture(paths), console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(every)
                live.update(_picture(paths), refresh=True)
        except KeyboardInterrupt:
            return


def logs(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the run does; Ctrl-C leaves.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines of the end.")] = 20,
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
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders.", metavar="RUN…")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs below --in, and the suites behind them.")] = False,
    within: Annotated[Path, typer.Option("--in", help="Where --all looks for runs.")] = Path("runs"),
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until they have left.")] = 120.0,
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
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(rows)} runs: {counts}"


def _picture(paths: list[Path] | None) -> Any:
    folders = _runs(paths)
    rows = [facts_of(folder) for folder in folders]
    curves = [
        "" if row["state"] == "unreadable" else sparkline(_losses(f)) for f, row in zip(folders, rows, strict=True)
    ]
    order = sorted(range(len(rows)), key=lambda i: rows[i]["state"] != "running")  # those at work on top
    return Group(runs_table([rows[i] for i in order], [curves[i] for i in order]), _summary(rows))


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
