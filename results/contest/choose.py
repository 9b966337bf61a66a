"""Which arms go on, and at which rate, by the rules of README.md: `python results/contest/choose.py`.

The catalog entries of the later phases hold what this prints. `--write` puts the rates of phase 1 beside the runs of
the later phases (`sweep.json`), so that reports know that every arm is at its best of the same ones.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from oelm.errors import OelmError
from oelm.freezing.methods import method
from oelm.runs import find_runs

HERE = Path(__file__).parent
NAMED = "signs_qk+rank=8+layers=not-first1+offset"
"""The candidate named beforehand: it goes on whatever the screen says."""
LEAST_SAVED, MOST_ALIKE = 0.05, 2
PHASE_1 = ("contest-rates", "contest-others", "contest-edge")
RATES = {2e-3, 4e-3, 8e-3}
LATER = ("contest-screen", "contest-fresh", "contest-lengths")


def main() -> None:
    found: dict[str, Any] = {}
    for phase, choose in {
        "rates": rates,
        "into the screen": lambda folder: leaders(folder, "contest-rates", 3),
        "into fresh seeds": lambda folder: leaders(folder, "contest-screen", 2),
    }.items():
        try:
            found[phase] = choose(HERE)
        except OelmError as error:
            found[phase] = {"not yet": str(error)}
    json.dump(found, sys.stdout, indent=2)
    print()
    for folder in (HERE / name for name in LATER if "--write" in sys.argv):
        if folder.is_dir():
            (folder / "sweep.json").write_text(json.dumps({"rates": swept(HERE)}, indent=2, sort_keys=True) + "\n")


def rates(folder: Path, phases: tuple[str, ...] = PHASE_1) -> dict[str, Any]:
    """Every arm's perplexity by learning rate; its best one; whether that lies at an edge, so that one more is due."""
    scores = _by_rate(folder, phases)
    given = Counter(tuple(sorted(of_arm)) for of_arm in scores.values())
    common = set(given.most_common(1)[0][0]) if given else set()
    short = sorted(arm for arm, of_arm in scores.items() if not common <= set(of_arm))
    if short or len(common) < 3:
        raise OelmError(f"phase 1 is not complete: {len(common)} rates, missing for {', '.join(short) or 'all arms'}")
    best = {arm: min(of_arm, key=lambda rate: of_arm[rate]) for arm, of_arm in scores.items()}
    edge = sorted(arm for arm, rate in best.items() if rate in (min(scores[arm]), max(scores[arm])))
    by_rate = {f"{rate:g}": sorted(arm for arm in best if best[arm] == rate) for rate in sorted(set(best.values()))}
    return {"best": by_rate, "at an edge": edge, "perplexity": scores}


def swept(folder: Path) -> dict[str, dict[str, float]]:
    """Perplexity by rate of the arms that have been given all three."""
    scores = _by_rate(folder, PHASE_1)
    return {
        arm: {f"{rate:g}": score for rate, score in one.items()} for arm, one in scores.items() if one.keys() >= RATES
    }


def leaders(folder: Path, phase: str, most: int) -> list[str]:
    """The best cheap arms of a phase beside the named one, each at its best rate: those that save enough, few alike."""
    runs: dict[str, dict[str, Any]] = {}
    for run in sorted(_finished(folder, (phase,)), key=lambda run: run["perplexity"]):
        runs.setdefault(run["method"], run)
    if not {"baseline", NAMED} <= set(runs):
        raise OelmError(f"{phase} is not complete")
    most_flops = (1 - LEAST_SAVED) * runs["baseline"]["block_flops"]
    chosen = [NAMED]
    for arm, run in runs.items():
        saves = is_cheap(arm) and run["block_flops"] <= most_flops and arm != NAMED
        if saves and len(chosen) <= most and sum(alike(arm, other) for other in chosen) < MOST_ALIKE:
            chosen.append(arm)
    return chosen[1:]


def is_cheap(arm: str) -> bool:
    """Whether queries or keys are frozen or without weights, in some layers at least."""
    made = method(arm)
    return any(part.frozen for part in (made.query, made.key))


def alike(one: str, other: str) -> bool:
    """Whether two arms differ only in a rank or in one modifier.

    >>> alike("signs_qk+rank=8+offset", "signs_qk+rank=4+offset"), alike("signs_qk+offset", "permutation_qk+offset")
    (True, False)
    """
    (first, *mine), (second, *theirs) = (re.sub(r"rank=\d+", "rank", arm).split("+") for arm in (one, other))
    return first == second and len(set(mine) ^ set(theirs)) <= 1


def _by_rate(folder: Path, phases: tuple[str, ...]) -> dict[str, dict[float, float]]:
    scores: dict[str, dict[float, float]] = {}
    for run in _finished(folder, phases):
        scores.setdefault(run["method"], {})[run["max_lr"]] = run["perplexity"]
    return scores


def _finished(folder: Path, phases: tuple[str, ...]) -> list[dict[str, Any]]:
    found = []
    for phase in phases:
        for run in find_runs(folder / phase):
            result, training = run.result(), run.config()["training"]
            if result:
                facts = {"perplexity": result["final"]["perplexity"], "block_flops": result["block_flops_per_token"]}
                found.append({"method": result["method"], "max_lr": training["max_lr"], **facts})
    return found


if __name__ == "__main__":
    main()
