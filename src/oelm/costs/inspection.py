"""What a model and a method amount to, without allocating anything: parameters, checkpoint size, matmul FLOPs.

>>> facts = inspect_model("medium-512", "oelm_freeze")
>>> facts["total_parameters"], facts["frozen_parameters"]
(44896768, 3145728)
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from oelm.costs.flops import Flops, Matmul, attention_flops, count
from oelm.costs.memory import training_memory
from oelm.errors import OelmError
from oelm.freezing.apply import freeze
from oelm.freezing.methods import Method, method
from oelm.freezing.projections import CONFIG_KEY, Projection, replaced
from oelm.freezing.report import FreezeReport
from oelm.freezing.schedules import USUAL_STEPS, picture, trained_shares
from oelm.freezing.sites import attention_sites
from oelm.models.gpt import GPT, SIZES, GPTConfig
from oelm.runs import checkpoint_bytes

TASK_LENGTH = 128
"""Tokens per text in the study's classification experiments."""


BATCH_SIZE = 8
"""Sequences per step that memory is predicted for, as in the trainer."""


def inspect_model(
    name: str,
    method_name: str | Method,
    *,
    labels: int | None = None,
    sequence_length: int | None = None,
    batch_size: int = BATCH_SIZE,
    gradient_checkpointing: bool = False,
    max_steps: int = USUAL_STEPS,
    **overrides: Any,
) -> dict[str, Any]:
    """Facts about one of our GPT sizes, a published model or a model folder; `labels` gives it a classifier's head.

    `max_steps` is how long a run would be, for methods that change on the way. Peak memory is predicted for our GPT as
    a language model only.
    """
    if name in SIZES and labels is None:
        return inspect_gpt(
            name,
            method_name,
            sequence_length=sequence_length,
            batch_size=batch_size,
            gradient_checkpointing=gradient_checkpointing,
            max_steps=max_steps,
            **overrides,
        )
    from oelm.models.known import named_config

    if name in SIZES:
        from oelm.models.huggingface import GPTForSequenceClassification, HFGPTConfig

        plain = GPTConfig.of_size(name, **overrides)

        def classifier(architecture: Mapping[str, Any]) -> nn.Module:
            shape = plain.with_architecture(architecture)
            return GPTForSequenceClassification(HFGPTConfig(**vars(shape), num_labels=labels))

        length = sequence_length or min(TASK_LENGTH, plain.max_seq_len)
        shape = plain.with_architecture(method(method_name).architecture)
        return _facts(name, vars(shape), method_name, classifier, length, max_steps)
    if overrides:
        raise OelmError(f"{', '.join(overrides)} can be changed only in our own sizes ({', '.join(SIZES)})")
    config, model_class = named_config(name, labels)
    vars(config).pop(CONFIG_KEY, None)  # a folder gives the shape; what stands in it is the method's to say
    length = sequence_length or _usual_length(config, labels)
    return _facts(
        name, config.to_diff_dict(), method_name, lambda _: model_class.from_config(config), length, max_steps
    )


def inspect_gpt(
    size: str,
    method_name: str | Method,
    *,
    sequence_length: int | None = None,
    batch_size: int = BATCH_SIZE,
    gradient_checkpointing: bool = False,
    max_steps: int = USUAL_STEPS,
    **overrides: Any,
) -> dict[str, Any]:
    """Facts about our GPT of a named size under a method, beside the same model under `baseline`."""
    plain = GPTConfig.of_size(size, **overrides)
    config = plain.with_architecture(method(method_name).architecture)
    length = sequence_length or config.max_seq_len
    facts = _facts(
        size, vars(config), method_name, lambda changes: GPT(plain.with_architecture(changes)), length, max_steps
    )
    memory = training_memory(
        config,
        parameters=facts["total_parameters"],
        trainable=facts["most_trainable_parameters"],
        batch=batch_size,
        length=length,
        checkpointing=gradient_checkpointing,
    )
    return {**facts, "training_memory": memory}


