"""A request to stop, once or several times."""

import os
import signal
import sys

import pytest

from oelm.training import interruption
from oelm.training.interruption import STOP_SIGNALS, StopRequest


def test_the_same_request_twice_at_once_is_one_request():
    with StopRequest() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM


def test_a_later_request_acts_as_usual(monkeypatch):
    monkeypatch.setitem(interruption.ECHO_SECONDS, signal.SIGINT, 0.0)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_closed_terminal_is_a_request_like_any_other_and_what_is_ignored_stays_ignored(number):
    with StopRequest() as stop:
        os.kill(os.getpid(), number)
        assert stop.signal_number == number
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), number)
            assert stop.signal_number is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, previous)


CLOSED = """
import os, signal, sys, time
from oelm.training.interruption import StopRequest
with StopRequest() as stop:
    print("ready", flush=True)
    while stop.signal_number is None:
        time.sleep(0.02)
    print("this terminal is gone", flush=True)
    print("this one, too", file=sys.stderr, flush=True)
sys.exit(128 + stop.signal_number)
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal that can be closed")
def test_last_words_to_a_closed_terminal_do_not_hide_the_exit_code(spawn):
    ours, theirs = os.openpty()
    program = f"import fcntl, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0){CLOSED}"
    process = spawn([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert os.read(ours, 100).startswith(b"ready")
    os.close(ours)
    assert process.wait(30) == 128 + signal.SIGHUP
