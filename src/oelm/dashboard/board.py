"""All runs below some folders as rows, kept up to date: one scan serves every open page.

A scan happens when somebody asks and the last one is older than `FRESH_SECONDS` (of very many runs, `MOST_SECONDS`);
nobody watching costs nothing. A scan looks at the times of folders and reads again only what has changed.
"""

import hashlib
import os
import stat
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oelm.analysis.compare.results import in_words
from oelm.dashboard.plain import number, require_plain, short
from oelm.errors import OelmError
from oelm.runs import FINISHED, RUNNING, UNREADABLE, RunFolder, facts_of
from oelm.validation import whole_number

FRESH_SECONDS, MOST_SECONDS = 0.5, 1.0
SETTLED_SECONDS = 2.0
"""A folder changed less than this ago may change again within the same tick of the file system's clock."""
_TRACES = {"status.json", "result.json"}
"""Of a folder that was a run once: a missing config is a reason to be listed as broken, not to be overlooked."""
Row = dict[str, Any]


@dataclass
class _Known:
    folder: RunFolder
    seen: tuple[int, ...] | None = None
    config_seen: tuple[int, int] | None = None
    config_facts: Row = field(default_factory=dict)
    row: Row = field(default_factory=dict)
    version: int = 0


class Board:
    def __init__(self, roots: list[Path]) -> None:
        missing = [str(root) for root in roots if not root.is_dir()]
        if missing:
            raise OelmError(f"{', '.join(missing)} is not a folder; give folders with runs, or make some: oelm demo")
        self.roots = [root.resolve() for root in roots]
        self.results = 0  # changes whenever a run comes, goes or changes its state, or a finished one its result
        self._boot = uuid.uuid4().hex[:8]  # a page that outlives the server must not trust its old version
        self._version = 0
        self._known: dict[str, _Known] = {}
        self._gone: dict[str, int] = {}
        self._listings: dict[str, tuple[int, bool, list[str]]] = {}
        self._gaps: Mapping[Path, Row] = {}
        self._next = 0.0
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Scan, unless that was just done. Whoever comes meanwhile waits for the scan that is under way."""
        with self._lock:
            if time.monotonic() >= self._next:
                started = time.thread_time()
                self._scan()
                work = time.thread_time() - started  # never more than one part in fifty of a processor
                self._next = time.monotonic() + min(max(FRESH_SECONDS, 50 * work), MOST_SECONDS)

    def changes(self, since: str) -> dict[str, Any]:
        """Rows that are new or different since a version, and the runs that are gone."""
        with self._lock:
            boot, _, known = since.partition(".")
            after = (whole_number(known) or 0) if boot == self._boot else 0
            return {
                "version": f"{self._boot}.{self._version}",
                "results": self.results,
                "whole": after == 0,
                "rows": [known.row for known in self._known.values() if known.version > after],
                "gone": [run for run, version in self._gone.items() if version > after],
                "roots": [str(root) for root in self.roots],
            }

    def folder(self, run: str) -> RunFolder:
        """The folder of a run by its id: no id leads anywhere else."""
        folder = self._known[run].folder
        require_plain(folder)
        return folder

    def row(self, run: str) -> Row:
        return self._known[run].row

    def folders(self) -> dict[str, RunFolder]:
        """All that can be read, by id."""
        with self._lock:
            return {run: known.folder for run, known in self._known.items() if known.row["state"] != UNREADABLE}

    def set_gaps(self, gaps: Mapping[Path, Row]) -> None:
        """Beside every run its gap to its baseline, as the comparison has it."""
        with self._lock:
            self._gaps = gaps
            for known in self._known.values():
                self._put(known, {**known.row, "gap": gaps.get(known.folder.path)})

    def _scan(self) -> None:
        found: dict[str, _Known] = {}
        for root in self.roots:
            for path, changed in self._walk(str(root)):
                run = run_id(path)
                known = found[run] = self._known.get(run) or _Known(RunFolder(path))
                self._look(run, known, root, changed)
        for run in self._known.keys() - found.keys():
            self._version += 1
            self._gone[run] = self._version
            self.results += 1
        for run in found:
            self._gone.pop(run, None)
        self._known = found

    def _walk(self, root: str) -> Iterator[tuple[str, int]]:
        """Folders with traces of a run and when they changed. Links are not followed, hidden folders not entered."""
        waiting, visited = [root], {}
        while waiting:
            path = waiting.pop()
            try:
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                listing = self._listings.get(path)
                if listing is None or listing[0] != status.st_mtime_ns:
                    listing = (status.st_mtime_ns, *_list(path))
            except OSError:  # gone meanwhile, or not for us
                continue
            if time.time_ns() - status.st_mtime_ns > SETTLED_SECONDS * 1e9:
                visited[path] = listing
            if listing[1]:
                yield path, status.st_mtime_ns
            waiting += reversed(listing[2])
        kept = {path: known for path, known in self._listings.items() if not (path + os.sep).startswith(root + os.sep)}
        self._listings = {**kept, **visited}

    def _look(self, run: str, known: _Known, root: Path, changed: int) -> None:
        seen = (changed, *times(known.folder.status_file))
        settled = time.time_ns() - max(seen[:2]) > SETTLED_SECONDS * 1e9
        if seen == known.seen and known.row["state"] != RUNNING:
            return
        known.seen = seen if settled else None
        was = known.row.get("state")
        row = {"id": run, **self._facts(known, root), "gap": self._gaps.get(known.folder.path)}
        if row != known.row and (was != row["state"] or was == FINISHED):
            self.results += 1
        self._put(known, row)

    def _put(self, known: _Known, row: Row) -> None:
        if row != known.row:
            self._version += 1
            known.row, known.version = row, self._version

    def _facts(self, known: _Known, root: Path) -> Row:
        folder = known.folder
        above = folder.path.relative_to(root).parts[:-1]
        if not above or len(self.roots) > 1:
            above = (root.name, *above)
        names = {"name": folder.name, "experiment": "/".join(above)}
        try:
            require_plain(folder)
            if known.config_seen != times(folder.config_file):
                known.config_facts = _config_facts(RunFolder.open(folder.path).config())
                known.config_seen = times(folder.config_file)
            facts = facts_of(folder)
            if facts["state"] == UNREADABLE:
                raise OelmError(facts["error"])
            return {**names, **known.config_facts, **_status_facts(facts)}
        except Exception as error:  # whatever is wrong with a folder is its row's business, never the page's
            known.config_seen = None
            return {**names, "state": UNREADABLE, "error": short(in_words(error), 400)}


def _config_facts(config: dict[str, Any]) -> Row:
    method, model, training = config.get("method"), config.get("model") or {}, config.get("training") or {}
    path = (config.get("data") or {}).get("path")
    return {
        "method": short((method.get("name") if isinstance(method, dict) else method) or "baseline"),
        "dataset": short(Path(str(path)).name) if path else None,
        "model": short(model.get("name") or model.get("size")),
        "seed": number(config.get("seed", 0)),
        "max_steps": number(training.get("max_steps")),
    }


def _status_facts(facts: dict[str, Any]) -> Row:
    metric = next((name for name in ("perplexity", "accuracy") if number(facts[name]) is not None), None)
    planned = number(facts["max_steps"])
    return {
        "state": short(facts["state"]),
        "step": number(facts["step"]) or 0,
        **({"max_steps": planned} if planned else {}),
        "loss": number(facts["loss"]),
        "metric": metric,
        "score": number(facts[metric]) if metric else None,
        "speed": number(facts["tokens_per_second"]),
        "eta": number(facts["eta_seconds"]),
        "device": short(facts["device"]),
        "heartbeat": number(facts["heartbeat"]),
        "error": short(facts["error"], 400),
    }


def _list(path: str) -> tuple[bool, list[str]]:
    """Whether a folder is, or was, a run, and where to look further: not in a run."""
    with os.scandir(path) as entries:
        found = list(entries)
    names = {entry.name for entry in found}
    if "config.yaml" in names:
        return True, []
    inner = (e for e in found if e.is_dir(follow_symlinks=False) and e.name[0] != "." and e.name != "checkpoints")
    return not names.isdisjoint(_TRACES), sorted(entry.path for entry in inner)


def times(file: Path) -> tuple[int, int]:
    """When a file was changed, and its size; zeros if it is not there."""
    try:
        status = os.lstat(file)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def run_id(path: str) -> str:
    """Says nothing of the path, and is the same tomorrow, so that an address can be kept."""
    return hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=6).hexdigest()
