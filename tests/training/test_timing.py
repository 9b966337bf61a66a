import pytest
import torch

from oelm.training import timing
from oelm.training.timing import StepTimer


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when told to."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_the_first_steps_are_left_out_and_phases_add_up(clock):
    timer = StepTimer(torch.device("cpu"), warmup_steps=2)
    for seconds in (9.0, 9.0, 1.0, 3.0):
        with timer.step():
            with timer.phase("forward"):
                clock[0] += seconds / 4
            with timer.phase("backward"):
                clock[0] += seconds / 2
            clock[0] += seconds / 4
    facts = timer.statistics()
    assert facts["num_steps_measured"] == 2
    assert facts["mean_step_time"] == 2.0
    assert (facts["min_step_time"], facts["max_step_time"]) == (1.0, 3.0)
    assert facts["forward_share"] == 0.25
    assert facts["backward_share"] == 0.5
    assert facts["other_share"] == 0.25


def test_steps_after_a_resume_or_recompilation_can_be_left_out(clock):
    timer = StepTimer(torch.device("cpu"), warmup_steps=0)
    timer.skip(1)
    for seconds in (5.0, 1.0):
        with timer.step():
            clock[0] += seconds
    assert timer.statistics()["mean_step_time"] == 1.0


def test_measured_steps_survive_a_round_trip(clock):
    timer = StepTimer(torch.device("cpu"), warmup_steps=0)
    with timer.step():
        clock[0] += 1.5
    other = StepTimer(torch.device("cpu"), warmup_steps=0)
    other.load(timer.tensor())
    assert other.statistics() == timer.statistics()


def test_a_gpu_is_waited_for_at_both_ends(monkeypatch):
    waits = []
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda device: waits.append(device))
    timer = StepTimer(torch.device("cuda:0"), warmup_steps=0)
    for _ in range(10):
        with timer.step(), timer.phase("forward"):
            pass
    assert len(waits) == 9 * 2 + 4  # phases are split in every tenth step only, not to hold the GPU up
    assert timer.statistics()["num_steps_measured"] == 10
