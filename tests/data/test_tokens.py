"""Prepared folders: what they tell, and that a damaged one is refused by name."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oelm.data.corpora import find_source
from oelm.data.prepare import prepare
from oelm.data.tokens import TokenData, data_directory, find, prepared
from oelm.errors import OelmError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = find_source(["fables"], megabytes=0.03, validation_megabytes=0.01)
    return prepare(source, tmp_path_factory.mktemp("data") / "fables-bpe300", "bpe:300", workers=1).path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data" / original.name))


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_opened_folder_tells_what_training_needs(folder: Path) -> None:
    data = TokenData.open(folder, verify=True)
    facts = data.manifest["splits"]["validation"]
    assert (data.vocab_size, data.train.dtype, data.train.ndim) == (300, np.uint16, 1)
    assert len(data.validation) == facts["tokens"]
    assert data.bytes_per_token == data.validation_bytes / facts["tokens"]
    assert data.true_entropy_nats_per_token is not None
    assert 0 < data.true_entropy_nats_per_token < math.log(data.vocab_size)
    assert np.count_nonzero(data.validation == data.end_of_text_id) == facts["documents"]
    assert data.tokenizer_path.is_file()


def test_the_token_files_cannot_be_written_through(folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        TokenData.open(folder).train[0] = 1


def test_the_fingerprint_names_the_data_and_not_the_folder(folder: Path, original: Path) -> None:
    moved = folder.rename(folder.with_name("elsewhere"))
    change_manifest(moved, name="other", source={"kind": "files", "files": []})
    assert TokenData.open(moved).fingerprint == TokenData.open(original).fingerprint
    change_manifest(moved, tokenizer=TokenData.open(moved).manifest["tokenizer"] | {"hash": "another"})
    assert TokenData.open(moved).fingerprint != TokenData.open(original).fingerprint


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "tokenizer.json", "manifest.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(OelmError, match=name):
        TokenData.open(folder)


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_a_truncated_file_is_refused_without_reading_it(folder: Path, name: str) -> None:
    with open(folder / name, "r+b") as file:
        file.truncate(100)
    with pytest.raises(OelmError, match=rf"{name} has 100 bytes where its manifest says \d+.*--force"):
        TokenData.open(folder)


def test_a_flipped_bit_is_found_by_verifying(folder: Path) -> None:
    raw = bytearray((folder / "train.bin").read_bytes())
    raw[1000] ^= 1
    (folder / "train.bin").write_bytes(raw)
    TokenData.open(folder)
    with pytest.raises(OelmError, match=r"train\.bin is corrupt: sha256"):
        TokenData.open(folder, verify=True)


def test_damaged_and_later_manifests_are_refused(folder: Path) -> None:
    change_manifest(folder, format=99)
    with pytest.raises(OelmError, match="has format 99, this version of oelm reads up to 1; upgrade"):
        TokenData.open(folder)
    change_manifest(folder, format=1, dtype="<f8")
    with pytest.raises(OelmError, match=r"manifest\.json is incomplete or damaged"):
        TokenData.open(folder)
    for raw in ("{", "[]", "{}", '{"format": 1}', "\x00" * 100):
        (folder / "manifest.json").write_text(raw)
        with pytest.raises(OelmError, match=r"manifest\.json"):
            TokenData.open(folder)


def test_data_is_found_by_path_folder_and_corpus_name(folder: Path) -> None:
    root = folder.parent
    assert find(folder, "nowhere") == find("fables-bpe300", root) == find("fables", root) == folder
    assert prepared(root) == [folder]


def test_what_is_not_prepared_is_told_with_what_is(folder: Path) -> None:
    root = folder.parent
    with pytest.raises(OelmError, match=r"'nope' is not prepared.*files of yours: oelm data prepare NAME_OR_FILES"):
        find("nope", root)
    with pytest.raises(OelmError, match=r"did you mean 'fables-bpe300' or 'fables'\? a corpus or files of yours: oelm"):
        find("fables-bpe30", root)
    with pytest.raises(
        OelmError, match=r"'wikitext103' is not prepared.*prepared: fables-bpe300.*run: oelm data prepare wikitext103$"
    ):
        find("wikitext103", root)
    (root / "wiki-gpt2.unfinished").mkdir()
    with pytest.raises(OelmError, match="is unfinished"):
        find("wiki-gpt2", root)
    with pytest.raises(OelmError, match="is unfinished"):
        TokenData.open(root / "wiki-gpt2")
    shutil.copytree(folder, root / "fables-again")
    with pytest.raises(OelmError, match=r"more than once.*choose one of fables-again, fables-bpe300"):
        find("fables", root)
    with pytest.raises(OelmError, match="prepared: nothing yet"):
        find("fables", root / "empty")


def test_the_data_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OELM_DATA_DIR", raising=False)
    assert data_directory() == Path("data")
    monkeypatch.setenv("OELM_DATA_DIR", "/somewhere")
    assert data_directory() == Path("/somewhere")
    assert data_directory("given") == Path("given")


def test_reading_tokens_loads_neither_torch_nor_tokenizers() -> None:
    script = "import sys, oelm.data.tokens; print({'torch', 'tokenizers', 'datasets'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=True)
    assert run.stdout.strip() == "set()"
