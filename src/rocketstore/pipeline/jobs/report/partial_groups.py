"""What a task of the report does: count its records in groups, which Spark puts together.

A record is a group of one. Every measure is a sum, a least or a greatest, so groups of records and
groups of groups are made the same way and no cut of the work shows.

Law: what a task holds is bounded: numbers of `BLOCK_RECORDS` records, `NAME_CAPACITY` tags and
keys of at most `NAME_MAX_BYTES`, and `MOST_ROWS` groups, which go to Spark when they are more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute

from rocketstore.pipeline.log_read import read_split
from rocketstore.scan.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from rocketstore.pipeline.log_read import FoundDamage
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.pipeline.stores import Segment
    from rocketstore.scan.columns import RecordColumns

    Numbers = npt.NDArray[np.int64]

pa: Any = pyarrow
pc: Any = pyarrow.compute

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000

TEXTS: Final = ("part", "brokerName", "topic", "name", "detail")
KEYS: Final = (*TEXTS, "number")
SUMS: Final = (
    "messages", "bytes", "bodyBytes", "waiting", "overdue", "damagedRanges", "damagedBytes",
)  # fmt: skip
MEASURES: Final = dict.fromkeys(SUMS, "sum") | {
    "least": "min", "most": "max", "firstMs": "min", "lastMs": "max",
}  # fmt: skip
"""Each with the function that joins two of them. ``part`` says what a group is of, and so what
``name``, ``detail`` and ``number`` are; see `Tally`."""

SCHEMA: Final = ", ".join(
    [f"{name} STRING" for name in TEXTS] + [f"{name} BIGINT" for name in ("number", *MEASURES)]
)
_ARROW_SCHEMA: Final = pa.schema(
    [(name, pa.string() if name in TEXTS else pa.int64()) for name in (*KEYS, *MEASURES)]
)

BLOCK_RECORDS: Final = 65_536
"""Records that are grouped at a time: grouping costs about 0.3 ms before the first row."""

MOST_ROWS: Final = 131_072
NAME_CAPACITY: Final = 8_192
"""Tags of topics, and keys of topics, that a task counts exactly."""

NAME_MAX_BYTES: Final = 256
"""Longer tags and keys are counted by their beginning: a key may be 32 KB long."""

DAMAGE_ROWS: Final = 10_000
"""Most damaged ranges that a task lists; all are counted, by file and by cell of its map."""

MAP_CELLS: Final = 200
"""Parts of a file that the damage map tells apart."""

RECONSUME_TIMES_MAX: Final = 100
"""More are counted as so many: a group gives up after 16 by default."""

LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999; times after it or before 1970 are no times of messages."""

UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""4.9's delay of a level that is not in the table (spec F5)."""

BUCKET_BITS: Final = 5
"""Two to this power buckets for each power of two, as in HdrHistogram: a number is less than 3.2 %
above the beginning of its bucket, and below 64 each number has its own."""

NUMBER_MAX: Final = 2**52
"""Larger numbers are counted as this one: up to here, a float tells the power of two exactly."""

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

WAYS: Final = ("direct", "delayed", "retried", "committed")
"""How a message came to where it is stored. All but the first carry the born time of an earlier
record, so the time from born to stored is not how long storing took."""

_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_COMMIT: Final = 0x8
_PICKED: Final = (
    Column.SIZE, Column.QUEUE_ID, Column.QUEUE_OFFSET, Column.SYS_FLAG, Column.BORN_TIMESTAMP,
    Column.STORE_TIMESTAMP, Column.RECONSUME_TIMES, Column.BODY_SIZE, Column.DELAY_LEVEL,
)  # fmt: skip


class DelayFacts(NamedTuple):
    """What is known about delayed messages without reading them.

    The delay of each level, from 1; by level the queue offset of the next message to deliver, of
    ``delayOffset.json``, if that file could be read; and when the report was asked for.
    """

    delays_ms: dict[int, int]
    delivered_below: dict[int, int]
    has_offsets: bool
    now_ms: int


class ReportTask(NamedTuple):
    """Byte ranges for one worker, by store's name what is known of delays, and buckets of time."""

    splits: tuple[SplitTask, ...]
    delays: dict[str, DelayFacts]
    width_ms: int


