"""Progress bars on stderr, silent where nobody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def training_progress(title: str, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A bar for one run, fed with the trainer's progress facts."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, facts="starting")
        shown: dict[str, Any] = {}

        def update(facts: dict[str, Any]) -> None:
            shown.update({key: value for key, value in facts.items() if value is not None})
            bar.update(task, completed=shown["step"], total=shown["max_steps"], facts=describe(shown))

        yield update


def describe(facts: dict[str, Any]) -> str:
    """One line from a run's status: loss, perplexity, speed, time left."""
    parts = []
    if facts.get("loss") is not None:
        parts.append(f"loss {facts['loss']:.3f}")
    if facts.get("perplexity") is not None:
        parts.append(f"ppl {facts['perplexity']:.2f}")
    if facts.get("tokens_per_second"):
        parts.append(f"{facts['tokens_per_second']:,.0f} tok/s")
    if facts.get("eta_seconds"):
        minutes, seconds = divmod(round(facts["eta_seconds"]), 60)
        parts.append(f"ETA {minutes}:{seconds:02d}")
    return ", ".join(parts)
