"""What a planned run will need, computed before anything is allocated, downloaded or trained."""

from pathlib import Path
from typing import Any

from oelm.costs.inspection import TASK_LENGTH, Costs, costs_of
from oelm.data.labelled import MANIFEST
from oelm.data.tokenization import bpe_size
from oelm.data.tokens import TokenData, read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import Experiment, read
from oelm.experiments.plan import PlannedRun
from oelm.runs import RunFolder

GPT2_VOCABULARY = 50_257
_COUNTED = {"bert-base-uncased": "bert-base", "all-MiniLM-L6-v2": "minilm-l6"}
"""The catalog's encoders by the names of `oelm.models.known`."""


def preview(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """Parameters, steps, tokens, passes over the data, and an estimate of the memory and disk that a run needs.

    What cannot be known before the model is there is None.
    """
    settings = run.config.training
    costs: Costs | None = None
    passes = None
    if experiment.task:
        costs, (steps, passes) = _classifier(run, experiment), _task_length(run, experiment)
    else:
        steps, corpus = steps_of(run), corpus_tokens(run)
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
        "finished": RunFolder(run.folder).result_file.is_file(),
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


def corpus_tokens(run: PlannedRun) -> int | None:
    """Training tokens of the prepared data; None while it is not prepared."""
    try:
        return read_manifest(Path(run.config.data.path))["splits"]["train"]["tokens"]
    except OelmError:
        return None
