"""The table and the figure of `oelm bench`, from its JSON alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oelm.analysis.figures.commands import draw
from oelm.bench.report import footnotes, markdown, shares, times, write_bench


def arm(verdict, **changes):
    shares = {"data": 0.01, "forward": 0.33, "backward": 0.56, "optimizer": 0.09, "other": 0.01}
    facts = {
        "ratio": 0.98, "low": 0.97, "high": 0.99, "predicted": 0.977, "verdict": verdict, "median_seconds": 0.2,
        "quartiles_seconds": [0.19, 0.21], "limit_seconds": 0.16, "times_limit": 1.25, "shares": shares,
    }  # fmt: skip
    return {**facts, **changes}


RESULT = {
    "shape": {"size": "tiny", "batch": 4, "length": 512, "vocab": 4096, "dropout": 0.0},
    "protocol": {"rounds": 12, "device": "cpu", "threads": 2, "precision": "fp32", "compiled": False},
    "environment": {"processor": "a processor", "packages": {"torch": "2"}, "git_commit": None},
    "gemm": {"peak_flops_per_second": 1e11, "shapes": [{"shape": [512, 512, 512], "flops_per_second": 1e11}]},
    "reference": "baseline",
    "arms": {
        "baseline": arm("reference", ratio=1.0, low=1.0, high=1.0, predicted=1.0),
        "oelm_freeze": arm("faster"),
        "gpt2": arm("no difference", shares=dict.fromkeys(("data", "forward", "backward", "optimizer", "other"))),
    },
}


def test_rows_say_ratio_interval_prediction_verdict_and_limit():
    assert times(RESULT)[0] == ["baseline", "200.0 ms", "1", "1", "reference", "1.25"]
    assert times(RESULT)[1] == ["oelm_freeze", "200.0 ms", "0.980 [0.970, 0.990]", "0.977", "faster", "1.25"]
    assert shares(RESULT)[1] == ["oelm_freeze", "1.0", "33.0", "56.0", "9.0", "1.0"]
    assert shares(RESULT)[2][1:] == ["–"] * 5
    assert "100.0 GFLOP/s (512 × 512 × 512)" in footnotes(RESULT)[1]


def test_a_record_from_before_the_sign_test_is_judged_by_its_rounds():
    rounds = [1.0] * 12
    seven_of_twelve = [0.9] * 7 + [1.001] * 5  # the median is below 1, but the rounds do not agree
    old = {**RESULT, "arms": {name: {**arm, "seconds": rounds} for name, arm in RESULT["arms"].items()}}
    old["arms"]["oelm_freeze"] = {**old["arms"]["oelm_freeze"], "seconds": seven_of_twelve}
    assert [row[4] for row in times(old)] == ["reference", "no difference", "no difference"]
    old["arms"]["oelm_freeze"]["seconds"] = [0.9] * 12
    assert times(old)[1][4] == "faster"


def test_measured_memory_stands_beside_the_predicted(tmp_path):
    held = {"baseline": (2e8, 1.9e8), "oelm_freeze": (1.8e8, 1.8e8), "gpt2": (4e8, None)}
    arms = {
        name: {**arm, "memory": dict(zip(("measured_bytes", "predicted_bytes"), held[name], strict=True))}
        for name, arm in RESULT["arms"].items()
    }
    text = markdown({**RESULT, "arms": arms})
    assert "| gpt2 | 400 MB | – | 2.000 |" in text and "| oelm_freeze | 180 MB | 180 MB | 0.900 |" in text


def test_the_folder_has_all_four_files_and_nothing_half_written(tmp_path):
    written = write_bench(RESULT, tmp_path / "deep" / "folder", draw(RESULT))
    assert sorted(path.name for path in written) == sorted(path.name for path in (tmp_path / "deep/folder").iterdir())
    assert json.loads(written[0].read_text()) == RESULT
    assert written[1].read_text() == markdown(RESULT)
    assert "oelm_freeze" in written[2].read_text()
    assert written[3].read_bytes().startswith(b"\x89PNG")
    first = written[2].read_bytes()
    write_bench(RESULT, tmp_path / "deep" / "folder", draw(RESULT))
    assert written[2].read_bytes() == first  # the same result draws the same file


COMMITTED = sorted(Path(__file__).parents[2].glob("results/**/bench.json"))


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.parent.name)
def test_committed_tables_are_what_the_committed_records_say(file):
    assert file.with_name("bench.md").read_text() == markdown(json.loads(file.read_text()))


def test_reading_a_result_needs_no_torch():
    program = "import sys, oelm.bench.report; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
