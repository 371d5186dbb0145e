"""Keep what recovery and repair cut: copies in ``repair/<time>/`` inside the store.

Law: bytes are cut only after their copy is durable, and a copy that has its final name is complete.
Doing the same cut again is harmless: cut bytes are zeros, and zeros need no copy.

Names: a copied range lies at its file's own place below ``repair/<time>/``, as
``<file>@<start>-<stop>`` with positions inside the file; a file that was taken away whole keeps its
name. ``repair/<time>`` is the time of the repair in UTC.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rocketstore.events import get_logger
from rocketstore.storage.files.written import PIECE_BYTES, nonzero_extent
from rocketstore.units import OS_PAGE_SIZE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout

_log: Final = get_logger(__name__)


class Evidence:
    """The directory of one recovery or repair; made when the first thing is kept.

    Parameters
    ----------
    layout
        Paths of the store.
    disk
        How files are made and synced.
    now_ms
        The time, for the directory's name.
    """

    def __init__(self, layout: StoreLayout, disk: Disk, now_ms: int) -> None:
        self._root = layout.root
        self._disk = disk
        moment = datetime.fromtimestamp(now_ms // 1000, UTC)
        self._directory = layout.repair / f"{moment:%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"
        self.kept_bytes = 0
        self.kept: list[Path] = []

    @property
    def directory(self) -> str | None:
        """Where things were kept, relative to the store; None while nothing was."""
        return self._directory.relative_to(self._root).as_posix() if self.kept else None

    def cut_range(self, path: Path, start: int, stop: int) -> int:
        """Copy what is not zero in a range of a file, then make the range zero, durably.

        Returns
        -------
        int
            How many bytes, up to the last that was not zero; 0 means nothing changed.
        """
        descriptor = self._disk.open_file(path, writable=True)
        try:
            extent = nonzero_extent(descriptor, start, stop)
            if extent is None:
                return 0
            # A record begins with zeros of its length: keep them with it.
            first, behind = max(start, extent[0] - extent[0] % OS_PAGE_SIZE_BYTES), extent[1]
            target = self._target(path, f"@{first}-{behind}")
            if not target.exists():
                self._copy(descriptor, target, first, behind)
            self._disk.zero_range(descriptor, path, first, behind)
            self._disk.fdatasync(descriptor, path)
        finally:
            os.close(descriptor)
        self._note(target, behind - first)
        return behind - first

    def copy_range(self, path: Path, start: int, stop: int) -> None:
        """Copy a range of a file that is about to be written over."""
        descriptor = self._disk.open_file(path, writable=False)
        try:
            target = self._target(path, f"@{start}-{stop}")
            if not target.exists():
                self._copy(descriptor, target, start, stop)
        finally:
            os.close(descriptor)
        self._note(target, stop - start)

    def take_file(self, path: Path) -> None:
        """Move a whole file here; by a copy where it lies on another file system."""
        target = self._target(path, "")
        size = path.stat().st_size
        if target.exists():
            target = target.with_name(f"{target.name}.{len(self.kept)}")
        try:
            self._disk.replace(path, target)
        except OSError:
            temporary = target.with_name(target.name + ".tmp")
            shutil.copyfile(path, temporary)
            self._finish(temporary, target)
            self._disk.unlink(path)
        self._disk.fsync_directory(target.parent)
        self._disk.fsync_directory(path.parent)
        self._note(target, size)

    def _note(self, target: Path, size: int) -> None:
        self.kept.append(target)
        self.kept_bytes += size
        _log.info("evidence.kept", path=str(target), size_bytes=size)

    def _target(self, path: Path, suffix: str) -> Path:
        try:
            below = path.relative_to(self._root)
            directory = self._directory / below.parent
        except ValueError:  # a CommitLog directory outside the store
            directory = self._directory / path.parent.name
        self._disk.make_directory(directory)
        return directory / (path.name + suffix)

    def _copy(self, descriptor: int, target: Path, start: int, stop: int) -> None:
        temporary = target.with_name(target.name + ".tmp")
        self._disk.unlink(temporary)
        made = self._disk.create_file(temporary)
        try:
            position = start
            while position < stop:
                piece = os.pread(descriptor, min(PIECE_BYTES, stop - position), position)
                if not piece:
                    break
                self._disk.write_at(made, temporary, position - start, piece)
                position += len(piece)
            self._disk.fdatasync(made, temporary)
        finally:
            os.close(made)
        self._disk.replace(temporary, target)
        self._disk.fsync_directory(target.parent)

    def _finish(self, temporary: Path, target: Path) -> None:
        descriptor = self._disk.open_file(temporary, writable=True)
        try:
            self._disk.fdatasync(descriptor, temporary)
        finally:
            os.close(descriptor)
        self._disk.replace(temporary, target)
