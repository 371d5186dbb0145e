"""The key index of a store that this process does not own, read with ``pread``.

An index file is 420 MB by default and a lookup needs a header, a slot and a few items of it, so it
is neither mapped nor read as a whole.

Law: a candidate is only a candidate. Item numbers are used when they lie in the file and go down
along a chain, so a damaged file ends a search and nothing else.

How derived: IndexService.queryOffset and IndexFile.selectPhyOffset of 4.9 (spec B15.4, B15.5), with
the first item's time put right (K-I5) and a second's tolerance at the begin (K-I6).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from rocketstore.errors import FormatError
from rocketstore.format.index_file import (
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_SIZE_BYTES,
    ITEM_STRUCT,
    SLOT_SIZE_BYTES,
    SLOT_STRUCT,
    IndexHeader,
    IndexLayout,
    decode_header,
    layout_of,
)
from rocketstore.format.java_hash import key_hash
from rocketstore.storage.index.index_file import listed_index_files
from rocketstore.verification.file_rules import FileFinding, FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketstore.storage.files.pread_files import OpenFiles

_SECOND_MS: Final = 1000


class PreadIndexFile(NamedTuple):
    """One index file."""

    path: Path
    layout: IndexLayout


class PreadIndex:
    """All index files of a store, listed again for every question; `directory` need not exist.

    A `layout` of None is learnt from the length of each file.
    """

    def __init__(
        self, directory: Path, open_files: OpenFiles, *, layout: IndexLayout | None = None
    ) -> None:
        self._directory = directory
        self._open_files = open_files
        self._layout = layout
        self.findings: list[FileFinding[Path]] = []

    is_mapped: Literal[False] = False

    def files(self) -> list[PreadIndexFile]:
        """Return the index files, oldest first; `findings` says what was passed over."""
        findings: list[FileFinding[Path]] = []
        sizes = listed_index_files(self._directory, findings)
        for path in [path for path, size in sizes.items() if not size]:
            findings.append(FileFinding(path, FileProblem.EMPTY, "an index file", "0 bytes"))
            del sizes[path]
        layout = self._layout
        if layout is None and sizes:
            layout = _commonest_layout(sizes)
        found: list[PreadIndexFile] = []
        for path, size in sizes.items():
            assert layout is not None
            if self._layout is None and size != layout.size_bytes:
                expected, seen = f"{layout.size_bytes} bytes", f"{size} bytes"
                findings.append(FileFinding(path, FileProblem.WRONG_SIZE, expected, seen))
                continue
            found.append(PreadIndexFile(path, layout))
        self.findings = findings
        return found

    def headers(self) -> list[tuple[str, IndexHeader]]:
        """Return name and header of every index file, oldest first."""
        return [
            (file.path.name, header)
            for file in self.files()
            if (header := self._header(file)) is not None
        ]

    def candidates(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[int]:
        """Yield physical offsets of possible hits, newest first."""
        hashed = key_hash(topic, key)
        for file in reversed(self.files()):
            header = self._header(file)
            if header is None or header.index_count <= FIRST_ITEM:
                continue
            if end_ms is not None and header.begin_timestamp_ms > end_ms:
                continue
            if header.end_timestamp_ms < begin_ms:
                continue
            yield from self._walk(file, header, hashed, begin_ms, end_ms)

    def _header(self, file: PreadIndexFile) -> IndexHeader | None:
        raw = self._open_files.read(file.path, 0, INDEX_HEADER_SIZE)
        return None if raw is None or len(raw) < INDEX_HEADER_SIZE else decode_header(raw)

    def _walk(
        self,
        file: PreadIndexFile,
        header: IndexHeader,
        hashed: int,
        begin_ms: int,
        end_ms: int | None,
    ) -> Iterator[int]:
        layout = file.layout
        slot_at = layout.slot_position(hashed % layout.slot_count)
        raw = self._open_files.read(file.path, slot_at, SLOT_SIZE_BYTES)
        if raw is None or len(raw) < SLOT_SIZE_BYTES:
            return
        (number,) = SLOT_STRUCT.unpack(raw)
        # The writer names an item in its slot a moment before it counts it in the header.
        stop = min(header.index_count + 1, layout.item_count)
        while FIRST_ITEM <= number < stop:
            raw = self._open_files.read(file.path, layout.item_position(number), ITEM_SIZE_BYTES)
            if raw is None or len(raw) < ITEM_SIZE_BYTES:
                return
            item_hash, physical_offset, difference_s, older = ITEM_STRUCT.unpack(raw)
            if difference_s < 0:
                return
            # K-I5: the first item was stored when the file begins, whatever it says.
            seconds = 0 if number == FIRST_ITEM else difference_s
            stored = header.begin_timestamp_ms + seconds * _SECOND_MS
            is_in_range = stored + _SECOND_MS > begin_ms and (end_ms is None or stored <= end_ms)
            if item_hash == hashed and is_in_range:
                yield physical_offset
            stop, number = number, older


def _commonest_layout(sizes: dict[Path, int]) -> IndexLayout:
    """Return the layout that most files have; a file that was cut off does not hide the others'."""
    counted = Counter(sizes.values())
    error: FormatError | None = None
    for size in sorted(counted, key=lambda size: (counted[size], size), reverse=True):
        try:
            return layout_of(size)
        except FormatError as found:
            error = error or found
    assert error is not None
    path, size = next(iter(sizes.items()))
    raise FormatError(
        "cannot learn the layout of an index file",
        path=path,
        expected="a length with four items per slot",
        found=f"{size} bytes",
        hint=error.hint,
    ) from error
