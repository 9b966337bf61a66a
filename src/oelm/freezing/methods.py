"""The named methods: how queries and keys start, and whether they train. Data, no branches, no torch.

A method says nothing about models; `apply.py` applies it wherever `sites.py` finds a query or a key.
A new method is a row of METHODS; a variation needs no row (`oelm.freezing.modifiers`):

>>> method("oelm_v2").name, method("oelm_v2").query.frozen
('oelm_freeze', True)
>>> method("oelm_freeze+rank=8").name
'oelm_freeze+rank=8'
>>> Method.from_dict(method("k_only").to_dict()) == method("k_only")
True
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from oelm.errors import OelmError, unknown
from oelm.freezing.modifiers import ORTHONORMAL_FFN, modified
from oelm.freezing.spec import Method as Method
from oelm.freezing.spec import Part

_frozen = partial(Part, frozen=True)
_orthonormal = _frozen("head_orthogonal", init_pretrained="head_qr")


def _both(name: str, summary: str, part: Part, **more: Any) -> Method:
    """Queries and keys alike."""
    return Method(name, summary, query=part, key=part, **more)


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method("baseline", "the model's own initialisation; everything trains"),
        _both(
            "oelm_freeze",
            "head-wise orthonormal queries and keys, frozen: the study's method",
            _orthonormal,
            aliases=("oelm_v2",),
        ),
        _both(
            "oelm_random",
            "normal(0.02) queries and keys, frozen: the study's ablation, whose logits are 4.9× smaller at width 512",
            _frozen("published_normal"),
        ),
        _both(
            "oelm_random_matched",
            "normal(0, 1/width) queries and keys, frozen: random at the scale of orthonormal rows, the fair control",
            _frozen("matched_normal"),
        ),
        _both(
            "oelm_global",
            "one orthonormal matrix across all heads, frozen: the study's first version",
            _frozen("global_orthogonal"),
            aliases=("oelm_v1",),
        ),
        _both(
            "orthogonal_trained",
            "head-wise orthonormal start, everything trains: does the start alone help?",
            Part("head_orthogonal", init_pretrained="head_qr"),
        ),
        _both(
            "reinitialised",
            "normal(0.02) queries and keys, even where there were pretrained ones; everything trains: "
            "what the study's XNLI baseline really was",
            Part("published_normal"),
        ),
        _both(
            "pretrained_frozen",
            "the model's own queries and keys, only frozen: the control that changes no weight",
            _frozen("keep"),
        ),
        _both(
            "head_qr_scaled",
            "QR of each head's given rows, brought back to the head's own scale, frozen",
            _frozen("head_qr_scaled"),
        ),
        _both("head_polar", "the orthonormal rows nearest to each head's given ones, frozen", _frozen("head_polar")),
        _both(
            "head_polar_scaled",
            "the nearest orthonormal rows, brought back to the head's own scale, frozen",
            _frozen("head_polar_scaled"),
        ),
        _both(
            "fresh_orthogonal",
            "fresh head-wise orthonormal queries and keys, frozen, even where there were pretrained ones",
            _frozen("head_orthogonal"),
        ),
        Method(
            "identity_q",
            "each head's query is its own slice of the stream: no weights, no product; keys train",
            query=_frozen(projection="identity"),
        ),
        _both(
            "identity_qk",
            "each head's query and key are its own slice of the stream: no weights, no product",
            _frozen(projection="identity"),
        ),
        _both(
            "permutation_qk",
            "queries and keys are two fixed shuffles of the stream's channels: no weights, no product",
            _frozen(projection="permutation"),
        ),
        _both(
            "signs_qk",
            "queries and keys are the stream with fixed random signs: no weights, no product",
            _frozen(projection="signs"),
        ),
        _both(
            "hadamard_qk",
            "queries and keys are shuffled, then turned by a fast Hadamard transform in every head: no weights",
            _frozen(projection="hadamard"),
        ),
        Method("oelm_ffn", "orthonormal, frozen FFN matrices; attention trains", ffn=ORTHONORMAL_FFN),
        _both("oelm_qk_ffn", "orthonormal, frozen queries, keys and FFN matrices", _orthonormal, ffn=ORTHONORMAL_FFN),
        Method("q_only", "only the queries are orthonormal and frozen", query=_orthonormal),
        Method("k_only", "only the keys are orthonormal and frozen", key=_orthonormal),
    )
}


def methods() -> list[Method]:
    """All named methods, in the order of the table."""
    return list(METHODS.values())


def method(spec: "str | Mapping[str, Any] | Method") -> Method:
    """A method by name or alias, with modifiers if wanted ("q_only+rank=8"), or a mapping of its fields."""
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, Mapping):
        return _own_method(Method.from_dict(spec))
    name, *words = str(spec).split("+")
    row = _row(name)
    if row is None:
        raise unknown("method", name, [*METHODS, *(a for m in METHODS.values() for a in m.aliases)])
    return modified(row, words) if words else row


def _row(name: str) -> Method | None:
    return next((row for row in METHODS.values() if name == row.name or name in row.aliases), None)


def _own_method(made: Method) -> Method:
    """Refuse a method under the name of another; what a named method was written down as is that method."""
    if _row(made.name.split("+")[0]) is None:
        return made
    meant = method(made.name)
    if replace(made, summary=meant.summary, aliases=meant.aliases) != meant:
        raise OelmError(
            f"method {made.name!r} is a named one, but its fields here say something else; "
            f"write it as a word (method: {made.name}), or give yours another name"
        )
    return made
