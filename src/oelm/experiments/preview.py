"""What a planned run will need, computed before anything is allocated, downloaded or trained."""

from pathlib import Path
from typing import Any

from oelm.costs.shapes import Shape
from oelm.data.tokenization import bpe_size
from oelm.data.tokens import read_manifest
from oelm.errors import OelmError
from oelm.experiments.entries import DataRecipe, Experiment, read
from oelm.experiments.plan import PlannedRun
from oelm.freezing.methods import method
from oelm.runs import RunFolder, checkpoint_bytes

GPT2_VOCABULARY = 50_257
TASK_LENGTH = 128
_VALUES_PER_TOKEN_AND_LAYER = 17
"""Activations kept for the backward pass, in units of the width: attention without its score matrix, FFN, norms."""


def preview(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """Parameters, steps, tokens, passes over the data, and an estimate of the memory and disk that a run needs.

    What cannot be known before the model is there is None.
    """
    facts = _classifier(run, experiment) if experiment.task else _language_model(run, experiment)
    total, frozen = facts["total_parameters"], facts["frozen_parameters"]
    return {
        "experiment": experiment.name,
        "arm": "/".join(run.folder.parts[-2:]).removesuffix(f"-{run.seed}"),
        "run": str(run.folder),
        "finished": RunFolder(run.folder).result_file.is_file(),
        **facts,
        "trainable_parameters": total and total - frozen,
        "checkpoint_bytes": total and checkpoint_bytes(total, total - frozen),
    }


def _language_model(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """From the model itself, on the meta device."""
    from oelm.costs.inspection import inspect_gpt

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


def _classifier(run: PlannedRun, experiment: Experiment) -> dict[str, Any]:
    """From the shape of an encoder that the catalog knows; of another one, the steps."""
    assert experiment.task is not None
    settings, dataset = run.config.training, read("facts")["datasets"][experiment.dataset]
    known = read("facts")["models"].get(str(run.config.model.encoder).rpartition("/")[2])
    length = settings.sequence_length or TASK_LENGTH
    batches = -(-(experiment.task.train_rows or dataset["train_rows"]) // settings.batch_size)
    steps = settings.max_steps or max(1, round((settings.epochs or 0) * batches / settings.accumulation))
    tokens = steps * settings.accumulation * settings.batch_size * length
    facts = {"steps": steps, "tokens": tokens, "passes_over_data": steps * settings.accumulation / batches}
    if known is None:
        unknown = ("total_parameters", "frozen_parameters", "petaflops", "memory_bytes")
        return {**facts, **dict.fromkeys(unknown)}
    shape = Shape(**{**known, "labels": dataset["labels"], "sequence_length": length})
    chosen = method(run.config.method)
    frozen = sum(part.frozen for part in (chosen.query, chosen.key)) * shape.qk_parameters // 2
    layer_values = settings.batch_size * length * shape.layers * shape.width
    return {
        **facts,
        "total_parameters": shape.parameters,
        "frozen_parameters": frozen,
        "petaflops": shape.flops(frozen=chosen.query.frozen and chosen.key.frozen).step * tokens / 1e15,
        "memory_bytes": memory_bytes(shape.parameters, shape.parameters - frozen, layer_values, 0, settings.precision),
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
