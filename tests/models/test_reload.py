"""from_pretrained of a stock model with replaced projections: bit for bit with oelm, an error without it."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import families
import oelm
from architectures import ARCHITECTURES
from architectures import logits as outputs

DISTINCT = ["albert", "deberta", "deberta-v2", "falcon", "gemma3_text", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj"]
DISTINCT += ["modernbert", "mt5", "openai-gpt", "phi3", "prophetnet", "whisper"]


def equipped(model, method="permutation_qk+rank=2+gain"):
    report = oelm.freeze(model, method)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return report


@pytest.mark.parametrize("name", [*ARCHITECTURES, *DISTINCT])
@pytest.mark.parametrize("method", ["permutation_qk+rank=2+gain", "identity_q+layers=last1"])
def test_a_model_with_replaced_projections_loads_bit_for_bit_and_can_be_frozen_and_saved_again(name, method, tmp_path):
    model = families.build(name) if name in DISTINCT else ARCHITECTURES[name].model()
    if name == "albert":
        method = method.split("+layers")[0]
    report = equipped(model, method)
    model.save_pretrained(tmp_path / "first")
    loaded, news = type(model).from_pretrained(
        tmp_path / "first", attn_implementation=model.config._attn_implementation, output_loading_info=True
    )
    assert not any(news.values())
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert list(mine) == list(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)
    oelm.freeze_from_report(loaded, report)  # also splits what is still fused in the other layers
    logits = families.logits if name in DISTINCT else outputs
    assert torch.equal(logits(loaded, name), logits(model, name))
    loaded.save_pretrained(tmp_path / "second")
    assert (tmp_path / "second" / "config.json").read_text() == (tmp_path / "first" / "config.json").read_text()


def test_without_oelm_it_fails_instead_of_drawing_random_queries(tmp_path):
    for name, method in (("bert", "identity_q"), ("gpt2", "oelm_freeze+rank=2"), ("vit", "permutation_qk")):
        model = ARCHITECTURES[name].model()
        equipped(model, method)
        model.save_pretrained(tmp_path / type(model).__name__)
    code = f"""
import sys
sys.modules["oelm"] = None
import pathlib, transformers
for folder in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):
    try:
        getattr(transformers, folder.name).from_pretrained(folder)
        print(folder.name, "loaded")
    except RuntimeError as error:
        print(folder.name, "refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("got oelm (import oelm before loading)") == 3
    assert done.stdout.split() == [
        "BertForSequenceClassification", "refused", "GPT2LMHeadModel", "refused", "ViTForImageClassification", "refused"
    ]  # fmt: skip


def test_what_comes_out_is_an_ordinary_model_that_trains_and_moves(tmp_path):
    model = ARCHITECTURES["bert"].model()
    equipped(model)
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert not getattr(loaded, "is_quantized", False) and getattr(loaded, "hf_quantizer", None) is None
    assert loaded.to(torch.bfloat16).half().float().dtype == torch.float32
    oelm.merge(loaded)
    assert not hasattr(loaded.config, "quantization_config")


def test_the_body_of_a_classifier_is_loaded_with_its_projections(tmp_path):
    model = ARCHITECTURES["bert"].model()
    equipped(model)
    model.save_pretrained(tmp_path)
    body = hf.BertModel.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(body(ids).last_hidden_state, model.bert(ids).last_hidden_state)


def test_a_folder_that_lacks_or_resizes_a_tensor_of_a_projection_is_refused_by_its_name(tmp_path):
    model = ARCHITECTURES["bert"].model()
    equipped(model)
    model.save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    name = "bert.encoder.layer.1.attention.self.key.up"
    save_file({key: value for key, value in whole.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(oelm.OelmError, match=rf"the files lack {name}"):
        type(model).from_pretrained(tmp_path)
    save_file({**whole, name: torch.zeros(32, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(oelm.OelmError, match=rf"{name} has shape \(32, 3\) in the files, but \(32, 2\)"):
        type(model).from_pretrained(tmp_path)


def test_a_config_without_the_description_is_refused(tmp_path):
    model = ARCHITECTURES["bert"].model()
    equipped(model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["oelm_projections"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(oelm.OelmError, match="no oelm_projections"):
        type(model).from_pretrained(tmp_path)


def test_folders_from_before_are_restored_as_ever(tmp_path):
    model = ARCHITECTURES["gpt2"].model()
    equipped(model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    old = {k: v for k, v in load_file(tmp_path / "model.safetensors").items() if not k.endswith("c_attn.weight")}
    save_file(old, tmp_path / "model.safetensors")
    restored = oelm.restore(ARCHITECTURES["gpt2"].model(seed=1), tmp_path)
    assert torch.equal(outputs(restored, "gpt2"), outputs(model, "gpt2"))
