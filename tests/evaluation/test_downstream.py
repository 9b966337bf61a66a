"""oelm evaluate --tasks: what lm-eval says of a run is what it says of its exported folder."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.evaluation import downstream
from oelm.evaluation.export import export
from oelm.evaluation.subjects import load
from oelm.records import read_json

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra [eval]")
PIQA = [
    {"goal": f"To {verb} the {thing}", "sol1": f"take the {thing} and {verb} it.", "sol2": "wait.", "label": i % 2}
    for i, (verb, thing) in enumerate([("wash", "cup"), ("open", "door"), ("find", "key"), ("read", "book")] * 2)
]
BLIMP = [{"sentence_good": f"The {a} sleeps.", "sentence_bad": f"The {a} sleep."} for a in ("fox", "crow", "hare")]
LAMBADA = [{"text": f"The fox saw the {thing} and took the {thing}"} for thing in ("cup", "key", "book")]


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    result = run("evaluate", *words)
    assert isinstance(result.exception, oelm.OelmError) and "\n" not in str(result.exception), result.output
    return str(result.exception)


@pytest.fixture(scope="module", autouse=True)
def few_tasks():
    """Reading all of lm-eval's 14,000 tasks takes long; four folders of them are read in no time."""
    from lm_eval.tasks import TaskManager

    root = Path(lm_eval.__file__).parent / "tasks"
    manager = TaskManager(
        include_defaults=False, include_path=[root / name for name in ("piqa", "blimp", "lambada", "sciq")]
    )
    patch = pytest.MonkeyPatch()
    patch.setattr(downstream, "_manager", lambda: manager)
    yield
    patch.undo()


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "rows"
    (folder / "blimp").mkdir(parents=True)
    blimp = {f"blimp/{name}": BLIMP for name in ("only_npi_scope", "wh_island")}
    for name, content in {"piqa_validation": PIQA, "lambada_openai_test": LAMBADA, **blimp}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder


