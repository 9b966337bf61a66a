"""What a study leaves in git: the records of its runs, and nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest

from oelm.training.trainer import train

ROOT = Path(__file__).parents[2]
RECORDS = {
    *("config.yaml", "environment.json", "status.json", "freeze.json"),
    *("metrics.jsonl", "clock.jsonl", "timing_stats.json", "result.json"),
}


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
