import json
import logging
import shutil
from pathlib import Path

import pytest
import torch

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.files import explain, write_atomically
from oelm.freezing.apply import FrozenChanged
from oelm.freezing.methods import METHODS
from oelm.freezing.report import FreezeReport
from oelm.models.gpt import GPT
from oelm.runs import RunFolder
from oelm.training import checkpoints, setup, tracking, trainer
from oelm.training.checkpoints import newest_valid
from oelm.training.objectives import LanguageModelling
from oelm.training.reporting import Reporter
from oelm.training.step import TrainingStep
from oelm.training.trainer import Trainer, train

FROZEN = [
    name
    for name, m in METHODS.items()
    if any(m.part(role).frozen and m.part(role).projection == "dense" for role in ("query", "key", "ffn"))
]


@pytest.mark.parametrize("method", FROZEN)
def test_frozen_tensors_survive_decay_clipping_accumulation_and_are_unknown_to_the_optimizer(config, tmp_path, method):
    run = config(method, weight_decay=0.5, grad_clip=0.1)
    folder = RunFolder(tmp_path / "run")
    folder.create(run.to_dict())
    work = Trainer(setup.prepare(run, folder), folder)
    before = {name: p.clone() for name, p in work.model.named_parameters() if not p.requires_grad}
    assert before
    gradients = {name: p for name, p in work.model.named_parameters() if name in before}
    work.run()
    known = {name for group in work.optimizer.param_groups for name in group["names"]}
    for name, parameter in gradients.items():
        assert torch.equal(parameter, before[name]), name
        assert parameter.grad is None
        assert name not in known
        assert parameter not in work.optimizer.state
    report = FreezeReport.from_dict(folder.freeze_report())
    assert sorted(report.frozen_names) == sorted(before)
    assert folder.result()["frozen_verified"] is True


def test_everything_else_trains(config, tmp_path):
    run = config("oelm_freeze")
    folder = RunFolder(tmp_path / "run")
    folder.create(run.to_dict())
    work = Trainer(setup.prepare(run, folder), folder)
    before = {name: p.clone() for name, p in work.model.named_parameters() if p.requires_grad}
    work.run()
    unmoved = [n for n, p in work.model.named_parameters() if n in before and torch.equal(p, before[n])]
    assert unmoved == []


