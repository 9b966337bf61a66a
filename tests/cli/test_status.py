"""`oelm status`, `watch`, `logs`, `stop` and `experiments`, as typed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from typer.testing import CliRunner

from oelm.cli.main import app
from oelm.cli.run import _conclude, _record
from oelm.cli.status import sparkline
from oelm.errors import OelmError
from oelm.experiments.entries import chosen
from oelm.experiments.runner import Job
from oelm.experiments.suite import plan_experiments
from oelm.runs import FAILED, FINISHED, RUNNING, RunFolder
from processes import seconds

CONFIG = {"method": "baseline", "seed": 0, "training": {"max_lr": 3e-4}}
HOLD = """
import sys, time
from oelm.runs import RUNNING, RunFolder
run = RunFolder(sys.argv[1])
with run.lock():
    run.set_status(RUNNING, step=5, max_steps=10, tokens_per_second=100.0, eta_seconds=75.0, device="cpu")
    print("held", flush=True)
    time.sleep(60)
"""


def oelm(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("a", "b"):
        RunFolder(f"runs/{name}").create(CONFIG)
    return Path("runs")


@pytest.fixture
def training(runs: Path, spawn):
    """A process that holds run `a` as a trainer does."""
    source = Path(__file__).parents[2] / "src"
    process = spawn(
        [sys.executable, "-c", HOLD, runs / "a"], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(source)}
    )
    assert process.stdout.readline() == b"held\n"
    return process


def states() -> dict[str, str]:
    return {Path(row["run"]).name: row["state"] for row in json.loads(oelm("status", "--json"))}


def test_a_running_run_shows_its_process_and_a_killed_one_is_dead(runs, training):
    (row, _) = json.loads(oelm("status", "--json"))
    assert (row["state"], row["step"], row["pid"]) == ("running", 5, training.pid)
    assert "1:15" in oelm("status")
    training.send_signal(signal.SIGKILL)
    training.wait()
    assert states() == {"a": "dead", "b": "queued"}


def test_stop_signals_the_process_that_holds_the_folder_and_no_other(runs, training):
    assert "not running (queued)" in oelm("stop", runs / "b")
    assert training.poll() is None
    oelm("stop", runs / "a", "--wait", "10")
    assert training.wait(10) == -signal.SIGTERM


def test_stop_never_believes_a_process_number_without_the_lock(runs, training):
    """The number in an old lock may meanwhile be anybody's."""
    (runs / "b" / ".lock").write_text((runs / "a" / ".lock").read_text())
    RunFolder(runs / "b").set_status(RUNNING, step=1)
    assert "not running (dead)" in oelm("stop", runs / "b")
    assert training.poll() is None


def test_a_run_of_another_machine_is_left_to_it_and_dead_when_it_falls_silent(runs):
    folder = RunFolder(runs / "a")
    (runs / "a" / ".lock").write_text(json.dumps({"pid": os.getpid(), "host": "another-host"}))
    folder.set_status(RUNNING, step=3)
    assert states()["a"] == "running"
    assert "runs on another-host; stop it there" in oelm("stop", runs / "a")
    status = json.loads(folder.status_file.read_text())
    folder.status_file.write_text(json.dumps({**status, "heartbeat": time.time() - 3600}))
    assert states()["a"] == "dead"


@pytest.mark.parametrize("pid", [0, -1, 1, "ours"])
def test_stop_signals_nobody_who_does_not_hold_the_lock(runs, training, monkeypatch, pid):
    """Whoever can write the lock file must not choose whom we signal."""
    asked = []
    monkeypatch.setattr("oelm.cli.status.os.kill", lambda *signalled: asked.append(signalled))
    named = os.getppid() if pid == "ours" else pid
    (runs / "a" / ".lock").write_text(json.dumps({"pid": named, "host": socket.gethostname()}))
    said = oelm("stop", runs / "a", "--wait", "0")
    monkeypatch.undo()
    assert "not running" in said or "which does not hold it; nothing was done" in said
    assert not asked


