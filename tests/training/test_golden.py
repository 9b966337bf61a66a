"""The first twenty losses of every method, recorded once: a change of behaviour anywhere shows here.

OELM_WRITE_GOLDEN=1 pytest tests/training/test_golden.py   records them anew, for a change that is meant.
"""

import itertools
import json
import os
from pathlib import Path

import pytest

from oelm.methods import METHODS
from oelm.runs import RunFolder
from oelm.training.trainer import train

# A high learning rate and rotary positions: what queries and keys do must show within twenty steps.
SETTINGS = {
    "max_steps": 20, "eval_every": 20, "max_lr": 1.5e-2, "accumulation": 1, "model": {"dropout": 0.0, "positions": "rotary"}
}  # fmt: skip
TOLERANCE = 5e-3  # other processors round differently
FILE = Path(__file__).parent / "golden" / "losses.json"


@pytest.mark.parametrize("method", METHODS)
def test_the_first_twenty_losses_are_the_recorded_ones(config, tmp_path, method):
    train(config(method, **SETTINGS), tmp_path / "run")
    losses = [row["loss"] for row in RunFolder(tmp_path / "run").metrics("train")]
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("OELM_WRITE_GOLDEN"):
        golden[method] = [round(loss, 5) for loss in losses]
        FILE.write_text(json.dumps(golden, indent=1) + "\n")
    assert losses == pytest.approx(golden[method], abs=TOLERANCE)


def test_no_method_could_pass_for_another():
    golden = json.loads(FILE.read_text())
    assert set(golden) == set(METHODS)
    for one, other in itertools.combinations(golden, 2):
        distance = max(abs(a - b) for a, b in zip(golden[one], golden[other], strict=True))
        assert distance > 5 * TOLERANCE, f"{one} and {other} differ by {distance} only"
