"""Where text comes from: the embedded corpus, datasets on the hub, and files on disk.

A `Source` says what it is (`settings`, `provenance`) and streams its documents; nothing here knows about tokens.

>>> source = find_source(["fables"], megabytes=0.01)
>>> next(documents(source, "train"))[:1].isupper()
True
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.data.hub import Corpus, HubSource
from oelm.data.localfiles import FilesSource, split_paths
from oelm.data.sources import SPLITS, Source
from oelm.errors import OelmError, unknown

LOCAL_VALIDATION_FRACTION = 0.05
FABLES_MEGABYTES = (2.0, 0.15)
"""Of training and of validation text, unless other amounts are asked for."""

WIKITEXT_COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("fables", "embedded story grammar with known entropy; any amount, no download"),
        Corpus("recall", "synthetic pairs of words, asked for again; any amount, no download"),
        Corpus(
            "tinystories",
            "2.1 million short stories for children",
            "roneneldan/TinyStories",
            revision="f54c09fd23315a6f9c86f9dc80f725de7d8f9c64",
        ),
        # 0.05 % for validation is the customary share: about 4,000 of 8 million documents.
        Corpus(
            "openwebtext",
            "8 million web documents, 40 GB",
            "Skylion007/openwebtext",
            config="plain_text",
            revision="79d93d786212f7344586290adb811d4ae6a1762c",
            validation_fraction=0.0005,
        ),
        Corpus(
            "wikitext103",
            "28,475 Wikipedia articles, 103 million words",
            "Salesforce/wikitext",
            config="wikitext-103-raw-v1",
            revision=WIKITEXT_COMMIT,
            rows_are_lines=True,
        ),
        Corpus(
            "wikitext2",
            "600 Wikipedia articles, 2 million words",
            "Salesforce/wikitext",
            config="wikitext-2-raw-v1",
            revision=WIKITEXT_COMMIT,
            rows_are_lines=True,
        ),
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
    validation: str | Path | None = None,
    validation_fraction: float | None = None,
    seed: int = 0,
    megabytes: float | None = None,
    validation_megabytes: float | None = None,
) -> Source:
    """The source meant by a corpus name or by one or more paths."""
    if not what:
        raise OelmError(f"no corpus given; name one of {', '.join(CORPORA)} or a path")
    first = str(what[0])
    embedded = len(what) == 1 and first in CORPORA and CORPORA[first].hub is None
    if not embedded and (megabytes, validation_megabytes) != (None, None):
        raise OelmError(f"an amount of text can be asked for where it is made, not of {first!r}; leave it out")
    if len(what) == 1 and first in CORPORA:
        corpus = CORPORA[first]
        if validation is not None or validation_fraction is not None or field is not None:
            raise OelmError(f"{first!r} has its own validation split and field; such options are for local paths")
        if corpus.hub is None:
            if revision is not None:
                raise OelmError(f"{first} is made here and has no revision {revision!r}; leave --revision out")
            train_size = FABLES_MEGABYTES[0] if megabytes is None else megabytes
            size = FABLES_MEGABYTES[1] if validation_megabytes is None else validation_megabytes
            if min(train_size, size) <= 0:
                raise OelmError(f"{first} of {train_size} + {size} MB is not possible; both must be above 0")
            return MadeSource(name or first, int(train_size * 1e6), int(size * 1e6), seed, first)
        return HubSource(name or first, corpus, revision or corpus.revision, seed)
    if revision is not None:
        raise OelmError(f"revision {revision!r} is one of the hub, but the text is in {first!r}; leave --revision out")
    paths = [Path(item) for item in what]
    for path in paths:
        if not path.exists():
            if len(what) == 1 and path.name == first and not path.suffix:
                raise unknown("corpus", first, CORPORA)
            raise OelmError(f"path {str(path)!r} does not exist; give a file, a folder or one of {', '.join(CORPORA)}")
    train, held_out = split_paths(paths, validation)
    fraction = None
    if held_out and validation_fraction is not None:
        raise OelmError(
            f"validation text is already in {str(held_out[0])!r}; leave --validation-fraction {validation_fraction} out"
        )
    if not held_out:
        fraction = LOCAL_VALIDATION_FRACTION if validation_fraction is None else validation_fraction
        if not 0 < fraction <= 0.5:
            raise OelmError(f"validation fraction {fraction} is out of range; choose above 0 and at most 0.5")
    label = name or paths[0].resolve().name.split(".")[0] or "corpus"
    corpus = CORPORA.get(name or "", Corpus("", ""))  # what its rows look like, also in files
    return FilesSource(label, train, held_out, field or corpus.field, fraction, seed, corpus.rows_are_lines)


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
