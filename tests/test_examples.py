"""The notebooks in examples/ run from top to bottom, as their reader would run them."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))


def execute(file: Path) -> Any:
    """The notebook with the outputs that it has here; a cell that raises fails the test with its traceback."""
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(file.parent)}}).execute()
    return notebook


def text_outputs(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_notebook_runs_and_shows_what_it_computes(file: Path) -> None:
    executed = execute(file)
    assert sum(cell.cell_type == "code" for cell in executed.cells) >= 3
    if file.stem == "load-runs":  # its runs are in git, so its tables are the same everywhere
        assert text_outputs(executed) == text_outputs(nbformat.read(file, as_version=4))


def test_the_examples_are_there() -> None:
    assert {file.stem for file in EXAMPLES} >= {"load-runs", "freeze-your-model"}
