"""What a stream is made of: lines that are followed, and batches between two places of each.

A *line* is the log of one store (`LiveLog`) or one of its queues (`LiveQueue`). A batch is what
lies between two places of each line, and each place is checked before it is used: the record
before it must be the one that was there when the place was saved.

Law: no loss is silent, and no batch is quietly smaller. ``failOnDataLoss`` decides between an error
and a warning that says what is gone and where the stream goes on, which is never before its place:
that would repeat what a sink has.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

from rocketstore.errors import ConfigError, StoreError
from rocketstore.events import get_logger
from rocketstore.pipeline.offsets import ANY_BROKER, EARLIEST, LATEST
from rocketstore.pipeline.planning import bytes_per_task, grouped
from rocketstore.pipeline.stores import find_stores
from rocketstore.pipeline.streaming.stream_offsets import Key, Place, StreamOffset
from rocketstore.pipeline.streaming.stream_options import UNLIMITED, named_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.stores import StorePlace
    from rocketstore.pipeline.streaming.live_log import LiveLog
    from rocketstore.pipeline.streaming.live_queue import LiveQueue
    from rocketstore.pipeline.streaming.stream_options import Limits, StreamOptions
    from rocketstore.pipeline.streaming.stream_read import StreamTask

    Line: TypeAlias = LiveLog | LiveQueue

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

_log = get_logger(__name__)

HINT: Final = 'to go on with what is there: option("failOnDataLoss", "false")'


class Losses:
    """What one stream or task has lost; `count` is of those that were accepted."""

    def __init__(self, options: ReadOptions) -> None:
        self.is_error = options.fail_on_data_loss
        self.count = 0
        self._reported: set[str] = set()

    def report(self, what: str, then: str) -> None:
        """Raise or count a loss: `what` says where, expected and found, `then` what follows."""
        if self.is_error:
            raise StoreError(f"data loss: {what}", hint=HINT)
        # What is met again by the next batch, or by the plan of the same one, counts once.
        if what not in self._reported:
            self._reported.add(what)
            self.count += 1
            _log.warning("data loss %d of this stream: %s; %s", self.count, what, then)


class Move(NamedTuple):
    """What a batch reads of one `Line`: from `begin` to the place `goal`."""

    line: Any
    begin: Place
    goal: Place


def again_if_a_file_went(method: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Ask again when retention deletes a file after it was listed; that answer says the loss."""

    @functools.wraps(method)
    def asked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return method(*args, **kwargs)
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        return method(*args, **kwargs)

    return asked


def named_stores(options: StreamOptions) -> dict[str, StorePlace]:
    """Return the stores of a stream by name, which must be different."""
    stores: dict[str, StorePlace] = {}
    for store in find_stores(options.read):
        other = stores.setdefault(store.broker_name, store)
        if other is not store:
            raise ConfigError(
                f"two stores are called {store.broker_name}: {other.location} and {store.location}",
                key="brokerName",
                hint="a stream keeps its offsets by name: give each its own by brokerName",
            )
    return stores


