"""The matrix products of a real model, read off its modules: what `oelm.costs.flops` adds up."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from oelm.costs.flops import Flops, Matmul, attention_flops, count
from oelm.freezing.projections import Projection, replaced
from oelm.freezing.sites import attention_sites
from oelm.models.gpt import GPT


def model_flops(
    model: nn.Module,
    *,
    sequence_length: int,
    shares: Mapping[str, float] | None = None,
) -> Flops:
    """Matmul FLOPs per token of a model as it is frozen now, or over a run in which a weight trains only at times.

    An encoder–decoder is counted as if both sides read `sequence_length` tokens. A classifier's head works once per
    sequence, so a token bears its share of it. Attention is asked for its own `attention_flops`, if it has that.
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
    own: list[Any] = [module for module in model.modules() if hasattr(module, "attention_flops")]
    attention = sum(module.attention_flops(sequence_length) for module in own)
    for site in (site for site in sites if site.role == "query" and not own):
        width = int(site.module(model).out_features)  # type: ignore[arg-type]
        attention += attention_flops(width, sequence_length, _is_causal(model, site.path))
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
