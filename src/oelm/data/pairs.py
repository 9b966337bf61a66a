"""Pairs of texts on disk, tokenised: a source and the target to be written for it.

A folder like that of a corpus, whose manifest says kind "pairs": `train.safetensors`, `validation.safetensors` (rows as
in `oelm.data.labelled`, the source being the first segment), `tokenizer.json`, `manifest.json`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oelm.data.folder import PreparedFolder
from oelm.data.labelled import Texts, load_texts, steps_of
from oelm.data.localfiles import split_paths
from oelm.data.sources import DEFAULT_FRACTION, carve
from oelm.data.tasks import read_columns
from oelm.data.tokenization import end_of_text_id, load_tokenizer, tokenizer_hash, tokenizer_label, vocabulary_size
from oelm.data.tokens import FILES, FORMAT, data_directory, fingerprint, read_manifest
from oelm.errors import OelmError
from oelm.files import appearing_folder, file_hash, write_json
from oelm.validation import require_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer

KIND = "pairs"
MAX_LENGTH = 128
_CHUNK = 2_000
Pair = tuple[str, str]


@dataclass(frozen=True)
class PairData(PreparedFolder):
    train: Texts
    validation: Texts
    true_entropy_nats_per_token = None

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> "PairData":
        folder = Path(path)
        manifest = read_manifest(folder)
        if manifest.get("kind") != KIND:
            raise OelmError(f"{folder} holds no pairs of texts; prepare them with --source-field and --target-field")
        texts = {}
        for split in FILES:
            facts, file = manifest["splits"][split], folder / f"{split}.safetensors"
            if verify and file.is_file() and file_hash(file) != facts["sha256"]:
                raise OelmError(f"{file} does not match its sha256; remove {folder} and prepare the pairs again")
            texts[split] = load_texts(file, facts)
        return cls(folder, manifest, texts["train"], texts["validation"])

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.manifest)

    @property
    def longest(self) -> int:
        """Tokens of the longest source or target."""
        return max(facts["longest"] for facts in self.manifest["splits"].values())

    def steps(self, epochs: float, batch_size: int, accumulation: int = 1) -> int:
        return steps_of(len(self.train), epochs, batch_size, accumulation)


def prepare_pairs(
    paths: Sequence[str | Path],
    fields: Pair,
    tokenizer_spec: str | Path,
    out: str | Path | None = None,
    *,
    name: str | None = None,
    validation: str | Path | None = None,
    validation_fraction: float | None = None,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
    data_dir: str | Path | None = None,
    force: bool = False,
) -> PairData:
    """Tokenise the columns `fields` (source, target) of files or a folder; longer texts are cut at `max_length` tokens.

    Without validation files, a share of the pairs is held out.
    """
    files = dict(zip(FILES, split_paths([Path(path) for path in paths], validation), strict=True))
    fraction = None if files["validation"] else validation_fraction or DEFAULT_FRACTION
    pairs = {split: list(_pairs(files, fields, split, fraction, seed)) for split in FILES}
    for split, rows in pairs.items():
        if not rows:
            raise OelmError(f"there are no pairs for {split}; give --validation PATH or a larger --validation-fraction")
    texts = (text for pair in pairs["train"] for text in pair)
    tokenizer = load_tokenizer(tokenizer_spec, texts)
    identity = tokenizer_hash(tokenizer)
    name = name or Path(paths[0]).resolve().name.split(".")[0]
    require_name("name", name)
    label = f"{name}-{fields[0]}-{fields[1]}-{tokenizer_label(tokenizer_spec, identity)}"
    folder = Path(out) if out else data_directory(data_dir) / label
    hashes = {split: [file_hash(file) for file in found] for split, found in files.items()}
    settings = {"fields": list(fields), **hashes, "tokenizer": identity, "max_length": max_length}
    settings |= {"validation_fraction": fraction, "seed": seed} if fraction else {}
    if (folder / "manifest.json").is_file() and not force:
        if read_manifest(folder)["settings"] != settings:
            raise OelmError(f"{folder} was prepared with other settings; use --force to replace it, or another --out")
        return PairData.open(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with appearing_folder(folder) as temporary:
        facts = {split: _write(temporary, split, pairs[split], tokenizer, max_length) for split in FILES}
        tokenizer.no_truncation()
        tokenizer.save(str(temporary / "tokenizer.json"))
        known = {
            "hash": identity,
            "vocab_size": vocabulary_size(tokenizer),
            "end_of_text_id": end_of_text_id(tokenizer),
        }
        manifest = {
            "format": FORMAT,
            "kind": KIND,
            "name": name,
            "dtype": "<u4",
            "tokenizer": {"spec": str(tokenizer_spec), **known},
            "splits": facts,
            "source": {"kind": "files", "files": [{"path": str(p)} for found in files.values() for p in found]},
            "settings": settings,
        }
        write_json(temporary / "manifest.json", manifest)
    return PairData.open(folder)


def _pairs(
    files: dict[str, tuple[Path, ...]], fields: Pair, split: str, fraction: float | None, seed: int
) -> Iterator[Pair]:
    rows = (pair for file in files["train" if fraction else split] for pair in _checked(file, fields))
    return carve(rows, split, fraction, seed) if fraction else rows


def _checked(file: Path, fields: Pair) -> Iterator[Pair]:
    for number, pair in enumerate(read_columns(file, fields), start=1):
        for field, text in zip(fields, pair, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise OelmError(f"{file}, row {number} has no text in {field!r}; mend or remove it: a pair needs both")
        yield pair


def _write(folder: Path, split: str, pairs: list[Pair], tokenizer: "Tokenizer", max_length: int) -> dict[str, Any]:
    from safetensors.numpy import save_file

    closing = [] if tokenizer.num_special_tokens_to_add(is_pair=False) else [end_of_text_id(tokenizer)]
    tokenizer.enable_truncation(max_length - len(closing))
    rows: list[list[int]] = []  # source, target, source, target, …
    truncated = 0
    for start in range(0, len(pairs), _CHUNK):
        for encoding in tokenizer.encode_batch([text for pair in pairs[start : start + _CHUNK] for text in pair]):
            truncated += bool(encoding.overflowing)
            rows.append(encoding.ids + closing)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    flat = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
    file = folder / f"{split}.safetensors"
    ends, labels = lengths.reshape(-1, 2).sum(axis=1).cumsum(), np.zeros(len(pairs), dtype=np.int64)
    save_file({"ids": flat, "ends": ends, "first": lengths[::2].copy(), "labels": labels}, file)
    return {
        "rows": len(pairs),
        "tokens": int(lengths.sum()),
        "bytes_of_text": sum(len(text.encode()) for pair in pairs for text in pair),
        "longest": int(lengths.max()),
        "truncated": truncated,
        "sha256": file_hash(file),
    }
