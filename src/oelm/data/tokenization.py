"""Which tokenizer: GPT-2's, one from files, or one trained on the spot; and a hash that tells two of them apart.

A tokenizer is named by a spec: `gpt2` · a folder with `vocab.json` and `merges.txt` · a `tokenizer.json` (or its
folder) · `bpe:4096`, a byte-level BPE of that size trained on the training text · `bpe:4096+special`, the same with the
marks that encoders and encoder–decoders need (padding, mask, sentinels) · a model's folder or hub name.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.textfiles import up_to
from oelm.errors import OelmError, Unavailable
from oelm.hub import reason, unreachable
from oelm.validation import whole_number

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
GPT2 = "openai-community/gpt2"
GPT2_COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_HASH = "e7bfce3aedf6eacce08ed5b6451377d0c5dcd896f55c8eea3a6aa15c0af424f5"
SMALLEST_BPE = 257  # 256 bytes and the end of text
LARGEST_BPE = 1_000_000  # four times the largest in use; the trainer reserves memory for as many as it is asked for
SAMPLE_BYTES = 50_000_000  # a trained tokenizer sees the training text up to here

# What other tokenizers call the end of a document, in the order we look for it.
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[SEP]")
_WAYS = "gpt2, bpe:4096 (trained on your text), a tokenizer.json, its folder, or a model's folder or hub name"
_MARKS = {"pad": ("<pad>", "[PAD]", "<|padding|>"), "mask": ("<mask>", "[MASK]", "<|mask|>")}
SENTINELS = 100
_SENTINELS = [f"<extra_id_{number}>" for number in range(SENTINELS)]
SPECIAL = "+special"


@dataclass(frozen=True)
class Marks:
    """The ids of a tokenizer that mean no text; None where it has none."""

    end: int
    pad: int | None
    mask: int | None
    sentinels: list[int]  # which stand for hidden spans, in T5's order

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "Marks":
        found = {kind: [tokenizer.token_to_id(name) for name in names] for kind, names in _MARKS.items()}
        first = {kind: next((i for i in ids if i is not None), None) for kind, ids in found.items()}
        sentinels = itertools.takewhile(lambda i: i is not None, map(tokenizer.token_to_id, _SENTINELS))
        return cls(end_of_text_id(tokenizer), **first, sentinels=list(sentinels))  # type: ignore[arg-type]


def load_tokenizer(
    spec: str | Path, documents: Iterable[str] | None = None, *, sample_bytes: int = SAMPLE_BYTES
) -> "Tokenizer":
    """The tokenizer that `spec` names; `documents` is the text to train `bpe:N` on, read up to `sample_bytes`.

    >>> tokenizer = load_tokenizer("bpe:300", ["the cat sat on the mat"] * 3)
    >>> tokenizer.decode(tokenizer.encode("the mat").ids)
    'the mat'
    """
    size = bpe_size(spec)
    if size is not None:
        if documents is None:
            raise OelmError(f"tokenizer {spec!s} needs text to train on; give documents or use 'gpt2'")
        return _train(size, documents, sample_bytes, special=str(spec).endswith(SPECIAL))
    path = Path(spec)
    if str(spec) == "gpt2":
        tokenizer = _from_file(_download_gpt2())
    elif path.is_dir() and (path / "tokenizer.json").is_file():
        tokenizer = _from_file(path / "tokenizer.json")
    elif path.is_file():
        tokenizer = _from_file(path)
    elif (path / "config.json").is_file() or not (path.exists() or path.suffix == ".json"):
        tokenizer = _of_model(spec)
    elif path.is_dir() and (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        tokenizer = _from_vocabulary(path)
    else:
        what = "has neither tokenizer.json nor vocab.json and merges.txt" if path.is_dir() else "does not exist"
        raise OelmError(f"tokenizer {str(spec)!r} {what}; give {_WAYS}")
    # A published tokenizer.json may carry its model's limits (say 128 tokens), which would silently shorten documents.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _of_model(spec: str | Path) -> "Tokenizer":
    """The tokenizer that belongs to a model folder or hub name."""
    from huggingface_hub import try_to_load_from_cache

    try:
        if not Path(spec).exists() and (why := unreachable()):
            files = ("tokenizer.json", "tokenizer_config.json", "config.json")
            if not any(isinstance(try_to_load_from_cache(str(spec), file), str) for file in files):
                raise ConnectionError(why)  # at once, without seconds of imports
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(str(spec), trust_remote_code=False)
        tokenizer = found.backend_tokenizer
    except Exception as error:  # missing files, unknown formats and the hub all raise types of their own
        why = reason(error, spec)
        raise Unavailable(f"tokenizer {str(spec)!r} is none that can be had ({why}); give {_WAYS}") from None
    if len(found) <= len(found.all_special_ids):  # what transformers makes of a folder without tokenizer files
        raise OelmError(f"model {str(spec)!r} comes without a vocabulary; name a tokenizer of your own (--tokenizer)")
    return tokenizer


def bpe_size(spec: str | Path) -> int | None:
    """The size in `bpe:SIZE`, or None for any other spec; a size that cannot be is refused.

    >>> bpe_size("bpe:4096"), bpe_size("gpt2")
    (4096, None)
    """
    if not str(spec).startswith("bpe:"):
        return None
    digits = str(spec)[4:].removesuffix(SPECIAL).replace(",", "").replace("_", "")
    smallest = SMALLEST_BPE + (2 + SENTINELS if str(spec).endswith(SPECIAL) else 0)
    size = whole_number(digits)
    if size is None or not smallest <= size <= LARGEST_BPE:
        possible = f"from {smallest} to {LARGEST_BPE:,}"
        raise OelmError(f"tokenizer {str(spec)!r} is not possible; give a size {possible}, as in bpe:4096")
    return size


def tokenizer_label(spec: str | Path, identity: str | None = None) -> str:
    """A short name for folders. GPT-2's tokenizer, known by its hash, is `gpt2` wherever its files lie.

    >>> tokenizer_label("bpe:4096")
    'bpe4096'
    """
    size = bpe_size(spec)
    if size is not None:
        return f"bpe{size}{SPECIAL if str(spec).endswith(SPECIAL) else ''}"
    if str(spec) == "gpt2" or identity == GPT2_HASH:
        return "gpt2"
    path = Path(spec).resolve()
    if path.name == "tokenizer.json":
        return path.parent.name
    return path.name.split(".")[0] if path.is_file() else path.name


def vocabulary_size(tokenizer: "Tokenizer") -> int:
    """One more than the largest id, so that every token fits an embedding of this size."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_of_text_id(tokenizer: "Tokenizer") -> int:
    """The id that follows every document."""
    for token in _ENDS:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return number
    raise OelmError(f"tokenizer has no end-of-text token; add one of {', '.join(_ENDS)} to its vocabulary")


