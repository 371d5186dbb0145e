"""An IndexFile: from a key of a topic to physical offsets, by a hash table on disk.

A header, then slots, then items. A slot holds the number of the newest item of its chain, an item
the number of the next older one. The file stores hashes, not keys, so every answer is a candidate
that the caller compares with the record.

Law: nothing in a file is trusted for addressing: slot values and item numbers are range-checked,
and a chain is followed strictly downwards, so a loop ends.
Page: docs/format/index-file.md.
Source: rocketmq-all-4.9.8, IndexFile, IndexHeader, IndexService; spec F10.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.format import Buffer, Field, layout_code, packed, unpacked

if TYPE_CHECKING:
    import numpy.typing as npt

HEADER_FIELDS: Final = (
    Field("begin_timestamp_ms", "q", "8", "ms", "store time of the first indexed message"),
    Field("end_timestamp_ms", "q", "8", "ms", "store time of the last indexed message"),
    Field("begin_physical_offset", "q", "8", "bytes", "record of the first indexed message"),
    Field("end_physical_offset", "q", "8", "bytes", "record of the last indexed message"),
    Field("hash_slot_count", "i", "4", "count", "slots in use"),
    Field("index_count", "i", "4", "count", "number of the next item; the first one is 1"),
)
ITEM_FIELDS: Final = (
    Field("key_hash", "i", "4", "-", "hash of topic, number sign and key, never negative"),
    Field("physical_offset", "q", "8", "bytes", "start of the message's record in the CommitLog"),
    Field("time_difference_s", "i", "4", "s", "store time after the header's begin, rounded down"),
    Field("previous_item", "i", "4", "count", "next older item of the same slot; 0 ends the chain"),
)
"""The page's tables."""

HEADER_STRUCT: Final = struct.Struct(layout_code(HEADER_FIELDS))
INDEX_HEADER_SIZE: Final = HEADER_STRUCT.size
SLOT_STRUCT: Final = struct.Struct(">i")
SLOT_SIZE_BYTES: Final = SLOT_STRUCT.size
ITEM_STRUCT: Final = struct.Struct(layout_code(ITEM_FIELDS))
ITEM_SIZE_BYTES: Final = ITEM_STRUCT.size
assert (INDEX_HEADER_SIZE, SLOT_SIZE_BYTES, ITEM_SIZE_BYTES) == (40, 4, 20)

ITEM_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [(field.name, f">{field.code}") for field in ITEM_FIELDS]
)

DEFAULT_SLOT_COUNT: Final = 5_000_000
DEFAULT_ITEM_COUNT: Final = 20_000_000
FIRST_ITEM: Final = 1
"""Item 0 is never used, because 0 means "no item"."""
ITEMS_PER_SLOT: Final = 4
"""The ratio of Java's defaults, by which the layout is learnt from a file's size."""
INDEX_FILE_NAME_DIGITS: Final = 17


