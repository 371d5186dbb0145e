"""The lock that makes a store have one writer, shared with the Java store.

Law: a writer holds a POSIX record lock on byte 0 of the file ``lock`` as long as it lives. The
kernel drops such a lock when the process closes *any* descriptor of the file, so there is exactly
one descriptor per process: a registry refuses a second open before it could make another. The file
is never truncated and never deleted.

Law: every directory that a writer writes to is locked too (``flock`` of the directory itself, for
4.9 does not start with a file of ours in a log directory), wherever it lies: two stores with one
log are no two stores (decision 0033). So is the file at the log's end, and each one made after it:
a log of hard links has directories of its own, and the files of another one.

How derived: DefaultMessageStore.start of 4.9 takes ``FileChannel.tryLock(0, 1, false)``, which is
this lock (spec F12). Who holds it is asked of the kernel (``F_GETLK``), not read from the file.
"""

import errno
import fcntl
import io
import os
import stat
import struct
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from rocketstore.errors import StoreLockedError
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    LOCK_CONTENT,
    LOCK_FILE_NAME,
    LOCK_LENGTH_BYTES,
    LOCK_START,
    parse_file_name,
)
from rocketstore.locks import Lock
from rocketstore.process import give_to_owner
from rocketstore.storage.files.disk import no_file, read_at, real_path, status_of, system_errors
from rocketstore.storage.files.pread_files import OpenFile
from rocketstore.storage.files.whole_file import holds_data

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""

_HINT: Final = "stop that writer; only reading needs no lock (in Python: read_only=True)"

_MOUNTS: Final = Path("/proc/self/mountinfo")
_LOCKS: Final = Path("/proc/locks")
_SHARED: Final = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse", "ceph", "gluster", "lustre")
"""Beginnings of the kinds of file systems that other machines mount as well."""

_HELD_FILES: Final = 3
"""How many of a log's last files stay locked: the one in use, and those made ahead of it. One that
retention deletes would keep its space."""

UNKNOWN_WRITER: Final = 0
"""A writer without a process number here: in another container, or on another host."""

_held: list[tuple[weakref.ref[io.FileIO], os.stat_result]] = []
"""Lock files held by this process, and which files they are. One that an interrupt kept from being
released goes with the `StoreLock` that had it."""

_descriptors: Final[weakref.WeakSet[OpenFile]] = weakref.WeakSet()
"""Of locked directories and files: a child has these too, and with them the locks."""

_registry = Lock()


def _forget_in_child() -> None:
    # A child inherits the descriptor but not the lock; nor the thread that may be in the registry.
    global _registry  # noqa: PLW0603 - a lock that another thread held at the fork stays held
    _registry = Lock()
    for reference, _ in _held:
        if file := reference():
            file.close()
    _held.clear()
    for opened in list(_descriptors):
        opened.close()


os.register_at_fork(after_in_child=_forget_in_child)


