"""YAML from people and from folders of others: small, shallow, every key once, or refused within a second."""

import re
from pathlib import Path
from typing import Any

import yaml

from oelm.errors import OelmError

MOST_BYTES, MOST_LEVELS, MOST_ALIASES = 128 * 1024, 32, 32
_TREE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_TREE):
    """As YAML 1.1 reads it, but that a number is decimal: 010 is not 8, 1_0 not 10, and 1:30 not 90."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_INT = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INT]
    for first, resolvers in _TREE.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))


def read_yaml(file: Path, what: str) -> Any:
    """The content of a file; `what` it is, for the error."""
    if file.exists() and not file.is_file():
        raise OelmError(f"{what} {file} cannot be read: it is no file")  # a pipe would be waited for
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_BYTES + 1)
        return parse_yaml(text.decode(), f"{what} {file}")
    except FileNotFoundError:
        raise OelmError(f"{what} {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OelmError(f"{what} {file} cannot be read: {_one_line(error)}") from None


def parse_yaml(text: str, what: str) -> Any:
    try:
        _require_harmless(text, what)
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not
        raise OelmError(f"{what} cannot be read: {_one_line(error)}") from None


def _require_harmless(text: str, what: str) -> None:
    """Look at the file's structure before anything is built from it."""
    if len(text) > MOST_BYTES:
        raise OelmError(f"{what} is larger than {MOST_BYTES // 1024} KiB, which no config needs; is it the right file?")
    open_anchors: list[str | None] = []
    aliases = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > MOST_LEVELS:
                raise OelmError(f"{what} is nested more than {MOST_LEVELS} levels deep; no config needs that")
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if event.anchor in open_anchors:
                raise OelmError(f"{what} contains itself (*{event.anchor}); write the values out")
            if aliases > MOST_ALIASES:
                raise OelmError(f"{what} has more than {MOST_ALIASES} aliases (*{event.anchor}); write the values out")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
