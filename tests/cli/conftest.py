"""The command line without a process of its own."""

import subprocess
import sys

import pytest

from oelm.cli.main import main


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """The same in this process, where starting one is not the point: it takes a second, most of them imports."""

    def run(*arguments, cwd=tmp_path):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["oelm", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, left.value.code, printed.out, printed.err)

    return run
