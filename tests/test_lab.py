"""The lab from Python, as docs/python-api.md shows it."""

import re
from pathlib import Path

import pytest

import oelm

SMALL = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_seq_len": 32}


@pytest.fixture(scope="module")
def runs(fables_folder, tmp_path_factory):
    """Two methods, two seeds, a few steps."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("baseline", "oelm_freeze"):
        for seed in (0, 1):
            config = {
                "method": method,
                "seed": seed,
                "model": {"overrides": SMALL},
                "data": {"path": str(fables_folder)},
                "training": {"max_steps": 4, "batch_size": 2},
                "runtime": {"device": "cpu", "threads": 1},
            }
            oelm.train(config, root / f"{method}-{seed}")
    return root


def test_a_config_is_a_mapping_a_path_or_a_runconfig_and_gives_the_same_result(runs, fables_folder):
    from oelm.training.config import RunConfig

    folder = runs / "baseline-0"
    first = oelm.train(folder / "config.yaml", folder)
    assert first == oelm.train(RunConfig.load(folder / "config.yaml"), str(folder))
    assert first["steps"] == 4 and first["final"]["perplexity"] > 1


def test_a_new_model_is_rotary_and_a_recorded_one_is_as_recorded(runs):
    assert all(row["model.overrides.positions"] == "rotary" for row in oelm.load_runs(runs))


def test_runs_are_rows_that_pandas_takes_as_they_are(runs):
    import pandas

    rows = oelm.load_runs(runs)
    assert len(rows) == 4 and len({tuple(row) for row in rows}) == 1  # the same keys in the same order
    assert not any(isinstance(value, dict | list) for row in rows for value in row.values())
    table = pandas.DataFrame(rows)
    assert set(table["method"]) == {"baseline", "oelm_freeze"}
    assert table.groupby("method")["final.perplexity"].mean().notna().all()
    assert table["training.max_steps"].tolist() == [4] * 4


def test_arms_are_compared_from_folders_or_from_rows(runs):
    arms = oelm.compare(runs)
    chosen = [row for row in oelm.load_runs(runs) if row["seed"] == 0]
    assert {arm["method"] for arm in arms} == {"baseline", "oelm_freeze"}
    assert {arm["method"] for arm in oelm.compare(chosen)} == {"baseline", "oelm_freeze"}


def test_a_report_is_written_from_rows_too(runs, tmp_path):
    files = oelm.write_report(oelm.load_runs(runs), tmp_path / "report", formats=("html",))
    assert [file.name for file in files] == ["report.html"]
    assert "oelm_freeze" in files[0].read_text()


def test_wrong_configs_are_refused_in_one_line(tmp_path):
    with pytest.raises(oelm.OelmError, match="setting 'data' is missing"):
        oelm.train({})
    with pytest.raises(oelm.OelmError, match="does not exist"):
        oelm.train(tmp_path / "none.yaml")
    with pytest.raises(oelm.OelmError, match="'nowhere' is not prepared"):
        oelm.train({"data": {"path": "nowhere"}})


def test_the_page_about_it_runs(runs, tmp_path, monkeypatch):
    """Every Python block of docs/python-api.md, in its order, with fewer steps."""
    page = (Path(__file__).parent.parent / "docs" / "python-api.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks).replace('"max_steps": 300', '"max_steps": 3, "batch_size": 2')
    exec(compile(program, "python-api.md", "exec"), {})
    assert (tmp_path / "report" / "report.html").is_file()


def test_runs_of_a_folder_that_is_not_there_are_refused_not_none():
    with pytest.raises(oelm.OelmError, match="nope does not exist; give folders made by"):
        oelm.load_runs("nope")
