"""A store's stand-in for a dry run: names that lead to its files, and copies of what is written.

A repair decides in rounds: what one round cuts or fills shows what the next has to do, and what is
left at the end. So a dry run does not guess the outcome. It repairs a stand-in in the temporary
directory, whose files are symbolic links into the store until something writes to them. CommitLog
bytes are never copied: what would be zeroed is only noted, and read as zeros.

Law: nothing below the store is written. Cost: room in the temporary directory for the queue files
that the repair writes to, and for log files of a wrong length.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from rocketstore.storage.audit.store_audit import StorePlaces
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.written import data_extents
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery.evidence import Evidence

if TYPE_CHECKING:
    from types import TracebackType

    from rocketstore.storage.audit.repair_report import LostForBroker
    from rocketstore.verification.findings import Finding

_COPIED_NAMES: Final = ("checkpoint", "abort")
"""Small files of the root that a repair writes anew."""

_PIECE_BYTES: Final = 1 << 20


class Rehearsal:
    """The stand-in of one store; a context manager, gone when it ends.

    Parameters
    ----------
    places
        Of the store itself.

    Attributes
    ----------
    places
        Of the stand-in.
    """

    def __init__(self, places: StorePlaces) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="rocketstore-dry-run-")
        top = Path(self._directory.name)
        real = places.layout
        root = top / "store"
        self._real_of = {root: real.root}
        logs = []
        for number, directory in enumerate(real.commit_log_directories):
            if directory.is_relative_to(real.root):
                logs.append(root / directory.relative_to(real.root))
            else:  # findings name it in full
                logs.append(top / f"log-{number}")
                self._real_of[logs[-1]] = directory
        layout = StoreLayout(root, tuple(logs), real.read_only_directories)
        self.places = StorePlaces(layout, places.sizes)
        root.mkdir()
        _mirror(real.consume_queue, layout.consume_queue)
        _mirror(real.index, layout.index)
        for directory, stand_in in zip(real.commit_log_directories, logs, strict=True):
            _mirror(directory, stand_in)
        for directory in (real.config, real.consume_queue_ext):
            if directory.is_dir():
                (root / directory.name).symlink_to(directory.absolute())
        for name in _COPIED_NAMES:
            if (real.root / name).is_file():
                shutil.copyfile(real.root / name, root / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._directory.cleanup()

    # --- words ----------------------------------------------------------------------------------

    def real_text(self, text: str) -> str:
        """Return a text that speaks of the store's own paths."""
        for stand_in, real in self._real_of.items():
            text = text.replace(str(stand_in), str(real))
        return text

    def real_findings(self, findings: list[Finding]) -> list[Finding]:
        """Return findings that speak of the store's own paths."""
        return [
            found._replace(
                file=self.real_text(found.file),
                reason=self.real_text(found.reason),
                action=self.real_text(found.action),
            )
            for found in findings
        ]

    def real_losses(self, losses: list[LostForBroker]) -> list[LostForBroker]:
        """Return what a broker loses, in words that speak of the store's own paths."""
        return [loss._replace(reason=self.real_text(loss.reason)) for loss in losses]


class RehearsalDisk(Disk):
    """Copies a file before it is written to, and makes nothing durable."""

    def open_file(self, path: Path, *, writable: bool) -> int:
        """Return a descriptor, of a copy where the file is the store's own."""
        if writable and path.is_symlink():
            _copy_up(path)
        return super().open_file(path, writable=writable)

    def fdatasync(self, descriptor: int, path: Path) -> None:
        """Do nothing: no byte is meant to last."""

    def fsync_directory(self, directory: Path) -> None:
        """Do nothing: no name is meant to last."""


class RehearsalEvidence(Evidence):
    """Notes what would be kept, without a copy."""

    def _copy(self, descriptor: int, target: Path, start: int, stop: int) -> None:
        pass

    def _note(self, target: Path, size: int) -> None:
        self.kept.append(target)
        self.kept_bytes += size

    def note_range(self, path: Path, size: int) -> None:
        """Note a range of a file that would be copied and zeroed."""
        self._note(path, size)


def _mirror(real: Path, stand_in: Path) -> None:
    """Make the directories below `real`, and a link to each of its files."""
    if not real.is_dir():
        return
    stand_in.mkdir(parents=True, exist_ok=True)
    for path in real.iterdir():
        if path.is_dir():
            _mirror(path, stand_in / path.name)
        else:
            (stand_in / path.name).symlink_to(path.absolute())


def _copy_up(path: Path) -> None:
    temporary = path.with_name(f"{path.name}.copy")
    with path.open("rb") as source, temporary.open("xb") as target:
        size = os.fstat(source.fileno()).st_size
        target.truncate(size)
        for start, stop in data_extents(source.fileno(), 0, size):
            for position in range(start, stop, _PIECE_BYTES):
                piece = os.pread(source.fileno(), min(_PIECE_BYTES, stop - position), position)
                os.pwrite(target.fileno(), piece, position)
    temporary.replace(path)
