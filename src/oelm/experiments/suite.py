"""A whole experiment: prepare its data, run its plan, then time its arms side by side."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oelm.data.corpora import find_source
from oelm.data.prepare import prepare
from oelm.data.tokens import TokenData
from oelm.experiments.plan import Experiment, plan
from oelm.experiments.runner import Job, run_all
from oelm.files import write_json
from oelm.training.environment import usable_cores

STEP_TIME_FILE = "step_time.json"


def run_suite(
    experiment: Experiment,
    root: Path,
    *,
    slots: int | None = None,
    watch: Callable[[list[Job]], None] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> list[Job]:
    """Run an experiment below `root`; finished runs are reused, interrupted ones resumed."""
    cores = usable_cores()
    slots = slots or cores
    root.mkdir(parents=True, exist_ok=True)
    say(f"preparing {experiment.data.corpus} with tokenizer {experiment.data.tokenizer}")
    data = prepare_data(experiment, root)
    planned = plan(experiment, data, root, threads=max(1, cores // slots))
    say(f"{len(planned)} runs, {slots} at a time")
    return run_all(planned, slots=slots, watch=watch)


def prepare_data(experiment: Experiment, root: Path) -> TokenData:
    recipe = experiment.data
    source = find_source([recipe.corpus], megabytes=recipe.megabytes, validation_megabytes=recipe.validation_megabytes)
    return prepare(source, root / "data", recipe.tokenizer)


def time_arms(experiment: Experiment, root: Path, *, rounds: int = 24) -> dict[str, Any]:
    """Interleaved step times of the arms, measured once and kept beside the runs."""
    file = root / STEP_TIME_FILE
    if file.is_file():
        return json.loads(file.read_text())
    from oelm.training.arms import compare_step_times
    from oelm.training.setup import choose_device, model_config

    data = TokenData.open(root / "data")
    first = plan(experiment, data, root)[0].config
    times = compare_step_times(
        experiment.arms,
        model_config(first, data.vocab_size),
        first.training,
        rounds=rounds,
        device=str(choose_device(first.runtime.device, first.training.precision)),
    )
    write_json(file, times)
    return times
