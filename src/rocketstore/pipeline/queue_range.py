"""Queue offsets that a query asks for: which there are, and where in the log their records lie."""

from __future__ import annotations

from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.offsets import ANY_BROKER, EARLIEST, LATEST, QueuePlace
from rocketstore.pipeline.queues import list_queues, queue_files
from rocketstore.units import ByteRange, QueueKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from rocketstore.pipeline.options import ReadOptions
    from rocketstore.pipeline.queues import QueueFiles
    from rocketstore.pipeline.stores import Segment, StorePlace

ENTRY_LIMIT: Final = 4_000_000
"""Most entries that planning reads to learn which ranges hold asked records: 80 MB."""

LOOKS_AT_ONCE: Final = 16
"""Files that planning looks into side by side."""

_HEAD_BYTES: Final = 36
"""Of a record, up to its own address."""

_MAGICS: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


class QueueRange(NamedTuple):
    """Queue offsets ``[start, stop)`` of a queue; `stop` None is the end, wherever that will be."""

    topic: str
    queue_id: int
    start: int
    stop: int | None


class WantedSpans:
    """Where in the log the asked records lie.

    Attributes
    ----------
    spans
        Ranges that hold asked records, or may.
    offsets
        Single records; sorted.
    """

    def __init__(self, spans: list[ByteRange], offsets: npt.NDArray[np.int64] | None) -> None:
        self.spans = spans
        self.offsets = offsets

    def within(self, extent: ByteRange) -> ByteRange | None:
        """Return the part of `extent` that asked records start in, None where none does."""
        parts = [
            ByteRange(max(span.start, extent.start), min(span.stop, extent.stop))
            for span in self.spans
            if span.start < extent.stop and extent.start < span.stop
        ]
        if self.offsets is not None:
            first, behind = self.offsets.searchsorted([extent.start, extent.stop])
            if first < behind:
                # The last one starts there; where it ends is the reader's matter.
                last = int(self.offsets[behind - 1])
                parts.append(ByteRange(int(self.offsets[first]), last + 1))
        if not parts:
            return None
        return ByteRange(min(one.start for one in parts), max(one.stop for one in parts))

    def edges(self, extent: ByteRange) -> list[int]:
        """Return the single records that bound what `within` gives: the first and the last one."""
        if self.offsets is None:
            return []
        first, behind = self.offsets.searchsorted([extent.start, extent.stop])
        return [int(self.offsets[at]) for at in (first, behind - 1)] if first < behind else []


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
) -> WantedSpans | None:
    """Return where the records of the chosen queues lie; None when that is not known."""
    import numpy as np  # noqa: PLC0415 - planning a query without offsets needs none

    by_key = {QueueKey(one.topic, one.queue_id): one for one in ranges}
    listed = [key for key in list_queues(store.location) if is_chosen(options, store, key)]
    if not _are_complete(listed, by_key, options):
        return None
    spans: list[ByteRange] = []
    parts = []
    budget = ENTRY_LIMIT
    end = segments[-1].base + segments[-1].size
    for key in listed:
        queue = queue_files(store.location, key)
        wanted = by_key.get(key, QueueRange(*key, 0, None))
        maximum = queue.written_stop()
        start = max(wanted.start, queue.min_offset(segments[0].base))
        stop = maximum if wanted.stop is None else min(wanted.stop, maximum)
        # Nothing vouches for an end that is not a number: records may not be dispatched yet.
        is_open = wanted.stop is None or wanted.stop > maximum
        offsets = None
        if start < stop:
            low = _record_start(store, segments, queue, start)
            high = _record_start(store, segments, queue, stop - 1)
            if low is None or high is None:
                return None
            if stop - start <= budget:
                budget -= stop - start
                offsets = queue.physical_offsets(start, stop)
            if offsets is None:
                spans.append(ByteRange(low, high + 1))
            else:
                parts.append(offsets)
            if is_open:
                spans.append(ByteRange(high, end))
        elif is_open:
            last = _record_start(store, segments, queue, maximum - 1)
            spans.append(ByteRange(segments[0].base if last is None else last, end))
    return WantedSpans(spans, np.sort(np.concatenate(parts)) if parts else None)


def are_records(store: StorePlace, segments: Sequence[Segment], offsets: Collection[int]) -> bool:
    """Whether a record that states its own address stands at each of some physical offsets."""
    files, _ = files_at(store.location)
    ordered = sorted(offsets)

    def are_in(segment: Segment) -> bool:
        inside = ordered[
            bisect_left(ordered, segment.base) : bisect_left(ordered, segment.base + segment.size)
        ]
        if not inside:
            return True
        with opened(files, segment.path) as file:
            return all(
                _address_of(file.read(at - segment.base, _HEAD_BYTES)) == at for at in inside
            )

    # On an object store each look is a request.
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="rocketstore-plan") as pool:
        return all(pool.map(are_in, segments))


def _address_of(head: bytes) -> int:
    """Return the address that the head of a record states, -1 if it is none."""
    is_record = len(head) == _HEAD_BYTES and head[4:8] in _MAGICS
    return int.from_bytes(head[28:36], "big") if is_record else -1


def is_chosen(options: ReadOptions, store: StorePlace, key: QueueKey) -> bool:
    """Whether a queue is among those that the options choose."""
    if options.queues is not None:
        brokers = (ANY_BROKER, store.broker_name)
        return any(QueuePlace(key.topic, one, key.queue_id) in options.queues for one in brokers)
    return options.wants_topic(key.topic)


def _are_complete(
    listed: Sequence[QueueKey], by_key: Mapping[QueueKey, QueueRange], options: ReadOptions
) -> bool:
    """Whether every queue that the query may mean has a directory to be pruned by."""
    if not by_key.keys() <= set(listed) or options.topic_pattern is not None:
        return False
    if options.queues is not None:
        return {(place.topic, place.queue_id) for place in options.queues} <= set(listed)
    ids: dict[str, set[int]] = {topic: set() for topic in options.topics or ()}
    for key in listed:
        ids[key.topic].add(key.queue_id)
    # A queue whose directory was lost may leave a gap in the numbers, or no directory at all.
    return all(found and found == set(range(len(found))) for found in ids.values())


def _record_start(
    store: StorePlace, segments: Sequence[Segment], queue: QueueFiles, queue_offset: int
) -> int | None:
    """Return where the record of an entry starts, None unless the record says so itself."""
    entry = queue.entry(queue_offset)
    if entry is None or entry.is_filler:
        return None
    at = entry.physical_offset
    segment = next((one for one in segments if one.base <= at < one.base + one.size), None)
    if segment is None:
        return None
    files, _ = files_at(store.location)
    with opened(files, segment.path) as file:
        head = file.read(at - segment.base, _HEAD_BYTES)
    numbers = int.from_bytes(head[12:16], "big"), int.from_bytes(head[20:28], "big")
    is_record = _address_of(head) == at and numbers == (queue.key.queue_id, queue_offset)
    return at if is_record else None
