"""What is in a store's files, told without the code that writes, recovers or reads stores.

The log is walked with the plain reference scanner; queue entries and index items are computed from
its records here, and compared with the bytes of the files. `check_agreement` is the claim of the
fault tests: queues and index agree with the CommitLog, and nothing in it is a false message.

What the bytes of a file say is remembered for when it is looked at again, unchanged, after the next
kill say; what is returned is not to be changed.
"""

import itertools
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from rocketstore.format.file_name import parse_file_name
from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_extension import decode_unit
from rocketstore.scan.columns import COLUMN_COUNT, Column, RecordColumns, StopReason
from rocketstore.units import ByteRange, QueueKey
from support.oracle.resync import resync
from support.oracle.walk import walk

Entry = tuple[int, int, int]


_ENTRY = struct.Struct(">qiq")
_ITEM = struct.Struct(">iqii")
_HEADER = struct.Struct(">qqqqii")
FILLER = (0, 0x7FFFFFFF, 0)
EXT_FILE_BYTES = 512
"""Of queue extensions, where a test has any."""
ZEROS = (0, 0, 0)
KEPT = (2**63 - 1, 0, 0)
"""A place behind a queue's end whose record is lost."""


@dataclass(eq=False)
class LogRecord:
    """One intact record of the log."""

    physical_offset: int
    size: int
    queue: QueueKey
    queue_offset: int
    flag: int
    store_timestamp_ms: int
    body: bytes
    properties: dict[str, str]

    @property
    def stop(self) -> int:
        return self.physical_offset + self.size

    @cached_property
    def places(self) -> dict[QueueKey, int]:
        """Its queue offset in each of its queues: its own, and those that it lists (spec F8)."""
        names = self.properties.get("INNER_MULTI_DISPATCH", "").split(",")
        numbers = self.properties.get("INNER_MULTI_QUEUE_OFFSET")
        places = {self.queue: self.queue_offset}
        for name, number in zip(names, numbers.split(","), strict=True) if numbers else ():
            queue_id = 0 if name.startswith("%LMQ%") else self.queue.queue_id
            places[QueueKey(name, queue_id)] = int(number)
        return places

    @cached_property
    def entry(self) -> Entry:
        """Its entry in its queues."""
        tags = self.properties.get("TAGS")
        return self.physical_offset, self.size, string_hash(tags) if tags else 0

    @cached_property
    def keys(self) -> list[str]:
        """What it is found by."""
        keys = [key for key in self.properties.get("KEYS", "").split(" ") if key]
        unique = self.properties.get("UNIQ_KEY")
        return [unique, *keys] if unique else keys


@dataclass
class LogContent:
    """The records of a log, and the ranges before its last record that are neither."""

    records: list[LogRecord] = field(default_factory=list)
    damage: list[ByteRange] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.records[-1].stop if self.records else 0


def read_log(directory: Path, file_size: int) -> LogContent:
    """Walk every file of a log; files that are missing between others are damage."""
    content = LogContent()
    pending: list[ByteRange] = []
    expected = None
    for path in sorted(directory.glob("*")):
        if parse_file_name(path.name) is None:
            continue
        base = int(path.name)
        if expected is not None and base > expected:
            pending.append(ByteRange(expected, base))
        expected = base + file_size
        for part in _parts(path.read_bytes().ljust(file_size, b"\0"), base):
            if isinstance(part, ByteRange):
                pending.append(part)
            else:
                content.damage += pending
                pending.clear()
                content.records += part
    return content


