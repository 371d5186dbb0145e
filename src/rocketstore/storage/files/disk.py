"""The operating system calls that decide what survives, and what the system refuses.

Law: every call that makes something durable, or takes something away, goes through a `Disk`. A test
can therefore fail any of them, and can keep a shadow of what would survive a power cut: the bytes
at the last `fdatasync`, the names at the last `fsync_directory`.

Law: no `OSError` of the system leaves the store as it is: `system_error` says what, where, and what
to do next. ``FileNotFoundError`` beside retention is an expected outcome, and is dealt with where a
file is read.

How derived: ext4 and xfs promise a new name only after fsync of its directory; `fdatasync` returns
an error once and then forgets it, so the caller must stop at the first one (K-D1, K-D6, K-D7).
"""

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocketstore.errors import StoreError, StoreFullError, SystemRefusedError
from rocketstore.process import give_to_owner
from rocketstore.rules.files import in_the_way
from rocketstore.rules.findings import DANGLING_HINT
from rocketstore.rules.table_files import NO_FILE
from rocketstore.units import MiB

NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers for a lack of space: a full file system, or a used-up quota."""

SECTOR_BYTES: Final = 4096
"""Least that is read of a disk, and so what one bad sector costs."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2

_ACCESS: Final = (
    "let the user of this process enter the directories above it, read it, and write it and its "
    "directory unless it only reads (chown, chmod)"
)

_HINTS: Final = {
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "free memory, or raise the limits of this process (ulimit -v, vm.max_map_count)",
    errno.EIO: "the disk fails: see the log of the system (dmesg), copy the store elsewhere, with "
    "zeros for what cannot be read (ddrescue; or dd conv=noerror,sync, which makes a file longer, "
    "and truncate -r ORIGINAL COPY after it), and repair the copy",
    errno.EUCLEAN: "the file system is damaged: unmount it, run fsck, then store verify",
    errno.ENOSPC: "free space (df) or inodes (df -i) there, or let retention delete old files",
    errno.EDQUOT: "free space within the quota or raise it",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EFBIG: "raise the limit of a file's size of this process (ulimit -f)",
    errno.ENODEV: "the file system cannot map files, or its device is gone: use another one",
    errno.ENOLCK: "the file system has no locks: mount it with them, or move the store elsewhere",
    errno.ESTALE: "the machine that has the files lost this one: mount its file system again",
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP), "check the path"),
    errno.ECONNREFUSED: "check the address and the port, and that the other side runs",
    errno.EBUSY: "a file is mounted at its name (docker run -v FILE:FILE): mount its directory",
    errno.EROFS: "mount it for writing; what only reads (read_only=True, verify) needs none",
}
_NOT_SUPPORTED_ERRORS: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
)
_OWN_DESCRIPTORS: Final = Path("/proc/self/fd")
_FALLOC_FL_KEEP_SIZE: Final = 0x01
_FALLOC_FL_ZERO_RANGE: Final = 0x10
_ZEROS: Final = bytes(MiB)


def hint_of(error: OSError) -> str:
    """Return what helps against what the system said."""
    return _HINTS.get(error.errno or 0, "try again; if it stays so, see the system's log (dmesg)")


def system_error(what: str, error: OSError) -> StoreError:
    """Return an error that says what could not be done because of `error`, and what helps.

    One without a number comes from a signal handler (for example a time limit), and is raised as it
    is.
    """
    if isinstance(error, StoreError):
        return error
    if error.errno is None:
        raise error
    where = "" if error.filename is None or str(error.filename) in what else f" ({error.filename})"
    message = f"{what}{where}: {error.strerror or error}"
    hint = hint_of(error)
    if error.errno in NO_SPACE_ERRORS:
        return StoreFullError(message, hint=hint)
    return SystemRefusedError(message, code=error.errno, hint=hint)


