"""What follows from claims about quality: a function per kind of claim, some of which need runs of ours."""

import math
from collections.abc import Sequence

from oelm.analysis.claims.evidence import Claim, Evidence, Pair, rounds_to
from oelm.analysis.claims.findings import CONSISTENT, INCONSISTENT, NOT_REPRODUCED, NOT_TESTED, REPRODUCED, Finding
from oelm.analysis.compare.statistics import GOAL_PERCENT

SAME_FIGURE = 0.001
PUBLISHED_STD = 0.02  # of the random arm's weights
TWO_SIDED_95 = 1.96


def perplexity_of_loss(claim: Claim, evidence: Evidence) -> Finding:
    loss, perplexity = (evidence.figure(claim["experiment"], key) for key in ("loss", "perplexity"))
    apart = abs(math.exp(loss) / perplexity - 1)
    published, follows = f"loss {loss:g}, perplexity {perplexity:g}", f"exp({loss:g}) = {math.exp(loss):.4f}"
    return Finding.either(apart < SAME_FIGURE, published, follows, f"equal within {apart:.2%}", f"{apart:.2%} apart")


def gap(claim: Claim, evidence: Evidence) -> Finding:
    """The published gap from its own figures, and whether ours is one, too."""
    before, after = (evidence.figure(claim[k], "perplexity") for k in ("baseline", "arm"))
    value, found = float(claim["value"]), after / before - 1
    published, follows = f"{value:+.1%}", f"{after:g} / {before:g} = {found:+.1%}"
    if not rounds_to(100 * found, 100 * value):
        return Finding(published, follows, INCONSISTENT, "not what the two perplexities give")
    entry = evidence.experiments[claim["arm"]]
    if pairs := evidence.pairs(entry["dataset"], entry["arms"][0]):
        return Finding(published, follows, *_agreed(pairs, 100 * found))
    side = "above" if 100 * found > GOAL_PERCENT else "within"
    reason = f"{side} the study's own bar of {GOAL_PERCENT:g} %; no runs of ours"
    return Finding(published, follows, CONSISTENT, reason)


def same_conditions(claim: Claim, evidence: Evidence) -> Finding:
    first, second = (evidence.experiments[claim[k]]["training"] for k in ("baseline", "arm"))
    keys = dict.fromkeys([*first, *second])
    different = [f"{k} {first.get(k)} and {second.get(k)}" for k in keys if first.get(k) != second.get(k)]
    reason = "the difference may be the settings', not the method's"
    if overwritten := _overwritten(claim["baseline"], evidence):
        different.insert(0, overwritten)
        reason = "the baseline lost what it had learned before; the difference is not the method's alone"
    published = f"{claim['baseline']} against {claim['arm']}"
    follows = "; ".join(different) or "equal settings"
    return Finding.either(not different, published, follows, "nothing else differs", reason)


def own_start(claim: Claim, evidence: Evidence) -> Finding:
    """Whether a baseline is the pretrained model itself."""
    name = claim["experiment"]
    published = f"{name}, a fine-tuned {evidence.experiments[name]['model']['encoder']}"
    overwritten = _overwritten(name, evidence)
    lost = f"{evidence.shape(claim['model']).qk_share:.1%} of its pretrained parameters were thrown away"
    follows = overwritten or "it begins with its own weights"
    return Finding.either(not overwritten, published, follows, "a fair baseline", lost)


def seeds(claim: Claim, evidence: Evidence) -> Finding:
    published = {name: e["published"].get("seeds") for name, e in evidence.experiments.items() if e.get("published")}
    single = [name for name, count in published.items() if count == 1]
    follows = f"{len(single)} of {len(published)} experiments were run once"
    ours = max((len(arm.runs) for arm in evidence.loaded.arms), default=0) if evidence.loaded else 0
    said = f"up to {ours} seeds per arm" if ours else None
    if single:
        reason = "one seed gives no interval: chance cannot be told apart"
        return Finding("single figures", follows, NOT_TESTED, reason, said)
    return Finding("several seeds", follows, CONSISTENT, "intervals can be given", said)


def orthogonality(claim: Claim, evidence: Evidence) -> Finding:
    """Both frozen arms should differ in orthogonality only; they also differ in scale."""
    arm, control = (evidence.figure(claim[k], "perplexity") for k in ("arm", "control"))
    norm = PUBLISHED_STD * math.sqrt(evidence.shape(claim["model"]).width)  # of a random row; orthonormal ones have 1
    published = f"{control:g} against {arm:g} ({control / arm - 1:+.1%})"
    follows = f"random rows have norm {norm:.2f}, orthonormal rows 1: attention logits differ {1 / norm**2:.1f}×"
    entry = evidence.experiments[claim["arm"]]
    fair = evidence.pairs(entry["dataset"], claim["fair_control"], entry["arms"][0])
    unfair = evidence.pair(entry["dataset"], evidence.experiments[claim["control"]]["arms"][0], entry["arms"][0])
    before = str(unfair) if unfair else None
    if not fair:
        reason = "scale and orthogonality are confounded; no fair control"
        return Finding(published, follows, INCONSISTENT, reason, before)
    verdict, reason, ours = _agreed(fair, 100 * (control / arm - 1))
    ours = "; ".join(filter(None, (before, ours)))
    return Finding(published, follows, verdict, f"at the same scale, {reason}", ours)


