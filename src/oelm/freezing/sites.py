"""Where queries and keys (and the matrices of the feed-forward network) live in each architecture.

A `Layout` describes one attention class: the names of its query and key modules and of its head counts. Sites are found
by the class of the attention module, so every model built from it is covered, whatever its head. A new architecture
is a row of LAYOUTS (or, from outside, `register_sites`).

>>> from oelm import GPT, GPTConfig
>>> attention_sites(GPT(GPTConfig.of_size("demo", vocab_size=64)))[0].path
'blocks.0.attention.query'
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from torch import nn

from oelm.errors import OelmError
from oelm.freezing.fused import SplitProjection

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""A layer's number within a path."""


@dataclass(frozen=True)
class Layout:
    """The names by which an attention class holds its query and key projections."""

    query: str
    key: str
    num_heads: str
    """Attribute with the number of query heads; dots reach into it ("config.num_attention_heads")."""
    num_key_heads: str | None = None
    """Attribute with the number of key heads, where it differs (grouped-query attention)."""
    kind: str = "self"
    """Or "cross": queries see the decoder, keys the encoder."""
    divides_logits: bool = True
    """Whether q·k is divided by √head_dim. T5 does not, so its unit-norm queries must be that much smaller."""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that hold several projections in one matrix, with the parts to split them into."""

    def misfit(self, module: nn.Module) -> str | None:
        """What is wrong with the module: another project's class of the same name may be built differently."""
        for name in filter(None, (self.query, self.key, self.num_heads, self.num_key_heads)):
            first = name.partition(".")[0]
            if not _has(module, first if first in self.fused else name):
                return f"has no {name!r}"
        for name in filter(None, (self.num_heads, self.num_key_heads)):
            if not isinstance(count := attrgetter(name)(module), int):
                return f"has {count!r} as {name!r} where a number of heads belongs"
        for name in self.fused:
            held = type(getattr(module, name)).__name__
            if held not in ("Conv1D", "SplitProjection"):
                return f"holds a {held} as {name!r} where a Conv1D belongs (freeze before adding adapters)"
        return None


@dataclass(frozen=True)
class Site:
    """One query or key projection, or one feed-forward matrix, of a model."""

    path: str
    role: str
    layer: int
    num_heads: int
    kind: str = "self"
    unit: float = 1.0
    """The row norm that gives logits of the usual scale; 1 but for queries of attention that divides no logits."""

    @property
    def stack(self) -> str:
        """The numbered layers it belongs to; an encoder–decoder has two such stacks."""
        return place(self.path)[0]

    def module(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.path)


_BERT = Layout("query", "key", "num_attention_heads")
_BERT_CROSS = Layout("query", "key", "num_attention_heads", kind="cross")
_LLAMA = Layout("q_proj", "k_proj", "config.num_attention_heads", num_key_heads="config.num_key_value_heads")

_BERT_FFN = ("Intermediate", "Output")

LAYOUTS: dict[str, Layout] = {
    "CausalSelfAttention": Layout("query", "key", "num_heads"),  # oelm.models.gpt
    "BertSelfAttention": _BERT,
    "BertCrossAttention": _BERT_CROSS,
    "RobertaSelfAttention": _BERT,
    "RobertaCrossAttention": _BERT_CROSS,
    "XLMRobertaSelfAttention": _BERT,
    "XLMRobertaCrossAttention": _BERT_CROSS,
    "ElectraSelfAttention": _BERT,
    "ElectraCrossAttention": _BERT_CROSS,
    "DistilBertSelfAttention": Layout("q_lin", "k_lin", "n_heads"),
    "GPT2Attention": Layout("c_attn.query", "c_attn.key", "num_heads", fused={"c_attn": ("query", "key", "value")}),
    "crossattention:GPT2Attention": Layout(
        "q_attn.query",
        "c_attn.key",
        "num_heads",
        kind="cross",
        fused={"q_attn": ("query",), "c_attn": ("key", "value")},
    ),
    "LlamaAttention": _LLAMA,
    "MistralAttention": _LLAMA,
    "Qwen2Attention": _LLAMA,
    "Qwen3Attention": _LLAMA,
    "T5Attention": Layout("q", "k", "n_heads", divides_logits=False),
    "EncDecAttention:T5Attention": Layout("q", "k", "n_heads", kind="cross", divides_logits=False),
    "BartAttention": Layout("q_proj", "k_proj", "num_heads"),
    "encoder_attn:BartAttention": Layout("q_proj", "k_proj", "num_heads", kind="cross"),
    "ViTAttention": Layout("q_proj", "k_proj", "num_attention_heads"),
}
"""By attention class; where one class serves two purposes, `name:Class` is the one its owner holds under that name."""