def test_a_run_that_touches_a_frozen_tensor_fails(config, tmp_path, monkeypatch):
    original = TrainingStep.__call__

    def meddle(self, model, optimizer, step):
        with torch.no_grad():
            model.blocks[0].attention.query.weight.mul_(0.999)
        return original(self, model, optimizer, step)

    monkeypatch.setattr(TrainingStep, "__call__", meddle)
    with pytest.raises(FrozenChanged, match="frozen tensors failed verification"):
        train(config(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.status()["state"] == "failed"
    assert folder.result() is None
    assert newest_valid(folder.checkpoints) is None


def test_arms_share_every_weight_outside_of_queries_and_keys(config, tmp_path):
    states = []
    for method in ("baseline", "oelm_freeze"):
        folder = RunFolder(tmp_path / method)
        folder.create(config(method).to_dict())
        states.append(Trainer(setup.prepare(config(method), folder), folder).model.state_dict())
    different = [name for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    assert different
    assert all("query" in name or "key" in name for name in different)


def test_the_run_folder_holds_everything_the_contract_names(config, tmp_path):
    train(config(), tmp_path / "run")
    present = {file.name for file in (tmp_path / "run").iterdir()}
    assert present >= {
        "config.yaml", "environment.json", "status.json", "metrics.jsonl", "clock.jsonl", "timing_stats.json",
        "training.log", "freeze.json", "checkpoints", "result.json",
    }  # fmt: skip
    timing = RunFolder(tmp_path / "run").timing()
    published = {
        "model_type", "init_method", "dataset", "total_wall_time", "mean_step_time", "median_step_time",
        "std_step_time", "min_step_time", "max_step_time", "p95_step_time", "p99_step_time", "num_steps_measured",
        "validation_time_total", "validation_time_mean", "validation_count", "final_perplexity", "best_val_loss",
    }  # fmt: skip
    assert published <= set(timing)
    assert sum(
        timing[f"{phase}_share"] for phase in ("data", "forward", "backward", "optimizer", "other")
    ) == pytest.approx(1)
    assert timing["num_steps_measured"] == 12 - 1  # a tenth of a short run is warm-up


def test_the_loss_falls(config, tmp_path):
    settings = {"max_steps": 150, "eval_every": 30, "accumulation": 1, "max_lr": 1e-2}
    result = train(config("baseline", **settings, model={"dropout": 0.0}), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics("validation")
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert result["final"]["loss"] > result["true_entropy"]


def test_the_best_checkpoint_is_the_one_with_the_lowest_validation_loss(config, tmp_path, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(
        LanguageModelling, "validate", lambda *a, **k: {"loss": next(losses), "perplexity": 1.0, "bits_per_byte": 1.0}
    )
    train(config(), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert (folder / "best").resolve().name == "step-8"
    assert (folder / "latest").resolve().name == "step-12"


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(config, tmp_path, monkeypatch):
    original = LanguageModelling.loss
    calls = []

    def loss(objective, model, batch):
        calls.append(1)
        value = original(objective, model, batch)
        return value * float("nan") if len(calls) > 14 else value  # step 8 has two micro-batches

    monkeypatch.setattr(LanguageModelling, "loss", loss)
    with pytest.raises(trainer.Diverged, match=r"became nan at step 8; the checkpoint of step 4 is kept"):
        train(config(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.status()["state"] == "failed"
    kept = newest_valid(folder.checkpoints)
    assert kept.step == 4
    assert all(torch.isfinite(t).all() for t in kept.tensors("model").values())


@pytest.mark.parametrize("poisoned_step", [4, 12])
def test_a_gradient_that_is_no_number_never_reaches_the_weights(config, tmp_path, monkeypatch, poisoned_step):
    """Step 4 is a checkpoint step and step 12 the last: the loss of both is still a number."""
    clip, steps = torch.nn.utils.clip_grad_norm_, iter(range(1, 100))

    def poison(trained, limit):
        if next(steps) == poisoned_step:
            trained[-1].grad.fill_(float("inf"))
        return clip(trained, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", poison)
    with pytest.raises(trainer.Diverged, match=f"gradient norm became inf at step {poisoned_step}"):
        train(config(checkpoint_every=2), tmp_path / "run")
    kept = newest_valid(tmp_path / "run" / "checkpoints")
    assert kept.step == poisoned_step - 2
    assert all(torch.isfinite(t).all() for t in kept.tensors("model").values())
    assert RunFolder(tmp_path / "run").result() is None


def test_a_config_that_was_edited_after_the_start_is_refused(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Reporter, "finish", lambda *a: (_ for _ in ()).throw(RuntimeError("stopped")))
    with pytest.raises(RuntimeError, match="stopped"):
        train(config("oelm_freeze"), tmp_path / "run")
    monkeypatch.undo()
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(
        OelmError, match="written with another config \\(method is 'oelm_freeze' there and 'baseline' here"
    ):
        train(config("baseline"), tmp_path / "run")


def test_a_run_killed_after_its_result_is_shown_as_finished_when_asked_again(config, tmp_path):
    train(config(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.set_status("running", step=12)
    train(config(), tmp_path / "run")
    assert folder.status()["state"] == "finished"


def test_the_gradient_scaler_of_fp16_works_and_its_state_is_resumed(config, tmp_path, monkeypatch):
    """What CUDA does, on the CPU: an enabled scaler around the same loop."""
    monkeypatch.setattr(setup, "choose_device", lambda wanted, precision: torch.device("cpu"))
    whole = train(config(precision="fp16"), tmp_path / "whole")
    stops = iter([True])

    def stop_once(self, step, *args):
        if step == 5 and next(stops, False):
            raise KeyboardInterrupt
        return original(self, step, *args)

    original = Reporter.log_step
    monkeypatch.setattr(Reporter, "log_step", stop_once)
    with pytest.raises(KeyboardInterrupt):
        train(config(precision="fp16"), tmp_path / "parts")
    state = newest_valid(tmp_path / "parts" / "checkpoints").state
    assert state["scaler"]["scale"] > 1
    assert train(config(precision="fp16"), tmp_path / "parts")["final"] == whole["final"]


def test_a_run_that_breaks_down_before_its_first_step_says_so(config, tmp_path, monkeypatch):
    monkeypatch.setattr("oelm.training.trainer.Rates.of", lambda *a: (_ for _ in ()).throw(RuntimeError("no memory")))
    with pytest.raises(RuntimeError, match="no memory"):
        train(config(), tmp_path / "run")
    status = RunFolder(tmp_path / "run").status()
    assert (status["state"], status["error"]) == ("failed", "RuntimeError: no memory")


def test_a_tracker_that_raises_changes_nothing(config, tmp_path, monkeypatch):
    class Broken:
        def __init__(self, folder, config):
            self.calls = 0

        def log(self, step, values):
            raise ConnectionError("login expired")

        def close(self):
            raise ConnectionError("login expired")

    class Unavailable:
        def __init__(self, folder, config):
            raise ImportError("not installed")

    monkeypatch.setattr(tracking, "TRACKERS", {"wandb": Broken, "tensorboard": Unavailable})
    plain = train(config(), tmp_path / "plain")
    tracked = config()
    tracked.runtime.trackers = ["wandb", "tensorboard"]
    result = train(tracked, tmp_path / "tracked")
    assert result["final"] == plain["final"]
    text = (tmp_path / "tracked" / "training.log").read_text()
    assert text.count("tracker wandb failed") == 1
    assert "tracker tensorboard is off: not installed" in text


def test_checkpoints_load_through_transformers(config, tmp_path):
    from transformers import AutoModelForCausalLM

    train(config(), tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoints" / "best").eval()
    ours = GPT.from_pretrained(tmp_path / "run" / "checkpoints" / "best").eval()
    ids = torch.randint(100, (1, 8))
    assert torch.equal(model(ids).logits, ours(ids))


def test_bf16_runs_and_keeps_master_weights_in_float32(config, tmp_path):
    result = train(config(precision="bf16"), tmp_path / "run")
    assert result["frozen_verified"]
    tensors = newest_valid(tmp_path / "run" / "checkpoints").tensors("model")
    assert {t.dtype for t in tensors.values()} == {torch.float32}


def test_compiling_gives_the_same_losses(config, tmp_path):
    eager = config(max_steps=3, model={"dropout": 0.0, "num_layers": 1})
    compiled = eager.model_copy(deep=True)
    compiled.runtime.compile = True
    train(eager, tmp_path / "eager")
    train(compiled, tmp_path / "compiled")
    a, b = ([row["loss"] for row in RunFolder(tmp_path / n).metrics("train")] for n in ("eager", "compiled"))
    assert a == pytest.approx(b, abs=1e-4)
    keys = newest_valid(tmp_path / "compiled" / "checkpoints").tensors("model")
    assert not any("_orig_mod" in key for key in keys)


def test_logging_is_left_as_it_was(config, tmp_path):
    logger = logging.getLogger("oelm")
    before = (logger.level, logger.propagate, list(logger.handlers))
    train(config(max_steps=2, warmup_steps=1), tmp_path / "run")
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence_length": 64}, "sequence_length 64 exceeds the model's max_seq_len 32"),
        ({"precision": "fp16"}, "fp16 needs a CUDA device"),
        ({"batch_size": 10**6}, "fewer than one batch of 1000000"),
        ({"model": {"vocab_size": 100}}, "vocab_size 100 is smaller than the tokenizer's 512"),
        ({"model": {"num_heads": 5}}, "num_heads 5 does not divide d_model 32"),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(config, tmp_path, change, message):
    with pytest.raises(OelmError, match=message):
        train(config(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_data_than_the_run_was_made_with_is_refused_naming_both(config, tmp_path):
    run = config()
    run.data.fingerprint = "000000000000"
    with pytest.raises(OelmError, match=r"has fingerprint \w{12}, but this run was made with 000000000000"):
        train(run, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("val.bin", "flip", "val.bin is corrupt"),
        ("train.bin", "flip", "train.bin is corrupt"),
        ("manifest.json", '{"format": 1}', "manifest.json is incomplete or damaged"),
    ],
)
def test_data_that_is_not_what_its_manifest_says_is_refused(config, fables_folder, tmp_path, name, content, message):
    shutil.copytree(fables_folder, tmp_path / "data")
    file = tmp_path / "data" / name
    if content is None:
        file.unlink()
    elif content == "flip":
        file.write_bytes(b"\x01\x00" + file.read_bytes()[2:])
    else:
        file.write_text(content)
    run = config()
    run.data.path = str(tmp_path / "data")
    with pytest.raises(OelmError, match=message):
        train(run, tmp_path / "run")


def test_another_tokenizer_of_the_same_size_is_refused(config, fables_folder, tmp_path):
    shutil.copytree(fables_folder, tmp_path / "data")
    file = tmp_path / "data" / "tokenizer.json"
    content = json.loads(file.read_text())
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    file.write_text(json.dumps(content))
    run = config()
    run.data.path = str(tmp_path / "data")
    with pytest.raises(OelmError, match="is not the tokenizer of this data: hash"):
        train(run, tmp_path / "run")


def test_too_little_disk_is_refused_before_work(config, tmp_path, monkeypatch):
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(OelmError, match="checkpoints of this model need"):
        train(config(), tmp_path / "run")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(OelmError, match="'cuda:7' does not exist; this machine has"):
        setup.choose_device("cuda:7", "fp32")
    with pytest.raises(OelmError, match="'gpu' is unknown"):
        setup.choose_device("gpu", "fp32")


def test_a_full_disk_during_a_checkpoint_keeps_the_one_before(config, tmp_path, monkeypatch):
    original = checkpoints.write_tensors
    calls = []

    def write(path, tensors):
        calls.append(path)
        if len(calls) > 4:
            raise OSError(28, "No space left on device", str(path))
        original(path, tensors)

    monkeypatch.setattr(checkpoints, "write_tensors", write)
    with pytest.raises(OSError, match="No space left"):
        train(config(), tmp_path / "run")
    kept = newest_valid(tmp_path / "run" / "checkpoints")
    assert kept.step == 4
    assert not list((tmp_path / "run" / "checkpoints").glob(".step-*"))
    monkeypatch.undo()
    assert train(config(), tmp_path / "run")["steps"] == 12


def test_a_disk_too_full_for_a_status_does_not_hide_why_a_run_failed(config, tmp_path, monkeypatch):
    full = OSError(28, "No space left on device")
    original = RunFolder.set_status

    def set_status(self, state, **facts):
        if state == "failed":
            raise full
        original(self, state, **facts)

    monkeypatch.setattr(RunFolder, "set_status", set_status)
    monkeypatch.setattr(TrainingStep, "__call__", lambda *a: (_ for _ in ()).throw(RuntimeError("what went wrong")))
    with pytest.raises(RuntimeError, match="what went wrong"):
        train(config(), tmp_path / "run")
    assert "what went wrong" in (tmp_path / "run" / "training.log").read_text()


def test_status_shows_progress(config, tmp_path):
    seen = []
    train(config(), tmp_path / "run", seen.append)
    assert seen[0]["state"] == "running"
    assert seen[-1]["state"] == "finished"
    assert json.loads((tmp_path / "run" / "status.json").read_text())["step"] == 12


def test_a_program_that_trains_with_us_hears_our_log(config, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "oelm"):
        train(config(max_steps=3), tmp_path / "run")
    assert any("finished: perplexity" in record.message for record in caplog.records)


def test_a_result_says_how_much_there_was_to_read_and_what_a_token_costs(config, tmp_path, fables_folder):
    base, frozen = (train(config(name, max_steps=3), tmp_path / name) for name in ("baseline", "oelm_freeze"))
    assert base["train_tokens"] == len(TokenData.open(fables_folder).train)
    assert 0.9 < frozen["flops_per_token"] / base["flops_per_token"] < 1
    assert frozen["block_flops_per_token"] / base["block_flops_per_token"] == pytest.approx(22 / 24)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_said_with_the_name_of_the_file_and_the_run_has_failed(config, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    original = RunFolder.append_metrics

    def append(run, row):
        if row["step"] == 3:
            run.metrics_file = Path("/dev/full")
            monkeypatch.setattr("tempfile.mkstemp", full)  # nor is there room for a new file
        original(run, row)

    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "append_metrics", append)
    with pytest.raises(OSError) as caught:
        train(config(), folder.path)
    assert str(explain(caught.value)) == (
        "cannot write /dev/full: the disk is full; free some space and run the same command again"
    )
    status = RunFolder(folder.path).status()
    assert status["state"] == "failed" and "/dev/full" in status["error"]


def test_a_file_that_could_not_be_written_is_named(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError) as caught:
        write_atomically(tmp_path / "result.json", "{}")
    assert caught.value.filename == str(tmp_path / "result.json")
    assert not list(tmp_path.iterdir())
