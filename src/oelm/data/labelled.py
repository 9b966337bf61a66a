"""Tokenised labelled texts on disk: prepared once, complete or absent, with a manifest that says what they are.

`train.safetensors`, `validation.safetensors`: all ids in one row, where each text ends, how long its first segment is,
its label · `tokenizer.json` · `task.json`: the manifest. Equal settings find the same folder again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.data.order import permute
from oelm.data.tasks import Row, TaskSource
from oelm.data.tokenization import (
    end_of_text_id,
    load_tokenizer,
    template_hash,
    tokenizer_hash,
    tokenizer_label,
    vocabulary_size,
)
from oelm.data.tokens import PreparedFolder, data_directory
from oelm.errors import OelmError, unknown
from oelm.files import appearing_folder, exclusive, file_hash, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANIFEST = "task.json"
PAIRS = "pairs"
SPLITS = ("train", "validation")
MAX_LENGTH = 128  # tokens per text (or pair) with its special tokens: the study's length
TOO_LONG = ("truncate", "refuse")
_CHUNK = 2_000


@dataclass(frozen=True)
class Texts:
    """The rows of one split."""

    ids: NDArray[np.integer]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]  # tokens of each row that belong to its first segment (all of them, if there is one text)
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def row(self, number: int) -> NDArray[np.integer]:
        end = self.ends[number]
        return self.ids[end - self.lengths[number] : end]


@dataclass(frozen=True)
class TaskData(PreparedFolder):
    """A prepared folder, opened."""

    train: Texts
    validation: Texts

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> "TaskData":
        folder = Path(path)
        manifest = read_manifest(folder)
        texts = {}
        for split in SPLITS:
            facts, file = manifest["splits"][split], folder / f"{split}.safetensors"
            if verify and file.is_file() and file_hash(file) != facts["sha256"]:
                raise OelmError(f"{file} does not match its sha256; remove {folder} and prepare the task again")
            texts[split] = _load(file, facts)
        if not (folder / "tokenizer.json").is_file():
            raise OelmError(f"{folder / 'tokenizer.json'} is missing; remove {folder} and prepare the task again")
        return cls(folder, manifest, texts["train"], texts["validation"])

    @property
    def classes(self) -> list[str]:
        return self.manifest["classes"]

    @property
    def validation_split(self) -> str:
        """The name that the rows to validate on have where they come from."""
        return self.manifest.get("validation_split", "validation")

    @property
    def template_hash(self) -> str | None:
        """Which special tokens were added; None in folders of earlier versions, which did not note it."""
        return self.manifest["settings"].get("template")

    @property
    def is_pairs(self) -> bool:
        """Whether a row is a source (its first segment) and the target to write for it, instead of texts of a class."""
        return self.manifest.get("kind") == PAIRS

    @property
    def longest(self) -> int:
        """Tokens of the longest row; of pairs, of the longest side."""
        return max(facts["longest"] for facts in self.manifest["splits"].values())

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that name these rows and this tokenizer, whatever the folder and the machine."""
        splits = [self.manifest["splits"][split]["sha256"] for split in SPLITS]
        return _digest([splits, self.classes, self.tokenizer_hash])

    def steps(self, epochs: float, batch_size: int, accumulation: int = 1) -> int:
        """Optimizer steps of so many epochs; the last batch of an epoch may be smaller."""
        batches = -(-len(self.train) // batch_size)
        return max(1, round(epochs * batches / accumulation))


def prepare_task(
    source: TaskSource,
    tokenizer_spec: str | Path,
    out: str | Path | None = None,
    *,
    max_length: int = MAX_LENGTH,
    too_long: str = "truncate",
    train_rows: int | None = None,
    data_dir: str | Path | None = None,
) -> TaskData:
    """Tokenise a task into `out` (default: a folder of the data directory named after the settings), or find it there.

    `train_rows` keeps that many training rows, a fixed random choice.
    """
    if too_long not in TOO_LONG:
        raise unknown("policy for long texts", too_long, TOO_LONG)
    texts = (text for _, texts, _ in source._raw("train") for text in texts)  # for one that is trained on them
    tokenizer = load_tokenizer(tokenizer_spec, texts)
    identity = tokenizer_hash(tokenizer)
    how = {"max_length": max_length, "too_long": too_long, "train_rows": train_rows}
    settings = {**source.settings(), "tokenizer": identity, "template": template_hash(tokenizer), **how}
    label = f"{source.task.name}-{tokenizer_label(tokenizer_spec, identity)}-{_digest(settings)[:8]}"
    folder = Path(out) if out else data_directory(data_dir) / label
    if found := _finished(folder, settings):
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    with exclusive(lock, f"another process is preparing {folder}; run the command again when it has ended"):
        try:
            if not _finished(folder, settings):  # made while we came for the lock
                _tokenise(source, folder, tokenizer_spec, tokenizer, settings)
        finally:
            lock.unlink(missing_ok=True)
    return TaskData.open(folder)


def _finished(folder: Path, settings: dict[str, Any]) -> TaskData | None:
    """The task, if it is there; anything else that is there is refused."""
    if (folder / MANIFEST).is_file():
        found = TaskData.open(folder)
        if found.manifest["settings"] != settings:
            raise OelmError(f"{folder} holds a task prepared with other settings; choose another --out or remove it")
        return found
    if folder.exists() and any(folder.iterdir()):
        raise OelmError(f"{folder} is not empty and holds no prepared task; choose another --out")
    return None


def _tokenise(
    source: TaskSource, folder: Path, tokenizer_spec: str | Path, tokenizer: "Tokenizer", settings: dict[str, Any]
) -> None:
    identity, max_length, train_rows = (settings[key] for key in ("tokenizer", "max_length", "train_rows"))
    classes = source.classes()
    rows = {split: list(source.rows(split, classes)) for split in SPLITS}
    if train_rows is not None:
        count = len(rows["train"])
        if not 1 <= train_rows <= count:
            raise OelmError(f"train_rows {train_rows} is not possible; the task has {count} training rows")
        rows["train"] = [rows["train"][i] for i in permute(np.arange(train_rows), count, seed=0, stream=0)]
    encode = _Encoder(tokenizer, max_length, settings["too_long"], separate=source.task.is_pairs)
    with appearing_folder(folder) as temporary:
        facts = {split: _write(temporary, split, rows[split], encode, len(classes)) for split in SPLITS}
        tokenizer.no_truncation()
        tokenizer.save(str(temporary / "tokenizer.json"))
        manifest = {
            "format": 1,
            "name": source.task.name,
            **({"kind": PAIRS} if source.task.is_pairs else {}),
            "classes": list(classes),
            "tokenizer": {"spec": str(tokenizer_spec), "hash": identity, "vocab_size": vocabulary_size(tokenizer)},
            "splits": facts,
            "validation_split": source.splits["validation"] if source.held_out is None else "validation",
            "source": source.provenance(),
            "settings": settings,
        }
        write_json(temporary / MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text("utf-8"))
        if manifest["format"] > 1:
            raise OelmError(f"{file} has format {manifest['format']}, this version of oelm reads 1; upgrade oelm")
        return manifest
    except FileNotFoundError:
        raise OelmError(f"{folder} is no prepared task (no {MANIFEST}); run: oelm data task") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OelmError(f"{file} is damaged ({error}); remove {folder} and prepare the task again") from error


class _Encoder:
    """Texts → ids and the length of the first segment; the tokenizer's own special tokens where it has some."""

    def __init__(self, tokenizer: "Tokenizer", max_length: int, too_long: str, separate: bool) -> None:
        self.tokenizer, self.max_length, self.too_long = tokenizer, max_length, too_long
        self.separate = separate  # two texts of a row are encoded as if each stood alone
        # A language model's tokenizer adds nothing: then an end-of-text id closes each text.
        self.end = None if tokenizer.num_special_tokens_to_add(is_pair=False) else end_of_text_id(tokenizer)

    def __call__(self, rows: Sequence[Row]) -> tuple[list[list[int]], list[int], int]:
        if self.separate and len(rows[0].texts) == 2:
            ids, _, truncated = self([Row((text,), row.label) for row in rows for text in row.texts])
            sources, targets = ids[::2], ids[1::2]
            return [s + t for s, t in zip(sources, targets, strict=True)], [len(s) for s in sources], truncated
        ids, first, truncated = [], [], 0
        pair = len(rows[0].texts) == 2
        closing = (1 + pair) if self.end is not None else 0
        special = closing or self.tokenizer.num_special_tokens_to_add(is_pair=pair)
        if self.max_length < special + 1 + pair:
            raise OelmError(f"max_length {self.max_length} leaves no room for text beside {special} special tokens")
        self.tokenizer.enable_truncation(self.max_length - closing)
        given: list[Any] = [row.texts if pair else row.texts[0] for row in rows]
        for number, encoding in enumerate(self.tokenizer.encode_batch(given), start=1):
            truncated += bool(encoding.overflowing)
            if encoding.overflowing and self.too_long == "refuse":
                text = rows[number - 1].texts[0][:40]
                raise OelmError(f"text {text!r}… has more than {self.max_length} tokens; raise max_length or truncate")
            row, segment = encoding.ids, encoding.type_ids.count(0)
            if self.end is not None:
                row = [*row[:segment], self.end, *row[segment:], *([self.end] if pair else [])]
                segment = len(row)
            ids.append(row)
            first.append(segment)
        return ids, first, truncated


def _write(folder: Path, split: str, rows: list[Row], encode: _Encoder, classes: int) -> dict[str, Any]:
    from safetensors.numpy import save_file

    chunks = [encode(rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)]
    ids = [np.array(row, dtype=np.int32) for more, _, _ in chunks for row in more]
    first = np.array([length for _, segments, _ in chunks for length in segments], dtype=np.int64)
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    labels = np.array([row.label for row in rows], dtype=np.int64)
    file = folder / f"{split}.safetensors"
    save_file({"ids": np.concatenate(ids), "ends": lengths.cumsum(), "first": first, "labels": labels}, file)
    return {
        "rows": len(rows),
        "tokens": int(lengths.sum()),
        "longest": int(np.maximum(first, lengths - first).max() if encode.separate else lengths.max()),
        "truncated": sum(cut for _, _, cut in chunks),
        "per_class": np.bincount(labels, minlength=classes).tolist(),
        "sha256": file_hash(file),
    }


def _load(file: Path, facts: dict[str, Any]) -> Texts:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        texts = Texts(**load_file(file))
        if (len(texts), int(texts.ends[-1])) != (facts["rows"], len(texts.ids)):
            raise ValueError(f"{len(texts)} rows, not {facts['rows']}")
        return texts
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise OelmError(f"{file} is damaged ({error}); remove {file.parent} and prepare it again") from error


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
