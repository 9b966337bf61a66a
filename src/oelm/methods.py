"""The methods: how queries and keys start, and whether they train. Data, no branches, no torch.

A method says nothing about models; `oelm.freezing` applies it wherever `oelm.sites` finds a query or a key.
A new method is a row of METHODS:

>>> method("oelm_v2").name, method("oelm_v2").query.frozen
('oelm_freeze', True)
>>> Method.from_dict(method("k_only").to_dict()) == method("k_only")
True
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from oelm.errors import OelmError, unknown


@dataclass(frozen=True)
class Part:
    """What happens to one role (all queries, or all keys) of a model."""

    init: str = "keep"
    """A row of `oelm.orthogonal.INITIALISATIONS`; "keep" leaves the model's own weights."""
    init_pretrained: str | None = None
    """Used instead of `init` when the model's weights were pretrained, so that they are not thrown away."""
    frozen: bool = False


@dataclass(frozen=True)
class Method:
    """An initialisation and a freezing rule for each role. Every field has a default that changes nothing."""

    name: str
    summary: str = ""
    query: Part = field(default_factory=Part)
    key: Part = field(default_factory=Part)
    aliases: tuple[str, ...] = ()

    def part(self, role: str) -> Part:
        return getattr(self, role)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, so that it goes through YAML and JSON and back."""
        return {**asdict(self), "aliases": list(self.aliases)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Method":
        known = [f.name for f in fields(cls)]
        if "name" not in values:
            raise OelmError(f"a method needs a name; given: {', '.join(values) or 'nothing'}")
        for key in values:
            if key not in known:
                raise unknown(f"field of method {values['name']!r}", key, known)
        aliases = values.get("aliases", ())
        if not isinstance(aliases, list | tuple):
            raise OelmError(f"aliases of method {values['name']!r} are {aliases!r}; give a list of names")
        parts = {role: _part(values["name"], role, values[role]) for role in ROLES if role in values}
        return cls(**{**values, **parts, "aliases": tuple(aliases)})


ROLES = ("query", "key")
_KINDS = {"init": "a name", "init_pretrained": "a name or nothing", "frozen": "true or false"}


def _part(name: str, role: str, values: Any) -> Part:
    known = [f.name for f in fields(Part)]
    if not isinstance(values, Mapping):
        raise OelmError(f"{role} of method {name!r} is {values!r}; give a mapping with {', '.join(known)}")
    for key in values:
        if key not in known:
            raise unknown(f"field of {role} in method {name!r}", key, known)
    for key, kind in (("init", str), ("init_pretrained", str | None), ("frozen", bool)):
        if key in values and not isinstance(values[key], kind):
            raise OelmError(f"{key} of {role} in method {name!r} is {values[key]!r}; it must be {_KINDS[key]}")
    return Part(**values)


_orthonormal = Part("head_orthogonal", init_pretrained="head_qr", frozen=True)
_own = Part()


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("baseline", "the model's own initialisation; everything trains"),
        Method(
            "oelm_freeze",
            "head-wise orthonormal queries and keys, frozen: the study's method",
            query=_orthonormal,
            key=_orthonormal,
            aliases=("oelm_v2",),
        ),
        Method(
            "oelm_random",
            "normal(0.02) queries and keys, frozen: the study's ablation, whose logits are 4.9× smaller at width 512",
            query=Part("published_normal", frozen=True),
            key=Part("published_normal", frozen=True),
        ),
        Method(
            "oelm_random_matched",
            "normal(0, 1/width) queries and keys, frozen: random at the scale of orthonormal rows, the fair control",
            query=Part("matched_normal", frozen=True),
            key=Part("matched_normal", frozen=True),
        ),
        Method(
            "oelm_global",
            "one orthonormal matrix across all heads, frozen: the study's first version",
            query=Part("global_orthogonal", frozen=True),
            key=Part("global_orthogonal", frozen=True),
            aliases=("oelm_v1",),
        ),
        Method(
            "orthogonal_trained",
            "head-wise orthonormal start, everything trains: does the start alone help?",
            query=Part("head_orthogonal", init_pretrained="head_qr"),
            key=Part("head_orthogonal", init_pretrained="head_qr"),
        ),
        Method(
            "pretrained_frozen",
            "the model's own queries and keys, only frozen: the control that changes no weight",
            query=Part("keep", frozen=True),
            key=Part("keep", frozen=True),
        ),
        Method(
            "head_qr_scaled",
            "QR of each head's given rows, brought back to the head's own scale, frozen",
            query=Part("head_qr_scaled", frozen=True),
            key=Part("head_qr_scaled", frozen=True),
        ),
        Method(
            "head_polar",
            "the orthonormal rows nearest to each head's given ones, frozen",
            query=Part("head_polar", frozen=True),
            key=Part("head_polar", frozen=True),
        ),
        Method(
            "head_polar_scaled",
            "the nearest orthonormal rows, brought back to the head's own scale, frozen",
            query=Part("head_polar_scaled", frozen=True),
            key=Part("head_polar_scaled", frozen=True),
        ),
        Method(
            "fresh_orthogonal",
            "fresh head-wise orthonormal queries and keys, frozen, even where there were pretrained ones",
            query=Part("head_orthogonal", frozen=True),
            key=Part("head_orthogonal", frozen=True),
        ),
        Method("q_only", "only the queries are orthonormal and frozen", query=_orthonormal, key=_own),
        Method("k_only", "only the keys are orthonormal and frozen", query=_own, key=_orthonormal),
    )
}


def methods() -> list[Method]:
    """All named methods, in the order of the table."""
    return list(METHODS.values())


def method(spec: "str | Mapping[str, Any] | Method") -> Method:
    """A method by name, alias or mapping of its fields."""
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, Mapping):
        return Method.from_dict(spec)
    for row in METHODS.values():
        if spec == row.name or spec in row.aliases:
            return row
    raise unknown("method", str(spec), [*METHODS, *(a for m in METHODS.values() for a in m.aliases)])
