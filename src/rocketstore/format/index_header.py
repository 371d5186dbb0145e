"""Whether the header of an index file says what its items, and the records they name, say.

4.9 believes the numbers of a header: where they are wrong, a search by time passes the file over,
and the next item goes to a wrong place. Everything in a header can be worked out from elsewhere.

Law: a number is called wrong only when two witnesses contradict it, because a record's store time
has no checksum either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rocketstore.format.index_file import IndexHeader

_SECOND_MS: Final = 1000


class HeaderWitness(NamedTuple):
    """What is known of a file besides its header.

    The records of its first and its last item, and their store times, None where they cannot be
    read; `last_difference_s` of the last item is None where it is the only one, whose own is
    another file's
    (K-I5). `slots` says how many slots are in use, and how many items, as until 4.7.0 each item
    counted; None where nobody counted.
    """

    first_offset: int
    last_offset: int
    last_difference_s: int | None
    begin_ms: int | None
    end_ms: int | None
    slots: tuple[int, int] | None = None


def offset_faults(header: IndexHeader, witness: HeaderWitness) -> list[str]:
    """Return what is wrong with the places that the header names."""
    faults = []
    for what, found, expected in (
        ("begin offset", header.begin_physical_offset, witness.first_offset),
        ("end offset", header.end_physical_offset, witness.last_offset),
    ):
        if found != expected:
            faults.append(f"{what}: expected {expected} as its items say, found {found}")
    return faults


def right_times(header: IndexHeader, witness: HeaderWitness) -> IndexHeader:
    """Return the header with the times that items and records agree on."""
    begin, end = header.begin_timestamp_ms, header.end_timestamp_ms
    recorded_end = end if witness.end_ms is None else witness.end_ms
    if (
        witness.begin_ms is not None
        and begin != witness.begin_ms
        and not _agree(begin, recorded_end, witness)
        and _agree(witness.begin_ms, recorded_end, witness)
    ):
        begin = witness.begin_ms
    if end != recorded_end and not _agree(begin, end, witness):
        end = recorded_end
    if witness.last_difference_s is None and witness.begin_ms is not None:
        begin = end = witness.begin_ms
    return header._replace(begin_timestamp_ms=begin, end_timestamp_ms=end)


def _agree(begin_ms: int, end_ms: int, witness: HeaderWitness) -> bool:
    """Whether the last item's difference is that of these times."""
    difference = witness.last_difference_s
    if difference is None:
        return begin_ms == end_ms
    if difference == 0:
        return end_ms < begin_ms + _SECOND_MS  # also when the clock was set back
    return (end_ms - begin_ms) // _SECOND_MS == difference


def header_faults(header: IndexHeader, witness: HeaderWitness) -> list[str]:
    """Return everything that is wrong with a header."""
    faults = offset_faults(header, witness)
    right = right_times(header, witness)
    for what, found, expected in (
        ("begin time", header.begin_timestamp_ms, right.begin_timestamp_ms),
        ("end time", header.end_timestamp_ms, right.end_timestamp_ms),
    ):
        if found != expected:
            faults.append(f"{what}: expected {expected} ms, found {found}")
    if witness.slots is not None and header.hash_slot_count not in witness.slots:
        faults.append(f"slots in use: expected {witness.slots[0]}, found {header.hash_slot_count}")
    return faults
