"""The model card of an exported run, from its records only."""

from typing import Any

from oelm.analysis.compare.statistics import paired_t
from oelm.errors import OelmError
from oelm.freezing.report import FreezeReport
from oelm.runs import RunFolder, config_differences, find_runs
from oelm.training.checkpoints import Checkpoint

_METRICS = {"loss": ".4f", "perplexity": ".2f", "bits_per_byte": ".4f", "accuracy": ".4f", "f1": ".4f"}
_MERGED = "It was merged into the stock layout: nothing of oelm is needed to load it."
_REMOTE = "Its source lies beside the weights: load it with `trust_remote_code=True`; oelm is not needed."
_SETTINGS = ("max_steps", "batch_size", "accumulation", "sequence_length", "max_lr", "weight_decay", "precision")


def model_card(checkpoint: Checkpoint, facts: dict[str, Any]) -> str:
    """Markdown with the front matter of the hub: method, freeze table, data, metrics, limits."""
    run = RunFolder(checkpoint.path.parent.parent)
    config, result = _read(run.config), _read(run.result)
    seeds = _seeds(run, config)
    report = FreezeReport.from_dict(checkpoint.freeze)
    generates = not facts["architecture"].endswith("Classification")
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {'text-generation' if generates else 'text-classification'}",
        "tags: [oelm]",
        "---",
        "",
        f"# {_plain(run.name)}",
        "",
        f"A `{facts['architecture']}` of {facts['parameters']:,} parameters, trained with oelm's method "
        f"`{_plain(report.method.name)}`: {_plain(report.method.summary) or 'one of its own'}. "
        f"{_REMOTE if facts['to'] == 'remote-code' else _MERGED} Its logits are within "
        f"{facts['logit_difference']:.0e} of the training checkpoint's (step {facts['step']:,}), "
        "relative to the largest.",
        "",
        "## What was frozen",
        "",
        f"{report.frozen_parameters:,} of {report.total_parameters:,} parameters never trained"
        f"{_verified(result)}.",
        "",
        "```",
        str(report),
        "```",
        "",
        "## Data and training",
        "",
        *_table({
            "data": result.get("dataset"),
            "data fingerprint": result.get("data_fingerprint") or config.get("data", {}).get("fingerprint"),
            "tokenizer (sha256)": facts["tokenizer_hash"],
            "seed": config.get("seed"),
            "tokens seen": result.get("tokens"),
            **{name: config.get("training", {}).get(name) for name in _SETTINGS},
        }),
        "",
        "## Metrics",
        "",
        *_metrics(result, seeds, facts["step"]),
        "",
        "## Limits",
        "",
        f"- Context of {facts['context']} tokens." if facts["context"] else "- Context as its architecture says.",
        "- One run with one seed: the metrics carry no interval. Compare methods over several seeds."
        if len(seeds) < 2
        else "- These are the weights of one seed; the intervals say what others would give.",
        "- A research model: nothing was done about what it says, and nobody checked its training text for that.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _metrics(result: dict[str, Any], seeds: list[dict[str, Any]], step: int) -> list[str]:
    final = result.get("final") or {}
    measured = {name: kind for name, kind in _METRICS.items() if final.get(name) is not None}
    if not measured:
        return ["The run had not finished; there is no final evaluation."]
    split = "test" if final.get("split") == "test" else "validation"
    other = f"; the weights here are those of step {step:,}" if result.get("steps") != step else ""
    told = {}
    for name, kind in measured.items():
        values = [final[name] for final in seeds if name in final]
        told[name] = format(final[name], kind)
        if around := paired_t(values):
            low, high = format(around.low, kind), format(around.high, kind)
            told[name] += f" (mean of {len(values)} seeds {sum(values) / len(values):{kind}} [{low}, {high}], 95 %)"
    return [f"Measured on the {split} split at the end of the run{other}:", "", *_table(told)]


def _seeds(run: RunFolder, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Final metrics of the finished runs beside this one that differ from it in nothing but the seed, and its own."""
    found = {}
    for other in find_runs(run.path.parent) if config else ():
        theirs, result = _read(other.config), _read(other.result)
        if result and not config_differences({**theirs, "seed": None}, {**config, "seed": None}):
            found[theirs["seed"]] = result["final"]
    return list(found.values())


def _table(facts: dict[str, Any]) -> list[str]:
    rows = [f"| {name} | {_plain(value)} |" for name, value in facts.items() if value is not None]
    return ["| | |", "|---|---|", *rows]


def _verified(result: dict[str, Any]) -> str:
    return "; at the end every frozen tensor was bit for bit what it had been" if result.get("frozen_verified") else ""


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
