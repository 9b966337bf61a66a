import json

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

import oelm
from architectures import ARCHITECTURES
from oelm.freezing.apply import FrozenChanged, freeze, freeze_from_report, tensor_hash, verify_frozen
from oelm.freezing.methods import METHODS, method
from oelm.freezing.spec import Part
from oelm.models.gpt import SIZES


def small_gpt(seed: int = 0, **overrides) -> oelm.GPT:
    torch.manual_seed(seed)
    config = {"vocab_size": 64, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "max_seq_len": 16}
    return oelm.GPT(oelm.GPTConfig(**{**config, "dropout": 0.0, **overrides}))


@pytest.mark.parametrize("size", [size for size in SIZES if size not in ("medium", "large")])
def test_every_head_of_every_layer_is_orthonormal_at_every_size(size):
    model = oelm.GPT(oelm.GPTConfig.of_size(size, vocab_size=64))
    report = freeze(model, "oelm_freeze", seed=3)
    heads = model.config.num_heads
    for block in model.blocks:
        for projection in (block.attention.query, block.attention.key):
            assert oelm.orthonormality_error(projection.weight, heads) < 1e-5
    assert report.worst_orthonormality_error < 1e-5


@pytest.mark.parametrize(("width", "heads"), [(768, 12), (1024, 16)])
def test_heads_of_the_larger_widths_are_orthonormal(width, heads):
    model = oelm.GPT(oelm.GPTConfig(vocab_size=8, d_model=width, num_heads=heads, num_layers=1, d_ff=8, max_seq_len=8))
    assert freeze(model, "oelm_freeze").worst_orthonormality_error < 1e-5


def test_published_parameter_counts_of_medium_512():
    with torch.device("meta"):
        model = oelm.GPT(oelm.GPTConfig.of_size("medium-512"))
    report = freeze(model, "oelm_freeze")
    assert report.total_parameters == 44_896_768
    assert report.frozen_parameters == 3_145_728
    assert report.trainable_parameters == 41_751_040


@pytest.mark.parametrize(("name", "frozen_roles"), [
    ("baseline", set()), ("oelm_freeze", {"query", "key"}), ("oelm_random", {"query", "key"}),
    ("oelm_random_matched", {"query", "key"}), ("oelm_global", {"query", "key"}), ("orthogonal_trained", set()),
    ("q_only", {"query"}), ("k_only", {"key"}),
])  # fmt: skip
def test_each_method_freezes_its_roles_and_nothing_else(name, frozen_roles):
    model = small_gpt()
    freeze(model, name)
    for path, parameter in model.named_parameters():
        role = path.split(".")[-2]
        assert parameter.requires_grad == (role not in frozen_roles), path


@pytest.mark.parametrize("name", METHODS)
def test_a_method_changes_no_weight_outside_of_what_it_treats(name):
    treated = ("query", "key") if method(name).ffn == Part() else ("query", "key", "ffn")
    before = {k: v.clone() for k, v in small_gpt().state_dict().items()}
    model = small_gpt()
    freeze(model, name, seed=5)
    for path, tensor in model.state_dict().items():
        if not any(role in path for role in treated):
            assert torch.equal(tensor, before[path]), path


def test_the_seed_decides_the_frozen_weights():
    first, again, other = small_gpt(), small_gpt(), small_gpt()
    hashes = [freeze(m, "oelm_freeze", seed=s).sites[0].hashes for m, s in ((first, 1), (again, 1), (other, 2))]
    assert hashes[0] == hashes[1] != hashes[2]


def test_query_and_key_of_a_layer_are_drawn_independently():
    model = small_gpt()
    freeze(model, "oelm_freeze", seed=0)
    assert not torch.allclose(model.blocks[0].attention.query.weight, model.blocks[0].attention.key.weight)
    assert not torch.allclose(model.blocks[0].attention.query.weight, model.blocks[1].attention.query.weight)


def test_a_pretrained_model_keeps_the_row_space_of_its_heads():
    model = small_gpt()
    old = model.blocks[0].attention.query.weight.detach().clone()
    report = freeze(model, "oelm_freeze", pretrained=True)
    assert report.sites[0].init == "head_qr"
    for given, new in zip(old.split(8), model.blocks[0].attention.query.weight.split(8), strict=True):
        torch.testing.assert_close(given @ new.T @ new, given, atol=1e-5, rtol=1e-4)


def test_a_pretrained_model_inside_the_users_own_counts_as_pretrained(tmp_path):
    ARCHITECTURES["bert"].model().save_pretrained(tmp_path)
    mine = nn.Sequential(hf.AutoModel.from_pretrained(tmp_path), nn.Linear(32, 2))
    assert {site.init for site in freeze(mine, "oelm_freeze").sites} == {"head_qr"}
    random = hf.AutoModel.from_config(hf.AutoConfig.from_pretrained(tmp_path))  # carries the name, too
    assert {site.init for site in freeze(random, "oelm_freeze", pretrained=False).sites} == {"head_orthogonal"}


