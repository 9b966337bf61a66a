"""What a run ran on: versions, hardware, the commit of the code."""

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h
PACKAGES = ("oelm", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def environment(device: str | None = None) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": usable_cores(),
        "packages": {name: version(name) for name in PACKAGES},
        "git_commit": git_commit(),
        "device": device,
        "gpus": gpu_names(),
    }


def allow_recompiling(states: int) -> None:
    """torch.compile gives up on a model after a few versions of its graph; a freezing schedule has one per state."""
    import torch._dynamo.config as dynamo

    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # its name before torch 2.7
    setattr(dynamo, limit, max(getattr(dynamo, limit), states + 2))


def gpu_names() -> list[str]:
    """Names of the CUDA devices; torch is asked only if it is loaded already."""
    torch = sys.modules.get("torch")
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """The most memory this process has held. getrusage would count what the parent held before this program started."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
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
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the code that runs, if it runs from a checkout; marked when files differ from it."""
    here = Path(__file__).parent
    try:
        # Installed into an environment inside somebody else's repository, their commit would say nothing about us.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__], cwd=here, capture_output=True, check=True, timeout=5
        )
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        run = subprocess.run(describe, cwd=here, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
