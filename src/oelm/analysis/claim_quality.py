"""What follows from claims about quality: a function per kind of claim, some of which need runs of ours."""

import math

from oelm.analysis.claims import (
    CONSISTENT,
    INCONSISTENT,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    Claim,
    Evidence,
    Finding,
    Pair,
    rounds_to,
)
from oelm.analysis.statistics import GOAL_PERCENT, MISSED, UNDECIDED, goal_verdict

SAME_FIGURE = 0.001
PUBLISHED_STD = 0.02
"""Of the random arm's weights."""
TWO_SIDED_95 = 1.96


def perplexity_of_loss(claim: Claim, evidence: Evidence) -> Finding:
    loss, perplexity = (evidence.figure(claim["experiment"], key) for key in ("loss", "perplexity"))
    apart = abs(math.exp(loss) / perplexity - 1)
    published, follows = f"loss {loss:g}, perplexity {perplexity:g}", f"exp({loss:g}) = {math.exp(loss):.4f}"
    if apart < SAME_FIGURE:
        return Finding(published, follows, CONSISTENT, f"equal within {apart:.2%}")
    return Finding(published, follows, INCONSISTENT, f"{apart:.2%} apart")


def gap(claim: Claim, evidence: Evidence) -> Finding:
    """The published gap from its own figures, and whether ours misses the same goal."""
    before, after = (evidence.figure(claim[k], "perplexity") for k in ("baseline", "arm"))
    value, found = float(claim["value"]), after / before - 1
    published, follows = f"{value:+.1%}", f"{after:g} / {before:g} = {found:+.1%}"
    if not rounds_to(100 * found, 100 * value):
        return Finding(published, follows, INCONSISTENT, "not what the two perplexities give")
    entry = evidence.entry(claim["arm"])
    pair = evidence.pair(entry["dataset"], entry["arms"][0])
    if pair is None:
        side = "above" if 100 * found > GOAL_PERCENT else "within"
        return Finding(
            published, follows, CONSISTENT, f"{side} the study's own bar of {GOAL_PERCENT:g} %; no runs of ours"
        )
    ours = goal_verdict(pair.gap.worse)
    same = (ours == MISSED) == (100 * found > GOAL_PERCENT)
    verdict = NOT_TESTED if ours == UNDECIDED else REPRODUCED if same else NOT_REPRODUCED
    return Finding(
        published,
        follows,
        verdict,
        f"the {GOAL_PERCENT:g} % goal is {ours} in our runs; the sizes of model and gap are not compared",
        str(pair),
    )


def same_conditions(claim: Claim, evidence: Evidence) -> Finding:
    first, second = (evidence.entry(claim[k])["training"] for k in ("baseline", "arm"))
    keys = dict.fromkeys([*first, *second])
    different = [f"{k} {first.get(k)} and {second.get(k)}" for k in keys if first.get(k) != second.get(k)]
    if different:
        reason = "the difference may be the settings', not the method's"
        return Finding(f"{claim['baseline']} against {claim['arm']}", "; ".join(different), INCONSISTENT, reason)
    return Finding(f"{claim['baseline']} against {claim['arm']}", "equal settings", CONSISTENT, "nothing else differs")


def seeds(claim: Claim, evidence: Evidence) -> Finding:
    published = {name: e["published"].get("seeds") for name, e in evidence.experiments.items() if e.get("published")}
    single = [name for name, count in published.items() if count == 1]
    follows = f"{len(single)} of {len(published)} experiments were run once"
    ours = max((len(arm.runs) for arm in evidence.loaded.arms), default=0) if evidence.loaded else 0
    said = f"up to {ours} seeds per arm" if ours else None
    if single:
        return Finding(
            "single figures", follows, NOT_TESTED, "one seed gives no interval: chance cannot be told apart", said
        )
    return Finding("several seeds", follows, CONSISTENT, "intervals can be given", said)


