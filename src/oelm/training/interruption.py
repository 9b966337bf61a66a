"""A signal as a request: finish the step, write a checkpoint, leave with 128 + the signal's number."""

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)
"""SIGHUP is a terminal that was closed. Whatever was ignored when we were started (`nohup`) stays ignored."""
ECHO_SECONDS: dict[int, float] = dict(zip(STOP_SIGNALS, (10.0, 1.0, 10.0, 1.0), strict=False))
"""How long a signal repeats the first request. A person who asks again means it; SIGTERM comes from launchers and from
the kernel, once for each thread of a parent that dies, which takes its time on a busy machine."""


def heard() -> list[int]:
    """The signals that mean a request to us."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def leave_terminal() -> None:
    """A terminal that was closed takes no last words: an attempt would be an error in place of the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            os.write(stream.fileno(), b"")
        except (OSError, ValueError, AttributeError):  # no such terminal; or not a file at all
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
            except (OSError, ValueError, AttributeError):
                continue


class Interrupted(Exception):
    """The run was asked to stop and did so with its state saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name} at step {step}; 'oelm resume' goes on")
        self.exit_code = 128 + signal_number


class StopRequest:
    """While active, remembers the first signal; a later one acts as usual, so that nobody is held hostage.

    One request may arrive several times at once: from the terminal and from a launcher, or from each dying thread of
    the process that started us. For `ECHO_SECONDS` it is the same request.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._asked_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in heard():
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        leave_terminal()
        if self.signal_number is None:
            self.signal_number, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > ECHO_SECONDS[number]:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
