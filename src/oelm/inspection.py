"""What a model and a method amount to, without allocating anything: parameters, checkpoint size, matmul FLOPs.

>>> facts = inspect_gpt("medium-512", "oelm_freeze")
>>> facts["total_parameters"], facts["frozen_parameters"]
(44896768, 3145728)
"""

from typing import Any

import torch
from torch import nn

from oelm.analysis.flops import Flops, Matmul, attention_flops, count
from oelm.freezing import FreezeReport, freeze
from oelm.methods import method
from oelm.models.gpt import GPT, GPTConfig
from oelm.runs import checkpoint_bytes
from oelm.sites import attention_sites


def inspect_gpt(size: str, method_name: str, **overrides: Any) -> dict[str, Any]:
    """Facts about our GPT of a named size under a method, beside the same model under `baseline`."""
    config = GPTConfig.of_size(size, **overrides)
    report, flops = _count(config, method_name)
    _, baseline = _count(config, "baseline")
    return {
        "model": size,
        "config": {name: getattr(config, name) for name in config.__dataclass_fields__},
        "method": method(method_name).name,
        "total_parameters": report.total_parameters,
        "frozen_parameters": report.frozen_parameters,
        "trainable_parameters": report.trainable_parameters,
        "frozen_share": report.frozen_parameters / report.total_parameters,
        "checkpoint_bytes": checkpoint_bytes(report.total_parameters, report.trainable_parameters),
        "flops_per_token": flops.to_dict(),
        "step_flops_vs_baseline": flops.step / baseline.step,
    }


def model_flops(model: nn.Module, *, sequence_length: int, causal: bool) -> Flops:
    """Matmul FLOPs per token of a model as it is frozen now."""
    sites = attention_sites(model)
    qk = {site.path for site in sites}
    matmuls = [
        Matmul(_group(path, qk), module.weight.numel(), trained=module.weight.requires_grad)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    head = getattr(model, "embedding", None)  # our GPT reads its logits off the embedding matrix
    if isinstance(head, nn.Embedding):
        matmuls.append(Matmul("head", head.weight.numel(), trained=head.weight.requires_grad))
    widths = [model.get_parameter(f"{site.path}.weight").shape[0] for site in sites if site.role == "query"]
    attention = sum(attention_flops(width, sequence_length, causal) for width in widths)
    return count(matmuls, attention)


def _group(path: str, qk: set[str]) -> str:
    if path in qk:
        return "qk"
    return "vo" if "attention" in path else "ffn"


def _count(config: GPTConfig, method_name: str) -> tuple[FreezeReport, Flops]:
    with torch.device("meta"):
        model = GPT(config)
    report = freeze(model, method_name)
    return report, model_flops(model, sequence_length=config.max_seq_len, causal=True)
