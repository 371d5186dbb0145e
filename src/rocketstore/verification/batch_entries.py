"""Which entries of batch queues the records of a log call for, and what stands there instead.

Law: one entry for each record of a batch topic, in the order of the log; a record whose queue
offsets cannot come after those before it gets none. Positions have no meaning there, so a queue is
compared as a whole.

How derived: BatchConsumeQueue.putMessagePositionInfoWrapper of 5.3.1 (spec F9, B12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from rocketstore.format.batch_queue_entry import (
    BATCH_COUNT_MAX,
    BATCH_ENTRY_SIZE_BYTES,
    FIELDS,
    BatchEntry,
    encode_batch_entry,
)
from rocketstore.format.client_batch import BATCH_MESSAGE_FIXED_SIZE
from rocketstore.format.file_name import BATCH_CONSUME_QUEUE_DIRECTORY
from rocketstore.format.properties import INNER_BASE, INNER_NUM, decode_properties
from rocketstore.message import INNER_BATCH
from rocketstore.rules.queue_numbers import DOUBTFUL_BEGINNING
from rocketstore.scan.columns import CallsFor, Column
from rocketstore.verification.findings import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from rocketstore.rules.queue_numbers import QueueNumbers
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.units import QueueKey
    from rocketstore.verification.findings import LastWriter

    BatchEntryArray: TypeAlias = npt.NDArray[np.void]
    Int64Array: TypeAlias = npt.NDArray[np.int64]

BATCH_ENTRY_DTYPE: Final[np.dtype[np.void]] = np.dtype(
    [(field.name, f">{'i2' if field.code == 'h' else field.code}") for field in FIELDS]
)


UNREACHABLE: Final = "queue-impossible"
"""Kind of the finding for records that no queue can have."""


# --- what a record says -------------------------------------------------------------------------


def inner_place(sys_flag: int, queue_offset: int, properties: Mapping[str, str]) -> tuple[int, int]:
    """Return first queue offset and number of messages of a record; (-1, 0) where these are false.

    A record that holds no batch is one message.
    """
    if not sys_flag & INNER_BATCH:
        return queue_offset, 1
    base, count = properties.get(INNER_BASE, ""), properties.get(INNER_NUM, "")
    if not (base.isascii() and base.isdigit() and count.isascii() and count.isdigit()):
        return -1, 0
    is_true = 0 < int(count) <= BATCH_COUNT_MAX and int(base) == queue_offset
    return (queue_offset, int(count)) if is_true else (-1, 0)


def entry_of(columns: RecordColumns, number: int) -> BatchEntry:
    """Return the entry that a record of a batch topic calls for; zeros if its numbers are false."""
    row = columns.cols[number].tolist()
    properties = {}
    if row[Column.SYS_FLAG] & INNER_BATCH:
        properties = decode_properties(columns.properties(number))
    base, count = inner_place(row[Column.SYS_FLAG], row[Column.QUEUE_OFFSET], properties)
    return BatchEntry(
        row[Column.PHYSICAL_OFFSET],
        row[Column.SIZE],
        row[Column.TAGS_CODE],
        row[Column.STORE_TIMESTAMP],
        base,
        count,
    )


def queue_stops(columns: RecordColumns) -> Int64Array:
    """Return the queue offset after each record: after its last message where it holds a batch."""
    stops: Int64Array = columns.queue_offset + 1
    for row in np.flatnonzero(columns.sys_flag & INNER_BATCH).tolist():
        entry = entry_of(columns, row)
        if entry.is_written:
            stops[row] = entry.stop_offset
    return stops


def entries_called_for(
    columns: RecordColumns, numbers: QueueNumbers
) -> Iterator[tuple[QueueKey, bytes]]:
    """Yield queue and entry of each record of a batch topic, false ones too (`entry_of`)."""
    if not numbers.batch_topics:
        return
    queues = numbers.of(columns)
    is_batch = numbers.batch_mask(queues) & columns.call_for(CallsFor.ENTRY)
    for row in np.flatnonzero(is_batch & (columns.queue_id >= 0)).tolist():
        yield numbers.key(int(queues[row])), encode_batch_entry(entry_of(columns, row))


def batch_may_follow(base_offset: Any, queue_stop: Any, physical_offset: Any) -> Any:
    """Whether a record's first number may come after those of a queue up to `queue_stop`.

    A forged number would refuse every later message, so at most as many as fit into the log may be
    missing. Numbers or columns of them.
    """
    most = np.maximum(DOUBTFUL_BEGINNING, physical_offset // BATCH_MESSAGE_FIXED_SIZE)
    return (queue_stop <= base_offset) & (base_offset <= queue_stop + most)


# --- a queue ------------------------------------------------------------------------------------


def stored_entries(content: bytes | bytearray) -> BatchEntryArray:
    """Return the entries that the files of a queue hold, up to the last one that is not zeros."""
    count = -(-len(content.rstrip(b"\0")) // BATCH_ENTRY_SIZE_BYTES)
    # The last numbers of an entry may be zeros.
    whole = content[: count * BATCH_ENTRY_SIZE_BYTES].ljust(count * BATCH_ENTRY_SIZE_BYTES, b"\0")
    return np.frombuffer(whole, BATCH_ENTRY_DTYPE)


def written_count(array: BatchEntryArray) -> int:
    """Return how many entries at the beginning of an array are written, each after the one before.

    Their records stand in the order of the log, and no two have a message in common.
    """
    fits = (array["physical_offset"] >= 0) & (array["record_size"] > 0)
    fits &= (array["base_offset"] >= 0) & (array["message_count"] > 0)
    stops = array["base_offset"].astype(np.int64) + array["message_count"]
    fits[1:] &= array["base_offset"][1:] >= stops[:-1]
    ends = array["physical_offset"].astype(np.int64) + array["record_size"]
    fits[1:] &= array["physical_offset"][1:] >= ends[:-1]
    wrong = np.flatnonzero(~fits)
    return int(wrong[0]) if wrong.size else len(array)


def queue_bounds(stored: BatchEntryArray, log_min: int) -> tuple[int, int]:
    """Return the queue offsets of the first message that has not expired and after the last."""
    stored = stored[: written_count(stored)]
    stop = int(stored["base_offset"][-1]) + int(stored["message_count"][-1]) if len(stored) else 0
    left = stored["base_offset"][stored["physical_offset"] >= log_min]
    return (int(left[0]) if len(left) else stop), stop


def queue_findings(
    key: QueueKey,
    stored: BatchEntryArray,
    called: BatchEntryArray,
    log_min: int,
    writer: LastWriter,
) -> Iterator[Finding]:
    """Yield what is wrong with the entries of a queue, and with records that cannot have one.

    Parameters
    ----------
    stored
        The entries in its files; those of records before `log_min` have expired.
    called
        The entries that its records call for, in the order of the log.
    writer
        Where it is live, one of the two may have been read before the other.
    """
    stored = stored[stored["physical_offset"] >= log_min]
    if writer.is_live and len(stored):  # retention may have been faster
        called = called[called["physical_offset"] >= stored["physical_offset"][0]]
    taken = _followed(called)
    where = f"{BATCH_CONSUME_QUEUE_DIRECTORY}/{key.topic}/{key.queue_id}"
    if len(taken) < len(called):
        lost = np.setdiff1d(called["physical_offset"], taken["physical_offset"])
        yield finding(
            UNREACHABLE,
            where,
            f"{len(lost)} of {len(called)} records state queue offsets that cannot come after "
            "those before them",
            topic=key.topic,
            queue_id=key.queue_id,
            physical_offset=int(lost[0]),
        )
    called = taken
    shorter = min(len(stored), len(called))
    differs = np.flatnonzero(stored[:shorter] != called[:shorter])
    same = int(differs[0]) if differs.size else shorter
    if same == max(len(stored), len(called)) or (writer.is_live and same == shorter):
        return
    kind = "queue-wrong"
    if same == len(stored):
        kind = "queue-missing"
    elif same == len(called):
        kind = "queue-beyond-log"
    entry = (stored if same == len(called) else called)[same]
    found = finding(
        kind,
        where,
        f"{len(stored)} entries of {len(called)} records, of which the first {same} agree",
        action="repair builds the queue again",
        topic=key.topic,
        queue_id=key.queue_id,
        queue_offset=int(entry["base_offset"]),
        physical_offset=int(entry["physical_offset"]),
    )
    yield writer.judged(found) if kind == "queue-missing" else found


def _followed(called: BatchEntryArray) -> BatchEntryArray:
    """Return the entries that dispatch accepts, each after the ones before it."""
    bases, places = (called[name].astype(np.int64) for name in ("base_offset", "physical_offset"))
    stops = bases + called["message_count"]
    follows = batch_may_follow(bases, np.append(0, stops)[:-1], places)
    if not follows.all():
        stop = 0
        for row in range(len(called)):
            follows[row] = batch_may_follow(bases[row], stop, places[row])
            stop = stops[row] if follows[row] else stop
    taken: BatchEntryArray = called[follows]
    return taken
