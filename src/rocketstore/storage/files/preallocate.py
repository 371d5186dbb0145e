"""Have the next files of the CommitLog ready before a put needs them.

Law: a file handed out is complete: all its blocks, its name durable, all zeros. Files that nobody
took are deleted at an orderly close; after a crash they stay and recovery deletes them, because
they begin after the end of the log. A file that was taken is handed out again until the log has
it. Names appear in the order of the log: while a put makes a file itself, the thread makes no later
one, so that no reader sees a hole.

How derived: AllocateMappedFileService of 4.9 (spec B7). A put does not fail because a file is still
being made (K-P9): it waits for the one under way, and makes the file itself otherwise. Files are
not made ahead when they would take the last room of a disk, and none of a log whose only file was
never half full: a gigabyte more for each message of a small store.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.format.file_name import file_name
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.new_file import remove_empty
from rocketstore.storage.system_errors import system_error
from rocketstore.storage.threads import Changes, ServiceThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.touch_ahead import WarmUp

FILES_AHEAD: Final = 2
"""Most files made ahead of the one in use (AllocateMappedFileService, "canSubmitRequests")."""

ROOM_FACTOR: Final = 2
"""How many files must fit on the disk for one to be made ahead."""

TAKE_TIMEOUT_S: Final = 5.0
"""Longest wait for a file that is being made (AllocateMappedFileService.waitTimeOut)."""

_log: Final = get_logger(__name__)


class Preallocator:
    """Makes files in a thread of its own.

    `is_in_use` says whether the log has the file that was taken for an offset; the log sets it.
    """

    def __init__(
        self,
        place: Callable[[int], Path],
        file_size: int,
        *,
        disk: Disk,
        warm_up: WarmUp | None = None,
        files_ahead: int = FILES_AHEAD,
    ) -> None:
        self._place = place
        self._file_size = file_size
        self._disk = disk
        self._warm_up = warm_up
        self._files_ahead = files_ahead
        self.is_in_use: Callable[[int], bool] = lambda _base: True
        self._taken: MappedFile | None = None
        self._lock = threading.Lock()
        self._changes = Changes()
        self._wanted: list[int] = []
        self._under_way: int | None = None
        self._ready: dict[int, MappedFile] = {}
        self._retired: list[MappedFile] = []
        self._put_makes = False
        self.thread = ServiceThread(
            "rocketstore-preallocate", self._make_files, wake=self._changes.tell
        )

    def start(self) -> None:
        """Start the thread; without it every file is made when it is asked for."""
        if self._files_ahead > 0 and not self.thread.is_running:
            self.thread.start()

    def request(self, base: int) -> None:
        """Ask for the files after the one that begins at `base`, which is in use."""
        if not self.thread.is_running:
            return
        with self._lock:
            for ahead in range(1, self._files_ahead + 1):
                self._want(base + ahead * self._file_size)
        self._changes.tell()

    def _want(self, base: int) -> None:
        if base not in (self._under_way, *self._ready, *self._wanted):
            self._wanted.append(base)

    def take(self, base: int, *, ahead: bool = True) -> MappedFile:
        """Return the file that begins at `base`, and with `ahead` ask for those after it.

        Asked again for the same one, it returns the same file. Where it could not be made, or not
        in time, `StoreError` is raised; the same call may succeed later.
        """
        file = self._taken
        if file is None or file.base != base:
            try:
                file = self._taken = self._made(base)
            finally:
                self._put_makes = False
                self._changes.tell()
        with self._lock:
            self._ready.pop(base, None)
        if ahead:
            self.request(base)
        return file

    def _made(self, base: int) -> MappedFile:
        with self._lock:
            self._put_makes = base not in self._ready
            if base in self._wanted:
                self._wanted.remove(base)
        if not self._changes.wait_for(lambda: self._under_way != base, TAKE_TIMEOUT_S):
            raise StoreError(
                f"the file at offset {base} was not made within {TAKE_TIMEOUT_S} s",
                hint="the disk is slow: check its load, then put again",
            )
        file = self._ready.get(base)
        return self._make(base) if file is None else file

    def retire(self, file: MappedFile) -> None:
        """Take note that `file` is full: what warming locked in memory is let go."""
        if self._warm_up is not None and self.thread.is_running:
            self._retired.append(file)
            self._changes.tell()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all files asked for are made or given up."""
        return self._changes.wait_for(
            lambda: not self._wanted and self._under_way is None, timeout_s
        )

    def stop(self) -> None:
        """Stop the thread; files are made when they are asked for."""
        self.thread.stop()

    def close(self) -> None:
        """Stop the thread and delete the files that nobody took."""
        self.stop()
        taken = self._taken
        unused = [file for file in self._ready.values() if taken is None or file.base != taken.base]
        if taken is not None and not self.is_in_use(taken.base):
            unused.append(taken)
        with ExitStack() as rest:  # one that cannot be deleted does not keep the others
            for directory in {file.path.parent for file in unused}:
                rest.callback(self._disk.fsync_directory, directory)
            for file in unused:
                rest.callback(file.drop)
                rest.callback(file.destroy, 0, now_ms=0)
            self._taken = None
            self._ready.clear()

    # --- the thread -----------------------------------------------------------------------------

    def _make_files(self) -> None:
        is_stopping = self.thread.stopping.is_set
        while True:
            self._changes.wait_for(lambda: is_stopping() or self._has_work())
            if is_stopping():
                return
            base = None
            with self._lock:
                retired, self._retired = self._retired, []
                if self._wanted and not self._put_makes:
                    base = self._under_way = self._wanted.pop(0)
            if self._warm_up is not None:
                for full in retired:
                    self._warm_up.release(full)
            if base is not None:
                self._make_ahead(base)

    def _has_work(self) -> bool:
        return bool(self._retired or (self._wanted and not self._put_makes))

    def _make_ahead(self, base: int) -> None:
        file = None
        try:
            if self._has_room(base):
                file = self._make(base)
        except (StoreError, OSError) as error:
            # The put that needs the file makes it, or fails with this very error.
            _log.warning("file.not_preallocated", base=base, error=str(error))
        except Exception:  # noqa: BLE001 - likewise, and the thread goes on
            _log.exception("file.not_preallocated", base=base)
        finally:
            if file is not None:
                self._ready[base] = file
            self._under_way = None
            self._changes.tell()

    def _has_room(self, base: int) -> bool:
        directory = self._place(base)
        free = self._disk.free_bytes(directory)
        return free is None or free >= ROOM_FACTOR * self._file_size

    def _make(self, base: int) -> MappedFile:
        directory = self._place(base)
        try:
            self._disk.make_directory(directory)
            remove_empty(directory / file_name(base), self._disk)
            file = MappedFile.create(directory, base=base, size=self._file_size, disk=self._disk)
        except OSError as error:
            refused = system_error(f"cannot make the file at offset {base} in {directory}", error)
            raise StoreError(refused.message, hint=refused.hint) from error
        try:
            if self._warm_up is not None:
                self._warm_up.warm(file)
        except BaseException:
            file.destroy(0, now_ms=0)
            raise
        return file