class IndexHeader(NamedTuple):
    """The first 40 bytes; the values of a fresh file are its defaults."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = FIRST_ITEM

    def item_time_ms(self, number: int, difference_s: int) -> int:
        """Return when the message of an item was stored, in whole seconds after the begin."""
        # K-I5: the first item is as old as the file. A damaged begin counts as in `follow_chain`.
        seconds = 0 if number == FIRST_ITEM else difference_s
        return min(max(self.begin_timestamp_ms, 0), 1 << 60) + seconds * 1000


class IndexLayout(NamedTuple):
    """How an index file is divided."""

    slot_count: int
    item_count: int

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return self.item_position(self.item_count)

    def slot_position(self, slot: int) -> int:
        """Return the position of slot number `slot`."""
        return INDEX_HEADER_SIZE + slot * SLOT_SIZE_BYTES

    def item_position(self, item: int) -> int:
        """Return the position of item number `item`."""
        return INDEX_HEADER_SIZE + self.slot_count * SLOT_SIZE_BYTES + item * ITEM_SIZE_BYTES


def layout_of(size_bytes: int) -> IndexLayout:
    """Learn slots and items from a file's length, by the ratio 1 : 4 of Java's defaults.

    Raises `FormatError` where no pair of that ratio has this length: they were configured
    otherwise.
    """
    unit = SLOT_SIZE_BYTES + ITEMS_PER_SLOT * ITEM_SIZE_BYTES
    slots, rest = divmod(size_bytes - INDEX_HEADER_SIZE, unit)
    if rest or slots < 1:
        raise FormatError(
            "the numbers of slots and items cannot be learnt from this length",
            expected=f"{INDEX_HEADER_SIZE} + n * {unit} bytes",
            found=f"{size_bytes} bytes",
            hint="give them: --set maxHashSlotNum=… --set maxIndexNum=…",
        )
    return IndexLayout(slots, slots * ITEMS_PER_SLOT)


def encode_header(header: IndexHeader) -> bytes:
    """Encode the first 40 bytes; raises `FieldRangeError`."""
    return packed(HEADER_STRUCT, header, "an index header's number")


def decode_header(view: Buffer) -> IndexHeader:
    """Decode the first 40 bytes of an index file; no value is judged."""
    return IndexHeader._make(unpacked(HEADER_STRUCT, view, 0, "index header"))


def item_array(view: Buffer | npt.NDArray[np.uint8], layout: IndexLayout) -> npt.NDArray[np.void]:
    """View all items (number 0 included) of a whole file as `ITEM_DTYPE`, without a copy."""
    size = view.size if isinstance(view, np.ndarray) else len(view)
    if size != layout.size_bytes:
        raise FormatError(
            "this is not an index file of that layout",
            expected=f"{layout.size_bytes} bytes",
            found=f"{size} bytes",
        )
    return np.frombuffer(
        view, dtype=ITEM_DTYPE, count=layout.item_count, offset=layout.item_position(0)
    )


def used_item_count(header: IndexHeader, layout: IndexLayout) -> int:
    """Return the number after the last used item, as far as the file can hold it."""
    return min(max(header.index_count, FIRST_ITEM), layout.item_count)


LAST_ZONE: Final = timezone(timedelta(hours=-12))
"""Where it is never later than in a broker's zone, whatever that is: a broker's next file, which it
names by its own clock, sorts after a name of this zone."""


def index_file_name(timestamp_ms: int, tz: tzinfo | None) -> str:
    """Return the name of a file made at `timestamp_ms`: ``yyyyMMddHHmmssSSS`` in zone `tz`.

    A zone of None is that of this process, as in Java. Raises `FieldRangeError` outside the years 1
    to 9999.

    >>> index_file_name(1600000000123, UTC)
    '20200913122640123'
    """
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        # Whole seconds first: a float of milliseconds rounds.
        moment = datetime.fromtimestamp(seconds, UTC).astimezone(tz)
    except (OverflowError, OSError, ValueError) as error:
        raise FieldRangeError("no date for this time", found=timestamp_ms) from error
    return f"{moment:%Y%m%d%H%M%S}".zfill(14) + f"{milliseconds:03d}"


def is_index_file_name(name: str) -> bool:
    """Whether `name` is one that `index_file_name` gives (17 digits)."""
    return len(name) == INDEX_FILE_NAME_DIGITS and name.isascii() and name.isdigit()


def next_index_file_name(timestamp_ms: int, tz: tzinfo | None, newest: str | None) -> str:
    """Return a name for a new file that sorts after `newest`, the greatest name so far.

    Two files within a millisecond, or a clock set back, would give the same or an older name
    (known bug K-I4); the name is then counted up instead.
    """
    name = index_file_name(timestamp_ms, tz)
    if newest is None or name > newest or not is_index_file_name(newest):
        return name
    return f"{int(newest) + 1:017d}"