@pytest.mark.parametrize(
    ("name", "zero"),
    [("fresh_orthogonal", True), ("oelm_global", True), ("oelm_random", True), ("oelm_random_matched", True),
     ("reinitialised", True),
     ("oelm_freeze", False), ("head_polar_scaled", False), ("pretrained_frozen", False), ("oelm_ffn", False)],
)  # fmt: skip
def test_new_rows_begin_without_the_bias_of_the_old_ones(name, zero):
    model = ARCHITECTURES["bert"].model()
    biases = [parameter for path, parameter in model.named_parameters() if path.endswith("bias")]
    for bias in biases:
        nn.init.ones_(bias)
    report = freeze(model, name, pretrained=True)
    attention = [model.get_submodule(site.path).bias for site in report.sites if site.role != "ffn"]
    assert {bias.unique().item() for bias in attention} == {0.0 if zero else 1.0}
    assert all(bias.unique().item() == 1.0 for bias in biases if not any(bias is b for b in attention))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(dtype):
    model = small_gpt()
    query = model.blocks[1].attention.query
    query.weight = nn.Parameter(query.weight.detach().to(dtype), requires_grad=False)
    before = tensor_hash(model.blocks[0].attention.query.weight)
    with pytest.raises(oelm.OelmError, match=r"blocks.1.attention.query has weights of torch.*load .* unquantised"):
        freeze(model, "oelm_freeze")
    assert tensor_hash(model.blocks[0].attention.query.weight) == before


def test_half_precision_is_frozen_as_it_is():
    model = small_gpt().bfloat16()
    assert freeze(model, "oelm_freeze").worst_orthonormality_error < 0.02
    assert model.blocks[0].attention.query.weight.dtype == torch.bfloat16


def test_offloaded_weights_are_refused():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (dev extra)")
    partly = small_gpt()
    partly.blocks[1].to("meta")
    wholly = accelerate.cpu_offload(ARCHITECTURES["bert"].model(), execution_device="cpu")
    for model in (partly, wholly):
        with pytest.raises(oelm.OelmError, match=r"\d+ of \d+ parameters are offloaded, e\.g\. .*; load the model"):
            freeze(model, "oelm_freeze")


