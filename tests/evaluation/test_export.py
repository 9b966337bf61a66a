"""oelm export: the same model in a stock architecture, with everything a folder needs to be used without oelm."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from scipy import stats
from typer.testing import CliRunner

import oelm
from architectures import ARCHITECTURES, logits
from oelm.cli.main import app
from oelm.evaluation.export import export, push
from oelm.models.export import to_stock
from oelm.training import checkpoints
from oelm.training.config import RunConfig
from oelm.training.trainer import train

LLAMA = {"positions": "rotary", "norm": "rms", "ffn": "swiglu"}


def model(method, **shape):
    torch.manual_seed(0)
    made = oelm.GPT(oelm.GPTConfig.of_size("demo", vocab_size=300, num_layers=2, **shape)).eval()
    oelm.freeze(made, method)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize(
    ("stock", "method", "shape"),
    [
        ("GPT2LMHeadModel", "oelm_freeze", {}),
        ("GPT2LMHeadModel", "permutation_qk+rank=2+gain+mix+scale", {"dropout": 0.1, "kv_heads": 4, "qk_width": 64}),
        ("GPTNeoXForCausalLM", "oelm_freeze+rank=2", {"positions": "rotary"}),
        ("GPTNeoXForCausalLM", "hadamard_qk", {"positions": "rotary", "rope_theta": 500.0}),
        ("LlamaForCausalLM", "oelm_freeze", LLAMA),
        ("LlamaForCausalLM", "permutation_qk", {**LLAMA, "kv_heads": 2, "rope_theta": 5e4}),
        ("Qwen3ForCausalLM", "identity_qk+gain", {**LLAMA, "kv_heads": 2, "qk_norm": True}),
    ],
)
def test_the_stock_architecture_has_the_same_logits(stock, method, shape):
    ours = model(method, **shape)
    theirs = to_stock(ours)
    assert type(theirs).__name__ == stock
    ids = torch.randint(0, 300, (2, 128))
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("method", "shape", "message"),
    [
        ("oelm_freeze+shift", {}, "query has a token shift"),
        ("oelm_freeze", {"offset": True}, "offset=True has no equal in GPT2LMHeadModel"),
        ("oelm_freeze", {"qk_width": 32}, "qk_width=32 has no equal in GPT2LMHeadModel"),
        ("oelm_freeze", {"window": 8}, "window=8 has no equal in GPT2LMHeadModel"),
        ("baseline", {"tied_kv": True}, "tied_kv=True has no equal in GPT2LMHeadModel"),
        ("oelm_freeze", {**LLAMA, "attention": "linear"}, "attention=linear has no equal in LlamaForCausalLM"),
        ("oelm_freeze", {**LLAMA, "offset": True}, "offset=True has no equal in LlamaForCausalLM.*remote-code"),
        ("oelm_freeze", {"norm": "rms"}, "no stock architecture has positions=learned, norm=rms, ffn=gelu"),
    ],
)  # fmt: skip
def test_what_no_stock_architecture_has_is_refused_by_name(method, shape, message):
    with pytest.raises(oelm.OelmError, match=message):
        to_stock(model(method, **shape))


@pytest.fixture(scope="module")
def run(fables_folder, tmp_path_factory):
    return trained(fables_folder, tmp_path_factory.mktemp("runs") / "little", "oelm_freeze+rank=2")


def trained(fables_folder, folder, method, seed=0, **shape):
    config = {
        "method": method,
        "seed": seed,
        "model": {"size": "demo", "overrides": {"max_seq_len": 32, **shape}},
        "data": {"path": str(fables_folder)},
        "training": {"max_steps": 2, "batch_size": 2, "sequence_length": 16, "max_lr": 1e-2, "warmup_steps": 1},
        "runtime": {"device": "cpu", "threads": 1},
    }
    train(RunConfig.parse(config), folder)
    return folder


@pytest.mark.parametrize("to", ["hf", "remote-code"])
def test_an_exported_run_generates_without_oelm_with_the_logits_of_its_checkpoint(run, to, tmp_path, fables_folder):
    out = tmp_path / "exported"
    if to == "remote-code":  # what no stock architecture has
        run = trained(fables_folder, tmp_path / "run", "signs_qk+rank=2+offset", positions="rotary", qk_width=32)
    said = CliRunner().invoke(app, ["export", str(run), "--to", to, "--out", str(out), "--json"])
    assert said.exit_code == 0, said.output
    facts = json.loads(said.stdout)
    assert facts["architecture"] == ("GPT2LMHeadModel" if to == "hf" else "GPTForCausalLM")
    assert facts["logit_difference"] < 1e-5
    ids = torch.randint(0, 512, (2, 32))
    ours = oelm.GPT.from_pretrained(checkpoints.resolve(run).path).eval()
    with torch.no_grad():
        save_file({"ids": ids, "logits": ours(ids)}, tmp_path / "expected.safetensors")
    code = f"""
