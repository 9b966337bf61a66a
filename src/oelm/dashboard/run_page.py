"""Everything the page of one run shows. Each part is read by itself: a broken file takes away its part alone."""

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import flatten
from oelm.analysis.compare.record import for_json
from oelm.analysis.compare.results import in_words
from oelm.dashboard.plain import MEGABYTE, number, require_plain_file, short
from oelm.dashboard.series import Series, smooth, thin
from oelm.records import parsed
from oelm.runs import RunFolder

LOG_BYTES = 64 * 1024  # how much of the end of a log is sent at first
MOST_SAMPLES = 100
_SITE_KEYS = ["path", "role", "kind", "layer", "num_heads", "shape", "init", "frozen", "projection", "thaws"]


def details(folder: RunFolder) -> dict[str, Any]:
    """The parts by name, and beside them what is wrong with those that could not be read."""
    parts: dict[str, Callable[[RunFolder], Any]] = {
        "config": lambda folder: {
            "settings": flatten(folder.config()),
            "text": folder.config_file.read_text(errors="replace")[:LOG_BYTES],
        },
        "freeze": _freeze,
        "result": lambda folder: folder.result(),
        "timing": lambda folder: folder.timing(),
        "environment": lambda folder: flatten(folder.environment() or {}),
        "checkpoints": _checkpoints,
        "samples": _samples,
    }
    found: dict[str, Any] = {"path": str(folder.path), "problems": {}}
    for name, read in parts.items():
        try:
            found[name] = for_json(read(folder))
        except Exception as error:
            found[name], found["problems"][name] = None, short(in_words(error), 400)
    return found


def log_end(folder: RunFolder, start: int | None) -> dict[str, Any]:
    """The log from `start` on, else its end; of a run that was refused, what it printed."""
    file = folder.log_file if folder.log_file.exists() else folder.output_file
    require_plain_file(file)
    if not file.exists():
        return {"text": "", "end": 0, "from": 0}
    with file.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        first = start if start is not None and size - LOG_BYTES <= start <= size else max(0, size - LOG_BYTES)
        handle.seek(first)
        content = handle.read(LOG_BYTES)
    if first and first != start:  # begin with a whole line
        cut = content.find(b"\n") + 1
        first, content = first + cut, content[cut:]
    return {"text": content.decode(errors="replace"), "end": first + len(content), "from": first}


def curves(folder: RunFolder, series: Series, axis: str, weight: float) -> dict[str, Any]:
    """Every metric of a run over an axis, by kind and name."""
    drawn: dict[str, Any] = {}
    for kind in ("train", "validation"):
        columns = series.columns(folder.metrics_file, kind)
        for key in columns.keys() - {"step", "tokens", "share"}:
            _, places, values = series.points(folder, kind, key, axis)
            if len(values):
                drawn[f"{kind}.{short(key, 40)}"] = line(places, smooth(values, weight) if kind == "train" else values)
    return drawn


def line(places: np.ndarray, values: np.ndarray, *others: np.ndarray) -> dict[str, list[float]]:
    """Places and values, and whatever belongs to them, thinned out alike and in few digits."""
    kept = thin(values)
    named = zip(("x", "y", "low", "high"), (places, values, *others), strict=False)
    return {name: [float(f"{value:.6g}") for value in column[kept]] for name, column in named}


def _freeze(folder: RunFolder) -> dict[str, Any] | None:
    report = folder.freeze_report()
    if report is None:
        return None
    sites = []
    for site in report["sites"][:4096]:
        kept = {key: site.get(key) for key in _SITE_KEYS}
        adapters = site.get("adapters") or site.get("pieces") or []  # their name until version 0.1
        error = number(site.get("orthonormality_error"))
        sites.append({**kept, "adapters": adapters, "error": error, "hashed": len(site.get("hashes") or {})})
    totals = {key: number(report.get(f"{key}_parameters")) for key in ("total", "frozen", "trainable")}
    return {"summary": (report.get("method") or {}).get("summary"), "sites": sites, **totals}


def _checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    if not folder.checkpoints.is_dir() or folder.checkpoints.is_symlink():
        return []
    links = [link for name in ("best", "latest") if (link := folder.checkpoints / name).is_symlink()]
    found = []
    for path in folder.checkpoints.iterdir():
        if (step := re.fullmatch(r"step-(\d{1,12})", path.name)) and path.is_dir() and not path.is_symlink():
            marks = [link.name for link in links if link.readlink().name == path.name]
            size = sum(file.lstat().st_size for file in path.iterdir())
            found.append({"name": path.name, "step": int(step[1]), "bytes": size, "marks": marks})
    return sorted(found, key=lambda one: one["step"])


def _samples(folder: RunFolder) -> list[dict[str, Any]]:
    """Texts the model wrote on the way, last first: rows of `samples.jsonl`, if the run recorded any."""
    file = folder.samples_file
    if not file.is_file():
        return []
    require_plain_file(file, 64 * MEGABYTE)
    found = []
    for row in (row for line in file.read_bytes().splitlines()[-MOST_SAMPLES:] for row in parsed(line)):
        if isinstance(row, dict):
            prompt, text = short(row.get("prompt", ""), 2_000), short(row.get("text", ""), 8_000)
            found.append({"step": number(row.get("step")), "prompt": prompt, "text": text})
    return found[::-1]