class StoreLock:
    """The lock of the store whose lock file is at `path`, held from `acquire` to `release`.

    With it those of `directories`, in which the store has files.
    """

    def __init__(self, path: Path, directories: Iterable[Path] = ()) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._wanted = directories
        self._locked: list[OpenFile] = []
        self._made: deque[OpenFile] = deque(maxlen=_HELD_FILES)

    def acquire(self) -> Self:
        """Take the lock without waiting, making the file if need be; an interrupt leaves it free.

        Raises `StoreLockedError` where another process holds it, or this one does; `owner_pid` says
        which, if that is known.
        """
        try:
            with system_errors("cannot take the lock of the store"):
                with _registry:
                    self._take()
                self.extend(self._wanted)
        except BaseException:
            self.release()
            raise
        return self

    def _take(self) -> None:
        if _is_held(path := self._path):
            raise _locked(path, os.getpid())
        if (found := status_of(path)) is not None and not stat.S_ISREG(found.st_mode):
            raise no_file(path)
        with system_errors(f"cannot open {path} for writing"):
            self._file = io.FileIO(path, "r+", opener=_opened)
        descriptor = self._file.fileno()
        give_to_owner(path, path.parent)
        _lock(descriptor, path)
        if read_at(descriptor, path, 0, len(LOCK_CONTENT)) != LOCK_CONTENT:
            with system_errors(f"cannot write {path}"):
                os.pwrite(descriptor, LOCK_CONTENT, 0)  # as 4.9 does at every start
                os.fsync(descriptor)
        _held[:] = [one for one in _held if one[0]()]
        _held.append((weakref.ref(self._file), os.fstat(descriptor)))

    def renew(self) -> None:
        """Take the lock again: the kernel drops it when this process copies or reads its file."""
        with _registry:
            if self._file is not None and not self._file.closed:
                _lock(self._file.fileno(), self._path)

    def extend(self, directories: Iterable[Path]) -> None:
        """Lock directories too, as far as they are there, and where the log ends in them.

        Those of this lock stay locked.
        """
        root, ends = self._path.parent, list[Path]()
        for named in directories:
            directory, status = named, status_of(named, follows=False)
            is_link = status is not None and stat.S_ISLNK(status.st_mode)
            if is_link or root not in (named, named.parent):  # only such a one may lie elsewhere
                directory = real_path(named)
                if not directory.is_relative_to(real_path(root)):
                    for other in (directory, directory.parent):  # a broker of 4.9 locks its root
                        refuse_writer(other / LOCK_FILE_NAME, hint=_HINT)
                status = status_of(directory)
            if status is not None and stat.S_ISDIR(status.st_mode):
                self._lock_too(directory, status, self._locked)
                ends += _files_at_end(directory)
        for path in sorted(ends, key=lambda end: end.name)[-_HELD_FILES:]:
            self._lock_too(path, path.stat(), self._made)

    def hold(self, path: Path) -> None:
        """Lock a file that was just made, if the system allows it."""
        with suppress(OSError):
            self._lock_too(path, path.stat(), self._made)

    def _lock_too(
        self, path: Path, status: os.stat_result, held: list[OpenFile] | deque[OpenFile]
    ) -> None:
        known = (os.fstat(one.fd) for one in [*self._locked, *self._made])
        if not any(os.path.samestat(status, one) for one in known):
            opened = OpenFile(path)
            held.append(opened)  # first, as an interrupt may come
            _descriptors.add(opened)
            _lock_whole(opened.fd, path, status)

    def release(self) -> None:
        """Let go of the lock; a second call does nothing."""
        try:
            for opened in [*self._locked, *self._made]:
                with suppress(OSError, ValueError):  # a child forked just now has it open yet
                    fcntl.flock(opened.fd, fcntl.LOCK_UN)
        finally:
            if self._file is not None:
                with _registry:
                    self._file.close()
        self._locked.clear()
        self._made.clear()

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
    """Return the process that holds the lock file at `path` now, or None.

    `UNKNOWN_WRITER` is one without a number; also if the kernel may not be asked and ``abort`` says
    that a writer has not ended. Takes no lock, and opens no descriptor where this process is
    the writer: closing it would drop the lock.
    """
    with _registry:
        try:
            if _is_held(path):
                return os.getpid()
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return _owner_pid(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None  # every writer makes it first
        except OSError:
            return _doubtful_writer(path)


def may_have_writer(path: Path) -> bool:
    """Whether a process may be writing to the store of the lock file at `path`.

    On a disk that other machines mount too, a free lock proves nothing, and ``abort`` decides.
    """
    if writer_pid(path) is not None:
        return True
    is_doubtful = path.exists() and _doubtful_writer(path) is not None
    return is_doubtful and _is_shared_disk(path)


def last_opening(root: Path) -> int:
    """Return what each opening of a store changes, as it makes ``abort`` in the root."""
    return root.stat().st_mtime_ns if root.exists() else 0


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
    """Raise `StoreLockedError` where a process holds the lock file at `path`; takes no lock."""
    owner = writer_pid(path)
    if owner is not None:
        raise _locked(path, owner, hint)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCK_LENGTH_BYTES, LOCK_START)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from error
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        owner = None
        with suppress(OSError):
            owner = _owner_pid(descriptor)
        raise _locked(path, owner or UNKNOWN_WRITER) from error


def _files_at_end(directory: Path) -> Iterator[Path]:
    """Yield the files of a log from the last one back to the one in which the log ends."""
    # A directory of queues has a name for each topic: paths are made of the log's names only.
    names = (name for name in os.listdir(directory) if parse_file_name(name) is not None)  # noqa: PTH208
    for path in (directory / name for name in sorted(names, reverse=True)):
        if path.is_file():
            yield path
            if holds_data(path):
                return


def _lock_whole(descriptor: int, path: Path, status: os.stat_result) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return  # a file system without such locks: the lock file is what there is
        owner, kind = _owner_of(status), "directory" if path.is_dir() else "file"
        raise StoreLockedError(
            f"{path} is in use: {_named(owner)} has it as a {kind} of another store",
            owner_pid=owner or None,
            hint="give each store directories of its own (storePathCommitLog), and copies of "
            "files, not links",
        ) from error


def _owner_of(status: os.stat_result) -> int:
    """Return the process that holds the lock of a directory or file, as far as it can be told."""
    device = status.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    with suppress(OSError):
        for _, kind, _, _, pid, of, *_ in map(str.split, _LOCKS.read_text().splitlines()):
            if (kind, of) == ("FLOCK", name):
                return max(int(pid), UNKNOWN_WRITER)
    return UNKNOWN_WRITER


def _doubtful_writer(path: Path) -> int | None:
    return UNKNOWN_WRITER if path.with_name(ABORT_FILE_NAME).exists() else None


def _locked(path: Path, owner: int, hint: str = _HINT) -> StoreLockedError:
    where = f"{path.parent} is in use: {_named(owner)} holds {path}"
    if owner == os.getpid():
        hint = "close the store that is open here, or go on with it"
    return StoreLockedError(where, owner_pid=owner or None, hint=hint)


def _named(owner: int) -> str:
    if owner == os.getpid():
        return "this process"
    return f"process {owner}" if owner else "a process in another container or on another host"


def _owner_pid(descriptor: int) -> int | None:
    """Return the process that holds the lock, or None; raises `OSError`."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCK_START, LOCK_LENGTH_BYTES, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    # 0 is a process of another PID namespace, less one of another host or a lock of a descriptor.
    return None if kind == fcntl.F_UNLCK else max(pid, UNKNOWN_WRITER)
