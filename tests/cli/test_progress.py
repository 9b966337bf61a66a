"""What is said while something trains."""

import io
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from oelm.cli import progress
from oelm.cli.demo import _require_success
from oelm.errors import OelmError
from oelm.experiments.runner import Job
from oelm.runs import RunFolder


def job(code, step):
    run = SimpleNamespace(config=SimpleNamespace(training=SimpleNamespace(max_steps=10)))
    return Job(run, RunFolder("runs/x"), exit_code=code, status={"step": step})


def test_a_stopped_run_is_not_counted_as_done():
    jobs = [job(0, 10), job(-signal.SIGTERM, 4), job(None, 0)]
    assert progress.overall(jobs) == "1 of 3 runs, 47 %, 1 stopped"
    with pytest.raises(OelmError, match=r"1 of 3 runs were stopped; .* the same command goes on"):
        _require_success(jobs)


def test_ctrl_c_says_how_to_go_on(capsys):
    with pytest.raises(KeyboardInterrupt), progress.SuiteBoard():
        raise KeyboardInterrupt
    assert "the others have saved themselves: the same command goes on" in capsys.readouterr().err


def test_threads_on_a_busy_machine_are_advised_against(monkeypatch, capsys):
    monkeypatch.setattr(progress.os, "getloadavg", lambda: (99.5, 0, 0))
    monkeypatch.setattr(progress, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with progress.training_progress("baseline → runs/x", quiet=False) as update:
        for step in (0, 1):
            update({"state": "running", "step": step, "max_steps": 2, "loss": 1.0, "device": "cpu"})
    assert capsys.readouterr().err.splitlines()[:2] == [
        "baseline → runs/x",
        "this machine is busy (load 99.5, 2 cores): --threads 1 may be several times faster",
    ]
    assert progress.busy({"device": "cuda"}) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert progress.busy({"device": "cpu"}) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(progress.os, "getloadavg", lambda: (1.9, 0, 0))
    assert progress.busy({"device": "cpu"}) is None


def test_the_last_figure_is_said_to_be_of_the_whole_validation_set():
    facts = {"loss": 3.0, "perplexity": 20.0}
    assert progress.describe({**facts, "state": "running"}) == "loss 3.000, validation ppl 20.00"
    assert (
        progress.describe({**facts, "state": "finished"}) == "loss 3.000, validation ppl 20.00 (whole validation set)"
    )


def test_a_terminal_of_80_columns_cuts_off_no_figure(monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "command_console", lambda stderr: console)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    facts = {"step": 1234, "max_steps": 100_000, "loss": 3.0, "perplexity": 20.0}
    facts |= {"tokens_per_second": 20_473.0, "eta_seconds": 70}
    title = "signs_qk+rank=8+layers=not-first1 → runs/fables-bpe1024-tiny-[/]signs_qk+rank=8+layers=not-first1-0"
    with progress.training_progress(title, quiet=False) as update:
        update({**facts, "state": "running"})
    said = shown.getvalue()
    for word in ("[/]", "1234/100000", "loss 3.000", "validation ppl 20.00", "20,473 tok/s", "ETA 1:10", "0:00:00"):
        assert word in said, said
    assert "…" not in said
