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
from oelm.sites import Site, attention_sites


class FrozenChanged(Exception):
    """A tensor that a run promised not to touch is not what it was."""


@dataclass(frozen=True)
class SiteReport:
    """One query or key projection after freezing. Without weights (meta device) there is no error and no hash.

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
            sites=tuple(SiteReport(**{**site, "shape": tuple(site["shape"])}) for site in values["sites"]),
            total_parameters=values["total_parameters"],
            frozen_parameters=values["frozen_parameters"],
        )

    @classmethod
    def from_json(cls, text: str) -> "FreezeReport":
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        header = ("layer", "role", "heads", "shape", "init", "state", "‖WWᵀ−I‖max")
        rows = [
            (
                str(s.layer),
                s.role if s.kind == "self" else f"{s.kind} {s.role}",
                str(s.num_heads),
                "×".join(map(str, s.shape)),
                s.init,
                "frozen" if s.frozen else "trains",
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
    sites = attention_sites(model)
    if pretrained is None:
        pretrained = bool(getattr(model, "name_or_path", ""))
    inits = {role: _initialisation(chosen, role, pretrained) for role in ("query", "key")}
    for site in sites:
        _require_matrix(site.module(model), site)
    generators = [_generator(seed, place, site) for place, site in enumerate(sites)]
    reports = tuple(
        _treat(model, site, chosen, inits[site.role], generator)
        for site, generator in zip(sites, generators, strict=True)
    )
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return FreezeReport(chosen, seed, reports, total, frozen)


def hold(model: nn.Module, report: FreezeReport) -> None:
    """Freeze again, without initialising, a model whose weights were just loaded; they must be the reported ones."""
    attention_sites(model)  # splits what is fused, as freeze() did
    parameters = dict(model.named_parameters())
    for name in report.frozen_names:
        parameters[name].requires_grad_(False)
    audit(model, report)


def audit(model: nn.Module, report: FreezeReport) -> None:
    """Raise FrozenChanged unless every frozen tensor is bit for bit what `freeze` left, with no gradient."""
    parameters = dict(model.named_parameters())
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


def _initialisation(chosen: Method, role: str, pretrained: bool) -> str:
    part = chosen.part(role)
    name = part.init_pretrained if pretrained and part.init_pretrained else part.init
    if name not in INITIALISATIONS:
        raise unknown(f"initialisation of {role} in method {chosen.name!r}", name, INITIALISATIONS)
    return name


def _treat(model: nn.Module, site: Site, chosen: Method, init: str, generator: torch.Generator) -> SiteReport:
    """Initialise one projection and freeze it if the method says so."""
    weight: Tensor = site.module(model).weight  # type: ignore[assignment]
    frozen = chosen.part(site.role).frozen
    error, hashes = None, dict.fromkeys((name for name, _ in _tensors(model, site)), "") if frozen else {}
    unit = 1.0 if init in KEEPS_SCALE else site.unit
    if not weight.is_meta:
        with torch.no_grad():
            weight.copy_(unit * INITIALISATIONS[init](weight, site.num_heads, generator))
        error = orthonormality_error(weight / unit, site.num_heads)
        hashes = {name: tensor_hash(tensor) for name, tensor in _tensors(model, site)} if frozen else {}
    if frozen:  # never the other way round: what a user froze before stays frozen
        for _, tensor in _tensors(model, site):
            tensor.requires_grad_(False)
    rows, width = weight.shape
    heads, shape = site.num_heads, (rows, width)
    return SiteReport(site.path, site.role, site.layer, heads, shape, init, frozen, error, hashes, site.kind)


def _tensors(model: nn.Module, site: Site) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in site.module(model).named_parameters():
        yield f"{site.path}.{name}", parameter


def _generator(seed: int, place: int, site: Site) -> torch.Generator:
    """A stream of its own for every site, by its place in the model, so that wrappers draw the same weights."""
    digest = hashlib.sha256(f"{seed}:{place}:{site.role}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _require_matrix(module: nn.Module, site: Site) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise OelmError(f"{site.path} is a {type(module).__name__} without a weight matrix; oelm cannot freeze it")
