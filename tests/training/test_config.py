import pytest
import yaml

from oelm.errors import OelmError
from oelm.models.shape import GPTConfig
from oelm.training.config import RunConfig, TrainingSection, with_settings
from oelm.training.step import learning_rate

DATA = {"data": {"path": "data/x"}}


def test_a_config_round_trips_through_yaml_and_is_complete():
    config = RunConfig.parse({**DATA, "method": "oelm_v2", "training": {"max_steps": 50}})
    again = RunConfig.parse(yaml.safe_load(yaml.safe_dump(config.to_dict())))
    assert again == config
    assert config.method == "oelm_freeze"  # aliases are resolved in the record
    assert config.to_dict()["training"]["min_lr"] == pytest.approx(3e-5)


def test_the_defaults_are_the_published_settings():
    training = TrainingSection()
    assert (training.max_steps, training.warmup_steps, training.eval_every) == (100_000, 2_000, 1_000)
    assert (training.weight_decay, training.grad_clip, training.batch_size) == (0.1, 1.0, 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "setting 'data' is missing"),
        ({**DATA, "trainig": {}}, "setting 'trainig' is unknown; did you mean 'training'? known: method, seed, model"),
        (
            {**DATA, "training": {"max_lr": "fast"}},
            "setting 'training.max_lr' (--max-lr) is 'fast'; it must be a number, written in digits",
        ),
        ({**DATA, "training": {"min_lr": 1.0}}, "min_lr 1.0 is above max_lr"),
        ({**DATA, "method": "none"}, "method 'none' is unknown"),
        ({**DATA, "seed": -1}, "setting 'seed' (--seed) is -1"),
        ({**DATA, "seed": False}, "setting 'seed' (--seed) is False; it must be a number, not true or false"),
        ({**DATA, "training": {"max_steps": True}}, "setting 'training.max_steps' (--max-steps) is True"),
        ({**DATA, "training": {"max_lr": True}}, "setting 'training.max_lr' (--max-lr) is True"),
        ({**DATA, "seed": "08"}, "setting 'seed' (--seed) is '08'; it must be a number, written in digits"),
        ({**DATA, "seed": "1_0"}, "setting 'seed' (--seed) is '1_0'"),
        ({**DATA, "seed": "٣"}, "setting 'seed' (--seed) is '٣'"),
        ({"data": {"path": ""}}, "setting 'data.path' is ''"),
        (
            {**DATA, "training": {"batch_size": 10**15}},
            "(--batch-size) is 1000000000000000; it must be",
        ),
        ({**DATA, "training": {"max_steps": 10**30}}, "setting 'training.max_steps' (--max-steps) is 10000000"),
        ({**DATA, "method": {"name": "../../escaped"}}, "method '../../escaped' cannot be a folder's name"),
        ({**DATA, "method": {"name": "a/b"}}, "method 'a/b' cannot be a folder's name"),
        ({**DATA, "method": "oelm_freeze+rank=08"}, "rank='08' is not a whole number"),
        ({**DATA, "method": "oelm_freeze+rank=1_0"}, "rank='1_0' is not a whole number"),
        ({**DATA, "method": "oelm_freeze+rank=٣"}, "rank='٣' is not a whole number"),
        ({**DATA, "method": "oelm_freeze+rank=eight"}, "method 'oelm_freeze+rank=eight': rank='eight' is not a whole"),
        (
            {**DATA, "training": {"precision": "fp8"}},
            "setting 'training.precision' (--precision) is 'fp8'; it must be 'fp32', 'bf16' or 'fp16'",
        ),
        (
            {**DATA, "training": {"eval_tokens": "some"}},
            "setting 'training.eval_tokens' (--eval-tokens) is 'some'; it must be a number, written in digits or 'all'",
        ),
        ({**DATA, "method": "baseline+lr=1"}, "lr=1 changes nothing; leave it out"),
    ],
)
def test_a_wrong_config_is_one_line(values, message):
    with pytest.raises(OelmError) as caught:
        RunConfig.parse(values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_written_as_people_write_them():
    config = RunConfig.parse({**DATA, "seed": "7", "training": {"max_lr": "3e-4", "max_steps": 1e3}})
    assert (config.seed, config.training.max_lr, config.training.max_steps) == (7, 3e-4, 1000)


def test_a_size_of_ours_is_no_model_of_transformers():
    with pytest.raises(OelmError, match="'tiny' is a size of our GPT, not a model of transformers; use --size tiny"):
        RunConfig.parse({"model": {"name": "tiny"}, "data": {"path": "fables"}})


def test_a_model_beyond_any_machine_is_refused_before_it_is_built():
    for name, value in (("num_layers", 10**9), ("d_model", 2**40), ("vocab_size", 10**15)):
        with pytest.raises(
            OelmError, match=rf"{name} is {value}; it must be a whole number of at least 1, and at most"
        ):
            GPTConfig.of_size("demo", **{name: value})


def test_unreadable_config_files_are_refused(tmp_path):
    with pytest.raises(OelmError, match="does not exist"):
        RunConfig.load(tmp_path / "none.yaml")
    for content in ("a: [", "just text", "!!python/object/apply:os.system ['true']"):
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(OelmError, match=r"bad.yaml"):
            RunConfig.load(tmp_path / "bad.yaml")


def test_settings_reach_into_sections_without_changing_the_original():
    original = {"training": {"max_lr": 1.0}}
    changed = with_settings(original, ["training.max_lr=3e-4", "model.overrides.positions=rotary", "seed=4"])
    assert changed == {"training": {"max_lr": 3e-4}, "model": {"overrides": {"positions": "rotary"}}, "seed": 4}
    assert original == {"training": {"max_lr": 1.0}}


def test_settings_leave_nested_sections_of_the_original_alone():
    original = {"model": {"overrides": {"d_model": 32}}}
    assert with_settings(original, ["model.overrides.d_model=64"])["model"]["overrides"] == {"d_model": 64}
    assert original == {"model": {"overrides": {"d_model": 32}}}


def test_the_learning_rate_warms_up_linearly_and_falls_as_a_cosine():
    settings = TrainingSection(max_steps=100, warmup_steps=10, max_lr=1.0, min_lr=0.1)
    assert [learning_rate(s, settings) for s in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert learning_rate(55, settings) == pytest.approx(0.55)
    assert learning_rate(100, settings) == pytest.approx(0.1)
    falling = [learning_rate(s, settings) for s in range(10, 101)]
    assert falling == sorted(falling, reverse=True)


def test_without_warm_up_the_first_step_is_near_the_maximum():
    assert learning_rate(1, TrainingSection(max_steps=1000, warmup_steps=0, max_lr=1.0)) == pytest.approx(1.0, abs=1e-4)
