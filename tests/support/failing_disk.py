"""Disks whose calls a test can count, fail and hold."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketstore.storage.files.disk import Disk, no_space_error
from support.patience import PATIENCE_S


class FailingDisk(Disk):
    """The real disk, until told otherwise.

    Attributes
    ----------
    calls
        (what, name of the file) of every call that makes something durable or takes it away.
    fails_sync
        Names of files whose ``fdatasync`` fails; ``*`` is every file.
    is_full
        No file gets room.
    is_sparse
        The file system cannot allocate ahead.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fails_sync: set[str] = set()
        self.is_full = False
        self.is_sparse = False

    @property
    def synced(self) -> list[str]:
        """Names of the files that were synced, in order."""
        return [name for what, name in self.calls if what == "fdatasync"]

    def count(self, what: str) -> int:
        return sum(call[0] == what for call in self.calls)

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        self.calls.append(("allocate", path.name))
        if self.is_full:
            raise no_space_error(path, size)
        if self.is_sparse:
            os.ftruncate(descriptor, size)
            return False
        return super().allocate(descriptor, path, size)

    def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
        self.calls.append(("write", path.name))
        if self.is_full:
            raise no_space_error(path, len(data))
        super().write_at(descriptor, path, position, data)

    def fdatasync(self, descriptor: int, path: Path) -> None:
        if path.name in self.fails_sync or "*" in self.fails_sync:
            raise OSError(errno.EIO, "Input/output error")
        self.calls.append(("fdatasync", path.name))
        super().fdatasync(descriptor, path)

    def fsync_directory(self, directory: Path) -> None:
        self.calls.append(("fsync_directory", directory.name))
        super().fsync_directory(directory)

    def unlink(self, path: Path) -> None:
        self.calls.append(("unlink", path.name))
        super().unlink(path)

    def replace(self, source: Path, target: Path) -> None:
        self.calls.append(("replace", target.name))
        super().replace(source, target)


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
