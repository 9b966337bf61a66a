"""`oelm data`, as typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oelm.cli.data import app
from oelm.data.labelled import prepare_task
from oelm.data.tasks import TaskSource, find_task
from oelm.errors import OelmError

FABLES = ["prepare", "fables", "--tokenizer", "bpe:300", "--megabytes", "0.02", "--validation-megabytes", "0.01"]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OELM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "data"


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_prepare_list_and_show_tell_the_same_story(data_dir: Path) -> None:
    made = json.loads(run(*FABLES, "--json"))
    assert made["path"] == str(data_dir / "fables-bpe300")
    assert not made["already_prepared"]
    assert json.loads(run(*FABLES, "--json"))["already_prepared"]
    (listed,) = json.loads(run("list", "--json"))
    shown = json.loads(run("show", "fables", "--verify", "--json"))
    assert listed["fingerprint"] == shown["fingerprint"] == made["fingerprint"]
    assert listed["train_tokens"] == shown["train_tokens"] == shown["manifest"]["splits"]["train"]["tokens"]
    assert shown["verified"]


def test_people_get_sentences(data_dir: Path) -> None:
    assert "nothing is prepared" in run("list")
    assert "nats per token" in run(*FABLES)
    assert "already prepared with these settings; nothing to do" in run(*FABLES)
    (data_dir / "wiki-gpt2.unfinished").mkdir()
    listing = run("list")
    assert "fables-bpe300" in listing
    assert "unfinished" in listing
    shown = run("show", "fables-bpe300", "--verify")
    assert "fables (embedded), seed 0" in shown
    assert "every byte is as it was written" in shown


def test_tasks_are_listed_and_told_from_corpora(data_dir: Path, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\n" + "a fine film\t1\na poor one\t0\n" * 4)
    data = prepare_task(TaskSource(find_task("sst2"), tmp_path), "bpe:300")
    (row,) = json.loads(run("list", "--json"))
    assert (row["name"], row["train_rows"], row["fingerprint"]) == ("sst2", 8, data.fingerprint)
    assert "8 rows" in run("list")
    for name in ("sst2", data.path.name):
        with pytest.raises(OelmError, match=f"is a prepared task; .* oelm train --dataset {data.path}"):
            run("show", name)


def test_a_damaged_folder_hides_no_other(data_dir: Path) -> None:
    run(*FABLES)
    for folder, file in (("broken", "manifest.json"), ("torn", "task.json")):
        (data_dir / folder).mkdir()
        (data_dir / folder / file).write_text("{")
    states = {row["folder"]: row["state"] for row in json.loads(run("list", "--json"))}
    assert states == {"fables-bpe300": "ready", "broken": "damaged", "torn": "damaged"}
    assert "manifest.json is damaged" in run("list")
    assert "bytes per token" in run("show", "fables")
    with pytest.raises(OelmError, match=r"prepared: fables-bpe300; damaged: broken\)"):
        run("show", "wiki")


def test_local_files_are_prepared_under_a_given_name(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one two"}\n')
    (tmp_path / "b.jsonl").write_text('{"body": "three"}\n')
    (tmp_path / "held.jsonl").write_text('{"body": "four"}\n')
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--validation", tmp_path / "held.jsonl", "--field", "body"]
    made = json.loads(run("prepare", *files, "--name", "tinystories", "--tokenizer", "bpe:257", "--json"))
    assert (made["name"], made["train_documents"], made["validation_documents"]) == ("tinystories", 2, 1)
    assert Path(made["path"]).name == "tinystories-bpe257"


def test_mistakes_are_one_line_with_a_way_out(tmp_path: Path) -> None:
    for words, message in (
        (["prepare", "fabels", "--tokenizer", "bpe:300"], "did you mean 'fables'"),
        (["prepare", "fables", "--tokenizer", "bpe:3"], "'bpe:3' is not possible"),
        (["prepare", "fables", "--megabytes", "0"], "both must be above 0"),
        (["show", "nothing"], "oelm data prepare NAME_OR_FILES"),
    ):
        with pytest.raises(OelmError, match=message) as caught:
            run(*words)
        assert "\n" not in str(caught.value)


def test_help_is_answered_without_the_heavy_libraries() -> None:
    script = "import sys, oelm.cli.data; print({'numpy', 'tokenizers', 'datasets', 'torch'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
    for command in ("prepare", "list", "show"):
        assert "--json" in run(command, "--help")


def test_many_files_are_counted_and_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / "stories"
    folder.mkdir()
    for i in range(233):
        (folder / f"{i}.txt").write_text(f"Story {i} is about a pear and a tree.\n")
    said = run("prepare", folder, "--tokenizer", "bpe:260")
    assert f"233 files in {folder}" in said
    assert max(map(len, said.splitlines())) < 200


def test_nothing_is_announced_before_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(" \n")
    (tmp_path / "validation.txt").write_text("some text\n")
    result = CliRunner().invoke(app, ["prepare", str(tmp_path), "--tokenizer", "bpe:300"])
    assert "holds no text" in str(result.exception)
    assert "training bpe" not in result.output
    (tmp_path / "one.jsonl").write_text('{"text": "a single document"}\n')
    result = CliRunner().invoke(app, ["prepare", str(tmp_path / "one.jsonl"), "--tokenizer", "bpe:300"])
    assert "falls in its validation split" in str(result.exception)
    assert "training bpe" not in result.output


def test_a_name_does_not_lead_out_of_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 50)
    with pytest.raises(OelmError, match=r"name '\.\./\.\./out' cannot be a folder's name"):
        run("prepare", tmp_path / "a.txt", "--name", "../../out", "--tokenizer", "bpe:300")
    with pytest.raises(OelmError, match=r"task '\.\./out' cannot be a folder's name"):
        find_task("../out", ["text"])


def test_several_files_name_the_corpus_together_and_one_validation_document_is_warned_of(tmp_path: Path) -> None:
    for name in ("book", "notes"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i}, a pear\n<|endoftext|>\n" for i in range(40)))
    (tmp_path / "held.txt").write_text("one document")
    files = [tmp_path / "book.txt", tmp_path / "notes.txt"]
    result = CliRunner().invoke(
        app, ["prepare", *map(str, files), "--tokenizer", "bpe:300", "--validation", str(tmp_path / "held.txt")]
    )
    assert result.exit_code == 0
    assert "book-notes-bpe300" in result.stdout
    assert " tokens in 1 document\n" in result.stdout
    assert "validation is a single document and says little; give --validation PATH or a larger" in result.stderr


def test_the_help_says_how_a_text_is_cut_into_documents() -> None:
    said = " ".join(run("prepare", "--help").split())
    assert "A .txt is cut at lines that say <|endoftext|>" in said
    assert "any other at blank lines, into documents of about 64 kB" in said


def test_an_amount_of_tokens_is_written_as_people_do(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text\n" + "".join(f"a pear and a tree of number {i}\n" for i in range(900)))
    small = json.loads(
        run("prepare", tmp_path / "train.csv", "--tokenizer", "bpe:300", "--max-tokens", "1.5k", "--json")
    )
    assert 1500 <= small["train_tokens"] < 1540
    for bad in ("many", "-5", "0", "5x", "1_000"):
        with pytest.raises(OelmError, match=rf"--max-tokens '{bad}' is not possible; .*e\.g\. 2B \(k, M, B\)"):
            run("prepare", tmp_path / "train.csv", f"--max-tokens={bad}")
    with pytest.raises(OelmError, match="max_tokens 5 is not possible of fables; ask for --megabytes"):
        run("prepare", "fables", "--max-tokens", "5")


def test_names_of_folders_and_classes_are_shown_as_they_are(tmp_path: Path) -> None:
    rows = "".join(f"text number {i}\t{label}\n" for i in range(30) for label in ("\x1b[2Jx", "plain"))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + rows)
    words = ["task", "[red]x", "--data-path", str(tmp_path), "--text-column", "text", "--tokenizer", "bpe:300"]
    made = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "data" / "[red]x")])
    assert made.exit_code == 0, made.exception
    assert "\ufffd[2Jx" in made.output and "\x1b" not in made.output
    listed = CliRunner().invoke(app, ["list", "--data-dir", str(tmp_path / "data")])
    assert "[red]x" in listed.output, listed.exception
