"""One source, many forms: terminal, CSV, markdown and JSON tell the same numbers."""

import csv
import io
import json
import math

import pytest
from rich.console import Console

from factory import QK, TOTAL, final_values, make_run, make_suite
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.tables import all_tables, summary_table


@pytest.fixture
def suite(tmp_path):
    return load_runs(make_suite(tmp_path, seeds=(0, 1)))


def cells(table, row):
    return dict(zip(table.header(), table.rows()[row], strict=True))


def printed(table, width):
    console = Console(width=width, file=io.StringIO())
    for part in table.rich(width):
        console.print(part)
    return console.file.getvalue()


def test_summary_has_the_promised_columns(suite):
    assert summary_table(suite).header() == [
        "method", "seeds", "perplexity", "gap to baseline", "goal ≤5\u00a0%", "bits per byte",
        "parameters", "frozen", "trainable", "step time", "audit",
    ]  # fmt: skip


def test_summary_rows_say_what_the_runs_say(tmp_path):
    for seed, (base, frozen) in enumerate([(4.0, 4.4), (4.2, 4.6)]):
        make_run(tmp_path, "baseline", seed, perplexity=base)
        make_run(tmp_path, "oelm_freeze", seed, perplexity=frozen)
    table = summary_table(load_runs(tmp_path))
    assert cells(table, 0)["perplexity"] == "4.100 ± 0.141"
    assert cells(table, 0)["audit"] == "nothing frozen"
    row = cells(table, 1)
    assert row["gap to baseline"].startswith("+9.8 % [+")
    assert (row["frozen"], row["trainable"]) == (f"{QK:,}", f"{TOTAL - QK:,}")
    assert row["audit"] == "frozen: verified"
    assert row["step time"] == "0.95 (not interleaved)"
    record = table.records[1]
    assert record["gap"] == pytest.approx(100 * (math.sqrt(1.1 * 4.6 / 4.2) - 1))
    expected = sum(final_values(p)["bits_per_byte"] for p in (4.4, 4.6)) / 2
    assert record["bits_per_byte"] == pytest.approx(expected)


def test_a_clear_loss_misses_the_goal_and_a_tie_meets_it(tmp_path):
    for seed in range(3):
        make_run(tmp_path, "baseline", seed, perplexity=4.0 + seed / 100)
        make_run(tmp_path, "oelm_random", seed, perplexity=4.8 + seed / 90)
        make_run(tmp_path, "orthogonal_trained", seed, perplexity=4.01 + seed / 110)
    goals = {record["method"]: record["goal"] for record in summary_table(load_runs(tmp_path)).records}
    assert goals == {"baseline": None, "oelm_random": "missed", "orthogonal_trained": "met"}


def test_without_a_baseline_the_gap_is_a_dash(tmp_path):
    make_run(tmp_path, "oelm_freeze")
    row = cells(summary_table(load_runs(tmp_path)), 0)
    assert (row["gap to baseline"], row["goal ≤5\u00a0%"], row["step time"]) == ("–", "–", "–")


def test_runs_that_were_not_verified_do_not_look_verified(tmp_path):
    folder = make_run(tmp_path, "oelm_freeze")
    result = json.loads(folder.result_file.read_text())
    folder.result_file.write_text(json.dumps({**result, "frozen_verified": False}))
    assert cells(summary_table(load_runs(tmp_path)), 0)["audit"] == "frozen: not verified"


def test_a_measured_step_time_that_covers_one_is_no_difference(suite):
    table = summary_table(suite)
    times = {row[0]: cells(table, i)["step time"] for i, row in enumerate(table.rows())}
    assert times["baseline"] == "1.000"
    assert times["oelm_freeze"] == "0.957 [0.944, 0.969]"
    assert times["oelm_random_matched"] == "0.985 [0.962, 1.006] no difference"


