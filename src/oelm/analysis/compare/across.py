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
            "values": {
                name: _figure([one.values[name] for one in members if name in one.values]) for name in members[0].values
            },
        }
        for label, members in arms.values()
    ]


def arms_table(arms: list[dict[str, Any]], leave_out: str = "-") -> Any:
    """For a terminal: an arm per row and a value per column, but those whose name ends with `leave_out`."""
    from rich.table import Table

    names = list(dict.fromkeys(name for arm in arms for name in arm["values"] if not name.endswith(leave_out)))
    table = Table("arm", "runs", *names, box=None)
    for arm in arms:
        table.add_row(arm["arm"], str(len(arm["runs"])), *(_cell(arm["values"].get(name)) for name in names))
    return table


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    ends = figure["interval"]
    between = f" [{ends['low']:.3g}, {ends['high']:.3g}]" if ends else ""
    return f"{figure['mean']:.4g}{between}"


def _figure(values: list[float]) -> dict[str, Any]:
    return {**asdict(spread(values)), "interval": (interval := paired_t(values)) and asdict(interval)}
