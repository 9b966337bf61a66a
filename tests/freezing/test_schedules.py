"""When weights train: layers, ratios, thawing, pausing and learning rates, and that every run keeps to them."""

import itertools
from dataclasses import replace

import pytest
import torch
import transformers as hf

import oelm
from architectures import ARCHITECTURES
from oelm.errors import OelmError
from oelm.freezing.apply import freeze, site_tensors, verify_frozen
from oelm.freezing.methods import Method, method
from oelm.freezing.schedules import Rates, Schedule, advance, picture, trained_shares
from oelm.freezing.spec import layer_numbers
from oelm.models.gpt import GPT
from oelm.training.config import TrainingSection
from oelm.training.step import build_optimizer


def small_gpt(layers: int = 4) -> GPT:
    torch.manual_seed(0)
    config = oelm.GPTConfig(
        vocab_size=50, d_model=32, num_layers=layers, num_heads=4, d_ff=64, max_seq_len=16, dropout=0.0
    )
    return GPT(config)


def frozen_layers(report) -> list[int]:
    return sorted({site.layer for site in report.sites if site.frozen})


@pytest.mark.parametrize(
    ("layers", "frozen"),
    [("all", [0, 1, 2, 3]), ("even", [0, 2]), ("odd", [1, 3]), ("first1", [0]), ("last2", [2, 3]),
     ("not-last1", [0, 1, 2]), ("not-first3", [3]), ("1:3", [1, 3])],
)  # fmt: skip
def test_a_method_may_apply_to_some_layers_only(layers, frozen):
    report = freeze(small_gpt(), f"oelm_freeze+layers={layers}")
    assert frozen_layers(report) == frozen
    assert {site.init for site in report.sites if site.layer not in frozen} <= {"keep"}


@pytest.mark.parametrize(
    ("layers", "message"),
    [("4", "layer 4 does not exist; the model has layers 0 to 3"), ("last5", "wants 5 layers, but the model has 4"),
     ("some", "'some' is not understood"), ("first-1", "not understood"), ("last01", "not understood"),
     ("٠", "not understood"), ("9" * 5000, "not understood")],
)  # fmt: skip
def test_layers_that_do_not_exist_are_refused(layers, message):
    with pytest.raises(OelmError, match=message):
        freeze(small_gpt(), f"oelm_freeze+layers={layers}")


def test_a_list_of_layers_comes_from_yaml():
    spec = {**method("oelm_freeze").to_dict(), "layers": [0, 2]}
    assert layer_numbers(Method.from_dict(spec).layers, 4) == [0, 2]


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.25, 0.5])
def test_a_ratio_is_met_to_one_matrix_with_queries_and_keys_first(ratio):
    model = small_gpt()
    report = freeze(model, f"oelm_freeze+ratio={ratio}")
    matrices = [p.numel() for name, p in model.named_parameters() if not p.requires_grad]
    assert abs(report.frozen_parameters - ratio * report.total_parameters) <= max(matrices)
    frozen_roles = {site.role for site in report.sites if site.frozen}
    if "ffn" in frozen_roles:
        assert all(site.frozen for site in report.sites if site.role != "ffn")
    assert report.worst_orthonormality_error < 1e-5


def test_a_ratio_that_cannot_be_met_names_what_can():
    with pytest.raises(OelmError, match=r"ratio 0.99 .* cannot be met: .* are 0\.\d+ of the model's parameters"):
        freeze(small_gpt(), "oelm_freeze+ratio=0.99")


@pytest.mark.parametrize(
    ("method", "message"),
    [("oelm_freeze+layers=not-last4", "changes nothing in layers 'not-last4' of this model"),
     ("oelm_freeze+layers=first0", "changes nothing in layers 'first0'"),
     ("baseline+layers=first1", "changes nothing in layers 'first1'"),
     ("oelm_freeze+ratio=0.001", r"ratio 0.001 .* freezes nothing: its first matrix alone is 0\.\d+ of"),
     ("baseline+ratio=0.1", r"trains queries and keys, but a ratio freezes them .*oelm_freeze\+ratio=0.1"),
     ({"name": "mine", "ratio": 0.5}, "'mine' trains queries and keys, but a ratio"),
     ("identity_qk+thaw=top-down:0.5", "thaws, but freezes nothing"),
     ("oelm_freeze+lr=0.1", "sets lr of weights that never train; leave lr out"),
     ("identity_qk+lr=0.1", "sets lr of weights that never train"),
     ({"name": "mine", "query": {"projection": "identity", "every": 4}}, "no weights, so it never trains")],
)  # fmt: skip
def test_methods_that_would_silently_do_nothing_are_refused(method, message):
    with pytest.raises(OelmError, match=message):
        freeze(small_gpt(), method)


