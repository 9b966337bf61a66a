"""What an attention module is made of: its projections by the names that are usual, its heads by its own numbers.

`Layout` says how one attention class holds its queries and keys. `sites.py` has a table of them for the classes that
names alone do not explain; for every other class `find_layout` reads the module itself. What has no queries and keys
as matrices of their own is refused by `refusal`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from torch import Tensor, nn

from oelm.freezing.fused import SplitProjection

PAIRS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("Wq", "Wk", "Wv"),
    ("query_proj", "key_proj", "value_proj"),
    ("project_q", "project_k", "project_v"),
    ("linear_q", "linear_k", "linear_v"),
    ("to_q", "to_k", "to_v"),
    ("q_head", "k_head", "v_head"),
)
"""What queries, keys and values are called. Without values of their own, keys are more than keys."""
FUSED = ("qkv_proj", "query_key_value", "Wqkv", "c_attn", "in_proj", "qkv", "W_pack", "att_proj")
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head", "d_head", "depth")
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_IN_CONFIG = ("num_attention_heads", "n_head", "n_heads", "num_heads")

_LATENT = ("kv_a_proj_with_mqa", "kv_b_proj", "kv_a_proj", "q_a_proj")
_LINEAR = re.compile(r"(Rwkv|Linear|Lightning|Delta)\w*Attention$|DeltaNet$|Retention$")
_RECURRENT = re.compile(r"Mamba\d*(Mixer|Layer)$|RgLru$|RecurrentBlock$|ShortConv$|LSTM(Layer|Cell)$")
_CROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """The names by which an attention class holds its query and key projections."""

    query: str
    key: str
    num_heads: str | int  # of the queries, or the attribute that has it ("config.num_attention_heads")
    num_key_heads: str | int | None = None  # the number of key heads, where it differs (grouped-query attention)
    kind: str = "self"  # or "cross": queries see the decoder, keys the encoder
    divides_logits: bool = True  # by √head_dim; T5 does not, so its unit-norm queries must be that much smaller
    logit_factor: str | None = None  # attribute with the factor of q·k, where a module says it itself
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that hold several projections in one matrix, with the parts to split them into."""
    groups: str | int = 1  # how often the parts of a fused matrix follow each other: 1, or e.g. once per head

    def misfit(self, module: nn.Module) -> str | None:
        """What is wrong with the module: another project's class of the same name may be built differently."""
        counts = [name for name in (self.num_heads, self.num_key_heads, self.groups) if isinstance(name, str)]
        for name in (self.query, self.key, *counts):
            first = name.partition(".")[0]
            if not _has(module, first if first in self.fused else name):
                return f"has no {name!r}"
        for name in counts:
            if not isinstance(count := attrgetter(name)(module), int):
                return f"has {count!r} as {name!r} where a number of heads belongs"
        for name in self.fused:
            held = getattr(module, name)
            if not isinstance(held, SplitProjection) and (hasattr(held, "base_layer") or _width(held) is None):
                return f"holds a {type(held).__name__} as {name!r}, which is no matrix (freeze before adding adapters)"
        return None

    def heads(self, module: nn.Module) -> tuple[int, int]:
        """How many query and key heads a module has."""
        heads = _number(module, self.num_heads)
        return heads, heads if self.num_key_heads is None else _number(module, self.num_key_heads)

    def split(self, module: nn.Module, name: str) -> None:
        """Split one fused matrix in place, unless it is split."""
        standing = getattr(module, name)
        if isinstance(standing, SplitProjection):
            return
        heads, key_heads = self.heads(module)
        parts = self.fused[name]
        shares = [heads if part == "query" else key_heads for part in parts]
        head_dim = (_width(standing) or 0) // sum(shares)
        groups = _number(module, self.groups)
        setattr(module, name, SplitProjection(standing, parts, [n * head_dim for n in shares], groups))


