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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from oelm.errors import OelmError
from oelm.files import appearing_folder, file_hash, sync, write_json, write_tensors
from oelm.records import read_json
from oelm.validation import whole_number

MANIFEST = "manifest.json"
REQUIRED = ("config.json", "state.json", "freeze.json", "optimizer.safetensors", "random.safetensors")
"""Beside the model, which may be in several files."""
LATEST, BEST = "latest", "best"


class Checkpoint:
    """One checkpoint folder, opened for reading after its hashes were checked."""

    def __init__(self, path: Path) -> None:
        if problem := integrity_problem(path):
            raise OelmError(f"checkpoint {path} is damaged: {problem}")
        self.path = path
        self.state = read_json(path / "state.json", "step", "config") or {}
        self.step: int = self.state["step"]
        self.freeze = read_json(path / "freeze.json") or {}

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.path / f"{name}.safetensors")

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Inside, what is not as we write it is damage, said in one line; its hashes may be those of a stranger."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.distributed.DistError):
            raise
        except OelmError as error:
            if str(self.path.parents[1]) in str(error):
                raise
            raise OelmError(f"checkpoint {self.path}: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise OelmError(f"checkpoint {self.path} is damaged: {reason}") from error


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
        missing = [name for name in REQUIRED if name not in hashes]
        if not any(name.startswith("model") and name.endswith(".safetensors") for name in hashes):
            missing.append("model.safetensors")
        if missing:
            return f"its manifest does not name {', '.join(missing)}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    named = {path.name.removeprefix("step-"): path for path in folder.glob("step-*")}
    return {step: path for name, path in named.items() if (step := whole_number(name)) is not None}


def _point(link: Path, target: Path) -> None:
    """Move a link in one step: it names the old checkpoint or the new one, never nothing."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    os.symlink(target.name, temporary)
    os.replace(temporary, link)
    sync(link.parent)


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Keep the newest few and the best; clear aborted writes, and later steps, which a resume passed over as broken."""
    steps, best = _steps(folder), folder / BEST
    last = int(newest.name.removeprefix("step-"))
    needed = {path.resolve() for step, path in sorted(s for s in steps.items() if s[0] <= last)[-keep:]}
    if best.exists():
        needed.add(best.resolve())
    for path in steps.values():
        if path.resolve() not in needed:
            shutil.rmtree(path, ignore_errors=True)
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