@pytest.mark.parametrize("method", ["q_only+lr=0.1", "baseline+lr=0.3", "oelm_freeze+lr=0.1+thaw=top-down:0.5",
                                    "baseline+layers=last1+rank=2", "baseline+thaw=top-down:0.5+ffn"])  # fmt: skip
def test_methods_that_do_something_somewhere_are_not(method):
    freeze(small_gpt(), method)


@pytest.mark.parametrize("method", ["identity_qk+ratio=0.25", "identity_q+ratio=0.25"])
def test_a_ratio_is_one_of_what_is_left_beside_projections_without_weights(method):
    model = small_gpt()
    report = freeze(model, method)
    matrices = [p.numel() for p in model.parameters() if not p.requires_grad]
    assert abs(report.frozen_parameters - 0.25 * report.total_parameters) <= max(matrices) / 2
    queries = [site for site in report.sites if site.role == "query"]
    assert {site.projection for site in queries} == {"identity"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ffn_matrices_freeze_in_every_architecture(name):
    model = ARCHITECTURES[name].model()
    report = freeze(model, "oelm_qk_ffn", pretrained=False)
    ffn = [site for site in report.sites if site.role == "ffn"]
    assert len(ffn) >= 4 and all(site.orthonormality_error < 1e-5 for site in ffn)
    assert all(not model.get_parameter(f"{site.path}.weight").requires_grad for site in ffn)
    verify_frozen(model, report)


@pytest.mark.parametrize(
    ("thaw", "steps"),
    [("top-down:0.5", {0: 51, 1: 51, 2: 51, 3: 51}), ("top-down:0.1:0.7", {3: 11, 2: 31, 1: 51, 0: 71}),
     ("bottom-up:10:40", {0: 10, 1: 20, 2: 30, 3: 40}), ("top-down:2:3:5:8", {3: 2, 2: 3, 1: 5, 0: 8})],
)  # fmt: skip
def test_layers_thaw_in_order_at_given_steps_or_fractions(thaw, steps):
    report = freeze(small_gpt(), f"oelm_freeze+thaw={thaw}")
    assert Schedule.of(report, 100).thaw_steps == {("blocks", layer): step for layer, step in steps.items()}


@pytest.mark.parametrize(
    ("method", "message"),
    [("oelm_freeze+thaw=top-down:101", "thaws a layer at step 101, after the last step 100"),
     ("oelm_freeze+thaw=top-down:1.0", "after the last step 100"),
     ("oelm_freeze+thaw=top-down:0.5:300+layers=last1", "thaws a layer at step 300, after the last step 100"),
     ("oelm_freeze+thaw=top-down:0.5+warmup=51", "warms up for 51 steps, but what it thaws trains for 50 at most"),
     ("oelm_freeze+thaw=top-down:0.5+layers=last²", "layers 'last²' is not understood"),
     ({"name": "mine", "query": {"projection": "identity", "frozen": True}, "ratio": 0.1}, "no weights to freeze"),
     ("oelm_freeze+thaw=top-down:0.9:10", r"thaws at steps 91, .*10 of 100, which do not rise"),
     ("oelm_freeze+thaw=top-down:0.5:0.9:10:20", "at steps 51, 91, 10, 20 of 100"),
     ("oelm_freeze+thaw=top-down:0.1:0.2:0.3", "gives 3 thaw times for 4 frozen layers"),
     ("oelm_freeze+thaw=top-down:0.5+refreeze=0.4", "it freezes again at step 41"),
     ("oelm_freeze+thaw=sideways:0.5", "thaw order 'sideways' is unknown"),
     ("oelm_freeze+refreeze=0.5", "thaw must come before"),
     ("baseline+thaw=top-down:0.5", "freezes nothing")],
)  # fmt: skip
def test_schedules_that_cannot_be_kept_are_refused(method, message):
    with pytest.raises(OelmError, match=message):
        Schedule.of(freeze(small_gpt(), method), 100)


def test_advancing_flips_promises_and_refreezing_promises_anew():
    model = small_gpt()
    report = freeze(model, "oelm_freeze+thaw=top-down:0.2:0.5+refreeze=0.8")
    schedule = Schedule.of(report, 100)
    assert advance(model, report, schedule, 20) is report
    thawing = advance(model, report, schedule, 21)
    assert frozen_layers(thawing) == [0, 1, 2] and thawing.frozen_parameters == report.frozen_parameters * 3 // 4
    verify_frozen(model, thawing)
    thawed = advance(model, thawing, schedule, 60)
    assert frozen_layers(thawed) == []
    with torch.no_grad():
        model.blocks[0].attention.query.weight.add_(1.0)
    again = advance(model, thawed, schedule, 81)
    assert frozen_layers(again) == [0, 1, 2, 3]
    verify_frozen(model, again)
    assert again.sites[0].hashes != report.sites[0].hashes


def test_pausing_weights_have_no_gradient_and_stay_in_the_optimizer():
    model = small_gpt()
    report = freeze(model, "baseline+every=3")
    schedule = Schedule.of(report, 100)
    rates = Rates.of(model, report, schedule)
    ids = torch.randint(50, (2, 16))
    for step in range(1, 8):
        advance(model, report, schedule, step)
        model.zero_grad()
        model(ids, ids).backward()
        gradients = [t.grad is not None for site in report.sites for _, t in site_tensors(model, site)]
        assert set(gradients) == {step % 3 == 1}
    groups = build_optimizer(model, TrainingSection(max_steps=10), rates).param_groups
    assert "blocks.0.attention.query.weight" in [name for group in groups for name in group["names"]]


def test_pausing_never_wakes_what_a_user_froze():
    model = small_gpt()
    model.blocks[0].requires_grad_(False)
    report = freeze(model, "baseline+every=4")
    advance(model, report, Schedule.of(report, 10), 1)
    assert not model.blocks[0].attention.query.weight.requires_grad
    assert model.blocks[1].attention.query.weight.requires_grad
    names = [n for n in Rates.of(model, report, Schedule.of(report, 10)).pausing if n.startswith("blocks.0.")]
    assert names == []


@pytest.mark.parametrize(
    ("name", "below", "top"),
    [("gpt2", ["transformer.wte.weight", "transformer.wpe.weight"], "transformer.ln_f.weight"),
     ("t5", ["shared.weight"], "decoder.final_layer_norm.weight"),
     ("bert", ["bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.weight"], "classifier.weight"),
     ("vit", ["vit.embeddings.cls_token", "vit.embeddings.position_embeddings"], "classifier.weight")],
)  # fmt: skip
def test_embeddings_of_every_kind_are_below_all_layers(name, below, top):
    model = ARCHITECTURES[name].model()
    report = freeze(model, "baseline+layer_lr=0.5")
    factors = Rates.of(model, report, Schedule.of(report, 100)).factors
    assert {factors[path] for path in below} == {0.25} and factors.get(top, 1.0) == 1.0


def test_positions_of_our_classifier_are_slowed_with_its_embeddings_and_each_stack_has_its_own_depth():
    from oelm.models.huggingface import GPTForSequenceClassification, HFGPTConfig

    config = HFGPTConfig(vocab_size=50, d_model=32, num_layers=2, num_heads=4, d_ff=64, max_seq_len=16)
    t5 = hf.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=1, num_heads=4)
    wanted = {"gpt.position.weight": 0.25, "gpt.embedding.weight": 0.25, "shared.weight": 0.125}
    wanted |= {f"encoder.block.{n}.layer.1.DenseReluDense.wo.weight": 0.5 ** (2 - n) for n in range(3)}
    wanted |= {"decoder.block.0.layer.0.SelfAttention.q.weight": 1.0}
    found = {}
    for model in (GPTForSequenceClassification(config), hf.T5ForConditionalGeneration(t5)):
        report = freeze(model, "baseline+layer_lr=0.5")
        found |= Rates.of(model, report, Schedule.of(report, 100)).factors
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("method", ["oelm_freeze+thaw=top-down:0.2:0.5+refreeze=0.8", "baseline+every=3",
                                    "oelm_freeze+thaw=bottom-up:7"])  # fmt: skip
