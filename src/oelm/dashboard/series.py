"""Metrics of runs as columns of numbers: read once, then only what was appended; sent thinned out.

A row of `metrics.jsonl` belongs to a kind ("train", "validation"); `clock.jsonl` has one kind of its own.
"""

import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from oelm.costs.flops import Matmul, attention_flops, count
from oelm.dashboard.plain import number, require_plain_file
from oelm.errors import OelmError
from oelm.records import lines_with, parsed
from oelm.runs import RunFolder

MOST_COLUMNS = 64  # of one kind of row; a file with more is none of ours
MOST_KEPT = 512  # files whose columns stay in memory: 10,000 rows take half a megabyte
POINTS = 800  # a line has at most about so many points; a screen has no more
AXES = ("step", "tokens", "flops", "seconds")
Columns = dict[str, np.ndarray]


class _Rows:
    """The rows of one kind in one file, read up to `offset`."""

    def __init__(self, file: Path, kind: str) -> None:
        self.file, self.kind, self.lock = file, kind, threading.Lock()
        self._start_over((0, 0))

    def refresh(self) -> None:
        require_plain_file(self.file)
        try:
            status = os.stat(self.file)
        except FileNotFoundError:
            self._start_over((0, 0))
            return
        identity = (status.st_dev, status.st_ino)
        if identity != self.identity or status.st_size < self.offset:  # a resumed run writes its file anew
            self._start_over(identity)
        if status.st_size > self.offset:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                fresh = file.read(status.st_size - self.offset)
            whole = fresh[: fresh.rfind(b"\n") + 1]  # the last line may still be on its way
            self.offset += len(whole)
            self._append(_good(lines_with(whole, self.kind) if self.kind else whole, self.kind))

    def _start_over(self, identity: tuple[int, int]) -> None:
        self.identity, self.offset = identity, 0
        self.columns: Columns = {"step": np.empty(0)}

    def _append(self, rows: list[dict[str, Any]]) -> None:
        before = len(self.columns["step"])
        names = dict.fromkeys(name for row in rows for name in row)
        for name in [*self.columns, *(name for name in names if name not in self.columns)][:MOST_COLUMNS]:
            fresh = [row.get(name) for row in rows]
            if name in self.columns or any(number(value) is not None for value in fresh):
                column = self.columns.get(name, np.full(before, np.nan))
                self.columns[name] = np.append(column, [np.nan if number(v) is None else v for v in fresh])


def _good(lines: bytes, kind: str) -> list[dict[str, Any]]:
    """Rows of a kind that have a step. A line that is torn, though it is complete, is left out."""
    rows = (row for line in lines.splitlines() for row in parsed(line) if isinstance(row, dict))
    return [row for row in rows if number(row.get("step")) is not None and row.get("kind", "") == kind]


class Series:
    """The metrics of the runs that were asked for lately."""

    def __init__(self) -> None:
        self._rows = lru_cache(MOST_KEPT)(_Rows)

    def columns(self, file: Path, kind: str) -> Columns:
        """The columns of one kind, all as long as `step`; not a number where a row has none."""
        rows = self._rows(file, kind)
        with rows.lock:
            rows.refresh()
            return dict(rows.columns)

    def points(self, folder: RunFolder, kind: str, key: str, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, their places on an axis and the values of a metric; empty where the run has none."""
        columns = self.columns(folder.metrics_file, kind)
        there = np.isfinite(columns.get(key, np.empty(0)))
        places = self._places(folder, columns["step"][there], axis) if key in columns else None
        return (np.empty(0),) * 3 if places is None else (columns["step"][there], places, columns[key][there])

    def _places(self, folder: RunFolder, steps: np.ndarray, axis: str) -> np.ndarray | None:
        if axis not in AXES:
            raise OelmError(f"axis {axis[:40]!r} is unknown; known: {', '.join(AXES)}")
        if axis == "step":
            return steps
        if axis == "seconds":
            clock = self.columns(folder.clock_file, "")
            if "seconds" not in clock:
                return None
            return np.interp(steps, [0.0, *clock["step"]], [0.0, *clock["seconds"]])
        train = self.columns(folder.metrics_file, "train")
        if "tokens" not in train or not len(steps):
            return None
        per_step = train["tokens"][-1] / train["step"][-1]
        if axis == "tokens":
            return steps * per_step
        flops = flops_per_token(folder, per_step)
        return None if flops is None else steps * per_step * flops


def flops_per_token(folder: RunFolder, tokens_per_step: float) -> float | None:
    """Of a training step, as the run recorded it; else counted from its parameters. None for an encoder that recorded
    nothing: most of its parameters are embeddings, which are looked up, not multiplied."""
    if recorded := number((folder.result() or {}).get("flops_per_token")):
        return recorded
    report, config = folder.freeze_report() or {}, folder.config()
    training, model = config.get("training") or {}, config.get("model") or {}
    try:
        if isinstance(model, dict) and model.get("name"):
            return None
        total, frozen = report["total_parameters"], report["frozen_parameters"]
        width = max(site["shape"][1] for site in report["sites"] if site["role"] in ("query", "key"))
        layers = 1 + max(site["layer"] for site in report["sites"])
        length = tokens_per_step / training["batch_size"] / training.get("accumulation", 1)
        attention = layers * attention_flops(int(width), round(length), causal=True)
        weights = [Matmul("ffn", int(total - frozen)), Matmul("qk", int(frozen), trained=False)]
        return float(count(weights, attention).step)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Exponential moving average without the bias of its start.

    >>> smooth(np.array([2.0, 2.0, 2.0]), 0.9)
    array([2., 2., 2.])
    """
    if not 0 < weight < 1:
        return values
    out, past, mass = np.empty_like(values), 0.0, 0.0
    for i, value in enumerate(values):
        past, mass = weight * past + (1 - weight) * value, weight * mass + (1 - weight)
        out[i] = past / mass
    return out


def thin(values: np.ndarray, most: int = POINTS) -> np.ndarray:
    """Which points to send: all, or the lowest and highest of every stretch, so that no spike is lost.

    >>> spiky = np.zeros(10_000); spiky[5_000] = 1.0
    >>> kept = thin(spiky, 100)
    >>> len(kept) <= 102, 5_000 in kept
    (True, True)
    """
    if len(values) <= most:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), most // 2)
    ends = [stretch[[np.argmin(values[stretch]), np.argmax(values[stretch])]] for stretch in stretches]
    return np.unique(np.concatenate([[0], *ends, [len(values) - 1]]))
