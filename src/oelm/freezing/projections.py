"""What may stand where a model has its query or key projection, beside a dense matrix.

`FixedProjection` is orthonormal and free: no weights, no gradient, no matrix product. `Projection` carries small
learned adapters on top of a dense or fixed base. Both take (…, T, width) to (…, T, rows) as the `Linear` they replace.

>>> x = torch.randn(2, 5, 8)
>>> torch.equal(FixedProjection("identity", 8, 8, num_heads=2)(x), x)
True
>>> equipped = Projection(nn.Linear(8, 8), num_heads=2, adapters=Adapters(rank=2, mix=True))
>>> torch.allclose(equipped(x), equipped.base(x))  # adapters start as if they were not there
True

A model that holds such modules is described by `describe` and built again by `rebuild`; `merge` turns them back into
dense matrices, wherever that is possible.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from oelm.errors import OelmError, unknown
from oelm.freezing.fused import SplitProjection
from oelm.freezing.spec import Adapters, Part

CONFIG_KEY = "oelm_projections"  # where a saved model's config.json says which projections it has
QUANT_METHOD = "oelm (import oelm before loading)"
"""What it calls itself to transformers, whose quantizers rebuild a model's modules before its weights are loaded
(`oelm.models.reload` is one). Without oelm, transformers prints it when it refuses the model."""


class FixedProjection(nn.Module):
    """A fixed orthonormal map of the stream's channels. What it draws is kept in buffers, so files carry it."""

    def __init__(
        self,
        kind: str,
        rows: int,
        width: int,
        *,
        num_heads: int,
        unit: float = 1.0,
        bias: bool = False,
        generator: Generator | None = None,
    ) -> None:
        """`bias` says only whether the matrix it stands for had one, for `merge`."""
        super().__init__()
        if kind not in FIXED:
            raise unknown("fixed projection", kind, FIXED)
        Part(projection=kind, frozen=True).require_shape(rows, width, num_heads)
        self.kind, self.num_heads, self.unit, self.bias = kind, num_heads, unit, bias
        self.in_features, self.out_features = width, rows
        # Drawn on the CPU, whatever the default device: the same seed gives the same map everywhere.
        order = torch.randperm(width, generator=generator, device="cpu")
        signs = torch.randint(0, 2, (max(width, rows),), generator=generator, device="cpu") * 2.0 - 1.0
        if rows != width:
            order = _selection(kind, order, rows, num_heads)
        for name, value in (("order", order), ("signs", signs[:rows])):
            if name in FIXED[kind][1] or (name == "order" and rows != width):
                self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        y = FIXED[self.kind][0](self, x)
        return y if self.unit == 1.0 else y * self.unit

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.in_features} → {self.out_features} channels, {self.num_heads} heads"


def _selection(kind: str, order: Tensor, rows: int, num_heads: int) -> Tensor:
    """Which channel each row reads (rows,) where there are not as many rows as channels: no channel twice in a head.

    Heads that read slices of the stream are spread over it evenly, so that a key head under grouped-query attention
    reads the slice of the first query head of its group. More rows than channels go round again.
    """
    width, head_dim = len(order), rows // num_heads
    step = head_dim if rows > width else width // num_heads
    starts = torch.arange(num_heads, device="cpu") * (head_dim if kind in ("permutation", "hadamard") else step)
    places = (starts[:, None] + torch.arange(head_dim, device="cpu")).flatten() % width
    return order[places] if kind in ("permutation", "hadamard") else places


def _shuffle(module: Any, x: Tensor) -> Tensor:
    # The same as x[..., order], but on a CPU several times as fast, forward and even more so backward.
    return x.gather(-1, module.order.expand(*x.shape[:-1], -1))


def _select(module: Any, x: Tensor) -> Tensor:
    return x if module.in_features == module.out_features else _shuffle(module, x)


def _hadamard(module: Any, x: Tensor) -> Tensor:
    """Shuffle, flip signs, then a fast Walsh–Hadamard transform in every head: d·log d additions, no products."""
    heads = (_shuffle(module, x) * module.signs).unflatten(-1, (module.num_heads, -1))
    size = heads.shape[-1]
    step = 1
    while step < size:
        pairs = heads.unflatten(-1, (-1, 2, step))
        a, b = pairs.unbind(-2)
        heads = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        step *= 2
    return heads.flatten(-2) * size**-0.5


FIXED: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[str, ...]]] = {
    "identity": (_select, ()),
    "permutation": (_shuffle, ("order",)),
    "signs": (lambda module, x: _select(module, x) * module.signs, ("signs",)),
    "hadamard": (_hadamard, ("order", "signs")),
}
"""Every free projection by the name a method uses, and what it draws. A new one is a function above and a row here."""