def test_the_share_of_trained_steps_is_what_counting_gives(method):
    report = freeze(small_gpt(), method)
    schedule = Schedule.of(report, 100)
    for site in report.sites:
        counted = sum(schedule.trains(site, step) for step in range(1, 101)) / 100
        assert trained_shares(report, 100)[site.path] == pytest.approx(counted)


def test_learning_rates_of_layers_roles_and_thawed_weights():
    model = small_gpt()
    report = freeze(model, "baseline+lr=0.5+layer_lr=0.9")
    rates = Rates.of(model, report, Schedule.of(report, 100))
    key = {name: rates.at(rates.key(name), 10) for name, _ in model.named_parameters()}
    assert key["blocks.3.ffn.up.weight"] == 1.0 and key["norm.weight"] == 1.0
    assert key["blocks.0.ffn.up.weight"] == pytest.approx(0.9**3)
    assert key["blocks.0.attention.query.weight"] == pytest.approx(0.5 * 0.9**3)
    assert key["embedding.weight"] == pytest.approx(0.9**4)
    report = freeze(small_gpt(), "oelm_freeze+thaw=top-down:0.5+warmup=10")
    rates = Rates.of(small_gpt(), report, Schedule.of(report, 100))
    usual = freeze(small_gpt(), "oelm_freeze+thaw=top-down:0.5")
    assert [Schedule.of(usual, steps).warmup for steps in (60, 100_000)] == [6, 100]
    name = "blocks.0.attention.query.weight"
    assert [rates.at(rates.key(name), step) for step in (51, 55, 60, 90)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


def test_the_picture_shows_what_trains_when():
    report = freeze(small_gpt(2), "identity_q+layers=first1")
    rows = dict(picture(report, columns=4))
    assert rows["layer 0 query"] == "○○○○" and rows["layer 0 key"] == "████"
    report = freeze(small_gpt(2), "oelm_freeze+thaw=bottom-up:0.25:0.75")
    rows = dict(picture(report, columns=4))
    assert rows["layer 0 key"] == "·███" and rows["layer 1 key"] == "···█"
    assert dict(picture(freeze(small_gpt(2), "baseline+every=2"), columns=4))["layer 0 key"] == "▒▒▒▒"


def test_the_picture_hides_no_matrix_and_no_stack():
    report = freeze(small_gpt(2), "oelm_freeze+ratio=0.5")
    rows = dict(picture(report, columns=2))
    frozen = {site.path for site in report.sites if site.frozen}
    shown = {label for label, line in rows.items() if line == "··"}
    assert "blocks.1.ffn.up" in frozen and "blocks.1.ffn.down" not in frozen
    assert "layer 1 ffn ffn.up" in shown and rows["layer 1 ffn ffn.down"] == "██"
    model = ARCHITECTURES["t5"].model()
    rows = dict(picture(freeze(model, "oelm_freeze+layers=first1", pretrained=False), columns=2))
    assert {label: line for label, line in rows.items() if "self" not in label and "query" in label} == {
        "encoder.block 0 query": "··", "encoder.block 1 query": "██", "decoder.block 0 query": "··",
        "decoder.block 0 cross query": "··", "decoder.block 1 query": "██", "decoder.block 1 cross query": "██",
    }  # fmt: skip


def test_what_thaws_needs_room_for_its_moments():
    report = freeze(small_gpt(), "oelm_freeze+thaw=top-down:0.5")
    assert report.most_trainable_parameters == report.total_parameters > report.trainable_parameters
    assert freeze(small_gpt(), "oelm_freeze").most_trainable_parameters < report.total_parameters


def test_biases_thaw_too():
    report = freeze(ARCHITECTURES["bert"].model(), "pretrained_frozen+thaw=top-down:0.5")
    assert report.most_trainable_parameters == report.total_parameters


def test_an_encoder_and_a_decoder_thaw_side_by_side_each_from_its_own_top():
    model = hf.BartModel(
        hf.BartConfig(
            vocab_size=20, d_model=16, encoder_layers=4, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        )
    )  # fmt: skip
    report = freeze(model, "oelm_freeze+thaw=top-down:0.2:0.8", pretrained=False)
    schedule = Schedule.of(report, 100)
    assert schedule.thaw_steps == {
        ("encoder.layers", 3): 21, ("encoder.layers", 2): 41, ("encoder.layers", 1): 61, ("encoder.layers", 0): 81,
        ("decoder.layers", 1): 21, ("decoder.layers", 0): 81,
    }  # fmt: skip
    each = replace(report, method=method("oelm_freeze+thaw=top-down:0.2:0.4:0.6:0.8"))
    with pytest.raises(OelmError, match=r"4 thaw times for 2 frozen layers in decoder\.layers; one or two fit"):
        Schedule.of(each, 100)


def test_pieces_stay_where_a_ratio_freezes_nothing():
    report = freeze(small_gpt(), "oelm_freeze+rank=2+ratio=0.05")
    attention = [site for site in report.sites if site.role != "ffn"]
    assert {site.frozen for site in attention} == {True, False}
    assert all(site.adapters == ("rank 2",) for site in attention)


def test_the_picture_of_thaw_times_in_steps_depends_on_the_length_of_the_run():
    report = freeze(small_gpt(2), "oelm_freeze+thaw=bottom-up:5000:9000")
    assert dict(picture(report, columns=4))["layer 0 key"] == "·███"
    assert dict(picture(report, max_steps=10_000, columns=4))["layer 0 key"] == "··██"
    with pytest.raises(OelmError, match="after the last step 1000"):
        picture(report, max_steps=1000)


def test_a_long_schedule_is_compiled_to_its_end():
    from torch._dynamo import config
    from torch._dynamo.testing import CompileCounterWithBackend

    from oelm.training.environment import allow_recompiling

    torch._dynamo.reset()
    model = small_gpt(4)
    report = freeze(model, "oelm_freeze+thaw=top-down:2:5")
    schedule = Schedule.of(report, 5)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter)
    with config.patch(recompile_limit=3):  # fewer than there are states; torch's own is eight
        allow_recompiling(schedule.states)
        for step in range(1, 6):
            report = advance(model, report, schedule, step)
            compiled(torch.randint(50, (2, 16)))
    assert counter.frame_count == 5


