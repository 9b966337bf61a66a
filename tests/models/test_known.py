"""Published models, counted without a download."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from typer.testing import CliRunner

import oelm
from oelm.cli.main import app
from oelm.costs.inspection import inspect_model, model_flops
from oelm.errors import OelmError
from oelm.models.known import KNOWN, named_config, require_known


def inspect(*arguments: str) -> dict:
    done = CliRunner().invoke(app, ["inspect", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_published_counts_of_bert_base_with_three_labels():
    facts = inspect("bert-base", "--labels", "3", "--method", "oelm_freeze")
    assert facts["total_parameters"] == 109_484_547
    assert facts["frozen_parameters"] == 14_174_208
    assert facts["trainable_parameters"] == 95_310_339
    assert facts["step_flops_vs_baseline"] == pytest.approx(0.946, abs=0.001)  # not 0.43


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_model_can_be_frozen(name):
    facts = inspect_model(name, "oelm_freeze")
    assert 0 < facts["frozen_parameters"] < facts["total_parameters"]
    assert 0.9 < facts["step_flops_vs_baseline"] < 1


@pytest.mark.parametrize(
    ("name", "total"), [("gpt2", 124_439_808), ("t5-small", 60_506_624), ("bart-base", 139_420_416)]
)
def test_known_sizes_are_the_published_ones(name, total):
    assert inspect_model(name, "baseline")["total_parameters"] == total


def test_a_model_folder_is_inspected_as_what_it_says_it_is(tmp_path):
    torch.manual_seed(0)
    config = oelm.GPTConfig(vocab_size=64, d_model=16, num_layers=1, num_heads=2, d_ff=32, max_seq_len=8)
    oelm.GPT(config).save_pretrained(tmp_path)
    assert inspect(str(tmp_path), "--method", "oelm_freeze")["frozen_parameters"] == 2 * 16 * 16


@pytest.mark.parametrize("name", ["./gpt2x", "mine/config.jsn.json", "a/b/c"])
def test_a_path_that_is_not_there_is_not_asked_of_the_hub(name):
    with pytest.raises(OelmError, match="is not there; give a model folder"):
        require_known(name)


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(oelm.OelmError, match=r"'bert-basic' is unknown here .* known: demo, .*bert-base"):
        inspect_model("bert-basic", "baseline")
    with pytest.raises(oelm.OelmError, match="is no model folder"):
        inspect_model(str(tmp_path), "baseline")
    with pytest.raises(oelm.OelmError, match="positions can be changed only in our own sizes"):
        inspect_model("bert-base", "baseline", positions="rotary")


@pytest.mark.parametrize("method", ["baseline", "oelm_freeze"])
@pytest.mark.parametrize(("name", "labels"), [("minilm-l6", 3), ("gpt2", None)])
def test_the_count_is_what_torch_really_computes(name, labels, method):
    config, model_class = named_config(name, labels)
    config.num_hidden_layers = 2
    with torch.device("meta"):
        model = model_class.from_config(config)
        ids = torch.zeros(2, 16, dtype=torch.long)
    oelm.freeze(model, method)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.sum().backward()
    measured = counter.get_flop_counts()["Global"]
    matmuls = sum(n for op, n in measured.items() if "attention" not in str(op) and "bmm" not in str(op))
    ours = model_flops(model, sequence_length=16)
    per_token = ours.step - ours.forward["attention"] - ours.backward["attention"]
    assert 2 * 16 * per_token == pytest.approx(matmuls, rel=1e-4)


PAIRS = {
    "t5": {"d_model": 32, "d_kv": 16, "num_heads": 2, "num_layers": 2, "d_ff": 64},
    "bart": {
        **{f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")},
        **{"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    },
}


@pytest.mark.parametrize("method", ["baseline", "oelm_freeze", "permutation_qk+rank=2"])
@pytest.mark.parametrize("name", PAIRS)
def test_each_side_of_an_encoder_decoder_is_counted_for_the_tokens_it_reads(name, method):
    config = AutoConfig.for_model(name, vocab_size=50, decoder_start_token_id=0, **PAIRS[name])
    model = AutoModelForSeq2SeqLM.from_config(config)
    oelm.freeze(model, method)
    ids = torch.zeros(2, 34, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids[:, :24], decoder_input_ids=ids[:, 24:]).logits.sum().backward()
    measured = counter.get_flop_counts()["Global"]
    matmuls = sum(n for op, n in measured.items() if "attention" not in str(op) and "bmm" not in str(op))
    ours = model_flops(model, sequence_length=24, target_length=10, per=34)
    per_token = ours.step - ours.forward["attention"] - ours.backward["attention"]
    assert 2 * 34 * per_token == pytest.approx(matmuls, rel=1e-4)
    # 24 queries on 24 keys; 10 on 5.5 keys in the mean, as a causal kernel computes them; 10 on 24
    assert ours.forward["attention"] * 34 == pytest.approx(2 * 4 * 32 * (24 * 24 + 10 * 5.5 + 10 * 24), rel=1e-2)
