"""freeze(model, method): initialise the queries and keys, freeze what the method freezes, and be able to prove it.

>>> from oelm import GPT, GPTConfig
>>> model = GPT(GPTConfig.of_size("demo", vocab_size=512))
>>> report = freeze(model, "oelm_freeze", seed=0)
>>> report.frozen_parameters, report.trainable_parameters
(16384, 132352)
>>> audit(model, report)  # raises FrozenChanged if any frozen tensor moved
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import OelmError, unknown
from oelm.methods import Method, method
from oelm.orthogonal import INITIALISATIONS, KEEPS_SCALE, orthonormality_error
from oelm.projections import FixedProjection, Projection, dense, note, stand_in
from oelm.sites import Site, attention_sites, ffn_sites
from oelm.strategies import Part, layer_numbers


class FrozenChanged(Exception):
    """A tensor that a run promised not to touch is not what it was."""


@dataclass(frozen=True)
class SiteReport:
    """One query, key or FFN matrix after freezing. Without weights (meta device) there is no error and no hash.

    Rows that must be shorter than 1 (T5's queries) are judged at the length they must have.
    """

    path: str
    role: str
    layer: int
    num_heads: int
    shape: tuple[int, int]
    init: str
    frozen: bool
    orthonormality_error: float | None
    hashes: Mapping[str, str]
    """sha256 of every frozen tensor at this site (weight and, where there is one, bias), by parameter name."""
    kind: str = "self"
    projection: str = "dense"
    pieces: tuple[str, ...] = ()
    pieces_parameters: int = 0
    thaws: bool = False
    """Frozen now or at the start, but not for the whole run (`oelm.schedules`)."""
    every: int = 1
    lr: float = 1.0


@dataclass(frozen=True)
class FreezeReport:
    """What `freeze` did: prints as a table, serialises to JSON, and is what `audit` checks against."""

    method: Method
    seed: int
    sites: tuple[SiteReport, ...]
    total_parameters: int
    frozen_parameters: int

    @property
    def trainable_parameters(self) -> int:
        return self.total_parameters - self.frozen_parameters

    @property
    def frozen_names(self) -> list[str]:
        return [name for site in self.sites if site.frozen for name in site.hashes]

    @property
    def worst_orthonormality_error(self) -> float | None:
        """Over the frozen sites; None when nothing is frozen or there are no weights."""
        errors = [s.orthonormality_error for s in self.sites if s.frozen and s.orthonormality_error is not None]
        return max(errors, default=None)

    def to_dict(self) -> dict[str, Any]:
        values = {**asdict(self), "method": self.method.to_dict(), "trainable_parameters": self.trainable_parameters}
        return json.loads(json.dumps(values))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FreezeReport":
        return cls(
            method=Method.from_dict(values["method"]),
            seed=values["seed"],
            sites=tuple(
                SiteReport(**{**site, "shape": tuple(site["shape"]), "pieces": tuple(site.get("pieces", ()))})
                for site in values["sites"]
            ),
            total_parameters=values["total_parameters"],
            frozen_parameters=values["frozen_parameters"],
        )

    @classmethod
    def from_json(cls, text: str) -> "FreezeReport":
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        header = ("layer", "role", "heads", "shape", "init", "pieces", "state", "‖WWᵀ−I‖max")
        rows = [
            (
                str(s.layer),
                s.role if s.kind in ("self", s.role) else f"{s.kind} {s.role}",
                str(s.num_heads),
                "×".join(map(str, s.shape)),
                s.init,
                ", ".join(s.pieces),
                "no weights" if s.projection != "dense" else "frozen" if s.frozen else "trains",
                "" if s.orthonormality_error is None else f"{s.orthonormality_error:.1e}",
            )
            for s in self.sites
        ]
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]
        ]
        share = 100 * self.frozen_parameters / self.total_parameters
        totals = (
            f"{self.method.name}: {self.total_parameters:,} parameters, {self.frozen_parameters:,} frozen "
            f"({share:.1f} %), {self.trainable_parameters:,} train"
        )
        return "\n".join([*lines, totals])


def freeze(
    model: nn.Module, method_spec: str | Mapping[str, Any] | Method, *, seed: int = 0, pretrained: bool | None = None
) -> FreezeReport:
    """Initialise and freeze `model` in place as the method says; return what was done.

    `pretrained` says whether the model's weights are worth keeping; some methods then derive the frozen weights from
    them. By default it is asked of the model: transformers notes where weights were loaded from.
    """
    chosen = method(method_spec)
    sites = _sites(model, chosen)
    if pretrained is None:
        pretrained = bool(getattr(model, "name_or_path", ""))
    parts = _parts(model, sites, chosen)
    inits = [_initialisation(chosen, site.role, part, pretrained) for site, part in zip(sites, parts, strict=True)]
    reports = tuple(
        _treat(model, site, part, init, _generator(seed, place, site), thaws=chosen.thaw is not None)
        for place, (site, part, init) in enumerate(zip(sites, parts, inits, strict=True))
    )
    note(model)
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return FreezeReport(chosen, seed, reports, total, frozen)


def hold(model: nn.Module, report: FreezeReport) -> None:
    """Freeze again, without initialising, a model whose weights were just loaded; they must be the reported ones."""
    attention_sites(model)  # splits what is fused, as freeze() did
    parameters = dict(model.named_parameters())
    for name in report.frozen_names:
        if name in parameters:  # the others are buffers, which never train
            parameters[name].requires_grad_(False)
    audit(model, report)


def audit(model: nn.Module, report: FreezeReport) -> None:
    """Raise FrozenChanged unless every frozen tensor is bit for bit what `freeze` left, with no gradient."""
    parameters = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    problems = []
    for site in report.sites:
        for name, expected in site.hashes.items():
            parameter = parameters.get(name)
            if parameter is None:
                problems.append(f"{name} is gone")
            elif parameter.requires_grad:
                problems.append(f"{name} requires a gradient")
            elif parameter.grad is not None:
                problems.append(f"{name} has a gradient")
            elif tensor_hash(parameter) != expected:
                problems.append(f"{name} changed")
    if problems:
        raise FrozenChanged(f"{len(problems)} frozen tensors failed the audit: {'; '.join(problems[:5])}")


def tensor_hash(tensor: Tensor) -> str:
    """sha256 over dtype, shape and bytes; of a sharded tensor, over the whole of it."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    flat = tensor.detach().cpu().contiguous().flatten()
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sites(model: nn.Module, chosen: Method) -> list[Site]:
    """Every place the method may touch; what cannot be treated is refused before anything is changed."""
    sites = attention_sites(model)
    if chosen.ffn != Part():
        found = ffn_sites(model)
        if not found:
            raise OelmError(
                f"method {chosen.name!r} freezes FFN matrices, but oelm knows none in {type(model).__name__}; "
                "use a method for queries and keys only, or add its class to FFN_LAYOUTS in oelm/sites.py"
            )
        sites += found
    for site in sites:
        module = site.module(model)
        if isinstance(module, Projection | FixedProjection):
            raise OelmError(f"{site.path} was replaced by an earlier oelm.freeze; start from a fresh model")
        _require_matrix(module, site)
    return sites


def _parts(model: nn.Module, sites: list[Site], chosen: Method) -> list[Part]:
    """What happens at every site: the method's part for its role, in the layers it applies to."""
    layers = set(layer_numbers(chosen.layers, 1 + max(site.layer for site in sites)))
    parts = [chosen.part(site.role) if site.layer in layers else Part() for site in sites]
    if chosen.ratio is None:
        return parts
    kept = _within_ratio(model, sites, parts, chosen)
    return [part if site in kept else Part() for site, part in zip(sites, parts, strict=True)]


def _within_ratio(model: nn.Module, sites: list[Site], parts: list[Part], chosen: Method) -> list[Site]:
    """The first frozen sites, queries and keys before FFN, whose weights come nearest to the wanted share."""
    total = sum(p.numel() for p in model.parameters())
    target, frozen, size = (chosen.ratio or 0) * total, 0, 0
    kept: list[Site] = []
    for site, part in zip(sites, parts, strict=True):
        size = sum(t.numel() for _, t in site_tensors(model, site))
        if not part.frozen:
            continue
        if abs(frozen + size - target) > abs(frozen - target):
            return kept
        frozen += size
        kept.append(site)
    if kept and target - frozen > size:
        raise OelmError(
            f"ratio {chosen.ratio:g} of method {chosen.name!r} cannot be met: all its queries, keys and FFN matrices "
            f"are {frozen / total:.3f} of the model's parameters; ask for at most that"
        )
    return kept


def _initialisation(chosen: Method, role: str, part: Part, pretrained: bool) -> str:
    name = part.init_pretrained if pretrained and part.init_pretrained else part.init
    if name not in INITIALISATIONS:
        raise unknown(f"initialisation of {role} in method {chosen.name!r}", name, INITIALISATIONS)
    return name


def _treat(
    model: nn.Module, site: Site, part: Part, init: str, generator: torch.Generator, *, thaws: bool
) -> SiteReport:
    """Initialise one projection, replace or equip it, and freeze it, as the method says."""
    standing = site.module(model)
    weight: Tensor = standing.weight  # type: ignore[assignment]
    rows, width = weight.shape
    unit = 1.0 if init in KEEPS_SCALE and part.projection == "dense" else site.unit
    if part.projection == "dense" and not weight.is_meta:
        with torch.no_grad():
            weight.copy_(unit * INITIALISATIONS[init](weight, site.num_heads, generator))
    extra = 0
    if part.projection != "dense" or part.pieces.names:
        module = stand_in(standing, part.projection, site.num_heads, part.pieces, unit, generator)
        model.set_submodule(site.path, module)
        extra = sum(p.numel() for p in module.learned.values()) if isinstance(module, Projection) else 0
    hashes = {}
    if part.frozen:  # never the other way round: what a user froze before stays frozen
        for name, tensor in site_tensors(model, site):
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(False)
            hashes[name] = "" if tensor.is_meta else tensor_hash(tensor)
    return SiteReport(
        site.path,
        site.role,
        site.layer,
        site.num_heads,
        (rows, width),
        init if part.projection == "dense" else part.projection,
        part.frozen,
        None if weight.is_meta else _error(site.module(model), site, unit),
        hashes,
        site.kind,
        part.projection,
        tuple(part.pieces.names),
        extra,
        thaws=thaws and part.frozen and part.projection == "dense",
        every=part.every,
        lr=part.lr,
    )


def _error(module: nn.Module, site: Site, unit: float) -> float:
    """How far the base projection is from orthonormal; FFN matrices are judged by their shorter side."""
    base = module.base if isinstance(module, Projection) else module
    weight: Tensor = dense(base).weight if isinstance(base, FixedProjection) else base.weight  # type: ignore[assignment]
    if site.role == "ffn" and weight.shape[0] > weight.shape[1]:
        weight = weight.T
    return orthonormality_error(weight / unit, site.num_heads)


def site_tensors(model: nn.Module, site: Site | SiteReport) -> Iterator[tuple[str, Tensor]]:
    """What is frozen at a site: the base projection's weights and buffers, but of an FFN only the matrix."""
    module, prefix = model.get_submodule(site.path), site.path
    if isinstance(module, Projection):
        module, prefix = module.base, f"{prefix}.base"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if site.role != "ffn" or name == "weight":
            yield f"{prefix}.{name}", tensor


def _generator(seed: int, place: int, site: Site) -> torch.Generator:
    """A stream of its own for every site, by its place in the model, so that wrappers draw the same weights."""
    digest = hashlib.sha256(f"{seed}:{place}:{site.role}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _require_matrix(module: nn.Module, site: Site) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise OelmError(f"{site.path} is a {type(module).__name__} without a weight matrix; oelm cannot freeze it")
