"""What follows from claims about time, memory and size: a function per kind of claim."""

import math

from oelm.analysis.claims.verdicts import CONSISTENT, IMPOSSIBLE, INCONSISTENT, Claim, Evidence, Finding, rounds_to
from oelm.freezing.methods import method
from oelm.runs import checkpoint_bytes

MEBIBYTE = 2**20
TIMING_NOISE = 0.01
"""Step times of two runs differ by about so much even if nothing else does."""
ROUNDING = 0.001
VALIDATION_LIMIT = 0.1


# Speed and time


def speed_up(claim: Claim, evidence: Evidence) -> Finding:
    """No step can be faster than the work that is left."""
    shape = evidence.shape(claim["model"])
    bound = shape.saving_by_freezing
    if "value" in claim:
        saving, published = float(claim["value"]), f"{-claim['value']:+.1%} step time"
    else:
        before, after = (evidence.figure(claim[k], "step_seconds") for k in ("baseline", "arm"))
        saving, published = 1 - after / before, f"{before:g} s → {after:g} s"
    follows = f"{-saving:+.1%} step time; freezing saves at most {bound:.1%} of the step's FLOPs"
    ours = _our_step_time(evidence, shape.family)
    if saving > bound + TIMING_NOISE:
        reason = f"{saving / bound:.1f} times what freezing can save; something else differed between the runs"
        return Finding(published, follows, IMPOSSIBLE, reason, ours)
    return Finding(published, follows, CONSISTENT, "within what freezing can save", ours)


def total_time(claim: Claim, evidence: Evidence) -> Finding:
    """All steps together cannot take longer than the run."""
    name = claim["experiment"]
    seconds = float(claim.get("value") or evidence.figure(name, "step_seconds"))
    wall, steps = evidence.figure(name, "wall_seconds"), _steps(name, evidence)
    validation = float((evidence.entry(name).get("published") or {}).get("validation_seconds") or 0)
    training = seconds * steps
    published = f"{seconds:g} s per step, {wall:,.0f} s in all"
    follows = f"{seconds:g} s × {steps:,} steps = {training:,.0f} s"
    if training > wall:
        return Finding(
            published, follows, IMPOSSIBLE, f"the steps alone would take {training / wall - 1:.0%} longer than the run"
        )
    rest = wall - training - validation
    if validation:
        follows += f", + {validation:,.0f} s of validation"
    if rest < -ROUNDING * wall:
        return Finding(published, follows, IMPOSSIBLE, f"together {-rest:,.0f} s more than the run took")
    return Finding(published, follows, CONSISTENT, f"leaves {rest / wall:.0%} of the run for everything else")


def validation_share(claim: Claim, evidence: Evidence) -> Finding:
    name = claim["experiment"]
    wall, validation = (evidence.figure(name, key) for key in ("wall_seconds", "validation_seconds"))
    share = validation / wall
    training = evidence.figure(name, "step_seconds") * _steps(name, evidence) / wall
    follows = f"{share:.0%} of it is validation, {training:.0%} training steps"
    if share > VALIDATION_LIMIT:
        reason = "so much validation hides any difference in training speed; compare step times"
        return Finding(f"{wall:,.0f} s", follows, INCONSISTENT, reason)
    return Finding(f"{wall:,.0f} s", follows, CONSISTENT, "validation is a small part")


# Sizes


