"""The files of a log or of a queue, each named by the offset at which it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.file_name import parse_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.places.files import FileEntry


class StoreFile(NamedTuple):
    """One file of a log or a queue; `base` is the offset in its name, `size` what is usable."""

    base: int
    size: int
    path: str

    @property
    def stop(self) -> int:
        """Offset past its last byte."""
        return self.base + self.size


def offset_files(entries: Iterable[FileEntry]) -> list[StoreFile]:
    """Return the files that are named by an offset, in order."""
    named = ((parse_file_name(one.name), one) for one in entries if not one.is_directory)
    found = [StoreFile(base, one.size, one.path) for base, one in named if base is not None]
    return sorted(found, key=lambda one: (one.base, one.path))
