"""Compare: the comparisons, tables and sentences of `oelm report` over the runs of the board, and curves to draw.

A *scope* says which runs: "" is all, "in:FOLDER" those of an experiment, "runs:ID,ID" some of them.
"""

import csv
import hashlib
import io
import threading
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import Comparison, Run
from oelm.analysis.compare.record import ArmRecord, Opponent, gap_of
from oelm.analysis.compare.results import BESIDE, Loaded, Skipped, gather, read_run
from oelm.analysis.compare.statistics import METRICS, paired_t
from oelm.analysis.report.rendering import Table
from oelm.analysis.report.tables import summary_table
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import data_line, notes, verdict_lines
from oelm.dashboard.board import Board, Row, run_id, times
from oelm.dashboard.plain import MEGABYTE, require_plain_file
from oelm.dashboard.run_page import line
from oelm.dashboard.series import Series, smooth
from oelm.errors import OelmError
from oelm.runs import RunFolder

MOST_SCOPES = 32
_FACTS = ("loss", "bits_per_byte", "training_seconds", "median_step_time", "peak_memory_bytes")
"""Numbers of results that every seed has its own of: their mean has an interval."""
_COSTS = ("flops_ratio", "parameters", "trainable", "frozen", "checkpoint_bytes", "optimizer_bytes")


