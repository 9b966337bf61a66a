import json
import subprocess
import sys

import pytest
import torch

import oelm
from oelm.models.attention import rotary_angles, rotate
from oelm.models.gpt import SIZES

SHAPES = {"tiny": (256, 4), "small": (384, 6), "medium-512": (512, 6), "medium": (768, 12), "large": (1024, 24)}


def small(seed=0, **overrides):
    torch.manual_seed(seed)
    config = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "max_seq_len": 24}
    return oelm.GPT(oelm.GPTConfig(**{**config, "dropout": 0.0, **overrides})).eval()


@pytest.mark.parametrize("size", SHAPES)
def test_sizes_are_as_asked_for(size):
    assert (SIZES[size].d_model, SIZES[size].num_layers) == SHAPES[size]


def test_medium_512_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = oelm.GPT(oelm.GPTConfig.of_size("medium-512"))
    assert sum(p.numel() for p in model.parameters()) == 44_896_768


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_no_position_sees_a_later_one(positions):
    model = small(positions=positions)
    ids = torch.randint(50, (1, 12))
    changed = ids.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 50
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_targets_turn_logits_into_their_mean_cross_entropy():
    model, ids = small(), torch.randint(50, (2, 9))
    logits = model(ids[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids[:, :-1], ids[:, 1:]), expected)


def test_rotation_keeps_lengths_and_only_distance_matters():
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i: int, j: int) -> float:
        at = [rotary_angles(torch.tensor([[p]]), 8, torch.float32) for p in (i, j)]
        return (rotate(q, at[0]) * rotate(k, at[1])).sum().item()

    assert score(5, 2) == pytest.approx(score(15, 12), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(5, 4), abs=1e-5)
    assert rotate(q, rotary_angles(torch.tensor([[7]]), 8, torch.float32)).norm().item() == pytest.approx(
        q.norm().item()
    )


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(
    "method", ["baseline", "identity_qk", "hadamard_qk", "oelm_freeze+gain+scale", "baseline+shift"]
)
def test_training_in_half_precision_is_nearly_training_in_full(method, positions):
    """Values come out of autocast in bfloat16; so must queries and keys, whatever made them."""
    ids = torch.randint(50, (2, 200))
    for dropout in (0.0, 0.1):
        model = small(positions=positions, max_seq_len=200, dropout=dropout).train()
        oelm.freeze(model, method)
        for length in (16, 200):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(ids[:, :length], ids[:, :length])
            gradients = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
            assert all(g.isfinite().all() for g in gradients)
            with torch.no_grad():
                full = model(ids[:, :length], ids[:, :length])
            torch.testing.assert_close(loss, full, rtol=0.02 if dropout == 0 else 0.1, atol=0)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_saved_model_loads_through_transformers_with_the_same_logits(tmp_path, positions):
    from transformers import AutoModelForCausalLM

    model, ids = small(positions=positions), torch.randint(50, (2, 10))
    model.save_pretrained(tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(theirs(ids).logits, model(ids))
    theirs.save_pretrained(tmp_path / "theirs")
    assert torch.equal(oelm.GPT.from_pretrained(tmp_path / "theirs").eval()(ids), model(ids))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    assert torch.equal(again(ids).logits, model(ids))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_generation_with_a_cache_equals_generation_without(tmp_path, positions):
    from transformers import AutoModelForCausalLM

    small(positions=positions).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for parameter in model.parameters():  # make the untrained model opinionated, so that ties cannot hide an error
        parameter.data.mul_(4)
    ids = torch.randint(1, 50, (3, 7))
    cached, plain = (model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=c) for c in (True, False))
    assert torch.equal(cached, plain)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # left padding, as a batch of prompts has it
    padded = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
    alone = model.generate(ids[1:2, 3:], max_new_tokens=12, do_sample=False)
    assert torch.equal(padded[1, 3:], alone[0])


def test_labels_follow_the_transformers_convention(tmp_path):
    from transformers import AutoModelForCausalLM

    small().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(50, (2, 10))
    torch.testing.assert_close(model(ids, labels=ids).loss, small()(ids[:, :-1], ids[:, 1:]))


def test_a_batch_without_labels_has_a_loss_of_nothing(tmp_path):
    from transformers import AutoModelForCausalLM

    small().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(50, (2, 10))
    labels = torch.full_like(ids, -100)
    assert model(ids, labels=labels).loss.item() == 0
    labels[0, 4] = ids[0, 4]
    expected = -torch.log_softmax(model(ids).logits[0, 3], dim=-1)[ids[0, 4]]
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)


def test_accumulating_gradients_in_the_transformers_trainer_changes_neither_loss_nor_step(tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate (dev extra)")
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    small().save_pretrained(tmp_path)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(50, (16, 10))]
    records = []
    for accumulation in (1, 4):
        arguments = TrainingArguments(
            str(tmp_path / "out"), max_steps=1, logging_steps=1, gradient_accumulation_steps=accumulation,
            per_device_train_batch_size=16 // accumulation, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no",
        )  # fmt: skip
        work = Trainer(AutoModelForCausalLM.from_pretrained(tmp_path), arguments, train_dataset=rows)
        work.train()
        records.append([work.state.log_history[0][name] for name in ("loss", "grad_norm")])
    assert records[0] == pytest.approx(records[1], rel=1e-4)


IMPORTS = """
import os, sys
folder = sys.argv[1]
def in_a_fork(program):
    if (pid := os.fork()) == 0:
        exec(program)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, program
configuration = "from transformers import AutoConfig as C; C.from_pretrained(folder)"
model = "from transformers import AutoModelForCausalLM as A; A.from_pretrained(folder)"
import torch  # which all of them need
in_a_fork(f"import transformers.models.auto.modeling_auto, oelm; {model}")
import oelm
assert "transformers" not in sys.modules
in_a_fork(model)
in_a_fork(f"{configuration}; {model}")
in_a_fork(f"from transformers import AutoTokenizer; {configuration}")  # it loads half of the models'
"""


def test_importing_oelm_first_or_last_both_register_and_neither_loads_transformers_early(tmp_path):
    small().save_pretrained(tmp_path)
    run = subprocess.run([sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    light = "import sys, oelm; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", light]).returncode == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_heads": 5}, "num_heads 5 does not divide d_model 32"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be a whole number of at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"positions": "rotray"}, "positions 'rotray' is unknown; did you mean 'rotary'"),
        ({"positions": "rotary", "num_heads": 32}, "even head size"),
    ],
)
def test_an_impossible_shape_is_refused(overrides, message):
    with pytest.raises(oelm.OelmError, match=message):
        small(**overrides)


def test_unknown_sizes_and_settings_are_refused():
    with pytest.raises(oelm.OelmError, match=r"size 'medum' is unknown; did you mean 'medium'"):
        oelm.GPTConfig.of_size("medum")
    with pytest.raises(oelm.OelmError, match=r"model setting 'd_modle' is unknown; did you mean 'd_model'"):
        oelm.GPTConfig.of_size("tiny", d_modle=3)


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(oelm.OelmError, match="25 tokens exceed max_seq_len 24"):
        small()(torch.zeros(1, 25, dtype=torch.long))


def test_another_models_checkpoint_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(oelm.OelmError, match="holds a 'bert' model"):
        oelm.GPT.from_pretrained(tmp_path)
    with pytest.raises(oelm.OelmError, match="no readable GPT checkpoint"):
        oelm.GPT.from_pretrained(tmp_path / "nowhere")
