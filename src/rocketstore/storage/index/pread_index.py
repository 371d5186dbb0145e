"""The key index of a store that this process does not own, read with ``pread``.

An index file is 420 MB by default and a lookup needs a header, a slot and a few items of it, so it
is neither mapped nor read as a whole.

Law: a candidate is only a candidate. Item numbers are used when they lie in the file and descend
along a chain, so a damaged file only ends a search.

How derived: IndexService.queryOffset and IndexFile.selectPhyOffset of 4.9 (spec B15.4, B15.5), with
the first item's time corrected (K-I5) and a tolerance of one second at the beginning (K-I6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from rocketstore.config import StoreConfig, resolve_sizes
from rocketstore.config.files import FileObservation, ObservedSizes, commonest
from rocketstore.format.index_file import (
    FIRST_ITEM,
    HEADER_STRUCT,
    INDEX_FILE_NAME_DIGITS,
    ITEM_STRUCT,
    SLOT_STRUCT,
    IndexHeader,
    IndexLayout,
    is_index_file_name,
)
from rocketstore.format.java_hash import key_hash
from rocketstore.rules.files import FileFinding, FileProblem
from rocketstore.storage.files.disk import refuse_dead_link, system_errors
from rocketstore.storage.files.pread_files import OpenFiles, listed_files

if TYPE_CHECKING:
    from pathlib import Path
    from struct import Struct


_SECOND_MS: Final = 1000
_NOTHING_SET: Final = StoreConfig()


@system_errors("cannot list the files of the index")
def listed_index_files(directory: Path, findings: list[FileFinding[Path]]) -> dict[Path, int]:
    """Return the index files with their lengths, oldest first; what else is there is a finding."""
    refuse_dead_link(directory)
    listed = listed_files([directory], findings, _number_of, f"{INDEX_FILE_NAME_DIGITS} digits")
    found = {file.path: file.size for file in listed}
    for one in findings:
        if one.problem is FileProblem.DANGLING_LINK:
            refuse_dead_link(one.path)
    return found


def _number_of(name: str) -> int | None:
    return int(name) if is_index_file_name(name) else None


def wrong_index_length(path: Path, expected: int, found: int) -> FileFinding[Path]:
    """Return the finding of an index file that has another length than it should."""
    problem = FileProblem.WRONG_SIZE if found else FileProblem.EMPTY
    return FileFinding(path, problem, f"{expected} bytes", f"{found} bytes")


class PreadIndex:
    """All index files of a store, listed again for every question; `directory` need not exist.

    A `layout` of None is learnt from the files' lengths. `findings` says what the last question
    passed over.
    """

    is_mapped: Literal[False] = False

    def __init__(
        self, directory: Path, open_files: OpenFiles, *, layout: IndexLayout | None = None
    ) -> None:
        self._directory = directory
        self._open_files = open_files
        self._layout = layout
        self.findings: list[FileFinding[Path]] = []

    def files(self) -> list[tuple[Path, IndexHeader]]:
        """Return the files that can be used, oldest first, however they are divided."""
        return self._listed()[1]

    def _listed(self) -> tuple[FileObservation | None, list[tuple[Path, IndexHeader]]]:
        """Return a file of the commonest length, and those that can be used."""
        findings: list[FileFinding[Path]] = []
        sizes = listed_index_files(self._directory, findings)
        seen = commonest(sizes.items())
        size = self._layout.size_bytes if self._layout else seen.size if seen else 0
        findings += [wrong_index_length(path, size, n) for path, n in sizes.items() if n != size]
        self.findings = findings
        whole = (path for path, found in sizes.items() if found == size)
        headers = ((path, self._read(path, 0, HEADER_STRUCT)) for path in whole)
        return seen, [(path, IndexHeader._make(found)) for path, found in headers if found]

    def _read(self, path: Path, position: int, struct: Struct) -> tuple[Any, ...] | None:
        """Return the numbers at a position of a file; None where they are not, or it is gone."""
        raw = self._open_files.read(path, position, struct.size)
        return None if raw is None or len(raw) < struct.size else struct.unpack(raw)

    def headers(self) -> list[tuple[str, IndexHeader]]:
        """Return name and header of every index file, oldest first; raises as `_division` does."""
        seen, found = self._listed()
        self._division(seen)
        return [(path.name, header) for path, header in found]

    def candidates(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield physical offsets of possible hits, newest first."""
        hashed = key_hash(topic, key)
        seen, files = self._listed()
        layout = self._division(seen)
        for path, header in reversed(files):
            if header.begin_timestamp_ms > end_ms or header.end_timestamp_ms < begin_ms:
                continue
            for physical_offset, stored_ms in self._chain(path, header, layout, hashed):
                if begin_ms < stored_ms + _SECOND_MS and stored_ms <= end_ms:
                    yield physical_offset

    def _division(self, seen: FileObservation | None) -> IndexLayout:
        """Return how files like one that was seen are divided; `ConfigError` if that cannot be."""
        observed = ObservedSizes(index_file=seen)
        return self._layout or resolve_sizes(_NOTHING_SET, observed).index_layout

    def _chain(
        self, path: Path, header: IndexHeader, layout: IndexLayout, hashed: int
    ) -> Iterator[tuple[int, int]]:
        """Yield physical offset and store time of a hash's items in one file, newest first."""
        slot = self._read(path, layout.slot_position(hashed % layout.slot_count), SLOT_STRUCT)
        number = 0 if slot is None else slot[0]
        # The writer names an item in its slot a moment before it counts it in the header.
        stop = min(header.index_count + 1, layout.item_count)
        while FIRST_ITEM <= number < stop:
            item = self._read(path, layout.item_position(number), ITEM_STRUCT)
            if item is None:
                return
            item_hash, physical_offset, difference_s, older = item
            if difference_s < 0:
                return
            if item_hash == hashed:
                yield physical_offset, header.item_time_ms(number, difference_s)
            stop, number = number, older
