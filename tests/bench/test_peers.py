"""Peers have our shape, and their FLOPs are counted as torch computes them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.bench import names
from oelm.bench.steps import PEERS
from oelm.costs.inspection import model_flops

CONFIG = oelm.GPTConfig(vocab_size=96, d_model=32, num_layers=3, num_heads=4, d_ff=80, max_seq_len=16, dropout=0.0)


@pytest.mark.parametrize("name", ["gpt2", "plain"])
def test_their_matmuls_are_counted_as_torch_computes_them(name):
    peer, ids = PEERS[name].build(CONFIG), torch.zeros(2, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        peer(ids, ids).backward()
    measured = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    flops = model_flops(PEERS[name].counted(CONFIG), sequence_length=16)
    weights = flops.step - flops.forward["attention"] - flops.backward["attention"]
    assert sum(n for op, n in measured.items() if "bmm" not in op and "attention" not in op) == 2 * 16 * weights


def test_gpt2_of_our_shape_has_our_parameters_and_its_biases():
    ours, theirs = oelm.GPT(CONFIG), PEERS["gpt2"].build(CONFIG)
    count = {model: sum(p.numel() for p in model.parameters()) for model in (ours, theirs)}
    assert count[theirs] - count[ours] == 3 * (3 + 1) * 32  # attention has biases there


def test_the_plain_gpt_has_our_parameters():
    ours, plain = oelm.GPT(CONFIG), PEERS["plain"].build(CONFIG)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())


@pytest.mark.parametrize("name", ["gpt2", "plain"])
def test_a_fresh_peer_knows_nothing(name):
    torch.manual_seed(0)
    ids = torch.randint(96, (2, 17))
    loss = PEERS[name].build(CONFIG)(ids[:, :-1], ids[:, 1:])
    assert loss.item() == pytest.approx(4.56, abs=0.2)  # ln 96


def test_the_names_that_are_known_without_torch_are_those_of_the_peers():
    assert set(names.PEERS) == set(PEERS)
