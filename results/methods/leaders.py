"""Which arms of the screen go on, by the rules of README.md: `python results/methods/leaders.py`.

The catalog entries of the later phases hold what this prints; a test compares them.
"""

import json
import sys
from pathlib import Path

from oelm.analysis.arms import Arm
from oelm.analysis.results import load_runs
from oelm.analysis.statistics import spread
from oelm.errors import OelmError
from oelm.methods import method
from oelm.modifiers import equal_baseline

SCREEN = Path(__file__).parent / "methods-screen"
BOTH, ONE = 3, 2
"""Leaders that freeze queries and keys, and leaders that freeze one of them."""
CONTROLS = ["baseline", "baseline+orthogonal"]
"""Always there: the plain baseline, and the one that begins where the frozen arms stay."""


def main() -> None:
    try:
        chosen = choose(SCREEN)
    except OelmError as error:
        raise SystemExit(f"error: {error}") from None
    json.dump(chosen, sys.stdout, indent=2)
    print()


def choose(screen: Path) -> dict[str, object]:
    """The arms and the learning rate of the phases after the screen."""
    (study,) = load_runs([screen]).studies
    by_rank = sorted(study.arms, key=lambda arm: spread(list(arm.scores.values())).mean)
    both = [arm for arm in by_rank if frozen_throughout(arm) == 2]
    one = [arm for arm in by_rank if frozen_throughout(arm) == 1]
    leaders = [arm.method for arm in sorted([*both[:BOTH], *one[:ONE]], key=by_rank.index)]
    frozen = list(dict.fromkeys(["oelm_freeze", *leaders]))
    baselines = list(dict.fromkeys([*CONTROLS, *map(equal_baseline, frozen)]))
    (plain,) = (arm for arm in study.arms if arm.is_baseline)
    return {"leaders": leaders, "arms": [*baselines, *frozen], "max_lr": plain.best_rate}


def frozen_throughout(arm: Arm) -> int:
    """How many of queries and keys stay frozen in every layer from the first step to the last."""
    made = method(arm.method)
    if made.layers != "all" or made.moves:
        return 0
    return sum(part.frozen for part in (made.query, made.key))


if __name__ == "__main__":
    main()