def test_classification_runs_are_judged_by_accuracy_in_points(tmp_path):
    for seed in range(2):
        make_run(tmp_path, "baseline", seed, final={"accuracy": 0.93 + seed / 500, "f1": 0.9})
        make_run(tmp_path, "oelm_freeze", seed, final={"accuracy": 0.91 + seed / 510, "f1": 0.9})
    table = summary_table(load_runs(tmp_path))
    row = cells(table, 1)
    assert row["accuracy"] == "91.10 ± 0.14 %"
    assert row["gap to baseline"].startswith("−2.0 points")
    assert row["goal ≤5\u00a0%"] == "met"


def test_csv_of_every_table_round_trips(suite):
    for table in all_tables(suite):
        read = list(csv.DictReader(io.StringIO(table.csv())))
        assert len(read) == len(table.records)
        for row, record in zip(read, table.records, strict=True):
            assert row == {key: "" if value is None else str(value) for key, value in record.items()}


def test_records_are_plain_json(suite):
    for table in all_tables(suite):
        assert json.loads(json.dumps(table.records, allow_nan=False)) == table.records


def test_checkpoint_bytes_are_weights_and_two_moments_of_what_trains(suite):
    memory = next(table for table in all_tables(suite) if table.name == "memory")
    assert [r["checkpoint_bytes"] for r in memory.records[:2]] == [12 * TOTAL, 4 * TOTAL + 8 * (TOTAL - QK)]


def test_arms_are_shown_at_steps_all_runs_share(suite):
    steps = next(table for table in all_tables(suite) if table.name == "steps")
    assert steps.header() == ["method", "step 100", "step 300", "step 500", "step 600", "step 800", "step 1,000"]
    curves = [run.curve("perplexity")[1000] for run in suite.arms[0].runs]
    assert steps.records[0]["step_1000"] == pytest.approx(sum(curves) / 2)


def test_markdown_is_a_table_that_a_pipe_cannot_break(tmp_path):
    make_run(tmp_path, {"name": "odd|name"})
    lines = summary_table(load_runs(tmp_path)).markdown().splitlines()
    assert len(lines) == 3
    assert r"odd\|name" in lines[2]


@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_terminal_table_fits_and_loses_nothing(suite, width):
    text = printed(summary_table(suite), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("oelm_random_matched", "perplexity", "[+", "131,072", "758,928", "verified", "0.957", "difference"):
        assert word in text


def test_several_datasets_stand_in_one_table_by_name(tmp_path):
    make_run(tmp_path / "a", "baseline")
    make_run(tmp_path / "b", "baseline", dataset="stories", final={"accuracy": 0.9})
    table = summary_table(load_runs(tmp_path))
    assert table.header()[:5] == ["method", "dataset", "metric", "seeds", "result"]
    assert [row[1] for row in table.rows()] == ["fables", "stories"]


def test_gaps_name_the_equal_baseline_and_stand_best_first(tmp_path):
    scores = {"baseline": 10.0, "baseline+rank=8": 9.0, "oelm_freeze": 11.0, "oelm_freeze+rank=8": 9.09}
    for seed, wobble in enumerate((1.0, 1.01, 0.99)):
        for name, score in scores.items():
            make_run(tmp_path, name, seed, perplexity=score * wobble)
    gaps = next(table for table in all_tables(load_runs(tmp_path)) if table.name == "gaps")
    rows = [cells(gaps, i) for i in range(3)]
    assert [row["method"] for row in rows] == ["baseline+rank=8", "oelm_freeze+rank=8", "oelm_freeze"]
    assert [row["against"] for row in rows] == ["baseline", "baseline+rank=8", "baseline"]
    assert [row["gap to baseline"].split(" [")[0] for row in rows] == ["−10.0 %", "+1.0 %", "+10.0 %"]
    assert [row["gap to the plain baseline"].split(" [")[0] for row in rows] == ["−10.0 %", "−9.1 %", "+10.0 %"]
    assert [row["at most 1\u00a0%"] for row in rows][::2] == ["met", "missed"]


def test_without_pieces_gaps_need_no_further_columns(suite):
    gaps = next(table for table in all_tables(suite) if table.name == "gaps")
    assert not {"against", "gap to the plain baseline"} & set(gaps.header())
