"""Progress bars on stderr, silent where nobody watches."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from oelm.cli.console import command_console
from oelm.errors import printable
from oelm.runs import FINISHED
from oelm.training.environment import usable_cores

if TYPE_CHECKING:
    from oelm.experiments.runner import Job

_SECONDS_BETWEEN_LINES = 15
_OTHER_LINES = 6
WIDE = 110
GOES_ON = "finished runs are kept, the others have saved themselves: the same command goes on"


@contextmanager
def training_progress(title: str, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A bar for one run, fed with the trainer's progress facts."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _line_by_line(title)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = command_console(stderr=True)
    wide = [BarColumn(20)] if console.width >= WIDE else []  # figures matter more than a bar: none may be cut off
    facts_of_it = TextColumn("{task.fields[facts]}", table_column=Column(overflow="fold"))
    with Progress(*wide, MofNCompleteColumn(), facts_of_it, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("", total=None, facts="starting")
        shown: dict[str, Any] = {}

        def update(facts: dict[str, Any]) -> None:
            if not shown:  # not before: what is refused is one line
                bar.console.print(printable(title), markup=False)
                if hint := busy(facts):
                    bar.console.print(hint)
            shown.update({key: value for key, value in facts.items() if value is not None})
            bar.update(task, completed=shown["step"], total=shown["max_steps"], facts=describe(shown))

        yield update


def _line_by_line(title: str) -> Callable[[dict[str, Any]], None]:
    """For a file or a pipe: a line whenever the trainer says something, which is at most every second."""
    begun = False

    def update(facts: dict[str, Any]) -> None:
        nonlocal begun
        if not begun:  # not before: what is refused is one line
            print(*filter(None, [printable(title), busy(facts)]), sep="\n", file=sys.stderr)
            begun = True
        if facts["step"] or facts["state"] != "running":
            print(f"step {facts['step']} of {facts['max_steps']}: {describe(facts)}", file=sys.stderr, flush=True)

    return update


def busy(facts: dict[str, Any]) -> str | None:
    """A hint, where others want the cores as well: threads then wait for each other longer than they work."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 1
    if facts.get("device") != "cpu" or threads == 1 or load <= usable_cores():
        return None
    return f"this machine is busy (load {load:.1f}, {usable_cores()} cores): --threads 1 may be several times faster"


@contextmanager
def said_aloud(verbose: bool) -> Iterator[None]:
    """With -v, what the run writes to its log is said on stderr as well."""
    handler = logging.StreamHandler(sys.stderr)
    if verbose:
        logging.getLogger("oelm").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("oelm").removeHandler(handler)


@contextmanager
def counting_progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """For work that is counted: what is being done, how many of how many. Elsewhere than on a terminal, a few lines."""
    if quiet:
        yield lambda what, done, total: None
        return
    console = command_console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda what, done, total: status.update(f"{what} {done} of {total}" if total else what)
        return
    said, when = "", 0.0

    def say(what: str, done: int, total: int) -> None:
        """A line for everything new, and one every few seconds while it goes on."""
        nonlocal said, when
        if what != said or time.monotonic() - when >= _SECONDS_BETWEEN_LINES or done >= total:
            said, when = what, time.monotonic()
            console.print(f"{what} {done} of {total}" if total else what)

    yield say


def describe(facts: dict[str, Any]) -> str:
    """One line from a run's status: loss, perplexity or accuracy, speed, time left."""
    parts, whole = [], " (whole validation set)" if facts.get("state") == FINISHED else ""
    if facts.get("loss") is not None:
        parts.append(f"loss {facts['loss']:.3f}")
    if facts.get("perplexity") is not None:
        parts.append(f"validation ppl {facts['perplexity']:.2f}{whole}")
    if facts.get("accuracy") is not None:
        parts.append(f"accuracy {100 * facts['accuracy']:.1f} %{whole}")
    if facts.get("tokens_per_second"):
        parts.append(f"{facts['tokens_per_second']:,.0f} tok/s")
    if facts.get("eta_seconds"):
        parts.append(f"ETA {duration(facts['eta_seconds'])}")
    return ", ".join(parts)


class SuiteBoard:
    """All runs of a suite: a live table on a terminal; elsewhere a line per change and one every few seconds."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.live import Live

        self.console = command_console(stderr=True, quiet=quiet)
        self.live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal and not quiet else None
        self._states: dict[str, str] = {}
        self._last_line = time.monotonic()

    def __enter__(self) -> "SuiteBoard":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()
        if isinstance(error[1], KeyboardInterrupt):
            self.say(f"stopped; {GOES_ON}")

    def say(self, message: str) -> None:
        self.console.print(printable(message), markup=False)

    def show(self, jobs: "list[Job]") -> None:
        if self.live:
            self.live.update(self._table(jobs))
            return
        for name, job in zip(_names(jobs), jobs, strict=True):
            state = job.status.get("state", "queued")
            if self._states.get(name) != state and state != "queued":
                self._states[name] = state
                self.console.print(f"{name}: {state} {describe(job.status)}".strip(), markup=False)
        if time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            named = zip(_names(jobs), jobs, strict=True)
            running = [f"{name} {describe(job.status)}" for name, job in named if job.at_work]
            self.console.print(f"{overall(jobs)} | " + " | ".join(running), soft_wrap=True, markup=False)

    def _table(self, jobs: "list[Job]") -> Any:
        from rich.progress_bar import ProgressBar

        table = Table("run", "state", "progress", "now", box=None)
        room = self.console.height - _OTHER_LINES
        for name, job in zip(_names(jobs), jobs, strict=True):
            if len(jobs) > room and not (job.at_work or job.failed):
                continue  # a long queue does not fit: what is at work matters
            bar = ProgressBar(job.max_steps, job.status.get("step", 0), width=24)
            table.add_row(Text(name), job.status.get("state", ""), bar, describe(job.status))
        done, total = _steps(jobs)
        line = Table.grid(padding=(0, 1))
        line.add_row("overall", ProgressBar(total, done, width=50), overall(jobs))
        return Group(table, line)


def overall(jobs: "list[Job]") -> str:
    """How far the suite is and how long it will take, from the speed of the runs that are running."""
    done, total = _steps(jobs)
    ended = [job for job in jobs if job.done]
    stopped = sum(job.stopped for job in ended)
    text = f"{len(ended) - stopped} of {len(jobs)} runs, {100 * done / max(total, 1):.0f} %"
    text += f", {stopped} stopped" if stopped else ""
    running = [job for job in jobs if not job.done and job.status.get("eta_seconds")]
    if not running:
        return text
    per_step = [j.status["eta_seconds"] / max(1, j.status["max_steps"] - j.status["step"]) for j in running]
    return f"{text}, ETA {duration((total - done) * sum(per_step) / len(per_step) / len(running))}"


def duration(seconds: float | None) -> str:
    if seconds is None or abs(seconds) > 1e9:  # a clock that was never right
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _names(jobs: "list[Job]") -> list[str]:
    return below_common([str(job.folder.path) for job in jobs])


def below_common(paths: list[str]) -> list[str]:
    """Paths below the folder that all of them share.

    >>> below_common(["runs/mini/GPT-01/baseline-0", "runs/mini/GPT-02/oelm_freeze-0"])
    ['GPT-01/baseline-0', 'GPT-02/oelm_freeze-0']
    """
    above = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return [printable(os.path.relpath(path, above) if above else path) for path in paths]


def _steps(jobs: "list[Job]") -> tuple[int, int]:
    return sum(j.status.get("step", 0) for j in jobs), sum(j.max_steps for j in jobs)
