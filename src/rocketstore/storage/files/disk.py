"""The operating system calls that decide what survives: one small object, so that tests replace it.

What is here: creating, allocating, syncing, renaming and deleting files, and asking how full a disk
is. Reading and writing bytes is not here: that happens in mappings.

Law: every call that makes something durable, or takes something away, goes through a `Disk`. A test
can therefore fail any of them, and can keep a shadow of what would survive a power cut: the bytes
at the last `fdatasync`, the names at the last `fsync_directory`.

How derived: ext4 and xfs promise a new name only after fsync of its directory; `fdatasync` returns
an error once and then forgets it, so the caller must stop at the first one (K-D1, K-D6, K-D7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreFullError
from rocketstore.storage.system_errors import NO_SPACE_ERRORS
from rocketstore.units import OS_PAGE_SIZE_BYTES, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOT_SUPPORTED_ERRORS: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
)
_OWN_DESCRIPTORS: Final = Path("/proc/self/fd")
_FALLOC_FL_KEEP_SIZE: Final = 0x01
_FALLOC_FL_ZERO_RANGE: Final = 0x10
_ZEROS: Final = bytes(MiB)


class Disk:
    """The real disk. Subclass it in a test to fail calls or to record what became durable."""

    def create_file(self, path: Path) -> int:
        """Create the file, which must not exist, and return a descriptor open for both ways."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def create_unnamed(self, path: Path) -> int | None:
        """Create a file without a name on the file system of `path`, which `give_name` names.

        It is gone with its last descriptor, also when the process is killed. None where the file
        system, or a system without ``/proc``, cannot do it.
        """
        if not hasattr(os, "O_TMPFILE") or not _OWN_DESCRIPTORS.is_dir():
            return None
        try:
            return os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
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
                raise no_space_error(path, size) from error
            if error.errno not in _NOT_SUPPORTED_ERRORS:
                raise
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            return False
        return True

    def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
        """Write all of `data` at `position`; raises `StoreFullError` where there is no room."""
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(descriptor, view, position)
            except OSError as error:
                if error.errno in NO_SPACE_ERRORS:
                    raise no_space_error(path, len(view)) from error
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

    def fdatasync(self, descriptor: int, path: Path) -> None:  # noqa: ARG002 - path is for subclasses
        """Return when the file's bytes, and the metadata needed to read them, are on the disk."""
        os.fdatasync(descriptor)

    def sync_call(self, descriptor: int, path: Path) -> int | Callable[[], None]:
        """Return how compiled code does `fdatasync`: by the descriptor, or by a subclass's call."""
        if getattr(self.fdatasync, "__func__", None) is Disk.fdatasync:
            return descriptor
        return functools.partial(self.fdatasync, descriptor, path)

    def fsync_directory(self, directory: Path) -> None:
        """Return when the names in `directory` are on the disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
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
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            if not sync:
                continue
            try:
                self.fsync_directory(path.parent)
            except BaseException:
                # Else the next try would find it there, and never sync its name.
                self.remove_directory(path)
                raise

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` over `target` in one step; durable after `fsync_directory`."""
        source.replace(target)

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
        try:
            status = os.statvfs(path)
        except OSError:
            return None
        used = status.f_blocks - status.f_bfree
        total = used + status.f_bavail
        return None if total <= 0 else -(-100 * used // total) / 100

    def free_bytes(self, path: Path) -> int | None:
        """Return how many bytes this process may still write on the partition of `path`."""
        try:
            status = os.statvfs(path)
        except OSError:
            return None
        return status.f_bavail * status.f_frsize


def no_space_error(path: Path, size: int) -> StoreFullError:
    """Return the error that says that `size` more bytes for `path` found no room."""
    return StoreFullError(
        f"no room for {path}: {size} bytes needed",
        hint="free space on the partition or let retention delete old files",
    )


def probe_pages(disk: Disk, descriptor: int, path: Path, start: int, stop: int) -> None:
    """Write each page that overlaps [start, stop) once, by `pwrite`, with what it holds already.

    A page of a sparse file that a mapping touches first ends the process with SIGBUS when the disk
    is full; `pwrite` of the same page raises `StoreFullError` instead.
    """
    page = start - start % OS_PAGE_SIZE_BYTES
    while page < stop:
        size = min(len(_ZEROS), stop - page)
        disk.write_at(descriptor, path, page, os.pread(descriptor, size, page))
        page += size


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library, for calls that Python's own modules lack."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("mlock", "munlock"):
        getattr(library, name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def _fallocate_zero_range(descriptor: int, start: int, size: int) -> bool:
    """Zero a range by one system call where the file system can; False where it cannot."""
    try:
        fallocate = libc().fallocate
    except (AttributeError, OSError):  # no fallocate in this C library
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    mode = _FALLOC_FL_ZERO_RANGE | _FALLOC_FL_KEEP_SIZE
    return bool(fallocate(descriptor, mode, start, size) == 0)
