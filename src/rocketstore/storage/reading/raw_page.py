"""Pages of raw records, copied back to back: the fast way to serve a pull.

Where log and queue are memory maps, one kernel call selects, checks and copies a whole page; a call
for 32 small messages takes a few microseconds, so everything around it is kept just as small. Any
other source goes through ``storage.reading.get_page``, entry by entry, with the same answer.

A page that is nothing but intact records in one file, as nearly all are, takes half of that where
``_gather.c`` was compiled: it fills the bytes of the result itself. It is optional like the
compiled append (``storage.log.append_state``), and leaves every other page to the kernel.

Law: equal, page for page, to what `get_page.read_page` selects, body checksums aside. Maps are
remembered weakly: this module never keeps the space of a deleted file.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT
from rocketstore.native.gather_plan import GatherStop, GatherView, gather_plan
from rocketstore.scan import kernels
from rocketstore.storage.reading.get_page import (
    FILTER_WINDOW_BYTES,
    PageRequest,
    Rejection,
    read_page,
)
from rocketstore.storage.reading.record_access import (
    belongs_to,
    locate_record,
    raw_properties,
    raw_record_at,
)
from rocketstore.storage.reading.tag_filter import parse_tags, tag_code
from rocketstore.storage.results import GetMessageStatus, GetRawResult
from rocketstore.units import KiB, QueueKey

if TYPE_CHECKING:
    from rocketstore.storage.reading._gather import Gatherer
    from rocketstore.storage.reading.get_page import PageLimits
    from rocketstore.storage.reading.read_sources import (
        ByteArray,
        LogSource,
        MappedLogSource,
        MappedPart,
        MappedQueueSource,
        QueueSource,
    )
    from rocketstore.storage.reading.tag_filter import TagFilter

_SEATS_KEPT: Final = 4096
_LOOKED_AT: Final = FILTER_WINDOW_BYTES // ENTRY_SIZE_BYTES
_SMALLEST_BUFFER_BYTES: Final = 64 * KiB

_Progress: TypeAlias = tuple[int, int, int, int, int, int]
"""What the kernel returns: reason to stop, next entry, count, written, skipped, view."""

_FULL: Final = int(GatherStop.FULL)
_FOUND: Final = GetMessageStatus.FOUND
_STATUS_OF_VIEW: Final = {
    int(GatherView.NONE): GetMessageStatus.NO_MATCHED_MESSAGE,
    int(GatherView.LOST): GetMessageStatus.MESSAGE_WAS_REMOVING,
    int(GatherView.UNWANTED): GetMessageStatus.NO_MATCHED_MESSAGE,
}
_VIEW_OF_REJECTION: Final = {
    Rejection.LOST: int(GatherView.LOST),
    Rejection.UNWANTED: int(GatherView.UNWANTED),
}
_NO_BYTES: Final = np.empty(0, dtype=np.uint8)
_new_result: Final = tuple.__new__
"""Makes the tuple that a result is, at half the cost of calling its class."""


def _compiled_gatherer() -> type[Gatherer] | None:
    """Return the compiled class, None where there is none to be used."""
    if not kernels.is_compiled():
        return None
    try:
        from rocketstore.storage.reading import _gather  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return _gather.Gatherer


_Gatherer: Final = _compiled_gatherer()


def _gatherer_of(key: QueueKey, limits: PageLimits) -> Gatherer | None:
    """Return what copies plain pages of a queue, if that is compiled and such a queue can be."""
    if _Gatherer is None or not 0 <= key.queue_id < 1 << 31:
        return None
    topic = key.topic.encode("utf-8", "surrogatepass")
    return _Gatherer(topic, key.queue_id, limits[:4], GetRawResult, _FOUND)


class _Seat:
    """What is remembered of a queue between the pulls of one reader."""

    __slots__ = (
        "first_file",
        "gatherer",
        "key",
        "minimum",
        "names",
        "numbers",
        "tag_filter",
        "window",
    )

    def __init__(self, key: QueueKey, tag_filter: TagFilter | None, limits: PageLimits) -> None:
        self.key = key
        self.tag_filter = tag_filter
        tags = () if tag_filter is None else tag_filter.tags
        wanted = [(tag_code(tag), tag) for tag in tags]
        self.numbers, self.names = gather_plan(key.topic, key.queue_id, limits[:4], wanted)
        self.gatherer = None if tag_filter else _gatherer_of(key, limits)
        self.window: tuple[weakref.ref[ByteArray], int, int, QueueSource | None]
        self.window = (weakref.ref(_NO_BYTES), 0, 0, None)
        self.minimum = 0
        self.first_file: MappedPart | None = None


class RawPages:
    """Reads raw pages of one store; safe to use from several threads."""

    def __init__(self, log: LogSource, limits: PageLimits) -> None:
        self._log = log
        self._limits = limits
        self._span_bytes = limits.memory_span_bytes
        self._is_mapped = hasattr(log, "files")
        self._mapped = cast("MappedLogSource", log)
        self._seats: dict[tuple[str, int, str | None], _Seat] = {}
        self._buffers: list[ByteArray] = []
        self._recent: tuple[weakref.ref[ByteArray], MappedPart] | None = None

    def read(
        self,
        queue: QueueSource | None,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        tags: str | None,
    ) -> GetRawResult:
        """Return a page; see `Reader.get_raw`."""
        try:
            seat = self._seats[topic, queue_id, tags]
        except KeyError:
            seat = self._take_seat(topic, queue_id, tags)
        reference, base, stop, whose = seat.window
        entries = reference()
        if not base <= offset < stop or whose is not queue or entries is None:
            found = self._move(seat, queue, offset)
            if found is None:
                return self._read_slowly(queue, seat, offset, max_messages)
            entries, base, stop = found
        assert queue is not None
        maximum = queue.max_offset
        first_file = self._mapped.files.files[0]
        if seat.first_file is not first_file:
            # The minimum moves only when the log's first file goes.
            seat.minimum, seat.first_file = queue.min_offset, first_file
        minimum = seat.minimum
        if not minimum <= offset < maximum:
            return self._read_slowly(queue, seat, offset, max_messages)
        # Spelled out: min() and max() take longer than all the rest of this.
        limit = offset + (_LOOKED_AT if max_messages < _LOOKED_AT else max_messages)  # noqa: FURB136
        if maximum < limit:  # noqa: PLR1730
            limit = maximum
        stop = stop if stop < limit else limit  # noqa: FURB136
        in_disk_below = self._log.max_offset - self._span_bytes
        gatherer, recent = seat.gatherer, self._recent
        if gatherer is not None and recent is not None:
            log, part = recent[0](), recent[1]
            page = None if log is None else gatherer.page(
                log, part.base, part.write_position, entries, base, offset, stop,
                max_messages, in_disk_below, minimum, maximum,
            )  # fmt: skip
            if page is not None:
                return page
        progress, records = self._by_kernel(
            seat, entries, offset - base, stop - base, (max_messages, in_disk_below)
        )
        _, entry, count, _, skipped, view = progress
        status = _FOUND if count else _STATUS_OF_VIEW[view]
        return _new_result(
            GetRawResult, (status, records, count, base + entry, minimum, maximum, skipped)
        )

    def _by_kernel(
        self, seat: _Seat, entries: ByteArray, entry: int, stop: int, bounds: tuple[int, int]
    ) -> tuple[_Progress, bytes]:
        """Return what the kernel says of a page, and its records; `bounds` as of `_go_on`."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(max(self._limits.memory_bytes, _SMALLEST_BUFFER_BYTES), np.uint8)
        recent = self._recent
        log = None if recent is None else recent[0]()
        if recent is not None and log is not None:
            part = recent[1]
            progress = kernels.gather(
                log, part.base, part.write_position, 0, entries, entry, stop,
                seat.numbers, seat.names, *bounds, buffer, 0, 0,
            )  # fmt: skip
        else:
            progress = (int(GatherStop.ELSEWHERE), entry, 0, 0, 0, 0)
        if progress[0] > _FULL:
            progress, buffer = self._go_on(seat, entries, stop, bounds, progress, buffer)
        records = buffer[: progress[3]].tobytes()
        self._buffers.append(buffer)
        return progress, records

    def _take_seat(self, topic: str, queue_id: int, tags: str | None) -> _Seat:
        seat = _Seat(QueueKey(topic, queue_id), parse_tags(tags), self._limits)
        if len(self._seats) >= _SEATS_KEPT:
            self._seats.clear()
        self._seats[topic, queue_id, tags] = seat
        return seat

    def _move(
        self, seat: _Seat, queue: QueueSource | None, offset: int
    ) -> tuple[ByteArray, int, int] | None:
        """Let a seat remember the queue file of an offset; None where there is no mapped one."""
        if not self._is_mapped or not self._mapped.files.files:
            return None
        if offset < 0 or not hasattr(queue, "window"):
            return None
        window = cast("MappedQueueSource", queue).window(offset * ENTRY_SIZE_BYTES)
        if window is None:
            return None
        array = window.array
        base = window.base // ENTRY_SIZE_BYTES
        stop = base + array.shape[0] // ENTRY_SIZE_BYTES
        seat.first_file = None
        seat.window = (weakref.ref(array), base, stop, queue)
        return array, base, stop

    def _go_on(
        self,
        seat: _Seat,
        entries: ByteArray,
        stop: int,
        bounds: tuple[int, int],
        progress: _Progress,
        buffer: ByteArray,
    ) -> tuple[_Progress, ByteArray]:
        """Finish a page at whose entries the kernel needs help.

        `bounds` are the most messages wanted and the offset below which records are on disk.
        """
        reason, entry, count, written, skipped, view = progress
        log = self._log
        while reason > _FULL:
            at = entry * ENTRY_SIZE_BYTES
            physical_offset, size, _ = ENTRY_STRUCT.unpack_from(entries.data, at)
            array, part = self._find(physical_offset)
            if reason == GatherStop.NO_ROOM:
                buffer = _grown(buffer, written, size)
            elif part is None or reason == GatherStop.DOUBTFUL:
                record = raw_view(log, physical_offset, size, seat.key, seat.tag_filter)
                if isinstance(record, Rejection):
                    view = _VIEW_OF_REJECTION[record]
                    skipped += record is Rejection.LOST
                else:
                    if size > buffer.size - written:
                        buffer = _grown(buffer, written, size)
                    buffer[written : written + size] = np.frombuffer(record, np.uint8)
                    written, count = written + size, count + 1
                entry += 1
            base, readable = (0, 0) if part is None else (part.base, part.write_position)
            reason, entry, count, written, more_skipped, seen = kernels.gather(
                array, base, readable, log.min_offset, entries, entry, stop,
                seat.numbers, seat.names, *bounds, buffer, count, written,
            )  # fmt: skip
            skipped, view = skipped + more_skipped, seen or view
        return (reason, entry, count, written, skipped, view), buffer

    def _find(self, physical_offset: int) -> tuple[ByteArray, MappedPart | None]:
        """Return the file that holds an offset, and its bytes."""
        part = self._mapped.files.find(physical_offset)
        if part is None or not part.is_available:
            return _NO_BYTES, None
        try:
            array = part.array
        except FileNotFoundError:  # deleted since
            return _NO_BYTES, None
        self._recent = (weakref.ref(array), part)
        return array, part

    def _read_slowly(
        self, queue: QueueSource | None, seat: _Seat, offset: int, max_messages: int
    ) -> GetRawResult:
        key = seat.key
        request = PageRequest(key.topic, key.queue_id, offset, max_messages, seat.tag_filter)

        def take(physical_offset: int, size: int) -> memoryview | Rejection:
            return raw_view(self._log, physical_offset, size, key, seat.tag_filter)

        page = read_page(request, queue, self._limits, self._log.max_offset, take)
        status, records, *rest = page
        return GetRawResult(status, b"".join(records), len(records), *rest)


def _grown(buffer: ByteArray, written: int, size: int) -> ByteArray:
    """Return a larger buffer with the same bytes, and room for `size` more."""
    larger = np.empty(2 * (written + size), dtype=np.uint8)
    larger[:written] = buffer[:written]
    return larger


def raw_view(
    log: LogSource, physical_offset: int, size: int, key: QueueKey, wanted: TagFilter | None
) -> memoryview | Rejection:
    """Return a view of the record that an entry of a queue points at, or why there is none."""
    view = raw_record_at(log, physical_offset, size)
    place = None if view is None else locate_record(view, physical_offset)
    if view is None or place is None:
        return Rejection.LOST
    topic = place.topic.decode("utf-8", "replace")
    if wanted is not None or (topic, place.queue_id) != key:
        properties = raw_properties(view, place)
        if not belongs_to(topic, place.queue_id, properties, key):
            return Rejection.LOST
        if wanted is not None and not wanted.matches(properties):
            return Rejection.UNWANTED
    return memoryview(view)
