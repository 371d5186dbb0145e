"""What a task of the report does: count its records in groups, which Spark puts together.

Every measure is a sum, a minimum or a maximum, so groups of records and groups of groups are made
the same way, and the division into tasks does not matter.

=========  ====================  ==============================================================
part       keys                  measures besides messages
=========  ====================  ==============================================================
queues     topic, number (id)    bytes, bodyBytes, least and most queue offset, store times
tags       topic, name           bytes
keys       sketch                of a task's keys: `key_sketch`
traffic    topic, number (time)  bytes
sizes      topic, number (low)   least and most of the bucket that begins at ``number``
latencies  … and name (way)      the same, in ms
delays     number (level)        bytes, waiting, overdue, least (the delay), due times
halves     topic, name, number   bytes, most (checks), born times; ages from ``number`` on
retries    topic, number (times) bytes, store times
files      name, number (base)   bytes, damage, most (end of its data); ``waiting`` bytes read,
                                 ``overdue`` resyncs; of plans: see there
damage     a range each          topic (reason), detail (evidence), least (position)
notes      name                  messages: what belongs to no other part
=========  ====================  ==============================================================

Law: a task holds a block of `BLOCK_BYTES` and a sketch. It yields the groups of its blocks, of tags
`NAME_CAPACITY` at most; as many keys go into the sketch. Names have at most `NAME_MAX_BYTES`.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rocketstore.pipeline import waiting_tables
from rocketstore.pipeline.columns import arrow_schema
from rocketstore.pipeline.jobs.report.key_sketch import add_counts, add_packed, new_sketch
from rocketstore.pipeline.log_read import read_split
from rocketstore.rules.topics import purpose_of
from rocketstore.scan.arrow import LAST_TIMESTAMP_MS, to_arrow
from rocketstore.scan.columns import Column, RecordColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.planning import SplitTask
    from rocketstore.places.log_files import Segment
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.scanner import Damage

    Numbers = npt.NDArray[np.int64]
    Chosen = npt.NDArray[np.bool_]


TEXTS: Final = ("part", "brokerName", "topic", "name", "detail")
KEYS: Final = (*TEXTS, "number", "sketch")
MEASURES: Final = dict.fromkeys(  # each with the function that joins two of them
    ("messages", "bytes", "bodyBytes", "waiting", "overdue", "damagedRanges", "damagedBytes"), "sum"
) | {"least": "min", "most": "max", "firstMs": "min", "lastMs": "max"}

SCHEMA: Final = ", ".join(
    f"{name} {'STRING' if name in TEXTS else 'BINARY' if name == 'sketch' else 'BIGINT'}"
    for name in (*KEYS, *MEASURES)
)
ROWS: Final = arrow_schema(SCHEMA)

BLOCK_BYTES: Final = 2**23  # of some ten thousand records: grouping costs 0.3 ms without any
NAME_CAPACITY: Final = 8_192  # of tags, and of keys, that a block counts exactly
NAME_MAX_BYTES: Final = 256  # longer ones are counted by their beginning: a key may have 32 KB
RECONSUME_TIMES_MAX: Final = 100  # of more, too: a group gives up after 16 by default
UNKNOWN_LEVEL_DELAY_MS: Final = 1_000  # 4.9's of a level that is not in the table (spec F5)

BUCKET_BITS: Final = 5
"""Two to this power buckets for each power of two, as in HdrHistogram: a number is less than 3.2 %
above the beginning of its bucket, and below 64 each number has its own."""

NUMBER_MAX: Final = 2**52  # larger ones count as this: so far, a float gives the power of two
WAYS: Final = ("direct", "delayed", "retried", "committed")
"""How a message came to where it is stored. All but the first carry the born time of an earlier
record, so the time from born to stored is not how long storing took."""

AGES_MS: Final = np.array([0, 60_000, 3_600_000, 86_400_000])  # that open half messages have
HALVES: Final = pa.schema({
    "realTopic": pa.string(), "producerGroup": pa.string(), "checkTimes": pa.int64(),
    "size": pa.int64(), "bornTimestamp": pa.timestamp("ms", "UTC"),
})  # fmt: skip

NOTES: Final = ("keys", "keysMissedAtMost", "tagsMissedAtMost", "namesCut", "withoutStoreTime")
"""Counts that belong to no table."""

_OF_FILE: Final = {
    "messages": "messages", "bytes": "bytes", "most": "end", "damagedRanges": "lostRanges",
    "damagedBytes": "lostBytes", "waiting": "bytesRead", "overdue": "resyncs",
}  # fmt: skip
"""Measures of part ``files``, by what is seen of a split."""

_PICKED: Final = (
    Column.SIZE, Column.QUEUE_ID, Column.QUEUE_OFFSET, Column.SYS_FLAG, Column.BORN_TIMESTAMP,
    Column.STORE_TIMESTAMP, Column.RECONSUME_TIMES, Column.BODY_SIZE, Column.DELAY_LEVEL,
)  # fmt: skip


class ReportTask(NamedTuple):
    """Byte ranges for one worker, and facts known without reading them.

    `width_ms` is that of buckets of time, `delays_ms` by level. `delivered` has, by store and
    level, the queue offset of the next delayed message to deliver; None where it is not known.
    """

    splits: tuple[SplitTask, ...]
    width_ms: int
    now_ms: int
    delays_ms: Mapping[int, int]
    delivered: dict[str, dict[int, int] | None]
    halves: tuple[tuple[SplitTask, ...], ReadOptions] | None = None


class ReportPlan(NamedTuple):
    """CommitLog files by store, missing ones included; tasks, and what all have in common."""

    place: Path
    stores: list[tuple[StorePlace, list[Segment]]]
    tasks: list[ReportTask]
    common: ReportTask


def count_task(task: ReportTask) -> Iterator[Any]:
    """Yield the groups of a task, as rows of `SCHEMA`."""
    sketch = new_sketch()
    if task.halves is not None:
        yield from _open_halves(task, *task.halves)
    for broker, splits in groupby(task.splits, lambda split: split.store.broker_name):
        held: list[tuple[Numbers, Any]] = []
        held_bytes = 0
        for split in splits:
            seen = Counter[str]()
            of_file: dict[str, Any] = {"brokerName": broker, "name": split.segment.path}
            for columns, found in read_split(split, seen):
                if rows := _damage(split, columns, found, seen):
                    yield pa.RecordBatch.from_pylist([of_file | row for row in rows], schema=ROWS)
                if not len(columns):
                    continue
                # Turned while the batch is in the processor's cache; its buffer is not kept.
                numbers = np.ascontiguousarray(columns.cols[:, _PICKED].T)
                held.append((numbers, to_arrow(columns, ["topic", "tags", "keys"])))
                held_bytes += sum(one.nbytes for one in held[-1])
                if held_bytes >= BLOCK_BYTES:
                    yield from _groups(task, broker, held, sketch)
                    held, held_bytes = [], 0
            row = of_file | {name: seen[key] for name, key in _OF_FILE.items()}
            row |= {"part": "files", "number": split.segment.base}
            yield pa.RecordBatch.from_pylist([row], schema=ROWS)
        if held:
            yield from _groups(task, broker, held, sketch)
    yield from _sketch_rows(sketch)


def join_sketches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield rows of `SCHEMA` as they come, but those of sketches as one at the end."""
    whole = new_sketch()
    for rows in batches:
        add_packed(whole, rows)
        yield rows.filter(rows["sketch"].is_null())
    yield from _sketch_rows(whole)


