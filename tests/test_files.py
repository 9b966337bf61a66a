"""Locks, as file systems offer them."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from oelm.errors import OelmError
from oelm.files import exclusive, is_locked


def test_a_lock_is_seen_while_it_is_held_and_not_after(tmp_path):
    file = tmp_path / ".lock"
    assert is_locked(file) is False
    with exclusive(file, "taken"):
        assert is_locked(file) is True
    assert is_locked(file) is False


def test_a_lock_is_asked_for_as_nfs_allows_it(tmp_path, monkeypatch):
    """There a shared lock needs a file that is open for reading, and an exclusive one for writing."""
    flock = fcntl.flock

    def nfs(file, operation):
        mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if mode == (os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", nfs)
    with exclusive(tmp_path / ".lock", "taken"):
        assert is_locked(tmp_path / ".lock") is True


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_in_one_line(tmp_path, monkeypatch, number):
    def refuse(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OelmError, match=r"lies on a file system without locks .*; choose a folder on another one"):
        exclusive(tmp_path / ".lock", "taken").__enter__()
    (tmp_path / ".lock").touch()
    assert is_locked(tmp_path / ".lock") is None  # not: nobody has it


def test_a_lock_dies_with_its_process_and_others_see_it_until_then(tmp_path):
    file = tmp_path / ".lock"
    program = (
        "import sys, time; from pathlib import Path; from oelm.files import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'taken') as file:\n"
        "    file.write('me'); file.flush(); print('has it', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, file], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "has it\n"
            assert is_locked(file) is True
            assert file.read_text() == "me"  # a loser leaves what the winner wrote
            with pytest.raises(OelmError, match="taken"):
                exclusive(file, "taken").__enter__()
            assert file.read_text() == "me"
        finally:
            holder.kill()
    assert is_locked(file) is False
    with exclusive(file, "taken"):
        assert is_locked(file) is True


def test_a_lock_that_is_a_link_to_another_file_is_refused(tmp_path):
    (tmp_path / "precious").write_text("keep")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        exclusive(tmp_path / ".lock", "taken").__enter__()
    assert (tmp_path / "precious").read_text() == "keep"
