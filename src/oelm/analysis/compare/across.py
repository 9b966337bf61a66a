"""What was measured of several models as one row per arm: means over its seeds, with their intervals."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from oelm.analysis.compare.arms import Run
from oelm.analysis.compare.results import read_run
from oelm.analysis.compare.statistics import paired_t, spread
from oelm.runs import RunFolder


class Measured(NamedTuple):
    name: str
    run: RunFolder | None
    values: dict[str, float]


def across(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but the seed are one arm; any other model is an arm of its own."""
    arms: dict[str, tuple[str, list[Measured]]] = {}
    for one in measured:
        run = read_run(one.run) if one.run is not None else None
        key, label = (run.arm_key, run.method.name) if isinstance(run, Run) else (one.name, one.name)
        arms.setdefault(key, (label, []))[1].append(one)
    labels = [label for label, _ in arms.values()]
    return [
        {
            "arm": label if labels.count(label) == 1 else f"{label} ({members[0].name})",
            "runs": [one.name for one in members],
            "values": {name: _figure([one.values[name] for one in members]) for name in _common(members)},
        }
        for label, members in arms.values()
    ]


def shown(figure: dict[str, Any] | None, percent: bool = False) -> str:
    """A cell: the mean, and its interval where there are seeds for one."""
    if figure is None:
        return "–"
    scale, form = (100, ".1f") if percent else (1, ".3g")
    ends = figure["interval"]
    between = f" [{ends['low'] * scale:{form}}, {ends['high'] * scale:{form}}]" if ends else ""
    return f"{figure['mean'] * scale:{form}}{' %' if percent else ''}{between}"


def _common(members: list[Measured]) -> list[str]:
    return [name for name in members[0].values if all(name in one.values for one in members)]


def _figure(values: list[float]) -> dict[str, Any]:
    interval = paired_t(values)
    return {**asdict(spread(values)), "interval": None if interval is None else asdict(interval)}
