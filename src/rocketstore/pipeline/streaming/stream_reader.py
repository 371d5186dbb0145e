"""``readStream``: what Spark calls, and feeds that are followed, in batches between two places.

A *feed* is the log of one store (`LiveLog`) or one of its queues (`LiveQueue`). A batch is what
lies between two places of each feed, and each place is checked before it is used: the record
before it must be the one that was there when the place was saved.

Law: no loss is silent, and no batch is quietly smaller. ``failOnDataLoss`` decides between an error
and a warning that says what is gone and where the stream goes on, which is never before its place:
that would repeat what a sink has.
"""

from __future__ import annotations

import time
from functools import cached_property
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import datasource as spark

from rocketstore.errors import ConfigError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.file_name import BATCH_CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.pipeline.columns import check_schema
from rocketstore.pipeline.environment import plain_errors
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.log_read import Losses, damage_of, passed_over, report_skipped, scanned
from rocketstore.pipeline.options import EARLIEST, LATEST, ReadOptions
from rocketstore.pipeline.planning import bytes_per_task, grouped
from rocketstore.pipeline.projection import distinct, record_batches, wanted_records
from rocketstore.pipeline.queues import check_brokers, chosen_queues, refuse_unknown, unknown_topics
from rocketstore.pipeline.stores import StorePlace, find_stores
from rocketstore.pipeline.streaming import stream_options
from rocketstore.pipeline.streaming.live_feeds import LiveLog, LiveQueue, Move
from rocketstore.pipeline.streaming.stream_options import UNLIMITED, Place, from_json, to_json
from rocketstore.rules.expectation import extra_entries
from rocketstore.scan.columns import CallsFor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.streaming.live_feeds import Moves, Numbers, QueueSpan, StreamTask
    from rocketstore.pipeline.streaming.stream_options import Key, Places, StreamOptions
    from rocketstore.scan.columns import RecordColumns

    Feed: TypeAlias = LiveLog | LiveQueue

Answer = TypeVar("Answer")

_log = get_logger(__name__)


