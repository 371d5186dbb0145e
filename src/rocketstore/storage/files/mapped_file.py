"""One file of a fixed size, mapped into memory: append, flush, read, delete.

Law: bytes after `write_position` mean nothing; a file never shrinks and a mapping is never closed
while a view of it lives. `flushed_position` moves only after `fdatasync` returned without error.

How derived: MappedFile and ReferenceResource of 4.9 (spec B5) without their faults: a failed sync
does not count as one (K-D1), a failed copy does not move the position (K-M2), and disk space is
allocated before a byte is written through the mapping (K-D7). ``mmap.flush`` is never used because
it holds the interpreter's lock; mappings go away when their last view dies.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np

from rocketstore.at_once import at_once
from rocketstore.errors import FlushFailedError, StoreFullError
from rocketstore.events import get_logger
from rocketstore.holes import data_stop
from rocketstore.locks import Lock
from rocketstore.process import most_mapped_files
from rocketstore.storage.files.disk import Disk, libc, read_at, system_error, system_errors
from rocketstore.storage.files.whole_file import has_data, make_file
from rocketstore.units import OS_PAGE_SIZE_BYTES, MiB

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_FORGOTTEN_BYTES: Final = 2 * MiB
"""Dropped from memory at once: as much as a large page of it has."""

_PROBE_AHEAD_BYTES: Final = MiB
"""How far ahead of the writer the pages of a sparse file are probed."""

_UNMAPPED_PAGES: Final = 16
"""Number of dirty pages that are worth a call that unmaps them before a sync."""

_FAILED_HINT: Final = "check the disk, unmount it or restart the machine, then open the store again"
_DELETED_HINT: Final = "see what cleans up there; until the process ends /proc/PID/map_files has it"

_NAME_LEVELS: Final = 3
"""How many directories, from a file's own upwards, may have names that no sync has made durable:
with a queue's first file also the queue's and the topic's are new. Its first flush syncs them all.
No put waits for that, and no entry would be lost: the log has them."""

_log: Final = get_logger(__name__)

_T = TypeVar("_T")


class MadeAtFirstUse(cached_property[_T]):
    """An attribute that is made when it is first asked for.

    Python 3.11 holds a lock of the class meanwhile: where one disk hangs, no other file would be
    mapped.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> _T:  # type: ignore[override]
        value: _T = self.func(instance)
        instance.__dict__[self.attrname] = value
        return value


