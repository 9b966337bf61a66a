"""The shipped evidence: what the committed records say today, and the same in any directory."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from factory import make_run
from oelm.analysis.evidence.records import FILE, as_text, gather, shipped
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.runs import FAILED

ROOT = Path(__file__).parents[3]
HERE = ROOT / "src" / "oelm" / "analysis" / "evidence" / FILE


@pytest.fixture(scope="module")
def results():
    if not (ROOT / "results").is_dir():
        pytest.skip("needs the committed records in results/")
    return ROOT / "results"


def said(*words):
    outcome = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_it_is_what_the_committed_records_say_today(results):
    """After a change of results/: make evidence."""
    assert HERE.read_text() == as_text(gather(results))
    assert HERE.stat().st_size < 300_000


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A directory outside of a clone, with a user's own runs that say the opposite of ours."""
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        for method, value in (("baseline", 10.0), ("oelm_freeze", 9.0)):
            make_run(tmp_path / "runs", method, seed, perplexity=value * (1 + 0.001 * seed), dataset="tinystories")
    return tmp_path


def test_claims_are_judged_alike_in_and_outside_a_clone(results, elsewhere):
    assert said("claims") == said("claims", results)


def test_own_runs_count_only_when_named(elsewhere):
    def gap(verdicts):
        return next(v for v in verdicts if v["id"] == "gap-tinystories")["verdict"]

    assert gap(said("claims")) == "reproduced"
    assert gap(said("claims", "runs")) == "not reproduced"


@pytest.mark.parametrize("model", ["medium-512", "bert-base"])
def test_advice_is_the_same_in_and_outside_a_clone(results, elsewhere, model):
    here = said("recommend", "--model", model)
    assert here["evidence"]
    assert here == said("recommend", "--model", model, "--results", results)


def test_every_run_that_ships_has_its_seed_its_settings_and_a_finite_score():
    loaded = shipped()
    assert len(loaded.runs) > 250
    assert all(arm.scores and arm.settings["training.max_lr"] > 0 for arm in loaded.arms)


def test_only_finished_runs_are_evidence_and_a_failure_is_not_kept_quiet(tmp_path):
    make_run(tmp_path, "baseline", 0)
    make_run(tmp_path, "oelm_freeze", 0, finished=False)
    assert [run[1] for run in gather(tmp_path)["runs"]] == ["baseline"]
    make_run(tmp_path, "oelm_freeze", 1, finished=False, state=FAILED)
    with pytest.raises(OelmError, match="oelm_freeze-s1 failed"):
        gather(tmp_path)
