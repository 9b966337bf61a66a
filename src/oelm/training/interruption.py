"""SIGTERM and SIGINT as a request: finish the step, write a checkpoint, leave with 128 + the signal's number."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(Exception):
    """The run was asked to stop and did so with its state saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signal_number).name} at step {step}; 'oelm resume' goes on")
        self.exit_code = 128 + signal_number


class StopRequest:
    """While active, remembers the first signal; a second one acts as usual, so that nobody is held hostage."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
