"""Matmul FLOPs of a training step: what is really computed, counted from a model's own modules.

A weight of n entries costs 2n FLOPs per token forward, 2n backward for the gradient of its input, and 2n more for its
own gradient, which a frozen weight does not have. Attention's two products cost 4·context·width per token and layer
forward (queries with keys, weights with values) and twice that backward; in causal attention the mean context is half
the sequence. Kernels that recompute the forward pass inside the backward pass do more than this.

>>> block = [Matmul("qk", 2 * 512**2, trained=False), Matmul("rest", 10 * 512**2)]
>>> trained = [Matmul("qk", 2 * 512**2), Matmul("rest", 10 * 512**2)]
>>> round(1 - count(block).step / count(trained).step, 4)  # the most that freezing queries and keys can save
0.0556
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from oelm.freezing.projections import Projection, replaced
from oelm.freezing.sites import attention_sites
from oelm.models.gpt import GPT

GROUPS = ("qk", "vo", "ffn", "head", "attention")
BLOCK_MATRICES = ("qk", "vo", "ffn")


@dataclass(frozen=True)
class Matmul:
    """One weight matrix that every token passes through."""

    group: str
    weights: int
    trained: float = True
    """Whether it has a gradient of its own, or at which share of the steps."""
    input_needs_gradient: bool = True


@dataclass(frozen=True)
class Flops:
    """FLOPs per token, by group."""

    forward: dict[str, int]
    backward: dict[str, int]
    recomputed: int = 0
    """Of the forward pass, what gradient checkpointing computes a second time."""

    @property
    def step(self) -> int:
        return sum(self.forward.values()) + sum(self.backward.values()) + self.recomputed

    def with_checkpointing(self) -> "Flops":
        """The blocks are computed twice; the head is not in them."""
        return replace(self, recomputed=sum(n for group, n in self.forward.items() if group != "head"))

    @property
    def blocks(self) -> int:
        """Of a step's FLOPs, those of the blocks' own matrices: neither the head's nor attention's products."""
        return sum(part.get(group, 0) for part in (self.forward, self.backward) for group in BLOCK_MATRICES)

    def to_dict(self) -> dict[str, Any]:
        return {
            "forward": {**self.forward, "total": sum(self.forward.values())},
            "backward": {**self.backward, "total": sum(self.backward.values())},
            "step": self.step,
        } | ({"recomputed": self.recomputed} if self.recomputed else {})


def count(matmuls: Iterable[Matmul], attention_forward: int = 0) -> Flops:
    """Add up the matmuls of a model; `attention_forward` is `attention_flops` of all its layers."""
    forward: dict[str, int] = {}
    backward: dict[str, int] = {}
    for matmul in matmuls:
        once = 2 * matmul.weights
        forward[matmul.group] = forward.get(matmul.group, 0) + once
        passes = matmul.input_needs_gradient + matmul.trained
        backward[matmul.group] = backward.get(matmul.group, 0) + round(passes * once)
    if attention_forward:
        forward["attention"] = attention_forward
        backward["attention"] = 2 * attention_forward
    return Flops(forward, backward)


def attention_flops(width: int, sequence_length: int, causal: bool) -> int:
    """Forward FLOPs per token of one layer's two attention products."""
    context = (sequence_length + 1) / 2 if causal else sequence_length
    return round(4 * context * width)


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