@contextlib.contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Turn an `OSError` of a block, or of a decorated function, into a `StoreError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise system_error(what, error) from error


def read_at(descriptor: int, path: Path, position: int, size: int) -> bytes:
    """Return `size` bytes of a file, fewer where it ends.

    The system returns what is before a bad sector first, as it does before the end of a file.
    """
    found = b""
    try:
        while more := os.pread(descriptor, size - len(found), position + len(found)):
            found += more
            if len(found) == size:
                break
    except OSError as error:
        raise system_error(
            f"cannot read {path} at offset {position + len(found)}", error
        ) from error
    return found


def fill(descriptor: int, path: Path, position: int, view: memoryview) -> int:
    """Fill `view` with the bytes from `position` on; return how many there were."""
    total = 0
    try:
        while got := os.preadv(descriptor, [view[total:]], position + total):
            total += got
    except OSError as error:
        raise system_error(f"cannot read {path} at offset {position + total}", error) from error
    return total


class BadSectors:
    """Fills views by `read`; where the disk fails, by zeros: `ranges` has these positions.

    `evidence` is what the system said. One bad sector costs no more than `SECTOR_BYTES`.
    """

    def __init__(self, read: Callable[[int, memoryview], int]) -> None:
        self._read, self.ranges, self.evidence = read, list[tuple[int, int]](), ""

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        try:
            return self._read(position, view)
        except OSError as error:
            if error.errno != errno.EIO:  # no permission or descriptor: nothing is known of them
                raise
            self.evidence = str(error)
        if len(view) > SECTOR_BYTES:
            starts = range(-(position % SECTOR_BYTES), len(view), SECTOR_BYTES)
            parts = ((max(at, 0), view[max(at, 0) : at + SECTOR_BYTES]) for at in starts)
            return sum(self.read_into(position + at, part) for at, part in parts)
        view[:] = bytes(len(view))
        self.ranges.append((position, position + len(view)))
        return len(view)


def read_whole(path: Path) -> bytes:
    """Return the bytes of a small file; raises `FileNotFoundError` where there is none.

    `StoreError` says that a directory, or a link that leads nowhere, is no file; nor is a pipe,
    which a read would wait for.
    """
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return path.read_bytes()
    except FileNotFoundError:
        refuse_dead_link(path.parent)
        if not path.is_symlink():
            raise
    except OSError as error:
        raise system_error(f"cannot read {path} from offset 0 on", error) from error
    raise no_file(path)


def refuse_dead_link(directory: Path) -> None:
    """Raise where a part of a store is a link to nothing, as of a disk that is not mounted."""
    if directory.is_symlink() and not directory.exists():
        what = f"cannot read {directory}: {in_the_way(directory)[0]}"
        raise SystemRefusedError(what, code=errno.ENOENT, hint=DANGLING_HINT)


def no_file(path: Path) -> StoreError:
    """Return the error for a directory, pipe, socket or device in the place of a file."""
    return StoreError(f"{path}: {NO_FILE}", hint="move it out of the store")


def no_space_error(path: Path, size: int, code: int | None = errno.ENOSPC) -> StoreFullError:
    """Return the error for `size` more bytes of `path`, for which disk or quota has no room."""
    return StoreFullError(f"no room for {path}: {size} bytes needed", hint=_HINTS[code or 0])


def real_path(path: Path) -> Path:
    """Return where a path leads to; `Path.resolve` of 3.11 and 3.12 fails at a link to itself."""
    return Path(os.path.realpath(path))


def status_of(path: Path, *, follows: bool = True) -> os.stat_result | None:
    """Return what a path leads to; None where that is nothing, or only a link to itself."""
    try:
        return path.stat(follow_symlinks=follows)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return None
        raise


class Disk:
    """The real disk. Subclass it in a test to fail calls or to record what became durable."""

    _held: Mapping[Path, os.stat_result] = MappingProxyType({})

    def hold(self, *directories: Path) -> None:
        """Refuse to make a file once one of these was moved or replaced; without any, refuse none.

        The lock keeps them open, so that no other directory gets the inode of one that is gone.
        """
        self._held = {one: one.stat() for one in directories}

    def _check_held(self) -> None:
        for path, status in self._held.items():
            found = status_of(path)
            if found is None or not os.path.samestat(found, status):
                raise StoreError(
                    f"{path} is gone, or another directory, while the store is open: it was moved "
                    "or unmounted",
                    hint="bring it back, or close the store and open it where it is now",
                )

    def create_file(self, path: Path) -> int:
        """Create the file, which must not exist, and return a descriptor to read and write it."""
        self._check_held()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return give_to_owner(os.open(path, flags, 0o644), path.parent)

    def create_unnamed(self, path: Path) -> int | None:
        """Create a file without a name on the file system of `path`, which `give_name` names.

        It is gone with its last descriptor, also when the process is killed. None where the file
        system, or a system without ``/proc``, cannot do it.
        """
        self._check_held()
        if not _OWN_DESCRIPTORS.is_dir():
            return None
        try:
            flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
            return give_to_owner(os.open(path.parent, flags, 0o644), path.parent)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED_ERRORS | {errno.EISDIR}:
                return None
            raise

    def give_name(self, descriptor: int, path: Path) -> None:
        """Name a file of `create_unnamed`; nothing of that name may exist."""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A directory's descriptor makes Python follow the link in /proc to the file itself.
            os.link(
                _OWN_DESCRIPTORS / str(descriptor),
                path.name,
                src_dir_fd=directory,
                dst_dir_fd=directory,
            )
        finally:
            os.close(directory)

    def open_file(self, path: Path, *, writable: bool) -> int:
        """Return a descriptor of an existing file."""
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    @contextlib.contextmanager
    def opened(self, path: Path, *, writable: bool) -> Iterator[int]:
        """Open an existing file for as long as a block runs."""
        descriptor = self.open_file(path, writable=writable)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        """Give the file real blocks up to `size`, keeping what it holds.

        False where the file system cannot promise blocks ahead; the file has its size then, but is
        sparse, and each page must be probed with `write_at` before a mapping touches it.
        """
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in NO_SPACE_ERRORS:
                raise no_space_error(path, size, error.errno) from error
            if error.errno not in _NOT_SUPPORTED_ERRORS:
                raise
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            return False
        return True

    def write_at(
        self, descriptor: int, path: Path, position: int, data: bytes | memoryview
    ) -> None:
        """Write all of `data` at `position`; raises `StoreFullError` where the disk is full."""
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(descriptor, view, position)
            except OSError as error:
                if error.errno in NO_SPACE_ERRORS:
                    raise no_space_error(path, len(view), error.errno) from error
                raise
            view = view[written:]
            position += written

    def zero_range(self, descriptor: int, path: Path, start: int, stop: int) -> None:
        """Make the bytes from `start` to `stop` zero without changing the file's size."""
        size = stop - start
        if size <= 0 or _fallocate_zero_range(descriptor, start, size):
            return
        while start < stop:
            piece = min(len(_ZEROS), stop - start)
            self.write_at(descriptor, path, start, _ZEROS[:piece])
            start += piece

    def know_zeros(self, descriptor: int, start: int, stop: int) -> None:
        """Let the file system note that bytes are zeros, where it can: none is read then."""
        if start < stop:
            _fallocate_zero_range(descriptor, start, stop - start)

    def fdatasync(self, descriptor: int, path: Path) -> None:  # noqa: ARG002 - path is for subclasses
        """Return when the file's bytes, and the metadata needed to read them, are on the disk."""
        os.fdatasync(descriptor)

    def sync_call(self, descriptor: int, path: Path) -> int | Callable[[], None]:
        """Return how compiled code does `fdatasync`: by the descriptor, or by a subclass's call."""
        if getattr(self.fdatasync, "__func__", None) is Disk.fdatasync:
            return descriptor
        return functools.partial(self.fdatasync, descriptor, path)

    def fsync_directory(self, directory: Path) -> None:
        """Return when the names in `directory` are on the disk.

        Some file systems have no such call (SMB, some of FUSE): there names are as safe as 4.9's.
        """
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED_ERRORS:
                raise
        finally:
            os.close(descriptor)

    def make_directory(self, directory: Path, *, sync: bool = True) -> None:
        """Create `directory` and its missing parents, each name durable before the next.

        Without `sync` the names become durable with `fsync_directory` of each parent.
        """
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        if missing:
            self._check_held()
        for path in reversed(missing):
            try:
                path.mkdir(exist_ok=True)
            except FileExistsError as error:
                why, hint = in_the_way(path)
                raise StoreError(f"cannot make the directory {path}: {why}", hint=hint) from error
            try:
                give_to_owner(path, path.parent)
                if sync:
                    self.fsync_directory(path.parent)
            except BaseException:
                # Otherwise the next try would find it, and never sync its name.
                self.remove_directory(path)
                raise

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` over `target` in one step; durable after `fsync_directory`."""
        source.replace(target)

    def exchange(self, one: Path, other: Path) -> None:
        """Let two names change places in one step; durable after `fsync_directory`."""
        function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if function is None:
            raise OSError(errno.ENOSYS, "no renameat2")
        here = ctypes.c_int(_AT_FDCWD)
        names = [ctypes.c_char_p(os.fsencode(path)) for path in (one, other)]
        if function(here, names[0], here, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def unlink(self, path: Path) -> None:
        """Delete the file; durable after `fsync_directory`. A missing file is not an error."""
        path.unlink(missing_ok=True)

    def remove_directory(self, directory: Path) -> None:
        """Delete an empty directory; one that is not empty stays."""
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                raise

    def used_ratio(self, path: Path) -> float | None:
        """Return how full the partition of `path` is, in whole percent rounded up, 0.0 to 1.0.

        None where the system does not say; 4.9 answers -1 and then deletes files (K-E8). Source:
        UtilAll.getDiskPartitionSpaceUsedPercent (spec B17.1).
        """
        _, used, writable = self.room(path) or (0, 0, 0)
        total = used + writable
        return -(-100 * used // total) / 100 if total > 0 else None

    def room(self, path: Path) -> tuple[int, int, int] | None:
        """Return a partition's bytes: all, used, and those that this process may still write.

        None where the system does not say. Some that are not used may be kept for others.
        """
        try:
            return shutil.disk_usage(path)
        except OSError:
            return None


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library, for calls that Python's own modules lack."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("mlock", "munlock"):
        getattr(library, name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return library


def _fallocate_zero_range(descriptor: int, start: int, size: int) -> bool:
    """Zero a range by one system call where the file system can; False where it cannot."""
    mode = _FALLOC_FL_ZERO_RANGE | _FALLOC_FL_KEEP_SIZE
    return bool(libc().fallocate(descriptor, mode, start, size) == 0)
