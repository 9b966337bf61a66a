"""SIGTERM and SIGINT as a request: finish the step, write a checkpoint, leave with 128 + the signal's number."""

import signal
import threading
import time
from types import FrameType, TracebackType

ECHO_SECONDS: dict[int, float] = {signal.SIGINT: 1.0, signal.SIGTERM: 10.0}
"""How long a signal repeats the first request. A person who asks again means it; SIGTERM comes from launchers and from
the kernel, once for each thread of a parent that dies, which takes its time on a busy machine."""


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
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is None:
            self.signal_number, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > ECHO_SECONDS[number]:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
