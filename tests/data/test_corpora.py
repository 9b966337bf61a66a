"""Where documents come from: formats, splits, names, and what is said about bad files."""

import gzip
import itertools
import json
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from oelm.data.corpora import CORPORA, Corpus, documents, find_source
from oelm.errors import OelmError

STORIES = ["Mia found a pear.\n\nShe ate it.", "Tom, ünder a tree 🌳", "One more.", "And a last one."]


@pytest.fixture
def shared_data() -> Path:
    folder = Path(os.environ.get("OELM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real datasets are not beside this repository (set OELM_SHARED_DATA)")
    return folder


def write(path: Path, texts: list[str]) -> Path:
    """`texts` in the format that the suffixes of `path` name."""
    suffixes = path.suffixes
    if suffixes[0] == ".txt":
        raw = "".join(f"{text}\n<|endoftext|>\n" for text in texts).encode()
    elif suffixes[0] in (".csv", ".tsv"):
        tabs = suffixes[0] == ".tsv"  # which has no quotation marks, so no text of several lines
        rows = [f"{i}\t{text}" if tabs else f'{i},"{text}"' for i, text in enumerate(texts)]
        raw = "\n".join(["id\ttext" if tabs else "id,text", *rows, ""]).encode()
    elif suffixes[0] == ".jsonl":
        raw = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)).encode()
    else:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), sink)
        raw = sink.getvalue().to_pybytes()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(suffixes[-1], bytes)
    path.write_bytes(pack(raw))
    return path


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "csv", "tsv"])
def test_every_format_gives_the_same_documents(tmp_path: Path, kind: str, packing: str) -> None:
    stories = STORIES[1:] if kind == "tsv" else STORIES
    write(tmp_path / f"train.{kind}{packing}", stories)
    write(tmp_path / f"val.{kind}{packing}", stories[:1])
    source = find_source([tmp_path])
    assert list(documents(source, "train")) == stories
    assert list(documents(source, "validation")) == stories[:1]


def test_a_long_document_in_a_table_is_read_whole_and_a_bad_row_is_named(tmp_path: Path) -> None:
    long = "word " * 60_000
    path = write(tmp_path / "train.csv", ["short", long])
    other = write(tmp_path / "v.txt", ["held out"])
    assert list(documents(find_source([path], validation=other), "train")) == ["short", long]
    path.write_text("id,text\n1,yes, sir\n")
    with pytest.raises(OelmError, match=r"train\.csv, row 1 has more fields than there are columns; is a comma"):
        list(documents(find_source([path], validation=other), "train"))


def test_files_compressed_in_several_pieces_are_read_to_the_end(tmp_path: Path) -> None:
    for name, pack in (("a.txt.gz", gzip.compress), ("b.txt.zst", zstandard.compress)):
        (tmp_path / name).write_bytes(pack(b"one\n<|endoftext|>\n") + pack(b"two\n"))
        found = find_source([tmp_path / name], validation=write(tmp_path / "v.jsonl", ["x"]))
        assert list(documents(found, "train")) == ["one", "two"]


