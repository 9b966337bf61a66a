"""Record files are untrusted input: of the right types, with possible values, and unchanged since they were written.

A record may be sealed: it ends with a digest of everything else in it. Older records have none and are read as well.
`config_differences` compares the configs of two runs, whatever version wrote them.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from oelm.errors import OelmError
from oelm.yaml_files import parse_yaml

SEAL = "sha256"
_SEAL_LINE = re.compile(r"# sha256: ([0-9a-f]{64})\n?\Z")
_COUNT, _SIZE, _SHARE, _TEXT, _MAPPING = "a whole number", "a number", "a share", "text", "a mapping"
_KINDS = {
    **dict.fromkeys(("step", "steps", "max_steps", "tokens", "samples", "seed", "pid"), _COUNT),
    **dict.fromkeys(("total_parameters", "frozen_parameters", "trainable_parameters", "peak_memory_bytes"), _COUNT),
    **dict.fromkeys(("loss", "perplexity", "bits_per_byte", "true_entropy", "lr", "grad_norm", "heartbeat"), _SIZE),
    **dict.fromkeys(("seconds", "step_seconds", "wall_seconds", "training_seconds", "median_step_time"), _SIZE),
    **dict.fromkeys(("tokens_per_second", "eta_seconds", "worst_orthonormality_error"), _SIZE),
    **dict.fromkeys(("accuracy", "f1", "share"), _SHARE),
    **dict.fromkeys(("state", "kind", "dataset", "data_fingerprint", "model_family", "error", "device"), _TEXT),
    **dict.fromkeys(("final", "best"), _MAPPING),
}
"""What a value is wherever a record has this key; every one may be missing or null."""
_LEAST = {"perplexity": 1.0}
STEPS_OF_DATA = ("max_steps", "warmup_steps", "eval_every", "checkpoint_every")
"""Training settings that may follow from the data, where epochs are given."""


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**value, SEAL: _digest(value)}


def seal_text(text: str) -> str:
    """A text whose last line is a comment with the digest of all before it."""
    return f"{text}# sha256: {digest(text.encode())}\n"


def _require_seal(file: Path, text: str) -> None:
    found = _SEAL_LINE.search(text)
    if found and found[1] != digest(text[: found.start()].encode()):
        raise OelmError(
            f"{file} was changed since it was written (its last line has another digest); "
            "restore it, or remove that line if the change was meant"
        )


def damaged(problem: str) -> OelmError:
    return OelmError(f"{problem}; restore it from a copy, or delete the run")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_bytes(file: Path, last: int | None = None) -> bytes | None:
    """The content of a file, or its `last` bytes after a line break; None if there is none."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise damaged(f"{file} cannot be read: it is no regular file")
        if last is None or file.stat().st_size <= last:
            return (b"\n" if last is not None else b"") + file.read_bytes()
        with file.open("rb") as handle:
            handle.seek(-last, os.SEEK_END)
            return handle.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OelmError(f"{file} cannot be read: {error.strerror}") from error


def read_json(file: Path, *required: str) -> dict[str, Any] | None:
    """A mapping that has the `required` keys; None if there is no such file."""
    data = read_bytes(file)
    return None if data is None else _parsed(str(file), data, required)


def read_rows(file: Path, *required: str, having: bytes = b"", last_bytes: int | None = None) -> list[dict[str, Any]]:
    """Every row of a JSONL file. Only a torn last line is passed over: its writer was killed.

    `having` leaves out lines without these bytes; `last_bytes` reads the end of the file only.
    """
    content = read_bytes(file, last_bytes) or b""
    if last_bytes is not None:
        content = content.partition(b"\n")[2]  # the first line begins anywhere
    named = [(f"line {number}", line) for number, line in _lines(content, having)]
    last = content[content.rfind(b"\n") + 1 :]
    if last.endswith(b"}"):
        named.append(("last line", last))
    return [_parsed(f"{file}, {name},", line, required) for name, line in named]


def seal_rows(file: Path) -> dict[str, Any]:
    """How many bytes of rows there are, and their digest."""
    data = read_bytes(file) or b""
    return {"bytes": len(data), SEAL: digest(data)}


def rows_until(file: Path, step: int, seal: Mapping[str, Any] | None) -> bytes:
    """The rows up to a step, as they were when they were sealed; older checkpoints have no seal of them."""
    data = read_bytes(file) or b""
    if step < 0:
        return b""  # a run that starts over needs none of it
    if seal is None:
        return b"".join(json.dumps(row).encode() + b"\n" for row in read_rows(file, "step") if row["step"] <= step)
    if digest(data[: seal["bytes"]]) != seal[SEAL]:
        raise OelmError(
            f"{file} is not what it was when the checkpoint of step {step} was written: a row of before was "
            f"changed or lost; restore the file, or remove {file.parent} to start over"
        )
    return data[: seal["bytes"]]


def lines_with(content: bytes, word: str) -> bytes:
    """The lines in which this JSON string stands, found without parsing any: few rows of many are validations.

    >>> lines_with(b'{"kind": "train"}\\n{"kind": "validation"}\\n', "validation")
    b'{"kind": "validation"}\\n'
    """
    return b"".join(line + b"\n" for _, line in _lines(content + b"\n", json.dumps(word).encode()))


