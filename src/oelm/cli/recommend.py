"""`oelm recommend`: which method to use for a model, from measured runs, with the evidence and its limits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer import Option

from oelm.cli.console import AsJson, command_console, echo_json
from oelm.errors import OelmError, unknown
from oelm.freezing.methods import Method
from oelm.models.shape import SIZES

if TYPE_CHECKING:
    from oelm.analysis.recommend import Advice, Evidence

COSTS = ("step_flops_vs_baseline", "block_flops_vs_baseline", "trainable_parameters")
"""What `oelm inspect` counts of a method that advice shows."""
MOST_SHOWN = 12


def recommend(
    model: Annotated[str, Option(help="A size (medium-512, …), a published model (bert-base, …) or a folder.")],
    task: Annotated[str | None, Option(help="lm or classification. (default: lm; of encoders, classification)")] = None,
    budget: Annotated[float, Option(min=0, help="How many percent worse than the baseline is acceptable.")] = 5.0,
    results: Annotated[Path | None, Option(help="Folder with measured runs. (default: those of oelm)")] = None,
    everything: Annotated[bool, Option("--all", help="Show the evidence on every method, by comparison.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which method to use for a model, from measured runs only, with the evidence and its limits."""
    from oelm.analysis.compare.results import load_runs
    from oelm.analysis.evidence.records import shipped
    from oelm.analysis.recommend import CLASSIFICATION, LANGUAGE_MODELLING, TASKS, advise
    from oelm.costs.inspection import costs_of, inspect_model
    from oelm.models.known import family, named_config

    costs_of(model)  # refuses an unknown model before anything is read
    kind = "decoder" if model in SIZES else family(named_config(model)[0])
    task = task or (CLASSIFICATION if kind == "encoder" else LANGUAGE_MODELLING)
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if results is not None and not results.is_dir():
        raise OelmError(f"{results} is no folder; say where measured runs are (--results)")
    loaded = shipped() if results is None else load_runs(results)
    advice = advise(loaded, kind, task, budget)
    skipped = [f"{skipped.path}: {skipped.reason}" for skipped in loaded.skipped if results is not None]
    left_out = [*skipped, *advice.left_out]
    for line in left_out if everything or len(left_out) < 3 else [f"{len(left_out)} arms or runs (--all names them)"]:
        typer.echo(f"left out: {line}", err=True)
    labels = 2 if task == CLASSIFICATION else None  # a classifier has no head over a vocabulary
    plain = costs_of(model, labels=labels)
    for name in advice.verdicts:
        try:
            facts = inspect_model(model, Method.from_dict(advice.methods[name]), base=plain, labels=labels)
            advice.costs[name] = {key: facts[key] for key in COSTS}
        except OelmError as error:
            advice.misfits[name] = str(error)
    if as_json:
        echo_json({"model": model, "total_parameters": plain.total_parameters, **advice.to_dict()})
    else:
        _print(model, str(results or "the evidence that came with oelm"), advice, everything)


