"""The chosen queues of a store as a stream follows them: by what the records of its log say.

A batch lies between two places in the log, and its rows are the records there that state a chosen
topic and queue and call for an entry, whether or not they have one yet. Entries say where a queue
begins, which stretches of a long batch have none of its records, and what a stretch that is gone
held.

Law: an entry leaves out bytes only after the records at both ends of its stretch were looked at
and all entries between them rise. Where a queue cannot be relied upon (`ScanNeeded`), or where
there are many, the log is read.
Law: looks at queues are for a stream's start, for long batches and after a loss. A trigger costs
what has come, and not what queues there are.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from rocketstore.events import get_logger
from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import LMQ_PREFIX, QueueEntry
from rocketstore.pipeline.options import EARLIEST, LATEST, of_broker
from rocketstore.pipeline.planning import MANY_QUEUES, MOST_TASKS, last_dispatched, record_start
from rocketstore.pipeline.projection import wanted_records
from rocketstore.pipeline.queues import check_none_lost, choosing, chosen_queues, is_chosen
from rocketstore.pipeline.streaming.live_log import LOOK_BYTES, Found, LiveLog
from rocketstore.pipeline.streaming.stream_options import Place, ranges_of
from rocketstore.places.log_files import segment_at, store_timestamp_ms
from rocketstore.places.queue_files import NEIGHBOURS, QueueFiles, ScanNeeded
from rocketstore.units import ByteRange, GiB, MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocketstore.native.row import Int64Array
    from rocketstore.pipeline.log_read import Losses
    from rocketstore.pipeline.streaming.stream_options import BatchLimits, StreamOptions

    Numbers = dict[QueueKey, int]

LONG_BYTES: Final = 256 * MiB  # of a batch: to look at queues first costs less than to read it
LIMITED_ENTRIES: Final = 2_000_000  # held of a store at a time: 32 MB
CUT_BYTES: Final = GiB  # that the driver reads for a limit, to the end of a file; then a batch ends
MOST_COUNTED: Final = 1000  # queues in which a loss is counted; of more the first one is enough

Told: TypeAlias = "tuple[Int64Array, Int64Array, int]"
"""Where records start, their sizes, and up to where entries tell of all."""

_log = get_logger(__name__)


class LiveQueues(LiveLog):
    """The log of one store, of which some topics or queues are wanted."""

    @cached_property
    def queues(self) -> list[QueueFiles]:
        """The chosen queues that have a directory; a light queue's records are of other topics."""
        keys = chosen_queues(self.store, self.options, CONSUME_QUEUE_DIRECTORY)
        location = self.store.location
        return [QueueFiles(location, key) for key in keys if not key.topic.startswith(LMQ_PREFIX)]

    # --- where it begins ------------------------------------------------------------------------

    def first_place(self, options: StreamOptions, losses: Losses) -> Place:
        """Return where a stream begins whose queues begin at numbers or times of their own.

        Queues that are not named begin where the log does. One that is named and not there begins
        at 0, and a later number says that it had messages.
        """
        starts, times_ms = (
            of_broker(one, self.store.broker_name)
            for one in (options.starts, options.start_times_ms)
        )
        there = {queue.key for queue in self.queues}
        for key in sorted({*starts, *times_ms} - there):
            self._first_number(QueueFiles(self.store.location, key), starts, times_ms, losses)
        firsts: dict[str, dict[str, int]] = {}
        begin, until = self.end.offset if self.queues else self.start, self.start
        for queue in self.queues:
            number = self._first_number(queue, starts, times_ms, losses)
            if number == EARLIEST:
                begin = self.start
                continue
            number = queue.max_offset if number == LATEST else number
            at = self._place_of(queue, number)
            begin, until = min(begin, at), max(until, at)
            firsts.setdefault(queue.key.topic, {})[str(queue.key.queue_id)] = number
        return Place(begin, first=firsts, until=until) if begin < until else Place(begin)

    def _first_number(
        self, queue: QueueFiles, starts: Numbers, times_ms: Numbers, losses: Losses
    ) -> int:
        """Return the number at which a queue was asked to begin, or `EARLIEST` or `LATEST`."""
        if queue.key in times_ms:
            return self._first_since(queue, times_ms[queue.key])
        number = starts.get(queue.key, EARLIEST)
        most = queue.max_offset
        least = queue.first_left(self.start) if self.segments else most
        if number < 0 or least <= number <= most:
            return number
        resumed = max(least, min(number, most))
        what = f"queue {queue.key} of {self}: startingOffsets asks for offset {number}: "
        what += f"expected it in the queue, found {least} to {most}"
        losses.report(what, f"the stream begins at {resumed}")
        return resumed

    def _place_of(self, queue: QueueFiles, number: int) -> int:
        """Return a place in the log before which no record of a queue has a number or a later one.

        After the last entry that is right after its record: the next one may not be dispatched yet.
        """
        at, entry = queue.next_message(number, queue.max_offset)
        if entry is not None and at == number:
            return entry.physical_offset
        before = queue.entry(number - 1) if number else None
        if before is None or not before.is_message or before.physical_offset < self.start:
            return self.start
        return self.after(before.physical_offset).offset

    def _first_since(self, queue: QueueFiles, since_ms: int) -> int:
        def is_since(entry: QueueEntry) -> bool:
            segment = segment_at(self.segments, entry.physical_offset)
            stored_ms = store_timestamp_ms(self.store.location, segment, entry.physical_offset)
            return stored_ms is None or stored_ms >= since_ms  # as late as any if it has none

        return queue.first_where(queue.first_left(self.start), queue.max_offset, is_since)

    def with_added(self, before: dict[str, str], begin: Place) -> Place:
        """Return where messages begin that `before` did not choose, or the given place if earlier.

        What has no entry yet, a look at the log has to tell.
        """
        had = choosing(self.options, [before])
        added = [one for one in self.queues if not is_chosen(had, self.store.broker_name, one.key)]
        spans = (one.pointing_into(self.start, begin.offset) for one in added)
        has_some = any(first < last for first, last in spans)
        offset = self.start if has_some else self._dispatched(self.start, begin.offset)
        if offset >= begin.offset:
            return begin
        is_had_on = begin.then is not None and begin.then["choice"] == before
        then = begin.then if is_had_on else begin._replace(choice=before).saved()
        return Place(offset, since=offset, choice=begin.choice, then=then)

    # --- what comes -----------------------------------------------------------------------------

    def gone(self, start: int, stop: int) -> str | None:
        """Return how many messages of the chosen queues a stretch had that is not there any more.

        What the entries cannot tell, because files of the queue are gone as well, is a loss.
        """
        count = unknown = 0
        for queue in self.queues:
            first, last = queue.pointing_into(start, stop)
            count += last - first
            unknown += 0 < first == queue.first_offset < queue.max_offset
            if (count or unknown) and len(self.queues) > MOST_COUNTED:
                return super().gone(start, stop)
        if unknown:
            return f"{count} messages are gone, and maybe others of {unknown} queues"
        return f"{count} messages are gone" if count else None

    def has_some(self, begin: Place, goal: Place) -> bool:
        """Whether there is a row between two places; of much that has come, without a look."""
        if goal.offset - begin.offset > LOOK_BYTES:
            return True
        return any(len(places) for places, _ in self._scanned(begin, begin.offset, goal.offset))

    def _scanned(self, begin: Place, start: int, stop: int) -> Iterator[Found]:
        options, ranges = replace(self.options, tags=None), ranges_of(begin)
        for columns in self.scan(start, stop):
            found = wanted_records(columns, options, self.store.broker_name, ranges)
            yield found.physical_offset, found.size

    def cut(self, begin: Place, goal: Place, limits: BatchLimits) -> tuple[Place, int, int]:
        """Return the place after the last row that fits; of much to be read, at a file's end."""
        told = self._told(begin.offset, goal.offset)
        first = next(told, None)
        if first is not None:
            wanted = self._with_rest(begin, itertools.chain([first], told), goal.offset)
            return self._cut(wanted, goal, limits)
        ends = (one.base + one.file_size for one in self.over(begin.offset, goal.offset))
        least = begin.offset + CUT_BYTES
        goal = next((Place(one) for one in ends if least <= one < goal.offset), goal)
        return self._cut(self._scanned(begin, begin.offset, goal.offset), goal, limits)

    def _with_rest(self, begin: Place, told: Iterable[Told], stop: int) -> Iterator[Found]:
        """Yield what entries tell of a batch, and of the rest what the log has."""
        reached = begin.offset
        for places, sizes, told_to in told:
            yield places, sizes
            reached = told_to
        yield from self._scanned(begin, reached, stop)

    def ranges(self, begin: Place, goal: Place) -> Iterable[ByteRange]:
        """Return the stretches of a batch that can have rows."""
        stop = goal.offset
        gap = max(MiB, (stop - begin.offset) // MOST_TASKS)
        start = reached = self._told_from(begin.offset, stop)
        yield ByteRange(begin.offset, start)
        # The driver reads as many entries as it holds at a time.
        for places, _, told_to in itertools.islice(self._told(start, stop), 1):
            reached = told_to
            cuts = np.split(places, np.flatnonzero(np.diff(places) > gap) + 1)
            for one in cuts if len(places) else ():
                yield ByteRange(int(one[0]), int(one[-1]) + 1)
        yield ByteRange(reached, stop)

    # --- by entries -----------------------------------------------------------------------------

    def _told(self, start: int, stop: int) -> Iterator[Told]:
        """Yield what entries tell of a long stretch, see `_by_entries`, as far as they do."""
        if stop - start <= LONG_BYTES:
            return
        try:
            yield from self._by_entries(start, self._dispatched(start, stop))
        except ScanNeeded as reason:
            _log.info("stream.reads_all", store=self, reason=reason)

    def _dispatched(self, start: int, stop: int) -> int:
        """Return a place before which every record has its entry."""
        for one in reversed(self.over(start, stop)):
            found = None if one.is_missing else last_dispatched(self.store, one, stop)
            if found is not None:
                return max(start, found)
        return start

    @cached_property
    def _doubt(self) -> str:
        """Why the queues that are there do not tell what the log has, if they do not."""
        if not self.queues or len(self.queues) > MANY_QUEUES:
            return f"{len(self.queues)} queues are chosen"
        if gone := self.options.named_topics - {one.key.topic for one in self.queues}:
            return f"topics have no queue, and may have been deleted: {sorted(gone)}"
        try:
            check_none_lost(self.store, self.options, [one.key for one in self.queues])
        except ScanNeeded as reason:
            return str(reason)
        return ""

    def _told_from(self, start: int, stop: int) -> int:
        """Return the place of a long stretch from which on entries may tell of all.

        Before a queue's first entry are records of its topic if that was deleted and made again.
        """
        if stop - start <= LONG_BYTES or self._doubt:
            return start
        firsts = (queue.entry(queue.first_offset) for queue in self.queues)
        places = [stop if one is None else one.physical_offset for one in firsts]
        return min(stop, max(start, *places))

    def _believed(self, start: int, stop: int) -> list[tuple[QueueFiles, int, int]]:
        """Return the numbers of the entries that point into a stretch, of few queues."""
        if self._doubt or self._told_from(start, stop) > start:
            raise ScanNeeded(self._doubt or "a queue begins after the stretch does")
        found = []
        for queue in self.queues:
            queue.check_whole()
            first, last = queue.pointing_into(start, stop)
            # Where the search led is only believed if its neighbours and records say so.
            queue.rising(max(queue.first_offset, first - NEIGHBOURS), first, or_fillers=True)
            for number in {first - 1, first, last - 1, last}:
                if not queue.first_offset <= number < queue.max_offset:
                    continue
                entry = queue.entry(number)
                is_expired = entry and entry.is_message and entry.physical_offset < self.start
                at = record_start(self.store, self.segments, queue, number)
                if at is None and not is_expired:
                    raise ScanNeeded(f"entry {number} of queue {queue.key} leads to no such record")
            found.append((queue, first, last))
        return found

    def _by_entries(self, start: int, stop: int) -> Iterator[Told]:
        """Yield where the records of entries start, their sizes, and up to where these are all."""
        while start < stop:
            parts, reached = [np.empty((2, 0), np.int64)], stop
            believed = self._believed(start, stop)
            room = max(1, LIMITED_ENTRIES // len(believed))
            for queue, first, last in believed:
                seen = min(last, first + room)
                found = queue.rising(first, seen)
                said = found["physical_offset"], found["record_size"]
                parts.append(np.stack(said).astype(np.int64))
                if seen < last:
                    # After the last entry that was looked at, this queue may have earlier ones.
                    reached = min(reached, int(parts[-1][0, -1]) + 1)
            joined = np.concatenate(parts, axis=1)
            joined = joined[:, joined[0] < reached]
            places, sizes = joined[:, np.argsort(joined[0], kind="stable")]
            yield places, sizes, reached
            start = reached
