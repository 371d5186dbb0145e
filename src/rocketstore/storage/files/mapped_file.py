"""One file of a fixed size, mapped into memory: append, flush, read, count its readers.

Law: bytes after `write_position` mean nothing; a file never shrinks and a mapping is never closed
while a view of it lives. `flushed_position` moves only after `fdatasync` returned without error.

How derived: MappedFile and ReferenceResource of 4.9 (spec B5) without their faults: a failed sync
does not count as one (K-D1), a failed copy does not move the position (K-M2), and room on the disk
is taken before a byte is written through the mapping (K-D7). ``mmap.flush`` is never used because
it holds the interpreter's lock; mappings go away when their last view dies.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from rocketstore.errors import FlushFailedError, FormatError
from rocketstore.events import get_logger
from rocketstore.format.file_name import file_name
from rocketstore.storage.files.disk import Disk, has_all_blocks, probe_pages
from rocketstore.storage.files.new_file import make_file
from rocketstore.storage.system_errors import system_error, system_errors
from rocketstore.units import OS_PAGE_SIZE_BYTES, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

_PROBE_AHEAD_BYTES: Final = MiB
"""How far ahead of the writer the pages of a sparse file are probed."""

_log: Final = get_logger(__name__)

_T = TypeVar("_T")


class MappedFile:
    """One mapped file: `MappedFile.create` makes a new one, `MappedFile.open` takes an old one.

    `base` is the physical (CommitLog) or byte (ConsumeQueue) offset of its first byte. The mapping
    is made at first use: a store with thousands of files opens without mapping them.

    Attributes
    ----------
    write_position, flushed_position
        Bytes from the start of the file that are written, and that are known to be on the disk.
    name_levels
        In how many directories, its own first, a name may be as new as the file's own.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_backed_position",
        "_borrowers",
        "_descriptor",
        "_directory_synced",
        "_disk",
        "_is_closing",
        "_last_mapping",
        "_lock",
        "_mapping",
        "_shut_down_at_ms",
        "base",
        "flushed_position",
        "name_levels",
        "path",
        "size",
        "writable",
        "write_position",
    )

    def __init__(
        self,
        path: Path,
        *,
        base: int,
        size: int,
        disk: Disk,
        writable: bool,
        descriptor: int | None,
    ) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.writable = writable
        self.write_position = 0
        self.flushed_position = 0
        self._disk = disk
        self._descriptor = descriptor
        self._borrowers = 0
        self._is_closing = False
        self._mapping: mmap.mmap | None = None
        self._array: npt.NDArray[np.uint8] | None = None
        self._backed_position = 0
        self._directory_synced = True
        self.name_levels = 1
        self._lock = threading.Lock()
        self._shut_down_at_ms: int | None = None
        self._last_mapping: Callable[[], mmap.mmap | None] = lambda: None

    @classmethod
    def create(
        cls, directory: Path, *, base: int, size: int, disk: Disk, sync: bool = True
    ) -> MappedFile:
        """Make a new file of zeros in `directory`, named by `base`, with all its blocks.

        Without `sync` the first `flush` makes its name durable. Where there is no room, nothing is
        left.
        """
        path = directory / file_name(base)
        descriptor, backed = make_file(path, size, disk=disk, sync=sync)
        file = cls(path, base=base, size=size, disk=disk, writable=True, descriptor=descriptor)
        file._backed_position = size if backed else 0
        file._directory_synced = sync
        return file

    @classmethod
    def open(
        cls, path: Path, *, base: int, size: int, disk: Disk, writable: bool = True
    ) -> MappedFile:
        """Take an existing file; as in 4.9 it is full and flushed until recovery says more."""
        found = path.stat().st_size
        if found != size:
            raise FormatError(
                "file has a wrong length",
                path=path,
                expected=f"{size} bytes",
                found=f"{found} bytes",
                hint="set the file size the store was written with, or repair the store",
            )
        file = cls(path, base=base, size=size, disk=disk, writable=writable, descriptor=None)
        file.write_position = file.flushed_position = size
        return file

    def __repr__(self) -> str:
        return f"MappedFile({self.path.name}, written={self.write_position}, size={self.size})"

    # --- bytes ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Offset after the last written byte."""
        return self.base + self.write_position

    @property
    def is_full(self) -> bool:
        """Whether the write position is at the end of the file."""
        return self.write_position >= self.size

    @property
    def mapping(self) -> mmap.mmap:
        """The mapping of the whole file."""
        mapping = self._mapping
        return self._map() if mapping is None else mapping

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The mapping as an array, for kernels."""
        array = self._array
        if array is None:
            array = self._array = np.frombuffer(self.mapping, np.uint8)
        return array

    @property
    def fd(self) -> int:
        """A descriptor of the file, opened at first use and again after `close_descriptor`.

        Only where no other thread may close it; use `descriptor` there.
        """
        with self._lock:
            return self._opened()

    def _opened(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = self._disk.open_file(self.path, writable=self.writable)
            except FileNotFoundError:
                raise  # expected beside retention: the caller knows what it means
            except OSError as error:
                raise system_error(f"cannot open {self.path}", error) from error
        return self._descriptor

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
                if self._is_closing and not self._borrowers:
                    self._close()

    def _close(self) -> None:
        """Close the descriptor; the lock is held."""
        descriptor, self._descriptor, self._is_closing = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    @property
    def is_mapped(self) -> bool:
        """Whether the file was mapped already."""
        return self._mapping is not None

    def _map(self) -> mmap.mmap:
        access = mmap.PROT_READ | mmap.PROT_WRITE if self.writable else mmap.PROT_READ
        with self._lock:
            mapping = self._last_mapping()  # one that a reader kept is as good as a new one
            if mapping is None:
                descriptor = self._opened()
                with system_errors(f"cannot map {self.path}"):
                    mapping = mmap.mmap(descriptor, self.size, mmap.MAP_SHARED, access)
                self._last_mapping = weakref.ref(mapping)
            self._mapping = mapping
            return mapping

    def slice(self, position: int, size: int) -> memoryview | None:
        """Return a view of written bytes, or None where not all of them are written.

        The view keeps the mapping alive, also when the file is deleted meanwhile.
        """
        if position < 0 or size < 0 or position + size > self.write_position:
            return None
        try:
            return memoryview(self.mapping)[position : position + size]
        except FileNotFoundError:  # retention was faster than this reader
            return None

    def read_at(self, position: int, size: int) -> bytes:
        """Return a copy of up to `size` bytes by `pread`, without mapping the file."""
        with self.descriptor() as descriptor:
            try:
                return os.pread(descriptor, size, position)
            except OSError as error:
                raise system_error(
                    f"cannot read {self.path} at offset {position}", error
                ) from error

    def reserve(self, stop: int) -> None:
        """Make sure that bytes before position `stop` have room on the disk.

        Call this before writing through `mapping` or `array`. It costs a comparison for a file made
        by `create`; a sparse file (one that Java made) gets its blocks at the first call.
        """
        if stop <= self._backed_position:
            return
        with self.descriptor() as descriptor:
            if self._backed_position == 0 and (
                has_all_blocks(descriptor, self.size)
                or self._disk.allocate(descriptor, self.path, self.size)
            ):
                self._backed_position = self.size
                return
            probed = min(max(stop, self._backed_position + _PROBE_AHEAD_BYTES), self.size)
            probe_pages(self._disk, descriptor, self.path, self._backed_position, probed)
        self._backed_position = probed

    @property
    def backed_position(self) -> int:
        """Bytes before this position have room on the disk; `reserve` moves it."""
        return self._backed_position

    def write_bytes(self, position: int, data: bytes | memoryview) -> None:
        """Overwrite bytes at `position` without moving the write position."""
        stop = position + len(data)
        self.reserve(stop)
        self.mapping[position:stop] = data

    def set_end(self, position: int) -> None:
        """Say where the written, flushed bytes end (MappedFileQueue.truncateDirtyFiles)."""
        self.write_position = position
        self.flushed_position = position

    def count_as_unflushed(self) -> None:
        """Take bytes and name for not durable: their writer died before it synced them."""
        self.flushed_position = 0
        self._directory_synced = False

    def zero_tail(self, position: int) -> None:
        """Make all bytes from `position` on zero, durably, so that none looks like a record."""
        with self.descriptor() as descriptor:
            self._disk.zero_range(descriptor, self.path, position, self.size)
        self.sync()

    # --- durability -----------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> int:
        """Make the written bytes durable; return the flushed position.

        With fewer than `least_pages` whole dirty pages nothing is done, unless the file is full.
        After `FlushFailedError` the position did not move, and must not be trusted to move later
        either. Source: MappedFile.flush, MappedFile.isAbleToFlush.
        """
        position = self.write_position
        if position <= self.flushed_position:
            return self.flushed_position
        pages = position // OS_PAGE_SIZE_BYTES - self.flushed_position // OS_PAGE_SIZE_BYTES
        if pages < least_pages and position < self.size:
            return self.flushed_position
        self.sync()
        # Another thread may have flushed further meanwhile; never step back.
        self.flushed_position = max(self.flushed_position, position)
        return self.flushed_position

    def sync(self) -> None:
        """Call `fdatasync`, whatever is written; raises `FlushFailedError`.

        A file that retention deletes at that moment has nothing to keep.
        """
        try:
            with self.descriptor() as descriptor:
                self._disk.fdatasync(descriptor, self.path)
            if not self._directory_synced:
                for directory in itertools.islice(self.path.parents, self.name_levels):
                    self._disk.fsync_directory(directory)
                self._directory_synced = True
        except OSError as error:
            if error.errno is None:  # of a signal handler, not of the system
                raise
            if isinstance(error, FileNotFoundError) and not self.is_available:
                return
            raise self._flush_error(error) from error

    @property
    def has_durable_name(self) -> bool:
        """Whether a sync of the file's bytes is all they need."""
        return self._directory_synced

    def sync_by(self, sync: Callable[[int | Callable[[], None]], _T]) -> _T:
        """Have `sync` bring the file to the disk by what it is given (`Disk.sync_call`)."""
        try:
            with self.descriptor() as descriptor:
                return sync(self._disk.sync_call(descriptor, self.path))
        except OSError as error:
            if error.errno is None:  # of a signal handler, not of the system
                raise
            raise self._flush_error(error) from error

    def _flush_error(self, error: OSError) -> FlushFailedError:
        return FlushFailedError(
            f"fdatasync of {self.path} failed: {error}",
            hint="check the disk, then open the store again; recovery keeps what is intact",
        )

    # --- readers and the end of a file ----------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether the file may still be read; False once its deletion was asked for."""
        return self._shut_down_at_ms is None

    def destroy(self, force_after_ms: int, *, now_ms: int) -> bool:
        """Delete the file; False while somebody reads it, so ask again later.

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
        """Whether anybody has a view of the mapping, which lives as long as one does."""
        self._array = self._mapping = None
        self._mapping = self._last_mapping()
        return self._mapping is not None

    def close_descriptor(self) -> None:
        """Give the descriptor back; the mapping keeps its own, and later uses open a new one.

        A descriptor that is lent stays until it is given back.
        """
        with self._lock:
            if self._borrowers:
                self._is_closing = True
            else:
                self._close()

    def drop(self) -> None:
        """Let go of mapping and descriptor; views that readers still have stay valid."""
        self._array = None
        self._mapping = None
        self.close_descriptor()
