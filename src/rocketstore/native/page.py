"""Copy the records of queue entries into one buffer, as a pull response carries them.

One call serves one page out of one CommitLog file: it decides entry by entry as
``storage.reading.get_page`` does, compares each record with its entry, and copies. Whatever needs
more than the bytes at hand (another file, a record of another queue) ends the call; Python deals
with that entry and calls again.

Law: nothing is read outside ``log[:readable]`` and nothing is copied that the walk would not take
for a record, or whose topic and queue are not the ones asked for. Body checksums are not computed
here: a consumer compares them.

Source: DefaultMessageStore.getMessage of 4.9 (spec B13).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES as _ENTRY_SIZE
    from rocketstore.format.queue_entry import FILLER_SIZE as _FILLER_SIZE
    from rocketstore.format.record import FIXED_SIZE as _FIXED_SIZE
    from rocketstore.native.gather_plan import GatherStop, GatherView, PlanColumn
    from rocketstore.native.row import StopReason
    from rocketstore.native.view import (
        Bytes,
        Numbers,
        bytes_of,
        copy_bytes,
        find_byte,
        load_i32,
        load_i64,
        load_u8,
        load_u32,
        numbers_of,
        prefetch,
    )
    from rocketstore.native.walk import check_record, topic_place, v6_extra_bytes

    _AHEAD = 8
    _OTHERS, _TAKE = 3, 4
    _QUEUE_ID, _TOPIC_SIZE, _MEMORY_BYTES, _MEMORY_COUNT = range(4)
    _DISK_BYTES, _DISK_COUNT, _TAG_COUNT, _TAGS = range(4, 8)
    assert PlanColumn.TAGS == _TAGS

_NAME_TAGS = int.from_bytes(b"TAGS", "big")
_LOW_32 = 0xFFFFFFFF
_MAX_EXT_ADDRESS = -(2**31) - 1


def texts_equal(first: Bytes, at: int, second: Bytes, other: int, size: int) -> bool:
    """Return whether two runs of bytes are the same; both lie inside their arrays."""
    for i in range(size):
        if load_u8(first, at + i) != load_u8(second, other + i):
            return False
    return True


def topic_of(log: Bytes, at: int) -> tuple[int, int]:
    """Return place and size of the topic of a record that `check_record` found intact."""
    born_extra, store_extra = v6_extra_bytes(load_u32(log, at + 36))
    body_at = at + 88 + born_extra + store_extra
    length_at = body_at + load_i32(log, body_at - 4)
    size, topic_at = topic_place(log, length_at, load_u32(log, at + 4))
    return topic_at, size


class Page:
    """A page under way."""

    log: Bytes
    entries: Bytes
    names: Bytes
    out: Bytes
    plan: Numbers
    base: int
    readable: int
    log_min: int
    in_disk_below: int
    entry: int
    count: int
    written: int
    skipped: int
    view: int

    def prefetch_record(self, entry: int) -> None:
        """Have the start of an entry's record fetched while the records before it are copied."""
        at = load_i64(self.entries, entry * _ENTRY_SIZE) - self.base
        size = min(load_i32(self.entries, entry * _ENTRY_SIZE + 8), 1280)
        if 0 <= at < self.log.size:
            for line in range(0, size, 64):
                prefetch(self.log, at + line)

    def may_match(self, code: int) -> bool:
        """Return whether a tags code is that of a wanted tag, or says nothing about tags."""
        low = code & _LOW_32
        for n in range(self.plan[_TAG_COUNT]):
            if self.plan[_TAGS + 3 * n] == low:
                return True
        return code <= _MAX_EXT_ADDRESS

    def tags_match(self, at: int, stop: int) -> bool:
        """Return whether the value of the last ``TAGS`` property is a wanted tag."""
        value_at = -1
        value_size = 0
        while at < stop:
            end = find_byte(self.log, at, stop, 2)
            # "TAGS" and 0x01, and at least one byte of value
            if (
                end - at >= 6
                and load_u32(self.log, at) == _NAME_TAGS
                and load_u8(self.log, at + 4) == 1
            ):
                value_at = at + 5
                value_size = end - value_at
            at = end + 1
        if value_at < 0:
            return False
        for n in range(self.plan[_TAG_COUNT]):
            size = self.plan[_TAGS + 3 * n + 2]
            tag_at = self.plan[_TAGS + 3 * n + 1]
            if size == value_size and texts_equal(self.log, value_at, self.names, tag_at, size):
                return True
        return False

    def is_full(self, size: int, is_in_disk: bool) -> bool:
        """Return whether a record of `size` bytes is one too many."""
        plan = self.plan
        if is_in_disk:
            return self.written + size > plan[_DISK_BYTES] or self.count >= plan[_DISK_COUNT]
        return self.written + size > plan[_MEMORY_BYTES] or self.count >= plan[_MEMORY_COUNT]

    def verdict(self, at: int, size: int) -> int:
        """Judge the record that an entry says stands at `at` with a length of `size`."""
        log = self.log
        if size < _FIXED_SIZE or at + size > self.readable or load_i32(log, at) != size:
            return GatherView.LOST
        if check_record(log, at, self.base, self.readable, False) != StopReason.END:
            return GatherView.LOST
        topic_at, topic_size = topic_of(log, at)
        if load_i32(log, at + 12) != self.plan[_QUEUE_ID] or topic_size != self.plan[_TOPIC_SIZE]:
            return _OTHERS
        if not texts_equal(log, topic_at, self.names, 0, topic_size):
            return _OTHERS
        if self.plan[_TAG_COUNT] > 0 and not self.tags_match(topic_at + topic_size + 2, at + size):
            return GatherView.UNWANTED
        return _TAKE

    def gather(self, first: int, stop: int, max_messages: int) -> int:
        """Look at the entries ``first`` to ``stop``."""
        for entry in range(first, min(stop, first + _AHEAD)):
            self.prefetch_record(entry)
        for entry in range(first, stop):
            self.entry = entry
            if entry + _AHEAD < stop:
                self.prefetch_record(entry + _AHEAD)
            if self.count > 0 and self.count >= max_messages:
                return GatherStop.FULL
            entry_at = entry * _ENTRY_SIZE
            offset = load_i64(self.entries, entry_at)
            size = load_i32(self.entries, entry_at + 8)
            code = load_i64(self.entries, entry_at + 12)
            if size <= 0 or (size == _FILLER_SIZE and offset == 0):
                self.skipped += 1
                self.view = GatherView.LOST
                continue
            if self.count > 0 and self.is_full(size, offset < self.in_disk_below):
                return GatherStop.FULL
            if self.plan[_TAG_COUNT] > 0 and not self.may_match(code):
                self.view = GatherView.UNWANTED
                continue
            if offset < self.log_min:
                self.skipped += 1
                self.view = GatherView.LOST
                continue
            at = offset - self.base
            if at < 0 or at >= self.log.size:
                return GatherStop.ELSEWHERE
            found = self.verdict(at, size)
            if found == _OTHERS:
                return GatherStop.DOUBTFUL
            if found != _TAKE:
                self.skipped += found == GatherView.LOST
                self.view = found
                continue
            if size > self.out.size - self.written:
                return GatherStop.NO_ROOM
            copy_bytes(self.out, self.written, self.log, at, size)
            self.written += size
            self.count += 1
        self.entry = max(first, stop)
        return GatherStop.END