def orthogonality(claim: Claim, evidence: Evidence) -> Finding:
    """Both frozen arms should differ in orthogonality only; they also differ in scale."""
    arm, control = (evidence.figure(claim[k], "perplexity") for k in ("arm", "control"))
    width = evidence.shape(claim["model"]).width
    norm = PUBLISHED_STD * math.sqrt(width)  # of a random row; an orthonormal row has 1
    published = f"{control:g} against {arm:g} ({control / arm - 1:+.1%})"
    follows = f"random rows have norm {norm:.2f}, orthonormal rows 1: attention logits differ {1 / norm**2:.1f}×"
    entry = evidence.entry(claim["arm"])
    fair = evidence.pair(entry["dataset"], claim["fair_control"], entry["arms"][0])
    unfair = evidence.pair(entry["dataset"], evidence.entry(claim["control"])["arms"][0], entry["arms"][0])
    ours = "; ".join(str(pair) for pair in (unfair, fair) if pair) or None
    if fair is None:
        return Finding(
            published, follows, INCONSISTENT, "scale and orthogonality are confounded; no fair control", ours
        )
    verdict, reason = _ordering(fair, published=100 * (control / arm - 1))
    return Finding(published, follows, verdict, f"at the same scale, {reason}", ours)


def ordering(claim: Claim, evidence: Evidence) -> Finding:
    pair = evidence.pair(claim["dataset"], claim["worse"], claim["better"])
    published = f"{claim['better']} before {claim['worse']}"
    if pair is None:
        return Finding(published, "can only be measured", NOT_TESTED, "no runs of ours of both")
    verdict, reason = _ordering(pair)
    return Finding(published, "can only be measured", verdict, reason, str(pair))


def gap_at_steps(claim: Claim, evidence: Evidence) -> Finding:
    found = {int(step): after / before - 1 for step, (before, after) in claim["points"].items()}
    follows = ", ".join(f"{value:+.1%} at step {step:,}" for step, value in found.items())
    within = min(found.values()) <= claim["value"] <= max(found.values())
    reason = (
        "between the logged points, which differ too much to fix one number" if within else "no logged point is near"
    )
    pair = evidence.pair(claim["dataset"], claim["worse"], claim["better"])
    return Finding(
        f"{claim['value']:+.0%}", follows, CONSISTENT if within else INCONSISTENT, reason, str(pair) if pair else None
    )


def accuracy_gap(claim: Claim, evidence: Evidence) -> Finding:
    """A difference of two accuracies on one test set, beside what chance does to a test set of that size."""
    before, after = (evidence.figure(claim[k], "accuracy") for k in ("baseline", "arm"))
    rows = evidence.datasets[evidence.entry(claim["arm"])["dataset"]]["test_rows"]
    noise = math.sqrt((before * (1 - before) + after * (1 - after)) / rows)
    points, limit = 100 * (after - before), 100 * TWO_SIDED_95 * noise
    published = f"{before:.2%} → {after:.2%}"
    follows = f"{points:+.2f} points; ±{limit:.2f} is chance on {rows:,} examples, were the arms independent"
    pair = evidence.pair(evidence.entry(claim["arm"])["dataset"], evidence.entry(claim["arm"])["arms"][0])
    ours = str(pair) if pair else None
    if pair and pair.gap.t:
        low, high = pair.gap.t.low, pair.gap.t.high
        if (low > 0) if points > 0 else (high < 0):
            return Finding(published, follows, REPRODUCED, "our interval lies on the same side", ours)
        if not low <= points <= high:
            return Finding(published, follows, NOT_REPRODUCED, "our interval excludes the published difference", ours)
        return Finding(published, follows, NOT_TESTED, "our interval holds both this difference and none", ours)
    if abs(points) <= limit:
        return Finding(published, follows, NOT_TESTED, "within chance of the test set, with one seed", ours)
    return Finding(
        published, follows, CONSISTENT, "more than chance of the test set; one seed, other learning rates", ours
    )


def _ordering(pair: Pair, published: float | None = None) -> tuple[str, str]:
    """Whether the first arm is worse than the second, as the whole interval says; `published` says by what percent."""
    if pair.gap.worse is None:
        return NOT_TESTED, "one seed gives no interval"
    worse, better, interval = pair.first.method, pair.second.method, pair.gap.worse
    if interval.low > 0:
        return REPRODUCED, f"{worse} is worse than {better}"
    if interval.high < 0:
        return NOT_REPRODUCED, f"{worse} is better than {better}"
    if published is not None and interval.high < published:
        return NOT_REPRODUCED, f"{worse} is at most {interval.high:.1f} % worse than {better}, if at all"
    return NOT_TESTED, f"our interval leaves open which of {worse} and {better} is better"
