"""Our committed runs, as small as claims and advice need them, shipped so that both say the same everywhere.

`make evidence` (python -m oelm.analysis.evidence.records results) writes `records.json` anew from the run folders.
"""

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from oelm.analysis.compare.arms import Run
from oelm.analysis.compare.results import Loaded, Skipped, load_runs
from oelm.analysis.report.texts import Note
from oelm.errors import OelmError
from oelm.files import write_atomically
from oelm.runs import FINISHED, RunFolder

FILE = "records.json"
RESULT = ("dataset", "data_fingerprint", "model_family", "steps", "total_parameters", "median_step_time")
TIMES = ("ratio", "low", "high", "predicted")


def shipped() -> Loaded:
    """The records that came with the package. No folder is read."""
    content = json.loads(resources.files("oelm.analysis.evidence").joinpath(FILE).read_text("utf-8"))
    root = Path("results").resolve()  # only a name here: nothing lies below it
    runs = [
        Run(
            name=path,
            folder=RunFolder(root / path),
            config={"method": method, "seed": seed, **content["settings"][number]},
            state=FINISHED,
            step=result["steps"],
            result=result,
            environment={},
            validations=[],
            clock=[],
        )
        for path, method, seed, number, result in content["runs"]
    ]
    repeated = [
        Skipped(root / path, Note("skip_repeated", {"path": str(root / twin)})) for path, twin in content["repeated"]
    ]
    sweeps = {
        root / folder: {
            arm: {float(rate): _score(score) for rate, score in rates.items()} for arm, rates in arms.items()
        }
        for folder, arms in content["sweeps"].items()
    }
    return Loaded(runs, repeated, {root / folder: times for folder, times in content["step_times"].items()}, {}, sweeps)


def gather(results: Path) -> dict[str, Any]:
    """What the package is to hold of the runs below a folder."""
    root, loaded = results.resolve(), load_runs(results)
    if loaded.incomplete:
        raise OelmError(f"{loaded.incomplete[0].folder.path} is not finished; only finished runs are evidence")
    settings: list[dict[str, Any]] = []
    runs = []
    for run in loaded.runs:
        config = {key: value for key, value in run.config.items() if key not in ("method", "seed", "runtime")}
        if config not in settings:
            settings.append(config)
        known = {key: (run.result or {})[key] for key in RESULT if key in (run.result or {})}
        final = {key: run.final[key] for key in (run.metric.key, "loss") if key in run.final}
        place = run.folder.path.resolve().relative_to(root).as_posix()
        runs.append([place, run.config["method"], run.seed, settings.index(config), {**known, "final": final}])
    return {
        "settings": settings,
        "runs": runs,
        "repeated": [
            [_below(root, skipped.path), _below(root, Path(skipped.note.values["path"]))]
            for skipped in loaded.skipped
            if "path" in skipped.note.values
        ],
        "step_times": {
            _below(root, folder): {
                "reference": times["reference"],
                "arms": {arm: {key: facts.get(key) for key in TIMES} for arm, facts in times["arms"].items()},
            }
            for folder, times in loaded.step_times.items()
        },
        "sweeps": {
            _below(root, folder): {
                arm: {f"{rate:g}": None if score != score else score for rate, score in rates.items()}
                for arm, rates in arms.items()
            }
            for folder, arms in loaded.sweeps.items()
        },
    }


def as_text(content: dict[str, Any]) -> str:
    """JSON, a section to a line."""
    return "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in content.items()) + "\n}\n"


def _below(root: Path, path: Path) -> str:
    return path.resolve().relative_to(root).as_posix()


def _score(score: float | None) -> float:
    return float("nan") if score is None else score


if __name__ == "__main__":
    write_atomically(Path(__file__).with_name(FILE), as_text(gather(Path(sys.argv[1]))))
