"""What a planned run will need, computed before anything is allocated, downloaded or trained."""

from pathlib import Path
from typing import Any

from oelm.analysis.shapes import Shape
from oelm.data.tokenization import bpe_size
from oelm.data.tokens import read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import DataRecipe, Experiment, read
from oelm.experiments.plan import PlannedRun
from oelm.methods import method
from oelm.runs import checkpoint_bytes

GPT2_VOCABULARY = 50_257
_VALUES_PER_TOKEN_AND_LAYER = 17
"""Activations kept for the backward pass, in units of the width: attention without its score matrix, FFN, norms."""


def preview(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """Parameters, steps, tokens, passes over the data, and an estimate of the memory and disk that a run needs."""
    facts = _encoder(run, experiment) if experiment.task else _language_model(run, experiment)
    trained = facts["total_parameters"] - facts["frozen_parameters"]
    return {
        "experiment": experiment.name,
        "arm": "/".join(run.folder.parts[-2:]).removesuffix(f"-{run.seed}"),
        "run": str(run.folder),
        **facts,
        "trainable_parameters": trained,
        "checkpoint_bytes": checkpoint_bytes(facts["total_parameters"], trained),
    }


def _language_model(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """From the model itself, on the meta device."""
    from oelm.inspection import inspect_gpt

    assert experiment.data is not None
    settings, model = run.config.training, run.config.model
    overrides = {"vocab_size": vocabulary(experiment.data), **model.overrides}
    facts = inspect_gpt(model.size, run.config.method_name, **overrides)
    shape = facts["config"]
    length = settings.sequence_length or shape["max_seq_len"]
    if length > shape["max_seq_len"]:
        raise OelmError(f"sequence_length {length} exceeds the model's max_seq_len {shape['max_seq_len']}; lower it")
    batch = settings.batch_size * length
    tokens = settings.max_steps * settings.accumulation * batch
    corpus = corpus_tokens(run)
    return {
        "total_parameters": facts["total_parameters"],
        "frozen_parameters": facts["frozen_parameters"],
        "steps": settings.max_steps,
        "tokens": tokens,
        "passes_over_data": tokens / corpus if corpus else None,
        "petaflops": facts["flops_per_token"]["step"] * tokens / 1e15,
        "memory_bytes": memory_bytes(
            facts["total_parameters"],
            facts["trainable_parameters"],
            batch * shape["num_layers"] * shape["d_model"],
            batch * shape["vocab_size"],
            settings.precision,
        ),
    }


def _encoder(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """From the shape of an encoder that the catalog knows; another one is known when it is downloaded."""
    encoder = str(experiment.model.get("encoder")).rpartition("/")[2]
    known, dataset = read("facts")["models"], read("facts")["datasets"][experiment.dataset]
    if encoder not in known:
        raise OelmError(
            f"{experiment.name}: nothing is known of {encoder} before it is there; preview it at scale full"
        )
    shape = Shape(**{**known[encoder], "labels": dataset["labels"]})
    chosen, training = method(run.config.method), experiment.training
    frozen = sum(part.frozen for part in (chosen.query, chosen.key)) * shape.qk_parameters // 2
    batch = training["batch_size"] * training["sequence_length"]
    rows = (experiment.task and experiment.task.train_rows) or dataset["train_rows"]
    steps = training["epochs"] * -(-rows // training["batch_size"])
    flops = shape.flops(frozen=chosen.query.frozen and chosen.key.frozen).step
    return {
        "total_parameters": shape.parameters,
        "frozen_parameters": frozen,
        "steps": steps,
        "tokens": steps * batch,
        "passes_over_data": training["epochs"],
        "petaflops": flops * steps * batch / 1e15,
        "memory_bytes": memory_bytes(
            shape.parameters,
            shape.parameters - frozen,
            batch * shape.layers * shape.width,
            0,
            run.config.training.precision,
        ),
    }


def memory_bytes(parameters: int, trained: int, layer_values: int, logits: int, precision: str) -> int:
    """An estimate: weights, gradients and two moments in float32, and the activations of one micro-batch."""
    size = 4 if precision == "fp32" else 2
    activations = layer_values * _VALUES_PER_TOKEN_AND_LAYER * size
    return 4 * (parameters + 3 * trained) + activations + logits * (size + 4 + 4)  # softmax in float32, its gradient


def vocabulary(recipe: DataRecipe) -> int:
    return bpe_size(recipe.tokenizer) or GPT2_VOCABULARY


def corpus_tokens(run: PlannedRun) -> int | None:
    """Training tokens of the prepared data; None while it is not prepared."""
    try:
        return read_manifest(Path(run.config.data.path))["splits"]["train"]["tokens"]
    except OelmError:
        return None
