"""What an experiment leaves in git: the records of its runs, and nothing else."""

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from datasets import Dataset

from oelm.data.labelled import TaskData
from oelm.data.tokens import fingerprint
from oelm.experiments import sources
from oelm.experiments.entries import chosen, experiment
from oelm.experiments.plan import PlannedRun, PreparedData, plan
from oelm.runs import config_differences, find_runs
from oelm.training.trainer import train

ROOT = Path(__file__).parents[2]
RECORDS = {
    *("config.yaml", "environment.json", "status.json", "freeze.json"),
    *("metrics.jsonl", "clock.jsonl", "timing_stats.json", "result.json"),
}


def differences(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """Of every committed run below a folder: how it differs from the nearest run of its method in the catalog."""
    entries = chosen(names, "mini")

    @functools.cache
    def planned_for(dataset: str, data: str, seed: int) -> list[PlannedRun]:
        fitting = [entry for entry in entries if entry.dataset == dataset]
        return [run for entry in fitting for run in plan(entry, PreparedData(data), folder, seeds=[seed])]

    found = {}
    for run in find_runs(folder):
        there = run.config()
        candidates = planned_for(run.result()["dataset"], there["data"]["path"], there["seed"])
        planned = [wanted for wanted in candidates if wanted.config.method == there["method"]]
        there["model"]["name"] = planned[0].config.model.name  # a folder stands in for the hub's name
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


def test_what_every_committed_run_was_trained_on_is_told_by_a_manifest():
    """Of that very fingerprint, with counts, and without a place on anybody's machine."""
    if not (ROOT / "results").is_dir():
        pytest.skip("needs the committed records in results/")
    used = {run.result()["data_fingerprint"] for run in find_runs(ROOT / "results")}
    assert len(used) >= 7
    table = (ROOT / "results" / "README.md").read_text().split("## What was trained on")[1].split("##")[0]
    for name in used:
        text = (ROOT / "results" / "data" / f"{name}.json").read_text()
        manifest = json.loads(text)
        task = "classes" in manifest
        found = TaskData(Path(), manifest, None, None).fingerprint if task else fingerprint(manifest)
        assert found == name
        assert manifest["splits"]["train"]["tokens"] > 0
        assert '"/' not in text
        amount = manifest["splits"]["train"].get("rows") or manifest["splits"]["train"]["documents"]
        assert f"{amount:,} " in table or f"{amount:,} |" in table, f"results/README.md does not tell of {name}"


def test_without_our_files_the_hub_gives_as_many_stories_as_our_sample_has(monkeypatch):
    sample = json.loads((ROOT / "results" / "data" / "4111391d9fd7.json").read_text())["splits"]
    source = sources.source_of(experiment("GPT-03", "mini").data, None)
    rows = Dataset.from_dict({"text": [f"story {n}" for n in range(10**4)]})
    monkeypatch.setattr("oelm.data.hub.HubDataset.load", lambda self, split, stream=False: rows)
    for split, facts in sample.items():
        texts = [text for text, _ in source.texts(split)]
        assert len(texts) == facts["documents"] and texts[0] == "story 0"
    assert re.fullmatch("[0-9a-f]{40}", source.settings()["revision"])
    whole = sources.source_of(experiment("GPT-03", "full").data, None)
    assert source.settings() != whole.settings()  # never to be taken for the whole corpus
    assert whole.first == {}


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
