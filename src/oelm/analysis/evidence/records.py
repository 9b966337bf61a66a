"""Our committed runs, as small as claims and advice need them, shipped so that both say the same everywhere.

`make evidence` (python -m oelm.analysis.evidence.records results) writes `records.json` anew from the run folders.
"""

import json
import math
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from oelm.analysis.compare.arms import Run
from oelm.analysis.compare.results import Loaded, load_runs, read_rates
from oelm.errors import OelmError
from oelm.files import write_atomically
from oelm.runs import FAILED, FINISHED, RunFolder

FILE = "records.json"
RESULT = ["dataset", "data_fingerprint", "model_family", "model_name", "steps", "tokens", "flops_per_token"]
RESULT += ["total_parameters", "median_step_time"]
TIMES = ("ratio", "low", "high", "predicted", "verdict")


def shipped() -> Loaded:
    """The records that came with the package. No folder is read."""
    content = json.loads(resources.files("oelm.analysis.evidence").joinpath(FILE).read_text("utf-8"))
    root = Path("results").resolve()  # only a name here: nothing lies below it
    runs = [
        Run(
            name=path,
            folder=RunFolder(root / path),
            config={"method": method, "seed": seed, **content["settings"][setting]},
            state=FINISHED,
            step=result["steps"],
            result=result,
            environment={},
            validations=[],
            measured=tuple(content["step_times"][number] for number in timed),
        )
        for path, method, seed, setting, timed, result in content["runs"]
    ]
    sweeps = {root / folder: read_rates(arms) for folder, arms in content["sweeps"].items()}
    return Loaded(runs, [], {}, sweeps)


def gather(results: Path) -> dict[str, Any]:
    """What the package is to hold of the runs below a folder."""
    root, loaded = results.resolve(), load_runs(results)
    if failed := [run.folder.path for run in loaded.incomplete if run.state == FAILED]:
        raise OelmError(f"{failed[0]} failed, which the evidence has no room for; resume the run or remove it")
    settings: list[dict[str, Any]] = []
    step_times: list[dict[str, Any]] = []
    runs = []
    for run in loaded.finished:
        config = {key: value for key, value in run.config.items() if key not in ("method", "seed", "runtime")}
        timed = [_place(_times(found), step_times) for found in run.measured]
        known = {key: (run.result or {})[key] for key in RESULT if key in (run.result or {})}
        final = {key: run.final[key] for key in (run.metric.key, "loss") if key in run.final}
        path = run.folder.path.resolve().relative_to(root).as_posix()
        result = {**known, "final": final}
        runs.append([path, run.config["method"], run.seed, _place(config, settings), timed, result])
    sweeps = {
        folder.resolve().relative_to(root).as_posix(): {
            arm: {f"{rate:g}": None if math.isnan(score) else score for rate, score in rates.items()}
            for arm, rates in arms.items()
        }
        for folder, arms in loaded.sweeps.items()
    }
    return {"settings": settings, "step_times": step_times, "sweeps": sweeps, "runs": runs}


def as_text(content: dict[str, Any]) -> str:
    """JSON, a section to a line."""
    return "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in content.items()) + "\n}\n"


def _place(value: dict[str, Any], known: list[dict[str, Any]]) -> int:
    """Its number among those that are known, of which it is one from now on."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _times(found: dict[str, Any]) -> dict[str, Any]:
    kept = {key: found[key] for key in ("reference", "reference_median_seconds") if key in found}
    return kept | {"arms": {arm: {k: f[k] for k in TIMES if k in f} for arm, f in found["arms"].items()}}


if __name__ == "__main__":
    write_atomically(Path(__file__).with_name(FILE), as_text(gather(Path(sys.argv[1]))))
