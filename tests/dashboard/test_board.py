"""The table of runs: what it says, how it follows, and what it refuses to follow."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import factory
from oelm.dashboard.board import Board
from oelm.errors import OelmError
from oelm.runs import FAILED, FINISHED, INTERRUPTED, QUEUED, RUNNING, RunFolder

HOLD = """
import sys, time
from oelm.runs import RUNNING, RunFolder
run = RunFolder(sys.argv[1])
with run.lock():
    run.set_status(RUNNING, step=5, max_steps=10, tokens_per_second=100.0, eta_seconds=75.0, device="cpu")
    print("held", flush=True)
    time.sleep(60)
"""


def rows(board: Board, since: str = "") -> dict[str, dict]:
    board.refresh()
    return {row["name"]: row for row in board.changes(since)["rows"]}


def test_a_row_says_what_the_run_is_and_how_far_it_is(tmp_path: Path) -> None:
    factory.make_run(tmp_path / "demo", "oelm_freeze", 3)
    row = rows(Board([tmp_path]))["oelm_freeze-s3"]
    said = {
        key: row[key] for key in ("experiment", "method", "dataset", "seed", "state", "step", "max_steps", "metric")
    }
    assert said == {
        "experiment": "demo", "method": "oelm_freeze", "dataset": "fables", "seed": 3, "state": FINISHED,
        "step": 1000, "max_steps": 1000, "metric": "perplexity",
    }  # fmt: skip
    assert 3 < row["score"] < 4 and 1 < row["loss"] < 2


def test_a_look_sends_only_what_has_changed(tmp_path: Path) -> None:
    a, _ = (factory.make_run(tmp_path, "baseline", seed, finished=False, state=INTERRUPTED) for seed in (0, 1))
    board = Board([tmp_path])
    assert len(rows(board)) == 2
    version = board.changes("")["version"]
    assert rows(board, version) == {}
    a.set_status(FAILED, step=7, error="Diverged: no number")
    changed = rows(board, version)
    assert list(changed) == [a.name] and changed[a.name]["state"] == FAILED and "Diverged" in changed[a.name]["error"]


def test_runs_come_and_go(tmp_path: Path) -> None:
    factory.make_run(tmp_path, "baseline", 0)
    board = Board([tmp_path])
    rows(board)
    version = board.changes("")["version"]
    fresh = factory.make_run(tmp_path / "deeper" / "still", "baseline", 1)
    assert list(rows(board, version)) == [fresh.name]
    version = board.changes("")["version"]
    fresh.path.rename(tmp_path / ".hidden")
    board.refresh()
    changes = board.changes(version)
    assert changes["rows"] == [] and len(changes["gone"]) == 1


def test_a_page_of_another_server_gets_everything(tmp_path: Path) -> None:
    factory.make_run(tmp_path)
    board = Board([tmp_path])
    board.refresh()
    assert board.changes("0000.99")["whole"] and board.changes("nonsense")["whole"]


def test_a_process_that_died_shows_as_dead(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a")
    run.create(factory.config())
    board = Board([tmp_path])
    assert rows(board)["a"]["state"] == QUEUED
    path = str(Path(__file__).parents[2] / "src")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, run.path], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        row = rows(board)["a"]
        assert (row["state"], row["speed"], row["eta"]) == (RUNNING, 100.0, 75.0)
    finally:
        process.kill()
        process.wait()
    assert rows(board)["a"]["state"] == "dead"


def test_one_scan_serves_all_who_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oelm.dashboard.board.MOST_SECONDS", 30.0)
    monkeypatch.setattr("oelm.dashboard.board.FRESH_SECONDS", 30.0)
    factory.make_run(tmp_path)
    board, scans = Board([tmp_path]), []
    monkeypatch.setattr(board, "_scan", lambda: scans.append(1))
    for _ in range(20):
        board.refresh()
    assert len(scans) == 1


def test_a_settled_run_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = factory.make_run(tmp_path)
    past = time.time() - 100
    for path in (run.status_file, run.path):
        os.utime(path, (past, past))
    board = Board([tmp_path])
    board.refresh()
    monkeypatch.setattr("oelm.dashboard.board.facts_of", lambda folder: pytest.fail("was read again"))
    board.refresh()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "method: [unclosed"),
        ("config.yaml", "just words"),
        ("config.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [*b, *b]\n" for i in range(9_000))),
        ("status.json", "{torn"),
        ("status.json", "[1]"),
        ("result.json", '{"final": 3}'),
    ],
)
def test_a_broken_folder_is_listed_as_broken_with_its_reason(tmp_path: Path, file: str, content: str) -> None:
    run = factory.make_run(tmp_path)
    (run.path / file).write_text(content)
    row = rows(Board([tmp_path]))[run.name]
    assert row["state"] == "unreadable" and row["error"]


def test_a_folder_that_lost_its_config_is_broken_and_mends_by_itself(tmp_path: Path) -> None:
    run = factory.make_run(tmp_path)
    config = run.config_file.read_text()
    run.config_file.unlink()
    board = Board([tmp_path])
    assert rows(board)[run.name]["state"] == "unreadable"
    run.config_file.write_text(config)
    assert rows(board)[run.name]["state"] == FINISHED


def test_numbers_that_are_none_do_not_reach_the_page(tmp_path: Path) -> None:
    run = factory.make_run(tmp_path, finished=False)
    run.status_file.write_text('{"state": "interrupted", "step": 1, "loss": NaN, "perplexity": "many", "heartbeat": 0}')
    row = rows(Board([tmp_path]))[run.name]
    json.dumps(row, allow_nan=False)
    assert row["state"] == "unreadable" and "NaN is no number" in row["error"]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = factory.make_run(tmp_path / "outside", name="secret")
    root = tmp_path / "runs"
    inside = factory.make_run(root, name="inside")
    (root / "door").symlink_to(outside.path.parent)
    inside.status_file.unlink()
    inside.status_file.symlink_to(outside.status_file)
    found = rows(Board([root]))
    assert list(found) == ["inside"] and found["inside"]["state"] == "unreadable"


def test_a_pipe_does_not_stop_the_page(tmp_path: Path) -> None:
    run = factory.make_run(tmp_path)
    run.status_file.unlink()
    os.mkfifo(run.status_file)
    assert rows(Board([tmp_path]))[run.name]["state"] == "unreadable"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OelmError, match="nowhere is not a folder"):
        Board([tmp_path / "nowhere"])


def test_nothing_is_ever_written(tmp_path: Path) -> None:
    factory.make_suite(tmp_path, ("baseline",), (0, 1))
    dead = factory.make_run(tmp_path, seed=2, finished=False)
    with dead.lock():
        pass
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    board = Board([tmp_path])
    rows(board)
    rows(board)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
