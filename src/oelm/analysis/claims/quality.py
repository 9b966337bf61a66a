"""What follows from claims about quality: a function per kind of claim, some of which need runs of ours."""

import math
from collections.abc import Callable, Sequence

from oelm.analysis.claims.verdicts import (
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
from oelm.analysis.compare.statistics import GOAL_PERCENT, MISSED, UNDECIDED, goal_verdict

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
    pairs = evidence.pairs(entry["dataset"], entry["arms"][0])
    if not pairs:
        side = "above" if 100 * found > GOAL_PERCENT else "within"
        return Finding(
            published, follows, CONSISTENT, f"{side} the study's own bar of {GOAL_PERCENT:g} %; no runs of ours"
        )

    def judge(pair: Pair) -> tuple[str, str]:
        ours = goal_verdict(pair.gap.worse)
        same = (ours == MISSED) == (100 * found > GOAL_PERCENT)
        reason = f"the {GOAL_PERCENT:g} % goal is {ours} in our runs; the sizes of model and gap are not compared"
        return NOT_TESTED if ours == UNDECIDED else REPRODUCED if same else NOT_REPRODUCED, reason

    return Finding(published, follows, *_agreed(pairs, judge))


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
    fair = evidence.pairs(entry["dataset"], claim["fair_control"], entry["arms"][0])
    unfair = evidence.pair(entry["dataset"], evidence.entry(claim["control"])["arms"][0], entry["arms"][0])
    before = str(unfair) if unfair else None
    if not fair:
        return Finding(
            published, follows, INCONSISTENT, "scale and orthogonality are confounded; no fair control", before
        )
    verdict, reason, ours = _agreed(fair, lambda pair: _ordering(pair, published=100 * (control / arm - 1)))
    ours = "; ".join(filter(None, (before, ours)))
    return Finding(published, follows, verdict, f"at the same scale, {reason}", ours)


def ordering(claim: Claim, evidence: Evidence) -> Finding:
    pairs = evidence.pairs(claim["dataset"], claim["worse"], claim["better"])
    published = f"{claim['better']} before {claim['worse']}"
    if not pairs:
        return Finding(published, "can only be measured", NOT_TESTED, "no runs of ours of both")
    return Finding(published, "can only be measured", *_agreed(pairs, _ordering))


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
    pairs = evidence.pairs(evidence.entry(claim["arm"])["dataset"], evidence.entry(claim["arm"])["arms"][0])
    ours = str(pairs[0]) if pairs else None

    def judge(pair: Pair) -> tuple[str, str]:
        if pair.gap.t is None:
            return NOT_TESTED, "one seed gives no interval"
        low, high = pair.gap.t.low, pair.gap.t.high
        if (low > 0) if points > 0 else (high < 0):
            return REPRODUCED, "our interval lies on the same side"
        if not low <= points <= high:
            return NOT_REPRODUCED, "our interval excludes the published difference"
        return NOT_TESTED, "our interval holds both this difference and none"

    if pairs and pairs[0].gap.t:
        return Finding(published, follows, *_agreed(pairs, judge))
    if abs(points) <= limit:
        return Finding(published, follows, NOT_TESTED, "within chance of the test set, with one seed", ours)
    return Finding(
        published, follows, CONSISTENT, "more than chance of the test set; one seed, other learning rates", ours
    )


def _agreed(pairs: Sequence[Pair], judge: Callable[[Pair], tuple[str, str]]) -> tuple[str, str, str]:
    """Verdict, reason and our figure by the pair with most seeds, unless another pair says the opposite."""
    verdict, reason = judge(pairs[0])
    against = [pair for pair in pairs[1:] if {verdict, judge(pair)[0]} == {REPRODUCED, NOT_REPRODUCED}]
    if against:
        return NOT_TESTED, "our own studies disagree", f"{pairs[0]}; {against[0]}"
    return verdict, reason, str(pairs[0])


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
