"""What a planned run will need, computed on the meta device before anything is allocated, downloaded or trained."""

from pathlib import Path
from typing import Any

from oelm.data.tokenization import bpe_size
from oelm.data.tokens import read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import DataRecipe, Experiment
from oelm.experiments.plan import PlannedRun
from oelm.inspection import inspect_gpt

GPT2_VOCABULARY = 50_257
_VALUES_PER_TOKEN_AND_LAYER = 17
"""Activations kept for the backward pass, in units of the width: attention without its score matrix, FFN, norms."""


def preview(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """Parameters, steps, tokens, passes over the data, and an estimate of the memory and disk that a run needs."""
    if experiment.data is None:
        raise OelmError(f"{experiment.name} cannot be previewed; it is a classification task")
    settings, model = run.config.training, run.config.model
    overrides = {"vocab_size": vocabulary(experiment.data), **model.overrides}
    facts = inspect_gpt(model.size, run.config.method_name, **overrides)
    shape = facts["config"]
    length = settings.sequence_length or shape["max_seq_len"]
    if length > shape["max_seq_len"]:
        raise OelmError(f"sequence_length {length} exceeds the model's max_seq_len {shape['max_seq_len']}; lower it")
    tokens = settings.max_steps * settings.accumulation * settings.batch_size * length
    corpus = corpus_tokens(run)
    return {
        "experiment": experiment.name,
        "arm": "/".join(run.folder.parts[-2:]).removesuffix(f"-{run.seed}"),
        "run": str(run.folder),
        "total_parameters": facts["total_parameters"],
        "frozen_parameters": facts["frozen_parameters"],
        "trainable_parameters": facts["trainable_parameters"],
        "steps": settings.max_steps,
        "tokens": tokens,
        "passes_over_data": tokens / corpus if corpus else None,
        "petaflops": facts["flops_per_token"]["step"] * tokens / 1e15,
        "memory_bytes": memory_bytes(facts, settings.batch_size * length, settings.precision),
        "checkpoint_bytes": facts["checkpoint_bytes"],
    }


def memory_bytes(facts: dict[str, Any], tokens: int, precision: str) -> int:
    """An estimate: weights, their gradients and two moments in float32, and the activations of one micro-batch."""
    shape = facts["config"]
    size = 4 if precision == "fp32" else 2
    weights = 4 * facts["total_parameters"] + 3 * 4 * facts["trainable_parameters"]
    layers = shape["num_layers"] * _VALUES_PER_TOKEN_AND_LAYER * shape["d_model"] * size
    logits = shape["vocab_size"] * (size + 4 + 4)  # the logits, their float32 softmax and its gradient
    return weights + tokens * (layers + logits)


def vocabulary(recipe: DataRecipe) -> int:
    return bpe_size(recipe.tokenizer) or GPT2_VOCABULARY


def corpus_tokens(run: PlannedRun) -> int | None:
    """Training tokens of the prepared data; None while it is not prepared."""
    try:
        return read_manifest(Path(run.config.data.path))["splits"]["train"]["tokens"]
    except OelmError:
        return None