class Stream:
    """Offsets and tasks of a query, without Spark; `ends` is where its lines ended lately."""

    def __init__(
        self,
        options: StreamOptions,
        lines: type[Line],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.lines = lines
        self.kind = lines.kind
        self.losses = Losses(options.read)
        self.ends: dict[Key, Place] = {}
        self._clock = clock
        self._last_trigger_s: float | None = None
        self._where = f"below {', '.join(options.read.locations)}"

    def _found(
        self, begins: Mapping[Key, Place], ends: Mapping[Key, Place] | None = None
    ) -> Mapping[Key, Line]:
        return self.lines.found(self.options, begins, ends or {})

    @again_if_a_file_went
    def initial(self) -> StreamOffset:
        """Return where a query that was never run begins."""
        stores = named_stores(self.options)
        for key, named in (
            ("startingOffsets", self.options.starts),
            ("startingOffsetsByTimestamp", self.options.start_times_ms),
        ):
            for name in {place.broker for place in named if place} - {ANY_BROKER, *stores}:
                hint = f"the stores are {', '.join(stores)}"
                raise ConfigError(f"option {key} names store {name!r}", key=key, hint=hint)
        places = {key: self._first_place(line) for key, line in self._found({}).items()}
        return StreamOffset(self.kind, places, is_initial=True)

    @again_if_a_file_went
    def latest(self) -> StreamOffset:
        """Return the end of every line."""
        return StreamOffset(self.kind, {key: line.end for key, line in self._found({}).items()})

    @again_if_a_file_went
    def advance(
        self, start: StreamOffset, limits: Limits = UNLIMITED, target: StreamOffset | None = None
    ) -> StreamOffset:
        """Return the offset after the next batch; `start` itself when there is nothing new.

        Parameters
        ----------
        target
            Not to be passed, if given (``AvailableNow``).

        Raises
        ------
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        found = self._found(start.places, {} if limits.is_unlimited else self.ends)
        self._report_absent(start, found)
        places, moves = start.settled(), []
        for key, line in found.items():
            if target is not None and key not in target.places and key not in start.places:
                continue
            begin = places[key] = self._begin(line, start)
            goal = self.ends[key] = line.end
            if target is not None and target.places.get(key, begin).offset < goal.offset:
                goal = target.places.get(key, begin)
            if goal.offset > begin.offset:
                moves.append(Move(line, begin, goal))
        if target is None and self._is_too_early(moves, limits.min_rows) and not start.is_initial:
            return start
        for of_store in _by_store(moves):
            is_cut = not limits.is_unlimited
            stops = self.lines.cut(of_store, limits) if is_cut else {}
            for line, begin, goal in of_store:
                stop = stops.get(line.key, begin if is_cut else goal)
                places[line.key] = stop._replace(since=begin.since)
        is_new = start.is_initial or places != start.settled()
        return StreamOffset(self.kind, places) if is_new else start

    @again_if_a_file_went
    def plan(self, start: StreamOffset, end: StreamOffset) -> list[tuple[StreamTask, ...]]:
        """Return the tasks of the batch between two offsets, each a row of byte ranges.

        Raises
        ------
        StoreDamagedError
            A queue's entries cannot be believed, and the policy for damage is ``fail``.
        StoreError
            Data was lost, and `failOnDataLoss` is set.
        """
        found, read, moves = self._found({}), self.options.read, []
        for key, place in end.places.items():
            saved = start.places.get(key, place)
            if place.offset <= (saved.offset if place.since is None else place.since):
                continue
            if key in found:
                moves.append(self._checked_move(found[key], saved, place))
                continue
            self.losses.report(
                f"the batch has {_named(key)} up to {self.lines.unit} {place.offset}, expected "
                f"its files {self._where}, found none",
                "the batch is without it",
            )
        moves = [move for move in moves if move.begin.offset < move.goal.offset]
        tasks = [
            task
            for of_store in _by_store(moves)
            for task in self.lines.tasks(of_store, read, self.losses)
        ]
        step = bytes_per_task(sum(task.split.byte_count for task in tasks), read)
        return grouped(tasks, step, lambda task: task.split.byte_count)

    # --- places ---------------------------------------------------------------------------------

    def _first_place(self, line: Line) -> Place:
        options, broker = self.options, line.store.broker_name
        since_ms = named_place(options.start_times_ms, broker, line.queue)
        if since_ms is not None:
            offset = line.first_since(since_ms)
            if offset is not None:
                return line.place(offset)
            if options.must_have_time:
                key = "startingOffsetsByTimestampStrategy"
                hint = f'to begin at its end: option("{key}", "latest")'
                raise StoreError(f"{line}: nothing was stored at {since_ms} ms or later", hint=hint)
            return line.end
        asked = named_place(options.starts, broker, line.queue)
        asked = options.start if asked is None else asked
        if asked == LATEST:
            return line.end
        if asked == EARLIEST:
            return line.place(line.start)
        return line.place(self._checked(line, Place(asked), "startingOffsets asks for"))

    def _begin(self, line: Line, start: StreamOffset) -> Place:
        """Return where the next batch of a line begins."""
        saved = start.places.get(line.key)
        if saved is None:
            return line.place(line.start)._replace(since=line.start)
        begin = self._checked(line, saved, "the checkpoint has")
        if begin != saved.offset:
            return line.place(begin)._replace(since=begin)
        return saved._replace(since=begin if start.is_initial else None)

    def _checked(self, line: Line, place: Place, whose: str) -> int:
        """Return a place's offset if it holds, else where the stream goes on."""
        problem = line.problem(place)
        if problem is None:
            return place.offset
        resumed = line.resume(place)
        what = f"{line}: {whose} {line.unit} {place.offset}: {problem}"
        self.losses.report(what, f"the stream goes on at {resumed}")
        return resumed

    def _checked_move(self, line: Line, saved: Place, end: Place) -> Move:
        if end.since is None:
            begin = self._checked(line, saved, "the checkpoint has")
        elif end.since < min(line.start, end.offset):
            begin = self._checked(line, Place(end.since), "the batch begins at")
        else:
            begin = end.since
        problem = line.problem(end) if end.offset > begin else None
        if problem is None:
            return Move(line, Place(begin), end)
        stop = min(end.offset, line.end.offset)
        what = f"{line}: the batch ends at {line.unit} {end.offset}: {problem}"
        self.losses.report(what, f"the batch has what is before {stop}")
        return Move(line, Place(begin), Place(stop))

    def _report_absent(self, start: StreamOffset, found: Mapping[Key, Line]) -> None:
        for key, place in start.places.items():
            if key not in found and not self.lines.is_kept(self.options, key, place):
                self.losses.report(
                    f"the checkpoint has {_named(key)} at {self.lines.unit} {place.offset}, "
                    f"expected its files {self._where}, found none",
                    "it is left out as long as it is not there",
                )

    def _is_too_early(self, moves: Sequence[Move], least: int | None) -> bool:
        """Whether less is there than a batch is to have, and the last one is not long ago."""
        now_s = self._clock()
        last_s, self._last_trigger_s = self._last_trigger_s, now_s
        if least is None or last_s is None or now_s - last_s >= self.options.longest_wait_s:
            return False
        for move in moves:
            least -= move.line.count(move, least)
            if least <= 0:
                return False
        self._last_trigger_s = last_s
        return True


def _by_store(moves: Sequence[Move]) -> Iterable[list[Move]]:
    stores: dict[str, list[Move]] = {}
    for move in moves:
        stores.setdefault(move.line.key[0], []).append(move)
    return stores.values()


def _named(key: Key) -> str:
    return f"queue {key[1]}/{key[2]} of {key[0]}" if key[1:] else f"a store {key[0]!r}"
