"""What the header of an index file must say of its items."""

from __future__ import annotations

from typing import NamedTuple

from rocketstore.format.index_file import HEADER_FIELDS, IndexHeader


class HeaderWitness(NamedTuple):
    """What is known about a file besides its header.

    The records of its first and its last item, and their store times, None where they cannot be
    read; the last item's time difference, None where it is the only one, whose own is another
    file's (K-I5); how many slots are in use, and how many items, None if not counted. A header may
    say any number between them: until 4.7.0 each item counted, and a later broker goes on (K-I3).
    """

    first_offset: int
    last_offset: int
    last_difference_s: int | None
    begin_ms: int | None
    end_ms: int | None
    slots: tuple[int, int] | None = None

    def agrees(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the last item's difference is that of these times."""
        if self.last_difference_s is None:
            return begin_ms == end_ms
        if self.last_difference_s == 0:
            return end_ms < begin_ms + 1000  # also when the clock was set back
        return (end_ms - begin_ms) // 1000 == self.last_difference_s


def right_times(header: IndexHeader, witness: HeaderWitness) -> IndexHeader:
    """Return the header with the times that items and records agree on.

    4.9 believes a header: where its times are wrong, a search by time passes the file over. A time
    is wrong only when two sources contradict it: the store time of a record has no checksum either.
    """
    begin, end = header.begin_timestamp_ms, header.end_timestamp_ms
    recorded_begin = begin if witness.begin_ms is None else witness.begin_ms
    recorded_end = end if witness.end_ms is None else witness.end_ms
    if not witness.agrees(begin, recorded_end) and witness.agrees(recorded_begin, recorded_end):
        begin = recorded_begin
    if not witness.agrees(begin, end):
        end = recorded_end
    if witness.last_difference_s is None and witness.begin_ms is not None:
        begin = end = witness.begin_ms
    return header._replace(begin_timestamp_ms=begin, end_timestamp_ms=end)


def header_faults(header: IndexHeader, witness: HeaderWitness) -> list[str]:
    """Return everything that is wrong with a header."""
    right = right_times(header, witness)._replace(
        begin_physical_offset=witness.first_offset, end_physical_offset=witness.last_offset
    )
    if witness.slots and not witness.slots[0] <= header.hash_slot_count <= witness.slots[1]:
        right = right._replace(hash_slot_count=witness.slots[0])
    return [
        f"{field.name}: expected {expected}, found {found}"
        for field, expected, found in zip(HEADER_FIELDS, right, header, strict=True)
        if expected != found
    ]
