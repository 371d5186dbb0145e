"""Which bytes of a log can hold records of chosen queues, by the first and last entry of each.

Law: a range of the log is left out only where both entries lead to records that state the same
topic, queue and queue offset, and a queue that might lack a record is `Doubt`: all is read then.
What is not dispatched yet lies after the last record that any queue has, and is always read.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError, FormatError, StoreError
from rocketstore.format.queue_entry import KEPT_PLACE_BYTES
from rocketstore.format.record import decode_record
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.options import ANY_BROKER, EARLIEST, LATEST, QueuePlace
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.units import ByteRange, MiB, QueueKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.stores import Segment, StorePlace

LOOKS_AT_ONCE: Final = 16
"""What planning looks into side by side: on an object store each look is a request."""

MOST_QUEUES: Final = 64
"""Whose entries a task looks for, each by a search; with more of them it scans."""

_MOST_RECORD_BYTES: Final = 64 * MiB
"""That an entry may state: one that lies must not decide how much is read."""


class Doubt(Exception):  # noqa: N818 - not an error: more is read
    """Why a queue is not to be believed."""


class QueueRange(NamedTuple):
    """Queue offsets ``[start, stop)`` of a queue; `stop` None is the end, wherever that will be."""

    topic: str
    queue_id: int
    start: int
    stop: int | None


class QueueSpans(NamedTuple):
    """Where records of chosen queues start.

    Attributes
    ----------
    ranges
        In order and apart.
    queues
        Queues that have an entry of each such record before `dispatched`; empty when not all do.
    """

    ranges: list[ByteRange]
    queues: tuple[QueueKey, ...]
    dispatched: int


def is_chosen(options: ReadOptions, store: StorePlace, key: QueueKey) -> bool:
    """Whether a queue is among those that the options choose."""
    if options.queues is None:
        return options.wants_topic(key.topic)
    brokers = (ANY_BROKER, store.broker_name)
    return any(QueuePlace(key.topic, one, key.queue_id) in options.queues for one in brokers)


def check_brokers(stores: Sequence[StorePlace], options: ReadOptions) -> None:
    """Refuse offsets of stores that the query does not read, and an assignment of no other.

    Raises
    ------
    ConfigError
        A name is unknown: offsets would be passed over and more rows read than were asked for.
    """
    known = {ANY_BROKER, *(store.broker_name for store in stores)}
    assigned = {place.broker for place in options.queues or ()}
    named = {
        # One assignment may serve for several reads, each of one of its stores.
        "assign": set() if assigned & known else assigned,
        "startingOffsets": {place.broker for place in options.starting_offsets},
        "endingOffsets": {place.broker for place in options.ending_offsets},
    }
    for key, names in named.items():
        for name in sorted(names - known):
            raise ConfigError(
                f"option {key} names store {name!r}",
                key=key,
                value=name,
                hint=f"the stores are {', '.join(sorted(known - {ANY_BROKER}))}",
            )


def queue_ranges(
    store: StorePlace, segments: Sequence[Segment], options: ReadOptions
) -> tuple[QueueRange, ...]:
    """Return the range of every queue that a query gives a first or a last offset.

    Raises
    ------
    StoreError
        An offset has expired or does not exist yet, and `failOnDataLoss` is set.
    """
    starting = _of_broker(options.starting_offsets, store.broker_name)
    ending = _of_broker(options.ending_offsets, store.broker_name)
    ranges = []
    for key in sorted(starting.keys() | ending.keys()):
        start, stop = starting.get(key, EARLIEST), ending.get(key, LATEST)
        if options.fail_on_data_loss:
            _check_there(store, segments, queue_files(store.location, key), start, stop)
        ranges.append(
            QueueRange(*key, 0 if start == EARLIEST else start, None if stop == LATEST else stop)
        )
    return tuple(ranges)


def _of_broker(offsets: Mapping[QueuePlace, int], broker: str) -> dict[QueueKey, int]:
    """Return the offsets that hold for a broker; the ones that name it win."""
    found = {}
    for name in (ANY_BROKER, broker):
        for place, offset in offsets.items():
            if place.broker == name:
                found[QueueKey(place.topic, place.queue_id)] = offset
    return found


def _check_there(
    store: StorePlace, segments: Sequence[Segment], queue: QueueFiles, start: int, stop: int
) -> None:
    problem = None
    maximum = queue.written_stop()
    minimum = queue.min_offset(segments[0].base) if segments else maximum
    if not queue.files:
        problem = f"{store.location} has no queue {queue.key}"
    elif start not in (EARLIEST, LATEST) and not minimum <= start <= maximum:
        problem = (
            f"queue {queue.key} of {store.location}: startingOffsets asks for {start}, "
            f"there are {minimum} to {maximum}"
        )
    elif stop not in (EARLIEST, LATEST) and stop > maximum:
        problem = (
            f"queue {queue.key} of {store.location}: endingOffsets asks for {stop}, "
            f"the queue ends at {maximum}"
        )
    if problem is not None:
        raise StoreError(problem, hint='to read what is there: option("failOnDataLoss", "false")')


# --- where records lie --------------------------------------------------------------------------


def wanted_spans(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
    ranges: Sequence[QueueRange],
) -> QueueSpans:
    """Return where records of the chosen queues start.

    Raises
    ------
    Doubt
        That cannot be said: some queue may lack a record.
    """
    by_key = {QueueKey(one.topic, one.queue_id): one for one in ranges}
    listed = list_queues(store.location)
    chosen = [key for key in listed if is_chosen(options, store, key)]
    _check_complete(chosen, by_key, options, store.broker_name)
    log = _Log(store, segments)
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="rocketstore-plan") as pool:
        # First: a writer that goes on must not get further in another queue than in these.
        tail = []
        dispatched = log.end
        wanted = [by_key.get(key, QueueRange(*key, 0, None)) for key in chosen]
        if not options.fail_on_data_loss or any(one.stop is None for one in wanted):
            ends = pool.map(log.last_record, listed)
            dispatched = max((end for end in ends if end is not None), default=log.start)
            tail = [ByteRange(dispatched, log.end)]
        spans = [one for one in pool.map(log.span, wanted) if one is not None]
    is_whole = len(chosen) <= MOST_QUEUES and not any(span.start < log.start for span in spans)
    return QueueSpans(_merged([*spans, *tail]), tuple(chosen) if is_whole else (), dispatched)


def _check_complete(
    chosen: Sequence[QueueKey],
    by_key: Mapping[QueueKey, QueueRange],
    options: ReadOptions,
    broker: str,
) -> None:
    """Doubt where a queue that the query may mean has no directory."""
    wanted = set(by_key)
    for place in options.queues or ():
        if place.broker in (ANY_BROKER, broker):
            wanted.add(QueueKey(place.topic, place.queue_id))
    if options.queues is None:
        counts = dict.fromkeys(options.topics or (), 1)
        for key in chosen:
            counts[key.topic] = max(counts.get(key.topic, 0), key.queue_id + 1)
        # A queue whose directory was lost leaves a gap in the numbers, or no directory at all.
        for topic, count in counts.items():
            wanted |= {QueueKey(topic, number) for number in range(count)}
    for key in sorted(wanted - set(chosen)):
        raise Doubt(f"there is no queue {key}")


def _merged(spans: list[ByteRange]) -> list[ByteRange]:
    merged: list[ByteRange] = []
    for one in sorted(spans):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = ByteRange(merged[-1].start, max(merged[-1].stop, one.stop))
        else:
            merged.append(one)
    return merged


def _check_whole(queue: QueueFiles, stop: int) -> None:
    """Doubt a queue that lacks a file, or has entries after the zeros that should end it."""
    if stop == queue.first_offset:
        raise Doubt(f"queue {queue.key} has no entries")
    for one, other in itertools.pairwise(queue.files):
        if one.first + one.entry_count != other.first:
            raise Doubt(f"queue {queue.key} has no file of entry {one.first + one.entry_count}")
    for _, entries in queue.entries(stop, queue.data_stop()):
        if entries.tobytes().replace(KEPT_PLACE_BYTES, b"").strip(b"\0"):
            raise Doubt(f"queue {queue.key} ends at entry {stop} and has other bytes after that")


def segment_at(segments: Sequence[Segment], physical_offset: int) -> Segment | None:
    """Return the file that holds an offset of the log; None where no file does."""
    number = bisect_right(segments, physical_offset, key=lambda one: one.base) - 1
    found = segments[number] if number >= 0 else None
    return found if found is not None and physical_offset < found.base + found.size else None


class _Log:
    """The files of a log, as a queue's entries point into them."""

    def __init__(self, store: StorePlace, segments: Sequence[Segment]) -> None:
        self.store = store
        self.segments = segments
        self.files, _ = files_at(store.location)
        self.start = segments[0].base
        self.end = segments[-1].base + segments[-1].size

    def last_record(self, key: QueueKey) -> int | None:
        """Return where the record of a queue's last entry starts; None where none does."""
        queue = queue_files(self.store.location, key)
        return self._record_start(queue, queue.written_stop() - 1)

    def span(self, wanted: QueueRange) -> ByteRange | None:
        """Return where records of a queue's range start, from the first to the last, if any do."""
        queue = queue_files(self.store.location, QueueKey(wanted.topic, wanted.queue_id))
        maximum = queue.written_stop()
        _check_whole(queue, maximum)
        first = self._first_kept(queue)
        start = first if wanted.start <= first else queue.next_message(wanted.start, maximum)[0]
        stop = maximum if wanted.stop is None else min(wanted.stop, maximum)
        if start >= stop:
            return None
        low, high = self._stated_start(queue, start), self._stated_start(queue, stop - 1)
        if low > high:
            raise Doubt(f"entry {stop - 1} of queue {queue.key} points before entry {start}")
        before = queue.entry(first - 1)
        if wanted.start <= first and first > 0 and (before is None or before.is_filler):
            # The log may hold records before the first kept entry, since no entry is before it.
            # Fillers say nothing: 4.9 writes them for records that it did not enter after a crash.
            low = self.start - 1  # which says so
        return ByteRange(low, high + 1)

    def _stated_start(self, queue: QueueFiles, number: int) -> int:
        """Return where the record of an entry starts, which says so itself."""
        at = self._record_start(queue, number)
        if at is None:
            raise Doubt(f"entry {number} of queue {queue.key} leads to no record that says so")
        return at

    def _first_kept(self, queue: QueueFiles) -> int:
        """Return the first entry that points into the log; fillers and expired ones come before."""

        def is_kept(number: int) -> bool:
            entry = queue.entry(number)
            if entry is None:
                raise Doubt(f"entry {number} of queue {queue.key} was never written")
            return entry.is_message and entry.physical_offset >= self.start

        if is_kept(queue.first_offset):
            return queue.first_offset
        first = queue.min_offset(self.start)
        # One entry that lies can lead a search past what is before it.
        for number in (first - (1 << power) for power in range(63)):
            if number < queue.first_offset:
                break
            if is_kept(number):
                raise Doubt(f"entry {number} of queue {queue.key} comes before expired ones")
        return first

    def _record_start(self, queue: QueueFiles, number: int) -> int | None:
        """Return where the record of an entry starts, None unless the record says so itself."""
        entry = queue.entry(number)
        if entry is None or entry.is_filler or entry.record_size > _MOST_RECORD_BYTES:
            return None
        at = entry.physical_offset
        segment = segment_at(self.segments, at)
        if segment is None:
            return None
        with opened(self.files, segment.path) as file:
            content = file.read(at - segment.base, entry.record_size)
        try:
            found = decode_record(content, 0, base=at, check_crc=False)
        except FormatError:
            return None
        stated = (found.topic, found.queue_id, found.queue_offset)
        return at if stated == (*queue.key, number) else None