def test_compiled_models_follow_a_flip_with_one_more_graph():
    """The gradient of a thawed weight is there after the flip, and each state is compiled once."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = small_gpt(2)
    report = freeze(model, "oelm_freeze+thaw=top-down:0.5")
    schedule = Schedule.of(report, 4)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    ids = torch.randint(50, (2, 16))
    weight = model.blocks[0].attention.query.weight
    for step, graphs, has_gradient in ((1, 1, False), (2, 1, False), (3, 2, True), (4, 2, True)):
        report = advance(model, report, schedule, step)
        model.zero_grad()
        torch.nn.functional.cross_entropy(compiled(ids).flatten(0, 1), ids.flatten()).backward()
        assert counter.frame_count == graphs and (weight.grad is not None) == has_gradient, step


@pytest.mark.parametrize(
    "name", ["oelm_freeze+thaw=top-down:0.5+warmup=2+refreeze=0.8", "baseline+every=3", "baseline+lr=0"]
)
def test_schedules_inside_transformers_trainer(tmp_path, name):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate (dev extra)")
    rows = [{"input_ids": torch.randint(60, (9,)), "labels": i % 2} for i in range(32)]
    model = ARCHITECTURES["bert"].model()
    seen, path = [], "bert.encoder.layer.0.attention.self.query.weight"

    class Watch(hf.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append(model.get_parameter(path).detach().clone())

    callback = oelm.FreezeCallback(name)
    arguments = hf.TrainingArguments(
        str(tmp_path), max_steps=10, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", lr_scheduler_type="constant",
    )  # fmt: skip
    work = hf.Trainer(model, arguments, train_dataset=rows, callbacks=[callback, Watch()])
    seen.append(model.get_parameter(path).detach().clone())
    work.train()
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    expected = {
        "oelm_freeze+thaw=top-down:0.5+warmup=2+refreeze=0.8": [6 <= step < 9 for step in range(1, 11)],
        "baseline+every=3": [step % 3 == 1 for step in range(1, 11)],
        "baseline+lr=0": [False] * 10,
    }
    assert moved == expected[name]
