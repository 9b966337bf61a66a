"""From runs to studies: which runs are one arm, which arms stand beside each other, and which baseline is an arm's own.

An arm is compared with the baseline that has the same learned pieces, trained most alike. What still differs is
remembered, except a learning rate that both were free to choose: where the baseline and an arm were given the same
rates, each is judged at its own best one.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.analysis.arms import Arm, Run, Study, canonical
from oelm.analysis.statistics import Metric, spread
from oelm.analysis.texts import Note
from oelm.methods import METHODS
from oelm.modifiers import equal_baseline

RATE, LOWEST_RATE = "training.max_lr", "training.min_lr"
Rates = dict[float, float]
"""Score by learning rate."""


def group_into_studies(runs: list[Run], sweeps: Mapping[Path, Mapping[str, Rates]] | None = None) -> list[Study]:
    """Finished runs by data, model and metric, then by method and settings.

    `sweeps` are rates that were tried elsewhere before these runs, by method, for runs in the folder they belong to.
    """
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        study = groups.setdefault((run.data_key, canonical(run.config.get("model")), run.metric.name), {})
        study.setdefault(run.arm_key, []).append(run)
    studies = [
        _study([sorted(arm, key=lambda run: run.seed) for arm in arms.values()], sweeps or {})
        for arms in groups.values()
    ]
    return sorted(studies, key=lambda study: (study.dataset, study.model))


def _study(groups: list[list[Run]], sweeps: Mapping[Path, Mapping[str, Rates]]) -> Study:
    order = list(METHODS)
    groups.sort(key=lambda runs: order.index(runs[0].method["name"]) if runs[0].method["name"] in order else len(order))
    first, metric = groups[0][0], groups[0][0].metric
    data = first.config.get("data") or {}
    dataset = str((first.result or {}).get("dataset") or Path(str(data.get("path"))).name)
    leading = _best_of_sweeps(groups, metric)
    shown = [runs for runs, _ in leading]
    arms: list[Arm] = []
    for runs, rates in leading:
        name = runs[0].method["name"]
        tried = rates or sweeps.get(runs[0].folder.path.resolve().parent, {}).get(name, {})
        number = sum(arm.method == name for arm in arms)
        arms.append(Arm(_label(runs, shown), runs, dataset, metric, number=number, rates=dict(sorted(tried.items()))))
    compared = [_beside_its_baseline(arm, arms) for arm in arms]
    return Study(dataset, _model_name(first), metric, compared)


def _best_of_sweeps(groups: list[list[Run]], metric: Metric) -> list[tuple[list[Run], Rates]]:
    """Arms that differ in the learning rate alone become one: that with most seeds, then the best score.

    Only where a baseline and another arm were given the same rates; otherwise a rate is a setting like any other.
    """
    families: dict[str, list[list[Run]]] = {}
    for runs in groups:
        kept = {k: v for k, v in runs[0].settings.items() if k not in (RATE, LOWEST_RATE)}
        families.setdefault(canonical([runs[0].method, kept]), []).append(runs)
    equal = _equal_rates(list(families.values()))
    found: list[tuple[list[Run], Rates]] = []
    for family in families.values():
        if _rates(family) not in equal:
            found += [(runs, {}) for runs in family]
            continue
        rates = _scores(family, metric)
        better = 1 if metric.higher_is_better else -1
        best = max(family, key=lambda runs: (len(runs), better * rates[runs[0].settings[RATE]]))
        found.append((best, rates))
    return found


def _equal_rates(families: list[list[list[Run]]]) -> list[list[float]]:
    """The lists of rates that a baseline and at least one other family share."""
    swept = [family for family in families if len(set(_rates(family))) == len(family) > 1]
    baselines = [_rates(family) for family in swept if family[0][0].method["name"] == "baseline"]
    others = [_rates(family) for family in swept if family[0][0].method["name"] != "baseline"]
    return [rates for rates in baselines if rates in others]


def _rates(family: list[list[Run]]) -> list[float]:
    return sorted(runs[0].settings.get(RATE) or 0.0 for runs in family)


def _scores(family: list[list[Run]], metric: Metric) -> Rates:
    """By rate, over the seeds that all rates have; over all seeds if there is none."""
    common = set.intersection(*({run.seed for run in runs} for runs in family))
    return {
        runs[0].settings[RATE]: spread([run.final[metric.key] for run in runs if not common or run.seed in common]).mean
        for runs in family
    }


def _beside_its_baseline(arm: Arm, arms: list[Arm]) -> Arm:
    """The baseline with the same pieces, else the plain one, trained most alike; what still differs is remembered."""
    if arm.is_baseline:
        return arm
    equal = [other for other in arms if other.method == equal_baseline(arm.method) and other is not arm]
    baselines = equal or [other for other in arms if other.is_baseline]
    if not baselines:
        return arm
    nearest = min(baselines, key=lambda other: len(differences(arm, other)))
    return replace(arm, baseline=nearest, differences=differences(arm, nearest))


def differences(arm: Arm, other: Arm) -> list[Note]:
    """The settings in which two arms of a study differ, but for a learning rate that both were free to choose."""
    keys = dict.fromkeys([*arm.settings, *other.settings])
    if len(arm.rates) > 1 and arm.rates.keys() == other.rates.keys():
        keys = {key: None for key in keys if key not in (RATE, LOWEST_RATE)}
    return [
        Note("different_settings", {"arm": arm.label, "key": key, "value": a, "baseline": other.label, "other": b})
        for key in keys
        if (a := arm.settings.get(key)) != (b := other.settings.get(key))
    ]


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    """The method's name, and what tells the arm from other arms of that method."""
    name = runs[0].method["name"]
    others = [group[0] for group in groups if group[0].method["name"] == name]
    keys = dict.fromkeys(key for run in others for key in run.settings)
    told = [k for k in keys if len({canonical(run.settings.get(k)) for run in others}) > 1]
    # Everything derived from another key (min_lr from max_lr) would only repeat it.
    told = [k for k in told if not (k == LOWEST_RATE and RATE in told)]
    parts = [f"{k.rpartition('.')[2]}={runs[0].settings.get(k)}" for k in told]
    if not parts and len({canonical(run.method) for run in others}) > 1:
        parts = [f"#{1 + [group[0] for group in groups if group[0] in others].index(runs[0])}"]
    return f"{name} ({', '.join(parts)})" if parts else name


def _model_name(run: Run) -> str:
    """A size or an encoder by its name; a shape of one's own in few words: GPT 128×4, 4 heads, 128 tokens."""
    model: Any = run.config.get("model") or {}
    if not isinstance(model, dict):
        return str(model)
    encoder = Path(str(model.get("encoder") or "?")).name
    size, changes = str(model.get("size") or model.get("name") or encoder), dict(model.get("overrides") or {})
    if {"d_model", "num_layers", "num_heads", "d_ff", "max_seq_len"} <= changes.keys():
        width, layers, heads, length = (changes.pop(k) for k in ("d_model", "num_layers", "num_heads", "max_seq_len"))
        size = f"GPT {width}×{layers}, {heads} heads, {length} tokens"
        if changes["d_ff"] == 4 * width:
            del changes["d_ff"]
    return ", ".join([size, *(f"{k} {v}" for k, v in changes.items())])
