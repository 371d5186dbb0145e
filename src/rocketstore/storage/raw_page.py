"""Pages of raw records, copied back to back: the fast way to serve a pull.

Where log and queue are memory maps, one kernel call selects, checks and copies a whole page; a call
for 32 small messages takes a few microseconds, so everything around it is kept just as small. Any
other source goes through ``storage.get_page``, entry by entry, with the same answer.

Law: equal, page for page, to what `get_page.read_page` selects, body checksums aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np

from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT
from rocketstore.scan import kernels
from rocketstore.scan.gather_plan import GatherPlan, GatherStop, GatherView, gather_plan
from rocketstore.storage.get_page import (
    FILTER_WINDOW_BYTES,
    PageRequest,
    Rejection,
    read_page,
)
from rocketstore.storage.read_sources import MappedWindow
from rocketstore.storage.record_access import belongs_to, locate, raw_properties, raw_record_at
from rocketstore.storage.results import GetMessageStatus, GetRawResult
from rocketstore.storage.tag_filter import TagFilter, parse_tags, tag_code
from rocketstore.units import KiB, QueueKey

if TYPE_CHECKING:
    from rocketstore.storage.get_page import PageLimits
    from rocketstore.storage.read_sources import (
        ByteArray,
        LogSource,
        MappedLogSource,
        MappedPart,
        QueueSource,
    )

_PLANS_KEPT: Final = 4096
_LOOKED_AT: Final = FILTER_WINDOW_BYTES // ENTRY_SIZE_BYTES
_SMALLEST_BUFFER_BYTES: Final = 64 * KiB

_Progress: TypeAlias = tuple[int, int, int, int, int, int]
"""What the kernel returns: reason to stop, next entry, count, written, skipped, view."""

_STATUS_OF_VIEW: Final = {
    int(GatherView.NONE): GetMessageStatus.NO_MATCHED_MESSAGE,
    int(GatherView.LOST): GetMessageStatus.MESSAGE_WAS_REMOVING,
    int(GatherView.UNWANTED): GetMessageStatus.NO_MATCHED_MESSAGE,
}
_VIEW_OF_REJECTION: Final = {
    Rejection.LOST: int(GatherView.LOST),
    Rejection.UNWANTED: int(GatherView.UNWANTED),
}
_FULL: Final = int(GatherStop.FULL)
_FOUND: Final = GetMessageStatus.FOUND


class RawPages:
    """Reads raw pages of one store; safe to use from several threads."""

    def __init__(self, log: LogSource, limits: PageLimits) -> None:
        self._log = log
        self._limits = limits
        self._span_bytes = limits.memory_span_bytes
        self._is_mapped = hasattr(log, "files")
        self._plans: dict[tuple[str, int, str | None], GatherPlan] = {}
        self._buffers: list[ByteArray] = []
        self._recent: MappedPart | None = None

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
        if queue is None or not self._is_mapped or not hasattr(queue, "window"):
            return self._read_slowly(queue, topic, queue_id, offset, max_messages, tags)
        minimum, maximum = queue.min_offset, queue.max_offset
        if not minimum <= offset < maximum:
            return self._read_slowly(queue, topic, queue_id, offset, max_messages, tags)
        window = queue.window(offset * ENTRY_SIZE_BYTES)
        if window is None:
            return self._read_slowly(queue, topic, queue_id, offset, max_messages, tags)
        array, base, readable = window
        try:
            numbers, names = self._plans[topic, queue_id, tags]
        except KeyError:
            numbers, names = self._plan(topic, queue_id, tags)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = np.empty(max(self._limits.memory_bytes, _SMALLEST_BUFFER_BYTES), np.uint8)
        first = offset - base // ENTRY_SIZE_BYTES
        stop = min(readable // ENTRY_SIZE_BYTES, first + max(max_messages, _LOOKED_AT))
        in_disk_below = self._log.max_offset - self._span_bytes
        log_array, log_base, log_readable = self._recent_part()
        progress = kernels.gather(
            log_array, log_base, log_readable, 0, array, first, stop,
            numbers, names, max_messages, in_disk_below, buffer, 0, 0,
        )  # fmt: skip
        if progress[0] > _FULL:
            request = PageRequest(topic, queue_id, offset, max_messages, parse_tags(tags))
            progress, buffer = self._go_on(request, array, stop, in_disk_below, progress, buffer)
        _, entry, count, written, skipped, view = progress
        result = GetRawResult(
            _FOUND if count else _STATUS_OF_VIEW[view],
            buffer[:written].tobytes(),
            count,
            offset + entry - first,
            minimum,
            maximum,
            skipped,
        )
        self._buffers.append(buffer)
        return result

    def _go_on(
        self,
        request: PageRequest,
        entries: ByteArray,
        stop: int,
        in_disk_below: int,
        progress: _Progress,
        buffer: ByteArray,
    ) -> tuple[_Progress, ByteArray]:
        """Finish a page at whose entries the kernel needs help."""
        reason, entry, count, written, skipped, view = progress
        log, key = self._log, QueueKey(request.topic, request.queue_id)
        numbers, names = self._plan(request.topic, request.queue_id, request.tag_filter)
        while reason > _FULL:
            physical_offset, size, _ = ENTRY_STRUCT.unpack_from(
                entries.data, entry * ENTRY_SIZE_BYTES
            )
            part = self._find(physical_offset)
            if reason == GatherStop.NO_ROOM:
                buffer = _grown(buffer, written, size)
            elif part is None or reason == GatherStop.DOUBTFUL:
                record = raw_view(log, physical_offset, size, key, request.tag_filter)
                if isinstance(record, Rejection):
                    view = _VIEW_OF_REJECTION[record]
                    skipped += record is Rejection.LOST
                else:
                    if size > buffer.size - written:
                        buffer = _grown(buffer, written, size)
                    buffer[written : written + size] = np.frombuffer(record, np.uint8)
                    written, count = written + size, count + 1
                entry += 1
            log_array, log_base, log_readable = part or _NO_PART
            reason, entry, count, written, more_skipped, seen = kernels.gather(
                log_array, log_base, log_readable, log.min_offset, entries, entry, stop,
                numbers, names, request.max_messages, in_disk_below, buffer, count, written,
            )  # fmt: skip
            skipped, view = skipped + more_skipped, seen or view
        return (reason, entry, count, written, skipped, view), buffer

    def _plan(self, topic: str, queue_id: int, tags: str | TagFilter | None) -> GatherPlan:
        tag_filter = tags if isinstance(tags, TagFilter) else parse_tags(tags)
        wanted = [] if tag_filter is None else [(tag_code(tag), tag) for tag in tag_filter.tags]
        plan = gather_plan(topic, queue_id, self._limits[:4], wanted)
        if tags is None or isinstance(tags, str):
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            self._plans[topic, queue_id, tags] = plan
        return plan

    def _recent_part(self) -> MappedWindow:
        """Return the file that the last page ended in, which is nearly always the right one."""
        part = self._recent
        return _window_of(part) or _NO_PART if part is not None else _NO_PART

    def _find(self, physical_offset: int) -> MappedWindow | None:
        part = cast("MappedLogSource", self._log).files.find(physical_offset)
        window = None if part is None else _window_of(part)
        if window is not None:
            self._recent = part
        return window

    def _read_slowly(
        self,
        queue: QueueSource | None,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        tags: str | None,
    ) -> GetRawResult:
        request = PageRequest(topic, queue_id, offset, max_messages, parse_tags(tags))
        key = QueueKey(topic, queue_id)

        def take(physical_offset: int, size: int) -> memoryview | Rejection:
            return raw_view(self._log, physical_offset, size, key, request.tag_filter)

        page = read_page(request, queue, self._limits, self._log.max_offset, take)
        status, records, *rest = page
        return GetRawResult(status, b"".join(records), len(records), *rest)


_NO_PART: Final = MappedWindow(np.empty(0, dtype=np.uint8), 0, 0)
"""A file that holds no record."""


def _window_of(part: MappedPart) -> MappedWindow | None:
    """Return the bytes of a file, None once it is being deleted."""
    if not part.is_available:
        return None
    try:
        return MappedWindow(part.array, part.base, part.write_position)
    except OSError:  # deleted since
        return None


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
    place = None if view is None else locate(view)
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
