"""What a plan will need: counted before anything is allocated or downloaded; and what of it fits into a time."""

import contextlib
import heapq
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.costs.inspection import TASK_LENGTH, Costs, costs_of
from oelm.data.labelled import MANIFEST
from oelm.data.tokenization import bpe_size
from oelm.data.tokens import TokenData, read_manifest
from oelm.errors import OelmError
from oelm.experiments.engines import Local
from oelm.experiments.entries import Experiment, read
from oelm.experiments.plan import PlannedRun
from oelm.runs import RunFolder, config_differences

GPT2_VOCABULARY = 50_257
_COUNTED = {"bert-base-uncased": "bert-base", "all-MiniLM-L6-v2": "minilm-l6"}
"""The catalog's encoders by the names of `oelm.models.known`."""
TRIAL_STEPS = 6
START_SECONDS = 5.0  # of a process, before its run counts the time
MEAN_OVER_MEDIAN = 1.1  # of step times, in our own runs: some steps are held up


def preview(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """What a run computes, and an estimate of what it needs; None is what cannot be known before the model is there."""
    settings = run.config.training
    costs: Costs | None = None
    passes = None
    if experiment.task:
        costs, (steps, passes) = _classifier(run, experiment), _task_length(run, experiment)
    else:
        steps, corpus = steps_of(run), None
        with contextlib.suppress(OelmError):  # not prepared yet
            corpus = read_manifest(Path(run.config.data.path))["splits"]["train"]["tokens"]
        rows = (Path(run.config.data.path) / MANIFEST).is_file()
        costs = _language_model(run, experiment) if run.config.model.size and not rows else None
    length = costs.sequence_length if costs else settings.sequence_length or TASK_LENGTH
    tokens = steps * settings.accumulation * settings.batch_size * length
    if experiment.data is not None:
        passes = tokens / corpus if corpus else None
    return {
        "experiment": experiment.name,
        "arm": "/".join(run.folder.parts[-2:]).removesuffix(f"-{run.seed}"),
        "run": str(run.folder),
        "finished": _is_finished(run),
        "total_parameters": costs and costs.total_parameters,
        "frozen_parameters": costs and costs.frozen_parameters,
        "trainable_parameters": costs and costs.trainable_parameters,
        "steps": steps,
        "tokens": tokens,
        "passes_over_data": passes,
        "petaflops": costs and costs.flops.step * tokens / 1e15,
        "memory_bytes": costs and costs.memory and costs.memory.peak_bytes,
        "checkpoint_bytes": costs and costs.checkpoint_bytes,
    }


def steps_of(run: PlannedRun) -> int:
    """Optimizer steps; of epochs, as many as its data make."""
    settings = run.config.training
    if settings.max_steps:
        return settings.max_steps
    from oelm.training.setup import open_data

    data = open_data(Path(run.config.data.path))
    if isinstance(data, TokenData):
        raise OelmError(f"epochs {settings.epochs:g} are for classification and pairs; give max_steps for {data.path}")
    return data.steps(settings.epochs or 1, settings.batch_size, settings.accumulation)


def _language_model(run: PlannedRun, experiment: Experiment) -> Costs:
    assert experiment.data is not None
    model, vocabulary = run.config.model, bpe_size(experiment.data.tokenizer) or GPT2_VOCABULARY
    if experiment.data.path:
        vocabulary = read_manifest(Path(run.config.data.path))["tokenizer"]["vocab_size"]
    costs = costs_of(model.size, run.config.method, vocab_size=vocabulary, **_how(run), **model.overrides)
    longest = costs.config["max_seq_len"]
    if costs.sequence_length > longest:
        raise OelmError(f"sequence_length {costs.sequence_length} exceeds the model's max_seq_len {longest}; lower it")
    return costs


def _classifier(run: PlannedRun, experiment: Experiment) -> Costs | None:
    """Of an encoder that we know by name, or that lies in a folder; nothing is asked of the network."""
    encoder = str(run.config.model.name)
    known = encoder if (Path(encoder) / "config.json").is_file() else _COUNTED.get(encoder.rpartition("/")[2])
    labels = read("facts")["datasets"][experiment.dataset]["labels"]
    how = {"sequence_length": TASK_LENGTH, **_how(run)}
    return costs_of(known, run.config.method, labels=labels, **how) if known else None


def _task_length(run: PlannedRun, experiment: Experiment) -> tuple[int, float]:
    """Steps of a classification run, and passes over its rows."""
    assert experiment.task is not None
    settings, dataset = run.config.training, read("facts")["datasets"][experiment.dataset]
    batches = -(-(experiment.task.train_rows or dataset["train_rows"]) // settings.batch_size)
    steps = settings.max_steps or max(1, round((settings.epochs or 0) * batches / settings.accumulation))
    return steps, steps * settings.accumulation / batches


def _is_finished(run: PlannedRun) -> bool:
    """Whether this very run is there; one of another config will be refused, and is told before."""
    folder = RunFolder(run.folder)
    if not folder.result_file.is_file():
        return False
    apart = config_differences(folder.config(), run.config.to_dict())
    if apart := [one for one in apart if not one.startswith("data.path ")]:
        raise OelmError(f"{run.folder} holds a run of another config ({'; '.join(apart[:4])}); choose another --out")
    return True


def _how(run: PlannedRun) -> dict[str, Any]:
    """How a run trains, as far as it costs anything; on the device that it would take here."""
    import torch

    settings, runtime = run.config.training, run.config.runtime
    here = "cuda" if torch.cuda.is_available() else "cpu"
    device = {"auto": here}.get(runtime.device, runtime.device)
    given = {"sequence_length": settings.sequence_length, "max_steps": settings.max_steps}
    return {
        **{name: value for name, value in given.items() if value},
        "batch_size": settings.batch_size,
        "precision": settings.precision,
        "accumulates": settings.accumulation > 1,
        "gradient_checkpointing": runtime.gradient_checkpointing,
        "cpu": device == "cpu" and settings.precision != "fp16",  # which needs a GPU
    }


def within(
    planned: Sequence[PlannedRun], seconds: float, engine: Local, say: Callable[[str], None]
) -> list[PlannedRun]:
    """The first runs of a plan that end within so many seconds, finished ones among them; says what is left out."""
    began = time.monotonic()
    done = [run for run in planned if RunFolder(run.folder).result_file.is_file()]
    waiting = [run for run in planned if run not in done]
    if not waiting:
        return done
    needs = _seconds_per_run(done, waiting, engine, say)
    left = seconds - (time.monotonic() - began)
    chosen, end = _first_that_fit(waiting, needs, left, len(engine.places))
    later = waiting[len(chosen) :]
    if not chosen:
        first = waiting[0].folder
        why = f"no run fits into {in_words(seconds)}: {first} needs about {in_words(needs[first])}"
        raise OelmError(f"{why}; give a larger --budget, or fewer steps (--set training.max_steps=…)")
    words = f"{in_words(seconds)}: {len(chosen)} of {len(waiting)} runs fit, in about {in_words(end)}"
    whole = [seed for seed in dict.fromkeys(run.seed for run in planned) if seed not in {run.seed for run in later}]
    if later:
        rest = in_words(sum(needs[run.folder] for run in later) / len(engine.places))
        seeds = f"complete seeds: {', '.join(map(str, whole)) or 'none'}"
        words += f"; {len(later)} more would take about {rest} ({seeds}), the same command goes on with them"
    say(words)
    return [run for run in planned if run in done or run in chosen]


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(5000), in_words(7200)
    ('42 s', '1 h 23 min', '2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(f"{n} {unit}" for n, unit in ((hours, "h"), (minutes, "min")) if n)


def _first_that_fit(
    runs: Sequence[PlannedRun], needs: dict[Path, float], seconds: float, places: int
) -> tuple[list[PlannedRun], float]:
    """Runs go to the first free place, in their order: a prefix, so that seeds are completed one by one."""
    free, chosen, last = [0.0] * places, list[PlannedRun](), 0.0
    for run in runs:
        end = heapq.heappop(free) + needs[run.folder]
        if end > seconds:
            break
        heapq.heappush(free, end)
        chosen.append(run)
        last = max(last, end)
    return chosen, last


def _seconds_per_run(
    done: Sequence[PlannedRun], waiting: Sequence[PlannedRun], engine: Local, say: Callable[[str], None]
) -> dict[Path, float]:
    known = {_arm(run): START_SECONDS + float(RunFolder(run.folder).result()["wall_seconds"]) for run in done}  # type: ignore[index]
    untried = {_arm(run): run for run in reversed(waiting) if _arm(run) not in known}
    if untried:
        arms = "arm" if len(untried) == 1 else "arms"
        say(f"trying {len(untried)} {arms} for {TRIAL_STEPS} steps each, to know what fits")
        known |= _tried(untried, engine)
    return {run.folder: known[_arm(run)] * (1 - _share_done(run)) for run in waiting}


def _arm(run: PlannedRun) -> str:
    """What decides how long a run takes: all but its seed and where its data lie."""
    config = run.config.to_dict()
    return json.dumps({key: config[key] for key in ("method", "model", "training")} | {"in": run.experiment})


def _share_done(run: PlannedRun) -> float:
    try:
        status = RunFolder(run.folder).status()
        return status["step"] / status["max_steps"]
    except (OelmError, KeyError, TypeError, ZeroDivisionError):
        return 0.0


def _tried(runs: dict[str, PlannedRun], engine: Local) -> dict[str, float]:
    """Every arm trained for a few steps, as many at a time as will be, and thrown away."""
    with tempfile.TemporaryDirectory(prefix="oelm-trial-") as folder:
        trials = {arm: _trial(run, Path(folder) / str(i)) for i, (arm, run) in enumerate(runs.items())}
        for job in engine.run(list(trials.values())):
            if job.failed or job.stopped:
                raise OelmError(f"{job.run.arm} cannot be trained: {' '.join(job.last_words.split())}")
        return {arm: _expected(runs[arm], RunFolder(trial.folder).result() or {}) for arm, trial in trials.items()}


def _trial(run: PlannedRun, folder: Path) -> PlannedRun:
    config = run.config.model_copy(deep=True)
    kept = config.training.model_dump(exclude={"epochs", "warmup_ratio"})
    often = dict.fromkeys(("max_steps", "eval_every", "checkpoint_every"), TRIAL_STEPS)
    training = {**kept, **often, "warmup_steps": 0, "eval_tokens": 1}
    config.training = type(config.training).model_validate(training)
    config.runtime.trackers = []
    return replace(run, config=config, folder=folder)


def _expected(run: PlannedRun, trial: dict[str, Any]) -> float:
    """From a few steps to all of them: the steps, validations on the way, and what comes once (the last validation)."""
    training, steps = run.config.training, steps_of(run)
    step = MEAN_OVER_MEDIAN * trial["median_step_time"]
    once = START_SECONDS + max(0.0, trial["wall_seconds"] - trial["training_seconds"])
    share = trial["validation_seconds"] / trial["final"].get("tokens", 1)
    on_the_way = training.eval_budget * steps * step
    if training.eval_tokens is not None:
        each = trial["validation_seconds"] if training.eval_tokens == "all" else share * training.eval_tokens
        on_the_way = each * (steps // (training.eval_every or steps))
    return once + steps * step + on_the_way
