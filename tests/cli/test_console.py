"""Nothing that a command prints is cut off: neither into a pipe nor on a narrow terminal."""

from collections import Counter

import pytest
from rich.table import Table
from typer.testing import CliRunner

from oelm.cli import console
from oelm.cli.main import app

COMMANDS = ["methods", "experiments", "inspect demo", "estimate --size tiny", "run GPT-02 --scale mini --dry-run"]


def printed(command: str, columns: int | None = None, monkeypatch=None) -> str:
    if columns is not None:  # as on a terminal of that width
        whole = console.WholeConsole
        monkeypatch.setattr(console, "WholeConsole", lambda **options: whole(**{**options, "width": columns}))
    out = CliRunner(env={"COLUMNS": "80"}).invoke(app, command.split())
    assert out.exit_code == 0, out.output
    return out.output


def characters(text: str) -> Counter:
    """What was printed but for space and lines, which change with the width."""
    return Counter(c for c in text if not c.isspace() and not "─" <= c <= "╿")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_as_much_into_40_columns_as_into_a_pipe(command, monkeypatch):
    whole = printed(command)
    narrow = printed(command, 40, monkeypatch)
    assert narrow != whole
    assert len(narrow.splitlines()) >= len(whole.splitlines())
    if command not in ("methods", "inspect demo"):  # where a table's header or frame breaks differently
        assert max(map(len, whole.splitlines())) > 40
    assert characters(narrow) == characters(whole)


def test_numbers_stay_in_one_piece_and_words_fold(capsys):
    table = Table("arm", "ratio [95 %]", "verdict", box=None)
    table.columns[1].no_wrap = True
    cells = ("permutation_qk+rank=8+layers=not-first1", "0.983 [0.953, 0.999]", "no difference")
    table.add_row(*cells)
    console.WholeConsole(width=30).print(table)
    printed = capsys.readouterr().out
    assert "0.983 [0.953, 0.999]" in printed and "…" not in printed
    assert characters(printed) == characters("arm ratio [95 %] verdict" + "".join(cells))


def test_what_is_no_terminal_has_no_width(capsys):
    line = "word " * 100
    console.command_console().print(line)
    assert line.strip() in capsys.readouterr().out
