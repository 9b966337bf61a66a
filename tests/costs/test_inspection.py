import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.costs.flops import Matmul, attention_flops, count
from oelm.costs.inspection import costs_of, inspect_model
from oelm.freezing.methods import METHODS


def add_in_place(into, left, right, out_shape=None, **factors):
    """The counter does not know the in-place product with which the loss adds up the vocabulary's gradient."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize(
    "method", [*METHODS, "oelm_freeze+rank=4", "permutation_qk+rank=8", "permutation_qk+rank=2+gain+scale+shift"]
)
def test_the_count_is_what_torch_really_computes(method):
    """A real step with its chunked loss against torch's own counter, which takes causal attention for full."""
    config = oelm.GPTConfig(vocab_size=96, d_model=32, num_layers=3, num_heads=4, d_ff=128, max_seq_len=16, dropout=0.0)
    model, ids = oelm.GPT(config), torch.zeros(2, 16, dtype=torch.long)
    oelm.freeze(model, method)
    known = {torch.ops.aten.addmm_: add_in_place}
    with FlopCounterMode(display=False, custom_mapping=known) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, ids).backward()
    measured = counter.get_flop_counts()["Global"]
    attention = sum(n for op, n in measured.items() if "bmm" in str(op))
    flops = costs_of(config, method).flops
    own = flops.forward["attention"] + flops.backward["attention"]
    assert sum(measured.values()) - attention == 2 * 16 * (flops.step - own)
    assert attention * 17 == 2 * 16 * own * 2 * 16  # a token sees 17/2 of 16 tokens on average


def test_checkpointing_computes_the_blocks_again():
    plain, again = (costs_of("demo", gradient_checkpointing=on).flops for on in (False, True))
    assert again.step - plain.step == sum(plain.forward.values()) - plain.forward["head"]


def test_freezing_saves_at_most_5_6_percent_of_a_block():
    d = 512
    frozen = [Matmul("qk", 2 * d * d, trained=False), Matmul("vo", 2 * d * d), Matmul("ffn", 8 * d * d)]
    trained = [Matmul("qk", 2 * d * d), Matmul("vo", 2 * d * d), Matmul("ffn", 8 * d * d)]
    assert 1 - count(frozen).step / count(trained).step == pytest.approx(1 / 18)


def test_freezing_saves_about_2_3_percent_of_a_medium_512_step():
    facts = inspect_model("medium-512", "oelm_freeze")
    assert 1 - facts["step_flops_vs_baseline"] == pytest.approx(0.0227, abs=0.0005)


@pytest.mark.parametrize(
    ("method", "saved"),
    [
        ("identity_q", 1 / 12),
        ("permutation_qk", 1 / 6),
        ("oelm_freeze", 1 / 18),
        ("signs_qk+layers=not-first1", 5 / 36),
    ],
)
def test_projections_without_weights_save_a_twelfth_of_the_blocks_matrices_each(method, saved):
    facts = inspect_model("medium-512", method)  # 6 layers
    assert 1 - facts["block_flops_vs_baseline"] == pytest.approx(saved, abs=1e-9)
    assert facts["block_flops_vs_baseline"] < facts["step_flops_vs_baseline"]


def test_the_vocabulary_head_is_58_percent_of_the_weight_matmuls_of_medium_512():
    forward = inspect_model("medium-512", "baseline")["flops_per_token"]["forward"]
    assert forward["head"] / (forward["total"] - forward["attention"]) == pytest.approx(0.577, abs=0.003)


def test_causal_attention_sees_half_of_the_context_on_average():
    assert attention_flops(64, 512, causal=False) == 4 * 512 * 64
    assert attention_flops(64, 511, causal=True) == 4 * 256 * 64


def test_nothing_is_allocated_for_the_largest_size():
    assert costs_of("70b", "oelm_freeze").total_parameters > 64e9


def test_projections_without_weights_are_said_to_have_none():
    assert costs_of("demo", "permutation_qk").projections_without_weights == 4
    assert costs_of("demo", "identity_q").projections_without_weights == 2
    out = CliRunner().invoke(app, ["inspect", "demo", "--method", "permutation_qk", "--vocab-size", "64"]).output
    assert "0 parameters; 4 projections have no weights" in out


@pytest.mark.parametrize("trained_with", ["baseline", "permutation_qk+rank=2+shift"])
def test_a_folder_is_counted_as_the_shape_it_holds_whatever_it_was_trained_with(tmp_path, trained_with):
    model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=96))
    oelm.freeze(model, trained_with)
    model.save_pretrained(tmp_path)
    for method in ("baseline", "oelm_freeze+rank=4"):
        folder, size = inspect_model(str(tmp_path), method), inspect_model("demo", method, vocab_size=96)
        assert folder["flops_per_token"] == size["flops_per_token"]
        assert folder["total_parameters"] == size["total_parameters"]
    classifier = inspect_model(str(tmp_path), "baseline", labels=3, sequence_length=8)["flops_per_token"]
    assert classifier["forward"]["head"] == 2 * round(3 * 64 / 8)


def test_thaw_times_in_steps_are_drawn_over_the_run_that_is_asked_for():
    thawing = "oelm_freeze+thaw=top-down:500:1500"
    early, late = (inspect_model("demo", thawing, max_steps=steps, vocab_size=64) for steps in (2_000, 100_000))
    assert early["step_flops_vs_baseline"] < late["step_flops_vs_baseline"] < 1
    with pytest.raises(oelm.OelmError, match="1500, after the last step 1000"):
        inspect_model("demo", thawing, max_steps=1_000, vocab_size=64)
