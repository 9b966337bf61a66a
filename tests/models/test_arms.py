"""Every variation of our GPT's shape: it computes what it says, decodes as it reads, and survives what a run does."""

import os
import signal

import pytest
import torch
import torch.nn.functional as F

import oelm
from oelm.freezing.methods import method
from oelm.freezing.modifiers import SHAPES, equal_baseline
from oelm.models.attention import Context, attention_weights, join_heads, rotary_angles, rotate, split_heads
from oelm.models.cheap_attention import CHUNK, causal_linear_attention, windowed_attention
from oelm.models.kernels import causal_attention, with_previous

ARMS = [
    "baseline+offset",
    "baseline+qknorm+offset",
    "baseline+thin=2+offset",
    "baseline+kv=1+offset",
    "signs_qk+rmsnorm+swiglu+kv=2",
    "baseline+fewer=1+ffn=1.5",
    "baseline+window=5+offset",
    "baseline+linear+offset+qknorm",
    "baseline+synthesizer",
    "baseline+mixing",
    "baseline+tied_kv+offset+kv=2",
    "baseline+share=2+offset",
    "signs_qk+rank=2+layers=not-first1+offset",
]
SMALL = {"vocab_size": 50, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 64, "max_seq_len": 40}
POSITIONS = ("learned", "rotary")
both_positions = pytest.mark.parametrize("positions", POSITIONS)
every_arm = pytest.mark.parametrize("arm", ARMS)


def build(arm: str, positions: str = "rotary", **overrides) -> oelm.GPT:
    torch.manual_seed(0)
    config = oelm.GPTConfig(**{**SMALL, "dropout": 0.0, "positions": positions, **overrides})
    model = oelm.GPT(config.with_architecture(method(arm).architecture))
    oelm.freeze(model, arm)
    for parameter in model.parameters():  # opinionated, so that no small number hides an error
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model.eval()


def hugging_face(model: oelm.GPT, folder):
    from transformers import AutoModelForCausalLM

    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_every_shape_is_in_an_arm_that_is_tested():
    words = {word.partition("=")[0] for arm in ARMS for word in arm.split("+")[1:]}
    assert {name.rstrip("=") for name in SHAPES} - {"theta"} <= words


