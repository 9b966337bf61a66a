"""A signal as a request: finish the step, write a checkpoint, leave with 128 + the signal's number."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""SIGHUP is a terminal that was closed. Whatever was ignored when we were started (`nohup`) stays ignored."""
ECHO_SECONDS: dict[int, float] = dict(zip(STOP_SIGNALS, (10.0, 1.0, 10.0, 1.0), strict=False))
"""How long a signal repeats the first request. A person who asks again means it; SIGTERM comes from launchers and from
the kernel, once for each thread of a parent that dies, which takes its time on a busy machine."""


def heard() -> list[int]:
    """The signals that mean a request to us."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: Sequence[int]) -> Iterator[None]:
    """Inside, these signals go to the handler; in another thread than the main one, to whom they went before."""
    here = numbers if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, handler) for number in here}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def leave_terminal() -> None:
    """A terminal that was closed takes no last words: an attempt would be an error in place of the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            os.write(stream.fileno(), b"")
        except (OSError, ValueError, AttributeError):  # no such terminal; or not a file at all
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


class Interrupted(Exception):
    """The run was asked to stop and did so with its state saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(signal_number).name} at step {step}; 'oelm resume RUN' goes on"
        )
        self.exit_code = 128 + signal_number


class StopRequest:
    """While active, remembers the first signal; a later one acts as usual, so that nobody is held hostage.

    One request may arrive several times at once: from the terminal and from a launcher, or from each dying thread of
    the process that started us. For `ECHO_SECONDS` it is the same request.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._asked_at = 0.0
        self._handled = ExitStack()

    def __enter__(self) -> "StopRequest":
        self._handled.enter_context(handled(self._note, heard()))
        return self

    def __exit__(self, *error: Any) -> None:
        self._handled.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        leave_terminal()
        if self.signal_number is None:
            self.signal_number, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > ECHO_SECONDS[number]:
            self._handled.close()
            signal.raise_signal(number)