def model_flops(
    model: nn.Module,
    *,
    sequence_length: int,
    causal: bool | None = None,
    shares: Mapping[str, float] | None = None,
) -> Flops:
    """Matmul FLOPs per token of a model as it is frozen now, or over a run in which a weight trains only at times.

    An encoder–decoder is counted as if both sides read `sequence_length` tokens. A classifier's head works once per
    sequence, so a token bears its share of it. `causal` is asked of the attention modules unless given.
    """
    sites = attention_sites(model)
    qk = {site.path for site in sites}
    classifier = "Classification" in type(model).__name__
    matmuls = []
    for path, module in model.named_modules():
        if not (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"):
            continue
        weight: torch.Tensor = module.weight
        group = _group(path, qk)
        share = sequence_length if group == "head" and (classifier or "pooler" in path) else 1
        trained = (shares or {}).get(path.removesuffix(".base"), weight.requires_grad)
        matmuls.append(Matmul(group, round(weight.numel() / share), trained=trained))
    for _, module in replaced(model):
        for parameter in module.learned.values() if isinstance(module, Projection) else ():
            if parameter.ndim > 1:  # gains, scales and shifts are no products
                matmuls.append(Matmul("qk", parameter.numel(), trained=parameter.requires_grad))
    gpt = getattr(model, "gpt", model)
    if isinstance(gpt, GPT) and not classifier:  # it reads its logits off the embedding matrix
        head = gpt.embedding.weight
        matmuls.append(Matmul("head", head.numel(), trained=head.requires_grad))
    ours: list[Any] = [module for module in model.modules() if hasattr(module, "attention_flops")]
    attention = sum(module.attention_flops(sequence_length) for module in ours)
    for site in (site for site in sites if site.role == "query" and not ours):
        width = int(site.module(model).out_features)  # type: ignore[arg-type]
        looks_back = _is_causal(model, site.path) if causal is None else causal
        attention += attention_flops(width, sequence_length, looks_back)
    return count(matmuls, attention)


def _group(path: str, qk: set[str]) -> str:
    """By name: what is in no numbered layer comes before all of them (embeddings) or after (heads)."""
    if path in qk or path.removesuffix(".base") in qk:
        return "qk"
    if not re.search(r"\.\d+\.", f".{path}."):
        return "ffn" if "embed" in path else "head"
    return "vo" if re.search(r"attention|attn", path, re.IGNORECASE) else "ffn"


def _is_causal(model: nn.Module, path: str) -> bool:
    """As the nearest module around a projection says that says anything."""
    while path:
        path = path.rpartition(".")[0]
        says = getattr(model.get_submodule(path), "is_causal", None)
        if isinstance(says, bool):
            return says
    return False


def _usual_length(config: Any, labels: int | None) -> int:
    if hasattr(config, "patch_size"):
        return (config.image_size // config.patch_size) ** 2 + 1
    longest = getattr(config, "max_position_embeddings", None) or 512
    return min(TASK_LENGTH, longest) if labels else longest


def _facts(
    name: str,
    config: dict[str, Any],
    method_name: str | Method,
    build: Callable[[Mapping[str, Any]], nn.Module],
    length: int,
    max_steps: int,
) -> dict[str, Any]:
    report, flops = _count(build, method_name, length, max_steps)
    _, baseline = _count(build, "baseline", length, max_steps)
    return {
        "model": name,
        "config": config,
        "sequence_length": length,
        "method": method(method_name).name,
        "total_parameters": report.total_parameters,
        "frozen_parameters": report.frozen_parameters,
        "trainable_parameters": report.trainable_parameters,
        "frozen_share": report.frozen_parameters / report.total_parameters,
        "most_trainable_parameters": report.most_trainable_parameters,
        "checkpoint_bytes": checkpoint_bytes(report.total_parameters, report.most_trainable_parameters),
        "flops_per_token": flops.to_dict(),
        "step_flops_vs_baseline": flops.step / baseline.step,
        "block_flops_vs_baseline": flops.blocks / baseline.blocks,
        "adapters_parameters": sum(site.adapters_parameters for site in report.sites),
        "training": [{"what": what, "when": line} for what, line in picture(report, max_steps)],
    }


def _count(
    build: Callable[[Mapping[str, Any]], nn.Module], method_name: str | Method, length: int, max_steps: int
) -> tuple[FreezeReport, Flops]:
    with torch.device("meta"):
        model = build(method(method_name).architecture)
    report = freeze(model, method_name)
    return report, model_flops(model, sequence_length=length, shares=trained_shares(report, max_steps))
