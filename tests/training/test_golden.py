"""Twenty steps of every method, recorded once: a change of behaviour anywhere shows here.

Early losses alone hardly depend on queries and keys, so the record also holds what became of those: their scale and
their distance from orthonormality after the last step, in the first layer; and, to tell apart the projections that have
no weights, the mean of the diagonal and the largest entry.

OELM_WRITE_GOLDEN=1 pytest tests/training/test_golden.py   records them anew, for a change that is meant.
"""

import itertools
import json
import os
from pathlib import Path

import pytest
from torch import nn

from oelm.freezing.methods import METHODS
from oelm.freezing.orthogonal import orthonormality_error
from oelm.freezing.projections import dense
from oelm.models.gpt import GPT
from oelm.runs import RunFolder
from oelm.training.checkpoints import newest_valid
from oelm.training.trainer import train

SETTINGS = {"max_steps": 20, "eval_every": 20, "max_lr": 1e-2, "accumulation": 1, "model": {"dropout": 0.0}}
TOLERANCE = 2e-3  # other processors round differently
FILE = Path(__file__).parent / "golden" / "curves.json"
FOR_PRETRAINED = {
    *("pretrained_frozen", "head_qr_scaled", "head_polar", "head_polar_scaled", "fresh_orthogonal"),
    "reinitialised",
}
"""On a fresh model they are hardly others; tests/test_architectures.py tells them apart on a loaded one."""


def record(run: Path) -> dict[str, list[float]]:
    folder = RunFolder(run)
    attention = GPT.from_pretrained(newest_valid(folder.checkpoints).path).blocks[0].attention
    facts = {"losses": [row["loss"] for row in folder.metrics("train")]}
    for role in ("query", "key"):
        module = getattr(attention, role)
        weight = (module if isinstance(module, nn.Linear) else dense(module)).weight.detach()
        errors = [orthonormality_error(weight, num_heads=heads) for heads in (2, 1)]  # within heads, and across them
        shape = [weight.diagonal().mean().item(), weight.abs().max().item()]
        facts[role] = [weight.square().sum(1).mean().sqrt().item(), *errors, *shape]
    return {name: [round(value, 5) for value in values] for name, values in facts.items()}


@pytest.mark.parametrize("method", METHODS)
def test_twenty_steps_are_the_recorded_ones(config, tmp_path, method):
    train(config(method, **SETTINGS), tmp_path / "run")
    found = record(tmp_path / "run")
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("OELM_WRITE_GOLDEN"):
        golden[method] = found
        FILE.write_text(json.dumps(golden, indent=1) + "\n")
    for name, values in golden[method].items():
        assert found[name] == pytest.approx(values, abs=TOLERANCE), name


def test_no_method_could_pass_for_another():
    golden = json.loads(FILE.read_text())
    assert set(golden) == set(METHODS)
    for one, other in itertools.combinations([name for name in golden if name not in FOR_PRETRAINED], 2):
        pairs = [zip(golden[one][name], golden[other][name], strict=True) for name in golden[one]]
        distance = max(abs(a - b) for a, b in itertools.chain(*pairs))
        assert distance > 5 * TOLERANCE, f"{one} and {other} differ by {distance} only"