@pytest.mark.parametrize("fewshot", [0, 2])
def test_a_run_scores_what_lm_eval_gives_its_exported_folder(runs, rows, tmp_path, fewshot):
    export(runs / "signs_qk-0", tmp_path / "hf")
    asked = downstream.find_tasks(["piqa", "lambada_openai"], rows)
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path / "hf")},
        tasks=[task for one in asked for task in one.tasks],
        num_fewshot=fewshot,
        batch_size=4,
        device="cpu",
        bootstrap_iters=0,
        log_samples=False,
        task_manager=downstream._manager(),
    )
    result = run("evaluate", runs / "signs_qk-0", "--tasks", "piqa,lambada_openai", "--task-data", rows,
                 "--fewshot", fewshot, "--batch", 4, "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    piqa, lambada = json.loads(result.stdout)["models"]
    for name, found in (("piqa", piqa), ("lambada_openai", lambada)):
        wanted = theirs["results"][name]
        assert {*found["scores"][name]} == ({"acc", "acc_norm"} if name == "piqa" else {"acc", "perplexity"})
        for key, value in found["scores"][name].items():
            assert value == pytest.approx(wanted[f"{key},none"], rel=1e-3), (name, key)
        assert found["shots"] == {name: fewshot}
    assert (
        piqa["rows"] == 8 and piqa["splits"] == {"piqa": "validation"} and lambada["splits"]["lambada_openai"] == "test"
    )
    assert lambada["scores"]["lambada_openai"]["perplexity"] > 1


def test_few_shot_examples_are_those_that_lm_eval_draws(runs, rows):
    (asked,), (theirs,) = (downstream.find_tasks(["piqa"], rows) for _ in range(2))
    (task,) = theirs.tasks
    task.set_config("num_fewshot", 2)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests()
    downstream.evaluate(load(runs / "baseline-0"), asked, fewshot=2)
    assert [one.args for one in asked.tasks[0].instances] == [one.args for one in task.instances]


def test_results_lie_sealed_in_the_run_and_runs_of_one_arm_are_one_row(runs, rows):
    result = run("evaluate", runs / "baseline-0", runs / "baseline-1", "--tasks", "piqa", "--task-data", rows,
                 "--limit", 6, "--json")  # fmt: skip
    facts = json.loads(result.stdout)
    (arm,) = facts["arms"]
    assert arm["arm"] == "baseline" and arm["values"]["piqa first 6 accuracy %"]["count"] == 2
    record = read_json(runs / "baseline-0" / "evaluation" / "task-piqa-first-6.json", "headlines", "scores")
    assert record["score"] == record["scores"]["piqa"]["acc"] and record["rows"] == 6 and record["step"] == 3
    said = run("evaluate", runs / "baseline-0", "--tasks", "piqa", "--task-data", rows, "--limit", 2)
    assert said.exit_code == 0 and "piqa first 2 accuracy %" in said.stdout


def test_a_group_is_the_mean_of_the_tasks_that_have_a_file(runs, rows):
    result = run("evaluate", runs / "baseline-0", "--tasks", "blimp", "--task-data", rows, "--json")
    (found,) = json.loads(result.stdout)["models"]
    assert set(found["scores"]) == {"blimp_only_npi_scope", "blimp_wh_island"} and len(found["left_out"]) == 65
    assert found["score"] == pytest.approx(sum(one["acc"] for one in found["scores"].values()) / 2)
    assert "2 tasks; 65 others have no file" in result.stderr


def test_texts_beyond_the_context_are_counted(runs, rows):
    long = [{**row, "goal": row["goal"] + " again" * 200} for row in PIQA[:2]]
    (rows / "piqa_validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    result = run("evaluate", runs / "baseline-0", "--tasks", "piqa", "--task-data", rows)
    assert "4 texts are longer than the context" in result.stderr


def test_rows_whose_answer_alone_is_longer_than_the_context_are_left_out_and_counted(runs, rows):
    def scores(content):
        (rows / "piqa_validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
        result = run("evaluate", runs / "baseline-0", "--tasks", "piqa", "--task-data", rows, "--json")
        assert result.exit_code == 0, result.output
        assert "Running loglikelihood" not in result.stderr  # a log file gets no progress bars
        (found,) = json.loads(result.stdout)["models"]
        return found, result.stderr

    endless = {**PIQA[1], "sol1": "again " * 400}
    found, said = scores([PIQA[0], endless, *PIQA[2:]])
    without, _ = scores([PIQA[0], *PIQA[2:]])
    assert found["scores"] == without["scores"] and found["rows"] == 7 and found["unfit"] == 1
    assert "1 rows left out, because an answer alone is longer than the context" in said
    (rows / "piqa_validation.jsonl").write_text(json.dumps(endless) + "\n")
    assert "every row of task piqa" in refused(runs / "baseline-0", "--tasks", "piqa", "--task-data", rows)


def test_what_cannot_be_evaluated_is_refused_in_one_line(runs, rows, tmp_path, monkeypatch):
    baseline = runs / "baseline-0"
    assert "nothing to evaluate" in refused(baseline)
    assert "nothing to evaluate" in refused(baseline, "--tasks", " ,")
    assert "lm-eval task 'piqaa' is unknown; did you mean 'piqa'" in refused(baseline, "--tasks", "piqaa")
    assert "has no rows for task sciq" in refused(baseline, "--tasks", "sciq", "--task-data", rows)
    assert "does not exist" in run("evaluate", baseline, "--tasks", "piqa", "--task-data", tmp_path / "nowhere").stderr
    (rows / "piqa_validation.jsonl").write_text('{"goal": "a"}\n')
    assert "does not fit task piqa" in refused(baseline, "--tasks", "piqa", "--task-data", rows)
    (rows / "piqa_validation.jsonl").write_text('{"goal": "a"}\n[1]\n')
    assert "piqa_validation.jsonl does not fit task piqa" in refused(baseline, "--tasks", "piqa", "--task-data", rows)
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoint" in refused(tmp_path / "empty", "--tasks", "lambada_openai", "--task-data", rows)
    monkeypatch.setattr("oelm.evaluation.downstream.unreachable", lambda: None)
    monkeypatch.setattr("oelm.hub.unreachable", lambda: "no network")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.load_dataset", lambda **_: (_ for _ in ()).throw(ConnectionError("no")))
    assert "task piqa cannot be had (no network); give local files" in refused(baseline, "--tasks", "piqa")
    monkeypatch.setattr(downstream, "find_spec", lambda _: None)
    assert "pip install '.[eval]' in your clone" in refused(baseline, "--tasks", "piqa")
