"""Labelled texts: read from files and the hub, checked, tokenised once."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oelm
from oelm.data.labelled import TaskData, prepare_task
from oelm.data.order import GROUPED, GroupedOrder
from oelm.data.tasks import TaskSource, find_task
from oelm.data.textfiles import read_columns
from oelm.data.tokenization import load_tokenizer

ROWS = [("a fine film", 1), ("a dull film", 0), ('he said "no', 0), ("fine , really fine", 1)] * 3


def write_sst2(folder: Path, rows=ROWS, header="sentence\tlabel") -> Path:
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        lines = [header, *(f"{text}\t{label}" for text, label in rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def sst2(folder: Path) -> TaskSource:
    return TaskSource(find_task("sst2"), folder)


def prepared(folder: Path, **settings) -> TaskData:
    return prepare_task(sst2(write_sst2(folder / "files")), "bpe:300", folder / "task", **settings)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_the_same_rows_come_from_every_format(suffix, tmp_path):
    file = tmp_path / f"train{suffix}"
    if suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"text": ["yes, sir", "no"], "mood": ["up", "down"]})
        pyarrow.parquet.write_table(table, file)
    elif suffix == ".jsonl":
        file.write_text('{"text": "yes, sir", "mood": "up"}\n{"text": "no", "mood": "down", "more": 1}\n')
    else:
        file.write_text(
            "text\tmood\nyes, sir\tup\nno\tdown\n" if suffix == ".tsv" else 'text,mood\n"yes, sir",up\nno,down\n'
        )
    assert list(read_columns(file, ("text", "mood"))) == [("yes, sir", "up"), ("no", "down")]


def test_a_compressed_task_is_the_same_task(tmp_path):
    plain = prepared(tmp_path)
    for file in list((tmp_path / "files").iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    packed = prepare_task(sst2(tmp_path / "files"), "bpe:300", tmp_path / "packed")
    assert packed.fingerprint == plain.fingerprint


def test_a_task_of_ones_own_finds_its_classes(tmp_path):
    (tmp_path / "train.csv").write_text("q,a,mood\nx y,z,up\nu v,w,down\n")
    (tmp_path / "dev.csv").write_text("q,a,mood\nx,z,down\n")
    source = TaskSource(find_task("moods", ("q", "a"), "mood"), tmp_path)
    data = prepare_task(source, "bpe:270", tmp_path / "task")
    assert data.classes == ["down", "up"]
    assert data.train.labels.tolist() == [1, 0]
    assert data.validation.labels.tolist() == [0]


def test_tokens_labels_and_segments_round_trip(tmp_path):
    data = prepared(tmp_path)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data.tokenizer_path))
    assert [tokenizer.decode(data.train.row(i).tolist()) for i in range(4)] == [text for text, _ in ROWS[:4]]
    assert data.train.labels.tolist() == [label for _, label in ROWS]
    assert data.train.row(0)[-1] == tokenizer.token_to_id("<|endoftext|>")  # where the last-token pooling looks
    assert data.manifest["splits"]["train"]["per_class"] == [6, 6]


def test_preparing_again_finds_the_same_folder_and_other_settings_are_refused(tmp_path):
    first = prepared(tmp_path)
    written = (first.path / "train.safetensors").stat().st_mtime_ns
    assert prepared(tmp_path).fingerprint == first.fingerprint
    assert (first.path / "train.safetensors").stat().st_mtime_ns == written
    with pytest.raises(oelm.OelmError, match="prepared with other settings"):
        prepared(tmp_path, max_length=8)


def test_an_aborted_preparation_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("oelm.data.labelled.write_json", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_long_texts_are_truncated_and_counted_or_refused(tmp_path):
    data = prepared(tmp_path, max_length=4)
    assert data.longest == 4
    assert data.manifest["splits"]["train"]["truncated"] > 0
    assert data.train.row(3)[-1] == data.train.row(0)[-1]  # the closing token stays
    with pytest.raises(oelm.OelmError, match=r"has more than 4 tokens; raise max_length or truncate"):
        prepare_task(sst2(tmp_path / "files"), "bpe:300", tmp_path / "strict", max_length=4, too_long="refuse")
    with pytest.raises(oelm.OelmError, match="leaves no room"):
        prepare_task(sst2(tmp_path / "files"), "bpe:300", tmp_path / "none", max_length=1)


def test_a_subset_is_a_fixed_choice_of_rows(tmp_path):
    data = prepared(tmp_path, train_rows=5)
    assert (len(data.train), len(data.validation)) == (5, 12)
    with pytest.raises(oelm.OelmError, match="train_rows 99 is not possible; the task has 12"):
        prepare_task(sst2(tmp_path / "files"), "bpe:300", tmp_path / "more", train_rows=99)


def test_a_share_of_the_training_rows_is_held_out_and_never_trained_on(tmp_path):
    rows = [(f"film number {i}", i % 2) for i in range(40)]
    (write_sst2(tmp_path / "files", rows) / "validation.tsv").unlink()
    source = TaskSource(find_task("sst2"), tmp_path / "files", held_out=0.25)
    train, held_out = ([row.texts[0] for row in source.rows(s, source.classes())] for s in ("train", "validation"))
    assert (len(train), len(held_out)) == (30, 10)
    assert sorted(train + held_out) == sorted(text for text, _ in rows)
    assert held_out == [row.texts[0] for row in source.rows("validation", source.classes())]
    data = prepare_task(source, "bpe:300", tmp_path / "task")
    assert (len(data.train), len(data.validation)) == (30, 10)
    with pytest.raises(oelm.OelmError, match="prepared with other settings"):
        prepare_task(TaskSource(find_task("sst2"), tmp_path / "files", held_out=0.5), "bpe:300", tmp_path / "task")
    with pytest.raises(oelm.OelmError, match=r"0\.001 of 40 training rows cannot be held out"):
        list(TaskSource(find_task("sst2"), tmp_path / "files", held_out=0.001).rows("train", ("negative", "positive")))


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([], "sentence\tlabel", r"train.tsv has no rows"),
        ([("fine", 2)], "sentence\tlabel", r"train.tsv, row 1: label '2' is not one of negative, positive"),
        ([("fine", "good")], "sentence\tlabel", r"row 1: label 'good' is not one of"),
        ([("fine", 1)], "text\tlabel", r"train.tsv has no column 'sentence' \(it has: text, label\).*--text-column"),
        ([("fine", 1)], "sentence\tmood", r"has no column 'label'"),
        ([("fine", "")], "sentence\tlabel", r"row 1: a value of sentence, label is missing"),
        ([("a\ttab", 1)], "sentence\tlabel", r"row 1 has more fields than there are columns; is a tab of the text"),
        ([("fine\t1", 1)], "sentence\tlabel\tlabel", r"more than one column 'label'"),
    ],
)
def test_bad_files_are_refused_in_one_line(rows, header, message, tmp_path):
    with pytest.raises(oelm.OelmError, match=message):
        prepare_task(sst2(write_sst2(tmp_path / "files", rows, header)), "bpe:300", tmp_path / "task")


def test_missing_splits_tasks_and_columns_are_named(tmp_path):
    write_sst2(tmp_path / "files")
    (tmp_path / "files" / "validation.tsv").unlink()
    with pytest.raises(oelm.OelmError, match=r"no validation split; its file should be called validation, with \.tsv"):
        prepare_task(sst2(tmp_path / "files"), "bpe:300", tmp_path / "task")
    with pytest.raises(oelm.OelmError, match="'sst3' is unknown; did you mean 'sst2'"):
        find_task("sst3")
    with pytest.raises(oelm.OelmError, match="one or two are possible"):
        find_task("mine", ("a", "b", "c"))
    with pytest.raises(oelm.OelmError, match="one or two are possible"):
        find_task("sst2", ("a", "b", "c"))
    with pytest.raises(oelm.OelmError, match="is on no hub; say where its files are"):
        TaskSource(find_task("mine", ("a",))).settings()


def test_another_language_is_never_read_in_place_of_the_one_asked_for(tmp_path):
    with pytest.raises(oelm.OelmError, match=r"task 'sst2' has no languages .*given: zh"):
        TaskSource(find_task("sst2"), tmp_path, language="zh")
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text("premise\thypothesis\tlabel\na\tb\t0\n")
    with pytest.raises(oelm.OelmError, match=r"has no train split; its file should be called train\.zh, with \.tsv"):
        TaskSource(find_task("xnli"), tmp_path, language="zh").settings()


def test_numbers_as_classes_are_in_the_order_of_numbers_and_a_number_is_no_text(tmp_path):
    rows = [json.dumps({"t": "x", "label": label}) for label in range(12)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    source = TaskSource(find_task("mine", ("t",)), tmp_path)
    assert source.classes() == tuple(map(str, range(12)))
    (tmp_path / "train.jsonl").write_text(json.dumps({"t": 5, "label": 1}))
    with pytest.raises(oelm.OelmError, match=r"train.jsonl, row 1: 5 is no text"):
        source.classes()


def labels_of(folder: Path, train: list, validation: list, classes: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """The class names of both splits, as they come out of JSON lines with these labels."""
    for split, values in (("train", train), ("validation", validation)):
        lines = [json.dumps({"t": "x", "label": value}) + "\n\n" for value in values]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8-sig")
    source = TaskSource(find_task("mine", ("t",), classes=classes), folder)
    names = source.classes()
    return {split: [names[row.label] for row in source.rows(split, names)] for split in ("train", "validation")}


def test_a_label_means_the_class_of_that_name_and_nothing_else(tmp_path):
    assert labels_of(tmp_path, [1, "2", 3.0], [3])["validation"] == ["3"]
    with pytest.raises(oelm.OelmError, match=r"validation.jsonl, row 1: label '0' is not one of 1, 2, 3"):
        labels_of(tmp_path, [1, 2, 3], [0])
    assert labels_of(tmp_path, ["up", "down"], [0, "up"], ("down", "up"))["validation"] == ["down", "up"]
    for nothing in (None, "", float("nan")):
        with pytest.raises(oelm.OelmError, match="row 2: a value of t, label is missing"):
            labels_of(tmp_path, ["up", nothing], ["up"])
    with pytest.raises(oelm.OelmError, match="classes up, up: at least two, each named once"):
        labels_of(tmp_path, ["up"], ["up"], ("up", "up"))


def test_a_byte_order_mark_is_not_part_of_a_column_and_half_a_character_is_refused(tmp_path):
    file = tmp_path / "train.csv"
    file.write_text("text,label\nyes,1\n", encoding="utf-8-sig")
    assert list(read_columns(file, ("text", "label"))) == [("yes", "1")]
    (tmp_path / "train.csv").unlink()
    (tmp_path / "train.jsonl").write_text('{"text": "\\ud83d", "label": 1}\n')
    with pytest.raises(oelm.OelmError, match=r"train.jsonl, row 1: the text is no valid Unicode"):
        TaskSource(find_task("mine", ("text",)), tmp_path).classes()


def test_other_special_tokens_are_another_preparation(tmp_path):
    from tokenizers.processors import TemplateProcessing

    data = prepared(tmp_path)
    tokenizer = load_tokenizer(data.tokenizer_path)
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(oelm.OelmError, match="prepared with other settings"):
        prepare_task(sst2(tmp_path / "files"), tmp_path / "tokenizer.json", data.path)


def test_a_model_folder_without_a_vocabulary_has_no_tokenizer(tmp_path):
    import transformers as hf

    hf.BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(oelm.OelmError, match="comes without a vocabulary"):
        prepare_task(sst2(write_sst2(tmp_path / "files")), tmp_path / "bert", tmp_path / "task")


def test_one_class_is_no_task(tmp_path):
    (tmp_path / "train.csv").write_text("t,label\nx,up\ny,up\n")
    (tmp_path / "validation.csv").write_text("t,label\nx,up\n")
    with pytest.raises(oelm.OelmError, match="has 1 different labels"):
        prepare_task(TaskSource(find_task("mine", ("t",)), tmp_path), "bpe:300", tmp_path / "task")


def test_a_damaged_folder_is_noticed(tmp_path):
    data = prepared(tmp_path)
    file = data.path / "train.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(oelm.OelmError, match="does not match its sha256"):
        TaskData.open(data.path, verify=True)
    file.write_bytes(bytes(content[:50]))
    with pytest.raises(oelm.OelmError, match="is damaged"):
        TaskData.open(data.path)
    (data.path / "task.json").write_text("{}")
    with pytest.raises(oelm.OelmError, match=r"task.json is damaged"):
        TaskData.open(data.path)


class FakeHub:
    """`datasets` and the hub, as far as a task asks them."""

    def __init__(self, monkeypatch):
        self.asked = []
        monkeypatch.setattr("datasets.load_dataset", self.load)
        monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", self.info)

    def info(self, name, *, revision, timeout):
        assert revision == "main", "a commit needs no asking"
        return SimpleNamespace(sha="c0ffee")

    def load(self, path, name, *, split, revision):
        import datasets

        self.asked.append((path, name, split, revision))
        return datasets.Dataset.from_dict({"premise": ["p", "q"], "hypothesis": ["h", "i"], "label": [0, 2]})


@pytest.mark.parametrize(
    ("task", "options", "config", "split"),
    [
        ("mnli", {}, "mnli", "validation_matched"),
        ("mnli", {"validation": "validation_mismatched"}, "mnli", "validation_mismatched"),
        ("xnli", {"language": "zh", "validation": "test"}, "zh", "test"),
        ("xnli", {"revision": "main"}, "en", "validation"),
    ],
)
def test_the_hub_is_asked_for_the_right_split_at_one_commit(task, options, config, split, tmp_path, monkeypatch):
    hub = FakeHub(monkeypatch)
    data = prepare_task(TaskSource(find_task(task), **options), "bpe:270", tmp_path / "task")
    name, commit = find_task(task).hub, "c0ffee" if "revision" in options else find_task(task).revision
    assert set(hub.asked) == {(name, config, "train", commit), (name, config, split, commit)}
    assert data.validation.labels.tolist() == [0, 2]
    assert data.manifest["source"]["revision"] == commit


def test_numbers_mean_the_tasks_own_classes_whatever_order_is_asked_for(tmp_path):
    for split in ("train", "validation"):
        rows = "entails\tx\t0\nneutral\tx\t1\ncontra\tx\t2\n"
        (tmp_path / f"{split}.tsv").write_text(f"premise\thypothesis\tlabel\n{rows}")
    asked = ("contradiction", "neutral", "entailment")
    source = TaskSource(find_task("mnli", classes=asked), tmp_path)
    named = {row.texts[0]: asked[row.label] for row in source.rows("train", source.classes())}
    assert named == {"entails": "entailment", "neutral": "neutral", "contra": "contradiction"}


def test_numbers_mean_nothing_where_classes_were_found_by_name(tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tup\nb\tdown\n")
    (tmp_path / "validation.tsv").write_text("text\tlabel\na\t0\n")
    source = TaskSource(find_task("mine", texts=["text"]), tmp_path)
    with pytest.raises(oelm.OelmError, match="label '0' is not one of down, up"):
        list(source.rows("validation", source.classes()))


def test_an_unreachable_hub_says_what_to_do_instead(tmp_path):
    with pytest.raises(oelm.OelmError, match=r"nyu-mll/glue \(sst2\) could not be had .*--data-path"):
        prepare_task(TaskSource(find_task("sst2")), "bpe:300", tmp_path / "task")


# The order of batches


@pytest.mark.parametrize(("rows", "batch"), [(5, 2), (200, 16), (2 * 8 * GROUPED + 3, 8), (8 * GROUPED, 8)])
def test_every_sample_comes_once_per_epoch_and_epochs_differ(rows, batch):
    lengths = np.random.default_rng(0).integers(3, 60, rows)
    order = GroupedOrder(1, batch, lengths)
    epochs = [
        np.concatenate([order.batch(epoch * order.batches_per_epoch + i) for i in range(order.batches_per_epoch)])
        for epoch in range(2)
    ]
    assert all(sorted(epoch.tolist()) == list(range(rows)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()


def test_a_batch_depends_on_seed_and_step_alone():
    lengths = np.random.default_rng(0).integers(3, 60, 3000)
    forward, backward = GroupedOrder(3, 8, lengths), GroupedOrder(3, 8, lengths)
    steps = [0, 70, 374, 375, 500, 800]
    there = {step: forward.batch(step).tolist() for step in steps}
    assert {step: backward.batch(step).tolist() for step in reversed(steps)} == there
    assert GroupedOrder(4, 8, lengths).batch(0).tolist() != there[0]


# Real data


@pytest.mark.shared_data
def test_at_most_five_percent_of_real_sst2_at_batch_16_is_padding(shared_data, tmp_path, minilm):
    data = prepare_task(TaskSource(find_task("sst2"), shared_data / "sst2"), minilm, tmp_path / "task")
    assert (len(data.train), len(data.validation)) == (67_349, 872)
    order = GroupedOrder(0, 16, data.train.lengths)
    batches = [data.train.lengths[order.batch(step)] for step in range(order.batches_per_epoch)]
    processed = sum(int(lengths.max()) * len(lengths) for lengths in batches)
    assert 1 - sum(int(lengths.sum()) for lengths in batches) / processed < 0.05


@pytest.mark.shared_data
def test_real_xnli_in_two_languages(shared_data, tmp_path, minilm):
    english = TaskSource(find_task("xnli"), shared_data / "xnli", validation="test")
    data = prepare_task(english, minilm, tmp_path / "task", train_rows=300)
    assert data.manifest["splits"]["validation"]["per_class"] == [1670, 1669, 1670]
    chinese = TaskSource(find_task("xnli"), shared_data / "xnli", language="zh")
    assert sum(1 for _ in chinese.rows("validation", data.classes)) == 2489
    first, length = int(data.validation.first[0]), int(data.validation.lengths[0])
    assert 0 < first < length  # the second text is a segment of its own
    assert json.loads((data.path / "task.json").read_text())["settings"]["train_rows"] == 300


@pytest.mark.shared_data
def test_our_tokens_are_what_transformers_would_feed_the_model(shared_data, tmp_path, minilm):
    from transformers import AutoTokenizer

    data = prepare_task(TaskSource(find_task("mnli"), shared_data / "mnli"), minilm, tmp_path / "task", train_rows=50)
    rows = list(read_columns(shared_data / "mnli" / "validation.tsv", ("premise", "hypothesis")))
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    for number in (0, 17, 3000):
        expected = tokenizer(*rows[number], truncation=True, max_length=128)
        assert data.validation.row(number).tolist() == expected["input_ids"]
        assert int(data.validation.first[number]) == expected["token_type_ids"].count(0)
    assert torch.tensor(data.validation.row(0).astype(np.int64)).max() < data.vocab_size


@pytest.mark.parametrize("label", ["true", "[1]", "0.5", "{}"])
def test_truth_values_lists_and_scores_are_no_classes(tmp_path, label):
    for split in ("train", "validation"):
        rows = f'{{"text": "a", "label": {label}}}\n{{"text": "b", "label": 1}}\n'
        (tmp_path / f"{split}.jsonl").write_text(rows)
    source = TaskSource(find_task("mine", ("text",)), tmp_path)
    with pytest.raises(oelm.OelmError, match=r"row 1: label .* is no class; use names or whole numbers"):
        source.classes()


def test_scores_in_a_table_are_no_classes_and_words_are(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,0.5\nb,1.5\n")
    with pytest.raises(oelm.OelmError, match=r"label '0\.5' is no class"):
        TaskSource(find_task("mine", ("text",)), tmp_path).classes()
    (tmp_path / "train.csv").write_text("text,label\na,true\nb,false\n")
    assert TaskSource(find_task("mine", ("text",)), tmp_path).classes() == ("false", "true")


def test_every_format_that_works_is_named_when_files_are_missing(tmp_path):
    source = TaskSource(find_task("mine", ("text",)), tmp_path)
    with pytest.raises(oelm.OelmError, match=r"should be called train, with \.tsv, \.csv, \.jsonl or \.parquet"):
        source.classes()