class MappedFile:
    """One mapped file: `create` makes a new one; an old one is full and flushed, as in 4.9.

    The mapping is made at first use: a store with thousands of files opens without mapping them.
    `base` is the offset of its first byte; from there up to `write_position` bytes are written, to
    `flushed_position` they are known to be on the disk, and to `backed_position`, which `reserve`
    moves, they have space there. With `has_durable_name` a sync of the bytes is all they need.
    """

    has_buffer = False
    mapped_files: MappedFiles | None = None

    # A put writes the position into its slot (`native.log_end`).
    __slots__ = ("__dict__", "__weakref__", "write_position")

    def __init__(
        self, path: Path, *, base: int, size: int, disk: Disk, writable: bool = True
    ) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.writable = writable
        self.write_position = self.flushed_position = size
        self.backed_position = 0
        self.has_durable_name = True
        self._disk = disk
        self._descriptor: int | None = None
        self._borrowers = 0
        self._is_closing = self._is_over = False
        self._lock = Lock()
        self._shut_down_at_ms: int | None = None
        self._last_mapping: weakref.ref[mmap.mmap] | None = None

    @classmethod
    def create(cls, path: Path, *, base: int, size: int, disk: Disk, sync: bool = True) -> Self:
        """Make a new file of zeros with all its blocks, and its directory if need be.

        Without `sync` the first `flush` makes the names durable. If the disk is full, no file is
        left.
        """
        file = cls(path, base=base, size=size, disk=disk)
        disk.make_directory(path.parent, sync=sync)
        file._descriptor, is_backed = make_file(path, size, disk=disk, sync=sync)
        file.write_position = file.flushed_position = 0
        file.backed_position = size if is_backed else 0
        file.has_durable_name = sync
        return file

    # --- bytes ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Offset after the last written byte."""
        return self.base + self.write_position

    @property
    def readable_position(self) -> int:
        """Position after the last byte that readers may see, and a sync covers (B5)."""
        return self.write_position

    @MadeAtFirstUse
    def mapping(self) -> mmap.mmap:
        """Map the whole file."""
        access = mmap.PROT_READ | mmap.PROT_WRITE if self.writable else mmap.PROT_READ
        with self._lock:
            # A mapping that a reader kept is as good as a new one.
            mapping = None if self._last_mapping is None else self._last_mapping()
            if mapping is None:
                descriptor = self._opened()
                with system_errors(f"cannot map {self.path}"):
                    mapping = mmap.mmap(descriptor, self.size, mmap.MAP_SHARED, access)
                self._last_mapping = weakref.ref(mapping)
                self._close_if_wanted()
        if self.mapped_files is not None:
            self.mapped_files.add(self)
        return mapping

    @MadeAtFirstUse
    def array(self) -> npt.NDArray[np.uint8]:
        """Return the mapping as an array, for kernels."""
        return np.frombuffer(self.mapping, np.uint8)

    @property
    def is_mapped(self) -> bool:
        """Whether the file was mapped already."""
        return "mapping" in self.__dict__

    def write_single_pages(self, start: int) -> None:
        """Have the kernel keep what stands from `start` on in single pages, until `read_ahead`.

        Otherwise it reads megabytes ahead and keeps them in large pieces (ext4 since Linux 6.16). A
        piece is written as a whole: syncs of 8 KiB wrote 340 KiB each.
        """
        advise(self.array, mmap.MADV_RANDOM, start, self.size)

    def read_ahead(self) -> None:
        """Let the kernel read ahead again, in a file that is full."""
        advise(self.__dict__.get("array"), mmap.MADV_NORMAL, 0, self.size)

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int]:
        """Lend a descriptor, which stays open until it is given back, even if closed meanwhile.

        A closed number is soon that of another file, which would be read, mapped or synced instead.
        """
        with self._lock:
            descriptor = self._opened()
            self._borrowers += 1
        try:
            yield descriptor
        finally:
            with self._lock:
                self._borrowers -= 1
                self._close_if_wanted()

    def _opened(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = self._disk.open_file(self.path, writable=self.writable)
            except FileNotFoundError:
                raise  # expected beside retention: the caller knows what it means
            except OSError as error:
                raise system_error(f"cannot open {self.path}", error) from error
        return self._descriptor

    def close_descriptor(self) -> None:
        """Close the descriptor once no caller borrows it; later uses open a new one.

        The mapping keeps its own.
        """
        with self._lock:
            self._is_closing = True
            self._close_if_wanted()

    def _close_if_wanted(self) -> None:
        if self._is_closing and not self._borrowers:
            descriptor, self._descriptor, self._is_closing = self._descriptor, None, self._is_over
            if descriptor is not None:
                os.close(descriptor)

    def read_at(self, position: int, size: int) -> bytes:
        """Return a copy of up to `size` bytes by `pread`, without mapping the file."""
        with self._lock:  # so that it is not closed; borrowing one would take longer than the call
            try:
                return read_at(self._opened(), self.path, position, size)
            finally:
                self._close_if_wanted()

    def forget(self, start: int) -> None:
        """Drop pages from `start` on that only memory holds: those of read zeros look like data.

        From the end, a piece at a time: where one stays data it is on the disk, and the pages
        before it are kept, which would have to be read again.
        """
        with self.descriptor() as descriptor:
            stop = data_stop(descriptor, self.size)
            while stop > start:
                at = max(start, stop - _FORGOTTEN_BYTES)
                os.posix_fadvise(descriptor, at, 0, os.POSIX_FADV_DONTNEED)
                stop = data_stop(descriptor, self.size)
                if stop > at:
                    return

    def give_back(self) -> None:
        """Give back the pages that were touched ahead of a put, which the next opening would read.

        They hold zeros only: the file system notes that in place of the zeros.
        """
        start = self.write_position + -self.write_position % OS_PAGE_SIZE_BYTES
        with self.descriptor() as descriptor:
            self._disk.know_zeros(descriptor, start, data_stop(descriptor, self.size))

    def data_stop(self) -> int:
        """Return the position from which on the file system knows that there are only zeros."""
        with self.descriptor() as descriptor:
            return data_stop(descriptor, self.size)

    def reserve(self, stop: int) -> None:
        """Make sure that bytes before position `stop` have space on the disk.

        Call this before writing through `mapping` or `array`. It costs a comparison for a file made
        by `create`; a sparse file (one that Java made) gets its blocks at the first call.
        """
        if stop <= self.backed_position:
            return
        with self.descriptor() as descriptor:
            if self.backed_position == 0 and (
                os.fstat(descriptor).st_blocks * 512 >= self.size  # it has them all
                or self._disk.allocate(descriptor, self.path, self.size)
            ):
                self.backed_position = self.size
                return
            # When the disk is full, a page that a mapping touches first ends the process (SIGBUS);
            # writing there what it holds already raises `StoreFullError` instead.
            start = self.backed_position - self.backed_position % OS_PAGE_SIZE_BYTES
            stop = min(max(stop, self.backed_position + _PROBE_AHEAD_BYTES), self.size)
            for page in range(start, stop, MiB):
                held = read_at(descriptor, self.path, page, min(MiB, stop - page))
                self._disk.write_at(descriptor, self.path, page, held)
        self.backed_position = stop

    def write_bytes(self, position: int, data: bytes | memoryview) -> None:
        """Overwrite bytes at `position` without moving the write position."""
        stop = position + len(data)
        self.reserve(stop)
        self.mapping[position:stop] = data

    def write_unmapped(self, position: int, data: memoryview) -> None:
        """Overwrite bytes at `position`, which have space, by `pwrite`.

        New pages that are written whole cost neither a fault nor zeros: half of the time of a copy.
        """
        with self.descriptor() as descriptor:
            self._disk.write_at(descriptor, self.path, position, data)

    def set_end(self, position: int) -> None:
        """Set where the written, flushed bytes end (MappedFileQueue.truncateDirtyFiles)."""
        self.write_position = self.flushed_position = position

    def clear_tail(self, position: int) -> bool:
        """Make all bytes from `position` on zero, durably; return whether one was not.

        None of them looks like a record then.
        """
        with self.descriptor() as descriptor:
            if not has_data(descriptor, self.path, position, self.size):
                return False
            self._disk.zero_range(descriptor, self.path, position, self.size)
        self.sync()
        return True

    # --- durability -----------------------------------------------------------------------------

    def commit(self, _least_pages: int = 0) -> int:
        """Return the committed position: what is in the mapping is in the file (B5)."""
        return self.write_position

    def flush(self, least_pages: int = 0, names: list[MappedFile] | None = None) -> int:
        """Make the written bytes durable, as `sync` does; return the flushed position.

        With fewer than `least_pages` whole dirty pages nothing is done, unless the file is full.
        After `FlushFailedError` the position did not move, and must not be trusted to move later
        either. Source: MappedFile.flush, MappedFile.isAbleToFlush.
        """
        position = self.readable_position
        if position <= self.flushed_position:
            return self.flushed_position
        pages = position // OS_PAGE_SIZE_BYTES - self.flushed_position // OS_PAGE_SIZE_BYTES
        if pages < least_pages and position < self.size:
            return self.flushed_position
        if pages >= _UNMAPPED_PAGES and not self.has_buffer:
            # Before a mapped page goes to the disk it is made read-only, with an interrupt of each
            # processor, which takes as long as putting the bytes did. Taken out of the mapping
            # together they cost one interrupt; a reader maps many of them again in one fault.
            advise(self.__dict__.get("array"), mmap.MADV_DONTNEED, self.flushed_position, position)
        self.sync(names)
        # Another thread may have flushed further meanwhile; never step back.
        self.flushed_position = max(self.flushed_position, position)
        return self.flushed_position

    def sync(self, names: list[MappedFile] | None = None) -> None:
        """Call `fdatasync`, whatever is written; raises `FlushFailedError`.

        Also where the file has no name any more: what is on the disk goes with this process. A new
        file's name becomes durable too, or is left to the caller, who passes `names`.
        """
        with self._flush_errors(), self.descriptor() as descriptor:
            self._sync_bytes(descriptor)
            _date(descriptor)
        if not self.has_durable_name:
            if names is None:
                sync_names([self])
            else:
                names.append(self)

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory above this file durable."""
        with self._flush_errors():
            self._disk.fsync_directory(directory)

    def sync_by(self, sync: Callable[[int | Callable[[], None]], _T]) -> _T | None:
        """Call `sync` with the means to bring the file to the disk (`Disk.sync_call`)."""
        with self._flush_errors(), self.descriptor() as descriptor:
            is_named = os.fstat(descriptor).st_nlink > 0
            call = self._disk.sync_call(descriptor, self.path)
            outcome = sync(call if is_named else partial(self._sync_bytes, descriptor))
            _date(descriptor)
            return outcome

    def _sync_bytes(self, descriptor: int) -> None:
        self._disk.fdatasync(descriptor, self.path)
        status = os.fstat(descriptor)
        # Some file systems of FUSE count no names: there the name itself is looked at.
        if not status.st_nlink and not os.path.samestat(status, self.path.stat()):
            raise FileNotFoundError

    @contextlib.contextmanager
    def _flush_errors(self) -> Iterator[None]:
        """Turn an error of the system, that of a full disk too, into a `FlushFailedError`.

        A file that retention deletes at that moment has nothing to keep.
        """
        try:
            yield
        except (OSError, StoreFullError) as error:
            is_deleted = isinstance(error, FileNotFoundError)
            if isinstance(error, OSError) and error.errno is None and not is_deleted:
                raise  # of a signal handler, not of the system
            if not is_deleted or self.is_available:
                what = "it was deleted or moved while the store was open" if is_deleted else error
                raise FlushFailedError(
                    f"fdatasync of {self.path} failed: {what}",
                    hint=_DELETED_HINT if is_deleted else _FAILED_HINT,
                ) from error

    # --- readers and the end of a file ----------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether the file may still be read; False once its deletion was asked for."""
        return self._shut_down_at_ms is None

    def destroy(self, force_after_ms: int, *, now_ms: int) -> bool:
        """Delete the file; False while a reader has it, so ask again later.

        The caller syncs the directory. Once the first attempt is `force_after_ms` ago it is deleted
        in spite of readers, whose views stay valid: only the name goes. References are not counted
        by hand, as in 4.9 (K-E9): a view is one for as long as it lives. Source:
        MappedFile.destroy, ReferenceResource.shutdown.
        """
        with self._lock:
            if self._shut_down_at_ms is None:
                self._shut_down_at_ms = now_ms
            waited_ms = now_ms - self._shut_down_at_ms
            if self._is_being_read():
                if waited_ms < force_after_ms:
                    return False
                _log.warning("file.forced", path=str(self.path), waited_ms=waited_ms)
        self._disk.unlink(self.path)
        self.drop()
        return True

    def _is_being_read(self) -> bool:
        """Whether a view of the mapping exists; the mapping lives as long as one does."""
        self.unmap()
        return self._last_mapping is not None and self._last_mapping() is not None

    def drop(self, *, for_good: bool = False) -> None:
        """Let go of mapping and descriptor; views that readers still have stay valid.

        After the last one, `for_good`, a read that it has overtaken keeps no descriptor.
        """
        self._is_over |= for_good
        self.unmap()
        self.close_descriptor()

    def unmap(self) -> None:
        """Drop the mapping; the next use makes it again, or takes one that a reader kept."""
        for name in ("mapping", "array"):  # in this order: `array` asks for the mapping
            self.__dict__.pop(name, None)


def _date(descriptor: int) -> None:
    """Set the time of the file's last change to now.

    The system sets it only when a page of a mapping is first written after a sync, on tmpfs never.
    A program that copies files whose time has changed (rsync) would miss what came later.
    """
    with contextlib.suppress(OSError):
        os.utime(descriptor)


class MappedFiles:
    """The mapped files of a log, or of the queues: only the `most` that were mapped last stay so.

    A mapping keeps a descriptor open. By default `most` is a quarter of those that the process may
    have; half of them are for the queues.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._files: deque[MappedFile] = deque()
        self._lock = Lock()

    def add(self, file: MappedFile) -> None:
        """Take note of a file that was just mapped; those mapped longest ago are let go of."""
        if file.write_position == file.size:
            file.close_descriptor()
        with self._lock:
            self._files.append(file)
            surplus = range(len(self._files) - (self._most or most_mapped_files() // 4))
            oldest = [self._files.popleft() for _ in surplus]
        for one in oldest:
            one.drop()


def sync_names(files: list[MappedFile]) -> None:
    """Make the names of new files durable, and forget the files; raises `FlushFailedError`.

    Directories that several of them have in common are synced once.
    """
    in_directory: dict[Path, MappedFile] = {}
    for file in files:
        for directory in itertools.islice(file.path.parents, _NAME_LEVELS):
            in_directory.setdefault(directory, file)
    at_once(lambda one: one[1].sync_directory(one[0]), [*in_directory.items()])
    for file in files:
        file.has_durable_name = True
    files.clear()


def address_of(array: npt.NDArray[np.uint8]) -> int:
    """Return where an array's bytes are; its `ctypes` imports modules, which fails at exit."""
    return int(array.__array_interface__["data"][0])


def advise(array: npt.NDArray[np.uint8] | None, advice: int, start: int, stop: int) -> bool:
    """Advise the kernel on the pages of a mapping, if any; return whether it took the advice."""
    if array is None:
        return False
    start -= start % OS_PAGE_SIZE_BYTES
    return bool(libc().madvise(address_of(array) + start, stop - start, advice) == 0)
