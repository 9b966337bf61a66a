"""Free projections and learned adapters: what they compute, what they cost, and that files bring them back."""

import pytest
import torch
import transformers

import oelm
from architectures import ARCHITECTURES, inputs
from oelm.costs.inspection import inspect_model
from oelm.errors import OelmError
from oelm.freezing.apply import freeze, freeze_from_report, verify_frozen
from oelm.freezing.orthogonal import orthonormality_error
from oelm.freezing.projections import FIXED, FixedProjection, Projection, dense, describe, merge
from oelm.freezing.report import FreezeReport
from oelm.freezing.spec import Adapters
from oelm.models.gpt import GPT

ALL_PIECES = "scale+gain+mix+shift+rank=2"


def small_gpt(**changes) -> GPT:
    torch.manual_seed(0)
    settings = {"vocab_size": 50, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 64, "max_seq_len": 16}
    return GPT(oelm.GPTConfig(**{**settings, "dropout": 0.0, **changes}))


def stir(model: torch.nn.Module) -> None:
    """Move every trained weight, so that no adapter is still at its start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("kind", FIXED)
def test_a_fixed_projection_is_orthonormal_without_weights_or_products(kind):
    generator = torch.Generator().manual_seed(3)
    projection = FixedProjection(kind, 32, 32, num_heads=4, generator=generator)
    assert list(projection.parameters()) == []
    assert orthonormality_error(dense(projection).weight, num_heads=4) < 1e-6
    assert orthonormality_error(dense(projection).weight, num_heads=1) < 1e-6  # across all heads, too
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        projection(torch.randn(2, 5, 32))
    assert counter.get_total_flops() == 0


def test_a_permutation_is_indexing_to_the_bit_forward_and_backward():
    projection = FixedProjection("permutation", 32, 32, num_heads=4, generator=torch.Generator().manual_seed(3))
    x = torch.randn(2, 5, 32)
    ours, indexed = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = projection(ours), indexed[..., projection.order]
    assert torch.equal(y, expected)
    gradient = torch.randn(2, 5, 32)
    y.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(ours.grad, indexed.grad)


def test_fixed_projections_differ_between_sites_and_seeds_and_are_the_same_again():
    orders = [
        [m.order.tolist() for _, m in sorted(dict(model.named_modules()).items()) if isinstance(m, FixedProjection)]
        for model in (small_gpt(), small_gpt(), small_gpt())
        for seed in [0]
        if freeze(model, "permutation_qk", seed=seed)
    ]
    assert orders[0] == orders[1] == orders[2]
    assert len({tuple(o) for o in orders[0]}) == 6
    other = small_gpt()
    freeze(other, "permutation_qk", seed=1)
    assert other.blocks[0].attention.query.order.tolist() not in orders[0]


@pytest.mark.parametrize("base", ["baseline", "oelm_freeze", "identity_q", "permutation_qk"])
def test_pieces_start_as_if_they_were_not_there_and_all_train(base):
    plain, equipped = small_gpt(), small_gpt()
    freeze(plain, base)
    report = freeze(equipped, f"{base}+{ALL_PIECES}")
    ids = torch.randint(50, (2, 16))
    torch.testing.assert_close(equipped(ids), plain(ids), rtol=1e-5, atol=1e-6)
    stir(equipped)  # `up` starts at zero, so `down` has no gradient before the first step
    equipped(ids, ids).backward()
    for path, module in equipped.named_modules():
        if isinstance(module, Projection):
            for name, parameter in module.learned.items():
                assert parameter.grad is not None and parameter.grad.abs().sum() > 0, f"{path}.{name}"
    verify_frozen(equipped, report)


def test_pieces_are_counted_and_named_in_the_report():
    report = freeze(small_gpt(), "oelm_freeze+rank=2+mix")
    query, key = report.sites[:2]
    assert query.adapters == ("mix", "rank 2") and key.adapters == ("rank 2",)
    assert query.adapters_parameters == 2 * 2 * 32 + 4 * 8 * 8 and key.adapters_parameters == 2 * 2 * 32
    assert FreezeReport.from_json(report.to_json()) == report
    assert "rank 2" in str(report)


def test_the_token_shift_reads_only_backwards():
    model = small_gpt()
    freeze(model, "oelm_freeze+shift")
    stir(model)
    ids = torch.randint(50, (1, 16))
    changed = ids.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 50
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :10], after[:, :10]) and not torch.equal(before[:, 10:], after[:, 10:])


@pytest.mark.parametrize("method", [f"oelm_freeze+{ALL_PIECES}", "permutation_qk+rank=2", "hadamard_qk", "identity_q"])
def test_a_saved_gpt_comes_back_with_its_projections(tmp_path, method):
    from transformers import AutoModelForCausalLM

    model = small_gpt().eval()
    report = freeze(model, method)
    stir(model)
    model.save_pretrained(tmp_path)
    ids = torch.randint(50, (2, 16))
    loaded = GPT.from_pretrained(tmp_path).eval()
    freeze_from_report(loaded, report)
    auto = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids), model(ids))
        torch.testing.assert_close(auto(ids).logits, model(ids), rtol=1e-5, atol=1e-6)


def test_generation_with_and_without_a_cache_agree_for_pieces(tmp_path):
    from transformers import AutoModelForCausalLM

    model = small_gpt().eval()
    freeze(model, "permutation_qk+rank=2+mix+gain+scale")
    stir(model)
    model.save_pretrained(tmp_path)
    auto = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(50, (1, 4))
    cached, plain = (
        auto.generate(ids, max_new_tokens=8, do_sample=False, use_cache=c, pad_token_id=0) for c in (True, False)
    )
    assert torch.equal(cached, plain)


def test_generation_with_a_token_shift_uses_no_cache_however_the_model_came_about(tmp_path):
    from transformers import AutoModelForCausalLM

    plain = small_gpt()
    plain.save_pretrained(tmp_path / "plain")
    frozen_in_place = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    freeze(frozen_in_place, "oelm_freeze+shift")
    freeze(plain, "oelm_freeze+shift")
    plain.save_pretrained(tmp_path / "shifted")
    for model in (frozen_in_place, AutoModelForCausalLM.from_pretrained(tmp_path / "shifted")):
        model.eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # strong opinions, and strong shifts
                parameter.fill_(0.5) if name.endswith(".shift") else parameter.mul_(6)
        ids, settings = torch.tensor([[3, 1, 4]]), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        without = model.generate(ids, use_cache=False, **settings)
        assert torch.equal(model.generate(ids, **settings), without)
        assert torch.equal(model.generate(ids, use_cache=True, **settings), without)
        assert model(ids, use_cache=True).past_key_values is None


def test_a_stock_model_with_a_token_shift_refuses_a_cache():
    model = ARCHITECTURES["llama"].model().eval()
    freeze(model, "oelm_freeze+shift")
    ids = torch.randint(10, 60, (1, 5))
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 8)
    with pytest.raises(OelmError, match=r"LlamaForCausalLM has a token shift, .* generate with use_cache=False"):
        model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=True)
    cache = model.model(ids, use_cache=True).past_key_values
    with pytest.raises(OelmError, match="LlamaModel has a token shift"):
        model.model(ids[:, -1:], past_key_values=cache)


def test_our_gpt_with_a_token_shift_refuses_a_filled_cache_also_when_it_comes_from_disk(tmp_path):
    from transformers import AutoModelForCausalLM, DynamicCache

    model = small_gpt()
    freeze(model, "oelm_freeze+shift")
    model.save_pretrained(tmp_path)
    auto, cache, ids = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), DynamicCache(), torch.tensor([[3, 1, 4]])
    auto(ids, past_key_values=cache)
    with pytest.raises(OelmError, match="has a token shift"):
        auto(ids[:, -1:], past_key_values=cache)
    with pytest.raises(OelmError, match="has a token shift"):
        model(ids[:, -1:], cache=cache)  # without a mask, only the cache tells


def test_a_hugging_face_model_within_another_module_is_marked_for_what_it_holds(tmp_path):
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm = ARCHITECTURES["llama"].model().eval()
            self.config = self.lm.config  # as many wrappers do

    wrapper = Wrapper()
    freeze(wrapper, "oelm_freeze+shift")
    ids, settings = torch.randint(10, 60, (1, 5)), {"max_new_tokens": 3, "do_sample": False}
    assert not wrapper.lm.config.use_cache
    with pytest.raises(OelmError, match="has a token shift"):
        wrapper.lm.generate(ids, use_cache=True, **settings)
    wrapper.lm.save_pretrained(tmp_path)
    loaded = oelm.restore(ARCHITECTURES["llama"].model(seed=1), tmp_path).eval()
    assert torch.equal(loaded(ids).logits, wrapper.lm(ids).logits)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_stock_model_with_pieces_is_restored_from_its_folder(tmp_path, name):
    model = ARCHITECTURES[name].model()
    report = freeze(model, "oelm_freeze+rank=2", pretrained=False)
    stir(model)
    model.save_pretrained(tmp_path)
    loaded = oelm.restore(ARCHITECTURES[name].model(seed=1), tmp_path)
    assert torch.equal(loaded(**inputs(name)).logits, model(**inputs(name)).logits)
    oelm.freeze_from_report(loaded, report)
    assert {n for n, p in loaded.named_parameters() if not p.requires_grad} == set(report.frozen_names)


def test_a_folder_of_a_stock_model_is_not_restored(tmp_path):
    ARCHITECTURES["gpt2"].model().save_pretrained(tmp_path / "stock")
    with pytest.raises(OelmError, match="names no replaced projections"):
        oelm.restore(ARCHITECTURES["gpt2"].model(), tmp_path / "stock")


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_in_our_gpt_a_token_shift_reads_no_padding(positions):
    model = small_gpt(positions=positions)
    freeze(model, "oelm_freeze+shift")
    stir(model)
    text, padding = torch.randint(50, (1, 5)), torch.randint(50, (1, 3))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    places = (mask.cumsum(1) - 1).clamp(min=0)
    padded = model(torch.cat([padding, text], 1), attention_mask=mask, position_ids=places)
    torch.testing.assert_close(padded[:, 3:], model(text), rtol=1e-4, atol=1e-5)


def test_our_gpt_reads_what_the_hugging_face_side_saved_with_projections(tmp_path):
    from oelm.models.huggingface import GPTForCausalLM, HFGPTConfig

    model = GPTForCausalLM(HFGPTConfig(**vars(small_gpt().config))).eval()
    freeze(model, "permutation_qk+rank=2+mix")
    stir(model)
    model.save_pretrained(tmp_path)
    ids = torch.randint(50, (2, 16))
    assert torch.equal(GPT.from_pretrained(tmp_path).eval()(ids), model(ids).logits)


@pytest.mark.parametrize("name", ["GPTForCausalLM", "BertForSequenceClassification"])
def test_a_merged_model_is_saved_and_loaded_as_any_other(tmp_path, name):
    from transformers import BertForSequenceClassification

    from oelm.models.huggingface import GPTForCausalLM, HFGPTConfig
    from oelm.models.stock import build

    if name == "GPTForCausalLM":
        model = GPTForCausalLM(HFGPTConfig(**vars(small_gpt().config)))
    else:
        model = BertForSequenceClassification(stock_model("BertModel")[0].config)
    freeze(model.eval(), "permutation_qk+rank=2+mix")
    stir(model)
    ids, before = torch.arange(12).view(2, 6), model.config
    expected = model(ids).logits
    merge(model).save_pretrained(tmp_path)
    assert not hasattr(model.config, "oelm_projections") and hasattr(before, "oelm_projections")
    loaded = [type(model).from_pretrained(tmp_path).eval()]
    if name != "GPTForCausalLM":
        loaded.append(build("classification", model.config, tmp_path).eval())
    for again in loaded:
        torch.testing.assert_close(again(ids).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["identity_qk", "permutation_qk", "hadamard_qk+mix"])
def test_merged_matrices_have_the_models_own_dtype_and_device(method):
    half = small_gpt().bfloat16()
    freeze(half, method)
    ids = torch.randint(50, (2, 16))
    before = half(ids)
    merge(half)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(half(ids), before, rtol=0.05, atol=0.01)
    with torch.device("meta"):  # stands for a device that is not the default
        elsewhere = small_gpt()
    freeze(elsewhere, method)
    assert all(p.is_meta for p in merge(elsewhere).parameters())


def test_what_was_frozen_does_not_train_once_it_is_merged():
    model = small_gpt()
    report = freeze(model, "identity_q+rank=2")
    merge(model)
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == {
        f"{site.path}.weight" for site in report.sites if site.role == "query"
    }


def test_reading_off_a_matrix_draws_no_random_number():
    projection, state = FixedProjection("hadamard", 32, 32, num_heads=4), torch.get_rng_state()
    dense(projection)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_large_bias_costs_a_merged_matrix_no_digit():
    linear = torch.nn.Linear(32, 32, dtype=torch.bfloat16)
    torch.nn.init.constant_(linear.bias, 100)
    merged = dense(Projection(linear, 4, Adapters(rank=2, gain=True)).bfloat16())
    assert torch.equal(merged.weight, linear.weight) and torch.equal(merged.bias, linear.bias)


@pytest.mark.parametrize("method", ["oelm_freeze+scale+gain+mix+rank=2", "identity_qk", "hadamard_qk+rank=2"])
def test_merging_gives_the_same_function_in_the_stock_layout(method):
    stock, model = small_gpt(), small_gpt()
    freeze(model, method)
    stir(model)
    ids = torch.randint(50, (2, 16))
    before = model(ids)
    merge(model)
    assert describe(model) == {} and model.state_dict().keys() == stock.state_dict().keys()
    torch.testing.assert_close(model(ids), before, rtol=1e-4, atol=1e-5)


def test_a_token_shift_cannot_be_merged_and_then_nothing_is():
    model = small_gpt()
    freeze(model, {"name": "x", "query": {"adapters": {"rank": 2}}, "key": {"adapters": {"shift": True}}})
    with pytest.raises(OelmError, match="token shift"):
        merge(model)
    assert len(describe(model)) == 6


def test_the_flops_of_free_projections_are_those_of_the_issue():
    """Without Q a block's matmuls fall by 1/12, without Q and K by 1/6, forward and backward."""
    whole = inspect_model("medium-512", "baseline")["flops_per_token"]
    for method, share in (("identity_q", 1 / 12), ("permutation_qk", 1 / 6)):
        less = inspect_model("medium-512", method)["flops_per_token"]
        for direction in ("forward", "backward"):
            block = sum(whole[direction].get(group, 0) for group in ("qk", "vo", "ffn"))
            left = sum(less[direction].get(group, 0) for group in ("qk", "vo", "ffn"))
            assert 1 - left / block == pytest.approx(share)


