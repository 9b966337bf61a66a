"""Reading folders that somebody else wrote: plain files of sane size within the given folders, and nothing else."""

import os
import stat
from pathlib import Path
from typing import Any

from oelm.analysis.compare.arms import is_number
from oelm.errors import OelmError
from oelm.runs import RunFolder

MEGABYTE = 2**20
_LIMITS = {
    "config.yaml": MEGABYTE,
    **dict.fromkeys(("status.json", ".lock", ".claim"), MEGABYTE),
    **dict.fromkeys(("result.json", "timing_stats.json", "environment.json"), 4 * MEGABYTE),
    "freeze.json": 32 * MEGABYTE,
    **dict.fromkeys(("metrics.jsonl", "clock.jsonl", "training.log", "output.txt", "samples.jsonl"), None),
}
"""What is read of a run folder, and the most that is taken for honest; what grows with the run has no limit."""


def require_plain(folder: RunFolder) -> None:
    """Refuse a run folder in which a file is a link, a pipe or huge: it could lead elsewhere, or never end."""
    if folder.path.resolve() != folder.path:
        raise OelmError(f"{folder.path} is a link to another folder; give that folder to 'oelm dashboard'")
    for name, limit in _LIMITS.items():
        require_plain_file(folder.path / name, limit)


def require_plain_file(file: Path, limit: int | None = None) -> None:
    """A file that is not there is plain, too."""
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise OelmError(f"{file.name} is a link or no plain file; put a copy of the file in its place")
    if limit is not None and found.st_size > limit:
        raise OelmError(f"{file.name} has {found.st_size:,} bytes, more than the {limit:,} that are read")


def number(value: Any) -> float | None:
    return value if is_number(value) else None


def short(value: Any, most: int = 200) -> str | None:
    """A text for a cell of a table."""
    text = None if value is None else str(value)
    return text if text is None or len(text) <= most else text[: most - 1] + "…"
