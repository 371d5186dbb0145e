"""Find where the index has lost files, or holds one that cannot be believed.

Law: nothing is written. An index only leads to records, so what is doubtful is made again from
the log: an index that is cut in front of the first bad file is a right one that ends early.

Cost: two items of each file, and the two records they name; no slot is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.index_file import (
    FIRST_ITEM,
    IndexHeader,
    is_index_file_name,
    item_array,
)
from rocketstore.format.index_header import HeaderWitness, offset_faults, right_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.storage.index.index_file import IndexFile
    from rocketstore.storage.index.index_service import IndexService


class LostIndex(NamedTuple):
    """From which file on the index is to be made again.

    Attributes
    ----------
    first_name
        It and all later files cannot stay.
    walk_from
        Physical offset from which records may lack items.
    reason
        What speaks for it.
    """

    first_name: str
    walk_from: int
    reason: str


class LostIndexSearch:
    """Looks at every file of a loaded index.

    Parameters
    ----------
    index
        Loaded; nothing runs.
    known
        Name and header of the files that there were; None where that is not known.
    log_min
        The log's first byte.
    clean
        Whether the last writer ended in order.
    store_time_of
        Returns the store time of the record at a physical offset, None without one.
    """

    def __init__(
        self,
        index: IndexService,
        known: list[tuple[str, IndexHeader]] | None,
        *,
        log_min: int,
        clean: bool,
        store_time_of: Callable[[int], int | None],
    ) -> None:
        self._index = index
        self._known = dict(known or ())
        self._log_min = log_min
        self._clean = clean
        self._store_time_of = store_time_of

    def find(self) -> LostIndex | None:
        """Return where the index stops being whole; None where it is."""
        directory = self._index.directory
        names = [p.name for p in directory.glob("*") if is_index_file_name(p.name) and p.is_file()]
        loaded = {file.name: file for file in self._index.files}
        end = self._log_min
        for name in sorted({*names, *self._known}):
            file = loaded.get(name)
            if file is not None:
                reason = self._fault(file)
            elif name in names:
                reason = "has a wrong length"
            elif self._known[name].end_physical_offset < self._log_min:
                continue  # expired since
            else:
                reason = "is missing"
            if reason is not None:
                return LostIndex(name, end, f"{name} {reason}")
            if file is not None:
                end = max(end, file.header.end_physical_offset)
        return None

    def put_headers_right(self) -> list[str]:
        """Write what can be told of a header without looking at all items; return what was done."""
        done = []
        for file in self._index.files:
            header = file.header
            known = self._known.get(file.name)
            if known is not None and (self._clean or file is not self._index.files[-1]):
                right = known
            else:
                right = right_times(header, self._witness(file, header))
            if right != header:
                file.file.reserve(file.file.size)
                file.set_header(right)
                file.file.close_descriptor()
                done.append(f"{file.name}: {header} is {right} now")
        return done

    # --- one file -------------------------------------------------------------------------------

    def _fault(self, file: IndexFile) -> str | None:
        header, known = file.header, self._known.get(file.name)
        if not FIRST_ITEM < header.index_count <= self._index.layout.item_count:
            return f"states {header.index_count} as its next item"
        may_have_grown = not self._clean and file is self._index.files[-1]
        if known is not None and header.index_count < known.index_count:
            return f"had items up to {known.index_count}, and states {header.index_count}"
        if may_have_grown and known is not None and not file.is_full:
            # The header may be ahead of its items; recovery drops and puts again what came later.
            if known.index_count <= FIRST_ITEM:
                return None
            header = known
        elif known is not None and not may_have_grown and known[2:4] != header[2:4]:
            return f"had items of {known[2:4]}, and states {header[2:4]}"
        faults = offset_faults(header, self._witness(file, header))
        return "; ".join(faults) or None

    def _witness(self, file: IndexFile, header: IndexHeader) -> HeaderWitness:
        items = item_array(file.array, self._index.layout)
        first, last = items[FIRST_ITEM], items[header.index_count - 1]
        begin, end = int(first["physical_offset"]), int(last["physical_offset"])
        is_only = header.index_count == FIRST_ITEM + 1
        return HeaderWitness(
            begin,
            end,
            None if is_only else int(last["time_difference_s"]),
            self._store_time_of(begin) if begin >= 0 else None,
            self._store_time_of(end) if end >= 0 else None,
        )
