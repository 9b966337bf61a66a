"""Reports show what was measured of runs after training, paired by seed, and what classifiers made of every row."""

import json

import pytest

from factory import make_run
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.page import write_report
from oelm.analysis.report.tables import all_tables


def table(root, name, lang="en"):
    return next((one for one in all_tables(load_runs(root), lang) if one.name == name), None)


def keep(run, name="task-piqa", **facts):
    (run.path / "evaluation").mkdir(exist_ok=True)
    run.record(run.path / "evaluation" / f"{name}.json", facts)


@pytest.fixture
def suite(tmp_path):
    for seed, scores in enumerate([(60.0, 57.0), (62.0, 60.0), (61.0, 57.0)]):
        for method, score in zip(("baseline", "oelm_freeze"), scores, strict=True):
            keep(make_run(tmp_path, method, seed), headlines={"piqa accuracy %": score})
    return tmp_path


def test_arms_are_compared_with_the_baseline_seed_by_seed(suite):
    baseline, frozen = table(suite, "evaluation").facts()
    assert (baseline["mean"], baseline["seeds"], baseline["difference"]) == (61, 3, None)
    assert frozen["difference"] == pytest.approx(-3)  # −3, −2 and −4
    half = 4.302653 / 3**0.5  # Student's t with two degrees of freedom, a standard deviation of 1
    assert (frozen["low"], frozen["high"]) == pytest.approx((-3 - half, -3 + half), abs=1e-4)
    assert table(suite, "evaluation").rows()[1][3] == "−3 [−5.48, −0.516]"


def test_what_stands_beside_has_a_row_without_a_difference_and_missing_seeds_are_left_out(suite):
    for seed in (0, 1):
        figures = {"headlines": {"distinct-2 %": 40.0 + seed}, "beside": {"validation text": {"distinct-2 %": 70.0}}}
        keep(make_run(suite, "oelm_freeze", seed), "generation", **figures)
    rows = [row for row in table(suite, "evaluation").rows() if row[0] == "distinct-2 %"]
    assert rows == [
        ["distinct-2 %", "oelm_freeze", "40.5 ± 0.71 (2)", "–"],
        ["distinct-2 %", "validation text", "70 (2)", "–"],
    ]


def test_what_was_asked_differently_is_not_compared(suite):
    for method, samples in (("baseline", 100), ("oelm_freeze", 20)):
        keep(make_run(suite, method, 0), "generation", samples=samples, tokens=50, headlines={"distinct-2 %": 40.0})
    rows = [row for row in table(suite, "evaluation").rows() if row[0].startswith("distinct-2 %")]
    assert rows == [
        ["distinct-2 % (samples 100)", "baseline", "40 (1)", "–"],
        ["distinct-2 % (samples 20)", "oelm_freeze", "40 (1)", "–"],
    ]


def test_a_damaged_record_is_named_and_costs_nothing_else(suite):
    file = suite / "oelm_freeze-s0" / "evaluation" / "task-piqa.json"
    file.write_text(file.read_text().replace("57", "97"))
    (file.parent / "other.json").write_text('{"headlines": {"a": "much"}}')
    frozen = table(suite, "evaluation").facts()[1]
    assert frozen["seeds"] == 2 and frozen["difference"] == -3
    reasons = {row["path"].rpartition("/")[2]: row["reason"] for row in table(suite, "skipped").facts()}
    assert "was changed" in reasons["task-piqa.json"] and "no number" in reasons["other.json"]


def test_reports_without_such_records_have_no_such_tables(tmp_path):
    make_run(tmp_path, "baseline", 0)
    assert not {"evaluation", "confusion", "mistakes"} & {one.name for one in all_tables(load_runs(tmp_path))}


def test_confusion_and_the_surest_mistakes_of_classifiers(tmp_path):
    rows = [("good", "good", 0.9), ("good", "bad", 0.6), ("bad", "bad", 0.8), ("bad", "good", 0.7), ("bad", "bad", 0.9)]
    for seed in (0, 1):
        final = {"accuracy": 0.6, "f1": 0.6, "classes": ["bad", "good"]}
        run = make_run(tmp_path, "baseline", seed, dataset="sst2", final=final)
        lines = [
            {"index": i, "label": a, "prediction": b, "scores": [sure, 1 - sure], "text": f"<b>row {i}</b>"}
            for i, (a, b, sure) in enumerate(rows)
        ]
        run.predictions_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    confusion, mistakes = table(tmp_path, "confusion"), table(tmp_path, "mistakes")
    assert confusion.header() == ["method", "is", "called bad", "called good"]
    assert confusion.rows() == [["baseline", "bad", "4 (67%)", "2 (33%)"], ["baseline", "good", "2 (50%)", "2 (50%)"]]
    assert [(row[1], row[-1]) for row in mistakes.rows()] == [("<b>row 3</b>", "0.70"), ("<b>row 1</b>", "0.60")]
    for lang in ("en", "zh"):
        page = write_report(tmp_path, tmp_path / "report", lang=lang)[0].read_text()
        assert "&lt;b&gt;row 3&lt;/b&gt;" in page and "<b>row 3" not in page
    run.predictions_file.write_text('{"label": "bad", "prediction": "good", "scores": 3}\n')
    assert "predictions.jsonl" in table(tmp_path, "skipped").facts()[0]["path"]
