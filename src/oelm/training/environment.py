"""What a run ran on: versions, hardware, the commit of the code."""

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h
PACKAGES = ("oelm", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def environment(device: str | None = None) -> dict[str, Any]:
    torch = sys.modules.get("torch")  # asked for its devices only if it is loaded already
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _linux_says("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "packages": {name: version(name) for name in PACKAGES},
        "git_commit": git_commit(),
        "device": device,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else [],
    }


def allow_recompiling(states: int) -> None:
    """torch.compile gives up on a model after a few versions of its graph; a freezing schedule has one per state."""
    import torch._dynamo.config as dynamo

    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # its name before torch 2.7
    setattr(dynamo, limit, max(getattr(dynamo, limit), states + 2))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """The most memory this process has held. getrusage would count what the parent held before this program started."""
    if held := _linux_says("/proc/self/status", "VmHWM"):
        return int(held.split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return psutil.Process().memory_info().peak_wset
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks for the next step instead of giving them back to the kernel.

    Every step frees and asks for the same activations; fetching their pages anew took 7 to 19 % of a step's time on a
    CPU. The peak does not grow. Elsewhere than on Linux with glibc this does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _linux_says(file: str, key: str) -> str | None:
    """The value of the first line `key: value` of a file that only Linux has."""
    with suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return None


@cache
def git_commit() -> str | None:
    """The commit of the code that runs, if it runs from a checkout; marked when files differ from it."""
    git = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5)
    try:
        # Installed into an environment inside somebody else's repository, their commit would say nothing about us.
        git(["git", "ls-files", "--error-unmatch", __file__], check=True)
        run = git(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


@cache
def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