def ordering(claim: Claim, evidence: Evidence) -> Finding:
    pairs = evidence.pairs(claim["dataset"], claim["worse"], claim["better"])
    found = _agreed(pairs) if pairs else (NOT_TESTED, "no runs of ours of both", None)
    return Finding(f"{claim['better']} before {claim['worse']}", "can only be measured", *found)


def gap_at_steps(claim: Claim, evidence: Evidence) -> Finding:
    """A gap said of a whole run, by what its log has at its end; the points on the way may say anything."""
    found = {
        f"at step {step:,}" if isinstance(step, int) else f"at the {step}": after / before - 1
        for step, (before, after) in claim["points"].items()
    }
    end, value = list(found.values())[-1], float(claim["value"])
    published, follows = f"{value:+.0%}", ", ".join(f"{gap:+.1%} {place}" for place, gap in found.items())
    if not rounds_to(100 * end, 100 * value):
        return Finding(published, follows, INCONSISTENT, "not what the log has at the end")
    if pairs := evidence.pairs(claim["dataset"], claim["worse"], claim["better"]):
        return Finding(published, follows, *_agreed(pairs, 100 * end))
    return Finding(published, follows, CONSISTENT, "equal at the end, rounded; no runs of ours")


def accuracy_gap(claim: Claim, evidence: Evidence) -> Finding:
    """A difference of two accuracies on one set of rows, beside what chance does to a set of that size."""
    entry = evidence.experiments[claim["arm"]]
    before, after = (evidence.figure(claim[k], "accuracy") for k in ("baseline", "arm"))
    rows, training = evidence.datasets[entry["dataset"]]["judged_rows"], entry["training"]
    looks = evidence.steps(claim["arm"]) // training["eval_every"] if training.get("score") == "best" else 1
    noise = math.sqrt((before * (1 - before) + after * (1 - after)) / rows)
    points, limit = 100 * (after - before), 100 * TWO_SIDED_95 * noise
    published = f"{before:.2%} → {after:.2%}"
    follows = f"{points:+.2f} points; ±{limit:.2f} is chance on {rows:,} examples, were the arms independent"
    follows += f", and each is the best of {looks} looks at them" if looks > 1 else ""
    overwritten = _overwritten(claim["baseline"], evidence)
    as_run = evidence.pair(entry["dataset"], entry["arms"][0], evidence.experiments[claim["baseline"]]["arms"][0])
    beside = f"against a baseline overwritten as theirs was: {as_run}" if overwritten and as_run else None
    pairs = evidence.pairs(entry["dataset"], entry["arms"][0])
    if pairs and pairs[0].gap.t:
        verdict, reason, fair = _agreed(pairs, points)
        if overwritten:
            reason = f"against the pretrained model, {reason}; theirs was not: {overwritten}"
        return Finding(published, follows, verdict, reason, "; ".join(filter(None, (fair, beside))))
    ours = str(pairs[0]) if pairs else beside
    if overwritten:
        return Finding(published, follows, INCONSISTENT, f"the gain is not freezing's: {overwritten}", ours)
    if abs(points) <= limit:
        return Finding(published, follows, NOT_TESTED, "within chance of the rows judged on, with one seed", ours)
    reason = "more than chance of the rows judged on; one seed, other learning rates"
    return Finding(published, follows, CONSISTENT, reason, ours)


def _agreed(pairs: Sequence[Pair], published: float | None = None) -> tuple[str, str, str]:
    """Verdict, reason and our figure by the pair with most seeds, unless another pair says the opposite."""
    verdict, reason = _reproduction(pairs[0], published)
    for pair in pairs[1:]:
        if {verdict, _reproduction(pair, published)[0]} == {REPRODUCED, NOT_REPRODUCED}:
            return NOT_TESTED, "our own comparisons disagree", f"{pairs[0]}; {pair}"
    return verdict, reason, str(pairs[0])


def _reproduction(pair: Pair, published: float | None) -> tuple[str, str]:
    """The one rule. Reproduced: our whole interval has the published sign. Not: all of it is short of half the size.

    Without a size, the published sign is that the first arm is worse. Sizes of models differ too much to ask for more.
    """
    if pair.gap.t is None:
        return NOT_TESTED, "one seed gives no interval"
    worse = -1 if pair.first.metric.higher_is_better else 1
    sign = worse if published is None else math.copysign(1, published)
    low, high = sorted((sign * pair.gap.t.low, sign * pair.gap.t.high))
    unit = "points" if pair.first.metric.gap_in_points else "%"
    first, second = pair.first.method, pair.second.method
    side, other_side = ("worse", "better") if sign == worse else ("better", "worse")
    if high < 0:
        return NOT_REPRODUCED, f"{first} is {other_side} than {second}"
    if published is not None and high < abs(published) / 2:
        return NOT_REPRODUCED, f"{first} is at most {high:.1f} {unit} {side} than {second}, less than half of it"
    if low > 0:
        return REPRODUCED, f"{first} is {side} than {second}, by our whole interval"
    return NOT_TESTED, f"our interval leaves open which of {first} and {second} is better"


def _overwritten(name: str, evidence: Evidence) -> str | None:
    """What a trained arm of a pretrained model throws away of it, in words; None if it begins with its own weights."""
    entry, made = evidence.experiments[name], evidence.made(name)
    replaced = [r for r in ("query", "key") if made.part(r).init != "keep" and made.part(r).init_pretrained is None]
    if not replaced or not made.is_trained or not entry["model"].get("encoder"):
        return None
    drawn = made.part(replaced[0]).init
    return f"{name} trains {' and '.join(replaced)} matrices drawn afresh ({drawn}), not the pretrained ones"
