"""Datasets of the hub: the real `datasets` on folders laid out like theirs; what only the hub knows is played."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import errors

from oelm.data.corpora import documents, find_source
from oelm.data.prepare import prepare
from oelm.data.tokenization import load_tokenizer, tokenizer_hash
from oelm.errors import OelmError, Unavailable

TEXTS = [f"Document {number} is about pears and trees. " * (1 + number % 7) for number in range(1200)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a dataset lies on the hub: shards in data/, two configurations, one of them with a validation split."""
    folder = tmp_path_factory.mktemp("hub") / "pears"
    for name, texts in {"a-0": TEXTS[:700], "a-1": TEXTS[700:], "b": TEXTS[:50], "held": ["held out " * 9] * 3}.items():
        (folder / "data").mkdir(parents=True, exist_ok=True)
        rows = (json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(texts))
        (folder / "data" / f"{name}.jsonl").write_text("".join(rows))
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: large\n  data_files: [{split: train, path: data/a-*.jsonl}]\n"
        "- config_name: small\n  data_files:\n  - {split: sft, path: data/b.jsonl}\n"
        "  - {split: dev, path: data/held.jsonl}\n---\n"
    )
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def large(dataset: Path, **options: Any) -> Any:
    return find_source([dataset], config="large", field="body", **options)


def test_config_split_and_field_say_what_is_read(dataset: Path) -> None:
    small = find_source([dataset], config="small", split="sft", field="body")
    assert list(documents(small, "train")) == TEXTS[:50]
    assert list(documents(small, "validation")) == ["held out " * 9] * 3  # a split of a usual name
    assert small.name == "pears-small"
    train, held_out = (list(documents(large(dataset), split)) for split in ("train", "validation"))
    assert sorted(train + held_out) == sorted(TEXTS)  # no such split: documents are held out
    assert 30 < len(held_out) < 90


def test_streamed_and_downloaded_are_the_same_data(dataset: Path, tmp_path: Path) -> None:
    made = [prepare(large(dataset, stream=stream), tmp_path / str(stream), "bpe:300") for stream in (True, False)]
    assert made[0].fingerprint == made[1].fingerprint
    assert made[0].manifest["source"]["revision"] == made[1].manifest["source"]["revision"]
    assert prepare(large(dataset, stream=True), tmp_path / "False", "bpe:300").unchanged


