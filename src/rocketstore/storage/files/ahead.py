"""Have the log's next files, and the next pages of the one in use, ready before a put needs them.

Law: a file handed out is complete: all its blocks, its name durable, all zeros. Unused files are
deleted at an orderly close, after a crash by recovery. A file that was handed out is handed out
again until the log has it. Names appear in the order of the log: while a put makes a file itself,
the thread makes no later one, so that no reader sees a hole. Pages are touched only after the end
of the log, and nothing in them changes; pages that cannot be touched are left to the writer.

How derived: AllocateMappedFileService of 4.9 (spec B7). A put does not fail because a file is still
being made (K-P9): it waits for the one under way, and makes the file itself otherwise; nor because
one directory of several takes no new file, where 4.9 passes over full ones alone. None is made
ahead that would take the last space of a disk, or of a log whose only file was never half full. 4.9
has the whole file touched before its first use (`WarmUp`), or nothing (K-M5).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.format.file_name import file_name
from rocketstore.locks import Lock
from rocketstore.native.touch import MADV_POPULATE_WRITE, PagesAhead
from rocketstore.storage.files.disk import NO_SPACE_ERRORS, Disk, libc, system_error
from rocketstore.storage.files.mapped_file import MappedFile, address_of, advise
from rocketstore.storage.threads import Bell, Changes, OnDeath, ServiceThread
from rocketstore.units import OS_PAGE_SIZE_BYTES, KiB, MiB

if TYPE_CHECKING:
    from pathlib import Path


FILES_AHEAD: Final = 2
"""Most files made ahead of the one in use (AllocateMappedFileService, "canSubmitRequests")."""

ROOM_FACTOR: Final = 2
"""How many files must fit on the disk for one to be made ahead."""

TAKE_TIMEOUT_S: Final = 5.0
"""Longest wait for a file that is being made (AllocateMappedFileService.waitTimeOut)."""

TOUCH_BYTES: Final = 4 * MiB
"""The writer is looked at whenever it enters a stretch of so many bytes."""

LEADS: Final = ((20, 8), (1000, 2))
"""(ms, count): a writer that fills a stretch in fewer ms has that many after it touched."""

SYNC_AHEAD_BYTES: Final = 512 * KiB
"""How far ahead of a writer that syncs pages are written, and again when half of it is used: what a
hundred threads fill in some milliseconds. The one sync that writes it takes a little longer."""

_REFUSALS: Final = NO_SPACE_ERRORS | {errno.EROFS, errno.EACCES, errno.EPERM}
"""What the system says of one directory, while another may take the file."""

_log: Final = get_logger(__name__)


@dataclass(eq=False)
class Preallocator:
    """Makes the files of a log in a thread of its own.

    `directories_for` has those for the file of an offset, the wanted one first; `make_file` makes
    one, and `is_in_use` says whether the log has the file of an offset.
    """

    _directories_for: Callable[[int], Sequence[Path]]
    _file_size: int
    disk: Disk
    warm_up: WarmUp | None = None
    make_file: Callable[..., MappedFile] = MappedFile.create
    is_in_use: Callable[[int], bool] = lambda _base: False
    on_death: OnDeath | None = None

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._changes = Changes()
        self._wanted: list[int] = []
        self._under_way: int | None = None
        self._ready: dict[int, MappedFile] = {}
        self._retired: list[MappedFile] = []
        self._put_makes = False
        self._taken = -1
        self._refusing: set[Path] = set()
        # Without the thread every file is made when it is asked for.
        self.thread = ServiceThread(
            "rocketstore-preallocate", self._make_files, self._changes.tell, on_death=self.on_death
        )

    def request(self, base: int) -> None:
        """Ask for the files after the one that begins at `base`, which is in use."""
        if not self.thread.is_running:
            return
        with self._lock:
            known = (self._under_way, *self._ready, *self._wanted)
            next_bases = (base + ahead * self._file_size for ahead in range(1, FILES_AHEAD + 1))
            self._wanted.extend(wanted for wanted in next_bases if wanted not in known)
        self._changes.tell()

    def take(self, base: int, *, ahead: bool = True) -> MappedFile:
        """Return the file that begins at `base`, and with `ahead` ask for those after it.

        Asked again for the same one, it returns the same file. Where it could not be made, or not
        in time, `StoreError` is raised; the same call may succeed later.
        """
        try:
            with self._lock:
                for taken in [*filter(base.__gt__, self._ready)]:
                    del self._ready[taken]  # the log has it
                self._put_makes = base not in self._ready
                self._taken = max(self._taken, base)
            if not self._changes.wait_for(lambda: self._under_way != base, TAKE_TIMEOUT_S):
                raise StoreError(
                    f"the file at offset {base} was not made within {TAKE_TIMEOUT_S} s",
                    hint="the disk is slow: check its load, then put again",
                )
            file = self._ready.get(base)
            if file is None:
                file = self._ready[base] = self._make(base)
        finally:
            self._put_makes = False
            self._changes.tell()
        if ahead:
            self.request(base)
        return file

    def retire(self, file: MappedFile) -> None:
        """Note that `file` is full: pages that warming locked in memory are unlocked."""
        file.read_ahead()
        if self.warm_up is not None and self.thread.is_running:
            self._retired.append(file)
            self._changes.tell()

    def close(self) -> None:
        """Stop the thread and delete the unused files."""
        self.thread.stop()
        unused = [file for base, file in self._ready.items() if not self.is_in_use(base)]
        with ExitStack() as rest:  # one that cannot be deleted does not prevent the others
            for directory in {file.path.parent for file in unused}:
                rest.callback(self.disk.fsync_directory, directory)
            for file in unused:
                rest.callback(file.drop)
                rest.callback(file.destroy, 0, now_ms=0)

    def _make_files(self) -> None:
        is_stopping = self.thread.stopping.is_set
        while True:
            self._changes.wait_for(
                lambda: is_stopping() or self._retired or (self._wanted and not self._put_makes)
            )
            if is_stopping():
                return
            base = None
            with self._lock:
                retired, self._retired = self._retired, []
                if self._wanted and not self._put_makes:
                    wanted = self._wanted.pop(0)
                    # The caller may not have seen the file that a put took meanwhile: made again
                    # before its first message, it would be replaced, and its messages lost.
                    base = self._under_way = wanted if wanted > self._taken else None
            if self.warm_up is not None:
                for full in retired:
                    self.warm_up.release(full)
            if base is not None:
                self._make_ahead(base)

    def _make_ahead(self, base: int) -> None:
        file = None
        try:
            room = self.disk.room(self._directories_for(base)[0])
            if room is None or room[2] >= ROOM_FACTOR * self._file_size:
                file = self._make(base)
        except (StoreError, OSError) as error:
            # The put that needs the file makes it, or fails with this very error.
            _log.warning("file.not_preallocated", base=base, error=str(error))
        except Exception:  # noqa: BLE001 - likewise, and the thread goes on
            _log.exception("file.not_preallocated", base=base, next="a put makes it")
        finally:
            with self._lock:
                if file is not None:
                    self._ready[base] = file
                self._under_way = None
            self._changes.tell()

    def _make(self, base: int) -> MappedFile:
        *others, last = self._directories_for(base)
        for directory in others:
            try:
                return self._make_in(directory, base)
            except StoreError as error:
                refused = getattr(error.__cause__, "errno", None) in _REFUSALS
                if not refused or os.path.lexists(directory / file_name(base)):
                    raise
                if directory not in self._refusing:
                    self._refusing.add(directory)
                    _log.warning("file.made_elsewhere", base=base, error=str(error))
        return self._make_in(last, base)

    def _make_in(self, directory: Path, base: int) -> MappedFile:
        path = directory / file_name(base)
        try:
            file = self.make_file(path, base=base, size=self._file_size, disk=self.disk)
        except OSError as error:
            refused = system_error(f"cannot make the file at offset {base} in {path.parent}", error)
            raise StoreError(refused.message, hint=refused.hint) from error
        try:
            if self.warm_up is not None:
                self.warm_up.warm(file)
        except BaseException:
            file.destroy(0, now_ms=0)
            raise
        return file


class WarmUp:
    """How the pages of a new file are made present before a put needs them, and locked.

    MappedFile.warmMappedFile, mlock and munlock of 4.9; a file is unlocked as soon as it is full
    (K-M6). A failure to lock memory is logged, never an error.
    """

    def __init__(self, *, flush_every_pages: int, flush: bool) -> None:
        self._piece_bytes = flush_every_pages * OS_PAGE_SIZE_BYTES
        self._flush = flush

    def warm(self, file: MappedFile) -> None:
        """Touch every page of `file`, flush as configured, lock it and ask for read-ahead."""
        file.reserve(file.size)
        if self._flush:
            file.write_single_pages(file.write_position)
        for start in range(0, file.size, self._piece_bytes):
            stop = min(start + self._piece_bytes, file.size)
            if not touch_pages(file, start, stop):
                file.array[start:stop:OS_PAGE_SIZE_BYTES] = 0
            if self._flush:
                file.sync()
        if libc().mlock(address_of(file.array), file.size) != 0:
            _log.warning("file.not_locked", path=str(file.path), errno=ctypes.get_errno())
        advise(file.array, mmap.MADV_WILLNEED, 0, file.size)

    def release(self, file: MappedFile) -> None:
        """Let the pages of a file that is full be swapped again."""
        if file.is_mapped:
            libc().munlock(address_of(file.array), file.size)


class TouchAhead:
    """Faults in the pages that a fast writer is about to fill, in a separate thread.

    The first write to a page of a mapping costs a page fault: half a microsecond, and twenty times
    that where the machine has to fetch the memory from its host. A put of 4 KiB pays one each time.
    A slow writer is left alone, because touched pages are dirty and are written to the disk once
    more. An older request that was not begun is dropped, and pages that were touched for the
    previous one are not touched again.
    """

    def __init__(self, on_death: OnDeath | None = None) -> None:
        self._bell = Bell()
        self._pages: PagesAhead | None = None
        self.thread = ServiceThread(
            "rocketstore-touch", self._run, wake=self.end_file, on_death=on_death
        )

    def request(self, file: MappedFile, start: int, stop: int) -> None:
        """Ask for the pages of `file` from position `start` to `stop`."""
        try:
            if self._pages is None or self._pages.is_ended:
                self._pages = PagesAhead(file.array)
            self._pages.want(start, min(stop, file.backed_position))
            self._bell.ring()
        except Exception:  # noqa: BLE001 - the put is stored, and its writer touches pages itself
            _log.exception("file.not_touched", path=str(file.path), next="puts touch their pages")

    def end_file(self) -> None:
        """Let go of the file: it is full, or the store is closed."""
        if self._pages is not None:
            self._pages.end()
            self._pages = None
        self._bell.ring()

    def _run(self) -> None:
        while not self.thread.stopping.is_set():
            self._bell.wait()
            pages = self._pages
            if pages is not None:
                pages.touch()
            del pages  # it holds the mapping


def touch_for_syncs(file: MappedFile, touched_offset: int) -> int:
    """Have the next sync of `file` write pages that the ones after it will need.

    The first sync of a page of a new file has to write down that its block is used now, a second
    write after the first; where many pages are touched, and so written, along with one sync, the
    next ones are spared it. The thread that syncs does it. Takes and returns the physical offset up
    to which pages were touched; 0 at first.
    """
    position = file.write_position
    start = max(touched_offset - file.base, position)
    if start - position >= SYNC_AHEAD_BYTES // 2:
        return touched_offset
    stop = min(position + SYNC_AHEAD_BYTES, file.size)
    touch_pages(file, start, stop)
    return file.base + stop


def touch_pages(file: MappedFile, start: int, stop: int) -> bool:
    """Fault in a range's whole pages, outside the interpreter's lock; False where that fails."""
    start += -start % OS_PAGE_SIZE_BYTES
    stop = min(stop, file.backed_position)
    return stop > start and advise(file.array, MADV_POPULATE_WRITE, start, stop)
