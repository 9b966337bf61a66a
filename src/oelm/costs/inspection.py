"""What a model and a method amount to, counted on the real model without allocating it. One record, read by all.

`oelm inspect`, the dry run, `oelm estimate` and `oelm bench` ask `costs_of` and nothing else:

>>> costs = costs_of("medium-512", "oelm_freeze")
>>> costs.total_parameters, costs.frozen_parameters
(44896768, 3145728)
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from oelm.costs.flops import Flops, Matmul, attention_flops, count
from oelm.costs.memory import Blocks, Memory, Step, training_memory
from oelm.errors import OelmError
from oelm.freezing.apply import freeze
from oelm.freezing.methods import Method, method
from oelm.freezing.projections import CONFIG_KEY, Projection, replaced
from oelm.freezing.schedules import USUAL_STEPS, picture, trained_shares
from oelm.freezing.sites import attention_sites, place
from oelm.models.gpt import GPT
from oelm.models.shape import ALL_SIZES, GPTConfig
from oelm.models.sketch import without_memory
from oelm.runs import checkpoint_bytes

TASK_LENGTH = 128
"""Tokens per text in the study's classification experiments."""
BATCH_SIZE = 8
"""Sequences per step that memory is predicted for, as in the trainer."""


@dataclass(frozen=True)
class Costs:
    """One model under one method: parameters, FLOPs per token, and the memory of a training step."""

    model: str
    method: str
    config: dict[str, Any]
    sequence_length: int
    batch_size: int
    total_parameters: int
    frozen_parameters: int
    trainable_parameters: int
    most_trainable_parameters: int
    """At the step of a run at which the most trains."""
    adapters_parameters: int
    projections_without_weights: int
    """Queries and keys that are fixed maps of the stream: nothing there to train or to freeze."""
    block_parameters: int
    """Of the largest block."""
    flops: Flops
    memory: Memory | None
    """None where there is no formula: decoders and encoder–decoders that are not ours."""
    training: list[tuple[str, str]]
    """What trains when over a run, as `oelm inspect` draws it."""

    @property
    def checkpoint_bytes(self) -> int:
        return checkpoint_bytes(self.total_parameters, self.most_trainable_parameters)

    @property
    def step_flops(self) -> int:
        """Of a step's one micro-batch."""
        return self.flops.step * self.batch_size * self.sequence_length


def costs_of(
    model: str | GPTConfig,
    method_name: str | Mapping[str, Any] | Method = "baseline",
    *,
    labels: int | None = None,
    sequence_length: int | None = None,
    batch_size: int = BATCH_SIZE,
    precision: str = "fp32",
    accumulates: bool = False,
    gradient_checkpointing: bool = False,
    cpu: bool = True,
    max_steps: int = USUAL_STEPS,
    **overrides: Any,
) -> Costs:
    """Count one of our sizes or shapes, a published model or a model folder; `labels` gives it a classifier's head.

    `max_steps` is how long a run would be, for methods that change on the way; `accumulates` and `cpu` are those of
    `oelm.costs.memory.Step`.
    """
    chosen = method(method_name)
    config, build, length = _buildable(model, chosen, labels, overrides)
    length = sequence_length or length
    with without_memory():
        built = build()
    report = freeze(built, chosen)
    flops = model_flops(built, sequence_length=length, shares=trained_shares(report, max_steps))
    step = Step(batch_size, length, precision, gradient_checkpointing, accumulates, cpu)
    blocks, counts = _blocks(config, labels), (report.total_parameters, report.most_trainable_parameters)
    return Costs(
        model=model if isinstance(model, str) else "GPT",
        method=chosen.name,
        config=vars(config) if isinstance(config, GPTConfig) else config.to_diff_dict(),
        sequence_length=length,
        batch_size=batch_size,
        total_parameters=report.total_parameters,
        frozen_parameters=report.frozen_parameters,
        trainable_parameters=report.trainable_parameters,
        most_trainable_parameters=report.most_trainable_parameters,
        adapters_parameters=sum(site.adapters_parameters for site in report.sites),
        projections_without_weights=sum(site.projection != "dense" for site in report.sites),
        block_parameters=_largest_block(built),
        flops=flops.with_checkpointing() if gradient_checkpointing else flops,
        memory=training_memory(blocks, step, *counts) if blocks else None,
        training=picture(report, max_steps),
    )


def inspect_model(
    name: str | GPTConfig, method_name: str | Mapping[str, Any] | Method, *, base: Costs | None = None, **how: Any
) -> dict[str, Any]:
    """The record of `costs_of` as plain data, beside what the same model computes under `baseline` (`base`)."""
    own, base = costs_of(name, method_name, **how), base or costs_of(name, "baseline", **how)
    facts = {key: value for key, value in vars(own).items() if key not in ("flops", "memory", "training")}
    memory = {} if own.memory is None else {"training_memory": asdict(own.memory)}
    return {
        **facts,
        "frozen_share": own.frozen_parameters / own.total_parameters,
        "checkpoint_bytes": own.checkpoint_bytes,
        "flops_per_token": own.flops.to_dict(),
        "step_flops_vs_baseline": own.flops.step / base.flops.step,
        "block_flops_vs_baseline": own.flops.blocks / base.flops.blocks,
        "training": [{"what": what, "when": line} for what, line in own.training],
        **memory,
    }


