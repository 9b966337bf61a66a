"""Variations of a method in one word: `oelm_freeze+rank=8+layers=not-last2`. The base's name, then what to change.

>>> from oelm.freezing.methods import method
>>> method("oelm_freeze+rank=8").query.adapters.names
['rank 8']
>>> method("oelm_freeze+thaw=top-down:0.25:0.75").thaw.at
(0.25, 0.75)

A new modifier is a row of MODIFIERS.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from oelm.errors import OelmError, unknown
from oelm.freezing.spec import Method, Part, Thaw
from oelm.validation import plain_number

Change = Callable[[Method, str], Method]
ORTHONORMAL_FFN = Part("semi_orthogonal", init_pretrained="semi_orthogonal_qr", frozen=True)


def modified(base: Method, words: list[str]) -> Method:
    """The base with every modifier applied in turn; its name is how it was asked for."""
    result = base
    names = [modifier_of(word) for word in words]
    for word in words:
        name, (_, equals, value) = modifier_of(word), word.partition("=")
        if names.count(name) > 1:
            raise OelmError(f"modifier {name!r} of method {base.name!r} is given {names.count(name)} times; give one")
        if name not in MODIFIERS:
            raise unknown("modifier", name, MODIFIERS)
        wants, change, _ = MODIFIERS[name]
        if bool(equals) != bool(wants):
            form = f"{name.rstrip('=')}={wants}" if wants else name
            raise OelmError(f"modifier {word!r} of method {base.name!r} must be written {form}")
        try:
            result = change(result, value)
        except OelmError as error:
            named = "" if base.name in str(error) else f"method {'+'.join([base.name, *words])!r}: "
            raise OelmError(f"{named}{error}") from None
    summary = f"{base.summary}; {', '.join(MODIFIERS[name][2] for name in names)}"
    return replace(result, name="+".join([base.name, *words]), summary=summary, aliases=())


def modifier_of(word: str) -> str:
    """Its key in MODIFIERS: "rank=8" is rank; "ffn=3.25" is not the same as "ffn", so its key is "ffn="."""
    name, equals, _ = word.partition("=")
    return f"{name}=" if equals and f"{name}=" in MODIFIERS else name


def _parts(method: Method, roles: tuple[str, ...], **changes: Any) -> Method:
    updated: dict[str, Any] = {role: replace(method.part(role), **changes) for role in roles}
    return replace(method, **updated)


def _adapter(*roles: str, **given: Any) -> Change:
    def change(method: Method, value: str) -> Method:
        adapters = given or {"rank": _rank(value)}
        for role in roles:
            method = _parts(method, (role,), adapters=replace(method.part(role).adapters, **adapters))
        return method

    return change


def _rank(value: str) -> int:
    rank = _whole("rank", value)
    if rank < 1:
        raise OelmError(f"rank is {rank}; an update needs at least 1, and without one the method is the one without")
    return rank


def _every(method: Method, value: str) -> Method:
    roles = _training(method, f"every={value}", "when queries and keys train")
    return _parts(method, roles, every=_whole("every", value))


def _start_orthonormal(method: Method, value: str) -> Method:
    roles = _training(method, "orthogonal", "how queries and keys that train begin")
    return _parts(method, roles, init="head_orthogonal", init_pretrained="head_qr")


def _training(method: Method, word: str, says: str) -> tuple[str, ...]:
    """Of queries and keys, those that train."""
    if training := tuple(role for role in QK if not method.part(role).frozen):
        return training
    raise OelmError(
        f"{word} of method {method.name!r} says {says}, but both are frozen; vary a method in which one of them trains"
    )


def _start_ffn_orthonormal(method: Method, value: str) -> Method:
    if method.ffn.frozen:
        raise OelmError(
            f"orthogonal_ffn of method {method.name!r} says how FFN matrices that train begin, but they are frozen"
        )
    return replace(method, ffn=replace(ORTHONORMAL_FFN, frozen=False))


def _freeze_ffn(method: Method, why: str) -> Method:
    if method.ffn != Part() and not method.ffn.frozen:
        raise OelmError(f"{why} of method {method.name!r} freezes FFN matrices, which it has said train; leave one out")
    return replace(method, ffn=ORTHONORMAL_FFN)


def _thaw(method: Method, value: str) -> Method:
    order, *times = value.split(":")
    return replace(method, thaw=Thaw(order, tuple(_number("thaw", t) for t in times) or (0.5,)))


def _in_thaw(field: str, kind: Callable[[str, str], Any]) -> Change:
    def change(method: Method, value: str) -> Method:
        if method.thaw is None:
            raise OelmError(
                f"{field}={value} of method {method.name!r} says more about thawing, so thaw must come before"
            )
        return replace(method, thaw=replace(method.thaw, **{field: kind(field, value)}))

    return change


def _architecture(name: str, kind: Callable[[str, str], Any] | None = None) -> Change:
    def change(method: Method, value: str) -> Method:
        wanted = kind(name, value) if kind else True
        return replace(method, architecture={**method.architecture, name: wanted})

    return change


def _number(name: str, text: str) -> float:
    number = plain_number(text)
    if number is None:
        raise OelmError(f"{name}={text!r} is not a number")
    return float(number)


def _factor(name: str, text: str) -> float:
    number = _number(name, text)
    if number == 1:
        raise OelmError(f"{name}={text} changes nothing; leave it out")
    return number


def _whole(name: str, text: str) -> int:
    number = plain_number(text)
    if not isinstance(number, int):
        raise OelmError(f"{name}={text!r} is not a whole number")
    return number


def equal_baseline(name: str) -> str:
    """The trained baseline with the same adapters, start and shape: the fair opponent of a frozen method that has some.

    >>> equal_baseline("permutation_qk+rank=8+layers=last2"), equal_baseline("oelm_freeze+layers=last2+offset")
    ('baseline+rank=8+layers=last2', 'baseline+offset')
    """
    words = name.split("+")[1:]
    shape = [word for word in words if modifier_of(word) in SHAPES]
    adapters = [word for word in words if word.partition("=")[0] in ADAPTERS]
    where = [word for word in words if word.startswith("layers=")]  # adapters stand only there
    return "+".join(["baseline", *adapters, *(where if adapters else ()), *shape])


QK = ("query", "key")
ADAPTERS = ("scale", "gain", "mix", "shift", "rank", "qrank", "krank", "orthogonal", "orthogonal_ffn")
SHAPES: dict[str, tuple[str, Change, str]] = {
    # Of our GPT, for whatever method: what comes free, then other ways to save.
    "offset": ("", _architecture("offset"), "half of every key's channels come from the previous token"),
    "qknorm": ("", _architecture("qknorm"), "RMS norm of queries and keys, with a learned scale"),
    "rmsnorm": ("", _architecture("rmsnorm"), "RMS norm instead of layer norm"),
    "swiglu": ("", _architecture("swiglu"), "a gated FFN of equal FLOPs"),
    "theta": ("500000", _architecture("theta", _number), "another base of rotary positions"),
    "thin": ("4", _architecture("thin", _whole), "queries and keys a fraction as wide as the model"),
    "kv": ("1", _architecture("kv", _whole), "fewer heads of keys and values than of queries"),
    "ffn=": ("3.25", _architecture("ffn", _number), "an FFN of this many times the width"),
    "window": ("64", _architecture("window", _whole), "every token sees this many tokens, itself included"),
    "linear": ("", _architecture("linear"), "linear attention: elu + 1 instead of a softmax"),
    "synthesizer": ("", _architecture("synthesizer"), "attention by learned scores of positions, without queries"),
    "mixing": ("", _architecture("mixing"), "attention by a fixed random matrix of positions (MixiT)"),
    "tied_kv": ("", _architecture("tied_kv"), "keys are values as well"),
    "share": ("2", _architecture("share", _whole), "so many layers in a row share the first one's attention"),
    "fewer": ("1", _architecture("fewer", _whole), "this many layers fewer"),
}
MODIFIERS: dict[str, tuple[str, Change, str]] = {
    # name: (what its value looks like, what it does, in words)
    "scale": ("", _adapter("query", scale=True), "a learned factor per head"),
    "gain": ("", _adapter("query", gain=True), "a learned factor per query channel"),
    "mix": ("", _adapter("query", mix=True), "a learned head_dim × head_dim mix of each head's query"),
    "shift": ("", _adapter(*QK, shift=True), "queries and keys read a learned blend with the previous token"),
    "rank": ("8", _adapter(*QK), "a learned low-rank update of queries and keys"),
    "qrank": ("8", _adapter("query"), "a learned low-rank update of the queries"),
    "krank": ("8", _adapter("key"), "a learned low-rank update of the keys"),
    "orthogonal": ("", _start_orthonormal, "those that train start with orthonormal heads"),
    "orthogonal_ffn": ("", _start_ffn_orthonormal, "FFN matrices train, from an orthonormal start"),
    "layers": ("last2", lambda m, v: replace(m, layers=v), "only in some layers"),
    "ffn": ("", lambda m, v: _freeze_ffn(m, "ffn"), "FFN matrices orthonormal and frozen"),
    "ratio": (
        "0.25",
        lambda m, v: replace(_freeze_ffn(m, f"ratio={v}"), ratio=_number("ratio", v)),
        "frozen up to a share of all parameters",
    ),
    "thaw": ("top-down:0.25:0.75", _thaw, "frozen layers begin to train during the run"),
    "warmup": ("100", _in_thaw("warmup", _whole), "with a warm-up of thawed weights"),
    "refreeze": ("0.9", _in_thaw("refreeze", _number), "and freeze again"),
    "every": ("4", _every, "queries and keys train only every few steps"),
    "lr": (
        "0.1",
        lambda m, v: _parts(m, QK, lr=_factor("lr", v)),
        "queries and keys with a learning rate of their own",
    ),
    "layer_lr": (
        "0.9",
        lambda m, v: replace(m, layer_lr=_factor("layer_lr", v)),
        "a learning rate that falls from layer to layer",
    ),
    **SHAPES,
}
