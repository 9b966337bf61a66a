"""The one validator of the library's dataclasses: types by their annotations, limits beside them. It needs no pydantic.

>>> from dataclasses import dataclass
>>> @dataclass
... class Shape:
...     layers: Annotated[int, AT_LEAST_1] = 1
>>> build(Shape, {"layers": "two"}, "shape")
Traceback (most recent call last):
oelm.errors.OelmError: layers of shape is 'two'; it must be a whole number of at least 1
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from oelm.errors import OelmError, unknown

_WORDS = {str: "a name", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list"}
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan")


def plain_number(text: str) -> int | float | None:
    """A number as people write it; None for what only int() takes for one: 08, 1_0, digits of other scripts.

    >>> plain_number("8"), plain_number("3e-4"), plain_number("08"), plain_number("1_0"), plain_number("٣")
    (8, 0.0003, None, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,300}", text) else float(text)


def number_in(value: Any) -> Any:
    """YAML reads 3e-4 (no dot) as text; people mean the number. Anything else stays as it is."""
    number = plain_number(value) if isinstance(value, str) else None
    return value if number is None else number


def whole_number(text: str) -> int | None:
    """Decimal digits as people write them, without a sign.

    >>> whole_number("8"), whole_number("08"), whole_number("²"), whole_number("9" * 5000)
    (8, None, None, None)
    """
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,17}", text) else None


TOKENS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def amount(option: str, text: str, units: Mapping[str, float]) -> float:
    """What people write with units, in the smallest of them.

    >>> amount("--budget", "1h30m", SECONDS), amount("--max-tokens", "2.5M", TOKENS)
    (5400.0, 2500000.0)
    """
    parts = re.findall(r"([0-9.]+) *([A-Za-z]*) *", text)
    numbers = [plain_number(number) for number, _ in parts]
    written = "".join(number + unit for number, unit in parts)
    if written != text.replace(" ", "") or not all(numbers) or any(unit not in units for _, unit in parts):
        largest = max(units, key=lambda unit: units[unit])
        known = ", ".join(unit for unit in units if unit)
        raise OelmError(
            f"{option} {text!r} is not possible; give a number above 0 and its unit, e.g. 2{largest} ({known})"
        )
    return sum(float(number or 0) * units[unit] for number, (_, unit) in zip(numbers, parts, strict=True))


def require_name(what: str, name: str) -> None:
    """Refuse a name that would lead elsewhere as part of a path, or garble a terminal."""
    if not name or not name.isprintable() or name.startswith(".") or re.search(r"[/\\]|\.\.", name):
        raise OelmError(f"{what} {name!r} cannot be a folder's name; use letters, digits, '-', '_' and '+'")


@dataclass(frozen=True)
class Limit:
    words: str
    holds: Callable[[Any], bool]


AT_LEAST_1 = Limit("of at least 1", lambda value: value >= 1)
COUNT = Limit("of at least 1, and at most 16,777,216", lambda value: 1 <= value <= 2**24)
ABOVE_1 = Limit("above 1", lambda value: value > 1)
BELOW_1 = Limit("of at least 0 and below 1", lambda value: 0 <= value < 1)


def build(cls: Any, values: Any, what: str, renamed: Mapping[str, str] | None = None) -> Any:
    """A dataclass from plain values, refusing unknown fields and wrong types by name; `renamed` has names of before."""
    hints = _hints(cls)
    if not isinstance(values, Mapping):
        raise OelmError(f"{what} is {values!r}; give a mapping with {', '.join(hints)}")
    result = {}
    for key, value in values.items():
        key = (renamed or {}).get(key, key)
        if key not in hints:
            raise unknown(f"field of {what}", key, hints)
        result[key] = _checked(value, hints[key], f"{key} of {what}", renamed)
    return cls(**result)


def require_valid(made: Any, prefix: str = "") -> None:
    """Check a dataclass that was made by hand; for its `__post_init__`."""
    for name, hint in _hints(made.__class__).items():
        _checked(getattr(made, name), hint, f"{prefix}{name}")


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def _checked(value: Any, hint: Any, what: str, renamed: Mapping[str, str] | None = None) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind: Any = next(k for k in kinds if k is not type(None))
    limit: Limit | None = None
    if get_origin(kind) is Annotated:
        kind, limit = get_args(kind)
    if is_dataclass(kind) and value is not None:
        return value if type(value) is kind else build(kind, value, what, renamed)
    kind = get_origin(kind) or kind
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(_checked(one, get_args(hint)[0], what) for one in value)
    if kind is Mapping and isinstance(value, Mapping):
        return dict(value)
    number = kind is float and isinstance(value, int | float) and not isinstance(value, bool)
    if (number or (kind not in (tuple, float) and type(value) is kind)) and (limit is None or limit.holds(value)):
        return value
    words = _WORDS.get(kind, "a mapping") + (f" {limit.words}" if limit else "")
    raise OelmError(f"{what} is {value!r}; it must be {words}{' or nothing' if type(None) in kinds else ''}")
