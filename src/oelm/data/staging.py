"""The folder that `prepare` works in, `NAME.unfinished`, and how it becomes `NAME`."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oelm.data.journal import journal_path
from oelm.data.tokens import FILES, UNFINISHED, read_manifest
from oelm.errors import OelmError
from oelm.files import exclusive, sync, write_json

SOURCE = "source.json"
"""What the first start found: one that goes on reads the same commit."""
_SCAFFOLDS = ("settings.json", SOURCE, "lock", *(journal_path(Path(), split).name for split in FILES))
_OURS = {*FILES.values(), "tokenizer.json", "manifest.json", *_SCAFFOLDS}
"""What a prepared folder holds; one with anything else is not ours to replace."""


@contextlib.contextmanager
def staging_folder(out: Path, settings: dict[str, Any], force: bool) -> Iterator[Path]:
    """The folder to work in, ours alone; it goes away again if nothing worth keeping came of it."""
    staging = out.with_name(out.name + UNFINISHED)
    staging.mkdir(parents=True, exist_ok=True)
    here = staging / "lock"
    with exclusive(here, f"another process is preparing {out}; wait for it or choose another --out") as lock:
        ours = here.exists() and os.stat(here).st_ino == os.fstat(lock.fileno()).st_ino
        if not ours or is_finished(out, settings, force):  # while we came for the lock
            if ours:
                shutil.rmtree(staging, ignore_errors=True)
            raise OelmError(f"another process has just prepared {out}; run the command again to use it")
        begun = staging / "settings.json"
        if begun.exists():
            # Another text under the same settings is fine: the journal's keys tell which chunks it shares.
            differing = _differences(json.loads(begun.read_text("utf-8")), settings, ignore=("train", "validation"))
            if differing and not force:
                raise OelmError(f"{staging} was begun with other settings ({differing}); --force starts afresh")
            if differing:
                (staging / SOURCE).unlink(missing_ok=True)
                for split, name in FILES.items():
                    (staging / name).unlink(missing_ok=True)
                    journal_path(staging, split).unlink(missing_ok=True)
        write_json(begun, settings)
        try:
            yield staging
        except BaseException:
            if not any(
                journal_path(staging, split).exists() and journal_path(staging, split).stat().st_size for split in FILES
            ):
                shutil.rmtree(staging, ignore_errors=True)
            raise


def is_finished(out: Path, settings: dict[str, Any], force: bool) -> bool:
    """Whether `out` holds what is asked for; refuses to touch anything else without `force`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not (out / "manifest.json").exists():
        raise OelmError(f"{out} exists and is not prepared data; choose another --out")
    if force:
        torn = tuple(f".{name}." for name in _OURS)  # what a kill left of atomic writes
        if others := sorted(p.name for p in out.iterdir() if p.name not in _OURS and not p.name.startswith(torn)):
            raise OelmError(f"{out} holds {others[0]}, which is no prepared data and would be lost; move it away first")
        return False
    differing = _differences(read_manifest(out)["settings"], settings)
    if differing:
        raise OelmError(f"{out} is prepared with other settings ({differing}); use --force or another --out")
    return True


def publish(staging: Path, out: Path) -> None:
    """Give the finished folder its name; one that it replaces stays until then."""
    sync(staging)
    replaced = out.with_name(f".{out.name}.replaced")
    if out.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(out, replaced)
    os.rename(staging, out)
    sync(out.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    torn = out.glob(".*.json*.*")  # what a kill left of atomic writes
    for scaffold in (*(out / name for name in _SCAFFOLDS), *torn):
        scaffold.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OelmError(
                f"the disk is full ({out}); free some space and run again: what is encoded is kept"
            ) from error
        raise OelmError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error


def _differences(old: dict[str, Any], new: dict[str, Any], ignore: tuple[str, ...] = ()) -> str:
    def told(key: str) -> str:
        if isinstance(old.get(key, new.get(key)), list):
            return f"{key} text differs"
        return f"{key} {old.get(key)!r} there, {new.get(key)!r} now"

    return "; ".join(told(key) for key in {**old, **new} if key not in ignore and old.get(key) != new.get(key))