def _buildable(
    model: str | GPTConfig, chosen: Method, labels: int | None, overrides: Mapping[str, Any]
) -> tuple[Any, Callable[[], nn.Module], int]:
    """The configuration, what builds a model from it, and the usual length of its input."""
    if isinstance(model, str) and model in ALL_SIZES:
        model = GPTConfig.from_dict({**vars(ALL_SIZES[model]), **overrides})
    elif overrides:
        raise OelmError(f"{', '.join(overrides)} can be changed only in our own sizes ({', '.join(ALL_SIZES)})")
    if isinstance(model, GPTConfig):
        shape = model.with_architecture(chosen.architecture)
        if labels is None:
            return shape, lambda: GPT(shape), shape.max_seq_len
        from oelm.models.huggingface import GPTForSequenceClassification, HFGPTConfig

        classifier: Any = HFGPTConfig(**vars(shape), num_labels=labels)
        return shape, lambda: GPTForSequenceClassification(classifier), min(TASK_LENGTH, shape.max_seq_len)
    from oelm.models.known import named_config

    config, model_class = named_config(model, labels)
    vars(config).pop(CONFIG_KEY, None)  # a folder gives the shape; what stands in it is the method's to say
    return config, lambda: model_class.from_config(config), _usual_length(config, labels)


def _usual_length(config: Any, labels: int | None) -> int:
    if hasattr(config, "patch_size"):
        return (config.image_size // config.patch_size) ** 2 + 1
    longest = getattr(config, "max_position_embeddings", None) or 512
    return min(TASK_LENGTH, longest) if labels else longest


def _largest_block(model: nn.Module) -> int:
    sizes: Counter[tuple[str, int | None]] = Counter()
    for name, parameter in model.named_parameters():
        sizes[place(name)] += parameter.numel()
    return max((size for (_, layer), size in sizes.items() if layer is not None), default=0)


def _blocks(config: Any, labels: int | None) -> Blocks | None:
    """What is known of the memory of our GPT, and of encoders with a classifier's head."""
    if isinstance(config, GPTConfig):
        names = ("d_model", "num_layers", "num_heads", "d_ff", "vocab_size", "dropout", "ffn_dropout")
        blocks = Blocks(
            **{name: getattr(config, name) for name in names},
            gated=config.ffn == "swiglu",
            qk_width=config.num_heads * config.qk_head_dim,
        )
        return replace(blocks, vocab_size=0) if labels else blocks
    from oelm.models.known import family

    if labels is None or family(config) != "encoder" or hasattr(config, "patch_size"):
        return None
    dropout = getattr(config, "hidden_dropout_prob", getattr(config, "dropout", 0.0))
    wide = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)  # DistilBERT's name
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    return Blocks(config.hidden_size, layers, heads, wide, 0, dropout, ours=False) if wide else None


def model_flops(
    model: nn.Module,
    *,
    sequence_length: int,
    target_length: int = 0,
    predicted: int = 0,
    per: float = 0,
    shares: Mapping[str, float] | None = None,
) -> Flops:
    """Matmul FLOPs per token of a model as it is frozen now, or over a run in which a weight trains only at times.

    The decoder of an encoder–decoder reads `target_length` tokens, by default as many as its encoder. A head that is
    asked about some places only works on the `predicted` ones, a classifier's once per sequence. Whatever a sequence
    costs is shared by its tokens: `per` many, by default `sequence_length`. Attention is asked for its own
    `attention_flops`, if it has that.
    """
    sites = attention_sites(model)
    qk = {site.path for site in sites}
    keys = [site.path for site in sites if site.role == "key" and site.kind == "cross"]
    from_source = {
        path for key in keys for path in (key, re.sub(r"\bk(ey)?(?=\w*$)", lambda k: "value" if k[1] else "v", key))
    }
    classifier = "Classification" in type(model).__name__
    per = per or sequence_length
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    written = (target_length or sequence_length) if is_pair else sequence_length

    def seen(path: str) -> float:
        """How many tokens of a sequence pass through a matrix, for each token that counts."""
        if _group(path, qk) == "head":
            return (1 if classifier or "pooler" in path else predicted or written) / per
        return (written if "decoder" in path and path not in from_source else sequence_length) / per

    matmuls = []
    for path, module in model.named_modules():
        if not (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"):
            continue
        weight: torch.Tensor = module.weight
        site = path.removesuffix(".base")
        trained = (shares or {}).get(site, weight.requires_grad)
        matmuls.append(Matmul(_group(path, qk), round(seen(site) * weight.numel()), trained=trained))
    for path, module in replaced(model):
        for parameter in module.learned.values() if isinstance(module, Projection) else ():
            if parameter.ndim > 1:  # gains, scales and shifts are no products
                matmuls.append(Matmul("qk", round(seen(path) * parameter.numel()), trained=parameter.requires_grad))
    gpt = getattr(model, "gpt", model)
    if isinstance(gpt, GPT) and not classifier:  # it reads its logits off the embedding matrix
        head = gpt.embedding.weight
        matmuls.append(Matmul("head", head.numel(), trained=head.requires_grad))
    own: list[Any] = [module for module in model.modules() if hasattr(module, "attention_flops")]
    attention = sum(module.attention_flops(sequence_length) for module in own)
    for site in (site for site in sites if site.role == "query" and not own):
        width = int(site.module(model).out_features)  # type: ignore[arg-type]
        context = sequence_length if site.kind == "cross" or "decoder" not in site.path else written
        attention += round(seen(site.path) * attention_flops(width, context, _is_causal(model, site.path)))
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
