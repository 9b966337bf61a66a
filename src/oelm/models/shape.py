"""The shape of our GPT as data, and what a method may change of it. No torch.

>>> GPTConfig.of_size("medium-512").with_architecture({"thin": 4, "offset": True}).qk_width
128
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from oelm.errors import OelmError, unknown
from oelm.validation import ABOVE_1, BELOW_1, COUNT, Limit, require_valid

Count = Annotated[int, COUNT]
LAYERS = Limit("of at least 1, and at most 4,096", lambda value: 1 <= value <= 4096)
POSITIONS, NORMS, FFNS = ("learned", "rotary"), ("layer", "rms"), ("gelu", "swiglu")
STARTS, ATTENTIONS = ("scaled", "plain"), ("softmax", "linear", "synthesizer", "mixing")


@dataclass(frozen=True)
class GPTConfig:
    """The shape of our GPT; `of_size` gives a named one."""

    vocab_size: Count = 50_257
    d_model: Count = 512
    num_layers: Annotated[int, LAYERS] = 6
    num_heads: Count = 8
    d_ff: Count = 2048
    max_seq_len: Count = 512
    dropout: Annotated[float, BELOW_1] = 0.1
    positions: str = "learned"  # or "rotary"
    causal: bool = True  # a classifier may also look ahead
    residual_init: str = "scaled"  # by depth, as in GPT-2; "plain" starts every layer alike, as the study did
    ffn_dropout: bool = False  # dropout also after GELU, as in the study's model
    rope_theta: Annotated[float, ABOVE_1] = 10_000.0  # the longest wavelength of rotary positions
    norm: str = "layer"  # or "rms"
    ffn: str = "gelu"  # or "swiglu"
    qk_width: Count | None = None  # channels of all queries together; values have d_model
    kv_heads: Count | None = None  # heads of keys and values; several queries share one
    qk_norm: bool = False  # RMS norm of every head's query and key, with a learned scale
    attention: str = "softmax"  # or "linear", or by positions only: "synthesizer" (learned) or "mixing" (fixed)
    window: Count | None = None  # how many tokens a token sees, itself included
    tied_kv: bool = False  # keys are values as well
    share: Count = 1  # layers in a row that use the probabilities of the first of them
    offset: bool = False  # half of every key's channels come from the previous token
    method_architecture: Mapping[str, Any] = field(default_factory=dict)  # what `with_architecture` was given

    def __post_init__(self) -> None:
        require_valid(self)
        if self.d_model % self.num_heads:
            raise OelmError(f"num_heads {self.num_heads} does not divide d_model {self.d_model}; choose a divisor")
        words = {"positions": POSITIONS, "norm": NORMS, "ffn": FFNS, "residual_init": STARTS, "attention": ATTENTIONS}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        self._require_heads()
        self._require_one_attention()

    def _require_heads(self) -> None:
        if self.num_heads % self.key_heads:
            raise OelmError(f"kv_heads {self.key_heads} does not divide num_heads {self.num_heads}; choose a divisor")
        if self.qk_width is not None and (self.qk_width % self.num_heads or self.qk_width > self.d_model):
            limits = f"a multiple of num_heads {self.num_heads} and at most d_model {self.d_model}"
            raise OelmError(f"qk_width {self.qk_width} must be {limits}")
        if self.positions == "rotary" and self.qk_head_dim % 2:
            raise OelmError(f"rotary positions need an even head size, not {self.qk_head_dim}; change num_heads")
        if self.offset and self.qk_head_dim % 4:
            raise OelmError(f"offset needs a head size that four divides, not {self.qk_head_dim}; change num_heads")
        if self.rope_theta != GPTConfig.rope_theta and self.positions != "rotary":
            raise OelmError("rope_theta is for rotary positions, but these are learned; say positions: rotary")

    def _require_one_attention(self) -> None:
        changed = [name for name in ("attention", "window", "tied_kv", "share") if self._changes(name)]
        if len(changed) > 1:
            raise OelmError(f"{' and '.join(changed)} are different kinds of attention; choose one of them")
        if changed and not self.causal:
            raise OelmError(f"{changed[0]} is for a model that looks back only; leave it out, or say causal: true")
        if self.share > self.num_layers:
            raise OelmError(f"share {self.share} exceeds the {self.num_layers} layers; choose fewer")
        without = {"synthesizer": "has no queries and keys", "mixing": "has no queries and keys"}.get(self.attention)
        without = "makes values of its keys" if self.tied_kv else without
        touched = ("qk_width",) if self.tied_kv else ("qk_width", "kv_heads", "qk_norm", "offset")
        for name in touched if without else ():
            if self._changes(name):
                raise OelmError(f"attention that {without} cannot have {name}; leave it out")

    def _changes(self, name: str) -> bool:
        return getattr(self, name) != getattr(GPTConfig, name)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def qk_head_dim(self) -> int:
        """Channels of one head's query and key."""
        return (self.qk_width or self.d_model) // self.num_heads

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.num_heads

    @classmethod
    def of_size(cls, size: str, **overrides: Any) -> "GPTConfig":
        """A named size, with any field replaced: `GPTConfig.of_size("tiny", dropout=0.0)`."""
        if size not in SIZES:
            raise unknown("size", size, SIZES)
        return cls.from_dict({**asdict(SIZES[size]), **overrides})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "GPTConfig":
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("model setting", key, known)
        return cls(**values)

    def with_architecture(self, changes: Mapping[str, Any]) -> "GPTConfig":
        """The shape that a method asks for (`Method.architecture`), with relative values worked out for this one."""
        for name, value in changes.items():
            if name not in ARCHITECTURE:
                raise unknown("architecture", name, ARCHITECTURE)
            kind, _ = ARCHITECTURE[name]
            fits = value is True if kind is bool else isinstance(value, kind | int) and not isinstance(value, bool)
            if not fits or value <= 0:
                wanted = {bool: "true", int: "a whole number above 0", float: "a number above 0"}[kind]
                raise OelmError(f"architecture {name} is {value!r}; it must be {wanted}, or be left out")
        result = self
        for name, (_, change) in ARCHITECTURE.items():
            if name in changes:
                result = replace(result, **change(result, changes[name]))
        return replace(result, method_architecture={**self.method_architecture, **changes})


