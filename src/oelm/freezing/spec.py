"""What a method is made of: frozen dataclasses that go through YAML and back. Data, no torch, no branches on names.

`methods.py` has the table of named methods, `modifiers.py` the short way to write variations of them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oelm.errors import OelmError, unknown
from oelm.validation import build, require_name, whole_number

ROLES = ("query", "key", "ffn")
THAW_ORDERS = ("top-down", "bottom-up")


@dataclass(frozen=True)
class Adapters:
    """Small learned parts on top of a projection. All start as if they were not there."""

    scale: bool = False  # one factor per head: how sharp its attention is
    gain: bool = False  # one factor per channel
    mix: bool = False  # a head_dim × head_dim matrix per head
    rank: int = 0  # a learned update of this rank beside the projection's own matrix
    shift: bool = False  # a learned blend, per channel, of a token's input with the previous token's

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise OelmError(f"rank is {self.rank}; it must be at least 0")

    @property
    def names(self) -> list[str]:
        """What there is, as a person would list it: ["mix", "rank 8"]."""
        return [f"{n} {v}" if n == "rank" else n for n, v in asdict(self).items() if v]


@dataclass(frozen=True)
class Part:
    """What happens to one role (all queries, all keys, or all FFN matrices) of a model."""

    init: str = "keep"  # a row of `oelm.freezing.orthogonal.INITIALISATIONS`; "keep" leaves the model's own weights
    init_pretrained: str | None = None  # instead of `init` for pretrained weights, so that they are not thrown away
    frozen: bool = False
    projection: str = "dense"  # or a row of `projections.FIXED`: orthonormal, without weights or a matrix product
    adapters: Adapters = field(default_factory=Adapters)
    every: int = 1  # train only at every N-th step; at the others no gradient is computed
    lr: float = 1.0  # learning rate of this role's weights, as a multiple of everybody's

    def __post_init__(self) -> None:
        if self.every < 1:
            raise OelmError(f"every is {self.every}; it must be at least 1")
        if not 0 <= self.lr < math.inf:
            raise OelmError(f"lr is {self.lr}; it is a factor of the learning rate, so a number of at least 0")
        if self.frozen and self.every > 1:
            raise OelmError(f"every is {self.every}, but this part is frozen and never trains; leave one of them out")
        if self.projection != "dense" and not self.frozen:
            raise OelmError(f"projection {self.projection} has no weights, so it never trains; say frozen: true")

    @property
    def freezes_weights(self) -> bool:
        """A projection without weights has nothing to freeze."""
        return self.frozen and self.projection == "dense"

    def require_shape(self, rows: int, width: int, num_heads: int) -> None:
        """Refuse a projection of a shape that this part cannot have."""
        head_dim = rows // num_heads
        if self.projection != "dense" and head_dim > width:
            raise OelmError(
                f"projection {self.projection} reads a channel at most once in a head, but a head has {head_dim} rows "
                f"and the stream is {width} wide; use a dense projection, e.g. pretrained_frozen"
            )
        if self.projection == "hadamard" and head_dim & (head_dim - 1):
            raise OelmError(f"a hadamard projection needs a head size that is a power of two, not {head_dim}")
        if self.adapters.rank >= min(rows, width):
            raise OelmError(
                f"rank {self.adapters.rank} is no saving in a {rows} × {width} projection; "
                f"use a rank below {min(rows, width)}, or train the projection itself"
            )


@dataclass(frozen=True)
class Thaw:
    """Frozen layers begin to train during the run. Times up to 1 are fractions of the run, above 1 steps."""

    order: str = "top-down"
    at: tuple[float, ...] = (0.5,)
    """One time for all layers; two: the first layer's and the last one's, the others evenly between; or one each."""
    warmup: int | None = None  # steps in which a thawed weight's rate rises; default 100, or a tenth of a shorter run
    refreeze: float | None = None  # when everything freezes again

    def __post_init__(self) -> None:
        if self.order not in THAW_ORDERS:
            raise unknown("thaw order", self.order, THAW_ORDERS)
        if not self.at or not all(map(_is_time, self.at)) or list(self.at) != sorted(self.at):
            raise OelmError(
                f"thaw times are {list(self.at)}; give at least one, in rising order, as fractions of the run up to 1 "
                "or as whole steps above"
            )
        if self.refreeze is not None and not _is_time(self.refreeze):
            raise OelmError(f"refreeze is {self.refreeze}; it is a time: a fraction of the run up to 1 or a step above")
        if self.warmup is not None and self.warmup < 0:
            raise OelmError(f"thaw warmup is {self.warmup}; it is a number of steps, so at least 0")


@dataclass(frozen=True)
class Method:
    """How each role starts, whether and when it trains. Every field has a default that changes nothing."""

    name: str
    summary: str = ""
    query: Part = field(default_factory=Part)
    key: Part = field(default_factory=Part)
    ffn: Part = field(default_factory=Part)
    layers: str = "all"
    """The layers it applies to, the others being as in the baseline: all, even, odd, first2, last2, not-first2,
    not-last2, or numbers such as 0:2:3."""
    ratio: float | None = None  # freeze this share of all parameters: queries and keys first, then FFN matrices
    thaw: Thaw | None = None
    layer_lr: float = 1.0  # learning rate of a layer as a multiple of the one above; whatever `layers` says
    architecture: Mapping[str, Any] = field(default_factory=dict)
    """What it changes in the shape of our GPT (`oelm.models.shape.ARCHITECTURE`), which is then built that way."""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_name("method", self.name)
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise OelmError(f"ratio of method {self.name!r} is {self.ratio}; it is a share, above 0 and at most 1")
        if not 0 < self.layer_lr < math.inf:
            raise OelmError(f"layer_lr of method {self.name!r} is {self.layer_lr}; it must be a number above 0")
        if self.ffn.projection != "dense" or self.ffn.adapters != Adapters():
            raise OelmError(
                f"ffn of method {self.name!r} can only be initialised and frozen; only attention has adapters"
            )

    def part(self, role: str) -> Part:
        return getattr(self, role)

    @property
    def freezes(self) -> bool:
        """Whether it leaves something untrained, be it for a time, in some layers, or for want of weights."""
        return any(self.part(role).frozen for role in ROLES)

    @property
    def is_trained(self) -> bool:
        """Whether everything trains all the time, at everybody's learning rate, as in a baseline."""
        return not (self.freezes or self.moves) and self.layer_lr == 1 and all(self.part(r).lr == 1 for r in ROLES)

    @property
    def equipment(self) -> tuple[Any, ...]:
        """The learned adapters, how matrices that train begin, the architecture: what a fair baseline has as well."""
        adapters = [part.adapters for part in (self.query, self.key)]
        parts = [self.part(role) for role in ROLES]
        starts = {part.init for part in parts if not part.frozen and part.init != "keep"}
        where = self.layers if starts or any(p.names for p in adapters) else "all"
        return (*adapters, *sorted(starts), where, *sorted(self.architecture.items()))

    @property
    def moves(self) -> bool:
        """Whether what trains changes during a run; then no single step is typical of it."""
        return self.thaw is not None or any(self.part(role).every > 1 for role in ROLES)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, so that it goes through YAML and JSON and back."""
        values = {**asdict(self), "aliases": list(self.aliases)}
        if self.thaw:
            values["thaw"]["at"] = list(self.thaw.at)
        if not self.architecture:
            del values["architecture"]  # files of before lack it, and are still the same method
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Method":
        if "name" not in values:
            raise OelmError(f"a method needs a name; given: {', '.join(map(str, values)) or 'nothing'}")
        if isinstance(values.get("layers"), list):
            values = {**values, "layers": ":".join(map(str, values["layers"]))}
        return build(cls, values, f"method {values['name']!r}", RENAMED)


def layer_numbers(spec: str, count: int, where: str = "the model") -> list[int]:
    """The layers that `Method.layers` means in a model, or in a stack of one, of `count` layers.

    >>> layer_numbers("last2", 6), layer_numbers("not-first2", 6), layer_numbers("0:3", 6)
    ([4, 5], [2, 3, 4, 5], [0, 3])
    """
    everything = list(range(count))
    text = str(spec)
    if text in ("all", "even", "odd"):
        return [i for i in everything if text == "all" or i % 2 == (text == "odd")]
    chosen = text.removeprefix("not-")
    for word, cut in (("first", lambda n: everything[:n]), ("last", lambda n: everything[count - n :])):
        number = whole_number(chosen.removeprefix(word))
        if chosen.startswith(word) and number is not None:
            if number > count:
                raise OelmError(f"layers {text!r} wants {number} layers, but {where} has {count}")
            picked = cut(number)
            return [i for i in everything if (i in picked) == (chosen == text)]
    numbers = [number for part in text.split(":") if (number := whole_number(part)) is not None]
    if len(numbers) <= text.count(":"):
        raise OelmError(f"layers {text!r} is not understood; use all, even, odd, first2, last2, not-first2 or 0:2:3")
    for n in numbers:
        if n >= count:
            raise OelmError(f"layer {n} does not exist; {where} has layers 0 to {count - 1}")
    return sorted(set(numbers))


def _is_time(value: float) -> bool:
    return 0 <= value <= 1 or (1 < value < math.inf and value == int(value))


RENAMED = {"pieces": "adapters", "pieces_parameters": "adapters_parameters"}  # what files of version 0.1 call them