def _sketch_rows(sketch: Any) -> Iterator[Any]:
    if not sketch.is_empty():
        row = {"part": "keys", "sketch": sketch.serialize()}
        yield pa.RecordBatch.from_pylist([row], schema=ROWS)


def _damage(
    split: SplitTask, columns: RecordColumns, lost: list[Damage], seen: Counter[str]
) -> list[dict[str, Any]]:
    """Return a row for each damaged range of a batch; add to what is `seen` of the file."""
    base = split.segment.base
    ends = [seen["end"], *(min(one.range.stop - base, split.segment.file_size) for one in lost)]
    if len(columns):
        ends.append(int(columns.physical_offset[-1] + columns.size[-1]) - base)
    seen["end"] = max(ends)
    seen.update(messages=len(columns), bytes=int(columns.size.sum()), lostRanges=len(lost))
    seen.update(lostBytes=sum(one.range.size for one in lost))
    return [
        {
            "part": "damage",
            "number": one.range.start,
            "least": one.range.start - base,
            "topic": one.reason.value,
            "detail": one.evidence,
            "damagedBytes": one.range.size,
        }
        for one in lost
    ]


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


def grouped(rows: Any) -> Any:
    """Return one row for each combination of the keys among a table's columns."""
    keys = [name for name in KEYS if name in rows.column_names]
    measures = [name for name in MEASURES if name in rows.column_names]
    joins = [(name, MEASURES[name]) for name in measures]
    groups = rows.group_by(keys, use_threads=False).aggregate(joins)
    names = [*keys, *(f"{name}_{MEASURES[name]}" for name in measures)]
    return groups.select(names).rename_columns([*keys, *measures])


