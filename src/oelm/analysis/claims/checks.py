"""Every kind of claim and the function that works out what follows from it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from oelm.analysis.claims import costs, quality
from oelm.analysis.claims.evidence import Claim, Evidence
from oelm.analysis.claims.findings import Finding
from oelm.errors import unknown

CHECKS: dict[str, Callable[[Claim, Evidence], Finding]] = {
    check.__name__: check
    for check in (
        *(costs.speed_up, costs.total_time, costs.validation_share, costs.memory),
        *(costs.parameter_count, costs.parameter_share, costs.nothing_frozen),
        *(costs.corpus_tokens, costs.experiment_count),
        *(quality.perplexity_of_loss, quality.gap, quality.gap_at_steps, quality.accuracy_gap),
        *(quality.same_conditions, quality.own_start, quality.seeds, quality.orthogonality, quality.ordering),
    )
}


@dataclass(frozen=True)
class Verdict:
    """A finding beside the claim it is about."""

    id: str
    claim: str
    published: str
    follows: str
    ours: str | None
    verdict: str
    reason: str


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[Verdict]:
    """Every claim with what its check found."""
    if odd := next((claim for claim in claims if claim["kind"] not in CHECKS), None):
        raise unknown(f"kind of claim {odd['id']!r}", odd["kind"], CHECKS)
    return [Verdict(c["id"], c["claim"], **asdict(CHECKS[c["kind"]](c, evidence))) for c in claims]
