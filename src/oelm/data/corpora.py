"""Where text comes from: the embedded corpus, datasets on the hub, and files on disk.

A `Source` says what it is (`settings`, `provenance`) and streams its documents; nothing here knows about tokens.

>>> source = find_source(["fables"], megabytes=0.01)
>>> next(documents(source, "train"))[:1].isupper()
True
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.data.hub import Corpus, HubSource
from oelm.data.sources import DEFAULT_FRACTION, SPLITS, FilesSource, Source, split_paths
from oelm.data.textfiles import SUFFIXES, text_format
from oelm.errors import OelmError, unknown

MOST_NAMED = 3  # files that together name a corpus; of more, the first
FABLES_MEGABYTES = (2.0, 0.15)  # of training and of validation text, unless other amounts are asked for

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Dataset, config and the commit it is read at.
_TINYSTORIES = ("roneneldan/TinyStories", None, "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64")
_OPENWEBTEXT = ("Skylion007/openwebtext", "plain_text", "79d93d786212f7344586290adb811d4ae6a1762c")
_WIKITEXT103 = ("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3")
_WIKITEXT2 = ("Salesforce/wikitext", "wikitext-2-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3")
CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("fables"),  # a story grammar with known entropy; any amount, no download
        Corpus("recall"),  # pairs of words, asked for again; any amount, no download
        Corpus("tinystories", *_TINYSTORIES),  # 2.1 million short stories for children
        # 8 million web documents, 40 GB; 0.05 % for validation is the customary share, about 4,000 documents
        Corpus("openwebtext", *_OPENWEBTEXT, validation_fraction=0.0005),
        Corpus("wikitext103", *_WIKITEXT103, rows_are_lines=True),  # 28,475 articles, 103 million words
        Corpus("wikitext2", *_WIKITEXT2, rows_are_lines=True),  # 600 articles, 2 million words
    )
}


def documents(source: Source, split: str) -> Iterator[str]:
    """Stream the documents of `split` ("train" or "validation")."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return (text for text, _ in source.texts(split))


def find_source(
    what: Sequence[str | Path],
    *,
    name: str | None = None,
    field: str | None = None,
    revision: str | None = None,
    config: str | None = None,
    split: str | None = None,
    stream: bool = False,
    validation: str | Path | None = None,
    validation_fraction: float | None = None,
    seed: int = 0,
    megabytes: float | None = None,
    validation_megabytes: float | None = None,
) -> Source:
    """The source meant by a corpus name, by the name of a dataset on the hub, or by one or more paths.

    `config`, `split` and `stream` are for datasets of the hub, or for a folder that is laid out like one; of such a
    dataset, `validation` is the name of a split.
    """
    first = str(what[0])
    known = CORPORA.get(first) if len(what) == 1 else None
    if not (known and known.hub is None) and (megabytes, validation_megabytes) != (None, None):
        raise OelmError(f"an amount of text can be asked for where it is made, not of {first!r}; leave it out")
    if validation is not None and validation_fraction is not None:
        raise OelmError(f"--validation {validation} and --validation-fraction {validation_fraction} exclude each other")
    if validation_fraction is not None and not 0 < validation_fraction <= 0.5:
        raise OelmError(f"validation fraction {validation_fraction} is out of range; choose above 0 and at most 0.5")
    if known:
        own = {"field": field, "config": config, "split": split, "validation": validation}
        _refuse(own | {"validation-fraction": validation_fraction}, f"{first!r} has its own fields and splits")
        if known.hub is not None:
            return HubSource(name or first, known, revision or known.revision, seed, stream)
        _refuse({"revision": revision}, f"{first} is made here")
        return _made(name or first, first, megabytes, validation_megabytes, seed)
    if len(what) == 1 and _is_dataset(first, bool(config or split or stream)):
        label = name or "-".join([Path(first).resolve().name, *([config] if config else [])])
        asked = {"config": config, "field": field or "text", "train": split or "train"}
        held_out = {"validation": validation and str(validation), "validation_fraction": validation_fraction}
        return HubSource(label, Corpus("", first, **asked, **held_out), revision, seed, stream)  # type: ignore[arg-type]
    hub = {"revision": revision, "config": config, "split": split, "stream": stream or None}
    _refuse(hub, f"the text is in {first!r}, which is no dataset of the hub nor a folder like one")
    held_out_in = None if validation is None else Path(validation)
    return _files([Path(item) for item in what], name, field, held_out_in, validation_fraction, seed)


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise OelmError(f"{why}; leave --{option}{'' if value is True else f' {value}'} out")


def _is_dataset(name: str, asked: bool) -> bool:
    """Whether a name is one of the hub: OWNER/NAME; or a folder that `datasets` is asked to read as one."""
    if Path(name).exists():
        return asked and Path(name).is_dir()
    return bool(_HUB_NAME.fullmatch(name)) and text_format(Path(name)) not in SUFFIXES


def _made(name: str, corpus: str, megabytes: float | None, validation: float | None, seed: int) -> "MadeSource":
    train_size = FABLES_MEGABYTES[0] if megabytes is None else megabytes
    size = FABLES_MEGABYTES[1] if validation is None else validation
    if min(train_size, size) <= 0:
        raise OelmError(f"{corpus} of {train_size} + {size} MB is not possible; both must be above 0")
    return MadeSource(name, int(train_size * 1e6), int(size * 1e6), seed, corpus)


def _files(
    paths: list[Path], name: str | None, field: str | None, validation: Path | None, fraction: float | None, seed: int
) -> FilesSource:
    for path in paths:
        if not path.exists():
            if len(paths) == 1 and path.name == str(path) and not path.suffix:
                raise unknown("corpus", path.name, CORPORA)
            raise OelmError(f"path {str(path)!r} does not exist; give a file, a folder or one of {', '.join(CORPORA)}")
    train, held_out = split_paths(paths, validation)
    if held_out and fraction is not None:
        raise OelmError(f"validation text is in {str(held_out[0])!r}; leave --validation-fraction {fraction} out")
    if not held_out and fraction is None:
        fraction = DEFAULT_FRACTION
    stems = [path.resolve().name.split(".")[0] or "corpus" for path in paths]
    label = "-".join(stems) if len(stems) <= MOST_NAMED else f"{stems[0]}-and-{len(stems) - 1}-more"
    corpus = CORPORA.get(name or "", Corpus(""))  # what its rows look like, also in files
    return FilesSource(name or label, train, held_out, field or corpus.field, fraction, seed, corpus.rows_are_lines)


@dataclass(frozen=True)
class MadeSource(Source):
    """An embedded corpus: as much as is asked for, with the true entropy of every text."""

    name: str
    train_bytes: int
    validation_bytes: int
    seed: int
    corpus: str = "fables"

    def settings(self) -> dict[str, Any]:
        sizes = {"train_bytes": self.train_bytes, "validation_bytes": self.validation_bytes}
        return {"source": self.corpus, **sizes, "seed": self.seed}

    def provenance(self) -> dict[str, Any]:
        return {"kind": "embedded", "corpus": self.corpus, "seed": self.seed}

    def texts(self, split: str) -> Iterator[tuple[str, float | None]]:
        from oelm.data import fables, recall

        endless = (fables.stories if self.corpus == "fables" else recall.documents)(split, self.seed)
        for text in fables.until(endless, self.expected_bytes(split)):
            yield text.text, text.nats

    def expected_bytes(self, split: str) -> int:
        return self.train_bytes if split == "train" else self.validation_bytes
