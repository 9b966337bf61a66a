"""The estimator's own check: predicted beside measured, with the error of each."""

import pytest

from oelm.bench import machine, memory


def test_every_size_is_measured_under_both_methods(monkeypatch):
    monkeypatch.setattr(machine, "SECONDS_PER_SHAPE", 0.001)
    monkeypatch.setattr(memory, "measured_memory", lambda arm, shape, **options: 5e6)
    found = memory.check_estimate(["demo"], batch=1)
    assert [(row["size"], row["method"]) for row in found["rows"]] == [("demo", "baseline"), ("demo", "oelm_freeze")]
    for row in found["rows"]:
        assert row["time_error"] == pytest.approx(row["predicted_seconds"] / row["measured_seconds"] - 1)
        assert row["memory_error"] == pytest.approx(row["predicted_bytes"] / 5e6 - 1)
    assert abs(found["worst_memory_error"]) >= abs(found["rows"][0]["memory_error"])
