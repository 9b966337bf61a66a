"""The model card of an exported run, from its records only; `card.md.j2` is its text."""

from typing import Any

from jinja2 import Environment, PackageLoader

from oelm.analysis.compare.statistics import paired_t
from oelm.errors import OelmError
from oelm.freezing.report import FreezeReport
from oelm.runs import RunFolder, config_differences, find_runs
from oelm.training.checkpoints import Checkpoint

_METRICS = {"loss": ".4f", "perplexity": ".2f", "bits_per_byte": ".4f", "accuracy": ".4f", "f1": ".4f"}
_SETTINGS = ("max_steps", "batch_size", "accumulation", "sequence_length", "max_lr", "weight_decay", "precision")


def model_card(checkpoint: Checkpoint, facts: dict[str, Any]) -> str:
    """Markdown with the front matter of the hub: method, freeze table, data, metrics, limits."""
    run = RunFolder(checkpoint.path.parent.parent)
    config, result = _read(run.config), _read(run.result)
    seeds = _seeds(run, config)
    trained = {
        "data": result.get("dataset"),
        "data fingerprint": result.get("data_fingerprint") or config.get("data", {}).get("fingerprint"),
        "tokenizer (sha256)": facts["tokenizer_hash"],
        "seed": config.get("seed"),
        "tokens seen": result.get("tokens"),
        **{name: config.get("training", {}).get(name) for name in _SETTINGS},
    }
    markdown = Environment(
        loader=PackageLoader("oelm.evaluation", "."), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    markdown.filters["plain"] = _plain
    markdown.globals["table"] = _table
    told: dict[str, Any] = {"facts": facts, "result": result, "trained": trained, "seeds": seeds, "name": run.name}
    told |= {"report": FreezeReport.from_dict(checkpoint.freeze), "metrics": _metrics(result.get("final") or {}, seeds)}
    return markdown.get_template("card.md.j2").render(told)


def _metrics(final: dict[str, Any], seeds: list[dict[str, Any]]) -> dict[str, str]:
    told = {}
    for name, kind in _METRICS.items():
        if final.get(name) is None:
            continue
        told[name] = format(final[name], kind)
        values = [final[name] for final in seeds if name in final]
        if around := paired_t(values):
            low, high = format(around.low, kind), format(around.high, kind)
            told[name] += f" (mean of {len(values)} seeds {sum(values) / len(values):{kind}} [{low}, {high}], 95 %)"
    return told


def _seeds(run: RunFolder, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Final metrics of the finished runs beside this one that differ from it in nothing but the seed, and its own."""
    found = {}
    for other in find_runs(run.path.parent) if config else ():
        theirs, result = _read(other.config), _read(other.result)
        if result and not config_differences({**theirs, "seed": None}, {**config, "seed": None}):
            found[theirs["seed"]] = result["final"]
    return list(found.values())


def _table(facts: dict[str, Any]) -> str:
    rows = [f"| {name} | {_plain(value)} |" for name, value in facts.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _plain(value: Any) -> str:
    """A record's text in one line, without what Markdown would read as a table or as HTML."""
    text = " ".join((f"{value:,}" if isinstance(value, int) else str(value)).split())
    return text.replace("|", "/").replace("<", "&lt;")


def _read(read: Any) -> dict[str, Any]:
    """A record, or nothing if there is none: a checkpoint may lie outside its run."""
    try:
        return read() or {}
    except (OelmError, OSError):
        return {}
