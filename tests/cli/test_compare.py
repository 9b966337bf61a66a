"""`oelm compare`: what a person and what a program sees."""

import csv
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from oelm.cli import console
from oelm.cli.report import compare
from oelm.errors import OelmError
from oelm.files import write_json

sys.path.append(str(Path(__file__).parents[1] / "analysis"))
from factory import make_run, make_suite

app = typer.Typer()
app.command("compare")(compare)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_table_and_the_notes_are_printed(tmp_path):
    make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    make_run(tmp_path, "q_only", 0, max_lr=1e-3)
    make_run(tmp_path, "k_only", 0, finished=False)
    result = run(tmp_path)
    assert result.exit_code == 0
    for text in (
        "oelm_freeze",
        "undecided",
        "the plain one",
        "training.max_lr is 0.001 vs 0.003",
        "k_only-s0 is not finished",
    ):
        assert text in result.stdout


def test_narrow_terminals_see_everything(tmp_path, monkeypatch):
    make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    whole = console.WholeConsole
    monkeypatch.setattr(console, "WholeConsole", lambda **options: whole(**{**options, "width": 60}))
    result = run(tmp_path)
    assert max(map(len, result.stdout.splitlines())) <= 60
    assert "[0.944, 0.969]" in result.stdout


def test_json_holds_the_same_arms_and_what_was_left_out(tmp_path):
    make_suite(tmp_path, ("baseline", "oelm_freeze"), (0, 1))
    make_run(tmp_path, "k_only", 0, finished=False)
    facts = json.loads(run(tmp_path, tmp_path / "nowhere", "--json").stdout)
    assert [arm["label"] for arm in facts["arms"]] == ["baseline", "oelm_freeze"]
    assert facts["arms"][1]["verdict"] == "undecided"
    assert facts["incomplete"] == [str(tmp_path / "k_only-s0")]
    assert facts["skipped"] == [{"path": str(tmp_path / "nowhere"), "reason": "it does not exist"}]


def test_csv_is_written_beside_the_print(tmp_path):
    make_suite(tmp_path / "runs", ("baseline", "oelm_freeze"), (0, 1))
    file = tmp_path / "tables" / "summary.csv"
    assert run(tmp_path / "runs", "--csv", file).exit_code == 0
    assert [row["label"] for row in csv.DictReader(file.open())] == ["baseline", "oelm_freeze"]


def test_nothing_to_compare_is_an_error_with_the_way_out(tmp_path):
    result = run(tmp_path)
    assert isinstance(result.exception, OelmError)
    assert "give folders made by 'oelm train' or 'oelm demo'" in str(result.exception)


def test_without_a_folder_it_compares_the_runs_that_are_here(tmp_path, monkeypatch):
    make_suite(tmp_path / "runs", ("baseline", "oelm_freeze"), (0, 1))
    monkeypatch.chdir(tmp_path)
    assert run().output == run("runs").output != ""


@pytest.mark.parametrize("markup", ["[red]x[/red]", "[/]"])
def test_names_are_not_read_as_markup(tmp_path, markup):
    folder = make_run(tmp_path)
    make_run(tmp_path, "oelm_freeze", dataset="other")
    write_json(folder.result_file, {**folder.result(), "dataset": markup})
    assert markup in run(tmp_path).stdout
