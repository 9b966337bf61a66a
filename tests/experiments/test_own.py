"""Experiments of one's own: files of the catalog's form, lists of methods and seeds, and what fits into a budget."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from oelm.cli.main import main
from oelm.errors import OelmError
from oelm.experiments.entries import chosen, experiment, experiments_in
from oelm.experiments.plan import PlannedRun, PreparedData, plan, several
from oelm.experiments.preview import TRIAL_STEPS, within
from oelm.experiments.suite import plan_experiments
from oelm.runs import FINISHED, RunFolder
from oelm.training.config import RunConfig

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "src" / "oelm" / "experiments" / "catalog"
TINY = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_seq_len": 32, "positions": "rotary"}
MINE = {
    "data": "words",
    "methods": ["baseline", "oelm_freeze"],
    "seeds": [0, 1],
    "model": {"size": "demo", "overrides": TINY},
    "training": {"max_steps": 12, "batch_size": 4},
}


@pytest.fixture
def oelm(workplace: Path, fables_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, forked_runs: None) -> Any:
    """oelm("run", "mine.yaml"): the command line in this process, where a small corpus 'words' is prepared."""
    shutil.copytree(fables_folder, workplace / "data" / "words")

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["oelm", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(left.value.code or 0), printed.out, printed.err)

    return run


def write(values: dict[str, Any] | str, name: str = "mine.yaml") -> Path:
    Path(name).write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False))
    return Path(name)


@pytest.mark.parametrize("file", ["gpt", "bert", "comparisons", "contest", "demo", "encoders"])
def test_the_catalogs_files_mean_the_same_by_name_and_by_path(file: str) -> None:
    found = experiments_in(CATALOG / f"{file}.yaml")
    assert found
    assert [one.model_dump() for one in found] == [experiment(one.name).model_dump() for one in found]


def test_an_own_file_is_planned_seed_by_seed_and_named_after_itself(workplace: Path) -> None:
    (own,) = chosen([str(write(MINE))])
    runs = plan(own, PreparedData(Path("data/words")), Path("runs") / own.name)
    assert [run.folder.as_posix() for run in runs] == [
        "runs/mine/baseline-0",
        "runs/mine/oelm_freeze-0",
        "runs/mine/baseline-1",
        "runs/mine/oelm_freeze-1",
    ]
    assert {run.config.training.max_steps for run in runs} == {12}
    short = experiments_in(write({**MINE, "methods": "baseline, oelm_freeze", "seeds": 3}, "short.yaml"))[0]
    assert (short.arms, short.seeds) == (["baseline", "oelm_freeze"], [3])


def test_several_experiments_of_one_file_share_their_defaults(workplace: Path) -> None:
    entries = {"low": {"training": {"max_lr": 1e-4}}, "high": {"training": {"max_lr": 1e-2}}}
    low, high = experiments_in(write({"defaults": MINE, "experiments": entries}))
    assert (low.name, low.training["max_lr"], high.training["max_lr"]) == ("low", 1e-4, 1e-2)
    assert low.training["max_steps"] == high.training["max_steps"] == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data: words\nmethods: [baseline\nseeds: [0]", r"mine\.yaml cannot be read: .* line 2, column 10"),
        ("- a", r"mine\.yaml is no mapping; it needs data, methods and seeds"),
        ({"methods": ["baselin"]}, r"mine\.yaml: mine: method 'baselin' is unknown; did you mean 'baseline'"),
        ({"seeds": ["a"]}, r"mine\.yaml: key 'seeds' is \['a'\]; it must be a number, written in digits"),
        ({"seeds": [0, False]}, r"mine\.yaml: key 'seeds' is \[0, False\]; it must be a number, not true or false"),
        ({"seeds": ["1_0"]}, r"mine\.yaml: key 'seeds' is \['1_0'\]; it must be a number, written in digits"),
        ({"data": ""}, r"mine\.yaml: key 'data\.path' is ''; it must have at least 1 character"),
        (
            {"training": {"max_step": 3}},
            r"mine\.yaml: mine: .*'training\.max_step' is unknown; did you mean .*max_steps'",
        ),
        ({"modell": {}}, r"mine\.yaml: key 'modell' is unknown; did you mean 'model'\? known: name"),
        ({"data": "nope"}, r"mine\.yaml: mine: data 'nope' is not prepared in data \(prepared: words\)"),
        ({"data": {"corpus": "wiki"}}, r"mine\.yaml: key 'data': corpus 'wiki' is unknown; .*oelm data prepare"),
        ({"data": {"path": "words", "corpus": "fables"}}, r"path 'words' names prepared data; leave corpus"),
        ({"data": None}, r"mine\.yaml: an experiment has either data or a task"),
        ({"scales": 3}, r"mine\.yaml: key 'scales' is 3; give each a mapping"),
        ({"scales": {"mini": 3}}, r"mine\.yaml: key 'scales' is \{'mini': 3\}"),
        ({"model": {"overrides": 5}}, r"mine\.yaml: mine: .*'model\.overrides' is 5"),
        ({"seeds": True}, r"mine\.yaml: key 'seeds' is True"),
        ("experiments: {a: 3}", r"mine\.yaml: a is 3; give its keys, e"),
        ("experiments: {a: {}}\nseeds: [0]", r"mine\.yaml: key 'seeds' belongs into an experiment, or into defaults"),
    ],
)
def test_a_bad_file_is_one_line_with_the_file_the_place_and_the_way_out(oelm: Any, change: Any, message: str) -> None:
    write(change if isinstance(change, str) else {**MINE, **change})
    refused = oelm("run", "mine.yaml")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: experiment file ")
    with pytest.raises(OelmError, match=message):
        raise OelmError(line)
    assert not Path("runs").exists()


def test_an_own_file_has_its_own_scales_only(workplace: Path) -> None:
    write({**MINE, "scales": {"mini": {"seeds": [7]}}})
    assert experiments_in(Path("mine.yaml"), "mini")[0].seeds == [7]
    assert experiments_in(Path("mine.yaml"), "mini")[0].model == MINE["model"]  # not the catalog's mini
    with pytest.raises(OelmError, match=r"mine has no scale 'smoke'; its scales: full, mini"):
        experiments_in(Path("mine.yaml"), "smoke")


def test_an_own_file_has_rotary_positions_like_a_training_and_the_catalog_its_own(workplace: Path) -> None:
    def positions(file: dict[str, Any] | Path, **options: Any) -> set[Any]:
        (own, *_) = chosen([str(file if isinstance(file, Path) else write(file))])
        runs = plan(own, PreparedData(Path("data/words"), "sha256:1"), Path("runs"), **options)
        return {run.config.model.overrides.get("positions") for run in runs}

    silent = {**MINE, "model": {"size": "demo"}}
    told = {"overrides": {"positions": "learned"}}
    assert positions(silent) == {"rotary"}
    sizeless = {key: value for key, value in MINE.items() if key != "model"}
    assert positions(sizeless) == {"rotary"}
    assert positions({**silent, "model": {"size": "demo", **told}}) == {"learned"}
    assert positions(silent, settings=["model.overrides.positions=learned"]) == {"learned"}
    variants = [{"name": "a"}, {"name": "b", "model": told}, {"name": "c", "model": {"name": "gpt2", "fresh": True}}]
    assert positions({**sizeless, "variants": variants}) == {"rotary", "learned", None}  # GPT-2 has no such setting
    # What was published is by path what it is by name.
    assert positions(CATALOG / "gpt.yaml") == positions(CATALOG / "comparisons.yaml") == {None}


def test_a_file_that_names_the_folder_of_its_runs_is_still_ones_own(workplace: Path) -> None:
    silent = {**MINE, "model": {"size": "demo"}, "summary": "in {runs}"}
    (own,) = chosen([str(write(silent))])
    changed = own.with_text("{runs}", 'a "folder"')
    assert (changed.summary, changed.own, changed.where) == ('in a "folder"', True, own.where)


def test_a_dry_run_knows_prepared_data(oelm: Any) -> None:
    write(MINE)
    rows = json.loads(oelm("run", "mine.yaml", "--dry-run", "--json").stdout)
    assert [row["steps"] for row in rows] == [12] * 4
    assert rows[0]["total_parameters"] > 512 * 32  # the tokenizer's entries, from the manifest
    assert rows[1]["frozen_parameters"] > rows[0]["frozen_parameters"] == 0


def test_a_dry_run_says_that_a_folder_holds_other_runs(oelm: Any) -> None:
    write({**MINE, "seeds": [0]})
    assert oelm("run", "mine.yaml").returncode == 0
    assert "2 of them finished" in oelm("run", "mine.yaml", "--dry-run").stdout
    done = oelm("run", "mine.yaml", "--dry-run", "--set", "training.max_steps=14")
    assert done.returncode == 2 and "mine/baseline-0 holds a run of another config (training.max_steps" in done.stderr


def test_the_example_runs_at_its_small_scale(oelm: Any) -> None:
    example = yaml.safe_load((ROOT / "examples" / "my-experiment.yaml").read_text())
    write({**example, "data": "words", "methods": ["oelm_freeze"]}, "my-experiment.yaml")
    done = oelm("run", "my-experiment.yaml", "--scale", "smoke", "--slots", 1, "--budget", "10m")
    assert done.returncode == 0, done.stderr
    assert f"trying 1 arm for {TRIAL_STEPS} steps each" in done.stderr
    assert "10 min: 1 of 1 runs fit, in about" in done.stderr
    assert RunFolder(Path("runs/my-experiment/oelm_freeze-0")).status()["state"] == FINISHED
    assert chosen([str(ROOT / "examples" / "my-experiment.yaml")])[0].arms == example["methods"]


def test_a_model_of_transformers_runs_in_processes_of_its_own_and_not_twice(oelm: Any) -> None:
    shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32}
    training = {"max_steps": 2, "batch_size": 2}  # neither objective nor length: the run finds out
    write({**MINE, "seeds": [0], "model": {"name": "gpt2", "fresh": True, "overrides": shape}, "training": training})
    for _ in range(2):
        done = oelm("run", "mine.yaml")
        assert done.returncode == 0, done.stderr
        assert "2 of 2 runs finished" in done.stdout + done.stderr


def test_a_list_of_methods_and_seeds_is_an_experiment(oelm: Any) -> None:
    shape = [f"--set=model.overrides.{key}={value}" for key, value in TINY.items()]
    words = ["train", "--dataset", "words", "--max-steps", 6, "--batch-size", 2, *shape]
    done = oelm(*words, "--methods", "baseline,oelm_freeze", "--seeds", "1", "--time", "--json")
    assert done.returncode == 0, done.stderr
    root = Path("runs/words-demo")
    assert {Path(row["run"]) for row in json.loads(done.stdout)} == {root / "baseline-1", root / "oelm_freeze-1"}
    times = json.loads((root / "step_time.json").read_text())
    assert (times["reference"], list(times["arms"])) == ("baseline", ["oelm_freeze"])
    assert "exclude each other" in oelm(*words, "--methods", "baseline", "--method", "q_only").stderr
    assert "did you mean 'oelm_freeze'" in oelm(*words, "--methods", "baseline,oelm_freze").stderr


def test_what_a_run_would_refuse_is_refused_before_the_first_is_started(oelm: Any) -> None:
    shape = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "head_dim": 8,
        "intermediate_size": 32,
    }
    model = {"name": "qwen3", "fresh": True, "overrides": shape}
    write({**MINE, "model": model, "methods": ["baseline", "oelm_freeze+scale"]})
    refused = oelm("run", "mine.yaml")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "a norm comes after it and would undo a learned scale" in refused.stderr
    words = ["train", "--model", "bert", "--fresh", "--objective", "causal", "--dataset", "words", "--max-steps", 2]
    refused = oelm(*words, "--methods", "baseline,oelm_freeze", "--seeds", "0,1")
    assert refused.returncode == 2 and "cannot be trained as causal" in refused.stderr
    assert not Path("runs").exists()


# Budgets


@dataclass
class Machine:
    """Places of an engine whose runs take no time but say how long they took: 2 s for a step, 10 s besides."""

    places: tuple[int, ...] = (0, 1)
    asked: list[PlannedRun] = field(default_factory=list)

    def run(self, planned: list[PlannedRun]) -> list[Any]:
        self.asked += planned
        for run in planned:
            folder = RunFolder(run.folder)
            folder.create(run.config.to_dict())
            steps = run.config.training.max_steps
            times = {"training_seconds": 2.0 * steps, "wall_seconds": 2.0 * steps + 10, "validation_seconds": 9.0}
            folder.result_file.write_text(
                json.dumps({"median_step_time": 2.0, **times, "final": {"tokens": 900}, "run": str(run.folder)})
            )
        return [SimpleNamespace(run=run, failed=False, stopped=False, last_words="") for run in planned]


def planned_runs(steps: int = 100, seeds: int = 3, **training: Any) -> list[PlannedRun]:
    values = {"data": {"path": "words"}, "training": {"max_steps": steps, **training}}
    return several(RunConfig.parse(values), ["baseline", "oelm_freeze"], range(seeds), Path("runs"))


def test_only_what_fits_is_run_seed_by_seed_and_the_rest_is_named(workplace: Path) -> None:
    machine, said, runs = Machine(), [], planned_runs()
    # A run takes 5 + 10 s, 100 steps of 2.2 s and 3 % for validation: 242 s. Two places: 484 s for four runs.
    fits = within(runs, 600, machine, said.append)  # type: ignore[arg-type]
    assert [run.folder.name for run in fits] == ["baseline-0", "oelm_freeze-0", "baseline-1", "oelm_freeze-1"]
    assert [run.config.training.max_steps for run in machine.asked] == [TRIAL_STEPS] * 2  # each arm once
    assert said[-1] == (
        "10 min: 4 of 6 runs fit, in about 8 min; 2 more would take about 4 min (complete seeds: 0, 1), "
        "the same command goes on with them"
    )
    assert not Path("runs").exists()  # what was tried is gone


def test_finished_runs_say_how_long_the_next_take_and_begun_ones_count_for_what_is_left(workplace: Path) -> None:
    machine, runs = Machine(), planned_runs()
    machine.run(runs[:2])
    machine.asked.clear()
    begun = RunFolder(runs[2].folder)
    begun.create(runs[2].config.to_dict())
    begun.set_status("interrupted", step=75, max_steps=100)
    fits = within(runs, 230, machine, lambda words: None)  # type: ignore[arg-type]  # a quarter of 215 s, then 215
    assert [run.folder.name for run in fits] == ["baseline-0", "oelm_freeze-0", "baseline-1", "oelm_freeze-1"]
    assert machine.asked == []


def test_validations_on_the_way_are_counted(workplace: Path) -> None:
    said: list[str] = []
    within(planned_runs(seeds=1, eval_every=10, eval_tokens="all"), 3600, Machine(), said.append)  # type: ignore[arg-type]
    assert said[-1] == "1 h: 2 of 2 runs fit, in about 5 min"  # 235 s and ten validations of 9 s


def test_a_budget_too_small_for_one_run_says_what_it_needs(workplace: Path) -> None:
    with pytest.raises(OelmError, match=r"no run fits into 60 s: runs/baseline-0 needs about 4 min; give a larger"):
        within(planned_runs(), 60, Machine(), lambda words: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "soon"], r"--budget 'soon' is not possible; give a number above 0 and its unit"),
        (["--budget", "2h", "--dry-run"], r"--dry-run starts nothing; leave one of them out"),
        (["--budget", "2h", "--engine", "slurm"], r"of --engine slurm nobody knows the places"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(oelm: Any, words: list[str], message: str) -> None:
    write(MINE)
    with pytest.raises(OelmError, match=message):
        raise OelmError(oelm("run", "mine.yaml", *words).stderr)


def test_a_prepared_task_is_data_like_any_other_and_knows_its_steps(oelm: Any) -> None:
    rows = "".join(f"film {i}\t{i % 2}\n" for i in range(40))
    Path("sst2").mkdir()
    Path("sst2/train.tsv").write_text("sentence\tlabel\n" + rows)
    made = oelm(
        "data", "task", "sst2", "--tokenizer=bpe:300", "--data-path=sst2", "--validation-fraction=0.2", "--json"
    )
    name = Path(json.loads(made.stdout)["path"]).name
    write({**MINE, "data": name, "training": {"epochs": 3, "batch_size": 8}})
    rows = json.loads(oelm("run", "mine.yaml", "--dry-run", "--json").stdout)
    assert {row["steps"] for row in rows} == {12}  # three passes over 32 rows


def test_prepared_data_are_not_prepared_again(oelm: Any) -> None:
    runs = plan_experiments(chosen([str(write(MINE))]), Path("runs"), seeds=[0])
    assert {run.config.data.path for run in runs} == {"data/words"}
