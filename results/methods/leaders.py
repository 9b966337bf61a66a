"""Which arms go on from phase to phase, by the rules of README.md: `python results/methods/leaders.py`.

The catalog entries of the later phases hold what this prints; a test compares them.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.compare.record import gap_of
from oelm.analysis.compare.results import require_finished
from oelm.analysis.compare.statistics import paired_gap
from oelm.costs.inspection import inspect_model
from oelm.errors import OelmError
from oelm.freezing.modifiers import equal_baseline
from oelm.runs import diverged

HERE = Path(__file__).parent
SCREEN = HERE / "methods-screen"
CONFIRMED = (HERE / "methods-confirm", HERE / "methods-layers")
BOTH, ONE = 3, 2
"""Leaders that freeze queries and keys, and leaders that freeze one of them."""
CONTROLS = ["baseline", "baseline+orthogonal"]
"""Always there: the plain baseline, and the one that begins where the frozen arms stay."""
LEAST_SAVED = 0.08
"""Of the blocks' matmul FLOPs, in layers that do without weights."""


def main() -> None:
    try:
        chosen = {"screen": choose(SCREEN), "other text": later(CONFIRMED, one_of_two=True), "larger": later(CONFIRMED)}
    except OelmError as error:
        raise SystemExit(f"error: {error}") from None
    json.dump(chosen, sys.stdout, indent=2)
    print()


def choose(screen: Path) -> dict[str, object]:
    """The arms and the learning rate of the phases after the screen."""
    study = _complete(screen)
    by_rank = sorted(study.arms, key=lambda arm: arm.score)
    both = [arm for arm in by_rank if frozen_throughout(arm) == 2]
    one = [arm for arm in by_rank if frozen_throughout(arm) == 1]
    leaders = [arm.method for arm in sorted([*both[:BOTH], *one[:ONE]], key=by_rank.index)]
    frozen = list(dict.fromkeys(["oelm_freeze", *leaders]))
    baselines = list(dict.fromkeys([*CONTROLS, *map(equal_baseline, frozen)]))
    (plain,) = (arm for arm in study.arms if arm.is_baseline)
    return {"leaders": leaders, "arms": [*baselines, *frozen], "max_lr": plain.best_rate}


def later(folders: Iterable[Path], one_of_two: bool = False) -> list[str]:
    """The arms of phases 3 and 4: `oelm_freeze`, the best that does without both everywhere, the best that does so in
    some layers, for phase 3 the best that does without one of the two; and their baselines."""
    loaded = require_finished(folders)
    (study,) = loaded.comparisons
    leaders = [arm for arm in study.arms if arm.method != "oelm_freeze"]
    both, one = ([arm for arm in leaders if frozen_throughout(arm) == count] for count in (2, 1))
    somewhere = [arm for arm in leaders if arm.made.freezes and arm.made.layers != "all" and saved(arm) >= LEAST_SAVED]
    if loaded.incomplete or not (both and somewhere and (one or not one_of_two)):
        raise OelmError(f"phases 2 and 2b are not complete: {len(loaded.incomplete)} runs are not finished")
    best = [*([min(one, key=_own_gap)] if one_of_two else []), min(both, key=_own_gap), min(somewhere, key=_plain_gap)]
    frozen = ["oelm_freeze", *(arm.method for arm in best)]
    return list(dict.fromkeys([*map(equal_baseline, frozen), *frozen]))


def _own_gap(arm: Arm) -> float:
    return gap_of(arm).value  # type: ignore[union-attr] # every arm has a baseline here


def _plain_gap(arm: Arm) -> float:
    return paired_gap(arm.metric, arm.scores, arm.plain_baseline.scores).value  # type: ignore[union-attr]


def saved(arm: Arm) -> float:
    """The share of the blocks' matmul FLOPs that an arm does without."""
    facts = inspect_model("demo", arm.made, vocab_size=2048, **arm.runs[0].config["model"]["overrides"])
    return 1 - facts["block_flops_vs_baseline"]


def _complete(screen: Path) -> Comparison:
    """The screen as one study, in which every arm was given the same rates; anything else would choose at random."""
    loaded = require_finished([screen])
    missing = [f"{run.name} is {run.state}" for run in loaded.incomplete if not diverged(run.folder.status())]
    missing += [f"{skipped.path}: {skipped.reason}" for skipped in loaded.skipped]
    rates = {tuple(arm.rates) for arm in loaded.arms}
    if len(rates) > 1 or len(loaded.comparisons) > 1 or not all(rates):
        missing.append("not every arm was given the same rates")
    if missing:
        raise OelmError(f"the screen is not complete: {'; '.join(missing[:3])}")
    return loaded.comparisons[0]


def frozen_throughout(arm: Arm) -> int:
    """How many of queries and keys stay frozen in every layer from the first step to the last."""
    if arm.made.layers != "all" or arm.made.moves:
        return 0
    return sum(part.frozen for part in (arm.made.query, arm.made.key))


if __name__ == "__main__":
    main()
