"""Count the records of a task, in blocks of some ten thousand, with numpy and Arrow.

Law: what is kept is bounded by settings, whatever the log holds: blocks of `BLOCK_RECORDS` numbers,
names cut at `NAME_MAX_BYTES`, `NAME_CAPACITY` tags and keys, `TIME_ROWS` buckets, `EXACT_VALUES` of
a topic. Only the groups that the store itself must hold in memory, its queues and topics, are as
many as there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocketstore.pipeline.jobs.report.buckets import MINUTE_MS, SECOND_MS, bucket_numbers
from rocketstore.pipeline.jobs.report.groups import (
    SHAPES,
    ExactGroups,
    FrequentGroups,
    Groups,
    TimeGroups,
    grouped,
    pa,
    pc,
)
from rocketstore.pipeline.jobs.report.topics import (
    DEAD_LETTER_PREFIX,
    DELAY_TOPIC,
    RETRY_PREFIX,
)
from rocketstore.scan.columns import Column

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns

    Numbers = npt.NDArray[np.int64]

BLOCK_RECORDS: Final = 65_536
"""Records that are grouped at a time: grouping costs about 0.3 ms before the first row."""

NAME_CAPACITY: Final = 16_384
"""Tags of topics, and keys of topics, that are counted exactly; about 1 MB for a task to send."""

NAME_MAX_BYTES: Final = 256
"""Longer tags and keys are counted by their beginning: a key may be 32 KB long."""

TIME_ROWS: Final = 50_000
"""Most rows of traffic by time (a month of minutes), and by time and topic (a day of 30 topics)."""

SECOND_ROWS: Final = 4_000
"""Most rows of traffic by the second, which only a short store's chart is drawn from."""

EXACT_VALUES: Final = 1_024
"""Most different sizes of bodies, and latencies, of a topic whose percentiles are exact."""

RECONSUME_TIMES_MAX: Final = 100
"""More are counted as so many: a group gives up after 16 by default."""

LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999; times behind it or before 1970 are no times of messages."""

UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""4.9's delay of a level that is not in the table (spec F5)."""

DIRECT: Final = "direct"
DELAYED: Final = "delayed"
RETRIED: Final = "retried"
COMMITTED: Final = "committed"
WAYS: Final = (DIRECT, DELAYED, RETRIED, COMMITTED)
"""How a message came to where it is stored. All but the first carry the born time of an earlier
record, so the time from born to stored is not how long storing took."""

_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_COMMIT: Final = 0x8
_PICKED: Final = (
    Column.SIZE,
    Column.QUEUE_ID,
    Column.QUEUE_OFFSET,
    Column.SYS_FLAG,
    Column.BORN_TIMESTAMP,
    Column.STORE_TIMESTAMP,
    Column.RECONSUME_TIMES,
    Column.BODY_SIZE,
    Column.DELAY_LEVEL,
)


class DelayFacts(NamedTuple):
    """What is known about delayed messages without reading them.

    Attributes
    ----------
    delays_ms
        Delay of each level, from 1.
    delivered_below
        By level: the queue offset of the next message to deliver, of ``delayOffset.json``; levels
        that it does not name have none.
    has_offsets
        Whether that file could be read.
    now_ms
        When the report was asked for.
    """

    delays_ms: dict[int, int]
    delivered_below: dict[int, int]
    has_offsets: bool
    now_ms: int