def test_max_tokens_end_with_the_document_that_reaches_them(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("oelm.data.prepare.CHUNK_BYTES", 2000)
    everything = prepare(large(dataset), tmp_path / "all", "bpe:300")
    tokenizer = everything.tokenizer_path
    some = prepare(large(dataset, stream=True), tmp_path / "some", tokenizer, max_tokens=3000, workers=3)
    end = some.end_of_text_id
    assert len(some.train) >= 3000 and np.flatnonzero(some.train[:-1] == end).max() + 1 < 3000
    whole = prepare(large(dataset), tmp_path / "whole", tokenizer)
    assert np.array_equal(some.train, whole.train[: len(some.train)])
    facts = some.manifest["splits"]
    assert facts["train"]["documents"] == int((some.train == end).sum())
    texts = itertools.islice(documents(large(dataset), "train"), facts["train"]["documents"])
    assert facts["train"]["bytes_of_text"] == sum(map(len, texts))
    assert 150 <= len(some.validation) < 300 < len(whole.validation)


def test_a_stream_is_read_no_further_than_it_must_be(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    import datasets

    read: list[int] = []

    def counted(*words: Any, **options: Any) -> Any:
        assert options["streaming"] is True
        return load(*words, **options).map(lambda row: read.append(row["id"]) or row)

    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", counted)
    tokenizer = load_tokenizer("bpe:300", TEXTS)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prepare(large(dataset, stream=True), tmp_path / "out", tmp_path / "tokenizer.json", max_tokens=500, workers=1)
    assert 0 < len(read) < 1000  # of 2 × 1,200 rows


@pytest.mark.parametrize("limit", [None, 9000])
def test_killed_and_repeated_gives_the_same_fingerprint(
    dataset: Path, tmp_path: Path, monkeypatch, limit: int | None
) -> None:
    monkeypatch.setattr("oelm.data.prepare.CHUNK_BYTES", 5000)
    monkeypatch.setattr("oelm.data.staging.FLUSH_SECONDS", 0.0)
    straight = prepare(large(dataset, stream=True), tmp_path / "straight", "bpe:300", max_tokens=limit)

    def kill(split: str, done: Any, expected: int | None) -> None:
        if done.tokens > 4000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(large(dataset, stream=True), tmp_path / "out", "bpe:300", max_tokens=limit, progress=kill)
    notes: list[str] = []
    again = prepare(large(dataset, stream=True), tmp_path / "out", "bpe:300", max_tokens=limit, note=notes.append)
    assert again.fingerprint == straight.fingerprint
    assert any(note.startswith("continuing train") for note in notes)
    assert sorted(p.name for p in again.path.iterdir()) == ["manifest.json", "tokenizer.json", "train.bin", "val.bin"]


def test_one_that_goes_on_reads_the_commit_it_began_with(tmp_path: Path, monkeypatch) -> None:
    import datasets

    commits, asked = iter(["a" * 40, "b" * 40]), []

    def load(path: str, *, revision: str, **options: Any) -> Any:
        asked.append(revision)
        return datasets.Dataset.from_dict({"text": [f"{revision[0]} {text}" for text in TEXTS]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *words, **options: ["train"])
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *w, **o: SimpleNamespace(sha=next(commits)))
    monkeypatch.setattr("oelm.data.prepare.CHUNK_BYTES", 5000)
    monkeypatch.setattr("oelm.data.staging.FLUSH_SECONDS", 0.0)

    def kill(split: str, done: Any, expected: int | None) -> None:
        if done.documents > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(find_source(["me/pears"]), tmp_path / "out", "bpe:300", progress=kill)
    data = prepare(find_source(["me/pears"]), tmp_path / "out", "bpe:300")
    assert set(asked) == {"a" * 40}  # though the branch has moved on
    assert data.manifest["source"]["revision"] == "a" * 40


def test_a_connection_that_breaks_costs_nothing_that_was_encoded(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    import datasets

    monkeypatch.setattr("oelm.data.prepare.CHUNK_BYTES", 5000)
    monkeypatch.setattr("oelm.data.staging.FLUSH_SECONDS", 0.0)
    straight = prepare(large(dataset, stream=True), tmp_path / "straight", "bpe:300")
    tokenizer = straight.tokenizer_path

    def breaks(self: Any, batch_size: int, **options: Any) -> Any:
        yield from itertools.islice(whole(self, batch_size=300), 3)
        raise ConnectionError("peer reset")

    whole = datasets.IterableDataset.iter
    with monkeypatch.context() as patch:
        patch.setattr(datasets.IterableDataset, "iter", breaks)
        with pytest.raises(Unavailable, match=r"pears broke off \(peer reset\); run the same command again"):
            prepare(large(dataset, stream=True), tmp_path / "out", tokenizer)
    notes: list[str] = []
    assert prepare(large(dataset, stream=True), tmp_path / "out", tokenizer, note=notes.append).fingerprint == (
        straight.fingerprint
    )
    assert any(note.startswith("continuing train") for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": "nope"}, r"pears: BuilderConfig 'nope' not found.*\['large', 'small'\].*--config and --split"),
        ({"config": "large", "split": "nope"}, r"pears: .*nope.*'train'.*choose with --config and --split"),
        ({"config": "large"}, r"pears, split train has no column 'text' \(it has: id, body\); choose with --field"),
        ({"config": "large", "field": "id"}, r"row 1 has no text in column 'id' but 0; choose with --field"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_part_that_is_not_there_is_told_with_those_that_are(
    dataset: Path, options: dict[str, Any], message: str, stream: bool
) -> None:
    with pytest.raises(OelmError, match=message) as refused:
        next(documents(find_source([dataset], stream=stream, **options), "train"))
    assert not isinstance(refused.value, Unavailable)


def test_a_name_without_a_network_is_one_line_at_once() -> None:
    message = r"dataset me/nowhere is no folder here and could not be reached on the hub .*a local copy works"
    with pytest.raises(Unavailable, match=message):
        next(documents(find_source(["me/nowhere"], stream=True), "train"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "it is gated: accept its conditions on its page, then 'hf auth login'"),
        ("RepositoryNotFoundError", "there is none of this name, or it is private"),
        ("RevisionNotFoundError", "it has no such revision"),
    ],
)
def test_what_the_hub_refuses_is_told_in_its_words(monkeypatch, error: str, words: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        kind = getattr(errors, error)
        raise kind.__new__(kind)

    monkeypatch.setattr("oelm.hub.unreachable", lambda: None)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    with pytest.raises(Unavailable, match=f"me/secret .*{words}"):
        next(documents(find_source(["me/secret"], revision="v2"), "train"))


def test_a_tokenizer_of_the_hub_is_taken_by_its_name(tmp_path: Path, monkeypatch) -> None:
    from transformers import GPT2Config, PreTrainedTokenizerFast

    trained = load_tokenizer("bpe:300", TEXTS[:100])
    cached = tmp_path / "models--me--tok-1.5" / "snapshots" / ("c" * 40)  # as the hub's client keeps it
    PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<|endoftext|>").save_pretrained(cached)
    GPT2Config().save_pretrained(cached)
    (cached.parents[1] / "refs").mkdir()
    (cached.parents[1] / "refs" / "main").write_text("c" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert tokenizer_hash(load_tokenizer("me/tok-1.5")) == tokenizer_hash(trained)
    text = tmp_path / "text.txt"
    text.write_text("\n<|endoftext|>\n".join(TEXTS[:300]))
    data = prepare(find_source([text]), None, "me/tok-1.5", data_dir=tmp_path / "data")
    assert data.path.name == "text-tok-1.5"
    with pytest.raises(Unavailable, match=r"tokenizer 'me/other' is none that can be had .*bpe:4096"):
        prepare(find_source([text]), None, "me/other", data_dir=tmp_path / "data")