@pytest.mark.parametrize("name", ["validation", "val", "valid", "dev"])
def test_a_folder_is_split_by_its_file_names(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train-00001-of-00002.jsonl", STORIES[2:])
    write(tmp_path / "train-00000-of-00002.jsonl", STORIES[:2])
    write(tmp_path / f"{name}.jsonl", ["held out"])
    write(tmp_path / "test.jsonl", ["never read"])
    source = find_source([tmp_path])
    assert list(documents(source, "train")) == STORIES
    assert list(documents(source, "validation")) == ["held out"]


def test_held_out_documents_are_fixed_disjoint_and_complete(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(2000)]
    path = write(tmp_path / "all.jsonl", texts)
    source = find_source([path], validation_fraction=0.1)
    train, held_out = list(documents(source, "train")), list(documents(source, "validation"))
    assert sorted(train + held_out) == sorted(texts)
    assert 150 < len(held_out) < 250
    assert held_out == list(documents(find_source([path], validation_fraction=0.1), "validation"))
    assert held_out != list(documents(find_source([path], validation_fraction=0.1, seed=1), "validation"))


def test_wikitext_lines_become_articles_and_nothing_is_lost(tmp_path: Path) -> None:
    table = " Note : Pos \n = Position ; GP = \n Games played \n"  # looks like a heading, stands inside a table
    raw = f" \n = First = \n \n a \n{table} \n = = Part = = \n \n b \n \n = Second = \n \n c \n"
    (tmp_path / "train.txt").write_text(raw)
    (tmp_path / "other.txt").write_text(raw)
    found = list(documents(find_source([tmp_path / "train.txt"], validation=tmp_path / "other.txt"), "train"))
    assert "".join(found) == raw
    assert [text.strip()[:10] for text in found] == ["= First = ", "= Second ="]


def test_plain_text_of_any_length_is_streamed_in_pieces_cut_at_blank_lines(tmp_path: Path) -> None:
    paragraph = "All happy families are alike.\n" * 50 + "\n"
    (tmp_path / "book.txt").write_text(paragraph * 200)
    (tmp_path / "line.txt").write_text("ö" * 3_000_000)
    found = list(documents(find_source([tmp_path / "book.txt"], validation=tmp_path / "line.txt"), "train"))
    assert len(found) > 3
    assert all(text.endswith("alike.") and len(text) < 70_000 for text in found)
    assert "".join(found).replace("\n", "") == (paragraph * 200).replace("\n", "")
    assert "".join(documents(find_source([tmp_path / "line.txt"], validation=tmp_path / "book.txt"), "train")) == (
        "ö" * 3_000_000
    )


def test_another_field_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"body": "hello"}\n')
    (tmp_path / "val.jsonl").write_text('{"body": "there"}\n')
    assert list(documents(find_source([tmp_path], field="body"), "train")) == ["hello"]
    with pytest.raises(OelmError, match=r"train\.jsonl line 1 has no column 'text' \(it has: body\).*--field"):
        list(documents(find_source([tmp_path]), "train"))


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', r"bad\.jsonl line 2 is not JSON"),
        ("bad.jsonl", b'{"text": 3}\n', r"bad\.jsonl, row 1 has no text in column 'text' but 3"),
        ("bad.jsonl", b'{"text": "\\ud800"}\n', r"bad\.jsonl, row 1 has half a surrogate pair"),
        ("bad.txt", b"good\ngood\nb\xffd\n", r"bad\.txt line 3 is not UTF-8"),
        ("cut.txt", "tree 🌳".encode()[:-1], r"cut\.txt line 1 is not UTF-8"),
        ("empty.txt", b"\n \n", r"empty\.txt holds no text"),
        ("none.txt", b"", r"none\.txt holds no text"),
        ("cut.txt.gz", gzip.compress(os.urandom(9999))[:5000], r"cut\.txt\.gz"),
        ("cut.txt.zst", zstandard.compress(b"word\n" * 99999)[:-9], r"cut\.txt\.zst cannot be read"),
        ("not.txt.gz", b"plain text", r"not\.txt\.gz cannot be read"),
        ("bad.parquet", b"PAR1 and no more", r"bad\.parquet is not a parquet file"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    (tmp_path / "other.txt").write_text("good")
    with pytest.raises(OelmError, match=message):
        list(documents(find_source([tmp_path / name], validation=tmp_path / "other.txt"), "train"))


def test_held_out_text_is_never_trained_on(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "held.txt"):
        (tmp_path / name).write_text(name)
    folder = find_source([tmp_path], validation=tmp_path / "held.txt")
    assert [list(documents(folder, split)) for split in ("train", "validation")] == [["a.txt", "b.txt"], ["held.txt"]]
    for both in ([tmp_path / "a.txt"], [tmp_path / "b.txt", tmp_path / "sub" / ".." / "a.txt"]):
        (tmp_path / "sub").mkdir(exist_ok=True)
        with pytest.raises(OelmError, match=r"a\.txt' is given for training and for validation"):
            find_source(both, validation=tmp_path / "a.txt")
    with pytest.raises(OelmError, match=r"a\.txt' is given twice"):
        find_source([tmp_path, tmp_path / "a.txt"])
    for name in ("train.txt", "val.txt"):
        (tmp_path / "sub" / name).write_text(name)
    named = find_source([tmp_path / "sub" / "train.txt"], validation=tmp_path / "sub")
    assert list(documents(named, "validation")) == ["val.txt"]


def test_a_local_copy_of_rows_that_are_lines_becomes_articles_again(tmp_path: Path) -> None:
    rows = ["", " = A = \n", "", " text \n", "", " = B = \n", "", " more \n"]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    found = find_source([tmp_path], name="wikitext2")
    assert list(documents(found, "train")) == [" \n = A = \n \n text \n \n", " = B = \n \n more \n"]
    assert found.settings()["rows_are_lines"] is True
    assert "rows_are_lines" not in find_source([tmp_path]).settings()


def test_files_in_place_of_a_corpus_have_its_field(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(CORPORA, "mine", Corpus("mine", hub="me/mine", field="content"))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"content": split}) + "\n")
    assert list(documents(find_source([tmp_path], name="mine"), "train")) == ["train"]