import sys
sys.modules["oelm"] = None
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, pipeline
expected = load_file({str(tmp_path / "expected.safetensors")!r})
trust = dict(trust_remote_code={to == "remote-code"})
model = AutoModelForCausalLM.from_pretrained({str(out)!r}, **trust)
assert not any(name.startswith("oelm") for name, module in sys.modules.items() if module)
print((model(expected["ids"]).logits - expected["logits"]).abs().max().item())
write = pipeline("text-generation", {str(out)!r}, **trust)
print(write("A fox", max_new_tokens=5, do_sample=False)[0]["generated_text"].startswith("A fox"))
print(write.tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.pad_token_id)
"""
    own_cache = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own_cache)
    assert done.returncode == 0, done.stderr
    difference, *rest = done.stdout.split()
    assert float(difference) < 1e-5 and rest == ["True", "True"]


def test_the_card_is_made_from_the_records(run, tmp_path):
    facts = export(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    for part in (
        "# little", "`oelm_freeze+rank=2`", "GPT2LMHeadModel", result["data_fingerprint"], facts["tokenizer_hash"],
        f"{result['final']['perplexity']:.2f}", f"{result['frozen_parameters']:,} of", "bit for bit",
    ):  # fmt: skip
        assert part in card, part
    assert "at the end of the run:" in card
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast" and settings["model_max_length"] == 32
    assert str(oelm.FreezeReport.from_json((run / "freeze.json").read_text())).splitlines()[0] in card


def test_the_card_gives_the_interval_over_the_seeds_beside_it(fables_folder, tmp_path):
    for seed in (0, 1, 2):
        trained(fables_folder, tmp_path / f"run-{seed}", "baseline", seed)
    trained(fables_folder, tmp_path / "other", "oelm_freeze", 3)
    export(tmp_path / "run-1", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    scores = [json.loads((tmp_path / f"run-{s}" / "result.json").read_text())["final"]["perplexity"] for s in (0, 1, 2)]
    half = stats.t.ppf(0.975, 2) * stats.sem(scores)
    mean = sum(scores) / 3
    told = f"{scores[1]:.2f} (mean of 3 seeds {mean:.2f} [{mean - half:.2f}, {mean + half:.2f}], 95 %)"
    assert f"| perplexity | {told} |" in card
    assert "carry no interval" not in card


def test_what_gguf_runtimes_compute_alike_is_ready_for_them(fables_folder, tmp_path):
    run = trained(fables_folder, tmp_path / "run", "oelm_freeze", **LLAMA)
    assert export(run, tmp_path / "out", to="gguf-ready")["architecture"] == "LlamaForCausalLM"


def test_a_classifier_with_adapters_becomes_an_ordinary_one(tmp_path):
    bert = ARCHITECTURES["bert"].model()
    report = oelm.freeze(bert, "identity_q+rank=2")
    state = {"step": 7, "config": {}}
    checkpoint = checkpoints.save(
        tmp_path / "run" / "checkpoints", save_model=bert.save_pretrained, tensors={"optimizer": {}, "random": {}},
        freeze=json.loads(report.to_json()), state=state,
    )  # fmt: skip
    facts = export(checkpoint, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config and "oelm_projections" not in config
    loaded = type(bert).from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(logits(loaded, "bert"), logits(bert, "bert"), atol=1e-5, rtol=0)
    assert facts["step"] == 7 and "text-classification" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "gguf-ready"], "--to gguf-ready needs a model that equals LlamaForCausalLM or Qwen3ForCausalLM"),
        (["--to", "onnx"], "export format 'onnx' is unknown"),
        (["--checkpoint", "newest"], "checkpoint 'newest' is unknown"),
        (["--out", "."], "is there already"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_read(run, options, message):
    said = CliRunner().invoke(app, ["export", str(run), *options])
    assert isinstance(said.exception, oelm.OelmError) and message in str(said.exception)
    assert not (run / "export").exists()


class Hub:
    calls: list = []  # noqa: RUF012

    def create_repo(self, name, **options):
        self.calls.append(("create", name, options))

    def upload_folder(self, **options):
        if options["repo_id"] == "me/closed":
            raise ConnectionError("no way through")
        self.calls.append(("upload", options))
        return "a link"


def test_a_folder_is_pushed_privately_unless_asked_otherwise(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert push(tmp_path, "me/model") == "a link"
    assert Hub.calls[0] == ("create", "me/model", {"private": True, "exist_ok": True})
    assert Hub.calls[1] == ("upload", {"folder_path": str(tmp_path), "repo_id": "me/model"})
    with pytest.raises(oelm.OelmError, match=r"was written, but me/closed could not be pushed to \(no way through\)"):
        push(tmp_path, "me/closed")