FFN_LAYOUTS: dict[str, tuple[str, ...]] = {
    "FeedForward": ("up", "down"),  # oelm.models.gpt
    **{f"{name}{part}": ("dense",) for name in ("Bert", "Roberta", "XLMRoberta", "Electra") for part in _BERT_FFN},
    "FFN": ("lin1", "lin2"),  # DistilBERT
    "GPT2MLP": ("c_fc", "c_proj"),
    **{f"{name}MLP": ("gate_proj", "up_proj", "down_proj") for name in ("Llama", "Mistral", "Qwen2", "Qwen3")},
    "T5DenseActDense": ("wi", "wo"),
    "T5DenseGatedActDense": ("wi_0", "wi_1", "wo"),
    "BartEncoderLayer": ("fc1", "fc2"),
    "BartDecoderLayer": ("fc1", "fc2"),
    "ViTMLP": ("fc1", "fc2"),
}
"""The matrices of a feed-forward network, by the class that holds them."""


def register_sites(attention_class: str | type[nn.Module], layout: Layout) -> None:
    """Teach oelm another attention class, by the class or its name."""
    if not isinstance(layout, Layout):
        raise OelmError(f"register_sites needs a Layout(query, key, num_heads, …), not {layout!r}: see docs/models.md")
    LAYOUTS[attention_class if isinstance(attention_class, str) else attention_class.__name__] = layout


def attention_sites(model: nn.Module) -> list[Site]:
    """Every query and key projection, in the order of the model's modules.

    A fused projection (GPT-2) is first split in place, which leaves the model's outputs and its files as they were.
    """
    known = [(path, module, layout) for path, module in model.named_modules() if (layout := _layout(path, module))]
    misfits = [(path, module, why) for path, module, layout in known if (why := layout.misfit(module))]
    named = "".join(f": its {type(module).__name__} at {path!r} {why}" for path, module, why in misfits[:1])
    if len(misfits) == len(known):
        raise OelmError(
            f"{type(model).__name__} has no attention that oelm knows{named}; known: {', '.join(LAYOUTS)}. "
            "Another class is added with oelm.register_sites(class_name, Layout(...)): see docs/models.md"
        )
    if misfits:
        raise OelmError(
            f"{len(misfits)} of {len(known)} attention modules of {type(model).__name__} cannot be treated{named}; "
            "a method applies to all of them or to none"
        )
    return [site for path, module, layout in known for site in _sites_of(path, module, layout)]


def ffn_sites(model: nn.Module) -> list[Site]:
    """Every feed-forward matrix inside a numbered layer, in the order of the model's modules."""
    return [
        Site(f"{path}.{name}", "ffn", _layer(path), num_heads=1, kind="ffn")
        for path, module in model.named_modules()
        for cls in type(module).__mro__
        for name in FFN_LAYOUTS.get(cls.__name__, ())
        if hasattr(module, name) and place(path)[1] is not None
    ]


def place(path: str) -> tuple[str, int | None]:
    """The stack of numbered layers that a path leads into, and the layer's number there.

    A number that the path begins with is that of a container around the model, if there is another.

    >>> place("encoder.block.3.layer.0.SelfAttention.q"), place("norm.weight"), place("0.bert.layer.2.query")
    (('encoder.block', 3), ('', None), ('0.bert.layer', 2))
    """
    text = f".{path}."
    found = _NUMBER.search(text, 2) or _NUMBER.search(text)
    return (path[: max(0, found.start() - 2)], int(found[0])) if found else ("", None)


def _layer(path: str) -> int:
    return place(path)[1] or 0


def _sites_of(path: str, module: nn.Module, layout: Layout) -> list[Site]:
    for name, parts in layout.fused.items():
        if not isinstance(getattr(module, name), SplitProjection):
            setattr(module, name, SplitProjection(getattr(module, name), parts))
    layer = _layer(path)
    heads = attrgetter(layout.num_heads)(module)
    key_heads = attrgetter(layout.num_key_heads)(module) if layout.num_key_heads else heads
    unit = 1.0 if layout.divides_logits else (_rows(module, layout.query) // heads) ** -0.5
    prefix = f"{path}." if path else ""
    return [
        Site(prefix + layout.query, "query", layer, heads, layout.kind, unit),
        Site(prefix + layout.key, "key", layer, key_heads, layout.kind),
    ]


def _layout(path: str, module: nn.Module) -> Layout | None:
    """By the class or one it derives from (sharding wraps a model's classes in its own)."""
    held_as = path.rpartition(".")[2]
    for cls in type(module).__mro__:
        for name in (f"{held_as}:{cls.__name__}", cls.__name__):
            if name in LAYOUTS:
                return LAYOUTS[name]
    return None


def _has(module: nn.Module, dotted: str) -> bool:
    try:
        attrgetter(dotted)(module)
    except AttributeError:
        return False
    return True


def _rows(module: nn.Module, projection: str) -> int:
    return int(module.get_submodule(projection).out_features)  # type: ignore[arg-type]
