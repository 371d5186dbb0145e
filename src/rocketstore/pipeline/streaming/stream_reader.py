"""``readStream``: what Spark calls, and logs that are followed, in batches between two places.

A batch is what lies between two places of each store's log, of which a stream wants all (`LiveLog`)
or the records of some queues (`LiveQueues`). Each place is checked before it is used: the record
before it must be the one that was there when the place was saved.

Law: no loss is silent, and no batch is quietly smaller. ``failOnDataLoss`` decides between an error
and a warning that says what is gone and where the stream goes on, which is never before its place:
that would repeat what a sink has.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import datasource as spark

from rocketstore.errors import ConfigError
from rocketstore.events import get_logger
from rocketstore.format.file_name import BATCH_CONSUME_QUEUE_DIRECTORY
from rocketstore.pipeline import queues
from rocketstore.pipeline.columns import check_schema
from rocketstore.pipeline.environment import plain_errors
from rocketstore.pipeline.log_read import Losses, damage_of, passed_over, report_skipped
from rocketstore.pipeline.option_table import BY_TIME
from rocketstore.pipeline.options import (
    EARLIEST,
    LATEST,
    ReadOptions,
    check_offsets_are_of_chosen_topics,
)
from rocketstore.pipeline.planning import MANY_QUEUES, SplitTask, plan_ranges
from rocketstore.pipeline.projection import record_batches, wanted_records
from rocketstore.pipeline.streaming import stream_options
from rocketstore.pipeline.streaming.live_log import LiveLog, LogListing, Move
from rocketstore.pipeline.streaming.live_queues import LiveQueues
from rocketstore.pipeline.streaming.queue_evidence import QueueEvidence
from rocketstore.pipeline.streaming.stream_options import LOG, QUEUES, UNLIMITED, BatchLimits, Place
from rocketstore.places.files import opened, passing_over_deleted
from rocketstore.places.queue_files import QueueFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rocketstore.pipeline.log_read import QueueOpener
    from rocketstore.pipeline.streaming.stream_options import Places, StreamOptions
    from rocketstore.places.stores import StorePlace
    from rocketstore.scan.columns import RecordColumns

Answer = TypeVar("Answer")

_log = get_logger(__name__)


def answered(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Ask again when retention deleted a file after it was listed; the second answer says so."""

    @plain_errors()
    def asked(*args: Any) -> Answer:
        with passing_over_deleted():
            return method(*args)
        return method(*args)

    return asked