def _print(model: str, results: str, advice: "Advice", everything: bool) -> None:
    from oelm.analysis.compare.statistics import MISSED

    console, article = command_console(), "an" if advice.kind.startswith("e") else "a"
    kind = f"{article} {advice.kind} ({advice.task})"
    if not advice.evidence:
        console.print(f"Nothing is known: {results} has no finished runs of {kind} with a freezing method")
        console.print("and a baseline beside it. Measure first, e.g. with 'oelm run controls --scale mini'.")
        return
    if advice.method:
        cheaper = advice.costs[advice.method]
        saved, blocks = (100 * (1 - cheaper[f"{part}_flops_vs_baseline"]) for part in ("step", "block"))
        where = ", ".join(sorted({e.dataset for e in advice.evidence if e.method == advice.method}))
        console.print(
            f"[bold]{advice.method}[/]: at most {advice.budget:g} % worse than its baseline, by the whole interval, "
            f"with {kind} on {where}; {saved:.1f} % fewer matmul FLOPs per step in {model} ({blocks:.1f} % in its "
            "blocks' matrices), the most of those that are."
        )
    else:
        console.print(
            f"[bold]baseline[/]: no freezing method that saves FLOPs in {model} is surely within {advice.budget:g} % "
            f"on every data set it was tried on with {kind}. Train queries and keys, or accept a larger budget."
        )
    for e in advice.evidence:
        if e.rival_worse and (everything or e.verdict != MISSED):
            beside = f"{e.rival_worse[0]:+.1f} … {e.rival_worse[1]:+.1f} % worse than {e.rival}"
            console.print(f"{e.method} is {beside}, which trains everything for at most its FLOPs.", soft_wrap=True)
    for e in advice.trained:
        worse = (
            f"{_worse(e)} worse than the plain baseline, FLOPs × {e.flops_ratio:.3f}, {e.seeds} seeds, {e.comparison}"
        )
        console.print(f"Try first, nothing is frozen: [bold]{e.method}[/]: {worse}", soft_wrap=True)
    in_full = list(advice.verdicts) if everything else [advice.method] if advice.method else []
    for name in in_full:
        console.print(f"\n[bold]{name}[/]: {advice.verdicts[name]}; FLOPs {_cost(advice, name)}", soft_wrap=True)
        if name in advice.misfits:
            console.print(f"  {advice.misfits[name]}", soft_wrap=True)
        heads = ("comparison", "seeds", "gap", "worse by (95 %)", "step time", "against")
        table = Table(*heads, box=None, padding=(0, 0, 0, 2))
        for e in (e for e in advice.evidence if e.method == name):
            against = e.baseline if e.equal else f"{e.baseline} (which lacks its adapters or start)"
            table.add_row(e.comparison, str(e.seeds), f"{e.gap:+.2f} {e.unit}", _worse(e), _time(e), against)
        console.print(table)
    others = [name for name in advice.verdicts if name not in in_full]
    if others:
        what = "The others" if in_full else "What was measured"
        console.print(f"\n{what}, best first, each by its worst comparison of several seeds:")
        console.print(_others(advice, others[:MOST_SHOWN]))
        more = f", and the {len(others) - MOST_SHOWN} that follow" if len(others) > MOST_SHOWN else ""
        console.print(f"[dim]--all shows every comparison{more}.[/]")
    measured = "; ".join(sorted({e.model for e in advice.evidence}))
    console.print(f"\nLimits: measured with {measured}, asked for {model}. What holds there may not hold here;")
    console.print("FLOPs (of a training step, as a multiple of the baseline's) are counted for your model, not timed.")


def _others(advice: "Advice", names: list[str]) -> Table:
    """One line per method: the comparison that speaks most against it."""
    from oelm.analysis.compare.statistics import MET, UNDECIDED

    table = Table("method", "verdict", "worse by (95 %)", "seeds", "FLOPs", box=None, padding=(0, 0, 0, 2))
    for name in names:
        worst, verdict = advice.worst(name), advice.verdicts[name]
        single = any(e.worse_low is None for e in advice.evidence if e.method == name)
        elsewhere = ", one seed elsewhere" if single and verdict == UNDECIDED and worst.verdict == MET else ""
        table.add_row(name, verdict, _worse(worst) + elsewhere, str(worst.seeds), _cost(advice, name))
    return table


def _worse(e: "Evidence") -> str:
    if e.worse_low is not None:
        return f"{e.worse_low:+.1f} … {e.worse_high:+.1f} %"
    return f"gap {e.gap:+.1f} {e.unit}, {'one seed' if e.seeds == 1 else 'no interval'}"


def _time(e: "Evidence") -> str:
    if e.step_time_ratio is None:
        return "not timed"
    within = "" if e.step_time_low is None else f" [{e.step_time_low:.2f}, {e.step_time_high:.2f}]"
    return f"× {e.step_time_ratio:.2f}{within}"


def _cost(advice: "Advice", name: str) -> str:
    facts = advice.costs.get(name)
    return f"× {facts['step_flops_vs_baseline']:.3f}" if facts else "– (does not fit)"
