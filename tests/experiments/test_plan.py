"""From experiments to runs: shared where they compute the same, refused where they do not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oelm.analysis.compare.results import load_runs
from oelm.bench import measure as bench
from oelm.errors import OelmError
from oelm.experiments import sources
from oelm.experiments.entries import catalog, chosen, experiment, suites
from oelm.experiments.plan import unique
from oelm.experiments.preview import preview
from oelm.experiments.runner import claimed
from oelm.experiments.suite import plan_experiments, time_planned
from oelm.runs import RunFolder
from oelm.training.trainer import train


def planned(*names, scale="mini", **options):
    return plan_experiments(chosen(names, scale), Path("runs"), prepare_data=False, **options)


def test_experiments_that_ask_for_the_same_computation_share_its_run(workplace):
    runs = planned("phase3", "controls", seeds=[0, 1, 2])
    assert len(unique(runs)) == 14 * 3  # all of phase 3 is among the controls at this scale
    twin = next(run for run in runs if run.experiment == "controls-tinystories" and run.arm == "oelm_random")
    assert twin.folder == Path("runs/GPT-03/oelm_random-0")


def test_a_run_that_is_there_is_found_by_what_it_computes(workplace):
    first = next(run for run in planned("controls-tinystories") if run.arm == "oelm_random")
    RunFolder(first.folder).create(first.config.to_dict())
    assert planned("GPT-03")[0].folder == first.folder


def test_other_settings_are_another_run(workplace):
    assert planned("GPT-03")[0].folder != planned("controls-tinystories", scale="smoke")[2].folder
    full = unique(planned("phase2", "controls-tinystories", scale="full", seeds=[0]))
    assert len(full) == 8 * 2  # GPT-01 and GPT-02 are two of the controls, at the published rates
    assert {run.folder.parent.name for run in full} == {"GPT-01", "GPT-02", "controls-tinystories"}


def test_every_file_system_takes_the_names_of_run_folders(workplace):
    names = [run.folder.name for run in planned("methods-screen")]
    assert len(set(names)) == len(names)
    assert not {character for name in names for character in name} & set('<>:"|?*')


def test_seeds_come_one_after_the_other(workplace):
    assert [run.seed for run in unique(planned("phase3", seeds=[0, 1]))] == [0] * 5 + [1] * 5


def test_settings_reach_every_run_and_mistakes_name_the_experiment(workplace):
    assert all(
        run.config.training.max_steps == 7
        for run in planned("phase2", settings=["training.max_steps=7", "training.warmup_steps=1"])
    )
    with pytest.raises(OelmError, match=r"GPT-01: setting 'training.steps' is unknown"):
        planned("phase2", settings=["training.steps=7"])


@pytest.mark.parametrize(
    ("setting", "way"), [("seed=5", "choose seeds with --seeds"), ("method=q_only", r"its arms say which \(baseline\)")]
)
def test_a_setting_that_would_make_all_runs_the_same_is_refused(workplace, setting, way):
    with pytest.raises(OelmError, match=rf"--set {setting} would give every run of GPT-01 the same \w+; {way}"):
        planned("phase2", settings=[setting])


def test_a_setting_does_not_stay_in_the_catalog(workplace):
    planned("GPT-01", settings=["model.overrides.d_model=64"])
    assert planned("GPT-01")[0].config.model.overrides["d_model"] == 128


def test_a_folder_that_never_started_is_nobodys_twin_once_it_is_planned_for_something_else(workplace):
    first, second = planned("phase2")
    RunFolder(first.folder).create(second.config.to_dict())  # left behind by another attempt
    assert [run.folder for run in planned("phase2")] == [first.folder, second.folder]
    with claimed(planned("phase2")):
        assert RunFolder(first.folder).config()["method"] == "baseline"


def test_a_changed_entry_for_an_existing_folder_is_refused_naming_the_difference(workplace):
    with claimed(planned("GPT-02")) as (job,):
        job.folder.append_metrics({"kind": "train", "step": 1})
    changed = planned("GPT-02", settings=["training.max_lr=0.001"])
    with pytest.raises(OelmError, match=r"training.max_lr is 0.003 there and 0.001 here"), claimed(changed):
        pass


def test_an_unreadable_folder_is_no_obstacle_to_planning(workplace):
    broken = Path("runs/old")
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text("{")
    assert len(planned("phase2")) == 2


OF_RUNS = [*suites()["transfer"], *suites()["architectures"]]
ENCODERS = [name for name in catalog() if experiment(name).task is not None and name not in OF_RUNS]


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_entry_runs_at_smoke_scale_and_knows_its_full_size(smoke, name, capfd):
    run = smoke(name, seeds=[0])[-1]
    result = train(run.config, run.folder)
    assert "Writing model shards" not in capfd.readouterr().err
    assert result["frozen_verified"]
    assert result["dataset"].startswith("toy-")  # no evidence about the task itself
    if name in suites()["encoders"]:
        return  # an encoder that only the hub knows the size of
    (full,) = planned(name, scale="full")
    facts = preview(full, experiment(name))
    assert facts["total_parameters"] == 109_484_547 - (769 if name.startswith("SST-2") else 0)
    assert facts["frozen_parameters"] == (14_174_208 if "oelm_freeze" in full.arm else 0)
    settings = ["training.epochs=1", "training.batch_size=64", "training.accumulation=1"]
    (shorter,) = planned(name, scale="full", settings=settings)
    fewer = preview(shorter, experiment(name))
    rows = full.config.training.batch_size * full.config.training.accumulation
    assert facts["steps"] == pytest.approx(3 * 64 / rows * fewer["steps"], rel=1e-3)
    assert fewer["memory_bytes"] > facts["memory_bytes"]


def test_architectures_learn_text_sort_and_translate(smoke):
    results = {}
    for name in suites()["architectures"]:
        runs = smoke(name, seeds=[0])
        assert [run.arm for run in runs] == ["baseline", "oelm_freeze", "oelm_random_matched", "permutation_qk+rank=8"]
        results[name] = train(runs[-1].config, runs[-1].folder)
        assert results[name]["frozen_verified"] and results[name]["flops_per_token"] > 0
    families = [result["model_family"] for result in results.values()][:4]
    assert families == ["decoder", "encoder", "encoder-decoder", "encoder-decoder"]
    sorting = {name for name, result in results.items() if "accuracy" in result["final"]}
    assert sorting == {n for n in results if "sst2" in n} | {"architectures-pretrained", "architectures-scratch"}


def test_transfer_fine_tunes_what_was_pretrained_and_has_its_control(smoke):
    with pytest.raises(OelmError, match=r"runs/transfer-pretrain/baseline-0 is no run; train it first"):
        smoke("transfer-sst2", seeds=[0])
    for run in smoke("transfer-pretrain", seeds=[0]):
        train(run.config, run.folder)
    for name in suites()["transfer"][1:]:
        run = smoke(name, seeds=[0])[-1]
        assert run.config.model.name == (None if "scratch" in name else "runs/transfer-pretrain/{method}-{seed}")
        result = train(run.config, run.folder)
        assert (
            result["method"] == "signs_qk+rank=8+layers=not-first1+offset"
            and result["frozen_verified"]
            and "accuracy" in result["final"]
        )
    records = [arm for comparison in load_runs("runs").comparisons for arm in comparison.arms]
    assert len(records) == 8  # four pretrained, four fine-tuned


@pytest.mark.parametrize("name", [n for n in catalog() if experiment(n).data and n not in ("demo", *OF_RUNS[-10:])])
def test_every_language_model_runs_at_smoke_scale(smoke, name):
    for run in smoke(name, seeds=[0])[-2:]:
        result = train(run.config, run.folder)
        assert result["steps"] == 12
        assert result["frozen_verified"]


@pytest.mark.shared_data
def test_mini_scale_reads_real_text_from_a_data_root(workplace, shared_data):
    small = ["training.max_steps=1", "training.warmup_steps=0", "training.eval_tokens=128"]
    (run,) = plan_experiments(
        chosen(["GPT-05"], "mini"), Path("runs"), data_root=shared_data, settings=small, threads=1
    )
    assert run.config.data.path == "data/mini/openwebtext-bpe2048"
    assert run.config.data.fingerprint


def test_a_folder_below_the_data_root_is_not_taken_for_the_corpus_of_its_name(workplace):
    (workplace / "tinystories").mkdir()
    for split in ("train", "validation"):
        (workplace / "tinystories" / f"{split}.txt").write_text("A story of its own. " * 50)
    (recipe,) = (found.data for found in chosen(["GPT-01"], "mini"))
    source = sources.source_of(recipe, sources.data_root("mini", Path(".")))
    assert [path.parent for path in source.train] == [workplace / "tinystories"]


def test_a_data_root_without_the_corpus_is_refused(workplace):
    with pytest.raises(OelmError, match="has no folder 'openwebtext-sample'"):
        plan_experiments(chosen(["GPT-04"], "mini"), Path("runs"), data_root=workplace)
    with pytest.raises(OelmError, match="--data-root nowhere is not a folder"):
        plan_experiments(chosen(["GPT-04"], "mini"), Path("runs"), data_root=Path("nowhere"))


def test_without_a_data_root_web_text_is_not_downloaded_for_a_sample(workplace, monkeypatch):
    monkeypatch.delenv("OELM_SHARED_DATA", raising=False)
    with pytest.raises(OelmError, match="too large to download for this scale"):
        plan_experiments(chosen(["GPT-04"], "mini"), Path("runs"))


def test_a_sample_named_by_the_environment_never_passes_for_the_full_corpus(workplace, monkeypatch):
    (workplace / "tinystories").mkdir()
    monkeypatch.setenv("OELM_SHARED_DATA", str(workplace))
    with pytest.raises(OelmError, match="could not be reached on the hub"):
        plan_experiments(chosen(["GPT-01"], "full"), Path("runs"))


def test_arms_are_timed_side_by_side_once_and_kept_beside_their_runs(smoke):
    planned = smoke("phase2")
    for run in planned:
        run.folder.mkdir(parents=True)
    time_planned(planned, rounds=2)
    files = [run.folder.parent / "step_time.json" for run in planned]
    first, second = (json.loads(file.read_text()) for file in files)
    assert first == second
    assert first["arms"]["oelm_freeze"]["ratio"] > 0
    time_planned(planned, rounds=2)
    assert json.loads(files[0].read_text()) == first


def test_times_are_never_lost_to_another_experiments_and_later_arms_are_timed_with_the_earlier(smoke, monkeypatch):
    def measure(arms, *rest, **settings):
        return {"reference": "baseline", "arms": {arm: {} for arm in arms if arm != "baseline"}}

    def timed(*folders):
        return [list(json.loads((folder / "step_time.json").read_text())["arms"]) for folder in folders]

    monkeypatch.setattr(bench, "compare_step_times", measure)
    runs = smoke("phase2", "GPT-03")
    for run in runs:
        run.folder.mkdir(parents=True)
    first, second, third = (run.folder.parent for run in runs)
    time_planned(runs[:2])
    time_planned(runs[1:])
    assert timed(first, second, third) == [["oelm_freeze"], ["oelm_freeze"], ["oelm_freeze", "oelm_random"]]
    time_planned([replace(runs[0], arm="q_only")])
    assert timed(first, second) == [["q_only", "oelm_freeze"], ["oelm_freeze"]]


def test_times_of_steps_that_were_computed_otherwise_do_not_count(smoke, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "compare_step_times", lambda arms, config, **settings: measured.append(config) or {})
    (run, *_) = smoke("phase2")
    run.folder.mkdir(parents=True)
    old = {"protocol": {"order": "A-B-…-B-A"}, "reference": "baseline", "arms": {}}  # always fp32, not compiled
    (run.folder.parent / "step_time.json").write_text(json.dumps(old))
    time_planned([run])
    assert measured == []
    run.config.runtime.compile = True
    time_planned([run])
    assert measured == [run.config]


def test_models_of_several_sizes_share_no_step_time(smoke):
    planned, said = smoke("sizes"), []
    time_planned(planned, say=said.append)
    assert "several sizes" in said[0]
    assert not list(Path("runs").rglob("step_time.json"))
