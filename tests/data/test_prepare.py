"""Text to tokens: faithful, the same however it is run, and safe against kills, full disks and each other."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from oelm.data import prepare as preparation
from oelm.data.corpora import Source, documents, find_source
from oelm.data.prepare import prepare
from oelm.data.staging import Entry
from oelm.data.tokenization import load_tokenizer
from oelm.data.tokens import TokenData
from oelm.errors import OelmError

FILES = ("train.bin", "val.bin", "tokenizer.json", "manifest.json")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks from little text, each on disk at once."""
    monkeypatch.setattr(preparation, "CHUNK_BYTES", 4000)
    monkeypatch.setattr("oelm.data.staging.FLUSH_SECONDS", 0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = find_source(["fables"], megabytes=0.03)
    path = tmp_path_factory.mktemp("tokenizer") / "tiny.json"
    load_tokenizer("bpe:300", documents(source, "train")).save(str(path))
    return path


@pytest.fixture
def source() -> Source:
    return find_source(["fables"], megabytes=0.1, validation_megabytes=0.02)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def text_file(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


def decoded(tokens: np.ndarray, data: TokenData) -> list[str]:
    tokenizer = Tokenizer.from_file(str(data.tokenizer_path))
    ends = np.flatnonzero(tokens == data.end_of_text_id)
    starts = [0, *(ends[:-1] + 1)]
    return [
        tokenizer.decode(tokens[first:last].tolist(), skip_special_tokens=False)
        for first, last in zip(starts, ends, strict=True)
    ]


def test_the_tokens_decode_to_the_text(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    data = prepare(source, tmp_path / "out", tokenizer)
    train = list(documents(source, "train"))
    assert decoded(data.train, data) == train
    facts = data.manifest["splits"]["train"]
    assert facts["bytes_of_text"] == sum(len(text.encode()) for text in train)
    assert facts["true_entropy_nats"] == pytest.approx(sum(nats for _, nats in source.texts("train") if nats))
    assert set(contents(data.path)) == set(FILES)
    assert not (tmp_path / "out.unfinished").exists()


def test_text_that_spells_a_special_token_stays_text(tokenizer: Path, tmp_path: Path) -> None:
    texts = ["before <|endoftext|> after", "ünïcödé 🌳\n\n  and\ttabs\r\n", "x"]
    text_file(tmp_path / "train.jsonl", texts)
    text_file(tmp_path / "val.jsonl", texts)
    data = prepare(tmp_path, tmp_path / "out", tokenizer)
    assert decoded(data.train, data) == texts
    assert np.count_nonzero(data.train == data.end_of_text_id) == 3


def test_large_vocabularies_get_four_bytes(tmp_path: Path) -> None:
    from tokenizers import models

    vocabulary = {f"t{number}": number for number in range(70_000)} | {"<|endoftext|>": 70_000}
    wide = Tokenizer(models.WordLevel(vocabulary, unk_token="t69999"))
    wide.save(str(tmp_path / "wide.json"))
    text_file(tmp_path / "train.jsonl", ["t0", "t69999"])
    text_file(tmp_path / "val.jsonl", ["t1"])
    data = prepare(tmp_path, tmp_path / "out", tmp_path / "wide.json")
    assert data.train.tolist() == [0, 70_000, 69_999, 70_000]
    assert data.train.dtype == np.uint32


def test_any_number_of_workers_gives_the_same_bytes(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    one, two, five = (prepare(source, tmp_path / str(n), tokenizer, workers=n) for n in (1, 2, 5))
    assert contents(one.path) == contents(two.path) == contents(five.path)


def test_chunking_does_not_show_in_the_tokens(
    source: Source, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = prepare(source, tmp_path / "small", tokenizer)
    monkeypatch.setattr(preparation, "CHUNK_BYTES", 1 << 20)
    large = prepare(source, tmp_path / "large", tokenizer)
    assert small.fingerprint == large.fingerprint


KILLED = """
import os, signal, sys
from oelm.data import prepare as preparation, staging
from oelm.data.corpora import find_source
out, tokenizer, split, chunk = sys.argv[1:]
preparation.CHUNK_BYTES, staging.FLUSH_SECONDS = 4000, 0.0
seen = []
def progress(name, done, expected):
    seen.append(name)
    if seen.count(split) == int(chunk):
        os.kill(os.getpid(), signal.SIGKILL)
source = find_source(["fables"], megabytes=0.1, validation_megabytes=0.02)
preparation.prepare(source, out, tokenizer, progress=progress)
"""


@pytest.mark.parametrize(("split", "chunk"), [("train", 1), ("train", 13), ("validation", 3)])
def test_a_killed_run_continues_and_ends_with_the_same_bytes(
    source: Source, tokenizer: Path, tmp_path: Path, split: str, chunk: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(out), str(tokenizer), split, str(chunk)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    assert (tmp_path / "out.unfinished").is_dir()
    with pytest.raises(OelmError, match="is unfinished"):
        TokenData.open(out)
    notes: list[str] = []
    resumed = prepare(source, out, tokenizer, note=notes.append)
    assert any("documents encoded earlier" in note for note in notes)
    assert contents(resumed.path) == contents(prepare(source, tmp_path / "whole", tokenizer).path)


def test_a_write_torn_by_a_kill_is_not_published(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    staging = tmp_path / "out.unfinished"
    staging.mkdir()
    for torn in (".settings.json.k3v9", ".journal-train.jsonl.k3v9", ".manifest.json.k3v9"):
        (staging / torn).write_text("{")
    assert set(contents(prepare(source, tmp_path / "out", tokenizer).path)) == set(FILES)


@pytest.mark.parametrize("damage", ["torn journal", "short tokens", "flipped bit", "surplus tokens"])
def test_unfinished_work_is_trusted_only_as_far_as_it_is_intact(
    source: Source, tokenizer: Path, tmp_path: Path, damage: str
) -> None:
    class Stop(Exception):
        pass

    def stop(split: str, done: Entry, expected: int | None) -> None:
        if done.documents > 60:
            raise Stop

    with pytest.raises(Stop):
        prepare(source, tmp_path / "out", tokenizer, progress=stop)
    log, tokens = (tmp_path / "out.unfinished" / name for name in ("journal-train.jsonl", "train.bin"))
    if damage == "torn journal":
        log.write_bytes(log.read_bytes()[:-30])
    elif damage == "short tokens":
        os.truncate(tokens, tokens.stat().st_size // 2)
    elif damage == "surplus tokens":
        tokens.write_bytes(tokens.read_bytes() + b"leftover")
    else:
        raw = bytearray(tokens.read_bytes())
        raw[len(raw) // 2] ^= 4
        tokens.write_bytes(raw)
    resumed = prepare(source, tmp_path / "out", tokenizer)
    assert contents(resumed.path) == contents(prepare(source, tmp_path / "whole", tokenizer).path)


def test_a_full_disk_is_told_and_loses_nothing(
    source: Source, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def full_after_a_while(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full_after_a_while)
    with pytest.raises(OelmError, match=r"the disk is full.*what is encoded is kept"):
        prepare(source, tmp_path / "out", tokenizer)
    monkeypatch.setattr(os, "fsync", real)
    notes: list[str] = []
    resumed = prepare(source, tmp_path / "out", tokenizer, note=notes.append)
    assert any("documents encoded earlier" in note for note in notes)
    assert contents(resumed.path) == contents(prepare(source, tmp_path / "whole", tokenizer).path)


def test_a_folder_that_cannot_be_written_is_named(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OelmError, match=r"file/out cannot be written.*choose another --out"):
        prepare(source, tmp_path / "file" / "out", tokenizer)


def test_two_runs_cannot_share_a_folder(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    staging = tmp_path / "out.unfinished"
    staging.mkdir()
    with open(staging / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OelmError, match=r"another process is preparing .*out"):
            prepare(source, tmp_path / "out", tokenizer)
    assert prepare(source, tmp_path / "out", tokenizer).path.is_dir()


def test_a_finished_folder_is_left_as_it_is(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    first = prepare(source, tmp_path / "out", tokenizer)
    before = {path: path.stat().st_mtime_ns for path in first.path.iterdir()}
    again = prepare(source, tmp_path / "out", tokenizer)
    assert (first.unchanged, again.unchanged) == (False, True)
    assert {path: path.stat().st_mtime_ns for path in first.path.iterdir()} == before


def test_other_settings_are_refused_by_name_unless_forced(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    out = prepare(source, tmp_path / "out", tokenizer).path
    other = find_source(["fables"], megabytes=0.05, seed=3)
    with pytest.raises(
        OelmError, match=r"train_bytes 100000 there, 50000 now.*seed 0 there, 3 now.*--force or another"
    ):
        prepare(other, out, tokenizer)
    with pytest.raises(OelmError, match=r"tokenizer '.*' there, 'bpe300' now"):
        prepare(source, out, "bpe:300")
    assert TokenData.open(out, verify=True).manifest["settings"]["seed"] == 0
    assert prepare(other, out, tokenizer, force=True).manifest["settings"]["seed"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_changed_text_in_the_same_file_is_noticed(tokenizer: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "val.jsonl", ["v"])
    text_file(tmp_path / "train.jsonl", ["a"])
    prepare(tmp_path, tmp_path / "out", tokenizer)
    text_file(tmp_path / "train.jsonl", ["b"])
    with pytest.raises(OelmError, match="train text differs"):
        prepare(tmp_path, tmp_path / "out", tokenizer)


def test_a_bad_line_leaves_good_work_to_continue_from(tokenizer: Path, tmp_path: Path) -> None:
    texts = [f"document {number} " * 50 for number in range(40)]
    good = text_file(tmp_path / "train.jsonl", texts).read_text()
    text_file(tmp_path / "val.jsonl", texts[:2])
    (tmp_path / "train.jsonl").write_text(good + "not json\n")
    with pytest.raises(OelmError, match=r"train\.jsonl line 41 is not JSON"):
        prepare(tmp_path, tmp_path / "out", tokenizer)
    assert not (tmp_path / "out").exists()
    (tmp_path / "train.jsonl").write_text(good)
    notes: list[str] = []
    data = prepare(tmp_path, tmp_path / "out", tokenizer, note=notes.append)
    assert len([note for note in notes if "validation is 2 documents" not in note]) == 1
    assert "documents encoded earlier" in notes[0]
    assert decoded(data.train, data) == texts
    (tmp_path / "train.jsonl").write_text("not json\n")
    with pytest.raises(OelmError, match="line 1 is not JSON"):
        prepare(tmp_path, tmp_path / "other", tokenizer)
    assert not list(tmp_path.glob("other*"))


def test_folders_that_are_not_ours_are_never_touched(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(OelmError, match="exists and is not prepared data"):
            prepare(source, tmp_path, tokenizer, force=force)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_with_anything_else_in_it_is_never_replaced(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    for foreign in ("thesis.tex", ".env"):
        for name in ("manifest.json", ".manifest.json.torn", foreign):
            (tmp_path / name).write_text("{}")
        with pytest.raises(OelmError, match=rf"holds {foreign}, which is no prepared data and would be lost"):
            prepare(source, tmp_path, tokenizer, force=True)
        (tmp_path / foreign).unlink()


def test_an_empty_validation_split_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    path = text_file(tmp_path / "one.jsonl", ["only one document"])
    with pytest.raises(
        OelmError, match="falls in its validation split: it has too few; give more text or --validation"
    ):
        prepare(path, tmp_path / "out", tokenizer)


def test_bad_requests_are_refused_before_any_work(source: Source, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(OelmError, match="0 workers"):
        prepare(source, tmp_path / "out", tokenizer, workers=0)
    with pytest.raises(OelmError, match="'bpe:12' is not possible"):
        prepare(source, tmp_path / "out", "bpe:12")
    assert not list(tmp_path.iterdir())


def test_the_default_folder_is_named_after_corpus_and_tokenizer(tmp_path: Path) -> None:
    source = find_source(["fables"], megabytes=0.02, validation_megabytes=0.01)
    data = prepare(source, tokenizer_spec="bpe:300", data_dir=tmp_path)
    assert data.path == tmp_path / "fables-bpe300"
    assert data.manifest["tokenizer"]["trained_on_first_bytes"] == 50_000_000


def test_the_environment_is_as_before(source: Source, tokenizer: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    prepare(source, tmp_path / "out", tokenizer)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.shared_data
def test_real_stories_round_trip_through_gpt2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path(os.environ.get("OELM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not shared.is_dir():
        pytest.skip("the real datasets are not beside this repository (set OELM_SHARED_DATA)")
    stories = find_source([shared / "tinystories" / "validation.txt"], name="tinystories")
    data = prepare(stories, tokenizer_spec=shared / "gpt2-bpe", data_dir=tmp_path)
    assert data.path.name == "tinystories-gpt2"
    assert (data.vocab_size, data.end_of_text_id, data.train[-1]) == (50257, 50256, 50256)
    assert decoded(data.train, data) == list(documents(stories, "train"))
