"""The one place where a classification experiment becomes run configs."""

from collections.abc import Sequence
from pathlib import Path

from oelm.errors import OelmError
from oelm.experiments.entries import Experiment
from oelm.experiments.plan import PlannedRun


def plan_classification(
    experiment: Experiment,
    root: Path,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    threads: int | None = None,
) -> list[PlannedRun]:
    raise OelmError(
        f"{experiment.name} fine-tunes an encoder ({experiment.model.get('name')} on {experiment.dataset}), which this "
        "version cannot run yet; the language models (GPT-01 … GPT-07, controls) can"
    )