@lru_cache(maxsize=64)
def _parts(raw: bytes, base: int) -> list[list[LogRecord] | ByteRange]:
    """Return runs of records, and the ranges between and after them that hold no record."""
    buffer = np.frombuffer(raw, np.uint8)
    size = len(buffer)
    cols = np.empty((size // 91 + 1, COLUMN_COUNT), np.int64)
    parts: list[list[LogRecord] | ByteRange] = []
    position = 0
    while position < size:
        count, stopped, reason = walk(buffer, position, size, base, size, True, cols)  # noqa: FBT003
        if count:
            parts.append(list(_records(RecordColumns(buffer, cols[:count], base))))
        if reason in {StopReason.BLANK, StopReason.END}:
            break
        found = resync(buffer, stopped + 1, size, base, size)
        following = size if found < 0 else found
        parts.append(ByteRange(base + stopped, base + following))
        position = following
    return parts


def _records(columns: RecordColumns) -> Iterable[LogRecord]:
    for row, numbers in enumerate(columns.cols.tolist()):
        yield LogRecord(
            numbers[Column.PHYSICAL_OFFSET],
            numbers[Column.SIZE],
            QueueKey(columns.topic(row), numbers[Column.QUEUE_ID]),
            numbers[Column.QUEUE_OFFSET],
            numbers[Column.FLAG],
            numbers[Column.STORE_TIMESTAMP],
            columns.body(row),
            decode_properties(columns.properties(row)),
        )


# --- queues -------------------------------------------------------------------------------------


def read_queues(directory: Path) -> dict[QueueKey, dict[int, Entry]]:
    """Return every entry that is not zero, of every queue, by queue offset."""
    queues: dict[QueueKey, dict[int, Entry]] = {}
    units = cache(lambda path: path.read_bytes() if path.exists() else b"")
    for path in sorted(directory.glob("*/*/*")):
        if parse_file_name(path.name) is None:
            continue
        key = QueueKey(path.parent.parent.name, int(path.parent.name))
        entries = queues.setdefault(key, {})
        for number, entry in _entries(path.read_bytes()):
            if entry[2] < -(2**31):
                # A unit that is not there leaves the address, which no record calls for.
                code = _code_of_unit(units, f"{directory}_ext", key, entry[2])
                entry = (*entry[:2], code)  # noqa: PLW2901 - what it means is what counts
            if entry != ZEROS:
                entries[int(path.name) // 20 + number] = entry
    return queues


@lru_cache(maxsize=1 << 10)
def _entries(raw: bytes) -> list[tuple[int, Entry]]:
    every = enumerate(_ENTRY.iter_unpack(raw[: len(raw) // 20 * 20]))
    return [(number, entry) for number, entry in every if entry != ZEROS]


def _code_of_unit(
    units: Callable[[Path], bytes], directory: str, key: QueueKey, address: int
) -> int:
    file, position = divmod(address + 2**63, EXT_FILE_BYTES)
    raw = units(Path(f"{directory}/{key.topic}/{key.queue_id}/{file * EXT_FILE_BYTES:020d}"))
    unit = decode_unit(raw, position) if raw else None
    return address if unit is None else unit.tags_code


def check_queues(
    records: list[LogRecord], queues: dict[QueueKey, dict[int, Entry]], lost: list[ByteRange]
) -> None:
    """Assert that each record has its entry in all its queues, and each entry its record.

    Parameters
    ----------
    lost
        Where records may have been once: entries that point there keep places.
    """
    at = {record.physical_offset: record for record in records}
    places = {place: record for record in records for place in record.places.items()}
    assert len(places) == sum(len(record.places) for record in records), _repeated(records)
    for (key, number), record in places.items():
        entry = queues.get(key, {}).get(number)
        assert entry == record.entry, f"{key}@{number}: entry {entry}, record {record.entry}"
    for key, entries in queues.items():
        numbers = sorted(entries)
        gaps = [(a, b) for a, b in itertools.pairwise(numbers) if b != a + 1]
        assert not gaps, f"{key}: zeros between entries {gaps}"
        for number, entry in entries.items():
            if (key, number) in places:
                continue
            if entry == FILLER:
                assert lost, f"{key}@{number}: no record is lost, but this place is empty"
                continue
            if entry == KEPT:
                behind = {entries[at] for at in numbers if at > number}
                assert behind <= {KEPT}, f"{key}@{number}: entries behind a kept place"
                continue
            assert entry[0] not in at, f"{key}@{number} points at {at[entry[0]]}"
            assert any(start <= entry[0] < stop for start, stop in lost), (
                f"{key}@{number}: {entry} points at no record, lost are {lost}"
            )


def _repeated(records: list[LogRecord]) -> str:
    seen: dict[tuple[QueueKey, int], LogRecord] = {}
    for record in records:
        for place in record.places.items():
            before = seen.setdefault(place, record)
            if before is not record:
                return f"two records for one place: {before} and {record}"
    return "no repetition"


# --- index --------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def key_hash(topic: str, key: str) -> int:
    """Return the hash that index items hold (IndexFile.indexKeyHashMethod)."""
    hashed = string_hash(f"{topic}#{key}")
    return 0 if hashed == -(2**31) else abs(hashed)


def read_index(directory: Path, slot_count: int) -> list[Entry]:
    """Return (hash, physical offset, file number) of every item that its slot's chain reaches."""
    paths = sorted(directory.iterdir()) if directory.is_dir() else ()
    return [
        (*item, number)
        for number, path in enumerate(paths)
        for item in _items(path.read_bytes(), slot_count, path.name)
    ]


@lru_cache(maxsize=1 << 8)
def _items(raw: bytes, slot_count: int, name: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    count = _HEADER.unpack_from(raw)[5]
    for slot, (item,) in enumerate(struct.iter_unpack(">i", raw[40 : 40 + 4 * slot_count])):
        before = count or 1
        while 0 < item < before:
            before = item
            hashed, offset, _, item = _ITEM.unpack_from(raw, 40 + 4 * slot_count + 20 * item)  # noqa: PLW2901
            assert hashed % slot_count == slot, f"{name}: item {before} in slot {slot}"
            found.append((hashed, offset))
    chained = len(found)
    assert chained == max(count - 1, 0), f"{name}: {chained} of {count - 1} items chained"
    return found


def check_index(records: list[LogRecord], items: list[Entry], lost: list[ByteRange]) -> None:
    """Assert that each key of each record has one item, and each item its record."""
    wanted = {
        (key_hash(record.queue.topic, key), record.physical_offset)
        for record in records
        for key in record.keys
    }
    found = [(hashed, offset) for hashed, offset, _ in items]
    missing = sorted(wanted - set(found), key=lambda item: item[1])
    assert not missing, f"index lacks {len(missing)} items, first {missing[0]}"
    strange = [
        item
        for item in set(found) - wanted
        if not any(start <= item[1] < stop for start, stop in lost)
    ]
    assert not strange, f"index has {len(strange)} items of no record, such as {strange[0]}"


def check_agreement(
    root: Path, *, log_file_bytes: int, slot_count: int, lost: list[ByteRange]
) -> LogContent:
    """Assert that queues and index agree with the log; return what is in the log."""
    content = read_log(root / "commitlog", log_file_bytes)
    check_queues(content.records, read_queues(root / "consumequeue"), lost)
    check_index(content.records, read_index(root / "index", slot_count), lost)
    return content