@pytest.mark.parametrize(
    ("name", "settings", "method", "message"),
    [
        (
            "Llama",
            {"head_dim": 64},
            "identity_qk",
            r"layers.0.self_attn.q_proj: .* a head has 64 rows and the stream is 32",
        ),
        ("Llama", {"num_key_value_heads": 2}, "oelm_freeze+rank=20", r"k_proj: rank 20 is no saving in a 16 × 32"),
        ("Llama", {"head_dim": 64}, "oelm_freeze", "q_proj: a head has 64 rows of width 32"),
        ("Llama", {"head_dim": 64}, "head_polar", "q_proj: a head has 64 rows of width 32"),
        ("Llama", {"head_dim": 16}, "oelm_global", "q_proj: the whole projection has 64 rows of width 32"),
        ("Qwen3", {"head_dim": 8}, "oelm_freeze+scale", "q_proj: a norm comes after it and would undo a learned scale"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_does_not_fit_somewhere_is_refused_before_anything_changes(name, settings, method, message, device):
    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = getattr(hf, f"{name}Config")(**shape, num_attention_heads=4, **settings)
    with torch.device(device):
        model = getattr(hf, f"{name}Model")(config)
    before = {path: (type(module), getattr(module, "weight", None)) for path, module in model.named_modules()}
    hashes = {} if device == "meta" else {path: tensor_hash(p) for path, p in model.named_parameters()}
    with pytest.raises(oelm.OelmError, match=message):
        freeze(model, method)
    assert before.keys() == {path for path, _ in model.named_modules()}
    assert all(type(m) is before[path][0] for path, m in model.named_modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert hashes == ({} if device == "meta" else {path: tensor_hash(p) for path, p in model.named_parameters()})


def test_freezing_draws_nothing_from_the_global_generator():
    model = small_gpt()
    state = torch.get_rng_state()
    freeze(model, "oelm_qk_ffn+rank=2+mix")
    assert torch.equal(torch.get_rng_state(), state)


def test_the_report_round_trips_through_json_and_prints_as_a_table():
    report = freeze(small_gpt(), "q_only", seed=7)
    assert oelm.FreezeReport.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["trainable_parameters"] == report.trainable_parameters
    lines = str(report).splitlines()
    assert lines[0].startswith("layer")
    assert "frozen" in lines[1]
    assert "trains" in lines[2]
    assert "q_only" in lines[-1]


def test_an_unknown_initialisation_is_refused_before_anything_changes():
    model = small_gpt()
    before = tensor_hash(model.blocks[0].attention.query.weight)
    with pytest.raises(oelm.OelmError, match="'head_orthogonl' is unknown; did you mean 'head_orthogonal'"):
        freeze(model, {"name": "mine", "query": {"init": "head_orthogonl", "frozen": True}})
    assert tensor_hash(model.blocks[0].attention.query.weight) == before
    assert model.blocks[0].attention.query.weight.requires_grad


def test_what_was_frozen_before_stays_frozen_and_is_counted():
    model = small_gpt().requires_grad_(False)
    report = freeze(model, "q_only")
    assert not any(p.requires_grad for p in model.parameters())
    assert report.trainable_parameters == 0
    assert all(site.frozen for site in report.sites)
    verify_frozen(model, report)


def test_a_second_report_says_what_is_frozen_whoever_froze_it():
    model = small_gpt()
    freeze(model, "q_only")
    lines = str(freeze(model, "baseline")).splitlines()
    assert ["frozen" in line for line in lines[1:-1]] == [True, False, True, False]
    with pytest.raises(oelm.OelmError, match="thaws, but freezes nothing that trained before"):
        freeze(model, "q_only+thaw=top-down:0.5")


def test_a_wrapped_model_draws_the_same_frozen_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    model = small_gpt()
    model.save_pretrained(tmp_path)
    wrapped = AutoModelForCausalLM.from_pretrained(tmp_path)
    for each in (model, wrapped):
        freeze(each, "oelm_freeze", seed=4, pretrained=False)
    assert torch.equal(model.blocks[1].attention.key.weight, wrapped.gpt.blocks[1].attention.key.weight)
    loaded = oelm.GPT.from_pretrained(tmp_path)
    assert freeze(loaded, "oelm_freeze").sites[0].init == "head_qr"  # loaded weights are worth keeping


def test_audit_sees_through_what_is_put_around_a_model():
    peft = pytest.importorskip("peft", reason="peft is not installed (dev extra)")
    model = ARCHITECTURES["llama"].model()
    report = freeze(model, "oelm_freeze")
    prompted = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    for wrapped in (prompted, nn.DataParallel(model), torch.compile(model), nn.DataParallel(torch.compile(prompted))):
        verify_frozen(wrapped, report)
    with torch.no_grad():
        model.get_parameter(report.frozen_names[0]).add_(1)
    with pytest.raises(FrozenChanged, match=r"1 frozen tensors failed verification: .* changed"):
        verify_frozen(nn.DataParallel(model), report)


def test_audit_notices_a_changed_weight_a_thawed_weight_and_a_gradient():
    model = small_gpt()
    report = freeze(model, "oelm_freeze")
    verify_frozen(model, report)
    weight = model.blocks[1].attention.key.weight

    weight.requires_grad_(True)
    with pytest.raises(oelm.FrozenChanged, match=r"blocks.1.attention.key.weight requires a gradient"):
        verify_frozen(model, report)
    weight.requires_grad_(False)

    with torch.no_grad():
        weight[0, 0] += 1e-7
    with pytest.raises(oelm.FrozenChanged, match=r"blocks.1.attention.key.weight changed"):
        verify_frozen(model, report)


def test_hold_freezes_loaded_weights_again_and_refuses_other_ones():
    model = small_gpt()
    report = freeze(model, "oelm_freeze", seed=1)
    copy = small_gpt(seed=9)
    copy.load_state_dict(model.state_dict())
    freeze_from_report(copy, report)
    assert not copy.blocks[0].attention.query.weight.requires_grad
    with pytest.raises(oelm.FrozenChanged):
        freeze_from_report(small_gpt(seed=9), report)


def logit_scale(method: str, width: int = 512, heads: int = 8) -> float:
    """Spread of q·k over random unit-variance inputs, as LayerNorm gives them."""
    model = oelm.GPT(oelm.GPTConfig(vocab_size=8, d_model=width, num_heads=heads, num_layers=1, d_ff=8, max_seq_len=8))
    freeze(model, method, seed=0)
    x = F.layer_norm(torch.randn(256, width, generator=torch.Generator().manual_seed(1)), (width,))
    attention = model.blocks[0].attention
    with torch.no_grad():
        q, k = (p(x).unflatten(1, (heads, -1)).transpose(0, 1) for p in (attention.query, attention.key))
        return (q @ k.mT).std().item()


def test_orthonormal_and_matched_random_projections_give_logits_of_the_same_scale():
    assert logit_scale("oelm_random_matched") == pytest.approx(logit_scale("oelm_freeze"), rel=0.05)


def test_the_published_random_arm_has_logits_4_9_times_smaller():
    assert logit_scale("oelm_freeze") / logit_scale("oelm_random") == pytest.approx(4.9, rel=0.10)
