"""Files that are complete or absent: atomic writes, folders that appear at once, locks that die with their owner."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from oelm.errors import OelmError, Unavailable

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from torch import Tensor

MENDABLE = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EACCES: "it may not be written; change its permissions or choose another folder",
    errno.EPERM: "it may not be written; change its permissions or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "a file stands where a folder is needed; choose another folder"),
    errno.EISDIR: "a folder stands where a file is needed; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.EIO: "the disk reports an error; check it or choose another",
}
_UMASK = os.umask(0)  # it can only be read by setting it
os.umask(_UMASK)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_PEEK_SECONDS = 0.3  # whoever asks `is_locked` holds the lock for an instant; that must not look like an owner


def explain(error: OSError) -> OelmError | None:
    """The one-line error for what a user can mend about a disk; None for anything else."""
    hint = MENDABLE.get(error.errno or 0)
    return Unavailable(f"cannot write {error.filename or 'a file'}: {hint}") if hint else None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole: readers see the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_UMASK)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        name_file(error, path)
        raise


def name_file(error: BaseException, path: Path) -> None:
    """Say which file it was: the error of a full disk comes from a write, which knows no names."""
    if isinstance(error, OSError) and error.errno is not None:
        error.filename = str(path)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """A safetensors file. Its library has an error of its own for a full disk; here it is an OSError like any other."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    os.chmod(path, 0o666 & ~_UMASK)


@contextlib.contextmanager
def appearing_folder(path: Path) -> Iterator[Path]:
    """Fill the yielded temporary folder; on leaving it is synced and renamed to `path`, or removed on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_UMASK)
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        _make_way(path)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            name_file(error, path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _make_way(path: Path) -> None:
    """Remove what stands at `path`, out of sight first, so that a half-removed folder is never found under its name."""
    if path.exists():
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
        os.replace(path, aside / path.name)
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file or folder."""
    windows = os.name == "nt"  # it syncs no folders, and files only for those who may write them
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _require_plain(path: Path) -> None:
    """Whoever opens a pipe waits for its other end, for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no regular file; remove it", str(path))


def file_hash(path: Path) -> str:
    _require_plain(path)
    digest = hashlib.sha256()  # hashlib.file_digest is not in Python 3.10
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(path: Path, busy: str) -> Iterator[IO[str]]:
    """Hold a lock file; it is released when the process ends, however it ends. `busy` is the error if it is taken."""
    lock = _lock(path, _PEEK_SECONDS)
    try:
        _require_plain(path)
    except OSError as error:
        raise Unavailable(f"{path} {error.strerror}") from None
    try:
        lock.acquire()
    except TimeoutError:
        raise Unavailable(busy) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        reason = f"{path.parent} lies on a file system without locks ({error.strerror})"
        raise Unavailable(f"{reason}; choose a folder on another one, or have it mounted with locks") from None
    try:
        with path.open("a") as file:
            yield file
    finally:
        lock.release()


def has_open(pid: int, path: Path) -> bool | None:
    """Whether a process of this user has a file open; None where that cannot be told (there is no /proc)."""
    try:
        ours = os.stat(f"/proc/{pid}").st_uid == os.getuid()
        return ours and any(os.path.samefile(link, path) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists())
    except FileNotFoundError:
        return False if Path("/proc/self/fd").is_dir() else None
    except (OSError, AttributeError):
        return None


def is_locked(path: Path) -> bool | None:
    """Whether some living process holds the lock; None if that cannot be told."""
    try:
        _require_plain(path)
        with path.open() as file:  # for reading: whoever may look at a run may ask, and NFS shares no lock otherwise
            return _held(path, file)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _held(path: Path, file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:
        lock = _lock(path, 0)
        try:
            lock.acquire()
        except TimeoutError:
            return True
        lock.release()
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True


def _lock(path: Path, seconds: float) -> "BaseFileLock":
    """The operating system's own lock. Windows lets nobody read a locked file, so there it is one beside it."""
    from filelock import FileLock, has_fcntl

    place = path if has_fcntl else path.with_name(f"{path.name}.held")
    return FileLock(place, timeout=seconds, poll_interval=0.02, thread_local=False, fallback_to_soft=False)