class Comparisons:
    def __init__(self, board: Board, series: Series) -> None:
        self.board, self.series = board, series
        self._read: dict[Path, tuple[Any, Run | Skipped]] = {}
        self._loaded: dict[str, Loaded] = {}  # by scope
        self._loaded_of = -1
        self._lock = threading.RLock()
        self._gaps_of = -1

    def loaded(self, scope: str) -> Loaded:
        """What there is to compare in a scope."""
        with self._lock:
            if self._loaded_of != self.board.results or len(self._loaded) > MOST_SCOPES:
                self._loaded, self._loaded_of = {}, self.board.results
            if scope not in self._loaded:
                self._loaded[scope] = self._load(scope)
            return self._loaded[scope]

    def update_gaps(self) -> None:
        """Give the board the gap of every run to its baseline; by a thread of its own, since there may be many runs."""
        if self._gaps_of != self.board.results:
            self._gaps_of = self.board.results
            threading.Thread(target=self._update_gaps, daemon=True).start()

    def overview(self, scope: str, lang: str) -> dict[str, Any]:
        """Every comparison with what a report on it says: its verdict in words, its table and its notes."""
        with self._lock:
            loaded, t = self.loaded(scope), texts(lang)
            found = []
            for name, comparison in _by_id(loaded).items():
                part = loaded.only(comparison)
                lines, noted = [*verdict_lines(part, t), data_line(comparison, t)], [t.note(n) for n in notes(part)]
                said = {"id": name, "lines": lines, "notes": noted}
                found.append({**said, **_shown(summary_table(part, lang)), **_describe(comparison)})
            return {"comparisons": found}

    def csv(self, scope: str, chosen: str) -> str:
        """The records behind the table, as `oelm compare --csv` writes them."""
        with self._lock:
            return summary_table(self._part(scope, chosen)).csv()

    def lines(self, scope: str, chosen: str, metric: str, axis: str, weight: float) -> list[dict[str, Any]]:
        """A line per arm, the mean of its seeds with their range; and one for every run that is not finished."""
        return [
            {**facts, "metric": metric, **line(places, *(smooth(values, weight) for values in columns))}
            for facts, places, columns in self._arms(scope, chosen, metric, axis)
        ]

    def lines_csv(self, scope: str, chosen: str, metric: str, axis: str) -> str:
        """All points of those lines."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["arm", "runs", axis, metric, "lowest", "highest"])
        for facts, places, columns in self._arms(scope, chosen, metric, axis):
            label = f"'{facts['label']}" if facts["label"][:1] in ("=", "+", "-", "@") else facts["label"]  # no formula
            writer.writerows([label, len(facts["runs"]), *row] for row in zip(places, *columns, strict=True))
        return out.getvalue()

    def _arms(
        self, scope: str, chosen: str, metric: str, axis: str
    ) -> Iterator[tuple[dict[str, Any], np.ndarray, tuple[np.ndarray, ...]]]:
        kind, _, key = metric.partition(".")
        if kind not in ("train", "validation") or not key:
            raise OelmError(f"metric {metric[:40]!r} is unknown; known are train.NAME and validation.NAME")
        part = self._part(scope, chosen) if chosen else self.loaded(scope)
        arms = [(arm.label, arm.runs, False) for arm in part.arms] if chosen else []
        waiting = [(run.name, [run], True) for run in part.incomplete]
        for label, runs, open_ in [*arms, *waiting]:
            points = self._mean([run.folder for run in runs], kind, key, axis)
            if points is not None:
                yield {"label": label, "runs": _ids(runs), "open": open_}, *points

    def _mean(
        self, folders: list[RunFolder], kind: str, key: str, axis: str
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]] | None:
        """Places, and mean, lowest and highest value there, over the steps that all runs have."""
        scale = next((metric.scale for metric in METRICS if metric.key == key), 1.0)
        drawn = [points for f in folders if len((points := self.series.points(f, kind, key, axis))[0])]
        steps = reduce(np.intersect1d, (points[0] for points in drawn)) if drawn else ()
        if not len(steps):
            return None
        kept = [np.searchsorted(own, steps) for own, _, _ in drawn]
        places = np.mean([points[1][i] for points, i in zip(drawn, kept, strict=True)], axis=0)
        values = scale * np.array([points[2][i] for points, i in zip(drawn, kept, strict=True)])
        return places, (values.mean(axis=0), values.min(axis=0), values.max(axis=0))

    def _part(self, scope: str, chosen: str) -> Loaded:
        """One comparison alone."""
        with self._lock:
            loaded = self.loaded(scope)
            return loaded.only(_by_id(loaded)[chosen])

    def _load(self, scope: str) -> Loaded:
        folders = self.board.folders()
        kind, _, names = scope.partition(":")
        if kind == "in":
            under = names + "/"
            folders = {i: f for i, f in folders.items() if f"{self.board.row(i)['experiment']}/".startswith(under)}
        elif kind == "runs":
            wanted = set(names.split(","))
            folders = {i: f for i, f in folders.items() if i in wanted}
        elif scope:
            raise OelmError(f"scope {scope[:40]!r} is unknown; known are in:FOLDER and runs:ID,ID")
        else:
            there = {folder.path for folder in folders.values()}
            self._read = {path: known for path, known in self._read.items() if path in there}
        read = [self._run(folder) for folder in folders.values()]
        beside = dict.fromkeys(folder.path.parent for folder in folders.values() if self._may_read(folder.path.parent))
        return gather(read, beside)

    def _run(self, folder: RunFolder) -> Run | Skipped:
        """Read again only what has changed; an unfinished run is always read: its step moves on."""
        seen = tuple(times(file) for file in (folder.config_file, folder.result_file, folder.metrics_file))
        known = self._read.get(folder.path)
        if known is None or known[0] != seen or not isinstance(known[1], Run) or known[1].result is None:
            known = self._read[folder.path] = seen, read_run(folder)
        return known[1]

    def _may_read(self, parent: Path) -> bool:
        """Whether what lies beside runs is ours to read: within the given folders, and plain files."""
        if not any(parent.is_relative_to(root) for root in self.board.roots):
            return False
        try:
            for name in BESIDE:
                require_plain_file(parent / name, 16 * MEGABYTE)
        except OelmError:
            return False
        return True

    def _update_gaps(self) -> None:
        gaps = {}
        for arm in self.loaded("").arms:
            gap = gap_of(arm)
            for run in arm.runs:
                value = gap.by_seed.get(run.seed) if gap else None
                if value is not None:
                    worse = (value > 0) != arm.metric.higher_is_better
                    gaps[run.folder.path] = {"value": value, "points": arm.metric.gap_in_points, "worse": worse}
        self.board.set_gaps(gaps)


def _describe(comparison: Comparison) -> dict[str, Any]:
    curves = {key for run in comparison.runs[:3] for row in run.validations[:1] for key in row}
    return {
        "dataset": comparison.dataset,
        "model": comparison.model,
        "metric": comparison.metric.key,
        "higher_is_better": comparison.metric.higher_is_better,
        "curves": sorted(curves - {"kind", "step", "tokens", "share"}),
        "arms": [
            {
                "label": record.label,
                "about": record.method,
                "runs": _ids(record.arm.runs),
                "is_baseline": record.is_baseline,
                "verdict": record.verdict,
                "shown": comparison.metric.show(record.score),
                "facts": _facts(record),
            }
            for record in comparison.records
        ],
    }


def _facts(record: ArmRecord) -> dict[str, Any]:
    """What can be drawn against each other: a value and, where there is one, its interval."""
    arm, costs, time = record.arm, record.costs, record.time
    found = {
        "score": _mean([record.metric.scale * score for score in record.scores.values()]),
        "gap": _fact(0.0) if record.is_baseline else _gap(record.plain),
        "equal": _gap(record.equal),
        "time": _fact(time.ratio, time) if time else None,
        **{key: _fact(float(value)) for key in _COSTS if (value := getattr(costs, key)) is not None},
        **{key: _mean(arm.facts(key)) for key in _FACTS},
    }
    return {key: fact for key, fact in found.items() if fact}


def _gap(opponent: Opponent | None) -> Row | None:
    return _fact(opponent.gap.value, opponent.gap.t if opponent.comparable else None) if opponent else None


def _mean(values: list[float]) -> Row | None:
    return _fact(float(np.mean(values)), paired_t(values)) if values else None


def _fact(value: float, interval: Any = None) -> Row:
    return {"value": value, "low": interval and interval.low, "high": interval and interval.high}


def _shown(table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    return {
        "header": table.header(),
        "rows": table.rows(folded=True),
        "right": [column.right for column in table.columns],
        "verdict_column": keys.index("verdict") if "verdict" in keys else -1,
    }


def _by_id(loaded: Loaded) -> dict[str, Comparison]:
    names = {f"{c.dataset}\n{c.model}\n{c.metric.name}": c for c in loaded.comparisons}
    return {hashlib.blake2b(name.encode(), digest_size=4).hexdigest(): c for name, c in names.items()}


def _ids(runs: list[Run]) -> list[str]:
    return [run_id(str(run.folder.path)) for run in runs]
