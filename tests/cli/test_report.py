"""`oelm report`: the files it writes and says it wrote."""

import json
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

from oelm.cli.report import report
from oelm.errors import OelmError

sys.path.append(str(Path(__file__).parents[1] / "analysis"))
from factory import make_suite

app = typer.Typer()
app.command("report")(report)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_report_lies_beside_the_runs_unless_told_otherwise(tmp_path):
    make_suite(tmp_path / "runs", ("baseline",), (0,))
    result = run(tmp_path / "runs", "--format", "html")
    assert result.stdout.strip() == str(tmp_path / "runs" / "report.html")
    result = run(
        tmp_path / "runs", "--format", "html", "--format", "csv", "--out", tmp_path / "out", "--lang", "zh", "--json"
    )
    files = [Path(file) for file in json.loads(result.stdout)["files"]]
    assert files[0] == tmp_path / "out" / "report.zh.html"
    assert tmp_path / "out" / "csv" / "summary.csv" in files
    assert all(file.is_file() for file in files)


def test_a_second_report_does_not_read_the_first(tmp_path):
    make_suite(tmp_path, ("baseline",), (0,))
    first = run(tmp_path, "--format", "md")
    before = (tmp_path / "report.md").read_text()
    assert run(tmp_path, "--format", "md").stdout == first.stdout
    assert (tmp_path / "report.md").read_text() == before


def test_several_folders_make_one_report(tmp_path):
    make_suite(tmp_path / "a", ("baseline",), (0,))
    make_suite(tmp_path / "b", ("oelm_freeze",), (0,))
    result = run(tmp_path / "a", tmp_path / "b", "--format", "md", "--out", tmp_path / "out")
    assert result.exit_code == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "\n| baseline | " in text and "\n| oelm_freeze | " in text


def test_bad_input_is_one_error_with_the_way_out(tmp_path):
    make_suite(tmp_path / "runs", ("baseline",), (0,))
    for arguments, hint in (
        ((tmp_path / "nothing",), "no finished run to show"),
        ((tmp_path / "runs", "--lang", "fr"), "language 'fr' is unknown; known: en, zh"),
        ((tmp_path / "runs", tmp_path), "2 folders or names lies beside none of them; say where (--out DIR)"),
        ((tmp_path / "runs", "--format", "docx"), "format 'docx' is unknown"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, OelmError)
        assert hint in str(result.exception)
