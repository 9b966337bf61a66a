"""The first twenty losses of every method, recorded once: a change of behaviour anywhere shows here.

OELM_WRITE_GOLDEN=1 pytest tests/training/test_golden.py   records them anew, for a change that is meant.
"""

import json
import os
from pathlib import Path

import pytest

from oelm.methods import METHODS
from oelm.runs import RunFolder
from oelm.training.trainer import train

FILE = Path(__file__).parent / "golden" / "losses.json"


@pytest.mark.parametrize("method", METHODS)
def test_the_first_twenty_losses_are_the_recorded_ones(config, tmp_path, method):
    train(config(method, max_steps=20, eval_every=20, model={"dropout": 0.0}), tmp_path / "run")
    losses = [row["loss"] for row in RunFolder(tmp_path / "run").metrics("train")]
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("OELM_WRITE_GOLDEN"):
        golden[method] = [round(loss, 5) for loss in losses]
        FILE.write_text(json.dumps(golden, indent=1) + "\n")
    assert losses == pytest.approx(golden[method], abs=2e-3)  # other processors round differently


def test_the_recorded_curves_differ_between_methods():
    golden = json.loads(FILE.read_text())
    assert golden.pop("fresh_orthogonal") == golden["oelm_freeze"]  # the same thing, but for pretrained models
    assert len({tuple(curve) for curve in golden.values()}) == len(METHODS) - 1
