"""One source, many forms: terminal, CSV, markdown and JSON tell the same numbers."""

import csv
import io
import json
import math
import re

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


def test_page_one_has_seven_columns(suite):
    assert summary_table(suite).header() == [
        "method", "perplexity ± sd (seeds)", "gap to plain baseline", "gap to equally equipped baseline",
        "at most 5\u00a0% worse", "step time", "FLOPs ÷ baseline's",
    ]  # fmt: skip


def test_summary_rows_say_what_the_runs_say(tmp_path):
    for seed, (base, frozen) in enumerate([(4.0, 4.4), (4.2, 4.6)]):
        make_run(tmp_path, "baseline", seed, perplexity=base)
        make_run(tmp_path, "oelm_freeze", seed, perplexity=frozen)
    loaded = load_runs(tmp_path)
    table, memory = summary_table(loaded), next(t for t in all_tables(loaded) if t.name == "memory")
    assert cells(table, 0)["perplexity ± sd (seeds)"] == "4.100 ± 0.141 (2)"
    assert cells(memory, 0)["frozen weights"] == "nothing frozen"
    row = cells(table, 1)
    assert row["gap to plain baseline"].startswith("+9.8 % [+")
    assert row["gap to equally equipped baseline"] == "the plain one"
    assert cells(memory, 1)["frozen"] == f"{QK:,}"
    assert cells(memory, 1)["frozen weights"] == "frozen: verified"
    assert row["step time"] == "–"  # the runs were timed apart: nobody should decide by that
    times = next(t for t in all_tables(loaded) if t.name == "time")
    assert cells(times, 1)["step time"] == "0.95 (not interleaved)"
    record = table.records[1]
    assert record.plain.gap.value == pytest.approx(100 * (math.sqrt(1.1 * 4.6 / 4.2) - 1))
    assert record.bits_per_byte == pytest.approx(sum(final_values(p)["bits_per_byte"] for p in (4.4, 4.6)) / 2)


def test_without_a_baseline_the_gap_is_a_dash(tmp_path):
    make_run(tmp_path, "oelm_freeze")
    assert list(cells(summary_table(load_runs(tmp_path)), 0).values())[2:6] == ["–"] * 4


def test_runs_that_were_not_verified_do_not_look_verified(tmp_path):
    folder = make_run(tmp_path, "oelm_freeze")
    result = json.loads(folder.result_file.read_text())
    folder.result_file.write_text(json.dumps({**result, "frozen_verified": False}))
    memory = next(table for table in all_tables(load_runs(tmp_path)) if table.name == "memory")
    assert cells(memory, 0)["frozen weights"] == "frozen: not verified"


def test_a_measured_step_time_that_covers_one_is_no_difference(suite):
    table = summary_table(suite)
    times = {row[0]: cells(table, i)["step time"] for i, row in enumerate(table.rows())}
    assert times["baseline"] == "1.000"
    assert times["oelm_freeze"] == "0.957 [0.944, 0.969]"
    assert times["oelm_random_matched"] == "0.985 [0.962, 1.006] no sure difference"


def test_classification_runs_are_judged_by_accuracy_in_points(tmp_path):
    for seed in range(2):
        make_run(tmp_path, "baseline", seed, final={"accuracy": 0.93 + seed / 500, "f1": 0.9})
        make_run(tmp_path, "oelm_freeze", seed, final={"accuracy": 0.91 + seed / 510, "f1": 0.9})
    row = cells(summary_table(load_runs(tmp_path)), 1)
    assert row["accuracy ± sd (seeds)"] == "91.10 ± 0.14 % (2)"
    assert row["gap to plain baseline"].startswith("−2.0 points")
    assert row["at most 5\u00a0% worse"] == "met"


def test_an_undecided_verdict_says_what_it_needs(tmp_path):
    make_run(tmp_path, "baseline", perplexity=10.0)
    make_run(tmp_path, "oelm_freeze", perplexity=10.4)
    assert cells(summary_table(load_runs(tmp_path)), 1)["at most 5\u00a0% worse"] == "undecided (one seed)"
    make_run(tmp_path, "baseline", 1, perplexity=10.1)
    make_run(tmp_path, "oelm_freeze", 1, perplexity=10.3)
    said = cells(summary_table(load_runs(tmp_path)), 1)["at most 5\u00a0% worse"]
    assert re.fullmatch(r"undecided \(seeds missing: about \d+\)", said)


