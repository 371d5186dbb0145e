"""The lock that makes a store have one writer, shared with the Java store.

Law: a writer holds a POSIX record lock on byte 0 of the file ``lock`` as long as it lives. The
kernel drops such a lock when the process closes *any* descriptor of the file, so there is exactly
one descriptor per process: a registry refuses a second open before it could make another. The file
is never truncated and never deleted.

How derived: DefaultMessageStore.start of 4.9 takes ``FileChannel.tryLock(0, 1, false)``, which is
this lock (spec F12). Who holds it is asked of the kernel (``F_GETLK``), not read from the file.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from rocketstore.errors import StoreLockedError
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    LOCK_CONTENT,
    LOCK_LENGTH_BYTES,
    LOCK_START,
)
from rocketstore.storage.files.disk import read_at, system_errors

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""

_HINT: Final = "stop that writer, or open with read_only=True, which needs no lock"

_MOUNTS: Final = Path("/proc/self/mountinfo")
_SHARED: Final = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse", "ceph", "gluster", "lustre")
"""Beginnings of the kinds of file systems that other machines mount as well."""

UNKNOWN_WRITER: Final = 0
"""A writer without a process number here: in another container, or on another host."""

_held: list[tuple[weakref.ref[io.FileIO], os.stat_result]] = []
"""Lock files held by this process, and which files they are. One that an interrupt kept from being
released goes with the `StoreLock` that had it."""

_registry = threading.Lock()


def _forget_in_child() -> None:
    # A child inherits the descriptor but not the lock; nor the thread that may be in the registry.
    global _registry  # noqa: PLW0603 - a lock that another thread held at the fork stays held
    _registry = threading.Lock()
    for reference, _ in _held:
        if file := reference():
            file.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class StoreLock:
    """The lock of the store whose lock file is at `path`, held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None

    def acquire(self) -> Self:
        """Take it, the file made if need be, without waiting; an interrupt leaves it free.

        Raises `StoreLockedError` where another process holds it, or this one does; `owner_pid` says
        which, if that is known.
        """
        try:
            with system_errors("cannot take the lock of the store"), _registry:
                self._take()
        except BaseException:
            self.release()
            raise
        return self

    def _take(self) -> None:
        if _is_held(path := self._path):
            raise _locked(path, os.getpid())
        with system_errors(f"cannot open {path} for writing"):
            self._file = io.FileIO(path, "r+", opener=_opened)
        descriptor = self._file.fileno()
        _lock(descriptor, path)
        if read_at(descriptor, path, 0, len(LOCK_CONTENT)) != LOCK_CONTENT:
            os.pwrite(descriptor, LOCK_CONTENT, 0)  # as 4.9 does at every start
            os.fsync(descriptor)
        _held[:] = [one for one in _held if one[0]()]
        _held.append((weakref.ref(self._file), os.fstat(descriptor)))

    def release(self) -> None:
        """Let go of the lock; a second call does nothing."""
        if self._file is not None:
            with _registry:
                self._file.close()

    __enter__ = acquire

    def __exit__(self, *_error: object) -> None:
        self.release()


def _opened(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _is_held(path: Path) -> bool:
    """Whether this process holds the lock file, by whatever name."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    held = (one for file, one in _held if not getattr(file(), "closed", True))
    return any(os.path.samestat(status, one) for one in held)


def writer_pid(path: Path) -> int | None:
    """Return the process that holds the lock file at `path` now, None when nobody does.

    `UNKNOWN_WRITER` is one without a number, also where the kernel may not be asked and ``abort``
    says that a writer has not ended. Takes no lock, and opens no descriptor where this process is
    the writer: closing it would drop the lock.
    """
    with _registry:
        try:
            if _is_held(path):
                return os.getpid()
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _owner_pid(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None  # every writer makes it first
        except OSError:
            return _doubtful_writer(path)


def may_have_writer(path: Path) -> bool:
    """Whether somebody may be writing to the store of the lock file at `path`.

    On a disk that other machines mount too, a free lock proves nothing, and ``abort`` decides.
    """
    if writer_pid(path) is not None:
        return True
    is_doubtful = path.exists() and _doubtful_writer(path) is not None
    return is_doubtful and _is_shared_disk(path)


def _is_shared_disk(path: Path) -> bool:
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in _MOUNTS.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return True
    kinds = {fields[fields.index("-") + 1] for fields in mounts if fields[2] == name}
    return any(kind.startswith(_SHARED) for kind in kinds)


def refuse_writer(path: Path, *, hint: str) -> None:
    """Raise `StoreLockedError` where somebody holds the lock file at `path` now; takes no lock."""
    owner = writer_pid(path)
    if owner is not None:
        raise _locked(path, owner, hint)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCK_LENGTH_BYTES, LOCK_START)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        owner = None
        with suppress(OSError):
            owner = _owner_pid(descriptor)
        raise _locked(path, owner or UNKNOWN_WRITER) from error


def _doubtful_writer(path: Path) -> int | None:
    return UNKNOWN_WRITER if path.with_name(ABORT_FILE_NAME).exists() else None


def _locked(path: Path, owner: int, hint: str = _HINT) -> StoreLockedError:
    who = f"process {owner}" if owner else "a process in another container or on another host"
    if owner == os.getpid():
        who = "this process"
    return StoreLockedError(
        f"{path.parent} is in use: {who} holds {path}", owner_pid=owner or None, hint=hint
    )


def _owner_pid(descriptor: int) -> int | None:
    """Return the process that holds the lock, None when nobody does; raises `OSError`."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_START, LOCK_LENGTH_BYTES, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    # 0 is a process of another PID namespace, less one of another host or a lock of a descriptor.
    return None if kind == fcntl.F_UNLCK else max(pid, UNKNOWN_WRITER)
