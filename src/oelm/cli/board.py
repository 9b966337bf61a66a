"""Runs as rows of a table: what `oelm status` and `oelm watch` show. No torch."""

import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from oelm.cli.progress import below_common
from oelm.errors import printable

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "dead": "red", "interrupted": "yellow"}


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


def duration(seconds: float | None) -> str:
    if seconds is None or abs(seconds) > 1e9:  # a clock that was never right
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
    silence = time.time() - row["heartbeat"] if row["heartbeat"] else None
    silent = duration(silence) + " ago" if silence and row["state"] in ("running", "dead") else ""
    loss = f"{row['loss']:.4f}" if row["loss"] is not None else ""
    return [steps, loss, score, speed, duration(row["eta_seconds"]), printable(row["device"] or ""), silent]
