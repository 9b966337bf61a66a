"""Tokenizers by name, by files and trained on the spot, and the hash that identifies them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from oelm.data import fables
from oelm.data.tokenization import (
    GPT2_HASH,
    end_of_text_id,
    load_tokenizer,
    tokenizer_hash,
    tokenizer_label,
    vocabulary_size,
)
from oelm.errors import OelmError

TEXT = [story.text for story in fables.until(fables.stories("train", 0), 30_000)]


@pytest.fixture
def gpt2_folder() -> Path:
    shared = Path(os.environ.get("OELM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (shared / "gpt2-bpe").is_dir():
        pytest.skip("the real GPT-2 vocabulary is not beside this repository (set OELM_SHARED_DATA)")
    return shared / "gpt2-bpe"


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return load_tokenizer("bpe:300", TEXT)


def save_as_vocabulary(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    tokenizer.model.save(str(folder))
    return folder


def save_as_published(tokenizer: Tokenizer, path: Path) -> Path:
    """As the hub has GPT-2: an older way of writing the same tokenizer."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["normalized"] = True
    state["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    state["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    model = state["model"]
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    state["model"] = plain | {"vocab": model["vocab"], "merges": [" ".join(pair) for pair in model["merges"]]}
    path.write_text(json.dumps(state))
    return path


def test_a_trained_tokenizer_has_the_size_asked_for_and_loses_no_byte(trained: Tokenizer) -> None:
    assert vocabulary_size(trained) == 300
    assert trained.token_to_id("<|endoftext|>") == end_of_text_id(trained)
    unseen = "Ξένο κείμενο \x00\t 汉字 🦉"
    assert trained.decode(trained.encode(unseen).ids) == unseen


def test_training_is_deterministic_across_processes_and_threads(trained: Tokenizer) -> None:
    script = (
        "import sys, json; from oelm.data.tokenization import load_tokenizer, tokenizer_hash\n"
        "print(tokenizer_hash(load_tokenizer('bpe:300', json.load(sys.stdin))))"
    )
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(TEXT),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert run.stdout.strip() == tokenizer_hash(trained)


def test_training_reads_no_more_than_its_sample() -> None:
    read = []

    def endless():
        while True:
            read.append(1)
            yield "some words " * 100

    load_tokenizer("bpe:260", endless(), sample_bytes=50_000)
    assert len(read) <= 50_000 / 1100 + 2


def test_the_same_tokenizer_has_one_hash_by_every_route(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(str(tmp_path / "tokenizer.json"))
    routes = [
        tmp_path,
        tmp_path / "tokenizer.json",
        save_as_vocabulary(trained, tmp_path / "folder"),
        save_as_published(trained, tmp_path / "published.json"),
    ]
    assert {tokenizer_hash(load_tokenizer(route)) for route in routes} == {tokenizer_hash(trained)}
    assert tokenizer_hash(load_tokenizer("bpe:301", TEXT)) != tokenizer_hash(trained)


def test_a_changed_merge_changes_the_hash(trained: Tokenizer, tmp_path: Path) -> None:
    state = json.loads(trained.to_str())
    state["model"]["merges"][0], state["model"]["merges"][1] = state["model"]["merges"][1], state["model"]["merges"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert tokenizer_hash(load_tokenizer(tmp_path)) != tokenizer_hash(trained)


def test_limits_in_a_published_tokenizer_do_not_shorten_documents(trained: Tokenizer, tmp_path: Path) -> None:
    limited = Tokenizer.from_str(trained.to_str())
    limited.enable_truncation(4)
    limited.enable_padding(length=8)
    limited.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(TEXT[0]).ids == trained.encode(TEXT[0]).ids


@pytest.mark.parametrize(
    "spec", ["bpe:256", "bpe:0", "bpe:", "bpe:many", "bpe:-5", "bpe:0300", "bpe:٣٠٠", "bpe:²²²", "bpe:9999999999"]
)
def test_an_impossible_size_is_refused(spec: str) -> None:
    with pytest.raises(OelmError, match=rf"'{spec}' is not possible.*from 257 to 1,000,000"):
        load_tokenizer(spec, TEXT)


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path, trained: Tokenizer) -> None:
    with pytest.raises(OelmError, match=r"'gpt3' is none that can be had .*; give gpt2, bpe:4096"):
        load_tokenizer("gpt3")
    with pytest.raises(OelmError, match=r"neither tokenizer\.json nor vocab\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"half": ')
    with pytest.raises(OelmError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
    folder = save_as_vocabulary(trained, tmp_path / "folder")
    (folder / "merges.txt").write_text("#version: 0.2\nnot there\n")
    with pytest.raises(OelmError, match=r"tokenizer files in .*folder cannot be read"):
        load_tokenizer(folder)


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    from tokenizers import models

    with pytest.raises(OelmError, match="no end-of-text token"):
        end_of_text_id(Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))


def test_gpt2_without_network_or_cache_says_what_works_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("network is blocked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        OelmError,
        match=r"openai-community/gpt2 could not be reached.*--tokenizer bpe:4096.*vocab\.json and merges\.txt",
    ):
        load_tokenizer("gpt2")


def test_gpt2_by_name_is_taken_from_the_hub(
    trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_as_published(trained, tmp_path / "tokenizer.json")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, name, **_: str(file.parent / name))
    assert tokenizer_hash(load_tokenizer("gpt2")) == tokenizer_hash(trained)


@pytest.mark.shared_data
def test_gpt2_from_local_files_is_gpt2(gpt2_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gpt2_folder)
    assert (vocabulary_size(tokenizer), end_of_text_id(tokenizer)) == (50257, 50256)
    assert tokenizer.encode("Hello world! It's 2024.\n\n  two").ids == [
        *(15496, 995, 0, 632, 338, 48609, 13, 628, 220, 734),
    ]
    assert tokenizer_hash(tokenizer) == GPT2_HASH
    assert tokenizer_hash(load_tokenizer(save_as_published(tokenizer, tmp_path / "hub.json"))) == GPT2_HASH
    assert tokenizer_label(gpt2_folder, GPT2_HASH) == "gpt2"


@pytest.mark.shared_data
def test_gpt2_agrees_with_transformers_on_real_text(gpt2_folder: Path) -> None:
    from transformers import GPT2Tokenizer

    theirs = GPT2Tokenizer(str(gpt2_folder / "vocab.json"), str(gpt2_folder / "merges.txt"))
    text = (gpt2_folder.parent / "wikitext-2" / "validation.txt").read_text("utf-8")[:20_000]
    assert load_tokenizer(gpt2_folder).encode(text).ids == theirs(text)["input_ids"]