def test_a_heartbeat_from_the_future_is_no_sign_of_life(runs):
    folder = RunFolder(runs / "a")
    (runs / "a" / ".lock").write_text(json.dumps({"pid": 4711, "host": "another-host"}))
    folder.set_status(RUNNING, step=3)
    status = json.loads(folder.status_file.read_text())
    for ahead, state in ((5, "running"), (3600, "dead"), (1e12, "dead")):
        folder.status_file.write_text(json.dumps({**status, "heartbeat": time.time() + ahead}))
        assert states()["a"] == state
        assert "-" not in CliRunner().invoke(app, ["status", str(runs)]).stdout


def test_a_run_that_is_alive_on_another_machine_is_not_gone_on_with_here(runs):
    folder = RunFolder(runs / "a")
    (runs / "a" / ".lock").write_text(json.dumps({"pid": 4711, "host": "another-host"}))
    folder.set_status(RUNNING, step=3)
    with pytest.raises(OelmError, match=r"is being trained by process 4711 on another-host; stop it"), folder.lock():
        pass
    folder.disown()  # a scheduler knows that the machine is lost
    with folder.lock():
        assert folder.holder()["pid"] == os.getpid()


def test_what_others_wrote_cannot_command_the_terminal(runs):
    bad = RunFolder(runs / "c\x1b[2J")
    bad.create(CONFIG)
    bad.set_status(FAILED, step=1, error="oh\x1b]0;title\x07 no", device="\x9b31m")
    bad.log_file.write_text("one\x1b[31m\ntwo\n")
    for said in (oelm("status"), oelm("watch", "--once"), oelm("logs", bad.path), oelm("stop", bad.path)):
        assert not {"\x1b", "\x07", "\x9b"} & set(said)
    assert oelm("logs", bad.path) == "one\ufffd[31m\ntwo\n"


def test_a_thousand_runs_are_shown_in_two_seconds(tmp_path, monkeypatch):
    """Reads what it needs only: neither checkpoints nor the rows of every step."""
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_dump(CONFIG)
    rows = "".join(json.dumps({"kind": "train", "step": n, "loss": 3.0, "lr": 1e-3}) + "\n" for n in range(200))
    rows += "".join(json.dumps({"kind": "validation", "step": n, "loss": 3.0 - n / 9}) + "\n" for n in range(9))
    for number in range(1000):
        run = Path(f"runs/s{number % 10}/r{number}")
        (run / "checkpoints" / "step-9").mkdir(parents=True)
        (run / "config.yaml").write_text(config)
        (run / "status.json").write_text(json.dumps({"state": "finished", "step": 200, "max_steps": 200, "loss": 3.0}))
        (run / "metrics.jsonl").write_text(rows)
        (run / "result.json").write_text(json.dumps({"steps": 200, "final": {"loss": 3.0, "perplexity": 20.0}}))
    for command in ("status", "watch"):
        before = time.process_time()
        assert "1000 runs: 1000 finished" in oelm(command)
        spent = time.process_time() - before  # our own, which takes longer, too, on a core that is shared
        assert spent < seconds(2), f"{command}: {spent:.2f} s"


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_a_suite_that_cannot_be_signalled_does_not_end_stop(runs, monkeypatch, error):
    def kill(pid, number):
        raise error

    monkeypatch.setattr(os, "kill", kill)
    with RunFolder(runs / "b").claim():
        said = oelm("stop", "--all")
    assert ("belongs to another user" in said) == (error is PermissionError)
    assert ("nothing is running in runs" in said) == (error is PermissionError)


def test_failures_and_damage_are_told(runs):
    RunFolder(runs / "a").set_status(FAILED, step=2, error="Diverged: the loss became nan")
    (runs / "b" / "status.json").write_text("{")
    shown = oelm("status")
    assert "the loss became nan" in shown
    assert "status.json cannot be read" in shown and "restore it from a copy, or delete the run" in shown
    assert states() == {"a": "failed", "b": "unreadable"}


