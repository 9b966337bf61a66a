"""What follows from claims about time, memory and size: a function per kind of claim."""

from oelm.analysis.claims.evidence import Claim, Evidence, millions_of, rounds_to
from oelm.analysis.claims.findings import CIRCULAR, CONSISTENT, IMPOSSIBLE, INCONSISTENT, Finding
from oelm.analysis.compare.times import step_time
from oelm.runs import checkpoint_bytes

MEBIBYTE = 2**20
TIMING_NOISE = 0.01  # step times of two runs differ by about so much even if nothing else does
ROUNDING = 0.001
VALIDATION_LIMIT = 0.1


def speed_up(claim: Claim, evidence: Evidence) -> Finding:
    """No step can be faster than the work that is left; two runs of equal work show what else makes a difference."""
    shape = evidence.shape(claim["model"])
    bound, halved = shape.saving_by_freezing, ""
    if "value" in claim:
        saving, published = float(claim["value"]), f"{-claim['value']:+.1%} step time"
    else:
        names = (claim["baseline"], claim["arm"])
        before, after = (evidence.figure(name, "step_seconds") for name in names)
        saving, published = 1 - after / before, f"{before:g} s → {after:g} s"
        rows = [_timed_rows(name, evidence) for name in names]
        if rows[0] != rows[1]:
            each = 1 - (after / rows[1]) / (before / rows[0])
            halved = f"; timed were {rows[0]} examples against {rows[1]}, so {-each:+.1%} per example"
    follows = f"{-saving:+.1%} step time; freezing saves at most {bound:.1%} of the step's FLOPs{halved}"
    apart, equals = _between_runs(evidence)
    if saving <= bound + TIMING_NOISE:
        verdict, reason = CONSISTENT, "within what freezing can save"
    elif saving <= bound + apart:
        verdict = INCONSISTENT
        reason = f"more than freezing can save, but {equals} do equal work and differ by {apart:.1%}: runs differ"
    else:
        what = "the frozen run's timer takes less work than the baseline's" if halved else "something else differed"
        verdict, reason = IMPOSSIBLE, f"{saving / bound:.1f} times what freezing can save; {what}"
    return Finding(published, follows, verdict, reason, _our_step_time(evidence, shape.family))


def total_time(claim: Claim, evidence: Evidence) -> Finding:
    """All steps together, and the validations between them, cannot take longer than the run."""
    name = claim["experiment"]
    said, steps = evidence.experiments[name]["published"], evidence.steps(name)
    seconds, wall = float(claim.get("value") or said["step_seconds"]), float(said["wall_seconds"])
    training, validation = seconds * steps, float(said.get("validation_seconds") or 0)
    rest = wall - training - validation
    published = f"{seconds:g} s per step, {wall:,.0f} s in all"
    follows = f"{seconds:g} s × {steps:,} steps = {training:,.0f} s"
    if said.get("wall_is_sum_of_steps"):
        reason = "the total is itself the sum of the step times, so it confirms nothing"
        return Finding(published, follows, CIRCULAR, reason)
    if training > wall:
        reason = f"the steps alone would take {training / wall - 1:.0%} longer than the run"
        return Finding(published, follows, IMPOSSIBLE, reason)
    if validation:
        follows += f", + {validation:,.0f} s of validation"
    if rest < -ROUNDING * wall:
        return Finding(published, follows, IMPOSSIBLE, f"together {-rest:,.0f} s more than the run took")
    if not validation and (least := _least_validation(name, seconds, evidence)):
        tokens, count, needed = least
        follows += f"; {rest:,.0f} s are left for {count} validations, which need at least {needed:,.0f} s"
        enough = f"leaves {rest / needed:.1f} times what its validations need"
        short = f"a validation reads {tokens:,} tokens, forward only"
        return Finding.either(rest >= needed, published, follows, enough, short)
    return Finding(published, follows, CONSISTENT, f"leaves {rest / wall:.0%} of the run for everything else")


def validation_share(claim: Claim, evidence: Evidence) -> Finding:
    name = claim["experiment"]
    wall, validation = (evidence.figure(name, key) for key in ("wall_seconds", "validation_seconds"))
    share, training = validation / wall, evidence.figure(name, "step_seconds") * evidence.steps(name) / wall
    follows = f"{share:.0%} of it is validation, {training:.0%} training steps"
    hidden = "so much validation hides any difference in training speed; compare step times"
    return Finding.either(share <= VALIDATION_LIMIT, f"{wall:,.0f} s", follows, "validation is a small part", hidden)


