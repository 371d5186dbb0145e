"""A stream of whole logs: every record of every store, in the order of the log.

Law: a batch is what lies between two physical offsets, and each of them is checked against the log
before it is used: the record in front must be the one that was there when the offset was saved.
Where it is not, the log was cut and written anew, or retention took it: that is data loss, and the
stream goes on, if at all, at the first record that starts at or behind the saved offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.offsets import EARLIEST, LATEST
from rocketstore.pipeline.stores import SegmentState, find_stores, list_segments
from rocketstore.pipeline.streaming.limits import UNLIMITED
from rocketstore.pipeline.streaming.loss import Losses, once_more_when_a_file_went
from rocketstore.pipeline.streaming.offsets import LOG, Evidence, Place, StreamOffset
from rocketstore.pipeline.streaming.records import past_blank, record_at, segment_at
from rocketstore.pipeline.streaming.tail import evidence_at, first_record, walk_log
from rocketstore.pipeline.streaming.tasks import StreamTask, cut, grouped, step_of
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocketstore.pipeline.stores import Segment, StorePlace
    from rocketstore.pipeline.streaming.limits import Limits
    from rocketstore.pipeline.streaming.offsets import Key
    from rocketstore.pipeline.streaming.options import StreamOptions


class Log(NamedTuple):
    """One store's log as it is now."""

    store: StorePlace
    segments: list[Segment]

    @property
    def start(self) -> int:
        """Physical offset of the first byte there is."""
        return self.segments[0].base if self.segments else 0


def open_logs(options: StreamOptions) -> dict[str, Log]:
    """Return the logs of a stream by broker.

    Raises
    ------
    ConfigError
        Two stores have one name.
    """
    logs: dict[str, Log] = {}
    for store in find_stores(options.read):
        name = store.broker_name
        if name in logs:
            raise ConfigError(
                f"two stores are called {name}: {logs[name].store.location} and {store.location}",
                key="brokerName",
                hint="a stream keeps its offsets by name: give each its own by brokerName",
            )
        logs[name] = Log(store, list_segments(store))
    return logs


def check_named(names: Iterable[str], logs: Mapping[str, Log]) -> None:
    """Refuse a start that is given for a store that there is not.

    Raises
    ------
    ConfigError
        There is such a name.
    """
    for name in names:
        if name not in logs:
            raise ConfigError(
                f"option startingOffsets names store {name!r}",
                key="startingOffsets",
                hint=f"the stores are {', '.join(logs)}",
            )


