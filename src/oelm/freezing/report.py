"""What `oelm.freeze` did, site by site: prints as a table, goes through JSON, and is what `verify_frozen` checks."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oelm.freezing.sites import place
from oelm.freezing.spec import RENAMED, Method


@dataclass(frozen=True)
class SiteReport:
    """One query, key or FFN matrix after freezing. Without weights (meta device) there is no error and no hash."""

    path: str
    role: str
    layer: int
    num_heads: int
    shape: tuple[int, int]
    init: str
    frozen: bool
    orthonormality_error: float | None  # of rows that must be shorter than 1 (T5's queries), at that length
    hashes: Mapping[str, str]  # sha256 of every frozen tensor here (weight and, if there is one, bias), by name
    kind: str = "self"
    projection: str = "dense"
    adapters: tuple[str, ...] = ()
    adapters_parameters: int = 0
    thaws: bool = False  # frozen now or at the start, but not for the whole run (`oelm.freezing.schedules`)
    every: int = 1
    lr: float = 1.0


@dataclass(frozen=True)
class FreezeReport:
    """All sites of a model under a method, and how many parameters are frozen."""

    method: Method
    seed: int
    sites: tuple[SiteReport, ...]
    total_parameters: int
    frozen_parameters: int

    @property
    def trainable_parameters(self) -> int:
        return self.total_parameters - self.frozen_parameters

    @property
    def most_trainable_parameters(self) -> int:
        """When everything that thaws has thawed."""
        thawing = [site for site in self.sites if site.thaws and site.frozen]
        biases = (s.shape[0] for s in thawing for name in s.hashes if name.endswith("bias"))
        return self.trainable_parameters + sum(math.prod(s.shape) for s in thawing) + sum(biases)

    @property
    def frozen_names(self) -> list[str]:
        return [name for site in self.sites if site.frozen for name in site.hashes]

    @property
    def worst_orthonormality_error(self) -> float | None:
        """Over the frozen sites; None when nothing is frozen or there are no weights."""
        errors = [s.orthonormality_error for s in self.sites if s.frozen and s.orthonormality_error is not None]
        return max(errors, default=None)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """Where each site is and what, for people: ("layer 0", "query"), with the stack where there are several."""
        stacks = [place(site.path)[0] for site in self.sites]
        several = len(set(stacks)) > 1
        return [
            (
                f"{stack} {site.layer}" if several else f"layer {site.layer}",
                site.role if site.kind in ("self", site.role) else f"{site.kind} {site.role}",
            )
            for stack, site in zip(stacks, self.sites, strict=True)
        ]

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
            sites=tuple(map(_site, values["sites"])),
            total_parameters=values["total_parameters"],
            frozen_parameters=values["frozen_parameters"],
        )

    @classmethod
    def from_json(cls, text: str) -> "FreezeReport":
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        header = ("layer", "role", "heads", "shape", "init", "adapters", "state", "‖WWᵀ−I‖max")
        rows = [
            (
                where.removeprefix("layer "),
                what,
                str(s.num_heads),
                "×".join(map(str, s.shape)),
                s.init,
                ", ".join(s.adapters),
                "no weights" if s.projection != "dense" else "frozen" if s.frozen else "trains",
                "" if s.orthonormality_error is None else f"{s.orthonormality_error:.1e}",
            )
            for s, (where, what) in zip(self.sites, self.labels, strict=True)
        ]
        table = [header, *rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        share = 100 * self.frozen_parameters / self.total_parameters
        totals = (
            f"{self.method.name}: {self.total_parameters:,} parameters, {self.frozen_parameters:,} frozen "
            f"({share:.1f} %), {self.trainable_parameters:,} train"
        )
        return "\n".join([*lines, totals])


def _site(values: Mapping[str, Any]) -> SiteReport:
    named = {RENAMED.get(key, key): value for key, value in values.items()}
    return SiteReport(**{**named, "shape": tuple(named["shape"]), "adapters": tuple(named.get("adapters", ()))})