def gather(
    log: Bytes,
    base: int,
    readable: int,
    log_min: int,
    entries: Bytes,
    first: int,
    stop: int,
    plan: Numbers,
    names: Bytes,
    max_messages: int,
    in_disk_below: int,
    out: Bytes,
    count: int,
    written: int,
) -> tuple[int, int, int, int, int, int]:
    """Copy the wanted records of the entries ``first`` to ``stop`` to ``out[written:]``.

    Parameters
    ----------
    log
        One CommitLog file, whose first byte has the physical offset `base`; `readable` bytes of it
        may be read.
    log_min
        Records below this offset have expired.
    entries
        Queue entries; entry n stands at byte 20 n.
    plan, names
        See ``native.gather_plan``.
    max_messages
        Most records of the page.
    in_disk_below
        Records below this offset count as being on disk only.
    out
        The page so far holds `count` records and `written` bytes.

    Returns
    -------
    tuple
        ``GatherStop``, the entry it stopped at, count, written, how many entries were stepped over
        as lost, and the ``GatherView`` of the last entry that gave nothing while nothing was found.
    """
    if first < 0:
        return int(GatherStop.END), first, count, written, 0, int(GatherView.NONE)
    page = Page()
    page.log = bytes_of(log)
    page.base = base
    page.readable = min(readable, page.log.size)
    page.log_min = log_min
    page.entries = bytes_of(entries)
    page.plan = numbers_of(plan)
    page.names = bytes_of(names)
    page.in_disk_below = in_disk_below
    page.out = bytes_of(out)
    page.entry = first
    page.count = count
    page.written = written
    page.skipped = 0
    page.view = GatherView.NONE
    last = min(stop, page.entries.size // _ENTRY_SIZE)
    with cython.nogil:
        reason = page.gather(first, last, max_messages)
    return (
        int(reason),
        int(page.entry),
        int(page.count),
        int(page.written),
        int(page.skipped),
        int(page.view),
    )
