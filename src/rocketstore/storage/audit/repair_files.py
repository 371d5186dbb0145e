"""Give the files of a store the lengths and names they should have, before a repair looks inside.

4.9 does not start with a file of a wrong length, and older versions silently left out that file and
all after it (K-R11). A short file grows by zeros; a long one is replaced by its own beginning; a
file that belongs nowhere is moved into ``repair/``.

Law: no byte that could be a message is lost: what is replaced or moved away is kept whole.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from rocketstore.storage.files.new_file import grow_file
from rocketstore.verification.file_rules import FileFinding, FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.pread_files import PreadFiles
    from rocketstore.storage.recovery.evidence import Evidence

_PIECE_BYTES = 4 * 1024 * 1024


_LENGTHS = {FileProblem.EMPTY, FileProblem.WRONG_SIZE}


class FileFix(NamedTuple):
    """What is done to one file."""

    path: Path
    size: int
    """Length it should have."""
    moves: bool
    """It belongs nowhere."""

    @property
    def grows(self) -> bool:
        """Whether the file is only too short."""
        return self.path.stat().st_size < self.size

    def action(self, root: Path) -> str:
        """Return what is done, in words."""
        shown = str(self.path).removeprefix(f"{root}/")
        if self.moves:
            return f"{shown}: move it to repair/"
        if self.grows:
            return f"{shown}: let it grow to {self.size} bytes with zeros"
        return f"{shown}: keep its first {self.size} bytes, move the original to repair/"


def file_fixes(findings: Iterable[FileFinding[Path]], size: int) -> list[FileFix]:
    """Return what the files of one directory need; a missing file cannot be helped."""
    return [
        FileFix(found.path, size, found.problem not in _LENGTHS)
        for found in findings
        if found.problem is not FileProblem.MISSING and found.path.is_file()
    ]


def log_file_fixes(log: PreadFiles) -> list[FileFix]:
    """Return what the files of the CommitLog need.

    An empty file in front of all others holds nothing and is moved away: as zeros it would be where
    4.9 begins to look, and where it ends.
    """
    empty = {found.path for found in log.findings if found.problem is FileProblem.EMPTY}
    begin = log.files[0].base if log.files else 0
    return [
        fix._replace(moves=True) if fix.path in empty and int(fix.path.name) < begin else fix
        for fix in file_fixes(log.findings, log.file_size)
    ]


def apply_file_fixes(fixes: Iterable[FileFix], *, disk: Disk, evidence: Evidence) -> None:
    """Do it, durably; doing it again finds nothing to do."""
    for fix in fixes:
        if fix.moves:
            evidence.take_file(fix.path)
        elif fix.grows:
            grow_file(fix.path, fix.size, disk)
        else:
            _keep_beginning(fix, disk, evidence)


def _keep_beginning(fix: FileFix, disk: Disk, evidence: Evidence) -> None:
    temporary = fix.path.with_name(fix.path.name + ".repair")
    disk.unlink(temporary)
    descriptor = disk.create_file(temporary)
    try:
        disk.allocate(descriptor, temporary, fix.size)
        with fix.path.open("rb") as source:
            position = 0
            while position < fix.size:
                piece = source.read(min(_PIECE_BYTES, fix.size - position))
                disk.write_at(descriptor, temporary, position, piece)
                position += len(piece)
        disk.fdatasync(descriptor, temporary)
    finally:
        os.close(descriptor)
    evidence.copy_range(fix.path, 0, fix.path.stat().st_size)
    disk.replace(temporary, fix.path)
    disk.fsync_directory(fix.path.parent)
