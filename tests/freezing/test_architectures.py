"""freeze() on transformers' own models: the right tensors, exact files, and other tools still work."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import oelm
from architectures import ARCHITECTURES, inputs, logits
from oelm.freezing import sites
from oelm.freezing.apply import freeze, verify_frozen
from oelm.freezing.sites import attention_sites

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@every_architecture
def test_finding_the_sites_changes_no_output(name):
    model = ARCHITECTURES[name].model()
    before = logits(model, name)
    attention_sites(model)
    torch.testing.assert_close(logits(model, name), before, atol=1e-6, rtol=1e-5)


@every_architecture
def test_every_query_and_key_is_orthonormal_and_frozen_with_its_bias_and_nothing_else_is(name):
    architecture = ARCHITECTURES[name]
    model = architecture.model()
    report = freeze(model, "oelm_freeze")
    assert len(report.sites) == architecture.sites
    assert {s.num_heads for s in report.sites if s.role == "key"} == {architecture.key_heads}
    assert report.worst_orthonormality_error < 1e-5
    frozen = {path for path, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {
        f"{site.path}.{kind}" for site in report.sites for kind, _ in model.get_submodule(site.path).named_parameters()
    }
    assert frozen == expected
    assert report.frozen_parameters == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    if name in ("bert", "roberta", "electra", "gpt2", "bart", "qwen2"):
        assert any(path.endswith("bias") for path in frozen)


@every_architecture
def test_one_training_step_moves_the_rest_and_not_a_frozen_bit(name):
    model = ARCHITECTURES[name].model().train()
    report = freeze(model, "oelm_freeze")
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.5)
    model(**inputs(name)).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    verify_frozen(model, report)
    moved = [path for path, p in model.named_parameters() if not torch.equal(p, before[path])]
    assert moved and not set(moved) & set(report.frozen_names)


@every_architecture
def test_a_saved_frozen_model_loads_as_the_stock_class_with_the_same_outputs(name, tmp_path):
    model = ARCHITECTURES[name].model()
    stock_keys = set(ARCHITECTURES[name].model().state_dict())
    freeze(model, "oelm_freeze")
    assert set(model.state_dict()) == stock_keys
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded, name), logits(model, name), atol=1e-6, rtol=1e-5)


def test_stock_gpt2_weights_load_into_a_split_model():
    split, stock = ARCHITECTURES["gpt2"].model(seed=0), ARCHITECTURES["gpt2"].model(seed=1)
    freeze(split, "baseline")
    split.load_state_dict(stock.state_dict())
    torch.testing.assert_close(logits(split, "gpt2"), logits(stock, "gpt2"), atol=1e-6, rtol=1e-5)


def test_gpt2_generates_the_same_after_the_split():
    model = ARCHITECTURES["gpt2"].model()
    prompt = torch.tensor([[5, 6, 7]])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    before = model.generate(prompt, **options)
    freeze(model, "baseline")
    assert torch.equal(model.generate(prompt, **options), before)


@pytest.mark.parametrize(("name", "marker"), [("t5", "EncDecAttention"), ("bart", "encoder_attn")])
def test_cross_attention_is_a_site_of_its_own_kind(name, marker):
    report = freeze(ARCHITECTURES[name].model(), "oelm_freeze")
    cross = {s.path for s in report.sites if s.kind == "cross"}
    assert cross == {s.path for s in report.sites if marker in s.path}
    assert len(cross) == 4
    assert "cross query" in str(report)
    assert oelm.FreezeReport.from_json(report.to_json()) == report


def test_layers_are_numbered_by_block_in_t5():
    assert [s.layer for s in attention_sites(ARCHITECTURES["t5"].model())] == [0, 0, 1, 1] + [0] * 4 + [1] * 4


def test_layers_are_counted_in_each_stack_of_an_encoder_decoder():
    config = hf.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=4, num_decoder_layers=2, num_heads=4)

    def frozen(layers: str) -> set[str]:
        report = freeze(hf.T5ForConditionalGeneration(config), f"oelm_freeze+layers={layers}")
        return {".".join(site.path.split(".")[:3]) for site in report.sites if site.frozen}

    assert frozen("last1") == {"encoder.block.3", "decoder.block.1"}
    assert frozen("not-last2") == {"encoder.block.0", "encoder.block.1"}
    with pytest.raises(oelm.OelmError, match=r"layer 3 does not exist; decoder.block has layers 0 to 1"):
        frozen("3")


def logit_std(query: torch.Tensor, key: torch.Tensor, heads: int, scaling: float) -> float:
    x = F.layer_norm(torch.randn(512, query.shape[1], generator=torch.Generator().manual_seed(0)), query.shape[1:])
    q, k = ((x @ w.detach().T).unflatten(1, (heads, -1)).transpose(0, 1) for w in (query, key))
    return (scaling * q @ k.mT).std().item()


@pytest.mark.parametrize("method", ["fresh_orthogonal", "oelm_random_matched"])
def test_t5_logits_have_the_scale_of_berts_although_t5_does_not_divide_them(method):
    t5, bert = ARCHITECTURES["t5"].model(), ARCHITECTURES["bert"].model()
    freeze(t5, method), freeze(bert, method)
    ours = t5.encoder.block[0].layer[0].SelfAttention
    theirs = bert.bert.encoder.layer[0].attention.self
    assert (ours.scaling, theirs.scaling) == (1.0, 8**-0.5)
    assert logit_std(ours.q.weight, ours.k.weight, 4, ours.scaling) == pytest.approx(
        logit_std(theirs.query.weight, theirs.key.weight, 4, theirs.scaling), rel=0.1
    )


def test_t5_keeps_its_own_scale_where_the_method_keeps_the_heads_scale():
    model = ARCHITECTURES["t5"].model()
    query = model.encoder.block[0].layer[0].SelfAttention.q.weight
    before = query.detach().clone()
    freeze(model, "head_polar_scaled")
    assert query.norm().item() == pytest.approx(before.norm().item(), rel=1e-5)
    freeze(model, "pretrained_frozen")
    assert query.norm().item() == pytest.approx(before.norm().item(), rel=1e-5)


class OddAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_query, self.in_key, self.out, self.n_head = *(torch.nn.Linear(8, 8) for _ in range(3)), 2


class PackedAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_pack, self.out, self.num_heads = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8), 2


@pytest.mark.parametrize(
    ("attention", "line"),
    [
        (OddAttention, r'oelm.register_sites\("OddAttention", Layout\("in_query", "in_key", "n_head"\)\)'),
        (PackedAttention, r'Layout\("W_pack.query", "W_pack.key", "num_heads", fused={"W_pack": .*\), with groups='),
    ],
)
def test_unknown_attention_is_named_with_the_line_that_would_probably_fit(attention, line):
    model = torch.nn.ModuleList([attention(), attention()])
    with pytest.raises(oelm.OelmError, match=rf"has no attention .* its {attention.__name__} at '0' .*{line}"):
        freeze(model, "oelm_freeze")
    mixed = torch.nn.ModuleList([ARCHITECTURES["bert"].model(), attention()])
    with pytest.raises(oelm.OelmError, match=rf"1 of 3 attention modules .* its {attention.__name__} at '1' .*{line}"):
        freeze(mixed, "oelm_freeze")


@pytest.mark.parametrize(
    ("method", "init"),
    [
        ("oelm_freeze", "head_qr"),
        ("head_qr_scaled", "head_qr_scaled"),
        ("head_polar", "head_polar"),
        ("head_polar_scaled", "head_polar_scaled"),
        ("pretrained_frozen", "keep"),
        ("fresh_orthogonal", "head_orthogonal"),
        ("oelm_random_matched", "matched_normal"),
    ],
)
def test_a_loaded_model_counts_as_pretrained_and_each_method_has_its_own_start(method, init, tmp_path):
    ARCHITECTURES["bert"].model(seed=3).save_pretrained(tmp_path)
    model = hf.BertForSequenceClassification.from_pretrained(tmp_path)
    old = model.bert.encoder.layer[1].attention.self.query.weight.detach().clone()
    report = freeze(model, method)
    new = model.bert.encoder.layer[1].attention.self.query.weight.detach()
    assert {s.init for s in report.sites} == {init}
    assert all(s.frozen for s in report.sites)
    keeps_rows = torch.allclose(old[:8] @ torch.linalg.pinv(new[:8]) @ new[:8], old[:8], atol=1e-5)
    assert keeps_rows == (init not in ("head_orthogonal", "matched_normal"))
    assert torch.equal(new, old) == (init == "keep")
    keeps_scale = torch.allclose(new[:8].norm(), old[:8].norm(), rtol=1e-4)
    assert keeps_scale == (init in ("keep", "head_qr_scaled", "head_polar_scaled"))


def test_reinitialised_overwrites_a_loaded_models_queries_and_keys_and_lets_everything_train(tmp_path):
    ARCHITECTURES["bert"].model(seed=3).save_pretrained(tmp_path)
    model = hf.BertForSequenceClassification.from_pretrained(tmp_path)
    attention = model.bert.encoder.layer[1].attention.self
    old = {name: getattr(attention, name).weight.detach().clone() for name in ("query", "key", "value")}
    report = freeze(model, "reinitialised")
    assert not torch.allclose(attention.query.weight, old["query"])
    assert torch.equal(attention.value.weight, old["value"])
    assert attention.key.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert report.frozen_parameters == 0 and all(p.requires_grad for p in model.parameters())


def test_the_polar_factor_is_nearer_to_the_pretrained_rows_than_qr_and_the_scale_brings_both_nearer():
    distances = {}
    for method in ("head_polar_scaled", "head_qr_scaled", "head_polar"):
        model = ARCHITECTURES["bert"].model(seed=3)
        weight = model.bert.encoder.layer[0].attention.self.key.weight
        old = weight.detach().clone()
        freeze(model, method, pretrained=True)
        distances[method] = (weight - old).norm().item()
    assert distances["head_polar_scaled"] < distances["head_qr_scaled"] < distances["head_polar"]


def test_peft_adapts_a_frozen_model_and_leaves_the_frozen_weights_alone():
    peft = pytest.importorskip("peft", reason="peft is not installed (dev extra)")
    for name, targets in (("bert", ["query", "value"]), ("gpt2", ["query", "c_proj"])):
        model = ARCHITECTURES[name].model()
        report = freeze(model, "oelm_freeze")
        before = logits(model, name)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, fan_in_fan_out=False))
        torch.testing.assert_close(logits(adapted, name), before)
        optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
        adapted(**inputs(name)).logits.square().mean().backward()
        optimizer.step()
        assert not torch.allclose(logits(adapted, name), before)
        verify_frozen(adapted, report)
        verify_frozen(adapted.unload(), report)


def test_peft_on_every_matrix_of_a_frozen_gpt2_as_the_documentation_says():
    peft = pytest.importorskip("peft", reason="peft is not installed (dev extra)")
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    config = eval(text.split("```python\npeft.")[1].split("  #")[0], {"LoraConfig": peft.LoraConfig})
    model = ARCHITECTURES["gpt2"].model()
    report = freeze(model, "oelm_freeze")
    adapted = peft.get_peft_model(model, config)
    trained = {path for path, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert {path.split(".lora_")[0].rpartition(".")[2] for path in trained} == {"query", "key", "value", "c_proj"}
    verify_frozen(adapted, report)
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.key.base_layer.weight[0, 0] += 1e-3
    with pytest.raises(oelm.FrozenChanged, match=r"h.1.attn.c_attn.key.weight changed"):
        verify_frozen(adapted, report)


@pytest.mark.parametrize(("name", "targets"), [("bert", ["query"]), ("gpt2", ["c_attn"])])
def test_a_query_with_an_adapter_is_refused_and_one_beside_adapters_is_not(name, targets):
    peft = pytest.importorskip("peft", reason="peft is not installed (dev extra)")
    adapted = peft.get_peft_model(ARCHITECTURES[name].model(), peft.LoraConfig(target_modules=targets))
    with pytest.raises(oelm.OelmError, match=r"freeze (first and add|before adding) adapters"):
        freeze(adapted, "oelm_freeze")
    beside = peft.get_peft_model(ARCHITECTURES["bert"].model(), peft.LoraConfig(target_modules=["value"]))
    verify_frozen(beside, freeze(beside, "oelm_freeze"))
    assert all(".value.lora_" in path for path, p in beside.named_parameters() if p.requires_grad)


def test_accelerate_prepares_and_trains_a_frozen_model():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (dev extra)")
    model = ARCHITECTURES["bert"].model()
    report = freeze(model, "oelm_freeze")
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(prepared(**inputs("bert")).logits.square().mean())
    optimizer.step()
    optimizer.zero_grad()
    verify_frozen(accelerator.unwrap_model(prepared), report)


def test_the_example_of_the_documentation_runs(monkeypatch):
    monkeypatch.setattr("oelm.freezing.sites.LAYOUTS", dict(sites.LAYOUTS))
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/models.md", "exec"), {})
