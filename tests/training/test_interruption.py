"""A request to stop, once or several times."""

import os
import signal

import pytest

from oelm.training import interruption
from oelm.training.interruption import StopRequest


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
