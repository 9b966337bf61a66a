"""Gradient checkpointing changes what is kept, and nothing else."""

import pytest
import torch

import oelm
from oelm.errors import OelmError
from oelm.training.setup import with_checkpointing


def loss_and_gradients(checkpointing: bool, dropout: float, method: str) -> tuple[torch.Tensor, list]:
    torch.manual_seed(0)
    config = oelm.GPTConfig(vocab_size=40, d_model=16, num_layers=3, num_heads=2, d_ff=32, dropout=dropout)
    model = oelm.GPT(config)
    oelm.freeze(model, method)
    model.gradient_checkpointing = checkpointing
    tokens = torch.randint(40, (2, 150))
    torch.manual_seed(1)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("method", ["baseline", "oelm_freeze"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_loss_and_gradients_are_the_same_to_the_bit(dropout, method):
    (loss, plain), (again, checkpointed) = (loss_and_gradients(on, dropout, method) for on in (False, True))
    assert torch.equal(loss, again)
    for mine, theirs in zip(plain, checkpointed, strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_a_block_keeps_its_input_only():
    def kept(on: bool) -> int:
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            loss_and_gradients_forward(on)
        return sum(saved)

    assert kept(True) < kept(False) / 3


def loss_and_gradients_forward(checkpointing: bool) -> torch.Tensor:
    model = oelm.GPT(oelm.GPTConfig(vocab_size=40, d_model=16, num_layers=3, num_heads=2, d_ff=32, dropout=0.0))
    model.gradient_checkpointing = checkpointing
    return model(torch.zeros(2, 150, dtype=torch.long)).sum()


def test_encoders_have_their_own_switch_and_others_are_refused():
    from transformers import BertConfig, BertForSequenceClassification

    shape = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    assert with_checkpointing(BertForSequenceClassification(shape)).is_gradient_checkpointing
    with pytest.raises(OelmError, match="Linear cannot do it; leave it out"):
        with_checkpointing(torch.nn.Linear(2, 2))


def test_a_run_with_checkpointing_is_the_same_run(fables_folder, tmp_path):
    from oelm.runs import RunFolder
    from oelm.training.config import RunConfig
    from oelm.training.trainer import train

    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_seq_len": 32, "dropout": 0.1}
    for on in (False, True):
        config = {
            "method": "oelm_freeze",
            "model": {"size": "demo", "overrides": shape},
            "data": {"path": str(fables_folder)},
            "training": {"max_steps": 4, "batch_size": 2, "log_every": 1, "eval_tokens": 64},
            "runtime": {"device": "cpu", "threads": 1, "gradient_checkpointing": on},
        }
        train(RunConfig.parse(config), tmp_path / str(on))
    plain, checkpointed = (RunFolder(tmp_path / str(on)).metrics() for on in (False, True))
    assert plain == checkpointed
