"""Prepared data on disk: two memory-mapped token files and the manifest that says what they are.

`train.bin`, `val.bin`: ids, little-endian uint16 or uint32, every document followed by the end-of-text id ·
`tokenizer.json` · `manifest.json`: source, tokenizer, counts and hashes. A folder with a manifest is complete; work
in progress lies beside it in `NAME.unfinished`.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oelm.errors import OelmError
from oelm.files import file_hash

FORMAT = 1
FILES = {"train": "train.bin", "validation": "val.bin"}
UNFINISHED = ".unfinished"
_PREPARE = "oelm data prepare"


@dataclass(frozen=True)
class PreparedFolder:
    """What every prepared folder has, whether its texts are for a language model or for a classifier."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return self.manifest["name"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def tokenizer_hash(self) -> str:
        return self.manifest["tokenizer"]["hash"]

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer.json"


@dataclass(frozen=True)
class TokenData(PreparedFolder):
    """A prepared folder, opened. `train` and `validation` are read from disk as they are touched."""

    train: np.memmap
    validation: np.memmap
    unchanged: bool = False  # True when `prepare` found it already finished

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> "TokenData":
        """Open a prepared folder after checking it: sizes always, with `verify` every byte against its sha256."""
        folder = Path(path)
        manifest = read_manifest(folder)
        for split, name in FILES.items():
            _check_file(folder / name, manifest["splits"][split], manifest["dtype"], verify)
        if not (folder / "tokenizer.json").is_file():
            raise OelmError(f"{folder / 'tokenizer.json'} is missing; {_again(folder)}")
        try:
            train, validation = (np.memmap(folder / name, manifest["dtype"], mode="r") for name in FILES.values())
        except (OSError, ValueError) as error:
            raise OelmError(f"{folder} cannot be read ({error}); {_again(folder)}") from error
        opened = cls(folder, manifest, train, validation)
        if verify:
            opened.require_tokenizer()
        return opened

    def require_tokenizer(self) -> None:
        """Refuse a tokenizer that is not the one the tokens were made with; quick, however large the data."""
        from oelm.data.tokenization import load_tokenizer, tokenizer_hash

        found = tokenizer_hash(load_tokenizer(self.tokenizer_path))
        if found != self.tokenizer_hash:
            hashes = f"hash {found[:12]}, prepared with {self.tokenizer_hash[:12]}"
            raise OelmError(f"{self.tokenizer_path} is not the tokenizer of this data: {hashes}; {_again(self.path)}")

    @property
    def end_of_text_id(self) -> int:
        return self.manifest["tokenizer"]["end_of_text_id"]

    @property
    def validation_bytes(self) -> int:
        """Bytes of UTF-8 text in the validation documents, without end-of-text marks."""
        return self.manifest["splits"]["validation"]["bytes_of_text"]

    @property
    def bytes_per_token(self) -> float:
        """Of the validation split; bits per byte = loss in nats / ln 2 / bytes per token."""
        return self.validation_bytes / len(self.validation)

    @property
    def true_entropy_nats_per_token(self) -> float | None:
        """The lowest loss any model can expect on the validation split, where the corpus knows it."""
        nats = self.manifest["splits"]["validation"].get("true_entropy_nats")
        return None if nats is None else nats / len(self.validation)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that name these tokens and this tokenizer, whatever the folder and the machine."""
        return fingerprint(self.manifest)


def fingerprint(manifest: dict[str, Any]) -> str:
    """The fingerprint of a manifest: hashes of both token files, their type, and the tokenizer."""
    tokenizer, hashes = manifest["tokenizer"], [manifest["splits"][split]["sha256"] for split in FILES]
    identity = [*hashes, manifest["dtype"], tokenizer["hash"], tokenizer["end_of_text_id"]]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


def data_directory(given: str | Path | None = None) -> Path:
    """Where prepared folders lie: what is given, else `OELM_DATA_DIR`, else `./data`."""
    return Path(given or os.environ.get("OELM_DATA_DIR") or "data")


def prepared(data_dir: str | Path | None = None) -> list[Path]:
    """The finished folders in the data directory, sorted by name."""
    return [path for path in _folders_with("manifest.json", data_dir) if not path.name.endswith(UNFINISHED)]


def prepared_tasks(data_dir: str | Path | None = None) -> list[Path]:
    """The tasks in the data directory (see `oelm.data.labelled`), sorted by name."""
    return _folders_with("task.json", data_dir)


def _folders_with(file: str, data_dir: str | Path | None) -> list[Path]:
    found = (path.parent for path in data_directory(data_dir).glob(f"*/{file}"))
    return sorted(folder for folder in found if not folder.name.startswith("."))  # those are being written


def find(name_or_path: str | Path, data_dir: str | Path | None = None) -> Path:
    """The prepared folder meant by a path, a folder name (`fables-bpe1024`) or a corpus name prepared only once."""
    root = data_directory(data_dir)
    for candidate in (Path(name_or_path), root / name_or_path):
        if (candidate / "manifest.json").is_file() and not candidate.name.endswith(UNFINISHED):
            return candidate
    called = {path: _name(path, read_manifest) for path in prepared(root)}
    matching = [path for path, name in called.items() if name == str(name_or_path)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(path.name for path in matching)
        raise OelmError(f"data {str(name_or_path)!r} is prepared more than once in {root}; choose one of {names}")
    for path in (Path(f"{name_or_path}{UNFINISHED}"), root / f"{name_or_path}{UNFINISHED}"):
        if path.is_dir():
            raise OelmError(f"data {str(name_or_path)!r} is unfinished ({path}); run the same `{_PREPARE}` again")
    from oelm.data import labelled
    from oelm.data.corpora import CORPORA

    for path in prepared_tasks(root):
        if str(name_or_path) in (path.name, _name(path, labelled.read_manifest)):
            way = f"train on it by its folder: oelm train --dataset {path}"
            raise OelmError(f"data {str(name_or_path)!r} is a prepared task; {way}")
    corpora = [path.name for path, name in called.items() if name]
    known = ", ".join(corpora) or "nothing yet"
    choice = dict.fromkeys([*corpora, *filter(None, called.values()), *CORPORA])
    meant = str(name_or_path) in choice or Path(name_or_path).exists()
    near = [] if meant else [repr(name) for name in difflib.get_close_matches(str(name_or_path), choice)]
    damaged = ", ".join(path.name for path, name in called.items() if not name)
    raise OelmError(
        f"data {str(name_or_path)!r} is not prepared in {root} (prepared: {known}"
        f"{f'; damaged: {damaged}' if damaged else ''}); "
        + (f"did you mean {' or '.join(near)}? " if near else "")
        + (f"run: {_PREPARE} {name_or_path}" if meant else f"a corpus or files of yours: {_PREPARE} NAME_OR_FILES")
    )


def _name(folder: Path, read: Callable[[Path], dict[str, Any]]) -> str | None:
    """What the manifest calls a prepared folder; None if it is damaged, which is no trouble of other folders."""
    try:
        return read(folder)["name"]
    except (OelmError, KeyError):
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder, refused if it is missing, damaged or of a later format."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if Path(f"{folder.resolve()}{UNFINISHED}").is_dir():
            raise OelmError(f"data {folder} is unfinished; run the same `{_PREPARE}` again to complete it") from None
        raise OelmError(f"{path} does not exist, so {folder} is no prepared data; run: {_PREPARE}") from None
    except (OSError, ValueError) as error:
        raise OelmError(f"{path} is damaged ({error}); {_again(folder)}") from error
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise OelmError(f"{path} is no manifest of prepared data; {_again(folder)}")
    if version > FORMAT:
        raise OelmError(f"{path} has format {version}, this version of oelm reads up to {FORMAT}; upgrade oelm")
    if not _is_complete(manifest):
        raise OelmError(f"{path} is incomplete or damaged; {_again(folder)}")
    return manifest


def _is_complete(manifest: dict[str, Any]) -> bool:
    try:
        tokenizer, splits = manifest["tokenizer"], manifest["splits"]
        numbers = [tokenizer["vocab_size"], tokenizer["end_of_text_id"]]
        numbers += [splits[split][key] for split in FILES for key in ("tokens", "bytes_of_text")]
        texts = [manifest["name"], tokenizer["hash"], *(splits[split]["sha256"] for split in FILES)]
        known_type = manifest["dtype"] in ("<u2", "<u4") and "settings" in manifest
        return known_type and all(isinstance(n, int) for n in numbers) and all(isinstance(t, str) for t in texts)
    except (KeyError, TypeError):
        return False


def _check_file(path: Path, facts: dict[str, Any], dtype: str, verify: bool) -> None:
    if not path.is_file():
        raise OelmError(f"{path} is missing; {_again(path.parent)}")
    expected = facts["tokens"] * np.dtype(dtype).itemsize
    size = path.stat().st_size
    if size != expected:
        raise OelmError(f"{path} has {size} bytes where its manifest says {expected}; {_again(path.parent)}")
    if verify and (found := file_hash(path)) != facts["sha256"]:
        written = facts["sha256"]
        raise OelmError(f"{path} is corrupt: sha256 {found[:12]}, written {written[:12]}; {_again(path.parent)}")


def _again(folder: Path) -> str:
    return f"prepare it again: {_PREPARE} … --out {folder} --force"