def count_task(task: ReportTask) -> Iterator[Any]:
    """Yield the groups of a task, as rows of `SCHEMA`."""
    tallies: dict[str, Tally] = {}
    for split in task.splits:
        name = split.store.broker_name
        if name not in tallies:
            tallies[name] = Tally(name, task.delays[name], task.width_ms)
        yield from _count_split(split, tallies[name])
    for tally in tallies.values():
        yield from tally.taken()


def _count_split(split: SplitTask, tally: Tally) -> Iterator[Any]:
    segment = split.segment
    messages = message_bytes = ranges = damaged_bytes = data_end = 0
    cells = np.zeros(MAP_CELLS, dtype=np.int64)
    listed: list[FoundDamage] = []
    for columns, found in read_split(split):
        tally.add(columns)
        if tally.is_full():
            yield from tally.taken()
        if len(columns):
            messages += len(columns)
            message_bytes += int(columns.size.sum())
            data_end = int(columns.physical_offset[-1] + columns.size[-1]) - segment.base
        for one in found:
            if one.is_torn_tail and split.store.is_open:
                continue
            ranges += 1
            damaged_bytes += one.damage.range.size
            data_end = max(data_end, min(one.damage.range.stop - segment.base, segment.file_size))
            _mark_cells(cells, one, segment)
            if len(listed) < DAMAGE_ROWS:
                listed.append(one)
    file: dict[str, Any] = {"name": [segment.path], "number": [segment.base]}
    counts = {"messages": [messages], "bytes": [message_bytes], "most": [data_end]}
    damaged = {"damagedRanges": [ranges], "damagedBytes": [damaged_bytes]}
    tally.hold("files", file | counts | damaged)
    tally.note("unlistedDamage", ranges - len(listed))
    marked = np.flatnonzero(cells)
    tally.hold(
        "cells",
        {"name": file["name"] * len(marked), "number": marked, "damagedBytes": cells[marked]},
    )
    tally.hold(
        "damage",
        {
            "name": file["name"] * len(listed),
            "number": [one.damage.range.start for one in listed],
            "topic": [one.damage.reason.value for one in listed],
            "detail": [one.damage.evidence for one in listed],
            "least": [one.damage.range.start - segment.base for one in listed],
            "damagedBytes": [one.damage.range.size for one in listed],
        },
    )


def _mark_cells(cells: Numbers, found: FoundDamage, segment: Segment) -> None:
    """Add the bytes of a damaged range to the cells of its file's map that it touches."""
    start = found.damage.range.start - segment.base
    stop = min(found.damage.range.stop - segment.base, segment.file_size)
    edges = np.arange(MAP_CELLS + 1, dtype=np.int64) * segment.file_size // MAP_CELLS
    first, last = np.searchsorted(edges, [start, stop - 1], side="right") - 1
    for cell in range(int(first), min(int(last), MAP_CELLS - 1) + 1):
        cells[cell] += min(stop, int(edges[cell + 1])) - max(start, int(edges[cell]))


def bucket_lows(values: Numbers) -> Numbers:
    """Return where the bucket of each value begins, seen from 0.

    Examples
    --------
    >>> bucket_lows(np.array([63, 64, 65, 1_000_000, -66])).tolist()
    [63, 64, 64, 999424, -66]
    """
    magnitudes = np.abs(np.clip(values, -NUMBER_MAX, NUMBER_MAX))
    powers = np.frexp(magnitudes.astype(np.float64))[1].astype(np.int64) - 1
    shifts = np.maximum(powers - BUCKET_BITS, 0)
    lows = (magnitudes >> shifts) << shifts
    return np.where(values < 0, -lows, lows)


def group_rows(part: str, columns: dict[str, Any]) -> Any:
    """Return groups as rows of `SCHEMA`; columns that are not given are null."""
    count = len(next(iter(columns.values())))
    given = columns | {"part": pa.repeat(part, count)}
    nulls = {name: pa.nulls(count, pa.int64()) for name in _ARROW_SCHEMA.names if name not in given}
    rows = pa.table(nulls | given).select(_ARROW_SCHEMA.names)
    return rows.cast(_ARROW_SCHEMA)


def _grouped(rows: Any) -> Any:
    """Return one row for each combination of the keys among a table's columns."""
    keys = [name for name in KEYS if name in rows.column_names]
    measures = [name for name in MEASURES if name in rows.column_names]
    groups = rows.group_by(keys, use_threads=False).aggregate(
        [(name, MEASURES[name]) for name in measures]
    )
    names = [*keys, *(f"{name}_{MEASURES[name]}" for name in measures)]
    return groups.select(names).rename_columns([*keys, *measures])


