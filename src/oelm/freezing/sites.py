"""Where queries and keys (and the matrices of the feed-forward network) live in each architecture.

A `Layout` describes one attention class: the names of its query and key modules and its head counts. LAYOUTS has those
of the classes that must be told, by name, so every model built from them is covered, whatever its head; all others are
read off the module (`oelm.freezing.structure`). From outside, `register_sites` adds a row.

>>> from oelm import GPT, GPTConfig
>>> attention_sites(GPT(GPTConfig.of_size("demo", vocab_size=64)))[0].path
'blocks.0.attention.query'
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import isclose
from operator import attrgetter

from torch import nn

from oelm.errors import OelmError
from oelm.freezing.fused import SplitProjection
from oelm.freezing.structure import Layout, find_layout, is_matrix, probable_layout, refusal

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # a layer's number within a path


@dataclass(frozen=True)
class Site:
    """One query or key projection, or one feed-forward matrix, of a model."""

    path: str
    role: str
    layer: int
    num_heads: int
    kind: str = "self"
    unit: float = 1.0
    """The row norm that gives logits of the usual scale; other than 1 for queries of attention that divides no logits
    by √head_dim."""
    normed: bool = False  # whether a norm follows, which would undo a factor

    @property
    def stack(self) -> str:
        """The numbered layers it belongs to; an encoder–decoder has two such stacks."""
        return place(self.path)[0]

    def module(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.path)


def _fused(name: str, heads: str, key_heads: str | None = None, groups: str | int = 1, parts: str = "qkv") -> Layout:
    words = {"q": "query", "k": "key", "v": "value"}
    fused = {name: tuple(words[letter] for letter in parts)}
    return Layout(f"{name}.query", f"{name}.key", heads, key_heads, fused=fused, groups=groups)


_GPT2 = _fused("c_attn", "num_heads")
_GPT2_CROSS = Layout(
    "q_attn.query", "c_attn.key", "num_heads", kind="cross", fused={"q_attn": ("query",), "c_attn": ("key", "value")}
)
_PER_HEAD = _fused("query_key_value", "num_heads", groups="num_heads")
_CONFIG_HEADS = "config.num_attention_heads"

LAYOUTS: dict[str, Layout] = {
    "CausalSelfAttention": Layout("query", "key", "num_heads", num_key_heads="num_key_heads"),  # oelm.models
    # Its factor says 1, but it divides queries before:
    "EsmSelfAttention": Layout("query", "key", "num_attention_heads"),
    "GPTNeoSelfAttention": Layout("q_proj", "k_proj", "num_heads", divides_logits=False),
    # Fused, each with its own order of rows:
    "GPT2Attention": _GPT2,
    "crossattention:GPT2Attention": _GPT2_CROSS,
    "GPTBigCodeAttention": _fused("c_attn", "num_heads", "kv_heads", groups="kv_heads"),
    "Attention": _fused("c_attn", "n_head"),  # the first GPT
    "GPTNeoXAttention": _fused("query_key_value", _CONFIG_HEADS, groups=_CONFIG_HEADS),
    "GPTNeoXJapaneseAttention": _fused("query_key_value", "num_attention_heads", groups="num_attention_heads"),
    "BloomAttention": _PER_HEAD,
    "PersimmonAttention": _PER_HEAD,
    "FalconAttention": _fused("query_key_value", "num_heads", "num_kv_heads", groups="num_kv_heads"),
    "Phi3Attention": _fused("qkv_proj", _CONFIG_HEADS, "num_key_value_heads"),
    "CodeGenAttention": _fused("qkv_proj", "num_attention_heads", groups=4, parts="qvk"),  # as four TPUs had it
    "ModernBertAttention": _fused("Wqkv", _CONFIG_HEADS),
    "MptAttention": _fused("Wqkv", "n_heads"),
    "DbrxAttention": _fused("Wqkv", "num_heads", "num_key_value_heads"),
    "DisentangledSelfAttention": _fused("in_proj", "num_attention_heads", groups="num_attention_heads"),  # DeBERTa
}
"""By attention class; where one class serves two purposes, `name:Class` is the one its owner holds under that name."""


FFN = (
    ("gate", "up", "down"),  # oelm.models.gpt
    ("up", "down"),  # the same
    ("intermediate.dense", "output.dense"),
    ("intermediate", "output"),
    ("ffn", "ffn_output"),
    ("gate_proj", "up_proj", "down_proj"),
    ("gate_up_proj", "down_proj"),
    ("up_proj", "down_proj"),
    ("fc1", "fc2"),
    ("fc_in", "fc_out"),
    ("c_fc", "c_proj"),
    ("lin1", "lin2"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("wi_0", "wi_1", "wo"),
    ("wi", "wo"),
    ("Wi", "Wo"),
)
"""What the matrices of a feed-forward network are called in the module that holds them all."""


def register_sites(attention_class: str | type[nn.Module], layout: Layout) -> None:
    """Teach oelm another attention class, by the class or its name."""
    if not isinstance(layout, Layout):
        raise OelmError(f"register_sites needs a Layout(query, key, num_heads, …), not {layout!r}: see docs/models.md")
    LAYOUTS[attention_class if isinstance(attention_class, str) else attention_class.__name__] = layout


def attention_sites(model: nn.Module) -> list[Site]:
    """Every query and key projection, in the order of the model's modules.

    A fused projection (GPT-2, GPT-NeoX) is first split in place, which leaves the model's outputs and files as they
    were. All attention of a model is understood, or the model is refused.
    """
    found = list(_attention(model))
    for _, module, layout in found:
        for name in layout.fused:
            layout.split(module, name)
    return [site for path, module, layout in found for site in _sites_of(path, module, layout)]


def split_fused(model: nn.Module, paths: Collection[str]) -> None:
    """Split only those fused projections that hold one of the given parts."""
    for path, module, layout in _attention(model):
        for name in layout.fused:
            if any(part.startswith(f"{path}.{name}.".lstrip(".")) for part in paths):
                layout.split(module, name)


def _attention(model: nn.Module) -> Iterator[tuple[str, nn.Module, Layout]]:
    """Every attention module with its layout; a model that is not understood as a whole is refused."""
    known: list[tuple[str, nn.Module, Layout]] = []
    odd: list[tuple[str, nn.Module, str]] = []
    unknown: list[tuple[str, nn.Module, str]] = []
    for path, module in model.named_modules():
        if why := refusal(module):
            raise OelmError(f"{type(model).__name__} cannot be frozen: its {type(module).__name__} at {path!r} {why}")
        layout = _layout(path, module)
        if why := layout.misfit(module) if isinstance(layout, Layout) else layout:
            odd.append((path, module, why))
        elif isinstance(layout, Layout):
            known.append((path, module, layout))
        elif line := probable_layout(module):
            unknown.append((path, module, line))
    inner = [path for path, *_ in (*known, *odd, *unknown)]
    for path, module, line in unknown:
        in_layer = place(path)[1] is not None or not known  # a pooling head on top is no layer
        if in_layer and not any(other.startswith(f"{path}.") for other in inner):
            odd.append((path, module, f"has no queries and keys under names oelm knows; {line}"))
    named = "".join(f": its {type(module).__name__} at {path!r} {why}" for path, module, why in odd[:1])
    by_design = any(getattr(module, "has_queries", True) is False for module in model.modules())
    if not known and not by_design:
        raise OelmError(
            f"{type(model).__name__} has no attention that oelm knows{named}; a class is added with "
            "oelm.register_sites(class_name, Layout(...)): see docs/models.md"
        )
    if odd:
        raise OelmError(
            f"{len(odd)} of {len(known) + len(odd)} attention modules of {type(model).__name__} cannot be treated"
            f"{named}; a method applies to all of them or to none"
        )
    yield from known


def ffn_sites(model: nn.Module) -> list[Site]:
    """Every feed-forward matrix inside a numbered layer, in the order of the model's modules."""
    if stacked := next((name for name, p in model.named_parameters() if p.ndim == 3 and "experts" in name), None):
        raise OelmError(f"{stacked} holds all experts in one tensor; a method can freeze FFN matrices only")
    return [
        Site(f"{path}.{name}", "ffn", place(path)[1] or 0, num_heads=1, kind="ffn")
        for path, module in model.named_modules()
        if place(path)[1] is not None
        for name in next((names for names in FFN if all(is_matrix(module, name) for name in names)), ())
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


def _sites_of(path: str, module: nn.Module, layout: Layout) -> list[Site]:
    layer, (heads, key_heads) = place(path)[1] or 0, layout.heads(module)
    prefix = f"{path}." if path else ""
    q_normed, k_normed = (_has_norm(module, role) for role in ("query", "key"))
    unit = 1.0 if q_normed else _unit(module, layout, heads)
    return [
        Site(prefix + layout.query, "query", layer, heads, layout.kind, unit, q_normed),
        Site(prefix + layout.key, "key", layer, key_heads, layout.kind, normed=k_normed),
    ]


def _unit(module: nn.Module, layout: Layout, heads: int) -> float:
    """What makes q·k of unit rows as large as where it is divided by √head_dim; some modules say what they do."""
    head_dim = int(module.get_submodule(layout.query).out_features) // heads  # type: ignore[arg-type]
    if not layout.divides_logits:
        return head_dim**-0.5
    unit = head_dim**-0.5 / attrgetter(layout.logit_factor)(module) if layout.logit_factor else 1.0
    return 1.0 if isclose(unit, 1.0, rel_tol=1e-6) else unit


def _has_norm(module: nn.Module, role: str) -> bool:
    names = [f"{start}_{end}" for start in (role[0], role) for end in ("norm", "layernorm", "layer_norm")]
    return any(isinstance(getattr(module, name, None), nn.Module) for name in names)


def _layout(path: str, module: nn.Module) -> Layout | str | None:
    """By the class or one it derives from (sharding wraps a model's classes in its own), else by structure."""
    if isinstance(module, SplitProjection):
        return None
    held_as = path.rpartition(".")[2]
    for cls in type(module).__mro__:
        for name in (f"{held_as}:{cls.__name__}", cls.__name__):
            row = LAYOUTS.get(name)
            # Two classes of the same name (DeBERTa's) may differ in being fused.
            if row and all(hasattr(module, fused) for fused in row.fused):
                return row
    return find_layout(path, module)
