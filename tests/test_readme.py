"""What the README promises is executed: every Python block, every oelm command, every make target."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oelm.__main__ import main

ROOT = Path(__file__).parent.parent
READMES = ["README.md", "README.zh-CN.md"]
SLOW = {"oelm demo"}
"""Minutes long: `make demo` is checked to exist, and its parts are tested in tests/experiments and tests/cli."""


def blocks(readme: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / readme).read_text("utf-8"), flags=re.DOTALL)


def commands(readme: str) -> list[str]:
    lines = [line.strip() for block in blocks(readme, "bash") for line in block.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


def test_the_commands_of_the_tour_work_in_their_order(workplace, monkeypatch, capfd, forked_runs):
    """In this process, where what they need is loaded already, and in forks of it."""
    tour = [c for c in commands("README.md") if c.startswith("oelm ") and c not in SLOW]
    assert len(tour) >= 5
    monkeypatch.chdir(workplace)
    for command in tour:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0, f"{command}\n{capfd.readouterr()}"


def test_the_command_is_installed(workplace):
    oelm = shutil.which("oelm", path=Path(sys.executable).parent) or "oelm is not beside python"
    assert subprocess.run([oelm, "--version"], cwd=workplace, capture_output=True, text=True).stdout.startswith("0.")


def test_the_python_examples_work_in_their_order(workplace):
    program = "\n".join(blocks("README.md", "python"))
    assert "oelm.freeze" in program
    run = subprocess.run([sys.executable, "-c", program], cwd=workplace, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_make_target_that_is_mentioned_exists():
    targets = {c.split()[1] for readme in READMES for c in commands(readme) if c.startswith("make ")}
    assert {"demo", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_both_languages_show_the_same_code():
    for language in ("bash", "python"):
        english, chinese = ([_code(b) for b in blocks(readme, language)] for readme in READMES)
        assert english == chinese


def test_linked_files_exist():
    for readme in READMES:
        text = (ROOT / readme).read_text("utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text) + re.findall(r'src="(?!https?:)([^"]+)"', text):
            assert (ROOT / target).exists(), f"{readme} links to {target}"


def _code(block: str) -> list[str]:
    """Without comments, which are in the reader's language."""
    return [re.sub(r"\s*#.*", "", line) for line in block.splitlines() if not line.strip().startswith("#")]