class Tally:
    """The groups of one store's records.

    =========  ====================  ==============================================================
    part       keys                  measures besides messages
    =========  ====================  ==============================================================
    queues     topic, number (id)    bytes, bodyBytes, queue offsets, store times
    tags, keys topic, name           bytes (tags)
    traffic    topic, number (time)  bytes
    sizes      topic, number (low)   least and most of the bucket that begins at ``number``
    latencies  … and name (way)      the same, in ms
    delays     number (level)        bytes, waiting, overdue, least (the delay), due times
    retries    topic, number (times) bytes, store times
    files      name, number (base)   bytes, damage, most (end of its data); least (size, of plans)
    cells      name, number (cell)   damagedBytes
    damage     a range each          topic (reason), detail (evidence), least (position)
    notes      name                  messages: what belongs to no other part
    =========  ====================  ==============================================================
    """

    def __init__(self, broker_name: str, delays: DelayFacts, width_ms: int) -> None:
        self.broker_name, self.delays, self.width_ms = broker_name, delays, width_ms
        self._held: list[Any] = []
        self._held_rows = 0
        self._numbers: list[Numbers] = []
        self._topics: list[Any] = []
        self._tags: list[Any] = []
        self._keys: list[Any] = []
        self._record_count = 0

    # --- rows in, groups out --------------------------------------------------------------------

    def add(self, columns: RecordColumns) -> None:
        """Count records; nothing of their buffer is kept."""
        if not len(columns):
            return
        # Turned while the batch is in the processor's cache.
        self._numbers.append(np.ascontiguousarray(columns.cols[:, _PICKED].T))
        self._topics.append(columns.to_arrow(["topic"]).column(0))
        self._tags.append(self._names(columns, "tags", columns.tags_size))
        self._keys.append(self._names(columns, "keys", columns.keys_size))
        self._record_count += len(columns)
        if self._record_count >= BLOCK_RECORDS:
            self._flush()

    def hold(self, part: str, columns: dict[str, Any]) -> None:
        """Keep groups of a part; some may be of the same keys."""
        count = len(next(iter(columns.values())))
        if part in ("queues", "delays", "files", "cells", "damage"):
            columns = columns | {"brokerName": pa.repeat(self.broker_name, count)}
        self._held.append(group_rows(part, columns))
        self._held_rows += count

    def note(self, name: str, count: int) -> None:
        """Add to a count that belongs to no table."""
        if count:
            self.hold("notes", {"name": [name], "messages": [count]})

    def is_full(self) -> bool:
        """Whether there are too many groups to keep, also when they are put together."""
        if self._held_rows > MOST_ROWS:
            self._settle()
        return self._held_rows > MOST_ROWS // 2

    def taken(self) -> Iterator[Any]:
        """Yield all groups, and begin again with none."""
        self._flush()
        self._settle()
        for rows in self._held:
            yield from rows.to_batches()
        self._held, self._held_rows = [], 0

    def _settle(self) -> None:
        if not self._held:
            return
        rows = _grouped(pa.concat_tables(self._held))
        for part in ("tags", "keys"):
            mine = pc.equal(rows["part"], part)
            kept, missed = _frequent(rows.filter(mine)["messages"].to_numpy())
            if missed:
                chosen = rows.filter(mine).take(pa.array(kept))
                rows = pa.concat_tables([rows.filter(pc.invert(mine)), chosen])
                note = {"name": [f"{part}MissedAtMost"], "messages": [missed]}
                rows = pa.concat_tables([rows, group_rows("notes", note)])
        self._held, self._held_rows = [rows], rows.num_rows

    # --- names ----------------------------------------------------------------------------------

    def _names(self, columns: RecordColumns, name: str, sizes: Numbers) -> Any:
        """Return tags or keys, null where absent, tags as long as names may be."""
        if not sizes.any():
            return pa.nulls(len(columns), pa.string())
        names = columns.to_arrow([name]).column(0)
        if name == "tags" and int(sizes.max()) > NAME_MAX_BYTES:
            names = self._cut(names)
        return names

    def _cut(self, names: Any) -> Any:
        is_long = pc.greater(pc.binary_length(names), NAME_MAX_BYTES)
        cut = pc.utf8_slice_codeunits(names, 0, NAME_MAX_BYTES // 4)
        self.note("namesCut", pc.sum(is_long).as_py() or 0)
        marked = pc.binary_join_element_wise(cut, "…", "")
        return pc.if_else(is_long.fill_null(fill_value=False), marked, names)

    # --- a block of records ---------------------------------------------------------------------

    def _flush(self) -> None:
        if not self._record_count:
            return
        block = _Block(self._numbers, self._topics, self._tags)
        keys = pa.chunked_array(self._keys).combine_chunks()
        self._numbers, self._topics, self._tags, self._keys = [], [], [], []
        self._record_count = 0
        self._count_queues(block)
        self._count_times(block)
        self._count("sizes", block, _measured(block.body_size))
        self._count_latencies(block)
        self._count_delays(block)
        self._count_retries(block)
        self._count_keys(block, keys)

    def _count(self, part: str, block: _Block, columns: dict[str, Any], chosen: Any = None) -> None:
        """Group records by the numbers of their topics and keep the groups with the names."""
        rows = pa.table(columns | {"messages": block.ones, "topic": block.topics.indices})
        groups = _grouped(rows if chosen is None else rows.filter(pa.array(chosen)))
        named = {name: groups[name] for name in groups.column_names}
        for name, encoded in (("topic", block.topics), ("name", block.tags)):
            if name in named and pa.types.is_integer(named[name].type):
                named[name] = encoded.dictionary.take(named[name].combine_chunks())
        self.hold(part, named)

    def _count_queues(self, block: _Block) -> None:
        offsets = pa.array(block.queue_offset)
        rows = {
            "number": block.queue_id,
            "bytes": block.size,
            "bodyBytes": block.body_size,
            "least": offsets,
            "most": offsets,
        }
        self._count("queues", block, rows | block.store_times())
        self._count("tags", block, {"name": block.tags.indices, "bytes": block.size})

    def _count_times(self, block: _Block) -> None:
        self.note("withoutStoreTime", len(block.ones) - int(block.has_store_time.sum()))
        starts = block.store_ms // self.width_ms * self.width_ms
        self._count("traffic", block, {"number": starts, "bytes": block.size}, block.has_store_time)

    def _count_latencies(self, block: _Block) -> None:
        known = block.has_store_time & block.has_born_time
        self.note("withoutLatency", len(known) - int(known.sum()))
        elapsed = np.where(known, block.store_ms - block.born_ms, 0)
        ways = pa.array(WAYS).take(pa.array(block.ways()))
        self._count("latencies", block, _measured(elapsed) | {"name": ways}, known)

    def _count_delays(self, block: _Block) -> None:
        rows = np.flatnonzero(block.is_of(lambda topic: topic == DELAY_TOPIC))
        delays = self.delays
        levels = block.queue_id[rows] + 1
        present, places = np.unique(levels, return_inverse=True)
        known = [delays.delays_ms.get(int(level)) for level in present]
        delays_ms = [UNKNOWN_LEVEL_DELAY_MS if one is None else one for one in known]
        delay_ms = np.minimum(np.array(delays_ms, dtype=np.int64), LAST_TIMESTAMP_MS)
        stored = np.clip(block.store_ms[rows], 0, LAST_TIMESTAMP_MS)
        due = np.minimum(stored + delay_ms[places], LAST_TIMESTAMP_MS)
        below = np.array([delays.delivered_below.get(int(one), 0) for one in present], np.int64)
        is_late = due <= delays.now_ms
        is_waiting = block.queue_offset[rows] >= below[places] if delays.has_offsets else ~is_late
        waiting_due = pa.array(due, mask=~is_waiting)
        table = {
            "number": levels,
            "messages": block.ones[rows],
            "bytes": block.size[rows],
            "waiting": is_waiting.astype(np.int64),
            "overdue": (is_waiting & is_late).astype(np.int64),
            "least": pa.array(known, pa.int64()).take(pa.array(places)),
            "firstMs": waiting_due,
            "lastMs": waiting_due,
        }
        groups = _grouped(pa.table(table))
        self.hold("delays", {name: groups[name] for name in groups.column_names})

    def _count_retries(self, block: _Block) -> None:
        chosen = block.is_of(lambda topic: topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
        times = np.clip(block.reconsume_times, 0, RECONSUME_TIMES_MAX)
        rows = {"number": times, "bytes": block.size} | block.store_times()
        self._count("retries", block, rows, chosen)

    def _count_keys(self, block: _Block, texts: Any) -> None:
        """Count keys by topic: KEYS split at blanks, empty ones left out."""
        topics = block.topics.indices
        if texts.null_count:
            present = texts.is_valid()
            texts, topics = texts.filter(present), topics.filter(present)
        if pc.any(pc.match_substring(texts, " ")).as_py():
            lists = pc.split_pattern(texts, " ")
            topics = topics.take(pc.list_parent_indices(lists))
            texts = pc.list_flatten(lists)
            kept = pc.not_equal(texts, "")
            texts, topics = texts.filter(kept), topics.filter(kept)
        if not len(texts):
            return
        if pc.max(pc.binary_length(texts)).as_py() > NAME_MAX_BYTES:
            texts = self._cut(texts)
        self.note("keys", len(texts))
        encoded = texts.dictionary_encode()
        names = block.topics.dictionary
        codes = encoded.indices.to_numpy().astype(np.int64) * len(names) + topics.to_numpy()
        present, messages = np.unique(codes, return_counts=True)
        # Of unique keys none is left here, before it costs anything to put names together.
        chosen, missed = _frequent(messages)
        self.note("keysMissedAtMost", missed)
        rows = {
            "topic": names.take(pa.array(present[chosen] % len(names))),
            "name": encoded.dictionary.take(pa.array(present[chosen] // len(names))),
            "messages": messages[chosen],
        }
        self.hold("keys", rows)


def _measured(values: Numbers) -> dict[str, Any]:
    return {"number": bucket_lows(values), "least": values, "most": values}


def _frequent(messages: Numbers) -> tuple[npt.NDArray[np.intp], int]:
    """Return which groups are kept, and how many messages any other one has at most.

    Of too many, those go that are not more frequent than the first one too many. A name that comes
    in again is then counted too low by no more than that, so over all the sum of it is the error.
    """
    if len(messages) <= NAME_CAPACITY:
        return np.arange(len(messages)), 0
    position = len(messages) - NAME_CAPACITY - 1
    most = int(np.partition(messages, position)[position])
    return np.flatnonzero(messages > most), most


class _Block:
    """The numbers and names of some ten thousand records, each column in one piece."""

    def __init__(self, numbers: list[Numbers], topics: list[Any], tags: list[Any]) -> None:
        columns = np.concatenate(numbers, axis=1)
        self.size, self.queue_id, self.queue_offset = columns[0], columns[1], columns[2]
        self.sys_flag, self.born_ms, self.store_ms = columns[3], columns[4], columns[5]
        self.reconsume_times, self.body_size, self.delay_level = columns[6:9]
        self.ones = np.ones(len(self.size), dtype=np.int64)
        self.topics = pa.chunked_array(topics).combine_chunks().dictionary_encode()
        self.tags = pa.chunked_array(tags).combine_chunks().dictionary_encode()
        self.has_store_time = (self.store_ms >= 0) & (self.store_ms <= LAST_TIMESTAMP_MS)
        self.has_born_time = (self.born_ms > 0) & (self.born_ms <= LAST_TIMESTAMP_MS)

    def store_times(self) -> dict[str, Any]:
        """Return the measures of store times, null where there is none."""
        known = pa.array(self.store_ms, mask=~self.has_store_time)
        return {"firstMs": known, "lastMs": known}

    def is_of(self, wanted: Any) -> npt.NDArray[np.bool_]:
        """Return which records' topics are wanted."""
        names = self.topics.dictionary.to_pylist()
        verdicts = np.array([wanted(topic) for topic in names], dtype=np.bool_)
        chosen: npt.NDArray[np.bool_] = verdicts[self.topics.indices.to_numpy()]
        return chosen

    def ways(self) -> Numbers:
        """Return the number of each record's way."""
        is_waiting = self.is_of(lambda topic: topic == DELAY_TOPIC)
        ways = np.zeros(len(self.size), dtype=np.int64)
        ways[(self.sys_flag & _TRANSACTION_MASK) == _TRANSACTION_COMMIT] = WAYS.index("committed")
        ways[(self.delay_level > 0) & ~is_waiting] = WAYS.index("delayed")
        ways[self.reconsume_times > 0] = WAYS.index("retried")
        return ways