def parameter_count(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    published, follows = f"{value / 1e6:g}M", f"{shape.parameters:,} parameters by its shape"
    times = f"{value / shape.parameters:.2f} times what the shape has"
    return Finding.either(rounds_to(shape.parameters / 1e6, value / 1e6), published, follows, "equal, rounded", times)


def parameter_share(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    equal = rounds_to(100 * shape.qk_share, 100 * value)
    follows = f"{shape.qk_parameters:,} of {shape.parameters:,} = {shape.qk_share:.1%}"
    others = [name for name in evidence.models if rounds_to(100 * evidence.shape(name).qk_share, 100 * value)]
    reason = f"it is the share of {', '.join(others)}" if others else "no model of the study has that share"
    return Finding.either(equal, f"{value:.1%}", follows, "equal, rounded", reason)


def nothing_frozen(claim: Claim, evidence: Evidence) -> Finding:
    value, shape = float(claim["value"]), evidence.shape(claim["model"])
    rest = shape.parameters - shape.qk_parameters
    follows = f"{shape.parameters:,} − {shape.qk_parameters:,} queries and keys = {rest:,}"
    missing = "exactly the queries and keys are missing from the count: they were buffers, that is frozen"
    other = not rounds_to(rest / 1e6, value / 1e6)
    silent = "the count says nothing about frozen weights"
    return Finding.either(other, f"{value / 1e6:g}M, none frozen", follows, silent, missing)


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
    value, training = float(claim["value"]), evidence.experiments[claim["experiment"]]["training"]
    documents, tokens = (evidence.datasets[claim["dataset"]][what] for what in ("documents", "tokens"))
    read = training["max_steps"] * training["batch_size"] * evidence.shape("gpt-medium-512").sequence_length
    published, about = f"{value / 1e6:g}M", f"about {tokens / 1e6:.0f}M"
    follows = f"{value / documents:.1f} tokens per story; a run would read the corpus {read / value:.0f} times"
    if value < documents:
        return Finding(published, follows, IMPOSSIBLE, f"there are {documents / 1e6:.1f}M stories and {about} tokens")
    return Finding.either(abs(value / tokens - 1) < 0.1, published, follows, about, about)


def experiment_count(claim: Claim, evidence: Evidence) -> Finding:
    there = {suite: len(evidence.suites[suite]) for suite in claim["listed"]}
    total = len({name for suite in claim["listed"] for name in evidence.suites[suite]})
    follows = f"{' + '.join(map(str, there.values()))} = {total} with a row of their own"
    wrong = [f"{suite} lists {n}, has {there[suite]}" for suite, n in claim["listed"].items() if n != there[suite]]
    return Finding.either(total == claim["value"], str(claim["value"]), follows, "equal", "; ".join(wrong))


def _our_step_time(evidence: Evidence, family: str) -> str | None:
    """Of the largest model of this family that was timed."""
    timed = []
    for comparison in evidence.loaded.comparisons if evidence.loaded else []:
        for arm in comparison.arms if comparison.family == family else []:
            time = step_time(arm) if arm.method == "oelm_freeze" else None
            if not time or not time.interleaved or time.low is None or time.high is None:
                continue
            predicted = f", FLOPs allow {time.predicted - 1:+.1%}" if time.predicted else ""
            where = f"{arm.dataset}, {millions:.1f}M parameters" if (millions := millions_of(arm)) else arm.dataset
            said = f"{time.ratio - 1:+.1%} [{time.low - 1:+.1%}, {time.high - 1:+.1%}]{predicted}"
            timed.append((millions, f"{said} (interleaved; {where})"))
    return max(timed, key=lambda found: found[0], default=(0, None))[1]


def _timed_rows(name: str, evidence: Evidence) -> int:
    """Examples in what was timed as a step."""
    training, said = (evidence.experiments[name][part] for part in ("training", "published"))
    return said.get("rows_per_timed_step") or training["batch_size"] * training.get("accumulation", 1)


def _between_runs(evidence: Evidence) -> tuple[float, str]:
    """The largest difference of published step times between runs of equal work, and which runs they are."""
    groups: dict[tuple[str, bool], dict[str, float]] = {}
    for name, entry in evidence.experiments.items():
        if seconds := (entry.get("published") or {}).get("step_seconds"):
            groups.setdefault((entry["dataset"], _is_frozen(name, evidence)), {})[name] = float(seconds)
    spreads = [(1 - min(g.values()) / max(g.values()), " and ".join(g)) for g in groups.values() if len(g) > 1]
    return max(spreads, default=(0.0, ""))


def _least_validation(name: str, step_seconds: float, evidence: Evidence) -> tuple[int, int, float] | None:
    """Tokens of a validation, how many there are, and their least time: a forward pass is a third of a step."""
    entry, length = evidence.experiments[name], evidence.shape("gpt-medium-512").sequence_length
    tokens = evidence.datasets.get(entry["dataset"], {}).get("validation_tokens")
    if not tokens:
        return None
    count = evidence.steps(name) // entry["training"]["eval_every"]
    return tokens, count, count * tokens / (entry["training"]["batch_size"] * length) * step_seconds / 3


def _is_frozen(name: str, evidence: Evidence) -> bool:
    made = evidence.made(name)
    return made.query.frozen and made.key.frozen