def tokenizer_hash(tokenizer: "Tokenizer") -> str:
    """sha256 over what decides the ids: equal for the same tokenizer from the hub, vocab/merges or tokenizer.json."""
    canonical = json.dumps(_canonical(json.loads(tokenizer.to_str())), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def template_hash(tokenizer: "Tokenizer") -> str:
    """sha256 over what it adds to a text ([CLS], [SEP], segments): classifiers read that, language models do not."""
    template = _without_offsets(json.loads(tokenizer.to_str()).get("post_processor"))
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()


def _canonical(state: dict[str, Any]) -> dict[str, Any]:
    """Drop what cannot change an id: offsets, limits, template tokens we never add, and ways to write "nothing"."""
    model = {key: value for key, value in state["model"].items() if value not in (None, "", False)}
    normalizer = state.get("normalizer")
    # Without a normalizer it cannot matter whether an added token is matched before or after it.
    ignored = {"normalized"} if normalizer is None else set()
    added = [{k: v for k, v in token.items() if k not in ignored} for token in state.get("added_tokens") or []]
    return {
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": _without_offsets(state.get("pre_tokenizer")),
        "added_tokens": sorted(added, key=lambda token: token["id"]),
    }


def _without_offsets(step: Any) -> Any:
    if isinstance(step, list):
        return [_without_offsets(part) for part in step]
    if isinstance(step, dict):
        step = {key: _without_offsets(value) for key, value in step.items() if key != "trim_offsets"}
        if step.get("type") == "ByteLevel":
            step.setdefault("use_regex", True)
    return step


def _train(size: int, documents: Iterable[str], sample_bytes: int, special: bool) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, *(["<pad>", "<mask>", *_SENTINELS] if special else [])],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # every byte, so that any text can be encoded
        show_progress=False,
    )
    tokenizer.train_from_iterator(up_to(documents, sample_bytes, lambda text: len(text.encode())), trainer)
    return tokenizer


def _from_vocabulary(folder: Path) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises bare Exception
        raise OelmError(f"tokenizer files in {folder} cannot be read ({error}); are they complete?") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def _from_file(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise OelmError(f"tokenizer {path} cannot be read ({error}); is it a complete tokenizer.json?") from error


def _download_gpt2() -> Path:
    import huggingface_hub

    cached = huggingface_hub.try_to_load_from_cache(GPT2, "tokenizer.json", revision=GPT2_COMMIT)
    if isinstance(cached, str):  # needs no network
        return Path(cached)
    try:
        unreachable()
        return Path(huggingface_hub.hf_hub_download(GPT2, "tokenizer.json", revision=GPT2_COMMIT))
    except Exception as error:  # the hub's clients raise many unrelated types
        ways = "train one on your own text with --tokenizer bpe:4096, or give a copy: --tokenizer FOLDER"
        why = f"could not be reached on the hub ({reason(error)})"
        raise Unavailable(f"tokenizer {GPT2} {why}; {ways} with vocab.json and merges.txt") from error
