"""oelm.FreezeCallback inside transformers' own Trainer."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers.training_args import ParallelMode

import oelm
from architectures import ARCHITECTURES
from oelm.freezing.apply import tensor_hash

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate (dev extra)")

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [
    {"input_ids": torch.randint(60, (9,), generator=torch.Generator().manual_seed(i)), "labels": i % 2}
    for i in range(32)
]


def trainer(model, folder, callback, **settings) -> hf.Trainer:
    arguments = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "weight_decay": 0.5}
    arguments |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", **settings}
    init = {"model_init": model} if callable(model) and not isinstance(model, torch.nn.Module) else {"model": model}
    return hf.Trainer(
        **init, args=hf.TrainingArguments(str(folder), **arguments), train_dataset=ROWS, eval_dataset=ROWS[:4],
        callbacks=[callback],
    )  # fmt: skip


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "huggingface-trainer.md").read_text()
    example = text.split("```python\n")[1].split("```")[0].replace("report_to=[]", "report_to=[], use_cpu=True")
    exec(compile(example, "docs/huggingface-trainer.md", "exec"), {})
    assert "oelm_freeze: " in capsys.readouterr().out
    assert json.loads((tmp_path / "frozen-bert" / "freeze.json").read_text())["frozen_parameters"] == 4 * (32 * 32 + 32)


def test_frozen_weights_survive_the_trainer_and_the_rest_trains(tmp_path):
    model = ARCHITECTURES["bert"].model()
    callback = oelm.FreezeCallback("oelm_freeze", seed=3)
    work = trainer(model, tmp_path, callback)
    before = {name: tensor_hash(p) for name, p in model.named_parameters()}
    work.train()
    moved = {name for name, p in model.named_parameters() if tensor_hash(p) != before[name]}
    frozen = set(callback.report.frozen_names)
    assert len(frozen) == 8
    assert not moved & frozen and "classifier.weight" in moved
    assert callback.timing["num_steps_measured"] == 11  # one of twelve is warm-up
    assert json.loads((tmp_path / "timing_stats.json").read_text()) == callback.timing
    saved = oelm.FreezeReport.from_json((tmp_path / "freeze.json").read_text())
    assert saved == callback.report


def test_it_freezes_exactly_as_oelm_freeze_does(tmp_path):
    ours, theirs = ARCHITECTURES["bert"].model(), ARCHITECTURES["bert"].model()
    callback = oelm.FreezeCallback("oelm_freeze")
    trainer(ours, tmp_path, callback, seed=5)
    assert callback.report == oelm.freeze(theirs, "oelm_freeze", seed=5)


def test_gpt2_can_be_resumed_from_the_trainers_own_checkpoint(tmp_path):
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in ROWS]

    def work(steps: int) -> hf.Trainer:
        made = trainer(
            ARCHITECTURES["gpt2"].model(), tmp_path, oelm.FreezeCallback("oelm_freeze"), max_steps=steps,
            save_strategy="steps", save_steps=4,
        )  # fmt: skip
        made.train_dataset = rows
        return made

    work(4).train()
    second = work(8)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 8


def test_a_weight_that_moved_is_noticed(tmp_path):
    class Meddler(hf.TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            with torch.no_grad():
                model.bert.encoder.layer[0].attention.self.key.weight[0, 0] += 1e-6

    work = trainer(ARCHITECTURES["bert"].model(), tmp_path, oelm.FreezeCallback("oelm_freeze"))
    work.add_callback(Meddler())
    with pytest.raises(oelm.FrozenChanged, match=r"key.weight changed"):
        work.train()


def test_late_callbacks_new_models_and_foreign_optimizers_are_refused(tmp_path):
    late = trainer(ARCHITECTURES["bert"].model(), tmp_path, hf.TrainerCallback())
    late.add_callback(oelm.FreezeCallback("oelm_freeze"))
    with pytest.raises(oelm.OelmError, match=r"pass it in Trainer\(callbacks="):
        late.train()
    again = trainer(lambda: ARCHITECTURES["bert"].model(), tmp_path, oelm.FreezeCallback("oelm_freeze"))
    with pytest.raises(oelm.OelmError, match="model_init"):
        again.train()
    model = ARCHITECTURES["bert"].model()
    own = hf.Trainer(
        model,
        hf.TrainingArguments(str(tmp_path), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=ROWS,
        callbacks=[oelm.FreezeCallback("oelm_freeze")],
        optimizers=(torch.optim.AdamW(model.parameters()), None),
    )
    with pytest.raises(oelm.OelmError, match="optimizer given to the Trainer holds frozen weights"):
        own.train()


THAWS = "oelm_freeze+thaw=top-down:3+warmup=0+refreeze=6"
SAVES = {"save_strategy": "steps", "save_steps": 4, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize(("name", "step"), [(THAWS, 4), (THAWS, 8), ("pretrained_frozen", 4)])
def test_a_run_resumed_anywhere_is_held_to_what_its_checkpoint_promised(tmp_path, name, step):
    whole = trainer(ARCHITECTURES["bert"].model(), tmp_path / "a", oelm.FreezeCallback(name), **SAVES)
    whole.train()
    callback = oelm.FreezeCallback(name)
    resumed = trainer(ARCHITECTURES["bert"].model(seed=7), tmp_path / "b", callback, **SAVES)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{step}"))
    assert resumed.state.global_step == 12
    assert all(site.frozen for site in callback.report.sites)
    for (path, ours), theirs in zip(resumed.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), path


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    trainer(ARCHITECTURES["bert"].model(), tmp_path, oelm.FreezeCallback("oelm_freeze"), **SAVES).train()
    other = trainer(ARCHITECTURES["bert"].model(), tmp_path, oelm.FreezeCallback("fresh_orthogonal"), **SAVES)
    with pytest.raises(oelm.OelmError, match="method 'oelm_freeze', but FreezeCallback has 'fresh_orthogonal'"):
        other.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(("best", "frozen"), [(4, False), (8, True)])
def test_the_best_model_comes_back_with_the_promises_of_its_time(tmp_path, best, frozen):
    scores = iter([float(step == best) for step in (4, 8, 12)])
    callback = oelm.FreezeCallback(THAWS)
    work = trainer(
        ARCHITECTURES["bert"].model(), tmp_path, callback, **SAVES, eval_strategy="steps", eval_steps=4,
        load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True,
    )  # fmt: skip
    work.compute_metrics = lambda _: {"score": next(scores)}
    work.train()
    assert work.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    assert {site.frozen for site in callback.report.sites} == {frozen}
    assert {p.requires_grad for n, p in work.model.named_parameters() if ".query." in n} == {not frozen}
    oelm.verify_frozen(work.model, callback.report)


def test_training_twice_applies_a_learning_rate_factor_once_each_time(tmp_path):
    model = ARCHITECTURES["bert"].model()
    work = trainer(
        model, tmp_path, oelm.FreezeCallback("baseline+lr=0.1"), max_steps=1, lr_scheduler_type="constant",
        weight_decay=0.0, learning_rate=1e-3,
    )  # fmt: skip
    attention = model.bert.encoder.layer[0].attention.self
    for _ in range(3):
        query, value = attention.query.weight.detach().clone(), attention.value.weight.detach().clone()
        work.train()
        ratio = (attention.query.weight - query).abs().mean() / (attention.value.weight - value).abs().mean()
        assert 0.05 < ratio.item() < 0.2


@pytest.mark.parametrize(("name", "method"), [("bert", "baseline+rank=2"), ("gpt2", "oelm_freeze"), ("bert", THAWS)])
def test_an_optimizer_that_lacks_what_should_train_is_refused(tmp_path, name, method):
    model = ARCHITECTURES[name].model()
    later = (".query.", ".key.") if method == THAWS else ()
    held = [p for path, p in model.named_parameters() if not any(word in path for word in later)]
    work = hf.Trainer(
        model,
        hf.TrainingArguments(str(tmp_path), max_steps=8, report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=ROWS,
        callbacks=[oelm.FreezeCallback(method)],
        optimizers=(torch.optim.AdamW(held), None),
    )
    with pytest.raises(oelm.OelmError, match=r"does not hold .* which would never train; let the Trainer make"):
        work.train()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_several_processes_ddp_must_allow_weights_without_a_gradient(tmp_path, monkeypatch, checkpointing):
    monkeypatch.setattr(hf.TrainingArguments, "parallel_mode", ParallelMode.DISTRIBUTED)
    args = hf.TrainingArguments(str(tmp_path), gradient_checkpointing=checkpointing, report_to=[])
    thaws, stays = oelm.FreezeCallback("oelm_freeze+thaw=top-down:0.5"), oelm.FreezeCallback("oelm_freeze")
    stays.on_init_end(args, None, None, model=ARCHITECTURES["bert"].model())
    if checkpointing:
        with pytest.raises(oelm.OelmError, match="set ddp_find_unused_parameters=True"):
            thaws.on_init_end(args, None, None, model=ARCHITECTURES["bert"].model())
        args.ddp_find_unused_parameters = True
    thaws.on_init_end(args, None, None, model=ARCHITECTURES["bert"].model())
    assert thaws.report is not None


def test_an_unknown_method_is_refused_at_once():
    with pytest.raises(oelm.OelmError, match="'oelm_frieze' is unknown"):
        oelm.FreezeCallback("oelm_frieze")