class Tally:
    """The counts of one store's records."""

    def __init__(self, broker_name: str, delays: DelayFacts) -> None:
        self.broker_name = broker_name
        self.delays = delays
        self.groups: dict[str, Groups] = {name: Groups(name) for name in SHAPES}
        self.groups["tags"] = FrequentGroups("tags", NAME_CAPACITY)
        self.groups["keys"] = self.frequent_keys = FrequentGroups("keys", NAME_CAPACITY)
        self.groups["seconds"] = TimeGroups("seconds", SECOND_MS, SECOND_ROWS)
        for name in ("traffic", "minutes"):
            self.groups[name] = TimeGroups(name, MINUTE_MS, TIME_ROWS)
        for name in ("exactSizes", "exactLatencies"):
            self.groups[name] = ExactGroups(name, EXACT_VALUES)
        self.damage: list[tuple[Any, ...]] = []
        self.notes = dict.fromkeys(("keys", "timeless", "clockless", "cutNames"), 0)
        self._numbers: list[Numbers] = []
        self._topics: list[Any] = []
        self._tags: list[Any] = []
        self._keys: list[Any] = []
        self._record_count = 0

    def add(self, columns: RecordColumns) -> None:
        """Count records; nothing of their buffer is kept."""
        count = len(columns)
        if not count:
            return
        # Turned while the batch is in the processor's cache.
        self._numbers.append(np.ascontiguousarray(columns.cols[:, _PICKED].T))
        self._topics.append(columns.to_arrow(["topic"]).column(0))
        self._tags.append(self._names(columns, "tags", columns.tags_size))
        self._keys.append(self._names(columns, "keys", columns.keys_size))
        self._record_count += count
        if self._record_count >= BLOCK_RECORDS:
            self.flush()

    def add_groups(self, name: str, rows: dict[str, Any]) -> None:
        """Add groups that were counted elsewhere."""
        self.groups[name].add(pa.table({"brokerName": _constant(self.broker_name, rows), **rows}))

    def flush(self) -> None:
        """Group the records of the block."""
        if not self._record_count:
            return
        block = _Block(self._numbers, self._topics, self._tags)
        self._count_queues(block)
        self._count_times(block)
        self._count_sizes(block)
        self._count_latencies(block)
        self._count_delays(block)
        self._count_retries(block)
        self._count_keys(block, pa.chunked_array(self._keys).combine_chunks())
        self._numbers, self._topics, self._tags, self._keys = [], [], [], []
        self._record_count = 0

    def _names(self, columns: RecordColumns, name: str, sizes: Numbers) -> Any:
        """Return tags or keys, null where absent, as long as names may be."""
        if not sizes.any():
            return pa.nulls(len(columns), pa.string())
        names = columns.to_arrow([name]).column(0)
        if name == "tags" and int(sizes.max()) > NAME_MAX_BYTES:
            names = self._cut(names)
        return names

    def _cut(self, names: Any) -> Any:
        is_long = pc.greater(pc.binary_length(names), NAME_MAX_BYTES)
        cut = pc.utf8_slice_codeunits(names, 0, NAME_MAX_BYTES // 4)
        self.notes["cutNames"] += pc.sum(is_long).as_py() or 0
        marked = pc.binary_join_element_wise(cut, "…", "")
        return pc.if_else(is_long.fill_null(fill_value=False), marked, names)

    # --- tables ---------------------------------------------------------------------------------

    def _count(self, name: str, block: _Block, rows: dict[str, Any], chosen: Any = None) -> Any:
        """Group records by their topic's number and return the groups with its name."""
        table = pa.table(rows | {"topic": block.topic_numbers})
        if chosen is not None:
            table = table.filter(pa.array(chosen))
        shape = SHAPES[name]
        # One store's records: its name would be hashed with each.
        shape = shape._replace(keys=tuple(key for key in shape.keys if key != "brokerName"))
        groups = grouped(table, shape)
        if "brokerName" in SHAPES[name].keys:
            groups = groups.add_column(0, "brokerName", [_constant(self.broker_name, groups)])
        if "topic" in shape.keys:
            groups = _with_names(groups, "topic", block.topics)
        return groups

    def _count_queues(self, block: _Block) -> None:
        traffic = {"messages": block.ones, "bytes": block.size}
        offsets = pa.array(block.queue_offset)
        rows = {
            "queueId": block.queue_id,
            "bodyBytes": block.body_size,
            "minQueueOffset": offsets,
            "maxQueueOffset": offsets,
            "firstStoreMs": block.known_store_ms,
            "lastStoreMs": block.known_store_ms,
        }
        self.groups["queues"].add(self._count("queues", block, rows | traffic))
        tags = self._count("tags", block, {"tags": block.tags.indices, **traffic})
        self.groups["tags"].add(_with_names(tags, "tags", block.tags.dictionary))

    def _count_times(self, block: _Block) -> None:
        self.notes["timeless"] += len(block.ones) - int(block.has_store_time.sum())
        seconds, minutes = self.groups["seconds"], self.groups["minutes"]
        assert isinstance(seconds, TimeGroups)
        assert isinstance(minutes, TimeGroups)
        has_seconds = seconds.width_ms < MINUTE_MS
        width = seconds.width_ms if has_seconds else minutes.width_ms
        starts = block.store_ms // width * width
        rows = {"startMs": starts, "messages": block.ones, "bytes": block.size}
        groups = self._count("traffic", block, rows, block.has_store_time)
        self.groups["traffic"].add(groups)
        minutes.add(groups.drop_columns(["topic"]))
        if has_seconds:
            seconds.add(groups)

    def _count_sizes(self, block: _Block) -> None:
        rows = {
            "bucket": bucket_numbers(block.body_size),
            "messages": block.ones,
            "leastBytes": block.body_size,
            "mostBytes": block.body_size,
        }
        self.groups["sizes"].add(self._count("sizes", block, rows))
        exact = {"value": block.body_size, "messages": block.ones}
        self.groups["exactSizes"].add(self._count("exactSizes", block, exact))

    def _count_latencies(self, block: _Block) -> None:
        known = block.has_store_time & block.has_born_time
        self.notes["clockless"] += len(known) - int(known.sum())
        elapsed = np.where(known, block.store_ms - block.born_ms, 0)
        ways = block.ways()
        rows = {
            "way": pa.array(WAYS).take(pa.array(ways)),
            "bucket": bucket_numbers(elapsed),
            "messages": block.ones,
            "leastMs": elapsed,
            "mostMs": elapsed,
        }
        self.groups["latencies"].add(self._count("latencies", block, rows, known))
        exact = {"value": elapsed, "messages": block.ones}
        is_direct = known & (ways == WAYS.index(DIRECT))
        self.groups["exactLatencies"].add(self._count("exactLatencies", block, exact, is_direct))

    def _count_delays(self, block: _Block) -> None:
        rows = block.rows_of(lambda topic: topic == DELAY_TOPIC)
        if not len(rows):
            return
        delays = self.delays
        levels = block.queue_id[rows] + 1
        present, places = np.unique(levels, return_inverse=True)
        known = np.array([_delay_ms(delays, int(level)) for level in present], dtype=np.int64)
        stored = np.clip(block.store_ms[rows], 0, LAST_TIMESTAMP_MS)
        due = np.minimum(stored + known[places], LAST_TIMESTAMP_MS)
        if delays.has_offsets:
            below = np.array([delays.delivered_below.get(int(one), 0) for one in present])
            is_waiting = block.queue_offset[rows] >= below[places]
        else:
            is_waiting = due > delays.now_ms
        waiting_due = pa.array(due, mask=~is_waiting)
        table = pa.table(
            {
                "brokerName": _constant(self.broker_name, {"level": levels}),
                "level": levels,
                "messages": block.ones[rows],
                "bytes": block.size[rows],
                "waiting": is_waiting.astype(np.int64),
                "overdue": (is_waiting & (due <= delays.now_ms)).astype(np.int64),
                "firstDueMs": waiting_due,
                "lastDueMs": waiting_due,
            }
        )
        self.groups["delays"].add(grouped(table, SHAPES["delays"]))

    def _count_retries(self, block: _Block) -> None:
        chosen = block.is_of(lambda topic: topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
        if not chosen.any():
            return
        rows = {
            "reconsumeTimes": np.clip(block.reconsume_times, 0, RECONSUME_TIMES_MAX),
            "messages": block.ones,
            "bytes": block.size,
            "firstStoreMs": block.known_store_ms,
            "lastStoreMs": block.known_store_ms,
        }
        self.groups["retries"].add(self._count("retries", block, rows, chosen))

    def _count_keys(self, block: _Block, texts: Any) -> None:
        """Count keys by topic: KEYS split at blanks, empty ones left out."""
        topics = block.topic_numbers
        if texts.null_count == len(texts):
            return
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
        self.notes["keys"] += len(texts)
        encoded = texts.dictionary_encode()
        topic_count = len(block.topics)
        codes = encoded.indices.to_numpy().astype(np.int64) * topic_count + topics.to_numpy()
        present, messages = np.unique(codes, return_counts=True)
        # Of unique keys none is left here, before it costs anything to put names together.
        kept, messages = self.frequent_keys.frequent(messages)
        rows = pa.table(
            {
                "topic": block.topics.take(pa.array(present[kept] % topic_count)),
                "key": encoded.dictionary.take(pa.array(present[kept] // topic_count)),
                "messages": messages,
            }
        )
        self.frequent_keys.add(rows)


class _Block:
    """The numbers and names of some ten thousand records, each column in one piece."""

    def __init__(self, numbers: list[Numbers], topics: list[Any], tags: list[Any]) -> None:
        columns = np.concatenate(numbers, axis=1)
        self.size, self.queue_id, self.queue_offset = columns[0], columns[1], columns[2]
        self.sys_flag, self.born_ms, self.store_ms = columns[3], columns[4], columns[5]
        self.reconsume_times, self.body_size, self.delay_level = columns[6:9]
        self.ones = np.ones(len(self.size), dtype=np.int64)
        encoded = pa.chunked_array(topics).combine_chunks().dictionary_encode()
        self.topics = encoded.dictionary
        self.topic_numbers = encoded.indices
        self.tags = pa.chunked_array(tags).combine_chunks().dictionary_encode()
        self.has_store_time = (self.store_ms >= 0) & (self.store_ms <= LAST_TIMESTAMP_MS)
        self.has_born_time = (self.born_ms > 0) & (self.born_ms <= LAST_TIMESTAMP_MS)
        self.known_store_ms = pa.array(self.store_ms, mask=~self.has_store_time)

    def is_of(self, wanted: Any) -> npt.NDArray[np.bool_]:
        """Return which records' topics are wanted."""
        verdicts = np.array([wanted(topic) for topic in self.topics.to_pylist()], dtype=np.bool_)
        chosen: npt.NDArray[np.bool_] = verdicts[self.topic_numbers.to_numpy()]
        return chosen

    def rows_of(self, wanted: Any) -> npt.NDArray[np.intp]:
        """Return the rows whose topic is wanted."""
        return np.flatnonzero(self.is_of(wanted))

    def ways(self) -> Numbers:
        """Return the number of each record's way."""
        is_waiting = self.is_of(lambda topic: topic == DELAY_TOPIC)
        ways = np.zeros(len(self.size), dtype=np.int64)
        ways[(self.sys_flag & _TRANSACTION_MASK) == _TRANSACTION_COMMIT] = WAYS.index(COMMITTED)
        ways[(self.delay_level > 0) & ~is_waiting] = WAYS.index(DELAYED)
        ways[self.reconsume_times > 0] = WAYS.index(RETRIED)
        return ways


def _constant(text: str, rows: Any) -> Any:
    """Return a text for every row of a table or of a dict of columns."""
    count = len(next(iter(rows.values()))) if isinstance(rows, dict) else rows.num_rows
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _with_names(groups: Any, name: str, names: Any) -> Any:
    """Return groups with the names that a column has the numbers of."""
    at = groups.schema.get_field_index(name)
    return groups.set_column(at, name, names.take(groups[name].combine_chunks()))


def _delay_ms(delays: DelayFacts, level: int) -> int:
    return min(delays.delays_ms.get(level, UNKNOWN_LEVEL_DELAY_MS), LAST_TIMESTAMP_MS)