def parameter_count(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    follows = f"{shape.parameters:,} parameters by its shape"
    if rounds_to(shape.parameters / 1e6, value / 1e6):
        return Finding(f"{value / 1e6:g}M", follows, CONSISTENT, "equal, rounded")
    return Finding(
        f"{value / 1e6:g}M", follows, INCONSISTENT, f"{value / shape.parameters:.2f} times what the shape has"
    )


def parameter_share(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    share = shape.qk_parameters / shape.parameters
    follows = f"{shape.qk_parameters:,} of {shape.parameters:,} = {share:.1%}"
    if rounds_to(100 * share, 100 * value):
        return Finding(f"{value:.1%}", follows, CONSISTENT, "equal, rounded")
    shares = {name: s.qk_parameters / s.parameters for name in evidence.models for s in [evidence.shape(name)]}
    others = [name for name, other in shares.items() if rounds_to(100 * other, 100 * value)]
    reason = f"it is the share of {', '.join(others)}" if others else "no model of the study has that share"
    return Finding(f"{value:.1%}", follows, INCONSISTENT, reason)


def nothing_frozen(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    rest = shape.parameters - shape.qk_parameters
    follows = f"{shape.parameters:,} − {shape.qk_parameters:,} queries and keys = {rest:,}"
    if rounds_to(rest / 1e6, value / 1e6):
        reason = "exactly the queries and keys are missing from the count: they were buffers, that is frozen"
        return Finding(f"{value / 1e6:g}M, none frozen", follows, INCONSISTENT, reason)
    return Finding(f"{value / 1e6:g}M, none frozen", follows, CONSISTENT, "the count says nothing about frozen weights")


def memory(claim: Claim, evidence: Evidence) -> Finding:
    """Training holds weights, gradients and two moments at least; a checkpoint has no gradients."""
    shape, published = evidence.shape(claim["model"]), evidence.figure(claim["experiment"], "checkpoint_mib")
    trained = shape.parameters - (shape.qk_parameters if _is_frozen(claim["experiment"], evidence) else 0)
    needed = 4 * (shape.parameters + 3 * trained) / MEBIBYTE
    saved = checkpoint_bytes(shape.parameters, trained) / MEBIBYTE
    follows = f"at least {needed:.0f} MiB for weights, gradients and moments, before any activation"
    if published >= needed:
        return Finding(f"{published:g} MB", follows, CONSISTENT, "enough for weights, gradients and moments")
    what = f"it is the size of the checkpoint ({saved:.1f} MiB)" if rounds_to(saved, published) else "too little"
    return Finding(f"{published:g} MB", follows, IMPOSSIBLE, what)


def corpus_tokens(claim: Claim, evidence: Evidence) -> Finding:
    value, facts = float(claim["value"]), evidence.datasets[claim["dataset"]]
    training = evidence.entry(claim["experiment"])["training"]
    shape = evidence.shape("gpt-medium-512")
    read = training["max_steps"] * training["batch_size"] * shape.sequence_length
    follows = f"{value / facts['documents']:.1f} tokens per story; a run would read the corpus {read / value:.0f} times"
    if value < facts["documents"]:
        reason = f"there are {facts['documents'] / 1e6:.1f}M stories and about {facts['tokens'] / 1e6:.0f}M tokens"
        return Finding(f"{value / 1e6:g}M", follows, IMPOSSIBLE, reason)
    near = abs(value / facts["tokens"] - 1) < 0.1
    return Finding(
        f"{value / 1e6:g}M", follows, CONSISTENT if near else INCONSISTENT, f"about {facts['tokens'] / 1e6:.0f}M"
    )


def experiment_count(claim: Claim, evidence: Evidence) -> Finding:
    there = {suite: len(evidence.suites[suite]) for suite in claim["listed"]}
    total = len({name for suite in claim["listed"] for name in evidence.suites[suite]})
    follows = f"{' + '.join(map(str, there.values()))} = {total} with a row of their own"
    if total == claim["value"]:
        return Finding(str(claim["value"]), follows, CONSISTENT, "equal")
    wrong = [f"{suite} lists {n}, has {there[suite]}" for suite, n in claim["listed"].items() if n != there[suite]]
    return Finding(str(claim["value"]), follows, INCONSISTENT, "; ".join(wrong))


def _our_step_time(evidence: Evidence, family: str) -> str | None:
    """Of the largest model of this family that was timed."""
    timed = []
    for study in evidence.loaded.comparisons if evidence.loaded else []:
        for arm in study.arms if study.family == family else []:
            time = evidence.loaded.step_time(arm) if arm.method == "oelm_freeze" and evidence.loaded else None
            if not time or not time.interleaved or time.low is None or time.high is None:
                continue
            predicted = f", FLOPs allow {time.predicted - 1:+.1%}" if time.predicted else ""
            millions = (arm.facts("total_parameters") or [0])[0] / 1e6
            where = f"{arm.dataset}, {millions:.1f}M parameters" if millions else arm.dataset
            said = f"{time.ratio - 1:+.1%} [{time.low - 1:+.1%}, {time.high - 1:+.1%}]{predicted}"
            timed.append((millions, f"{said} (interleaved; {where})"))
    return max(timed, key=lambda found: found[0], default=(0, None))[1]


def _steps(name: str, evidence: Evidence) -> int:
    entry = evidence.entry(name)
    training = entry["training"]
    if "max_steps" in training:
        return int(training["max_steps"])
    rows = evidence.datasets[entry["dataset"]]["train_rows"]
    return int(training["epochs"]) * math.ceil(rows / training["batch_size"])


def _is_frozen(name: str, evidence: Evidence) -> bool:
    chosen = method(evidence.entry(name)["arms"][0])
    return chosen.query.frozen and chosen.key.frozen