def _shape(width: int, layers: int, heads: int, max_seq_len: int = 512) -> GPTConfig:
    return GPTConfig(d_model=width, num_layers=layers, num_heads=heads, d_ff=4 * width, max_seq_len=max_seq_len)


SIZES: dict[str, GPTConfig] = {
    "demo": replace(_shape(64, 2, 4, max_seq_len=256), dropout=0.0),
    "tiny": _shape(256, 4, 4),
    "small": _shape(384, 6, 6),
    "medium-512": _shape(512, 6, 8),
    "medium": _shape(768, 12, 12, max_seq_len=1024),
    "large": _shape(1024, 24, 16, max_seq_len=1024),
}
ALL_SIZES: dict[str, GPTConfig] = {
    **SIZES,
    "1b": _shape(2048, 24, 16, max_seq_len=2048),
    "3b": _shape(2560, 32, 32, max_seq_len=2048),
    "7b": _shape(4096, 32, 32, max_seq_len=2048),
    "13b": _shape(5120, 40, 40, max_seq_len=2048),
    "70b": _shape(8192, 80, 64, max_seq_len=4096),
}
"""Also the usual widths and depths of larger decoders, which are counted only."""


def _eights(width: float) -> int:
    """A width that products like."""
    return max(8, 8 * round(width / 8))


def _thin(config: GPTConfig, by: int) -> dict[str, Any]:
    if config.d_model % (by * config.num_heads):
        raise OelmError(f"thin={by} does not divide the head size {config.head_dim}; choose a divisor")
    return {"qk_width": config.d_model // by}


def _fewer(config: GPTConfig, by: int) -> dict[str, Any]:
    if by >= config.num_layers:
        raise OelmError(f"fewer={by} leaves nothing of {config.num_layers} layers; choose fewer than that")
    return {"num_layers": config.num_layers - by}


ARCHITECTURE: dict[str, tuple[type, Callable[[GPTConfig, Any], dict[str, Any]]]] = {
    # what a method says: (its type, the fields that follow); in the order in which they are applied
    "ffn": (float, lambda config, by: {"d_ff": _eights(by * config.d_model)}),
    "swiglu": (bool, lambda config, _: {"ffn": "swiglu", "d_ff": _eights(config.d_ff * 2 / 3)}),  # equal FLOPs
    "fewer": (int, _fewer),
    "thin": (int, _thin),
    "kv": (int, lambda config, heads: {"kv_heads": heads}),
    "qknorm": (bool, lambda config, _: {"qk_norm": True}),
    "rmsnorm": (bool, lambda config, _: {"norm": "rms"}),
    "theta": (float, lambda config, theta: {"rope_theta": theta}),
    "window": (int, lambda config, tokens: {"window": tokens}),
    "linear": (bool, lambda config, _: {"attention": "linear"}),
    "synthesizer": (bool, lambda config, _: {"attention": "synthesizer"}),
    "mixing": (bool, lambda config, _: {"attention": "mixing"}),
    "tied_kv": (bool, lambda config, _: {"tied_kv": True}),
    "share": (int, lambda config, layers: {"share": layers}),
    "offset": (bool, lambda config, _: {"offset": True}),
}
