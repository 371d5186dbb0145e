"""The end of an open store: it is closed, abandoned, or left behind by a fork.

Law: a store lets go of its files and its lock only when none of its threads runs any more, whatever
interrupts that; a close that did not come so far goes on when it is called again. A forked child
has none of the threads and does not hold the lock, and its mappings are its parent's files: there
every use of the store is refused, no file is touched and no lock is waited for.

How derived: DefaultMessageStore.shutdown of 4.9; a Java process does not fork.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, Final, Self

from rocketstore.errors import FlushFailedError, StoreClosedError, StoreForkedError
from rocketstore.events import get_logger
from rocketstore.native.decode import LogAtHand
from rocketstore.storage.read_only import Gone, physical_memory_bytes
from rocketstore.storage.reading.pages import PageLimits
from rocketstore.storage.reading.reader import Reader
from rocketstore.storage.services import StoreServices

if TYPE_CHECKING:
    from types import TracebackType

    from rocketstore.storage.opening import StoreParts

_IN_USE: Final = (
    "_check_readable", "_key_search", "_log", "_pages", "_parts", "_queues",
    "_services", "_writer", "running_flags", "statistics",
)  # fmt: skip
"""What a store's methods go to."""

_log: Final = get_logger(__name__)


class EndingStore(Reader):
    """What `MessageStore` is while it lives, and how it ends."""

    def __init__(self, parts: StoreParts, *, threads: bool) -> None:
        limits = PageLimits.from_config(parts.config, physical_memory_bytes=physical_memory_bytes())
        super().__init__(parts.log, parts.queues, parts.index, limits)
        self.layout = parts.layout
        self._parts = parts
        self._services = StoreServices(parts, threads=threads)
        self._writer = self._services.writer
        self._put_at_once = self._writer.put_at_once
        self._put_prepared_at_once = self._writer.put_prepared_at_once
        self.statistics = self._services.statistics
        self.running_flags = parts.flags
        self._check_readable = parts.flags.check_readable
        self._is_closed = self._is_let_go = False
        self._closing: dict[str, object] = {}
        self._gone = Gone(StoreClosedError(f"{self.layout.root} was closed", hint="open it again"))
        self._pid = os.getpid()
        _stores.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # What ended the block is more telling than what a failed flush adds to it.
        with contextlib.suppress(FlushFailedError):
            self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or the store is that of the process that forked this one."""
        return self._is_closed

    def close(self) -> None:
        """Flush everything, say in the store that it ended in order, and let go of it.

        A second call does nothing; after one that was interrupted twice (by exceptions out of a
        signal handler) it ends what that one began. After an error the marker ``abort`` stays, so
        that the next open checks what is there. In a forked child it does nothing.

        Raises
        ------
        FlushFailedError
            Not everything is on the disk. The store is closed nevertheless.
        """
        call = object()
        try:
            if self._is_let_go or self._closing.setdefault("by", call) is not call:
                return
            self._is_closed = True
            try:
                self._end()
            except BaseException:
                # After an interrupt the rest is done all the same, unless there is another one.
                if not self._services.is_stopped:
                    self._end()
                raise
            finally:
                if self._services.is_stopped:
                    self._let_go()
        finally:
            if self._closing.get("by") is call:
                self._closing.clear()

    def abandon(self) -> None:
        """Let go of a store without threads as a crash would; the next open recovers it."""
        if not self._is_let_go:
            self._is_closed = True
            self._writer.stop()
            self._let_go()

    def _end(self) -> None:
        """Stop everything; take the marker ``abort`` away if that was in order."""
        why = "not everything is on the disk"
        if self._services.stop():
            try:
                self._parts.disk.unlink(self.layout.abort)
                self._parts.disk.fsync_directory(self.layout.root)
            except OSError as error:  # the next open looks closer, and finds all in order
                why = str(error)
            else:
                return
        _log.warning("store.abort_stays", root=str(self.layout.root), why=why)

    def _let_go(self) -> None:
        gone: Any = self._gone
        self._log = self._queues = self._key_search = self._pages = gone
        self._records = LogAtHand(gone)
        try:
            self._parts.drop()
        except OSError as error:  # a file made ahead stays, and the next open deletes it
            _log.warning("store.files_left", root=str(self.layout.root), error=str(error))
        self._is_let_go = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._gone.again()

    def _leave_to_parent(self) -> None:
        """Refuse everything in a forked child, also what is reached by other ways than this."""
        if self._is_let_go:
            return
        error = StoreForkedError(
            f"{self.layout.root} was opened by process {self._pid}, which forked this one "
            f"({os.getpid()}); it cannot be used here",
            hint="open it in the process that uses it: after the fork, or by the spawn method",
        )
        self._writer.forked = error
        self._writer.stop()
        self._kept = self._parts  # a view that somebody has stays valid
        self._gone = Gone(error)
        self._is_closed = self._is_let_go = True
        for name in _IN_USE:
            setattr(self, name, self._gone)
        self._records = LogAtHand(self._gone)


_stores: Final[weakref.WeakSet[EndingStore]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for store in list(_stores):
        store._leave_to_parent()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_leave_to_parent)
