"""Every kind of claim and the function that works out what follows from it."""

from collections.abc import Callable

from oelm.analysis.claims import costs, quality
from oelm.analysis.claims.verdicts import Claim, Evidence, Finding

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
