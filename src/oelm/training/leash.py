"""python -m oelm.training.leash PID COMMAND…: a command that is asked to leave when its parent, process PID, dies.

A suite that is killed cannot stop its runs. On Linux the kernel can: the run gets a SIGTERM, writes a checkpoint and
leaves, and the next suite goes on with it. Elsewhere the command just runs.
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def leashed(*arguments: str) -> list[str]:
    """The command that runs Python with these arguments, on our leash."""
    return [sys.executable, "-m", "oelm.training.leash", str(os.getpid()), sys.executable, *arguments]


def main(parent: int, command: list[str]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it died before we could ask
        sys.exit(128 + signal.SIGTERM)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
