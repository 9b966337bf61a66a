"""Checkpoints: a folder that is complete or absent, with a hash of every file, and no pickle in it.

    config.json, model.safetensors    Hugging Face layout: `from_pretrained(folder)` works
    tokenizer.json                    so that the text side is known too
    optimizer.safetensors             AdamW's moments by parameter name
    random.safetensors                generator states
    timing.safetensors                measured step times so far
    freeze.json                       what is frozen, with hashes
    state.json                        step, best validation loss, data identity
    manifest.json                     sha256 of all of these

`latest` and `best` are links to such folders. A folder that fails its manifest is passed over for the one before it.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from oelm.errors import OelmError
from oelm.files import appearing_folder, file_hash, sync, write_json, write_tensors

MANIFEST = "manifest.json"
LATEST, BEST = "latest", "best"


class Checkpoint:
    """One checkpoint folder, opened for reading after its hashes were checked."""

    def __init__(self, path: Path) -> None:
        problem = integrity_problem(path)
        if problem:
            raise OelmError(f"checkpoint {path} is damaged: {problem}")
        self.path = path
        self.state: dict[str, Any] = json.loads((path / "state.json").read_text())
        self.freeze: dict[str, Any] = json.loads((path / "freeze.json").read_text())

    @property
    def step(self) -> int:
        return self.state["step"]

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.path / f"{name}.safetensors")


def save(
    folder: Path,
    *,
    save_model: Callable[[Path], None],
    tensors: dict[str, dict[str, Tensor]],
    freeze: dict[str, Any],
    state: dict[str, Any],
    tokenizer: Path | None = None,
    best: bool = False,
    keep: int = 2,
) -> Path:
    """Write `folder/step-N`, point `latest` (and `best`) at it, and remove what neither needs any more."""
    path = folder / f"step-{state['step']}"
    with appearing_folder(path) as temporary:
        save_model(temporary)
        for name, content in tensors.items():
            write_tensors(temporary / f"{name}.safetensors", content)
        write_json(temporary / "freeze.json", freeze)
        write_json(temporary / "state.json", state)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, temporary / "tokenizer.json")
        files = sorted(file.name for file in temporary.iterdir())
        write_json(temporary / MANIFEST, {"sha256": {name: file_hash(temporary / name) for name in files}})
    _point(folder / LATEST, path)
    if best:
        mark_best(path)
    _prune(folder, path, keep)
    return path


def mark_best(path: Path) -> None:
    """Let `best` mean this checkpoint."""
    _point(path.parent / BEST, path)


def integrity_problem(path: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None."""
    try:
        hashes = json.loads((path / MANIFEST).read_text())["sha256"]
        for name, expected in hashes.items():
            if Path(name).name != name:
                return f"its manifest names {name!r}, which is not a plain file name"
            if file_hash(path / name) != expected:
                return f"{name} does not match its sha256"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        return f"its manifest cannot be read ({error})"
    return None


def newest_valid(folder: Path, warn: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
    """The newest checkpoint that passes its manifest; None if there was never one; an error if all are damaged."""
    candidates = sorted(_steps(folder).items(), reverse=True)
    for _, path in candidates:
        try:
            return Checkpoint(path)
        except OelmError as error:
            warn(f"{error}; trying the one before it")
    if candidates:
        raise OelmError(f"every checkpoint in {folder} is damaged; remove the folder to start over")
    return None


def resolve(run: Path, which: str = BEST) -> Checkpoint:
    """The checkpoint a user means by a run folder or a checkpoint folder; falls back from `best` to `latest`."""
    if (run / MANIFEST).is_file():
        return Checkpoint(run)
    for name in (which, LATEST):
        if (run / "checkpoints" / name / MANIFEST).is_file():
            return Checkpoint((run / "checkpoints" / name).resolve())
    raise OelmError(f"{run} holds no checkpoint; give a run folder that has trained, or a checkpoint folder")


def _steps(folder: Path) -> dict[int, Path]:
    found = {}
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdigit():
            found[int(number)] = path
    return found


def _point(link: Path, target: Path) -> None:
    """Move a link in one step: it names the old checkpoint or the new one, never nothing."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    os.symlink(target.name, temporary)
    os.replace(temporary, link)
    sync(link.parent)


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Keep the newest few (a fallback if the last is damaged) and what `best` points at; clear aborted writes.

    Steps beyond the newest are from before a resume that had to pass them over: they are damaged.
    """
    steps = _steps(folder)
    best = folder / BEST
    last = int(newest.name.removeprefix("step-"))
    needed = {path.resolve() for step, path in sorted(s for s in steps.items() if s[0] <= last)[-keep:]}
    if best.exists():
        needed.add(best.resolve())
    for path in steps.values():
        if path.resolve() not in needed:
            shutil.rmtree(path, ignore_errors=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
