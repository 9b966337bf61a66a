"""What a study leaves in git: the records of its runs, and nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest

from oelm.experiments.entries import chosen
from oelm.experiments.plan import PreparedData, plan
from oelm.runs import config_differences, find_runs
from oelm.training.trainer import train

ROOT = Path(__file__).parents[2]
RECORDS = {
    *("config.yaml", "environment.json", "status.json", "freeze.json"),
    *("metrics.jsonl", "clock.jsonl", "timing_stats.json", "result.json"),
}


def differences(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """Of every committed run below a folder: how it differs from the nearest run of its method in the catalog."""
    found = {}
    for run in find_runs(folder):
        there = run.config()
        planned = [
            wanted
            for entry in chosen(names, "mini")
            for wanted in plan(entry, PreparedData(there["data"]["path"]), folder, seeds=[there["seed"]])
            if wanted.config.method == there["method"] and entry.dataset == run.result()["dataset"]
        ]
        there["model"]["encoder"] = planned[0].config.model.encoder  # a folder stands in for the hub's name
        found[str(run.path)] = min((config_differences(there, wanted.config.to_dict()) for wanted in planned), key=len)
    return found


@pytest.mark.parametrize(
    ("folder", "names", "count"),
    [
        ("mini", ["phase3", "controls", "learning-rate"], 50),
        ("methods", ["methods"], 185),
        ("encoders-minilm/screen", ["encoders-screen-sst2", "encoders-screen-xnli"], 48),
        ("encoders-minilm/final", ["encoders-sst2", "encoders-xnli"], 24),
    ],
)
def test_every_committed_run_is_one_that_the_catalog_plans_today(folder, names, count):
    if not (ROOT / "results").is_dir():
        pytest.skip("needs the committed records in results/")
    found = differences(ROOT / "results" / folder, names)
    assert len(found) >= count
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_records_of_a_run_are_kept_and_its_checkpoints_and_locks_are_not(smoke):
    (run,) = smoke("GPT-02")
    train(run.config, "results/smoke/GPT-02/oelm_freeze-0")
    shutil.copy(ROOT / ".gitignore", ".gitignore")
    subprocess.run(["git", "init", "--quiet"], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "results"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {Path(name).name for name in listed} == RECORDS
    text = "".join(Path(name).read_text() for name in listed)
    assert str(Path.cwd()) not in text  # no record names a place on this machine