def answered(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Ask again when retention deletes a file after it was listed; that answer says the loss."""

    @plain_errors()
    def asked(*args: Any) -> Answer:
        try:
            return method(*args)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        return method(*args)

    return asked


class StoreStreamReader(DataSourceStreamReader, spark.SupportsTriggerAvailableNow):
    """Reads a store as a stream; see ``docs/guide/spark-streaming.md``.

    `target` is where a run with ``availableNow`` ends, `reached` where the batch at hand does, and
    `ends` is where feeds ended lately.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        # Not parsed yet: where making a reader fails, PySpark 4.3 reports a failure of its own.
        self.given = dict(given)
        self.row_schema = schema
        self.target: Places | None = None
        self.reached: Places | None = None
        self.ends: Places = {}
        self.clock = time.monotonic
        self._last_trigger_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "row_schema": self.row_schema}

    @cached_property
    def stream_options(self) -> StreamOptions:
        """What the stream was asked for."""
        options = stream_options.parse_stream_options(self.given)
        check_schema(options.read.columns_of, options.read.columns, self.row_schema)
        return options

    @cached_property
    def losses(self) -> Losses:
        """What was lost as far as the driver has seen."""
        return Losses(self.stream_options.read)

    @property
    def feeds(self) -> type[Feed]:
        """What is followed."""
        return LiveQueue if self.stream_options.read.has_topic_choice else LiveLog

    @answered
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a query that was never run begins."""
        options, stores = self.stream_options, self._stores()
        check_brokers("startingOffsets", options.starts, stores)
        check_brokers("startingOffsetsByTimestamp", options.start_times_ms, stores)
        places_of = list(stores.values())
        refuse_unknown(places_of, unknown_topics(places_of, options.read))
        places = {key: self._first_place(feed) for key, feed in self._found().items()}
        return to_json(self.feeds.kind, places) | {"initial": True}

    @plain_errors()
    def getDefaultReadLimit(self) -> spark.ReadLimit:  # noqa: N802
        """Return what Spark hands to ``latestOffset`` unless it wants all there is."""
        limits = self.stream_options.limits
        # Spark only hands it back, so its number says nothing: limits are looked up in the options.
        is_all = limits == UNLIMITED
        return spark.ReadAllAvailable() if is_all else spark.ReadMaxRows(limits.max_rows or 1)

    @answered
    def latestOffset(self, start: dict[str, Any], limit: spark.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch; `start` itself where there is nothing to do."""
        is_all, target = isinstance(limit, spark.ReadAllAvailable), self.target
        limits = UNLIMITED if is_all else self.stream_options.limits
        is_cut = limits[:2] != UNLIMITED[:2]
        begun, is_initial = from_json(start, self.feeds.kind), "initial" in start
        found = self._found(begun, self.ends if is_cut else {})
        for key in begun.keys() - found.keys():
            if not self._is_kept(key, begun[key]):
                self._report_absent("the checkpoint has", key, begun[key])
        settled = {key: place._replace(since=place.offset) for key, place in begun.items()}
        places, moves = dict(settled), []
        self.reached = places
        for key, feed in found.items():
            if target is not None and key not in target and key not in begun:
                continue
            begin = places[key] = self._begin(feed, begun.get(key))
            goal = self.ends[key] = feed.end
            if target is not None:
                goal = min(goal, target.get(key, begin), key=lambda place: place.offset)
            if goal.offset > begin.offset:
                moves.append(Move(feed, begin, goal))
        if target is None and self._is_too_early(moves, limits.min_rows) and not is_initial:
            return start
        for of_store in _by_store(moves):
            goals = {feed.key: goal for feed, _, goal in of_store}
            for key, place in (self.feeds.cut(of_store, limits) if is_cut else goals).items():
                places[key] = place._replace(since=places[key].offset)
        return to_json(self.feeds.kind, places) if is_initial or places != settled else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where feeds ended when ``latestOffset`` looked; Spark asks right after it.

        ``lag`` is how much comes after the batch at hand: bytes of a log, messages of a queue.
        """
        if self.reached is None:
            return None
        shown = {
            key: {"offset": end.offset, "lag": max(0, end.offset - self.reached[key].offset)}
            for key, end in self.ends.items()
            if key in self.reached
        }
        of = str(self.stream_options)
        kind, version = self.feeds.kind, stream_options.VERSION
        return {"version": version, "of": of, kind: stream_options.nested(shown)}

    @answered
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now; later messages are for a later run."""
        self.target = {key: feed.end for key, feed in self._found().items()}

    @answered
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch between two offsets, each a row of byte ranges."""
        found, read, moves = self._found(), self.stream_options.read, []
        begun = from_json(start, self.feeds.kind)
        for key, place in from_json(end, self.feeds.kind).items():
            begin = begun.get(key)
            if begin is None or begin.offset != place.since:
                begin = Place(place.offset if place.since is None else place.since)
            if begin.offset >= place.offset:
                continue
            if key in found:
                moves.append(self._checked_move(found[key], begin, place))
            else:
                self._report_absent("the batch ends with", key, place)
        stores = _by_store([move for move in moves if move.begin.offset < move.goal.offset])
        tasks = [one for moves in stores for one in self.feeds.tasks(moves, read, self.losses)]
        step = bytes_per_task(sum(task.split.byte_count for task in tasks), read)
        rows = grouped(tasks, step, lambda task: task.split.byte_count)
        return [InputPartition(row) for row in rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; of no tasks Spark makes one without a value."""
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        with plain_errors():
            yield from read_tasks(partition.value or (), self.stream_options.row_options, schema)

    def _stores(self) -> dict[str, StorePlace]:
        """Return the stores by name, which must be different."""
        stores: dict[str, StorePlace] = {}
        for store in find_stores(self.stream_options.read):
            other = stores.setdefault(store.broker_name, store)
            if other is not store:
                name, places = store.broker_name, f"{other.location} and {store.location}"
                what = f"two stores are called {name}: {places}"
                hint = "a stream keeps its offsets by name: give each its own by brokerName"
                raise ConfigError(what, key="brokerName", hint=hint)
        return stores

    def _found(self, begins: Places | None = None, ends: Places | None = None) -> dict[Key, Feed]:
        """Return the feeds there are; of logs it may be known where they begin and ended."""
        begins, ends, options = begins or {}, ends or {}, self.stream_options.read
        stores = {(name,): store for name, store in self._stores().items()}
        logs = [LiveLog(store, begins.get(key), ends.get(key)) for key, store in stores.items()]
        # A light queue points at records of other topics, which are rows under their own only.
        queues = (
            LiveQueue(log, key)
            for log in logs
            for key in chosen_queues(log.store, options, CONSUME_QUEUE_DIRECTORY)
            if not key.topic.startswith(LMQ_PREFIX)
        )
        if self.feeds is LiveLog:
            return {feed.key: feed for feed in logs}
        for log in logs:
            for key in chosen_queues(log.store, options, BATCH_CONSUME_QUEUE_DIRECTORY):
                raise ConfigError(
                    f"a stream does not follow batch queues, which topic {key.topic} has",
                    key="subscribe",
                    value=key.topic,
                    hint='stream all topics, that is the log, and filter: .where("topic = …")',
                )
        return {feed.key: feed for feed in queues}

    def _is_kept(self, key: Key, place: Place) -> bool:
        """Whether a queue's records are there: then only its files are being made again."""
        store = self._stores().get(key[0])
        if store is None or place.record is None:
            return self.feeds is LiveQueue and place.offset == 0
        return LiveLog(store).cut_before(place) is None

    def _report_absent(self, whose: str, key: Key, place: Place) -> None:
        name = f"queue {key[1]}/{key[2]} of {key[0]}" if key[1:] else f"a store {key[0]!r}"
        what = f"{whose} {name} at {self.feeds.unit} {place.offset}, expected its files below "
        what += f"{', '.join(self.stream_options.read.locations)}, found none"
        self.losses.report(what, "it is left out as long as it is not there")

    def _first_place(self, feed: Feed) -> Place:
        options, broker = self.stream_options, feed.store.broker_name
        since_ms = stream_options.named_place(options.start_times_ms, broker, feed.queue)
        if since_ms is not None:
            offset = feed.first_since(since_ms)
            if offset is None and options.must_have_time:
                hint = 'to begin at its end: startingOffsetsByTimestampStrategy "latest"'
                raise StoreError(f"{feed}: nothing was stored at {since_ms} ms or later", hint=hint)
            return feed.end if offset is None else feed.place(offset)
        asked = stream_options.named_place(options.starts, broker, feed.queue)
        if asked == EARLIEST:
            return feed.place(feed.start)
        if asked is None or asked == LATEST:
            return feed.end
        return feed.place(self._checked(feed, Place(asked), "startingOffsets asks for"))

    def _begin(self, feed: Feed, saved: Place | None) -> Place:
        """Return where the next batch of a feed begins."""
        begin = feed.start if saved is None else self._checked(feed, saved, "the checkpoint has")
        place = saved if saved is not None and saved.offset == begin else feed.place(begin)
        return place._replace(since=begin)

    def _checked(self, feed: Feed, place: Place, whose: str) -> int:
        """Return a place's offset if it holds, else where the stream goes on."""
        problem = feed.problem(place)
        if problem is None:
            return place.offset
        resumed = feed.resume(place)
        what = f"{feed}: {whose} {feed.unit} {place.offset}: {problem}"
        self.losses.report(what, f"the stream goes on at {resumed}")
        return resumed

    def _checked_move(self, feed: Feed, begin: Place, end: Place) -> Move:
        """Return what of a batch is there; without evidence its begin may be an older end."""
        start = begin.offset
        if begin.record is not None or start < feed.start:
            start = self._checked(feed, begin, "the checkpoint has")
        problem = feed.problem(end) if end.offset > start else None
        if problem is None:
            return Move(feed, Place(start), end)
        stop = min(end.offset, feed.end.offset)
        what = f"{feed}: the batch ends at {feed.unit} {end.offset}: {problem}"
        self.losses.report(what, f"the batch has what is before {stop}")
        return Move(feed, Place(start), Place(stop))

    def _is_too_early(self, moves: Moves, least: int | None) -> bool:
        """Whether less is there than a batch is to have, and the last one is not long ago."""
        now_s = self.clock()
        last_s, self._last_trigger_s = self._last_trigger_s, now_s
        if least is None or last_s is None or now_s - last_s >= self.stream_options.longest_wait_s:
            return False
        for move in moves:
            found = move.feed.records(move.begin.offset, move.goal.offset)
            least -= sum(1 for _ in islice(found, least))
            if least <= 0:
                return False
        self._last_trigger_s = last_s
        return True


