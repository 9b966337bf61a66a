"""From runs to comparisons: which runs are one arm, which arms are compared, which baseline is an arm's own.

An arm is compared with the baseline that has the same adapters and start, if it was trained alike; else with the
plain one, if that was; else with the one trained most alike. What still differs is remembered, except a learning rate
that both were free to choose: where the baseline and an arm were given the same rates, each may be judged at its own
best one.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.analysis.compare.arms import BASELINE, RATE_KEYS, Arm, Comparison, Note, Rates, Run, canonical
from oelm.analysis.compare.statistics import Metric, spread
from oelm.errors import printable
from oelm.freezing.methods import METHODS

RATE, LOWEST_RATE = RATE_KEYS
LENGTH_KEYS = ("training.max_steps", "training.warmup_steps", "training.epochs")
FAILED = math.nan  # the score of a learning rate at which no run came to its end: it was tried all the same
Family = dict[tuple[float, float], list[Run]]
"""Arms that differ in the learning rate alone, by highest and lowest rate; no runs where all broke down."""
Sweeps = Mapping[Path, Mapping[str, Rates]]


def group_into_comparisons(runs: list[Run], sweeps: Sweeps, failed: list[Run]) -> list[Comparison]:
    """Finished runs by data, model and metric, then by method and settings.

    `sweeps` are rates that were tried elsewhere before these runs, by method, for runs in the folder they belong to;
    `failed` are runs that broke down, which count as tried where a learning rate was to be found.
    """
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        comparison = groups.setdefault((*place_of(run), run.metric.name), {})
        comparison.setdefault(run.arm_key, []).append(run)
    broken = [(place_of(run), run) for run in failed]
    comparisons = [
        replace(comparison, model=f"{comparison.model}{length}")
        for key, group in groups.items()
        for length, arms, ladder in _by_length([sorted(a, key=lambda r: r.seed) for a in group.values()])
        for comparison in [_comparison(arms, ladder, sweeps, [run for place, run in broken if place == key[:2]])]
    ]
    return _named_apart(sorted(comparisons, key=lambda comparison: (comparison.dataset, comparison.model)))


def place_of(run: Run) -> tuple[str, str]:
    model = run.config.get("model")
    if isinstance(model, dict):
        model = {key: value for key, value in model.items() if value is not None}
    return run.data_key, canonical(model)


def _by_length(groups: list[list[Run]]) -> Iterator[tuple[str, list[list[Run]], list[list[Run]]]]:
    """Plain baselines of several lengths apart, others with theirs or the longest; the rest is a ladder (`times`)."""
    ladder = [runs for runs in groups if runs[0].method.name == BASELINE]
    lengths = sorted({_length(runs[0]) for runs in ladder})
    others = {_length(runs[0]) for runs in groups if runs[0].method.name != BASELINE}
    if len(lengths) < 2:
        yield "", groups, []
        return
    kept = [length for length in lengths if length in others] or (lengths[-1:] if others else lengths)
    for length in kept:
        also = {length} | (others - set(lengths) if length == kept[-1] else set())
        steps, epochs = length if len(kept) > 1 else (0, 0)
        words = (f", {steps:,} steps" if steps else "") + (f", {epochs:g} epochs" if epochs else "")
        yield words, [runs for runs in groups if _length(runs[0]) in also], ladder


def _length(run: Run) -> tuple[int, float]:
    return run.settings.get("training.max_steps") or 0, run.settings.get("training.epochs") or 0


def _named_apart(comparisons: list[Comparison]) -> list[Comparison]:
    """Comparisons that share both names although their data, metrics or models differ get a piece of what differs."""
    marks: list[Callable[[Comparison], str]] = [
        lambda comparison: comparison.runs[0].data_key[:6],
        lambda comparison: comparison.metric.name,
        lambda comparison: hashlib.sha256(place_of(comparison.runs[0])[1].encode()).hexdigest()[:6],
    ]
    for mark in marks:
        alike: dict[tuple[str, str], set[str]] = {}
        for c in comparisons:
            alike.setdefault((c.dataset, c.model), set()).add(mark(c))
        several = {names for names, found in alike.items() if len(found) > 1}
        comparisons = [
            replace(c, dataset=f"{c.dataset} {mark(c)}") if (c.dataset, c.model) in several else c for c in comparisons
        ]
    return comparisons


def _comparison(groups: list[list[Run]], ladder: list[list[Run]], sweeps: Sweeps, failed: list[Run]) -> Comparison:
    order = list(METHODS)
    groups.sort(key=lambda runs: order.index(runs[0].method.name) if runs[0].method.name in order else len(order))
    first, metric = groups[0][0], groups[0][0].metric
    data = first.config.get("data") or {}
    dataset = printable(str((first.result or {}).get("dataset") or Path(str(data.get("path"))).name))
    leading = _best_of_sweeps(groups, metric, failed)
    shown = [runs for runs, _ in leading]
    arms = [Arm(_label(runs, shown), runs, dataset, metric, rates=dict(sorted(r.items()))) for runs, r in leading]
    arms = _with_earlier_sweeps(arms, sweeps)
    compared = [_beside_its_baseline(arm, arms) for arm in arms]
    rungs = [Arm(f"{BASELINE}, {runs[0].step:,} steps", runs, dataset, metric) for runs in ladder]
    return Comparison(dataset, printable(_model_name(first)), metric, compared, rungs)


def _best_of_sweeps(groups: list[list[Run]], metric: Metric, failed: list[Run]) -> list[tuple[list[Run], Rates]]:
    """Of arms that differ in the learning rate alone, the one with most seeds, then the best score, then lowest rate.

    Only where a baseline and another arm were given the same rates; otherwise a rate is a setting like any other. What
    an arm reached at its other rates stands in its `rates`: no other arm is compared with it there.
    """
    families: dict[str, Family] = {}
    for runs in groups:
        key, rate = _family_key(runs[0]), _rate(runs[0])
        known = rate in families.get(key, {})  # a lowest rate of 0 and one that is not said are two arms
        families.setdefault(runs[0].arm_key if known else key, {})[rate] = runs
    for run in failed:
        if family := families.get(_family_key(run)):
            family.setdefault(_rate(run), [])
    swept = [
        (family.keys(), next(iter(family.values()))[0].method.name == BASELINE)
        for family in families.values()
        if len({highest for highest, _ in family}) == len(family) > 1
    ]
    leading: list[tuple[list[Run], Rates]] = []
    for family in families.values():
        finished = [runs for runs in family.values() if runs]
        if not all((family.keys(), of_baseline) in swept for of_baseline in (True, False)):
            leading += [(runs, {}) for runs in finished]
            continue
        scores = _scores(family, metric)
        finished.sort(key=lambda runs: _rate(runs[0]))
        best = max(finished, key=lambda runs: (len(runs), -metric.sign * scores[_rate(runs[0])[0]]))
        leading.append((best, scores))
    return leading


def _scores(family: Family, metric: Metric) -> Rates:
    """By highest rate, over the seeds that all finished rates have; over all seeds if there is none."""
    common = set.intersection(*({run.seed for run in runs} for runs in family.values() if runs))
    found = {}
    for (highest, _), runs in family.items():
        values = [run.final[metric.key] for run in runs if not common or run.seed in common]
        found[highest] = spread(values).mean if values else FAILED
    return found


def _family_key(run: Run) -> str:
    return canonical([run.method_key, {k: v for k, v in run.settings.items() if k not in RATE_KEYS}])


def _rate(run: Run) -> tuple[float, float]:
    return run.settings.get(RATE) or 0.0, run.settings.get(LOWEST_RATE) or 0.0


def _with_earlier_sweeps(arms: list[Arm], sweeps: Sweeps) -> list[Arm]:
    """Arms with the rates that were tried before, where those are the baseline's as well."""

    def tried(arm: Arm) -> Rates:
        return dict(sorted(sweeps.get(arm.runs[0].folder.path.resolve().parent, {}).get(arm.method, {}).items()))

    offered = [set(tried(arm)) for arm in arms if arm.is_baseline and tried(arm)]
    return [replace(arm, rates=tried(arm)) if not arm.rates and set(tried(arm)) in offered else arm for arm in arms]


