import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.costs.flops import Matmul, attention_flops, count
from oelm.costs.inspection import inspect_gpt, inspect_model, model_flops
from oelm.freezing.methods import METHODS


@pytest.mark.parametrize("method", [*METHODS, "oelm_freeze+rank=4", "permutation_qk+rank=2+gain+scale+shift"])
def test_the_count_is_what_torch_really_computes(method):
    """Against torch's own counter, on the meta device, with attention counted in full on both sides."""
    config = oelm.GPTConfig(vocab_size=96, d_model=32, num_layers=3, num_heads=4, d_ff=128, max_seq_len=16, dropout=0.0)
    with torch.device("meta"):
        model = oelm.GPT(config)
        ids = torch.zeros(2, 16, dtype=torch.long)
    oelm.freeze(model, method)
    with FlopCounterMode(display=False) as counter:
        # Not model(ids, ids): the counter does not know the in-place product with which the loss adds up its gradient.
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    measured = counter.get_flop_counts()["Global"]
    ours = model_flops(model, sequence_length=16, causal=False)
    attention = {op: n for op, n in measured.items() if "attention" in str(op) or "bmm" in str(op)}
    matmuls = sum(measured.values()) - sum(attention.values())
    per_token = ours.step - ours.forward["attention"] - ours.backward["attention"]
    assert matmuls == 2 * 16 * per_token
    assert sum(attention.values()) > 0


def test_freezing_saves_at_most_5_6_percent_of_a_block():
    d = 512
    frozen = [Matmul("qk", 2 * d * d, trained=False), Matmul("vo", 2 * d * d), Matmul("ffn", 8 * d * d)]
    trained = [Matmul("qk", 2 * d * d), Matmul("vo", 2 * d * d), Matmul("ffn", 8 * d * d)]
    assert 1 - count(frozen).step / count(trained).step == pytest.approx(1 / 18)


def test_freezing_saves_about_2_3_percent_of_a_medium_512_step():
    facts = inspect_gpt("medium-512", "oelm_freeze")
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
    facts = inspect_gpt("medium-512", method)  # 6 layers
    assert 1 - facts["block_flops_vs_baseline"] == pytest.approx(saved, abs=1e-9)
    assert facts["block_flops_vs_baseline"] < facts["step_flops_vs_baseline"]


def test_the_vocabulary_head_is_58_percent_of_the_weight_matmuls_of_medium_512():
    forward = inspect_gpt("medium-512", "baseline")["flops_per_token"]["forward"]
    assert forward["head"] / (forward["total"] - forward["attention"]) == pytest.approx(0.577, abs=0.003)


def test_causal_attention_sees_half_of_the_context_on_average():
    assert attention_flops(64, 512, causal=False) == 4 * 512 * 64
    assert attention_flops(64, 511, causal=True) == 4 * 256 * 64


def test_nothing_is_allocated_for_the_largest_size():
    assert inspect_gpt("large", "oelm_freeze")["total_parameters"] > 350_000_000


@pytest.mark.parametrize("trained_with", ["baseline", "permutation_qk+rank=2+shift"])
def test_a_folder_is_counted_as_the_shape_it_holds_whatever_it_was_trained_with(tmp_path, trained_with):
    model = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=96))
    oelm.freeze(model, trained_with)
    model.save_pretrained(tmp_path)
    for method in ("baseline", "oelm_freeze+rank=4"):
        folder, size = inspect_model(str(tmp_path), method), inspect_gpt("demo", method, vocab_size=96)
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