def _by_store(moves: Moves) -> list[Moves]:
    return [list(of_store) for _, of_store in groupby(moves, lambda move: move.feed.key[0])]


def read_tasks(
    tasks: Sequence[StreamTask], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, of which `options` ask what is asked of each record."""
    for task in tasks:
        broker = task.split.store.broker_name
        for columns in _records(task, options):
            wanted = wanted_records(columns, options, broker)
            yield from record_batches(wanted, schema, broker, decompress=options.decompress_body)


def _records(task: StreamTask, options: ReadOptions) -> Iterator[RecordColumns]:
    """Yield the records of a byte range and account for everything in it."""
    split, segment, losses = task.split, task.split.segment, Losses(options)
    spans = None if task.spans is None else _SpanTable(task.spans)
    damaged: list[int] = []

    def lose(what: str) -> None:
        where = f"{segment.path} from physical offset {segment.base + split.start} on"
        losses.report(f"{where}: {what}", "the batch has what is there")

    try:
        with opened(split.store.location, segment.path) as file:
            # A queue's batch may begin in the middle of a damaged range, a log's never does.
            for batch in scanned(split, file, whole_damage=spans is None):
                damaged += [passed_over(split, one, options) for one, _ in damage_of(split, batch)]
                zeros_at, stop = batch.unwritten_at, segment.base + split.stop
                if segment.is_last and zeros_at is not None and zeros_at < stop:
                    lose(f"expected records up to {stop}, found zeros at {zeros_at}")
                wanted = batch.columns if spans is None else spans.of(batch.columns)
                if len(wanted):
                    yield wanted
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        lose("the file is gone")
    report_skipped(split, damaged)
    if spans is not None and task.expected is not None:
        found = spans.count(task.expected, segment.path)
        # What is not there because of damage, or was said to be lost, is said already.
        if found < task.expected and not damaged and not losses.accepted:
            lose(f"expected {task.expected} records of the batch's queues, found {found}")


class _SpanTable:
    """The wanted queues, looked up for all records of a batch at once, and what was found."""

    def __init__(self, spans: Sequence[QueueSpan]) -> None:
        self.topics = {topic: code for code, topic in enumerate({one.topic for one in spans})}
        table = np.array(sorted((self.topics[one.topic], *one[1:]) for one in spans), np.int64)
        self.keys = table[:, 0] << 32 | table[:, 1]
        self.bounds = table[:, 2:]
        # A number of its own for each offset of the batch, over all queues.
        sizes = table[:, 3] - table[:, 2]
        self.firsts = np.cumsum(sizes) - sizes - table[:, 2]
        self.found: list[Numbers] = [np.empty(0, dtype=np.int64)]

    def of(self, columns: RecordColumns) -> RecordColumns:
        """Return the records that belong to a wanted queue's range."""
        texts, numbers = distinct(columns, "topic")
        codes = [self.topics.get(text, -1) for text in texts]
        topics: Numbers = np.array([*codes, -1], dtype=np.int64)[numbers]
        keys = topics << 32 | (columns.queue_id & 0xFFFFFFFF)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        start, stop, low, high = self.bounds[at].T
        offset, physical = columns.queue_offset, columns.physical_offset
        mask = (topics >= 0) & (self.keys[at] == keys) & (offset >= start) & (offset < stop)
        mask &= (physical >= low) & (physical <= high) & columns.call_for(CallsFor.ENTRY)
        self.found += [(self.firsts[at] + offset)[mask], self._guests(columns)]
        return columns.taken(mask)

    def _guests(self, columns: RecordColumns) -> Numbers:
        """Return the numbers of records that stand in wanted queues as in an extra one.

        They are rows of their own queue only, but no entry of the wanted one lacks its record.
        """
        found = []
        for row, topic, queue_id, offset in extra_entries(columns):
            key = self.topics.get(topic, -1) << 32 | queue_id
            at = int(np.searchsorted(self.keys, key))
            if at < len(self.keys) and self.keys[at] == key:
                start, stop, low, high = self.bounds[at].tolist()
                if start <= offset < stop and low <= columns.physical_offset[row] <= high:
                    found.append(int(self.firsts[at]) + offset)
        return np.array(found, dtype=np.int64)

    def count(self, expected: int, path: str) -> int:
        """Return how many queue offsets the records that were found have."""
        found = np.concatenate(self.found)
        count = len(np.unique(found))
        surplus = len(found) - min(count, expected)
        if surplus:
            hint = "rows of the batch as well; rocketstore pipeline audit lists each queue-conflict"
            _log.warning("stream.offset_stated_twice", records=surplus, path=path, hint=hint)
        return count
