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
from typing import Any

from oelm.errors import OelmError, unknown
from oelm.freezing.modifiers import ORTHONORMAL_FFN, modified
from oelm.freezing.spec import Method as Method
from oelm.freezing.spec import Part

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
            "reinitialised",
            "normal(0.02) queries and keys, even where there were pretrained ones; everything trains: "
            "what the study's XNLI baseline really was",
            query=Part("published_normal"),
            key=Part("published_normal"),
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
        Method(
            "identity_q",
            "each head's query is its own slice of the stream: no weights, no product; keys train",
            query=Part(projection="identity", frozen=True),
        ),
        Method(
            "identity_qk",
            "each head's query and key are its own slice of the stream: no weights, no product",
            query=Part(projection="identity", frozen=True),
            key=Part(projection="identity", frozen=True),
        ),
        Method(
            "permutation_qk",
            "queries and keys are two fixed shuffles of the stream's channels: no weights, no product",
            query=Part(projection="permutation", frozen=True),
            key=Part(projection="permutation", frozen=True),
        ),
        Method(
            "signs_qk",
            "queries and keys are the stream with fixed random signs: no weights, no product",
            query=Part(projection="signs", frozen=True),
            key=Part(projection="signs", frozen=True),
        ),
        Method(
            "hadamard_qk",
            "queries and keys are shuffled, then turned by a fast Hadamard transform in every head: no weights",
            query=Part(projection="hadamard", frozen=True),
            key=Part(projection="hadamard", frozen=True),
        ),
        Method("oelm_ffn", "orthonormal, frozen FFN matrices; attention trains", ffn=ORTHONORMAL_FFN),
        Method(
            "oelm_qk_ffn",
            "orthonormal, frozen queries, keys and FFN matrices",
            query=_orthonormal,
            key=_orthonormal,
            ffn=ORTHONORMAL_FFN,
        ),
        Method("q_only", "only the queries are orthonormal and frozen", query=_orthonormal, key=_own),
        Method("k_only", "only the keys are orthonormal and frozen", query=_own, key=_orthonormal),
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