def find_layout(path: str, module: nn.Module) -> Layout | str | None:
    """The layout of a module that holds queries and keys under usual names; what is odd about it; or None."""
    if next(module.children(), None) is None:
        return None
    for query, key, value in PAIRS:
        q, k, v = (getattr(module, name, None) for name in (query, key, value))
        if not (_is_projection(q) and _is_projection(k)):
            continue
        if not _is_projection(v):
            return f"has no {value!r}: its keys are values as well"
        if further := [n for n, child in module.named_children() if re.search(r"(query|key)_global|\w2e_query", n)]:
            return f"has other queries and keys beside them ({', '.join(further)})"
        rows, key_rows = int(q.out_features), int(k.out_features)  # type: ignore[union-attr]
        size = next((n for name in HEAD_SIZES if isinstance(n := getattr(module, name, None), int) and n > 0), None)
        heads = _declared_heads(module)
        if size is None and heads is None:
            return "says nowhere how many heads it has"
        size = size or rows // (heads or 1)
        if rows % size or key_rows % size or (heads is not None and heads * size != rows):
            return f"has {rows} query and {key_rows} key rows, which {heads} heads of size {size} do not explain"
        cross = _CROSS.search(path.rpartition(".")[2]) or "Cross" in type(module).__name__
        factor = "scaling" if isinstance(getattr(module, "scaling", None), float) else None
        return Layout(query, key, rows // size, key_rows // size, "cross" if cross else "self", logit_factor=factor)
    return None


def refusal(module: nn.Module) -> str | None:
    """Why a module can have no frozen queries and keys, if it is of a kind that has none of its own."""
    name = type(module).__name__
    if any(_is_projection(getattr(module, child, None)) for child in _LATENT):
        return "is latent attention: its keys are made from a compressed latent, so no matrix of their own holds them"
    if _LINEAR.search(name):
        return "is linear attention: it keeps a running state instead of comparing queries with keys by a softmax"
    if _RECURRENT.search(name) or isinstance(getattr(module, "A_log", None), nn.Parameter):
        return "is a state-space or recurrent layer: it has no queries and keys"
    return None


def probable_layout(module: nn.Module) -> str | None:
    """The line that would probably teach oelm a class that it does not understand, if it looks like attention."""
    name = type(module).__name__
    held = {child: held for child, held in module.named_children() if "norm" not in child}
    linears = [child for child, module in held.items() if next(module.parameters(), None) is not None]
    if not re.search("(Attention|Attn)$", name) or not (len(linears) > 1 or [*module.parameters(recurse=False)]):
        return None
    if len(linears) < 2:
        return f"{name} holds its projections as bare parameters, which a Layout cannot name"
    count = next((n for n in HEAD_COUNTS if isinstance(getattr(module, n, None), int)), None)
    config = getattr(module, "config", None)
    count = count or next((f"config.{n}" for n in _IN_CONFIG if hasattr(config, n)), "num_heads")
    if fused := next((child for child in linears if child in FUSED or "qkv" in child.lower()), None):
        return (
            f'probably oelm.register_sites("{name}", Layout("{fused}.query", "{fused}.key", "{count}", '
            f'fused={{"{fused}": ("query", "key", "value")}})), with groups="{count}" if heads take turns in its rows'
        )
    query = next((c for c in linears if re.search(r"^q|_q$|query", c, re.IGNORECASE)), linears[0])
    others = [c for c in linears if c != query]
    key = next((c for c in others if re.search(r"^k|_k|key", c, re.IGNORECASE)), others[0])
    return f'probably oelm.register_sites("{name}", Layout("{query}", "{key}", "{count}"))'


def is_matrix(module: nn.Module, dotted: str) -> bool:
    return _has(module, dotted) and _width(attrgetter(dotted)(module)) is not None


def _declared_heads(module: nn.Module) -> int | None:
    config = getattr(module, "config", None)
    found = [getattr(module, name, None) for name in HEAD_COUNTS] + [getattr(config, n, None) for n in _IN_CONFIG]
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def _is_projection(held: object) -> bool:
    return isinstance(held, nn.Module) and isinstance(getattr(held, "out_features", None), int)


def _width(held: object) -> int | None:
    """How many rows a matrix has (a Conv1D's are its columns)."""
    weight = getattr(held, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    return int(weight.shape[1 if type(held).__name__ == "Conv1D" else 0])


def _number(module: nn.Module, name: str | int) -> int:
    return name if isinstance(name, int) else int(attrgetter(name)(module))


def _has(module: nn.Module, dotted: str) -> bool:
    try:
        attrgetter(dotted)(module)
    except AttributeError:
        return False
    return True