def test_an_article_may_go_on_in_the_next_file_and_rows_that_are_documents_stay_apart(tmp_path: Path) -> None:
    def write_rows(name: str, rows: list[str]) -> None:
        (tmp_path / name).write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))

    write_rows("train-00000.jsonl", ["", " = A = \n", "", " text \n"])
    write_rows("train-00001.jsonl", [" goes on \n", "", " = B = \n", "", " more \n"])
    write_rows("validation.jsonl", [" = C = \n \n whole \n", "", "plain", " = D = \n \n article \n"])
    found = find_source([tmp_path], name="wikitext103")
    assert list(documents(found, "train")) == [" \n = A = \n \n text \n goes on \n \n", " = B = \n \n more \n"]
    assert list(documents(found, "validation")) == [" = C = \n \n whole \n", "plain", " = D = \n \n article \n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"megabytes": 5.0}, r"an amount of text can be asked for where it is made"),
        ({"revision": "abc"}, r"which is no dataset of the hub nor a folder like one; leave --revision abc out"),
        ({"stream": True}, r"no dataset of the hub nor a folder like one; leave --stream out"),
        ({"validation": "v.txt", "validation_fraction": 0.1}, r"exclude each other"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(OelmError, match=message):
        find_source([tmp_path / "text.txt"], **options)


def test_what_cannot_be_found_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(OelmError, match="did you mean 'tinystories'"):
        find_source(["tinystorys"])
    with pytest.raises(OelmError, match=r"'nowhere/text\.txt' does not exist"):
        find_source(["nowhere/text.txt"])
    with pytest.raises(OelmError, match=r"no training text; expected train\.txt, \.tsv, \.csv, \.jsonl"):
        find_source([tmp_path])
    (tmp_path / "paper.pdf").write_bytes(b"x")
    with pytest.raises(OelmError, match=r"paper\.pdf' has no known format; known: \.txt"):
        find_source([tmp_path / "paper.pdf"])
    with pytest.raises(OelmError, match=r"fraction 0\.9 is out of range"):
        find_source([write(tmp_path / "a.txt", STORIES)], validation_fraction=0.9)


def test_fables_come_in_the_amount_asked_for_with_known_surprisal() -> None:
    source = find_source(["fables"], megabytes=0.02, validation_megabytes=0.01)
    stories = list(source.texts("train"))
    size = sum(len(text.encode()) for text, _ in stories)
    assert 20_000 <= size < 25_000
    assert all(nats is not None and nats > 0 for _, nats in stories)
    assert not {text for text, _ in stories} & set(documents(source, "validation"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The hub, played by datasets of the same shape; the requests made of it."""
    import datasets
    import huggingface_hub

    requests: list[dict] = []

    def load_dataset(path: str, **options: object) -> datasets.Dataset:
        requests.append({"path": path, **options})
        if path == "Salesforce/wikitext":
            rows = ["", " = A = \n", "", " text \n", "", " = B = \n", "", " more \n"]
        else:
            rows = [f"document {number}" for number in range(5000)]
        return datasets.Dataset.from_dict({"text": rows})

    def dataset_info(self: object, repo: str, *, revision: str | None = None, timeout: float | None = None) -> object:
        return SimpleNamespace(sha=f"commit-of-{revision}")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return requests


def test_what_is_cached_of_another_commit_is_not_taken_for_the_one_asked_for(tmp_path: Path, monkeypatch) -> None:
    import datasets

    asked, other = "a" * 40, "1" * 40  # without a network, `datasets` takes what it has
    cached = tmp_path / "0.0.0" / other
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(cached)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **options: datasets.load_from_disk(cached))
    with pytest.raises(OelmError, match=f"is cached at commit {other}, not at {asked}, and the hub cannot be reached"):
        list(documents(find_source(["tinystories"], revision=asked), "train"))
    assert list(documents(find_source(["tinystories"], revision=other), "train")) == ["x"]


def test_hub_datasets_are_read_at_the_commit_that_is_recorded(hub: list[dict]) -> None:
    source = find_source(["tinystories"], revision="abc")
    assert source.provenance()["revision"] == "commit-of-abc"
    assert next(documents(source, "validation")) == "document 0"
    assert hub == [{"path": "roneneldan/TinyStories", "name": None, "split": "validation", "revision": "commit-of-abc"}]


def test_hub_wikitext_rows_become_the_same_articles_as_the_raw_file(hub: list[dict]) -> None:
    assert list(documents(find_source(["wikitext103"]), "train")) == [
        " \n = A = \n \n text \n \n",
        " = B = \n \n more \n",
    ]
    assert hub[0]["name"] == "wikitext-103-raw-v1"


def test_openwebtext_has_validation_documents_carved_from_its_only_split(hub: list[dict]) -> None:
    source = find_source(["openwebtext"])
    train, held_out = list(documents(source, "train")), list(documents(source, "validation"))
    assert 0 < len(held_out) < 10
    assert len(train) + len(held_out) == 5000
    assert {request["split"] for request in hub} == {"train"}


@pytest.mark.parametrize("name", [name for name, corpus in CORPORA.items() if corpus.hub])
def test_hub_datasets_are_pinned_to_a_commit(name: str, hub: list[dict]) -> None:
    pinned = str(CORPORA[name].revision)
    assert re.fullmatch("[0-9a-f]{40}", pinned)
    next(documents(find_source([name]), "train"))
    assert hub[0]["revision"] == pinned  # and nobody was asked, so that a cached copy works offline


@pytest.mark.parametrize("name", [name for name, corpus in CORPORA.items() if corpus.hub])
def test_without_a_network_the_dataset_and_the_way_out_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("network is blocked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(OelmError, match=rf"{CORPORA[name].hub}.*could not be reached.*data prepare PATH --name {name}"):
        next(documents(find_source([name]), "train"))


@pytest.mark.shared_data
def test_real_files_have_the_published_numbers_of_documents(shared_data: Path) -> None:
    counts = {
        name: [sum(1 for _ in documents(find_source([shared_data / name]), split)) for split in ("train", "validation")]
        for name in ("tinystories", "wikitext-2", "openwebtext-sample")
    }
    assert counts == {"tinystories": [7557, 400], "wikitext-2": [600, 60], "openwebtext-sample": [1328, 80]}
    wikitext = "".join(documents(find_source([shared_data / "wikitext-2"]), "validation"))
    assert wikitext == (shared_data / "wikitext-2" / "validation.txt").read_text("utf-8")
    stories = documents(find_source([shared_data / "tinystories"]), "train")
    assert all("<|endoftext|>" not in text for text in itertools.islice(stories, 100))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_pipes_and_devices_are_no_text_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.txt")
    with pytest.raises(OelmError, match=r"train\.txt' is a pipe or a device, not a file"):
        find_source([tmp_path / "train.txt"])
    (tmp_path / "zeros.txt").symlink_to("/dev/zero")
    with pytest.raises(OelmError, match=r"zeros\.txt' is a pipe or a device"):
        find_source([tmp_path / "zeros.txt"])


def test_text_with_lone_carriage_returns_is_cut_like_any_other(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {i}: " + "a pear and a tree. " * 300 for i in range(60)]
    for name, end in (("unix", "\n"), ("old", "\r")):
        (tmp_path / f"{name}.txt").write_bytes((end * 2).join(paragraphs).encode())
    unix, old = (
        list(documents(find_source([tmp_path / f"{name}.txt"], validation_fraction=0.3), "train"))
        for name in ("unix", "old")
    )
    assert len(old) == len(unix) > 3
    assert [text.replace("\r", "\n") for text in old] == unix


def test_of_a_small_text_something_is_held_out(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {i}: " + "a pear and a tree. " * 15 for i in range(100)]  # 30 kB
    (tmp_path / "notes.txt").write_text("\n\n".join(paragraphs))
    found = find_source([tmp_path / "notes.txt"])
    train, validation = (list(documents(found, split)) for split in ("train", "validation"))
    assert len(train) > 10 and validation
    assert sorted("\n\n".join([*train, *validation]).split("\n\n")) == sorted(paragraphs)