def test_watch_draws_the_curve(runs):
    folder = RunFolder(runs / "a")
    for step, loss in enumerate((4.0, 3.0, 2.0, 1.0)):
        folder.append_metrics({"kind": "validation", "step": step, "loss": loss})
    assert "█▆▃▁" in oelm("watch", "--once")
    assert sparkline([1.0] * 40) == "▁" * 16
    assert sparkline([]) == ""


def test_logs_prints_the_end_and_follows_until_the_run_ends(runs, training):
    folder = RunFolder(runs / "a")
    folder.log_file.write_text("".join(f"line {i}\n" for i in range(50)))
    assert oelm("logs", folder.path, "-n", "2") == "line 48\nline 49\n"
    training.terminate()
    training.wait()
    folder.set_status(FINISHED, step=10)
    assert oelm("logs", folder.path, "-n", "1", "-f") == "line 49\n"
    for follow in ((), ("-f",)):  # nobody has it in a queue, so there is nothing to wait for
        with pytest.raises(OelmError, match=r"has no log yet; it is queued\. Start it: oelm resume runs/b"):
            oelm("logs", runs / "b", *follow)


def test_the_log_of_a_refused_run_is_what_it_printed(runs):
    RunFolder(runs / "b").output_file.write_text("error: num_heads 5 does not divide d_model\n")
    for follow in ((), ("-f",)):
        assert oelm("logs", runs / "b", *follow) == "error: num_heads 5 does not divide d_model\n"


def test_mistakes_are_one_line(runs):
    for words, message in (
        (["status", "nowhere"], "nowhere does not exist"),
        (["stop"], "name the runs to stop, or give --all"),
        (["stop", "nowhere"], "nowhere is not a run folder"),
        (["stop", "--all", "--in", "nowhere"], "nowhere is not a folder; say with --in where the runs lie"),
        (["run", "GPT-2"], "did you mean 'GPT-02'"),
        (["run", "GPT-02", "--seeds", "0;1"], "is not a list of whole numbers"),
        (["run", "GPT-02", "--engine", "cloud"], "engine 'cloud' is unknown"),
    ):
        with pytest.raises(OelmError, match=message):
            oelm(*words)


def test_a_report_is_asked_for_by_the_name_of_a_suite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in plan_experiments(chosen(["phase3"], "mini"), Path("runs/mini"), prepare_data=False):
        folder = RunFolder(run.folder)
        folder.create(run.config.to_dict())
        folder.result_file.write_text(json.dumps({"steps": 2000, "final": {"perplexity": 24.29, "loss": 3.19}}))
    written = oelm("report", "phase3", "--scale", "mini", "--format", "md").split()
    assert written[0] == "runs/mini/report-phase3.md"
    assert "report-phase3-figures/" in Path(written[0]).read_text("utf-8")  # another report keeps its own
    oelm("report", "gpt-05", "--scale", "mini", "--format", "html", "--lang", "zh")
    page = Path("runs/mini/report-gpt-05.zh.html").read_text("utf-8")
    assert "GPT-05/oelm_freeze" in page or "oelm_freeze-0" in page
    assert "oelm_random" not in page
    with pytest.raises(OelmError, match=r"phase3 has no runs at scale full .* at scale mini"):
        oelm("report", "phase3")
    with pytest.raises(OelmError, match=r"phase9 is no folder; .*did you mean 'phase"):
        oelm("report", "phase9")