def _groups(
    task: ReportTask, broker: str, held: list[tuple[Numbers, Any]], sketch: Any
) -> Iterator[Any]:
    """Yield the groups of some records of a store, by their numbers and names; of keys add them."""
    size, queue_id, queue_offset, sys_flag, born_ms, store_ms, times, body_size, level = (
        np.concatenate([numbers for numbers, _ in held], axis=1)
    )
    texts = pa.Table.from_batches([names for _, names in held]).combine_chunks()
    topic = texts["topic"].chunk(0).dictionary_encode()
    numbers, topics = topic.indices.to_numpy(), topic.dictionary.to_pylist()
    is_scheduled = np.array([purpose_of(name) == "delay" for name in topics])[numbers]
    is_retry = np.array([purpose_of(name) in ("retry", "dead letter") for name in topics])[numbers]
    # Times before 1970 or after the year 9999 are no times of messages.
    is_timed = (store_ms >= 0) & (store_ms <= LAST_TIMESTAMP_MS)
    is_measured = is_timed & (born_ms > 0) & (born_ms <= LAST_TIMESTAMP_MS)
    stored = pa.array(store_ms, mask=~is_timed)
    counted = {"topic": topic, "bytes": size}
    stored_then = {"firstMs": stored, "lastMs": stored}
    offsets = {"number": queue_id, "least": queue_offset, "most": queue_offset}
    queues = counted | {"bodyBytes": body_size} | offsets | stored_then
    yield from _count("queues", queues, broker=broker)
    notes = Counter[str]()
    tags, is_kept = _encoded("tags", texts["tags"].chunk(0), notes)
    yield from _count("tags", counted | {"name": tags}, is_kept)
    lists = pc.split_pattern(texts["keys"].chunk(0), " ")
    names, key_topics = pc.list_flatten(lists), topic.take(pc.list_parent_indices(lists))
    is_key = pc.not_equal(names, "")
    keys, is_kept = _encoded("keys", names.filter(is_key), notes)
    for groups in _count("keys", {"topic": key_topics.filter(is_key), "name": keys}, is_kept):
        add_counts(sketch, groups)
    width = task.width_ms
    yield from _count("traffic", counted | {"number": store_ms // width * width}, is_timed)
    yield from _count("sizes", {"topic": topic} | _measured(body_size))
    elapsed = np.where(is_measured, store_ms - born_ms, 0)
    ways = np.zeros(len(size), dtype=np.int32)
    ways[(sys_flag & TRANSACTION_MASK) == TRANSACTION_COMMIT] = WAYS.index("committed")
    ways[(level > 0) & ~is_scheduled] = WAYS.index("delayed")
    ways[times > 0] = WAYS.index("retried")
    way = {"topic": topic, "name": pa.DictionaryArray.from_arrays(ways, list(WAYS))}
    yield from _count("latencies", way | _measured(elapsed), is_measured)
    given_back = {"number": np.clip(times, 0, RECONSUME_TIMES_MAX)}
    yield from _count("retries", counted | given_back | stored_then, is_retry)
    if is_scheduled.any():
        chosen = np.stack([queue_id + 1, queue_offset, store_ms, size])[:, is_scheduled]
        waiting = _waiting(task, task.delivered[broker], chosen)
        yield from _count("delays", waiting, broker=broker)
    notes.update(keys=len(keys), withoutStoreTime=len(size) - int(is_timed.sum()))
    rows = [{"part": "notes", "name": name, "messages": count} for name, count in notes.items()]
    yield pa.RecordBatch.from_pylist(rows, schema=ROWS)


def _count(
    part: str, columns: Mapping[str, Any], chosen: Chosen | None = None, broker: str | None = None
) -> Iterator[Any]:
    """Group records, all or those that are chosen."""
    count = len(next(iter(columns.values())))
    if not count or (chosen is not None and not chosen.any()):
        return
    rows = pa.table({**columns, "messages": np.ones(count, dtype=np.int64)})
    groups = grouped(rows if chosen is None or chosen.all() else rows.filter(pa.array(chosen)))
    given = dict(zip(groups.column_names, groups.columns, strict=True))
    same = {"part": part, "brokerName": broker}
    rest = {name: pa.repeat(same.get(name), len(groups)) for name in ROWS.names}
    yield from pa.table(rest | given).select(ROWS.names).cast(ROWS).to_batches()


def _encoded(part: str, names: Any, notes: Counter[str]) -> tuple[Any, Chosen]:
    """Return tags or keys with a number each, and which of them are counted.

    All are, or of too many those more frequent than the first one too many. A name that comes
    again is then counted too low by no more, so the sum of that is the error.
    """
    sizes = pc.binary_length(names)
    if (pc.max(sizes).as_py() or 0) > NAME_MAX_BYTES:
        is_long = pc.fill_null(pc.greater(sizes, NAME_MAX_BYTES), fill_value=False)
        begun = pc.utf8_slice_codeunits(names, 0, NAME_MAX_BYTES // 4)
        names = pc.if_else(is_long, pc.binary_join_element_wise(begun, "…", ""), names)
        notes["namesCut"] += pc.sum(is_long).as_py()
    encoded = names.dictionary_encode(null_encoding="encode")
    numbers = encoded.indices.to_numpy()
    messages = np.bincount(numbers)
    most = 0
    if len(messages) > NAME_CAPACITY:
        place = len(messages) - NAME_CAPACITY - 1
        most = int(np.partition(messages, place)[place])
        notes[f"{part}MissedAtMost"] = most
    return encoded, (messages > most)[numbers]


def _waiting(task: ReportTask, delivered: dict[int, int] | None, rows: Numbers) -> dict[str, Any]:
    """Return the groups of delayed messages."""
    level, queue_offset, store_ms, size = rows
    present, place = np.unique(level, return_inverse=True)
    delays = [task.delays_ms.get(int(one), UNKNOWN_LEVEL_DELAY_MS) for one in present]
    delay_ms = np.minimum(np.array(delays, dtype=np.int64), LAST_TIMESTAMP_MS)[place]
    stored = np.clip(store_ms, 0, LAST_TIMESTAMP_MS)
    due = np.minimum(stored + delay_ms, LAST_TIMESTAMP_MS)
    is_due = due <= task.now_ms
    is_waiting = ~is_due
    if delivered is not None:
        below = np.array([delivered.get(int(one), 0) for one in present], dtype=np.int64)
        is_waiting = queue_offset >= below[place]
    waiting_due = pa.array(due, mask=~is_waiting)
    return {
        "number": level,
        "bytes": size,
        "least": delay_ms,
        "waiting": is_waiting.astype(np.int64),
        "overdue": (is_waiting & is_due).astype(np.int64),
        "firstMs": waiting_due,
        "lastMs": waiting_due,
    }


def _open_halves(
    task: ReportTask, halves: tuple[SplitTask, ...], options: ReadOptions
) -> Iterator[Any]:
    """Yield the open half messages of a store, by topic, producers and age."""
    for rows in waiting_tables.transactions(halves, options, HALVES):
        born = rows["bornTimestamp"].cast(pa.int64()).fill_null(0).to_numpy()
        place = np.searchsorted(AGES_MS, np.maximum(task.now_ms - born, 0), side="right") - 1
        names = {"topic": rows["realTopic"], "name": rows["producerGroup"]}
        kept = {name: values.fill_null("") for name, values in names.items()}
        known = {"number": AGES_MS[place], "bytes": rows["size"], "most": rows["checkTimes"]}
        times = {"firstMs": born, "lastMs": born}
        yield from _count("halves", kept | known | times, broker=halves[0].store.broker_name)


def _measured(values: Numbers) -> dict[str, Any]:
    return {"number": bucket_lows(values), "least": values, "most": values}
