"""What runs below a process, and where it listens, as Linux tells it; on other systems there is nothing to see."""

import contextlib
import os
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Every living process below this one."""
    found = []
    with contextlib.suppress(OSError):  # it has just left, or this system has no /proc
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return [child for one in found for child in (one, *children_of(one)) if is_alive(child)]


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waiting for somebody to ask how it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def words_of(pid: int) -> str:
    """Its command line."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return ""


def reachable_from_outside(pid: int) -> tuple[list[str], int]:
    """Addresses other than the loopback's where this process and those below it listen; and how many listen at all."""
    inodes = {link for one in (pid, *children_of(pid)) for link in _sockets(one)}
    listening = []
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in inodes:
                mapped = "0000000000000000FFFF00000100007F"  # 127.0.0.1 as IPv6 writes it
                listening.append(None if address.split(":")[0] in (loopback, mapped) else f"{table} {address}")
    return [address for address in listening if address], len(listening)


def _sockets(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
    return found


def seconds(limit: float) -> float:
    """A limit that holds on a quiet machine, as long as it is on this one now: others may have the cores."""
    return limit * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