class StoreStreamReader(DataSourceStreamReader, spark.SupportsTriggerAvailableNow):
    """Reads a store as a stream; see ``docs/guide/spark-streaming.md``.

    `target` is where a run with ``availableNow`` ends, `reached` where the batch at hand does, and
    `ends` is where logs ended lately. `before` is what tasks of the batch before were to read.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        # Not parsed yet: where making a reader fails, PySpark 4.3 reports a failure of its own.
        self.given = dict(given)
        self.row_schema = schema
        self.target: Places | None = None
        self.reached: Places | None = None
        self.ends: Places = {}
        self.before: dict[str, dict[str, int]] = {}
        self.listings: defaultdict[str, LogListing] = defaultdict(LogListing)
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
    def kind(self) -> str:
        """What is followed: the whole log, or queues."""
        return QUEUES if self.stream_options.read.has_topic_choice else LOG

    @answered
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a query that was never run begins."""
        options, stores = self.stream_options, self._stores()
        for name, given in (("startingOffsets", options.starts), (BY_TIME, options.start_times_ms)):
            queues.check_brokers(name, given, stores)
            check_offsets_are_of_chosen_topics(options.read, name, given)
        places_of = list(stores.values())
        queues.refuse_unknown(places_of, queues.unknown_topics(places_of, options.read))
        places = {
            name: self._first_place(log)._replace(choice=options.choice)
            for name, log in self._found().items()
        }
        self._refuse_batch_queues(places_of)
        return stream_options.to_json(self.kind, places) | {"initial": True}

    @plain_errors()
    def getDefaultReadLimit(self) -> spark.ReadLimit:  # noqa: N802
        """Return what Spark hands to ``latestOffset`` unless it wants all there is."""
        limits = self.stream_options.limits
        # Spark only hands it back, so its number says nothing: limits are looked up in the options.
        is_all = limits[:3] == UNLIMITED[:3]
        return spark.ReadAllAvailable() if is_all else spark.ReadMaxRows(limits.max_rows or 1)

    @answered
    def latestOffset(self, start: dict[str, Any], limit: spark.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch; `start` itself where there is nothing to do."""
        is_all, target = isinstance(limit, spark.ReadAllAvailable), self.target
        limits = UNLIMITED if is_all else self.stream_options.limits
        is_cut = limits[:2] != UNLIMITED[:2]
        given = stream_options.from_json(start, self.kind)
        choice, is_initial = self.stream_options.choice, "initial" in start
        saved = {name: one.begun() for name, one in given.items()}
        begun = {name: one._replace(choice=choice) for name, one in saved.items()}
        found = self._found(begun, self.ends if is_cut else {})
        for name in saved.keys() - found.keys():
            self._report_absent("the checkpoint has", name, saved[name], found)
        places, moves = dict(saved), []
        self.reached = places
        for name, log in found.items():
            if target is not None and name not in target and name not in begun:
                continue
            move = self._move(log, saved.get(name))
            places[name] = move.begin
            if move.goal.offset > move.begin.offset and move.is_worth_it():
                moves.append(move)
        if target is None and self._is_too_early(moves, limits.min_rows) and not is_initial:
            return start
        # Who has little to read leaves the rest of a common limit to the others.
        moves.sort(key=lambda move: move.goal.offset - move.begin.offset)
        rows = size_bytes = 0
        for number, (log, begin, end) in enumerate(moves):
            goal = end
            if is_cut:
                share = limits.share(len(moves) - number, rows, size_bytes)
                goal, more_rows, more_bytes = log.cut(begin, end, share)
                rows, size_bytes = rows + more_rows, size_bytes + more_bytes
            places[log.store.broker_name] = begin._replace(
                offset=goal.offset, record=goal.record, crc=goal.crc, since=begin.offset
            )
        return stream_options.to_json(self.kind, places) if is_initial or places != saved else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where feeds ended when ``latestOffset`` looked; Spark asks right after it.

        ``lag`` is how many bytes of the log come after the batch at hand. Nothing else of a Python
        source gets into a query's progress, and that before tasks are planned: hence ``before``.
        """
        if self.reached is None:
            return None
        shown = {
            name: {"offset": end.offset, "lag": max(0, end.offset - self.reached[name].offset)}
            | ({"before": self.before[name]} if name in self.before else {})
            for name, end in sorted(self.ends.items())
            if name in self.reached
        }
        version, of = stream_options.VERSIONS[self.kind], str(self.stream_options)
        return {"version": version, "of": of, self.kind: shown}

    @answered
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now; later messages are for a later run."""
        self.target = {name: log.end for name, log in self._found().items()}

    @answered
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch between two offsets, each a row of byte ranges."""
        stores, read = self._stores(), self.stream_options.read
        begun, tasks = stream_options.from_json(start, self.kind), []
        self._refuse_batch_queues([*stores.values()])
        for name, place in stream_options.from_json(end, self.kind).items():
            begin = begun.get(name)
            if begin is None or begin.offset != place.since:
                begin = Place(place.offset if place.since is None else place.since)
            if begin.offset >= place.offset:
                continue
            if name not in stores:
                self._report_absent("the batch ends with", name, place, stores)
                continue
            log = self._followed(stores[name], place)
            begin, goal = self._checked_batch(log, begin, place)
            if begin.offset < goal.offset:
                parts = [*log.tasks(begin, goal, self.losses)]
                tasks += parts
                given = sum(one.byte_count for one in parts)
                pruned = goal.offset - begin.offset - given
                self.before[name] = {"bytes": given, "pruned": pruned}
        return [InputPartition(row) for row in plan_ranges(tasks, read)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; of no tasks Spark makes one without a value."""
        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        queue_of = lru_cache(MANY_QUEUES)(QueueFiles)
        with plain_errors():
            options = self.stream_options.read
            tags = ReadOptions("", (), (), tags=options.tags)
            for task in partition.value or ():
                broker, inflates = task.store.broker_name, options.decompress_body
                for columns in _records(task, queues.choosing(options, task.choices), queue_of):
                    wanted = wanted_records(columns, tags, broker)
                    yield from record_batches(wanted, schema, broker, decompress=inflates)

    def _stores(self) -> dict[str, StorePlace]:
        """Return the stores by name, which must be different."""
        stores: dict[str, StorePlace] = {}
        for one in queues.named_stores(self.stream_options.read):
            other = stores.setdefault(one.broker_name, one)
            if other is not one:
                what = f"two stores are called {one.broker_name}: {other.location}, {one.location}"
                hint = "a stream keeps its offsets by name: give each its own by brokerName"
                raise ConfigError(what, key="brokerName", hint=hint)
        return stores

    def _found(
        self, begins: Places | None = None, ends: Places | None = None
    ) -> dict[str, LiveLog]:
        """Return the logs there are, by store; it may be known where they begin and ended."""
        # What a trigger knows may save it a listing; a batch that is planned lists all files.
        listings = self.listings if begins is not None else defaultdict(LogListing)
        begins, ends = begins or {}, ends or {}
        return {
            name: self._followed(
                store, begins.get(name), begins.get(name), ends.get(name), listings[store.location]
            )
            for name, store in self._stores().items()
        }

    def _followed(self, store: StorePlace, at: Place | None, *known: Any) -> LiveLog:
        """Return a store's log with what is read at a place; see `LiveLog` for what is known."""
        options = queues.choosing(self.stream_options.read, at.choices if at else ())
        return (LiveQueues if self.kind == QUEUES else LiveLog)(store, options, *known)

    def _refuse_batch_queues(self, stores: Sequence[StorePlace]) -> None:
        read = self.stream_options.read
        for store in stores if self.kind == QUEUES else ():
            for key in queues.chosen_queues(store, read, BATCH_CONSUME_QUEUE_DIRECTORY):
                what = f"a stream does not follow batch queues, which topic {key.topic} has"
                hint = 'stream all topics, that is the log, and filter: .where("topic = …")'
                raise ConfigError(what, key="subscribe", value=key.topic, hint=hint)

    def _report_absent(self, whose: str, name: str, place: Place, found: Iterable[str]) -> None:
        what = f"{whose} a store {name!r} at physical offset {place.offset}, expected its files "
        what += f"below {', '.join(self.stream_options.read.locations)}, found "
        what += ", ".join(f"store {one!r}" for one in sorted(found)) or "none"
        what += f"; if that was renamed, call it {name!r} by brokerName, or all of it is read again"
        self.losses.report(what, "it is left out as long as it is not there")

    def _first_place(self, log: LiveLog) -> Place:
        options, broker = self.stream_options, log.store.broker_name
        asked = options.starts.get(broker, options.starts.get(None))
        since_ms = options.start_times_ms.get(broker, options.start_times_ms.get(None))
        if isinstance(log, LiveQueues):
            queues.check_times(log.store, log.segments, options.read, options.start_times_ms)
        named = any((*options.starts, *options.start_times_ms))  # beside None, which names all
        if isinstance(log, LiveQueues) and named:
            return log.first_place(options, self.losses)
        if since_ms is not None:
            offset = log.first_since(since_ms)
            if offset is None and options.read.must_have_time:
                raise queues.nothing_since(log, since_ms)
            return log.end if offset is None else Place(offset)
        if asked == EARLIEST:
            return Place(log.start)
        if asked is None or asked == LATEST:
            return log.end
        return Place(self._checked(log, Place(asked), "startingOffsets asks for"))

    def _move(self, log: LiveLog, saved: Place | None) -> Move:
        """Return what the next batch can have of a log."""
        options, name = self.stream_options, log.store.broker_name
        begin = self._begin(log, saved)._replace(choice=options.choice)
        if saved and saved.choice not in (None, options.choice) and isinstance(log, LiveQueues):
            begin = log.with_added(saved.choice, begin)
            log = self._followed(log.store, begin)
        self.ends[name] = log.end
        goals = [log.end]
        if self.target is not None:
            goals.append(self.target.get(name, begin))
        if begin.then:
            goals.append(Place(**begin.then))
        return Move(log, begin, min(goals, key=lambda place: place.offset))

    def _begin(self, log: LiveLog, begun: Place | None) -> Place:
        """Return where the next batch of a log begins."""
        if begun is None:
            return Place(log.start).begun()
        begin = self._checked(log, begun, "the checkpoint has")
        if begun.offset == begin:
            return begun
        if begun.then:  # a place to be checked as well, when the stream is there
            begin = min(begin, begun.then["offset"])
            return begun._replace(offset=begin, record=None, crc=None, since=begin)
        return begun._replace(offset=begin, record=None, crc=None).begun()

    def _checked(self, log: LiveLog, place: Place, whose: str) -> int:
        """Return a place's offset if it holds, else where the stream goes on."""
        problem = log.problem(place)
        if problem is None:
            return place.offset
        resumed = log.resume(place)
        what = f"{log}: {whose} physical offset {place.offset}: {problem}"
        self.losses.report(what, f"the stream goes on at {resumed}")
        return resumed

    def _checked_batch(self, log: LiveLog, begin: Place, end: Place) -> tuple[Place, Place]:
        """Return what of a batch is there; without evidence its begin may be an older end."""
        start = begin.offset
        if begin.record is not None or start < log.start:
            start = self._checked(log, begin, "the checkpoint has")
        problem = log.problem(end) if end.offset > start else None
        if problem is None:
            return Place(start), end
        stop = min(end.offset, log.end.offset)
        what = f"{log}: the batch ends at physical offset {end.offset}: {problem}"
        self.losses.report(what, f"the batch has what is before {stop}")
        return Place(start), end._replace(offset=stop)

    def _is_too_early(self, moves: Sequence[Move], least: int | None) -> bool:
        """Whether less is there than a batch is to have, and the last one is not long ago."""
        now_s = self.clock()
        last_s, self._last_trigger_s = self._last_trigger_s, now_s
        if least is None or last_s is None or now_s - last_s >= self.stream_options.longest_wait_s:
            return False
        for log, begin, goal in moves:
            least -= log.cut(begin, goal, BatchLimits(least))[1]
            if least <= 0 or begin.then:  # after which more may wait
                return False
        self._last_trigger_s = last_s
        return True


def _records(
    task: SplitTask, options: ReadOptions, queue_of: QueueOpener
) -> Iterator[RecordColumns]:
    """Yield the chosen records of a byte range and account for everything in it."""
    segment, losses = task.segment, Losses(options)
    choice, evidence = replace(options, tags=None), QueueEvidence(task, options, queue_of)
    damaged: list[int] = []

    def lose(what: str) -> None:
        where = f"{segment.path} from physical offset {segment.base + task.start} on"
        losses.report(f"{where}: {what}", "the batch has what is there")

    is_gone = True
    with passing_over_deleted(), opened(task.store.location, segment.path) as file:
        for batch in task.scanned(file):
            damaged += [passed_over(task, one, options) for one in damage_of(task, batch)]
            zeros_at, stop = batch.unwritten_at, segment.base + task.stop
            if segment.is_last and zeros_at is not None and zeros_at < stop:
                lose(f"expected records up to {stop}, found zeros at {zeros_at}")
            broker = task.store.broker_name
            wanted = wanted_records(batch.columns, choice, broker, task.queue_ranges)
            if options.has_topic_choice:
                evidence.take(batch.columns, wanted)
            if len(wanted):
                yield wanted
        is_gone = False
    if is_gone:
        lose("the file is gone")
    report_skipped(task, damaged)
    evidence.compare()
    # What is not there because of damage, or was said to be lost, is said already.
    if evidence.found < evidence.expected and not damaged and not losses.accepted:
        lose(f"expected {evidence.expected} records of the batch's queues, found {evidence.found}")
