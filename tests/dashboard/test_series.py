"""Metrics are read once, then only what was appended, and are sent thinned out."""

import json
from pathlib import Path

import numpy as np
import pytest

import factory
from oelm.dashboard.series import Series, smooth, thin


def test_only_what_was_appended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, series = factory.make_run(tmp_path), Series()
    before = len(series.columns(run.metrics_file, "train")["loss"])
    read: list[int] = []
    parsed = json.loads
    monkeypatch.setattr("json.loads", lambda text: read.append(len(text)) or parsed(text))
    run.append_metrics({"kind": "train", "step": 2000, "loss": 1.5, "tokens": 9})
    assert len(series.columns(run.metrics_file, "train")["loss"]) == before + 1
    assert sum(read) < 100


def test_a_torn_line_waits_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    run, series = factory.make_run(tmp_path), Series()
    before = len(series.columns(run.metrics_file, "train")["step"])
    with run.metrics_file.open("a") as file:
        file.write('{"kind": "train", "step": 3000, "lo')
    assert len(series.columns(run.metrics_file, "train")["step"]) == before
    with run.metrics_file.open("a") as file:
        file.write('ss": 1.0}\nnonsense\n[1]\n{"kind": "train", "step": 3001, "loss": 2.0}\n')
        file.write(f'{{"kind": "train", "step": {10**400}, "loss": {10**400}}}\n')
    assert list(series.columns(run.metrics_file, "train")["loss"][before:]) == [1.0, 2.0]


def test_a_resumed_run_starts_over(tmp_path: Path) -> None:
    run, series = factory.make_run(tmp_path), Series()
    series.columns(run.metrics_file, "train")
    run.truncate_records(500)
    assert series.columns(run.metrics_file, "train")["step"].max() == 500


def test_a_metric_that_comes_late_has_its_place(tmp_path: Path) -> None:
    run, series = factory.make_run(tmp_path), Series()
    run.append_metrics({"kind": "train", "step": 2000, "new": 1.0})
    steps, _, values = series.points(run, "train", "new", "step")
    assert (list(steps), list(values)) == ([2000], [1.0])


def test_axes_are_steps_tokens_flops_and_seconds(tmp_path: Path) -> None:
    run, series = factory.make_run(tmp_path), Series()
    steps, same, _ = series.points(run, "validation", "perplexity", "step")
    assert (steps == same).all()
    _, tokens, _ = series.points(run, "validation", "perplexity", "tokens")
    assert list(tokens) == list(steps * factory.TOKENS_PER_STEP)
    _, seconds, _ = series.points(run, "validation", "perplexity", "seconds")
    assert seconds[-1] == pytest.approx(100, rel=0.1)
    assert len(series.points(run, "validation", "perplexity", "flops")[0]) == 0  # nothing was recorded to count them


def test_flops_are_those_the_run_recorded_else_counted_from_its_parameters(tmp_path: Path) -> None:
    run, series = factory.make_run(tmp_path), Series()
    site = {"role": "query", "layer": 0, "shape": [64, 64]}
    run.record(run.freeze_file, {"total_parameters": 1000, "frozen_parameters": 400, "sites": [site]})
    _, flops, _ = series.points(run, "train", "loss", "flops")
    _, tokens, _ = series.points(run, "train", "loss", "tokens")
    weights = 6 * 600 + 4 * 400  # what trains has a gradient of its own
    attention = 3 * 4 * 64 * (factory.TOKENS_PER_STEP / 16 + 1) / 2
    assert flops[-1] / tokens[-1] == pytest.approx(weights + attention, rel=0.01)
    run.record(run.result_file, {**(run.result() or {}), "flops_per_token": 123.0})
    _, flops, _ = series.points(run, "train", "loss", "flops")
    assert flops[-1] / tokens[-1] == pytest.approx(123.0)


def test_smoothing_follows_a_step_slowly_and_a_constant_exactly() -> None:
    values = np.array([1.0] * 5 + [2.0] * 5)
    smoothed = smooth(values, 0.9)
    assert smoothed[4] == pytest.approx(1.0) and 1.0 < smoothed[-1] < 2.0
    assert (smooth(values, 0.0) == values).all()


def test_thinning_keeps_ends_and_spikes() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    kept = thin(values, 500)
    assert len(kept) <= 502 and {0, 9_999, int(values.argmax()), int(values.argmin())} <= set(kept)