class Projection(nn.Module):
    """A dense or fixed base with learned adapters; adapters the method does not ask for do not exist.

    A token shift takes what stands before a token for its predecessor. Our GPT makes padding zero beforehand, as if
    nothing stood there; in other models the first token of a text that is padded on the left reads padding.
    """

    def __init__(self, base: nn.Module, num_heads: int, adapters: Adapters, generator: Generator | None = None) -> None:
        super().__init__()
        self.base, self.num_heads, self.adapters = base, num_heads, adapters
        self.in_features, self.out_features = int(base.in_features), int(base.out_features)  # type: ignore[arg-type]
        head_dim = self.out_features // num_heads
        Part(adapters=adapters).require_shape(self.out_features, self.in_features, num_heads)
        if adapters.shift:
            self.shift = nn.Parameter(torch.zeros(self.in_features))
        if adapters.rank:
            down = torch.randn(adapters.rank, self.in_features, generator=generator, device="cpu")
            self.down = nn.Parameter((down * self.in_features**-0.5).to(torch.empty(0).device))
            self.up = nn.Parameter(torch.zeros(self.out_features, adapters.rank))
        if adapters.mix:
            self.mix = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))
        if adapters.gain:
            self.gain = nn.Parameter(torch.ones(self.out_features))
        if adapters.scale:
            self.scale = nn.Parameter(torch.ones(num_heads))

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The adapters' own parameters by name."""
        return dict(self.named_parameters(recurse=False))

    def forward(self, x: Tensor) -> Tensor:
        adapters = self.adapters
        if adapters.shift:
            previous = F.pad(x, (0, 0, 1, 0))[..., :-1, :]  # nothing comes before the first token
            x = x + self.shift * (previous - x)
        y = self.base(x)
        if adapters.rank:
            low = F.linear(x, self.down)
            # y + low @ up.T to the bit, in one pass over y less; under autocast in half precision, as a matrix would.
            y = torch.addmm(y.flatten(0, -2), low.flatten(0, -2), self.up.T).view(y.shape)
        if adapters.mix:
            y = torch.einsum("...hd,hde->...he", y.unflatten(-1, (self.num_heads, -1)), self.mix).flatten(-2)
        if adapters.gain:
            y = y * self.gain
        if adapters.scale:
            y = y * self.scale.repeat_interleave(self.out_features // self.num_heads)
        return y

    def extra_repr(self) -> str:
        return ", ".join(self.adapters.names)


def replaced(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every projection of ours in a model that stands where the model had a matrix, outermost first."""
    inside: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, Projection | FixedProjection) and path not in inside:
            inside.add(f"{path}.base")
            yield path, module


def describe(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Which projections a model has, by path: enough to build it again around its weights."""
    result = {}
    for path, module in replaced(model):
        base = module.base if isinstance(module, Projection) else module
        fixed = isinstance(base, FixedProjection)
        result[path] = {
            "projection": base.kind if fixed else "dense",
            "unit": base.unit if fixed else 1.0,
            "num_heads": module.num_heads,
            "adapters": asdict(module.adapters) if isinstance(module, Projection) else {},
        }
    return result


def rebuild(model: nn.Module, described: dict[str, dict[str, Any]]) -> None:
    """Put the described projections into a model that has none; its weights are still to be loaded."""
    for path, facts in described.items():
        standing = model.get_submodule(path)
        adapters = Adapters(**facts.get("adapters", facts.get("pieces", {})))  # their name in files of version 0.1
        model.set_submodule(path, stand_in(standing, facts["projection"], facts["num_heads"], adapters, facts["unit"]))


def stand_in(
    standing: nn.Module,
    kind: str,
    num_heads: int,
    adapters: Adapters,
    unit: float = 1.0,
    generator: Generator | None = None,
) -> nn.Module:
    """What takes the place of the module that stands there: a fixed projection, adapters, or both."""
    weight: Tensor = standing.weight  # type: ignore[assignment]
    base = standing
    with torch.device(weight.device):
        if kind != "dense":
            rows, width = weight.shape
            bias = getattr(standing, "bias", None) is not None
            base = FixedProjection(kind, rows, width, num_heads=num_heads, unit=unit, bias=bias, generator=generator)
        module = Projection(base, num_heads, adapters, generator) if adapters.names else base
    return module.to(weight.device, weight.dtype).train(standing.training)


def note(model: nn.Module) -> None:
    """A Hugging Face model's own config must say what stands in it, or its files could not be loaded again."""
    for owner in _hugging_face(model):
        described = describe(owner)
        if not described:
            continue
        owner.config = config = copy.deepcopy(owner.config)  # others may be built from the same one
        setattr(config, CONFIG_KEY, described)
        if not getattr(owner, "rebuilds_projections", False):
            if getattr(config, "quantization_config", None) is None:
                config.quantization_config = {"quant_method": QUANT_METHOD}
            if not getattr(owner, "_oelm_marks_files", False):
                owner._oelm_marks_files = True
                owner.register_state_dict_post_hook(_mark)
                owner.register_load_state_dict_pre_hook(_unmark)
        if has_shift(owner):
            for holder in (config, getattr(owner, "generation_config", None)):
                if holder is not None:
                    holder.use_cache = False
            for part in owner.modules():  # also where it is called without its head
                if hasattr(part, "save_pretrained"):
                    part.register_forward_pre_hook(_refuse_cache, with_kwargs=True)


def marks(model: nn.Module) -> list[str]:
    """The matrices that a stock model of its kind has where this one has none, by their names in its files.

    There the files hold a tensor of an impossible shape: without oelm, from_pretrained then fails instead of drawing
    random queries and keys.
    """
    homes = [(path, path.rpartition(".")[0]) for path, _ in replaced(model)]
    splits = {home for _, home in homes if isinstance(model.get_submodule(home), SplitProjection)}
    return sorted({f"{home if home in splits else path}.weight" for path, home in homes})


def _mark(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in marks(model):
        state.setdefault(f"{prefix}{name}", torch.zeros(1))


def _unmark(model: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name in marks(model):
        state.pop(f"{prefix}{name}", None)


def _hugging_face(module: nn.Module) -> Iterator[Any]:
    """The model itself, or those within it, whose config is written beside their weights."""
    if hasattr(module, "save_pretrained") and hasattr(getattr(module, "config", None), "to_diff_dict"):
        yield module
        return
    for child in module.children():
        yield from _hugging_face(child)


def _refuse_cache(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    cache = kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        require_no_shift(model)


def require_no_shift(model: nn.Module) -> None:
    """Refuse to go on from a cache that lacks what a token shift needs."""
    if has_shift(model):
        raise OelmError(
            f"{type(model).__name__} has a token shift, which needs the previous token's input, not a cache of keys; "
            "generate with use_cache=False"
        )


def has_shift(model: nn.Module) -> bool:
    """Then no cache helps in generation: one new token at a time, the previous one's input is not at hand."""
    return any(isinstance(module, Projection) and module.adapters.shift for _, module in replaced(model))


def load_projections(model: nn.Module, described: dict[str, dict[str, Any]], folder: str | Path) -> None:
    """Give a model that has none the described projections, and all weights of the folder it was saved in."""
    from safetensors.torch import load_file

    rebuild(model, described)
    note(model)
    renamed = saved_names(model)
    tensors = {
        renamed.get(name, name): tensor
        for file in sorted(Path(folder).glob("model*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        names = [*unexpected, *sorted(set(missing) - tied)]
        raise OelmError(f"the weights in {folder} do not fit its config ({', '.join(names[:3])}); give a whole folder")


def saved_names(model: nn.Module) -> dict[str, str]:
    """A model's own tensor names by those that `save_pretrained` writes: of some models transformers keeps old ones."""
    from transformers.core_model_loading import revert_weight_conversion

    own = model.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in own.items()}
    saved = revert_weight_conversion(model, own)  # type: ignore[arg-type]
    return {name: names[id(tensor)] for name, tensor in saved.items() if name not in own and id(tensor) in names}


def described_in(folder: str | Path) -> dict[str, dict[str, Any]]:
    """The projections that a saved model's config.json names; none if it is no folder or a stock model."""
    file = Path(folder) / "config.json"
    return json.loads(file.read_text()).get(CONFIG_KEY, {}) if file.is_file() else {}


def merge(model: nn.Module) -> nn.Module:
    """Turn every projection of ours into one dense matrix, in place: the same function in the stock layout.

    Then the model can be saved and loaded as any other of its kind. What was frozen does not train as a matrix, either.
    Token shift is no matrix, so it cannot be merged.
    """
    found = list(replaced(model))
    for path, module in found:
        if isinstance(module, Projection) and module.adapters.shift:
            raise OelmError(f"{path} has a token shift, which no matrix can express; keep the model as it is")
    for path, module in found:
        beside = model.get_submodule(path.rpartition(".")[0])  # the values, at least, still have a matrix
        model.set_submodule(path, dense(module).to(next(beside.parameters())))
    for owner in _hugging_face(model):
        if hasattr(owner.config, CONFIG_KEY):
            owner.config = copy.deepcopy(owner.config)  # others may be built from the same one
            delattr(owner.config, CONFIG_KEY)
            if getattr(owner.config, "quantization_config", None) == {"quant_method": QUANT_METHOD}:
                del owner.config.quantization_config
    return model


@torch.no_grad()
def dense(module: Any) -> nn.Linear:
    """The matrix and bias of an affine map, read off its values at the origin and the unit vectors.

    That is done in float64, where a small weight beside a large bias loses nothing, and so on the CPU: not every device
    has float64. A map without weights cannot say which dtype it stands for; then it is torch's default.
    """
    tensors = [*module.parameters(), *module.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    where: dict[str, Any] = {"device": "meta" if device.type == "meta" else "cpu", "dtype": torch.float64}
    exact = copy.deepcopy(module).to(**where)
    at_zero = exact(torch.zeros(1, module.in_features, **where))
    columns = exact(torch.eye(module.in_features, **where)) - at_zero
    base = module.base if isinstance(module, Projection) else module
    bias = base.bias if isinstance(base, FixedProjection) else base.bias is not None
    linear = nn.Linear(module.in_features, module.out_features, bias=bias, device="meta")  # draws no random weights
    linear.weight = nn.Parameter(columns.T.to(device, dtype).contiguous())
    if bias:
        linear.bias = nn.Parameter(at_zero[0].to(device, dtype))
    trains = not isinstance(base, FixedProjection) and bool(base.weight.requires_grad)
    return linear.requires_grad_(trains).train(module.training)
