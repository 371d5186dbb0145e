"""One mapped index file: its header, its items, and whether it is on the disk.

Law: the header in the file is the truth; nothing of it is kept elsewhere.

How derived: IndexFile and IndexHeader of 4.9 (spec F10).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from rocketstore.errors import FlushFailedError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    IndexHeader,
    IndexLayout,
    decode_header,
    encode_header,
    is_index_file_name,
    item_array,
    used_item_count,
)
from rocketstore.storage.system_errors import system_errors
from rocketstore.verification.file_rules import FileFinding, FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketstore.native.dispatch_state import ByteArray
    from rocketstore.storage.files.mapped_file import MappedFile


class IndexFile:
    """One index file of the row."""

    __slots__ = ("_flushed_count", "file", "is_rewritten", "layout")

    def __init__(self, file: MappedFile, layout: IndexLayout) -> None:
        self.file = file
        self.layout = layout
        self.is_rewritten = False
        self._flushed_count = self.header.index_count

    def __repr__(self) -> str:
        return f"IndexFile({self.name}, {self.header})"

    @property
    def name(self) -> str:
        """Name of the file: when it was made."""
        return self.file.path.name

    @property
    def array(self) -> ByteArray:
        """The whole file, mapped."""
        return self.file.array

    @property
    def header(self) -> IndexHeader:
        """The header as it stands in the file."""
        return decode_header(memoryview(self.file.mapping)[:INDEX_HEADER_SIZE])

    @property
    def item_count(self) -> int:
        """How many items are used."""
        return used_item_count(self.header, self.layout) - FIRST_ITEM

    @property
    def is_full(self) -> bool:
        """Whether no further item fits."""
        return self.header.index_count >= self.layout.item_count

    @property
    def is_dirty(self) -> bool:
        """Whether it changed since the last flush."""
        return self.is_rewritten or self.header.index_count != self._flushed_count

    def set_header(self, header: IndexHeader) -> None:
        """Overwrite the header."""
        self.file.write_bytes(0, encode_header(header))
        self.is_rewritten = True

    def preset(self, previous: IndexHeader) -> None:
        """Take over the end of the file before, as Java does (IndexFile's constructor).

        The item count stays 0 on disk until the first item, as in Java.
        """
        self.set_header(
            IndexHeader(
                max(previous.end_timestamp_ms, 0),
                max(previous.end_timestamp_ms, 0),
                max(previous.end_physical_offset, 0),
                max(previous.end_physical_offset, 0),
                0,
                0,
            )
        )

    def last_offsets(self) -> Iterator[int]:
        """Yield the physical offsets of the items, newest first."""
        items = item_array(self.array, self.layout)["physical_offset"]
        for number in range(used_item_count(self.header, self.layout) - 1, 0, -1):
            yield int(items[number])

    def flush(self) -> None:
        """Make the file durable."""
        if not self.is_dirty:
            return
        count = self.header.index_count
        was_rewritten, self.is_rewritten = self.is_rewritten, False
        self.file.flushed_position = 0
        try:
            self.file.flush()
        except FlushFailedError:
            self.is_rewritten |= was_rewritten
            raise
        self._flushed_count = count


@system_errors("cannot list the files of the index")
def listed_index_files(directory: Path, findings: list[FileFinding[Path]]) -> dict[Path, int]:
    """Return the index files with their lengths, oldest first; what else is there is a finding."""
    files: dict[Path, int] = {}
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, NotADirectoryError):
        return files
    for name in names:
        path = directory / name
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted since it was listed, or a link to nothing
            continue
        if is_index_file_name(name) and stat.S_ISREG(status.st_mode):
            files[path] = status.st_size
        else:
            findings.append(
                FileFinding(path, FileProblem.WRONG_NAME, "a file of 17 digits", repr(name))
            )
    return files