def test_csv_has_every_field_as_a_number_and_no_formula(tmp_path):
    make_run(tmp_path, {"name": "=HYPERLINK(1)"}, perplexity=4.0)
    make_run(tmp_path, {"name": "plain"}, perplexity=5.0)
    (odd, plain) = csv.DictReader(io.StringIO(summary_table(load_runs(tmp_path)).csv()))
    assert (odd["label"], plain["label"]) == ("'=HYPERLINK(1)", "plain")
    assert (odd["score"], odd["costs.parameters"], odd["plain"]) == ("4.0", str(TOTAL), "")


def test_facts_of_every_table_are_plain_json(suite):
    for table in all_tables(suite):
        assert json.loads(json.dumps(table.facts(), allow_nan=False)) == table.facts()


def test_checkpoint_bytes_are_weights_and_two_moments_of_what_trains(suite):
    memory = next(table for table in all_tables(suite) if table.name == "memory")
    assert [r.costs.checkpoint_bytes for r in memory.records[:2]] == [12 * TOTAL, 4 * TOTAL + 8 * (TOTAL - QK)]


def test_arms_are_shown_at_steps_all_runs_share(suite):
    steps = next(table for table in all_tables(suite) if table.name == "steps")
    assert steps.header() == ["method", "step 100", "step 300", "step 500", "step 600", "step 800", "step 1,000"]
    curves = [run.curve("perplexity")[1000] for run in suite.arms[0].runs]
    assert steps.records[0]["step_1000"] == pytest.approx(sum(curves) / 2)


def test_markdown_is_a_table_that_a_name_cannot_break(tmp_path):
    make_run(tmp_path, {"name": "odd|name <img> [x](y)"})
    lines = summary_table(load_runs(tmp_path)).markdown().splitlines()
    assert len(lines) == 3
    assert r"odd\|name &lt;img&gt; \[x\](y)" in lines[2]


def test_names_are_cleaned_of_terminal_escapes(tmp_path):
    make_run(tmp_path, name="odd\x1b[31m", dataset="da\x9bta")
    make_run(tmp_path, name="even")
    loaded = load_runs(tmp_path)
    shown = "".join(printed(table, 120) for table in all_tables(loaded))
    assert "\x1b" not in shown and "\x9b" not in shown and "odd\ufffd[31m" in shown and "da\ufffdta" in shown


@pytest.mark.parametrize("width", [200, 120, 80, 60])
def test_terminal_table_fits_and_loses_nothing(suite, width):
    text = printed(summary_table(suite), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("oelm_random_matched", "perplexity", "[+", "plain one", "0.957", "difference"):
        assert word in text


def test_several_comparisons_stand_in_one_table_under_their_names(tmp_path):
    make_run(tmp_path / "a", "baseline")
    make_run(tmp_path / "b", "baseline", dataset="stories", final={"accuracy": 0.9})
    table = summary_table(load_runs(tmp_path))
    assert table.header()[1] == "result ± sd (seeds)"
    assert [heading for heading, _ in table.sections()] == ["fables, demo", "stories, demo"]
    assert "| **stories, demo** |" in table.markdown()
    assert "stories, demo" in printed(table, 120)


def test_gaps_name_the_equal_baseline_and_stand_best_first(tmp_path):
    scores = {"baseline": 10.0, "baseline+rank=8": 9.0, "oelm_freeze": 11.0, "oelm_freeze+rank=8": 9.09}
    for seed, wobble in enumerate((1.0, 1.01, 0.99)):
        for name, score in scores.items():
            make_run(tmp_path, name, seed, perplexity=score * wobble)
    gaps = next(table for table in all_tables(load_runs(tmp_path)) if table.name == "gaps")
    rows = [cells(gaps, i) for i in range(3)]
    assert [row["method"] for row in rows] == ["baseline+rank=8", "oelm_freeze+rank=8", "oelm_freeze"]
    assert [row["gap to plain baseline"].split(" [")[0] for row in rows] == ["−10.0 %", "−9.1 %", "+10.0 %"]
    against = rows[1]["gap to equally equipped baseline"]
    assert against.startswith("+1.0 % [") and against.endswith("to baseline+rank=8")
    assert [row["at most 1\u00a0% worse"] for row in rows] == ["–", rows[1]["at most 1\u00a0% worse"], "missed"]
    assert rows[2]["correlation of seeds"] == "+1.00"