@every_arm
@both_positions
def test_no_position_sees_a_later_one_and_all_earlier_ones_matter(arm, positions):
    model = build(arm, positions)
    ids = torch.randint(50, (1, 30))
    changed = ids.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 50
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@every_arm
@both_positions
def test_a_cache_gives_the_same_text_and_the_same_logits(tmp_path, arm, positions):
    from transformers import DynamicCache

    model = hugging_face(build(arm, positions), tmp_path)
    ids = torch.randint(1, 50, (3, 9))
    cached, plain = (model.generate(ids, max_new_tokens=20, do_sample=False, use_cache=c) for c in (True, False))
    assert torch.equal(cached, plain)
    cache, parts = DynamicCache(), []
    for chunk in cached.split([4, 1, 7, 1, 16], dim=1):  # a prefill in chunks, and single tokens between
        parts.append(model(chunk, past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(cached).logits, rtol=0, atol=1e-4)


@every_arm
@both_positions
def test_padding_on_the_left_counts_as_nothing_before(tmp_path, arm, positions):
    model = hugging_face(build(arm, positions), tmp_path)
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for use_cache in (True, False):
        padded = model.generate(
            ids, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0, use_cache=use_cache
        )
        alone = model.generate(ids[1:2, 3:], max_new_tokens=20, do_sample=False)
        assert torch.equal(padded[1, 3:], alone[0])


@pytest.mark.parametrize("arm", ["baseline+offset", "baseline+thin=2+offset", "baseline+kv=1+offset"])
def test_a_cache_is_no_larger_than_its_keys_and_values(tmp_path, arm):
    from transformers import DynamicCache

    model, cache = hugging_face(build(arm), tmp_path), DynamicCache()
    model(torch.randint(50, (1, 12)), past_key_values=cache)
    rows = [m.weight.shape[0] for b in model.gpt.blocks for m in (b.attention.key, b.attention.value)]
    held = [t.numel() for layer in cache.layers for t in (layer.keys, layer.values)]
    assert held == [12 * n for n in rows]


@every_arm
@both_positions
def test_a_saved_model_loads_with_the_same_logits(tmp_path, arm, positions):
    model, ids = build(arm, positions), torch.randint(50, (2, 10))
    theirs = hugging_face(model, tmp_path / "ours")
    assert torch.equal(theirs(ids).logits, model(ids))
    theirs.save_pretrained(tmp_path / "theirs")
    again = oelm.GPT.from_pretrained(tmp_path / "theirs").eval()
    assert torch.equal(again(ids), model(ids))
    assert again.config == model.config


@every_arm
def test_gradient_checkpointing_changes_nothing(arm):
    found = []
    for on in (False, True):
        model = build(arm, dropout=0.1, max_seq_len=160).train()
        model.gradient_checkpointing = on
        ids = torch.randint(50, (2, 150))
        model(ids, ids).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
        found.append([p.grad for p in model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


@every_arm
def test_training_computes_what_evaluation_computes(arm):
    """In training, blocks of queries by our own kernel; in evaluation, torch's."""
    model, ids = build(arm, max_seq_len=200), torch.randint(50, (2, 200))
    trained = model.train()(ids)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids), trained, rtol=1e-3, atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.train()(ids, ids).isfinite()


@every_arm
@pytest.mark.parametrize("symbols", [(), (1,)], ids=["fixed", "any length"])
def test_a_compiled_model_says_the_same(arm, symbols):
    """Layers that are alike are compiled alike: there are two only where an arm tells them apart."""
    layers = 2 if any(word in arm for word in ("fewer", "share", "layers")) else 1
    require_compiled_alike(build(arm, num_layers=layers).train(), symbols)


def test_batch_and_length_may_both_be_unknown_to_a_compiled_model():
    require_compiled_alike(build("baseline+offset", num_layers=1).train(), (0, 1))


def require_compiled_alike(model: oelm.GPT, symbols: tuple[int, ...]) -> None:
    """Compiled without a break, with these dimensions of the input as symbols."""
    ids = torch.randint(50, (2, 36))
    for dimension in symbols:
        torch._dynamo.maybe_mark_dynamic(ids, dimension)  # some arms unroll a loop over lengths, and may
    torch._dynamo.reset()  # what other tests compiled must not decide what is a symbol
    how = {"backend": "aot_eager" if symbols else "eager", "dynamic": True if symbols == (0, 1) else None}
    compiled = torch.compile(model, fullgraph=True, **how)
    torch.testing.assert_close(compiled(ids), model(ids.clone()), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@every_arm
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(fables_folder, tmp_path, monkeypatch, arm):
    from oelm.runs import RunFolder
    from oelm.training.checkpoints import newest_valid
    from oelm.training.config import RunConfig
    from oelm.training.interruption import Interrupted
    from oelm.training.objectives import LanguageModelling
    from oelm.training.trainer import train

    shape = {**SMALL, "dropout": 0.1, "positions": "rotary"}
    config = RunConfig.parse(
        {
            "method": arm,
            "model": {"size": "demo", "overrides": {k: v for k, v in shape.items() if k != "vocab_size"}},
            "data": {"path": str(fables_folder)},
            "training": {"max_steps": 4, "batch_size": 2, "log_every": 1, "eval_tokens": 80},
            "runtime": {"device": "cpu", "threads": 1},
        }
    )
    train(config, tmp_path / "whole")
    original = LanguageModelling.batch

    def batch(objective, number):
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(objective, number)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(LanguageModelling, "batch", batch)
        train(config, tmp_path / "stopped")
    train(config, tmp_path / "stopped")
    whole, stopped = (RunFolder(tmp_path / name) for name in ("whole", "stopped"))
    assert whole.metrics_file.read_bytes() == stopped.metrics_file.read_bytes()
    weights = [newest_valid(folder.checkpoints).path / "model.safetensors" for folder in (whole, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@every_arm
def test_the_cost_of_an_arm_is_known_before_it_is_built(arm):
    from oelm.costs.inspection import inspect_model, model_flops

    facts = inspect_model("demo", arm, **SMALL)
    model = build(arm, "learned")
    assert facts["total_parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["flops_per_token"]["step"] == model_flops(model, sequence_length=40).step
    assert facts["training_memory"]["live_bytes"] > 4 * facts["total_parameters"]


def test_offset_takes_half_of_every_key_from_the_previous_token():
    keys = torch.randn(2, 3, 5, 8)
    previous = F.pad(keys, (0, 0, 1, 0))[:, :, :-1]
    moved = with_previous(keys)
    for channel in range(8):
        source = previous if channel in (2, 3, 6, 7) else keys
        assert torch.equal(moved[..., channel], source[..., channel])
    keys = keys[..., :4].double().requires_grad_()
    assert torch.autograd.gradcheck(with_previous, keys)


def test_offset_keys_are_turned_by_the_position_of_the_token_that_holds_them():
    """The whole layer against a few lines that say the same."""
    attention = build("baseline+offset").blocks[0].attention
    x = torch.randn(1, 6, 32)
    q, k, v = (m(x).view(1, 6, 4, 8).transpose(1, 2) for m in (attention.query, attention.key, attention.value))
    before = torch.cat((torch.zeros_like(k[:, :, :1]), k[:, :, :-1]), dim=2)
    k = torch.cat((k[..., 0:2], before[..., 2:4], k[..., 4:6], before[..., 6:8]), dim=-1)
    angles = rotary_angles(torch.arange(6)[None], 8, torch.float32)
    y = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True)
    expected = attention.output(y.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, Context(torch.arange(6)[None], angles, None, None)), expected)


@pytest.mark.parametrize(("length", "window"), [(30, 7), (28, 7), (5, 4), (4, 1), (300, 40), (300, 150), (290, 129)])
def test_a_window_in_chunks_is_a_window(length, window):
    q, k, v = (torch.randn(2, 3, length, 4, requires_grad=True) for _ in range(3))
    near = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for attention in (windowed_attention, lambda *qkvw: causal_attention(*qkvw[:3], 0.0, qkvw[3])):
        y = attention(q, k, v, window)
        torch.testing.assert_close(y, expected)
        for g, r in zip(torch.autograd.grad((y * weights).sum(), (q, k, v)), wanted, strict=True):
            torch.testing.assert_close(g, r, rtol=1e-4, atol=1e-5)


def test_linear_attention_in_chunks_is_the_sum_over_everything_before():
    q, k, v = (torch.randn(2, 3, 2 * CHUNK + 9, 4, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(causal_linear_attention(q, k, v), (q @ k.mT).tril() @ v)


def test_layers_that_share_attention_have_no_queries_and_use_those_of_the_first():
    model = build("baseline+share=2")
    assert [hasattr(block.attention, "query") for block in model.blocks] == [True, False, True]
    first, second = (block.attention for block in model.blocks[:2])
    x, context = torch.randn(2, 6, 32), Context(torch.arange(6)[None], None, None, None)
    first(x, context)
    q, k = (split_heads(project(x), 4) for project in (first.query, first.key))
    y = F.scaled_dot_product_attention(q, k, split_heads(second.value(x), 4), is_causal=True)
    torch.testing.assert_close(second(x, context), second.output(y.transpose(1, 2).flatten(2)))


def test_positions_alone_decide_what_is_read():
    arms = ("baseline+synthesizer", "baseline+mixing")
    learned, fixed = (build(arm, max_seq_len=8).blocks[0].attention for arm in arms)
    assert isinstance(learned.table, torch.nn.Parameter) and not isinstance(fixed.table, torch.nn.Parameter)
    torch.testing.assert_close(fixed.table.sum(dim=-1), torch.ones(4, 8), rtol=0, atol=1e-5)
    assert fixed.table.triu(1).abs().sum() == 0
    x, context = torch.randn(2, 8, 32), Context(torch.arange(8)[None], None, None, None)
    weights = learned.table.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf).softmax(dim=-1)
    for attention, weight in ((learned, weights), (fixed, fixed.table)):
        y = weight @ split_heads(attention.value(x), 4)
        expected = attention.output(y.transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention(x, context), expected, rtol=1e-4, atol=1e-4)


@every_arm
def test_the_matrices_of_an_arm_cost_what_torch_counts(arm):
    from torch.utils.flop_counter import FlopCounterMode

    from oelm.costs.inspection import model_flops

    model, ids = build(arm, "learned").train(), torch.zeros(2, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    measured = counter.get_flop_counts()["Global"]
    matrices = sum(n for op, n in measured.items() if "attention" not in str(op) and "bmm" not in str(op))
    ours = model_flops(model, sequence_length=16)
    assert matrices == 2 * 16 * (ours.step - ours.forward["attention"] - ours.backward["attention"])


@pytest.mark.parametrize(
    ("arm", "share"),
    [("window=16", 0.12), ("linear", 0.5), ("synthesizer", 0.5), ("mixing", 0.5), ("thin=4", 0.625), ("kv=1", 1.0)],
)
def test_the_products_of_cheap_attention_are_fewer(arm, share):
    """At 256 tokens with heads of 32."""
    models = (build(name, d_model=128, max_seq_len=256) for name in ("baseline", f"baseline+{arm}"))
    plain, cheap = (model.blocks[0].attention.attention_flops(256) for model in models)
    assert cheap / plain == pytest.approx(share, abs=0.01)


def test_thin_queries_and_keys_keep_whole_values_and_their_own_scale():
    attention = build("baseline+thin=4", "learned").blocks[0].attention
    assert (attention.query.out_features, attention.key.out_features) == (8, 8)
    assert (attention.value.out_features, attention.output.in_features) == (32, 32)
    assert attention.attention_flops(7) == 4 * 2 * (8 + 32)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("baseline+ffn=3.25", {"d_ff": 104}),
        ("baseline+ffn=3+swiglu", {"d_ff": 64, "ffn": "swiglu"}),
        ("baseline+fewer=2", {"num_layers": 1}),
        ("baseline+theta=500000", {"rope_theta": 500_000.0}),
        ("baseline+kv=2", {"kv_heads": 2}),
    ],
)
def test_relative_values_are_worked_out_for_the_shape_at_hand(arm, expected):
    config = build(arm).config
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("baseline+thin=3", "thin=3 does not divide the head size 8"),
        ("baseline+thin=4+offset", "offset needs a head size that four divides, not 2"),
        ("baseline+kv=3", "kv_heads 3 does not divide num_heads 4"),
        ("baseline+fewer=3", "fewer=3 leaves nothing of 3 layers"),
        ("baseline+ffn=0", "architecture ffn is 0.0; it must be a number above 0"),
        ("signs_qk+synthesizer", "'signs_qk.synthesizer' is about queries and keys, but GPT has none"),
        ("baseline+rank=2+mixing", "is about queries and keys, but GPT has none"),
        ("oelm_freeze+tied_kv", "cannot freeze blocks.0.attention.key: its keys are its values, too"),
        ("baseline+tied_kv+thin=2", "attention that makes values of its keys cannot have qk_width"),
        ("baseline+mixing+offset", "attention that has no queries and keys cannot have offset"),
        ("baseline+window=4+linear", "attention and window are different kinds of attention; choose one"),
        ("baseline+share=4", "share 4 exceeds the 3 layers"),
        ("oelm_freeze+scale+qknorm", "a norm comes after it and would undo a learned scale"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(arm, message):
    with pytest.raises(oelm.OelmError, match=message):
        build(arm)


def test_theta_needs_rotary_positions():
    with pytest.raises(oelm.OelmError, match="rope_theta is for rotary positions"):
        build("baseline+theta=500000", "learned")


def test_a_finished_model_cannot_be_given_another_shape():
    from transformers import BertConfig, BertModel

    plain = oelm.GPT(oelm.GPTConfig(**SMALL))
    bert = BertModel(
        BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    for model in (plain, bert):
        with pytest.raises(oelm.OelmError, match=r"'signs_qk\+offset' changes the architecture \(offset\), and this"):
            oelm.freeze(model, "signs_qk+offset")


def test_an_arms_equal_baseline_has_the_same_shape():
    assert equal_baseline("signs_qk+rank=8+layers=not-first1+offset") == "baseline+rank=8+layers=not-first1+offset"
    frozen, plain = method("oelm_freeze+offset+thin=2"), method("baseline+thin=2+offset")
    assert frozen.equipment == plain.equipment != method("baseline").equipment
    assert plain.is_trained and not frozen.is_trained


def test_an_architecture_round_trips_and_old_files_are_still_the_same_method():
    for name in ("baseline+offset", "signs_qk+ffn=3.25+thin=2"):
        assert method(method(name).to_dict()) == method(name)
    assert "architecture" not in method("baseline").to_dict()
    mine = method({"name": "mine", "architecture": {"thin": 2}})
    assert mine.architecture == {"thin": 2}
    with pytest.raises(oelm.OelmError, match="architecture of method 'mine' is 5; it must be a mapping"):
        method({"name": "mine", "architecture": 5})
    with pytest.raises(oelm.OelmError, match="architecture 'thinn' is unknown; did you mean 'thin'"):
        oelm.GPTConfig().with_architecture({"thinn": 2})


@both_positions
@every_arm
def test_the_weights_of_every_head_reproduce_what_its_layer_computes(arm, positions):
    model, ids = build(arm, positions), torch.randint(50, (2, 17), generator=torch.Generator().manual_seed(1))
    seen = []
    for block in model.blocks:
        block.attention.register_forward_hook(lambda layer, given, made: seen.append((layer, given[0], made)))
    weights = attention_weights(model, ids)
    assert len(weights) == len(seen) == len(model.blocks)
    for weight, (layer, x, made) in zip(weights, seen, strict=True):
        assert weight.shape == (2, model.config.num_heads, 17, 17) and not weight.triu(1).any()
        v = split_heads((layer.key if model.config.tied_kv else layer.value)(x), model.config.key_heads)
        v = v.repeat_interleave(model.config.num_heads // model.config.key_heads, dim=1)
        torch.testing.assert_close(layer.output(join_heads(weight @ v)), made, rtol=1e-4, atol=1e-5)


def test_the_weights_are_the_softmax_of_scaled_scores_written_out():
    model = build("baseline+thin=2+qknorm", "learned")
    layer, x = model.blocks[0].attention, torch.randn(1, 9, 32)
    q, k = (split_heads(project(x), 4) for project in (layer.query, layer.key))
    q, k = (F.rms_norm(one, one.shape[-1:], eps=1e-6) for one in (q, k))
    scores = (q @ k.mT / 2).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)  # heads of 4 channels
    found = layer.weights(x, Context(torch.arange(9)[None], None, None, None))
    torch.testing.assert_close(found, scores.softmax(-1))
