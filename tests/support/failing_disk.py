"""Disks whose calls a test can count, fail and hold."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketstore.storage.files.disk import Disk, no_space_error
from support.hooked_disk import HookedDisk
from support.patience import PATIENCE_S


class FailingDisk(HookedDisk):
    """The real disk, until told otherwise.

    Attributes
    ----------
    calls
        (what, name of the file) of every call that changes something or makes it durable.
    fails_sync
        Names of files whose ``fdatasync`` fails; ``*`` is every file.
    is_full
        No file gets room.
    is_sparse
        The file system cannot allocate ahead.
    """

    def __init__(self) -> None:
        super().__init__(self._note)
        self.calls: list[tuple[str, str]] = []
        self.fails_sync: set[str] = set()
        self.is_full = self.is_sparse = False

    def _note(self, call: str, path: Path) -> None:
        if call == "fdatasync" and self.fails_sync & {path.name, "*"}:
            raise OSError(errno.EIO, "Input/output error")
        self.calls.append((call, path.name))
        if call in {"allocate", "write_at"} and self.is_full:
            raise no_space_error(path, 0)

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        if self.is_sparse and not self.is_full:
            os.ftruncate(descriptor, size)
            return False
        return super().allocate(descriptor, path, size)

    @property
    def synced(self) -> list[str]:
        """Names of the files that were synced, in order."""
        return [name for what, name in self.calls if what == "fdatasync"]

    def count(self, what: str) -> int:
        return sum(call[0] == what for call in self.calls)


class HeldDisk(FailingDisk):
    """Holds calls of one name, of the files or threads that are held, until a test lets them go on.

    Attributes
    ----------
    may_go
        Set at first; a test clears it, and sets it again.
    is_waiting
        Set by each call that was about to be held.
    on_release
        Called before a call goes on.
    """

    def __init__(
        self, name: str = "fdatasync", is_held: Callable[[Path], bool] = lambda _path: True
    ) -> None:
        super().__init__()
        self.may_go, self.is_waiting = threading.Event(), threading.Event()
        self.may_go.set()
        self.on_release: Callable[[], object] = lambda: None
        call = getattr(self, name)

        def held(*arguments: Any, **named: Any) -> Any:
            if is_held(next(one for one in arguments if isinstance(one, Path))):
                self.is_waiting.set()
                assert self.may_go.wait(PATIENCE_S)
                self.on_release()
            return call(*arguments, **named)

        setattr(self, name, held)


class QuickDisk(Disk):
    """Promises at once: what is measured is not the disk, and what survives is told elsewhere."""

    def fdatasync(self, descriptor: int, path: Path) -> None: ...

    def fsync_directory(self, directory: Path) -> None: ...