class LogStream:
    """Offsets and tasks of a stream without a choice of topics."""

    kind = LOG

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self.losses = Losses(options.read)
        self.turn = 0

    # --- where a query begins -------------------------------------------------------------------

    @once_more_when_a_file_went
    def initial(self) -> StreamOffset:
        """Return where a query that was never run begins.

        Raises
        ------
        ConfigError
            `startingOffsets` names a store that there is not.
        StoreError
            It names an offset where no record starts, and `failOnDataLoss` is set.
        """
        logs = open_logs(self.options)
        check_named(self.options.log_offsets, logs)
        places: dict[Key, Place] = {(name,): self._first_place(log) for name, log in logs.items()}
        return StreamOffset(LOG, places, is_initial=True)

    def _first_place(self, log: Log) -> Place:
        if self.options.starting_timestamp_ms is not None:
            since_ms = self.options.starting_timestamp_ms
            found = first_record(log.store, log.segments, log.start, since_ms=since_ms)
            return _end(log) if found is None else Place(found)
        offset = self.options.log_offsets.get(log.store.broker_name, self.options.start)
        if offset == LATEST:
            return _end(log)
        if offset == EARLIEST:
            return Place(log.start)
        return Place(self._checked(log, Place(offset), "startingOffsets asks for"))

    # --- the next batch -------------------------------------------------------------------------

    @once_more_when_a_file_went
    def latest(self) -> StreamOffset:
        """Return the end of every log."""
        logs = open_logs(self.options)
        return StreamOffset(LOG, {(name,): _end(log) for name, log in logs.items()})

    @once_more_when_a_file_went
    def advance(
        self, start: StreamOffset, limits: Limits, target: StreamOffset | None = None
    ) -> StreamOffset:
        """Return the offset behind the next batch; `start` itself when there is nothing new.

        Parameters
        ----------
        start
            Behind the last batch.
        limits
            Of this batch, over all stores together.
        target
            Not to be passed, if given.

        Raises
        ------
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        logs = open_logs(self.options)
        self._check_stores(start, logs)
        ends = {
            name: self._begin(log, start)
            for name, log in logs.items()
            if target is None or (name,) in target.places or (name,) in start.places
        }
        self.turn += 1
        first = self.turn % max(len(ends), 1)
        names = [*sorted(ends)[first:], *sorted(ends)[:first]]
        left = limits
        # Equal shares first; what one store does not need goes to the others.
        for is_rest in (False, True):
            for number, name in enumerate(names):
                if left.is_used_up or (is_rest and limits.is_unlimited):
                    break
                share = left if is_rest else left.share(len(names) - number)
                goal = None if target is None else target.places.get((name,), Place(0))
                ends[name], rows, size = _moved(logs[name], ends[name], share, goal)
                left = left.less(rows, size)
        places = _settled(start)
        places.update({(name,): end for name, end in ends.items()})
        is_new = start.is_initial or places != _settled(start)
        return StreamOffset(LOG, places) if is_new else start

    def _begin(self, log: Log, start: StreamOffset) -> Place:
        """Return where the next batch of a store begins."""
        saved = start.places.get((log.store.broker_name,))
        if saved is None:
            return Place(log.start, since=log.start)
        begin = self._checked(log, saved, "the checkpoint has")
        if begin != saved.offset:
            return Place(begin, since=begin)
        return saved._replace(since=begin if start.is_initial else None)

    def _check_stores(self, offset: StreamOffset, logs: dict[str, Log]) -> None:
        for (name,) in offset.places:
            if name not in logs:
                self.losses.report(
                    f"the checkpoint has a store {name!r}, expected it among "
                    f"{', '.join(self.options.read.locations)}, found {', '.join(logs)}",
                    "it is left out as long as it is not there",
                )

    # --- tasks ----------------------------------------------------------------------------------

    @once_more_when_a_file_went
    def plan(self, start: StreamOffset, end: StreamOffset) -> list[tuple[StreamTask, ...]]:
        """Return the tasks of the batch between two offsets, each a row of byte ranges.

        Raises
        ------
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        logs = open_logs(self.options)
        self._check_stores(end, logs)
        ranges = []
        for (name,), stop in end.places.items():
            if name in logs:
                wanted = self._range(logs[name], start.places.get((name,)), stop)
                if wanted.size > 0:
                    ranges.append((logs[name], wanted))
        step = step_of(self.options.read, sum(wanted.size for _, wanted in ranges))
        tasks = [
            StreamTask(split)
            for log, wanted in ranges
            for split in cut(log.store, log.segments, wanted, step)
        ]
        return grouped(tasks, step)

    def _range(self, log: Log, start: Place | None, end: Place) -> ByteRange:
        begin = end.since
        if begin is None:
            if start is None or start.offset == end.offset:
                return ByteRange(end.offset, end.offset)
            begin = self._checked(log, start, "the checkpoint has")
        elif begin < min(log.start, end.offset):
            begin = self._checked(log, Place(begin), "the batch begins at")
        stop = end.offset
        if stop > begin:
            problem = problem_of(log, end)
            if problem is not None:
                stop = min(stop, _end(log).offset)
                what = f"{log.store.location}: the batch ends at physical offset {end.offset}"
                self.losses.report(f"{what}: {problem}", f"the stream reads what is before {stop}")
        self._check_holes(log, ByteRange(begin, stop))
        return ByteRange(begin, stop)

    def _check_holes(self, log: Log, wanted: ByteRange) -> None:
        for one in log.segments:
            is_wanted = one.base < wanted.stop and wanted.start < one.base + one.size
            if one.state is SegmentState.MISSING and is_wanted:
                self.losses.report(
                    f"{one.path} is missing: expected {one.size} bytes of the log from physical "
                    f"offset {one.base} on, found none",
                    f"the stream goes on at {one.base + one.size}",
                )

    # --- checks ---------------------------------------------------------------------------------

    def _checked(self, log: Log, place: Place, whose: str) -> int:
        """Return a place's offset if it holds, else where the stream goes on."""
        problem = problem_of(log, place)
        if problem is None:
            return place.offset
        resumed = nearest(log, place.offset)
        self.losses.report(
            f"{log.store.location}: {whose} physical offset {place.offset}: {problem}",
            f"the stream goes on at {resumed}, {abs(resumed - place.offset)} bytes "
            f"{'behind' if resumed >= place.offset else 'before'} it",
        )
        return resumed