def _beside_its_baseline(arm: Arm, arms: list[Arm]) -> Arm:
    """The baseline with the same equipment, else the plain one, trained alike; what still differs is remembered."""
    if arm.is_baseline:
        return arm
    equal = [o for o in arms if o.made.is_trained and o.made.equipment == arm.made.equipment]
    ranked = [(0, other) for other in equal if not arm.made.is_trained]
    ranked += [(1, other) for other in arms if other.is_baseline]
    if not ranked:
        return arm
    apart = [(len(differences(arm, other)), rank, other) for rank, other in ranked]
    _, _, nearest = min(apart, key=lambda found: (found[0] > 0, found[1], found[0]))
    return replace(arm, baseline=_beside_its_baseline(nearest, arms), differences=differences(arm, nearest))


def differences(arm: Arm, other: Arm) -> list[Note]:
    """The settings in which two arms differ, but for learning rates that are each arm's best of the same."""
    keys = dict.fromkeys([*arm.settings, *other.settings])
    if len(arm.rates) > 1 and arm.rates.keys() == other.rates.keys() and arm.at_best_rate and other.at_best_rate:
        keys = {key: None for key in keys if key not in RATE_KEYS}
    return [
        Note("different_settings", {"arm": arm.label, "key": key, "value": a, "baseline": other.label, "other": b})
        for key in keys
        if (a := arm.settings.get(key)) != (b := other.settings.get(key))
    ]


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    """The method's name, and what tells the arm from other arms of that method."""
    name = runs[0].method.name
    others = [group[0] for group in groups if group[0].method.name == name]
    keys = dict.fromkeys(key for run in others for key in run.settings)
    told = [k for k in keys if len({canonical(run.settings.get(k)) for run in others}) > 1]
    # Everything derived from another key (min_lr from max_lr) would only repeat it.
    several = {canonical(run.settings.get(RATE)) for run in others}
    if len(several) == len({canonical([run.settings.get(key) for key in RATE_KEYS]) for run in others}):
        told = [k for k in told if not (k == LOWEST_RATE and RATE in told)]
    parts = [f"{k.rpartition('.')[2]}={runs[0].settings.get(k)}" for k in told]
    methods = list(dict.fromkeys(run.method_key for run in others))
    if len(methods) > 1:
        parts.append(f"#{1 + methods.index(runs[0].method_key)}")
    return printable(f"{name} ({', '.join(parts)})" if parts else name)


def _model_name(run: Run) -> str:
    """A size or an encoder by its name; a shape of one's own in few words: GPT 128×4, 4 heads, context 128."""
    model: Any = run.config.get("model") or {}
    if not isinstance(model, dict):
        return str(model)
    stock = (run.result or {}).get("model_name") or Path(str(model.get("name") or "?")).name
    size, changes = str(model.get("size") or stock), dict(model.get("overrides") or {})
    if {"d_model", "num_layers", "num_heads", "d_ff", "max_seq_len"} <= changes.keys():
        width, layers, heads, length = (changes.pop(k) for k in ("d_model", "num_layers", "num_heads", "max_seq_len"))
        size = f"GPT {width}×{layers}, {heads} heads, context {length}"
        if changes["d_ff"] == 4 * width:
            del changes["d_ff"]
    return ", ".join([size, *(f"{k} {v}" for k, v in changes.items())])
