"""Which bytes of a log can hold records of chosen queues, by the first and last entry of each.

Law: a range of the log is left out only where both entries lead to records that state the same
topic, queue and queue offset, and a queue that might lack a record is `Doubt`: all is read then.
What is not dispatched yet lies after the last record that any queue has, and is always read.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError, StoreError
from rocketstore.format.queue_entry import KEPT_PLACE_BYTES
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.offsets import ANY_BROKER, EARLIEST, LATEST, QueuePlace
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.stores import Segment, StorePlace

LOOKS_AT_ONCE: Final = 16
"""Queues that planning looks into side by side: on an object store each look is a request."""

MOST_QUEUES: Final = 64
"""Whose entries a task looks for, each by a search; with more of them it scans."""

_HEAD_BYTES: Final = 112
"""Of a record, up to the length of its body, whatever its addresses."""

_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


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


class Doubt(Exception):  # noqa: N818 - not an error: more is read
    """Why a queue is not to be believed."""


class QueueRange(NamedTuple):
    """Queue offsets ``[start, stop)`` of a queue; `stop` None is the end, wherever that will be."""

    topic: str
    queue_id: int
    start: int
    stop: int | None


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
        queue = queue_files(store.location, key)
        if options.fail_on_data_loss:
            _check_there(store, segments, queue, start, stop)
        ranges.append(
            QueueRange(*key, 0 if start == EARLIEST else start, None if stop == LATEST else stop)
        )
    return tuple(ranges)


def _of_broker(offsets: Mapping[QueuePlace, int], broker: str) -> dict[QueueKey, int]:
    """Return the offsets that hold for a broker; the ones that name it win."""
    named = {}
    for place, offset in sorted(offsets.items(), key=lambda item: item[0].broker != ANY_BROKER):
        if place.broker in (ANY_BROKER, broker):
            named[QueueKey(place.topic, place.queue_id)] = offset
    return named


def _check_there(
    store: StorePlace, segments: Sequence[Segment], queue: QueueFiles, start: int, stop: int
) -> None:
    hint = 'to read what is there: option("failOnDataLoss", "false")'
    if not queue.files:
        raise StoreError(f"{store.location} has no queue {queue.key}", hint=hint)
    maximum = queue.written_stop()
    minimum = queue.min_offset(segments[0].base) if segments else maximum
    if start not in (EARLIEST, LATEST) and not minimum <= start <= maximum:
        raise StoreError(
            f"queue {queue.key} of {store.location}: startingOffsets asks for {start}, "
            f"there are {minimum} to {maximum}",
            hint=hint,
        )
    if stop not in (EARLIEST, LATEST) and stop > maximum:
        raise StoreError(
            f"queue {queue.key} of {store.location}: endingOffsets asks for {stop}, "
            f"the queue ends at {maximum}",
            hint=hint,
        )


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
    there = set(chosen)
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
    for key in sorted(wanted - there):
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
        first = self._first_kept(queue, maximum)
        start = first if wanted.start <= first else queue.next_message(wanted.start, maximum)[0]
        stop = maximum if wanted.stop is None else min(wanted.stop, maximum)
        if start >= stop:
            return None
        low, high = self._stated_start(queue, start), self._stated_start(queue, stop - 1)
        if low > high:
            raise Doubt(f"entry {stop - 1} of queue {queue.key} points before entry {start}")
        if wanted.start <= first and not self._begins_there(queue, first):
            low = self.start - 1  # which says so
        return ByteRange(low, high + 1)

    def _stated_start(self, queue: QueueFiles, number: int) -> int:
        """Return where the record of an entry starts, which says so itself."""
        at = self._record_start(queue, number)
        if at is None:
            raise Doubt(f"entry {number} of queue {queue.key} leads to no record that says so")
        return at

    def _begins_there(self, queue: QueueFiles, first: int) -> bool:
        """Whether the log can hold no record of a queue that stands before its first kept entry.

        Fillers say nothing: 4.9 writes them for records that it did not enter again after a crash.
        """
        before = queue.entry(first - 1)
        return first == 0 or (before is not None and not before.is_filler)

    def _first_kept(self, queue: QueueFiles, stop: int) -> int:
        """Return the first entry that points into the log; fillers and expired ones come before."""

        def is_kept(number: int) -> bool:
            entry = queue.entry(number)
            return entry is not None and entry.is_message and entry.physical_offset >= self.start

        low, high = queue.first_offset, stop
        if is_kept(low):
            return low
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_kept(middle) else (middle + 1, high)
        # Lost records have fillers, too, and one that a search meets leads past what is before it.
        for number in (low - (1 << power) for power in range(63)):
            if number < queue.first_offset:
                break
            if queue.entry(number) is None:
                raise Doubt(f"entry {number} of queue {queue.key} was never written")
            if is_kept(number):
                return queue.min_offset(self.start)
        return low

    def _record_start(self, queue: QueueFiles, number: int) -> int | None:
        """Return where the record of an entry starts, None unless the record says so itself."""
        entry = queue.entry(number)
        if entry is None or entry.is_filler:
            return None
        at = entry.physical_offset
        segment = next((one for one in self.segments if 0 <= at - one.base < one.size), None)
        if segment is None:
            return None
        with opened(self.files, segment.path) as file:
            head = file.read(at - segment.base, _HEAD_BYTES)
            if len(head) < _HEAD_BYTES or head[4:8] not in _MAGICS:
                return None
            flags = int.from_bytes(head[36:40], "big")
            # IPv6 addresses are 12 bytes longer; the topic stands after the body.
            body_at = 88 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)
            body_size = int.from_bytes(head[body_at - 4 : body_at], "big")
            width = 2 if head[4:8] == _MAGICS[1] else 1
            rest = file.read(at - segment.base + body_at + body_size, width + 256)
        size = int.from_bytes(rest[:width], "big")
        stated = (
            rest[width : width + size].decode(errors="replace"),
            *(int.from_bytes(head[a:b], "big") for a, b in ((12, 16), (20, 28), (28, 36))),
        )
        return at if stated == (*queue.key, number, at) else None


def is_chosen(options: ReadOptions, store: StorePlace, key: QueueKey) -> bool:
    """Whether a queue is among those that the options choose."""
    if options.queues is not None:
        brokers = (ANY_BROKER, store.broker_name)
        return any(QueuePlace(key.topic, one, key.queue_id) in options.queues for one in brokers)
    return options.wants_topic(key.topic)