@pytest.mark.parametrize("name", ["BertModel", "GPT2Model", "T5Model", "LlamaModel", "ViTModel"])
def test_pieces_and_permutations_work_in_other_architectures(name):
    model, inputs = stock_model(name)
    report = freeze(model, "permutation_qk+rank=2+mix+scale")
    model(**inputs).last_hidden_state.sum().backward()
    verify_frozen(model, report)
    assert all(site.projection == "permutation" for site in report.sites)
    assert model.config.oelm_projections == describe(model)


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize(("rows", "heads"), [(16, 2), (8, 1), (64, 8), (48, 3)])
def test_with_fewer_or_more_rows_a_fixed_projection_selects_channels_and_stays_orthonormal_in_heads(kind, rows, heads):
    projection = FixedProjection(kind, rows, 32, num_heads=heads, generator=torch.Generator().manual_seed(3))
    assert list(projection.parameters()) == []
    weight = dense(projection).weight
    assert weight.shape == (rows, 32)
    assert orthonormality_error(weight, num_heads=heads) < 1e-6
    if rows < 32:
        assert orthonormality_error(weight, num_heads=1) < 1e-6  # no two heads read the same channel
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(projection(x), x @ weight.T)


def test_an_identity_key_under_grouped_queries_is_the_slice_of_the_groups_first_query():
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaModel(config)
    freeze(model, "identity_qk")
    attention, x = model.layers[0].self_attn, torch.randn(1, 3, 32)
    queries, keys = attention.q_proj(x).unflatten(-1, (4, 8)), attention.k_proj(x).unflatten(-1, (2, 8))
    assert torch.equal(keys[..., 0, :], queries[..., 0, :])
    assert torch.equal(keys[..., 1, :], queries[..., 2, :])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("oelm_freeze+rank=32", "rank 32 is no saving"),
        ("oelm_freeze+rank=-1", "rank is -1"),
        ("oelm_freeze+rank", "must be written rank=8"),
        ("oelm_freeze+mix=3", "must be written mix"),
        ("oelm_freeze+rnak=3", "did you mean 'rank'"),
        ("oelm_freeze+rank=x", "rank='x' is not a whole number"),
    ],
)
def test_wrong_pieces_are_refused_by_name(method, message):
    with pytest.raises(OelmError, match=message):
        freeze(small_gpt(), method)


def test_a_model_is_not_equipped_twice():
    model = small_gpt()
    freeze(model, "identity_q")
    with pytest.raises(OelmError, match="replaced by an earlier"):
        freeze(model, "oelm_freeze")


def test_pieces_refuse_no_rank_of_their_own():
    with pytest.raises(OelmError, match="rank is -2"):
        Adapters(rank=-2)


def stock_model(name: str):
    import transformers

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    ids = {"input_ids": torch.randint(50, (2, 6))}
    if name == "GPT2Model":
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    elif name == "T5Model":
        config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        ids["decoder_input_ids"] = ids["input_ids"]
    elif name == "ViTModel":
        config = transformers.ViTConfig(**shape, image_size=16, patch_size=8)
        ids = {"pixel_values": torch.randn(2, 3, 16, 16)}
    else:
        config = getattr(transformers, f"{name.removesuffix('Model')}Config")(vocab_size=50, **shape)
    return getattr(transformers, name)(config), ids