def problem_of(log: Log, place: Place) -> str | None:
    """Return what was expected and found where a saved offset does not hold."""
    offset, evidence = place.offset, place.evidence
    if offset < log.start:
        return (
            f"expected it in the log, found that the log begins at {log.start}: "
            f"{log.start - offset} bytes were deleted"
        )
    if evidence is not None and evidence.record >= log.start:
        return _evidence_problem(log, offset, evidence)
    if offset == log.start:
        return None
    seen = record_at(log.store, log.segments, offset)
    if seen.is_record or _end(log).offset == offset:
        return None
    return f"expected a record's start or the log's end, found {seen.what}"


def _evidence_problem(log: Log, offset: int, evidence: Evidence) -> str | None:
    seen = record_at(log.store, log.segments, evidence.record)
    if not seen.is_record or seen.crc != evidence.crc:
        return (
            f"expected in front of it, at {evidence.record}, a record with CRC "
            f"{evidence.crc:08x}, found {seen.what}: the log was cut and written anew, or damaged"
        )
    segment = segment_at(log.segments, evidence.record)
    if offset == seen.stop or segment is None:
        return None
    if past_blank(log.store, segment, seen.stop) == offset:
        return None
    return f"expected it to be {seen.stop}, where the record in front ends, found {offset}"


def nearest(log: Log, offset: int) -> int:
    """Return the first place at or behind an offset where a stream may stand, else the end."""
    if offset <= log.start:
        return log.start
    end = _end(log).offset
    if offset >= end:
        return end
    found = first_record(log.store, log.segments, offset)
    return end if found is None else min(found, end)


def _end(log: Log) -> Place:
    walked = walk_log(log.store, log.segments, log.start, UNLIMITED)
    return Place(walked.stop, evidence_at(log.store, log.segments, walked.last))


def _moved(log: Log, place: Place, limits: Limits, goal: Place | None) -> tuple[Place, int, int]:
    """Return a place moved along its log, and how many records and bytes it was moved over."""
    if goal is not None and goal.offset <= place.offset:
        return place, 0, 0
    if goal is not None and limits.is_unlimited:
        return goal._replace(since=place.since), 0, 0
    walked = walk_log(
        log.store,
        log.segments,
        place.offset,
        limits,
        before=place.evidence,
        stop=None if goal is None else goal.offset,
    )
    if walked.stop == place.offset:
        return place, 0, 0
    last = evidence_at(log.store, log.segments, walked.last) or place.evidence
    return Place(walked.stop, last, place.since), walked.rows, walked.size_bytes


def _settled(offset: StreamOffset) -> dict[Key, Place]:
    """Return the places as the batch behind them sees them."""
    return {key: place._replace(since=None) for key, place in offset.places.items()}