def _lines(content: bytes, having: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that ends and has these bytes, without a look at the others."""
    if not having:
        yield from enumerate(content.split(b"\n")[:-1], 1)
        return
    number, end = 1, 0
    while (place := content.find(having, end)) >= 0 and (stop := content.find(b"\n", place)) >= 0:
        start = content.rfind(b"\n", 0, place) + 1
        number += content.count(b"\n", end, start)
        yield number, content[start:stop]
        number, end = number + 1, stop + 1


def parsed(lines: bytes) -> list[Any]:
    """Rows of JSON, until the first that is torn."""
    rows = lines.splitlines()
    with suppress(ValueError, RecursionError):  # all at once, which is fast
        return json.loads(b"[" + b",".join(rows) + b"]")
    found = []
    for row in rows:
        try:
            found.append(json.loads(row))
        except (ValueError, RecursionError):
            break
    return found


def read_config(file: Path) -> dict[str, Any]:
    """The settings of a run: a mapping of sections that JSON has a form for, unchanged since we wrote it."""
    try:
        text = (read_bytes(file) or b"").decode()
    except UnicodeDecodeError as error:
        raise damaged(f"{file} cannot be read: {error}") from None
    config = parse_yaml(text, str(file))
    if not isinstance(config, dict):
        raise OelmError(f"{file} holds {type(config).__name__}, not a mapping of settings")
    _require_seal(file, text)
    _require_plain(file, config)
    sections = {name: config.get(name) or {} for name in ("model", "data", "training", "runtime")}
    if isinstance(sections["model"], dict):
        sections["model.overrides"] = sections["model"].get("overrides") or {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise damaged(f"{file} cannot be read: {name} is no section of settings")
    if "model" in config:
        config["model"] = named_model(config["model"])
    if not _is(_COUNT, config.get("seed", 0), -math.inf):
        raise damaged(f"{file} cannot be read: seed is {str(config['seed'])[:80]!r}, not a whole number")
    return config


def named_model(model: Any) -> Any:
    """The model section of a config; in earlier ones its `name` is called `encoder`."""
    if not isinstance(model, dict) or "encoder" not in model:
        return model
    name = model["encoder"]
    return {**{key: value for key, value in model.items() if key != "encoder"}, **({"name": name} if name else {})}


def config_differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs between two configs, leaving out `runtime`, which does not change what is computed.

    Where a setting differs, those that follow from it are not told: min_lr is a tenth of max_lr unless it is given.
    """
    found = []
    if prefix == "model.":
        old, new = named_model(old), named_model(new)
    for key in dict.fromkeys([*old, *new]):
        if not prefix and key == "runtime":
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += config_differences(a, b, f"{prefix}{key}.")
        elif None in (a, b) and _learnt_at_start(f"{prefix}{key}", new):
            continue  # not looked at yet: a queued run learns it when it starts
        elif f"{prefix}{key}" == "data.path" and old.get("fingerprint") == new.get("fingerprint") is not None:
            continue  # the same data, wherever they lie
        elif a != b and not _follows(key, old, new):
            found.append(f"{prefix}{key} is {_told(a)} there and {_told(b)} here")
    return found


def _follows(key: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    leader = "max_lr" if key == "min_lr" else "max_steps" if key in STEPS_OF_DATA[1:] else key
    there, here = old.get(leader), new.get(leader)
    return leader != key and None not in (there, here) and there != here


def _told(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


def _learnt_at_start(key: str, section: dict[str, Any]) -> bool:
    """Whether a config may leave this open: what its data are, steps if epochs are given, what its model is for."""
    steps = key.removeprefix("training.") in STEPS_OF_DATA
    return key in ("data.fingerprint", "model.objective") or (steps and section.get("epochs") is not None)


def _require_plain(file: Path, value: Any) -> None:
    """Refuse what JSON has no form for: dates, sets, numbers that are none, other keys than text."""
    if isinstance(value, dict):
        for key, content in value.items():
            if not isinstance(key, str):
                raise damaged(f"{file} cannot be read: {str(key)[:80]!r} is no name of a setting")
            _require_plain(file, content)
    elif isinstance(value, list):
        for content in value:
            _require_plain(file, content)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise damaged(f"{file} cannot be read: {str(value)[:80]!r} is no value of a setting")


def _digest(value: Mapping[str, Any]) -> str:
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _parsed(where: str, data: bytes, required: tuple[str, ...]) -> dict[str, Any]:
    try:
        value = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{where} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise damaged(f"{where} cannot be read: it is no mapping")
    _require_possible(where, value)
    seal = value.pop(SEAL, None)
    if seal is not None and seal != _digest(value):
        raise damaged(f"{where} cannot be read: it was changed after it was written (see its sha256)")
    for key in required:
        if value.get(key) is None:
            raise damaged(f"{where} cannot be read: it has no {key!r}")
    return value


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _require_possible(where: str, value: dict[str, Any]) -> None:
    for key, content in value.items():
        kind = _KINDS.get(key)
        if kind is None or content is None:
            continue
        if not _is(kind, content, _LEAST.get(key, 0.0)):
            raise damaged(f"{where} cannot be read: {key} is {str(content)[:80]!r}, which it cannot be")
        if kind == _MAPPING:
            _require_possible(where, content)


def _is(kind: str, value: Any, least: float) -> bool:
    if kind in (_TEXT, _MAPPING):
        return isinstance(value, str if kind == _TEXT else dict)
    if isinstance(value, bool) or not isinstance(value, int if kind == _COUNT else int | float):
        return False
    return least <= value <= (1.0 if kind == _SHARE else 1e300)