def test_experiments_lists_published_results_and_our_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run,) = plan_experiments(chosen(["GPT-03"], "mini"), Path("runs/mini"), prepare_data=False)
    folder = RunFolder(run.folder)
    folder.create(run.config.to_dict())
    folder.result_file.write_text(json.dumps({"steps": 2000, "final": {"perplexity": 24.29, "loss": 3.19}}))
    listed = json.loads(oelm("experiments", "--json"))
    rows = {row["id"]: row for row in listed["experiments"]}
    assert rows["GPT-01"]["published"]["perplexity"] == 4.2692
    for name in ("GPT-03", "controls-tinystories"):  # they share it
        assert rows[name]["runs"]["mini"][0]["perplexity"] == 24.29
    assert listed["suites"]["phase2"] == ["GPT-01", "GPT-02"]
    monkeypatch.setenv("COLUMNS", "160")
    assert "1/1: 24.29" in oelm("experiments")


def test_runs_with_other_settings_than_the_catalogs_are_named_and_not_counted(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    settings = ["training.max_steps=5", "training.warmup_steps=1"]
    for names, given in ((["GPT-01"], settings), (["GPT-02"], [])):
        (run,) = plan_experiments(chosen(names, "mini"), Path("runs/mini"), prepare_data=False, settings=given)
        run.config.data.path = "elsewhere"
        folder = RunFolder(run.folder)
        folder.create(run.config.to_dict())
        folder.result_file.write_text(json.dumps({"steps": 5, "final": {"perplexity": 99.0, "loss": 4.6}}))
    rows = {row["id"]: row["runs"] for row in json.loads(oelm("experiments", "--json"))["experiments"]}
    assert (rows["GPT-01"], len(rows["GPT-02"]["mini"])) == ({}, 1)
    assert "runs/mini/GPT-01/baseline-0 (training.max_steps is 5 there and 2000 here)" in caplog.text
    with pytest.raises(OelmError, match="GPT-01 has no runs at scale mini"):
        oelm("report", "GPT-01", "--scale", "mini")


def test_a_dry_run_says_what_full_scale_needs_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (facts,) = json.loads(oelm("run", "GPT-02", "--dry-run", "--json"))
    assert facts["trainable_parameters"] == 41_751_040
    assert facts["tokens"] == 100_000 * 8 * 512
    assert not list(tmp_path.iterdir())
    lines = [line.split()[0] for line in oelm("run", "phase2", "--dry-run").splitlines()]
    assert lines[:5] == ["arm", "GPT-01", "baseline", "GPT-02", "oelm_freeze"]


def test_a_dry_run_marks_what_is_finished_and_leaves_open_what_nobody_knows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (run,) = plan_experiments(chosen(["GPT-02"], "smoke"), Path("runs/smoke"), prepare_data=False)
    folder = RunFolder(run.folder)
    folder.create(run.config.to_dict())
    folder.result_file.write_text("{}")
    monkeypatch.setenv("COLUMNS", "160")
    shown = oelm("run", "all", "--scale", "smoke", "--dry-run")
    assert "9 runs, 1 of them finished; nothing was started" in shown
    lines = shown.splitlines()
    assert "1, 1 done" in lines[1 + [line.strip() for line in lines].index("GPT-02")]
    assert lines[1 + [line.strip() for line in lines].index("SST-2-01")].split()[2:4] == ["?", "?"]


def test_a_killed_run_is_told_as_such(runs, capsys):
    job = Job(SimpleNamespace(experiment="GPT-01"), RunFolder(runs / "a"), exit_code=-signal.SIGKILL)
    assert _record(job)["reason"] == "was killed by SIGKILL (perhaps for lack of memory)"
    with pytest.raises(typer.Exit):
        _conclude([job], runs, as_json=False)
    assert "runs/a was killed by SIGKILL (perhaps for lack of memory):" in capsys.readouterr().err


def test_monitoring_loads_no_torch(runs):
    script = "import sys\nfrom oelm.cli.main import app\n"
    script += "\n".join(
        f"app({words}, standalone_mode=False)"
        for words in (["status"], ["watch", "--once"], ["experiments"], ["stop", "--all"])
    )
    script += "\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
