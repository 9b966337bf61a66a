"""The estimator agrees with what is counted and built, and says what freezing saves."""

import pytest

from oelm.costs.estimate import MACHINES, Job, Machine, estimate, read_machine
from oelm.costs.inspection import costs_of
from oelm.errors import OelmError

A100 = MACHINES["a100-80gb"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("oelm_freeze+thaw=top-down:0.5", "no single step is typical"),
        ("baseline+every=4", "no single step is typical"),
        ("oelm_freeze+layers=last9", "wants 9 layers, but the model has 4"),
    ],
)
def test_what_cannot_be_counted_is_refused(method, words):
    with pytest.raises(OelmError, match=words):
        estimate(Job("tiny", method), A100)


@pytest.mark.parametrize(("size", "billions"), [("1b", 1.3), ("3b", 2.7), ("7b", 6.7), ("13b", 12.9), ("70b", 65)])
def test_larger_sizes_are_as_large_as_their_names_say(size, billions):
    assert costs_of(size).total_parameters / 1e9 == pytest.approx(billions, rel=0.04)


def test_ddp_traffic_shrinks_by_exactly_the_frozen_share():
    frozen = estimate(Job("7b", "oelm_freeze", gpus=64), A100)
    base = estimate(Job("7b", gpus=64), A100)
    share = frozen["frozen_parameters"] / frozen["parameters"]
    assert 1 - frozen["traffic_bytes"] / base["traffic_bytes"] == pytest.approx(share)
    assert frozen["freezing_saves"]["memory_bytes"] == 14 * frozen["frozen_parameters"]  # gradient, copy, two moments
    assert 0 < frozen["freezing_saves"]["step_flops"] < 1 / 18
    assert set(base["freezing_saves"].values()) == {0}


def test_one_device_talks_to_nobody():
    alone = estimate(Job("tiny", gpus=1), A100)
    assert alone["traffic_bytes"] == 0
    assert alone["seconds"]["step"] == alone["seconds"]["computing"] + alone["seconds"]["optimizer"]


def test_fsdp_divides_what_ddp_repeats():
    ddp, fsdp = (estimate(Job("13b", gpus=64, strategy=name), A100) for name in ("ddp", "fsdp"))
    assert not ddp["fits"]
    assert fsdp["memory"]["optimizer"] == pytest.approx(ddp["memory"]["optimizer"] / 64)
    assert fsdp["traffic_bytes"] == pytest.approx(1.5 * ddp["traffic_bytes"])


def test_checkpointing_trades_computation_for_memory():
    plain, again = (estimate(Job("7b", gpus=8, gradient_checkpointing=on), A100) for on in (False, True))
    assert again["memory"]["activations"] < plain["memory"]["activations"] / 4
    assert 1.25 < again["flops_per_gpu"] / plain["flops_per_gpu"] < 1.34


def test_a_slow_link_is_what_a_step_waits_for():
    slow = Machine(link_bandwidth=1e8)
    assert estimate(Job("1b", gpus=8), slow)["seconds"]["communication_not_hidden"] > 1
    assert estimate(Job("1b", gpus=8, length=2048, batch=16), A100)["seconds"]["communication_not_hidden"] == 0


def test_a_machine_is_read_from_a_file_and_changed_by_flags(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("peak_flops: 1e12\nutilisation: 0.5\n")
    mine = read_machine(str(file), {"utilisation": 0.25})
    assert (mine.peak_flops, mine.utilisation, mine.overlap) == (1e12, 0.25, 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("peek_flops: 1", "did you mean 'peak_flops'"),
        (
            "utilisation: 2",
            "utilisation of machine .*m.yaml is 2; it must be a number above 0 and at most 1: it is a share",
        ),
        ("peak_flops: fast", "peak_flops of machine .*m.yaml is 'fast'"),
        ("peak_flops: 0", "peak_flops of machine .*m.yaml is 0; it must be a number that is finite and positive"),
        ("peak_flops: .inf", "peak_flops of machine .*m.yaml is inf; it must be a number that is finite"),
        ("- 1", "holds list"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_machine_is_refused(tmp_path, text, words):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(OelmError, match=words):
        read_machine(str(tmp_path / "m.yaml"), {})


def test_wrong_jobs_are_refused():
    for job, words in (
        (Job("8b"), "size '8b' is unknown"),
        (Job("7b", strategy="zero"), "strategy 'zero' is unknown"),
        (Job("7b", precision="fp8"), "precision 'fp8' is unknown"),
        (Job("7b", "nothing"), "method 'nothing' is unknown"),
        (Job("7b", gpus=0), "gpus is 0"),
        (Job("3b", "hadamard_qk"), "a head size that is a power of two, not 80"),
        (Job("7b", "oelm_freeze+rank=100000"), "rank 100000 is no saving in a 4096 × 4096 projection"),
    ):
        with pytest.raises(OelmError, match=words):
            estimate(job, A100)
    with pytest.raises(OelmError, match="machine 'b200' is no file and unknown; known: a100"):
        read_machine("b200", {})
