"""The shape of our GPT and its named sizes. No torch, so that a wrong one is refused at once."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

from oelm.errors import OelmError, unknown
from oelm.validation import BELOW_1, COUNT, Limit, require_valid

Count = Annotated[int, COUNT]
LAYERS = Limit("of at least 1, and at most 4,096", lambda value: 1 <= value <= 4096)


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

    def __post_init__(self) -> None:
        require_valid(self)
        if self.d_model % self.num_heads:
            raise OelmError(
                f"num_heads {self.num_heads} does not divide d_model {self.d_model}; choose a divisor of {self.d_model}"
            )
        if self.positions not in ("learned", "rotary"):
            raise unknown("positions", self.positions, ("learned", "rotary"))
        if self.residual_init not in ("scaled", "plain"):
            raise unknown("residual_init", self.residual_init, ("scaled", "plain"))
        if self.positions == "rotary" and self.head_dim % 2:
            raise OelmError(f"rotary positions need an even head size, not {self.head_dim}; change num_heads")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

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


def _shape(d_model: int, num_layers: int, num_heads: int, max_seq_len: int = 512) -> GPTConfig:
    return GPTConfig(
        d_model=d_model, num_layers=num_layers, num_heads=num_heads, d_ff=4 * d_model, max_seq_len=max_seq_len
    )


SIZES: dict[str, GPTConfig] = {
    "demo": replace(_shape(64, 2, 4, max_seq_len=256), dropout=0.0),
    "tiny": _shape(256, 4, 4),
    "small": _shape(384, 6, 6),
    "medium-512": _shape(512, 6, 8),
    "medium": _shape(768, 12, 12, max_seq_len=1024),
    "large": _shape(1024, 24, 16, max_seq_len=1024),
}
