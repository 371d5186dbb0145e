"""A page of one queue: which of its entries give a message, and the page made of them.

`QueuePages` answers a get for one queue, one reader's tags and one store. One loop (`Page.select`)
looks at entry after entry, without Python where records may be on the disk; it stops for rare cases
(a record in another file or of another queue, no space to note more), which Python handles.

Law: an entry that gives no message (a filler, or its record expired, is lost or belongs to another
queue) is stepped over and counted; it is never answered with a false message and never hides a
later one. No byte outside the borrowed views is read. A first message is always given, however
large it is.

Source: DefaultMessageStore.getMessage and isTheBatchFull of 4.9 (spec B13), with K-O1, K-C2, K-C9
corrected: only entries that cannot be read are skipped, not all up to the next CommitLog file.
"""

from __future__ import annotations

import weakref

import numpy as np

from rocketstore.arguments import whole_number
from rocketstore.format.java_hash import tags_code
from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS
from rocketstore.format.record import topic_text
from rocketstore.locks import Lock

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

from rocketstore.native.decode import LogAtHand, LogCursor

if not cython.compiled:
    from typing import Any

    from rocketstore.native import view
    from rocketstore.native.decode import borrowed, message_of
    from rocketstore.native.row import COLUMN_COUNT, Column, StopReason
    from rocketstore.native.touch import is_resident, read_in
    from rocketstore.native.walk import check_record, read_properties, topic_of

    _ENTRY_SIZE, _FILLER_SIZE, _FIXED_SIZE = 20, 0x7FFFFFFF, 91
    _AHEAD, _ROOM, _LOOKED_AT, _SHORT_BYTES, _GAP = 8, 32, 800, 65536, 16384
    _AHEAD_BYTES = 1 << 20
    _FULL, _ELSEWHERE, _OTHERS, _NO_ROOM, _COLD = range(5)
    _LOST, _UNWANTED, _FOREIGN, _TAKEN = range(4)
    RECORDS, MESSAGES, VIEWS = range(3)

_LOW_32 = 0xFFFFFFFF
_MOST_MESSAGES = 1 << 30
_NO_END = 1 << 62
_KNOWN_NS = 1_000_000_000


class QueuePages:
    """Reads pages of one queue of one store, with one choice of tags, empty for all messages.

    `limits` are bytes and count of a page in memory, bytes and count of a page on disk, and how far
    before the log's end a record counts as being in memory. `statuses` are those of a page with
    messages, and of an empty one whose last entry was lost, or was unwanted. `without_entry` makes
    the fields of a page without entries from kind, queue, topic, offset, and the queue's
    minimum and maximum; `may_stand_in` says whether a record of another queue may be read here.
    """

    def __init__(
        self, log: LogAtHand, topic: str, queue_id: int, limits: tuple[int, int, int, int, int],
        tags: tuple[str, ...], statuses: tuple[Any, Any, Any], without_entry: Any,
        may_stand_in: Any,
    ) -> None:  # fmt: skip
        self.log = log
        self.is_mapped = self.log.source.is_mapped
        self.topic = topic
        self.queue_id = queue_id
        self.memory_bytes, self.memory_count, self.disk_bytes, self.disk_count, self.span = limits
        self.statuses = statuses
        self.without_entry = without_entry
        self.may_stand_in = may_stand_in
        texts = [text.encode("utf-8", "surrogatepass") for text in (topic, *tags)]
        self.held_names = b"".join(texts)
        self.names = view.bytes_inside(self.held_names)
        self.topic_size = len(texts[0])
        self.tag_count = len(tags)
        numbers = []
        at = len(texts[0])
        for tag, text in zip(tags, texts[1:], strict=True):
            numbers += [tags_code(tag) & 0xFFFFFFFF, at, len(text)]
            at += len(text)
        self.held_numbers = np.array([*numbers, 0], np.int64)
        self.numbers = view.numbers_of(self.held_numbers)
        self.recent: tuple[Any, ...] | None = None
        self.known_start = self.known_end = self.known_until_ns = 0
        self.minimum: tuple[Any, ...] | None = None

    def read(self, kind: int, queue: Any, offset: int, max_messages: int) -> tuple[Any, ...]:
        """Return the fields of a page's result.

        Status, items, of records also how many, the offset to go on from, minimum and maximum
        offset of the queue, and how many entries were stepped over as lost. `kind` says what the
        items are.
        """
        if type(offset) is not int or type(max_messages) is not int:
            offset = whole_number("offset", offset)
            max_messages = whole_number("max_messages", max_messages)
        if queue is None:
            return self.without_entry(kind, queue, self.topic, offset, 0, 0)
        maximum = queue.max_offset
        minimum = self.minimum_of(queue)
        page = Page.__new__(Page)
        if not minimum <= offset < maximum or not self.find_entries(
            page, queue, offset, max_messages
        ):
            # The limits that were compared: a message may have come since.
            return self.without_entry(kind, queue, self.topic, offset, minimum, maximum)
        page.aim(self, kind, offset, max_messages, maximum)
        items = page.read()
        status = self.statuses[0] if page.count else self.statuses[1 if page.is_lost else 2]
        following = page.first_offset + page.entry
        if kind == RECORDS:
            return (status, items, page.count, following, minimum, maximum, page.skipped)
        return (status, items, following, minimum, maximum, page.skipped)

    def is_known(self, offset: int, max_messages: int, now_ns: int) -> bool:
        """Return whether what a page may read was in memory a moment ago, or came since."""
        most = min(max(max_messages, -1), _MOST_MESSAGES) if self.tag_count == 0 else _LOOKED_AT
        is_inside = self.known_start <= offset <= self.known_end - most
        return is_inside and now_ns < self.known_until_ns

    def is_in_memory(
        self, queue: Any, offset: int, max_messages: int, waits: bool, now_ns: int
    ) -> bool:
        """Return whether a page of records needs no disk; if it `waits`, read in what does.

        To ask takes longer than to make the page. So it asks for many pages at once, and believes
        the answer for a second; where all is in memory, what is put after them is so too.
        """
        if queue is None or not self.is_mapped:
            return True
        maximum = queue.max_offset
        page = Page.__new__(Page)
        if not 0 <= offset < maximum or not self.find_entries(page, queue, offset, max_messages):
            return True
        page.aim(self, RECORDS, offset, max_messages, maximum)
        if page.is_in_memory(False, True):
            self.known_start = offset
            self.known_end = page.first_offset + page.entry
            if self.known_end >= maximum:
                self.known_end = _NO_END
            self.known_until_ns = now_ns + _KNOWN_NS
            return True
        page.aim(self, RECORDS, offset, max_messages, maximum)
        return page.is_in_memory(waits, False)

    def minimum_of(self, queue: Any) -> Any:
        """Return the queue's minimum offset, which moves only when the log's first file goes."""
        if not self.is_mapped:
            return queue.min_offset
        files = self.log.source.files.files
        first = files[0] if files else None
        known = self.minimum
        if known is not None and known[0] is first and known[1] is queue and first is not None:
            return known[2]
        minimum = queue.min_offset
        self.minimum = (first, queue, minimum)
        return minimum

    def find_entries(self, page: Page, queue: Any, offset: int, count: int) -> bool:
        """Let a page have the entries from an offset on; False where their file is missing."""
        known = self.recent
        if known is not None:
            reference, whose, base, end = known
            if whose is queue and base <= offset < end:
                mapping = reference()
                if mapping is not None:
                    page.use_entries(mapping, base)
                    return True
        found = queue.bytes_at(offset, max(count, _LOOKED_AT))
        if found is None:
            return False
        if self.tag_count > 0 and queue.extension is not None:
            found = queue.extension.with_tags_codes(found, offset, max(count, _LOOKED_AT))
        buffer, base, size, file = found
        first = base // _ENTRY_SIZE
        if file is not None:
            self.recent = (weakref.ref(buffer), queue, first, first + size // _ENTRY_SIZE)
        page.use_entries(buffer, first)
        return True


class Page(LogCursor):
    """A page under way."""

    def use_entries(self, buffer: Any, base: int) -> None:
        """Look at entries whose first one has queue offset `base`."""
        one = borrowed(buffer)
        self.entries = one.data
        self.borrowed_entries = one
        self.first_offset = base

    def aim(self, pages: QueuePages, kind: int, offset: int, most: int, maximum: int) -> None:
        """Begin at a queue offset, up to `maximum` at most."""
        self.begin(pages.log)
        self.pages, self.kind = pages, kind
        self.most = min(_MOST_MESSAGES, max(most, -1))
        self.in_disk_below = pages.log.source.max_offset
        self.in_disk_below -= pages.span
        self.entry, self.stop = offset, maximum
        self.entry -= self.first_offset
        self.stop -= self.first_offset
        self.stop = min(self.stop, self.entry + max(self.most, _LOOKED_AT))
        self.stop = min(self.stop, self.entries.size // _ENTRY_SIZE)

    def read(self) -> Any:
        """Look at entries until the page is full; return its content."""
        if not cython.compiled:
            self.count = self.size = self.skipped = 0
            self.is_lost = False
            self.targets: Any = [0] * (2 * _ROOM)
            self.row: Any = [0] * COLUMN_COUNT
        self.sought = self.granted = -1
        items: Any = b"" if self.kind == RECORDS else []
        reason = _ELSEWHERE
        while reason != _FULL:
            self.picked = self.written = 0
            most = 0
            if self.kind == RECORDS:
                most = self.most_bytes()
                records = view.empty_record(most)
                self.out = view.bytes_inside(records)
            if self.is_old() or most > _SHORT_BYTES:
                with cython.nogil:
                    reason = self.select()
            else:
                reason = self.select()
            if self.kind != RECORDS:
                self.add_to(items)
            elif self.written > 0:
                piece = view.filled_record(records, self.written)
                items = items + piece if items else piece
            if reason == _ELSEWHERE:
                self.sought = self.entry
                self.move(self.offset_of(self.entry), self.size_of(self.entry))
            elif reason == _OTHERS:
                self.granted = self.entry if self.is_ours() else -2 - self.entry
        return items

    def most_bytes(self) -> int:
        """Return how many bytes of records the next entries can give, by their sizes."""
        count, size, total = self.count, self.size, 0
        for entry in range(self.entry, self.stop):
            more = self.size_of(entry)
            if more <= 0 or more > self.readable:
                continue
            is_in_disk = self.offset_of(entry) < self.in_disk_below
            if count > 0 and (
                count >= self.most or self.is_full(count, size + total, more, is_in_disk)
            ):
                break
            count += 1
            total += more
        return total

    def is_old(self) -> bool:
        """Return whether the next record may have to be read from the disk.

        A thread without the interpreter's lock may wait milliseconds for it: else it is kept.
        """
        return self.entry < self.stop and self.offset_of(self.entry) < self.in_disk_below

    def offset_of(self, entry: int) -> int:
        """Return the physical offset that an entry states."""
        return view.load_i64(self.entries, entry * _ENTRY_SIZE)

    def size_of(self, entry: int) -> int:
        """Return the size of its record that an entry states."""
        return view.load_i32(self.entries, entry * _ENTRY_SIZE + 8)

    def is_full(self, count: int, size: int, more: int, is_in_disk: bool) -> bool:
        """Return whether `more` bytes are too many for a page of `count` records, `size` bytes."""
        if is_in_disk:
            return size + more > self.pages.disk_bytes or count >= self.pages.disk_count
        return size + more > self.pages.memory_bytes or count >= self.pages.memory_count

    def may_match(self, entry: int) -> bool:
        """Return whether an entry's code is that of a wanted tag, or says nothing about tags."""
        code = view.load_i64(self.entries, entry * _ENTRY_SIZE + 12)
        for n in range(self.pages.tag_count):
            if self.pages.numbers[3 * n] == code & _LOW_32:
                return True
        return code <= MAX_EXT_ADDRESS

    def tags_match(self, at: int, end: int) -> bool:
        """Return whether properties have one of the wanted tags."""
        read_properties(self.data, at, end, self.row)
        size = self.row[Column.TAGS_SIZE]
        tag_at = self.row[Column.TAGS_AT]
        for n in range(self.pages.tag_count):
            name_at = self.pages.numbers[3 * n + 1]
            if self.pages.numbers[3 * n + 2] == size and view.equal_bytes(
                self.pages.names, name_at, self.data, tag_at, size
            ):
                return True
        return False

    def judge(self, entry: int, at: int, size: int) -> int:
        """Classify the record that an entry points at."""
        if size < _FIXED_SIZE or view.load_i32(self.data, at) != size:
            return _LOST
        check_crc = self.kind == MESSAGES
        found = check_record(self.data, at, self.base, self.readable, check_crc)
        if found != StopReason.END:
            return _LOST
        topic_at, topic_size = topic_of(self.data, at)
        if self.granted != entry and (
            view.load_i32(self.data, at + 12) != self.pages.queue_id
            or topic_size != self.pages.topic_size
            or not view.equal_bytes(self.pages.names, 0, self.data, topic_at, topic_size)
        ):
            return _LOST if self.granted == -2 - entry else _FOREIGN
        if self.pages.tag_count > 0 and not self.tags_match(topic_at + topic_size + 2, at + size):
            return _UNWANTED
        return _TAKEN

    def select(self) -> int:
        """Copy or note the records that the next entries give; return why it stops."""
        entry, stop, count, taken = self.entry, self.stop, self.count, self.size
        picked = written = 0
        is_copied = self.kind == RECORDS
        reason = _FULL
        for ahead in range(entry, min(stop, entry + _AHEAD)):
            self.prefetch_record(self.offset_of(ahead), self.size_of(ahead))
        while entry < stop and (count == 0 or count < self.most):
            if picked == _ROOM:
                reason = _NO_ROOM
                break
            if entry + _AHEAD < stop:
                ahead = entry + _AHEAD
                self.prefetch_record(self.offset_of(ahead), self.size_of(ahead))
            offset = self.offset_of(entry)
            size = self.size_of(entry)
            found = _LOST
            if size > 0 and not (size == _FILLER_SIZE and offset == 0):
                if count > 0 and self.is_full(count, taken, size, offset < self.in_disk_below):
                    break
                if self.pages.tag_count > 0 and not self.may_match(entry):
                    found = _UNWANTED
                elif offset >= 0 and self.holds(offset, size):
                    found = self.judge(entry, offset - self.base, size)
                elif offset >= 0 and self.sought != entry:
                    reason = _ELSEWHERE
                    break
            if found == _FOREIGN:
                reason = _OTHERS
                break
            if found == _TAKEN:
                if is_copied:
                    if size > self.out.size - written:
                        reason = _NO_ROOM
                        break
                    view.copy_bytes(self.out, written, self.data, offset - self.base, size)
                    written += size
                else:
                    self.targets[2 * picked] = offset - self.base
                    self.targets[2 * picked + 1] = size
                    picked += 1
                count += 1
                taken += size
            else:
                self.skipped += found == _LOST
                if count == 0:
                    self.is_lost = found == _LOST
            entry += 1
        self.entry, self.count, self.size = entry, count, taken
        self.picked, self.written = picked, written
        return reason

    def is_in_memory(self, waits: bool, ahead: bool) -> bool:
        """Return whether entries and records are in memory; if it `waits`, read in what is not.

        With `ahead` it looks at all entries that were aimed at, up to a MiB.
        """
        self.count = self.size = 0
        at, end = self.entry * _ENTRY_SIZE, self.stop * _ENTRY_SIZE
        if waits:
            with cython.nogil:
                read_in(self.entries, at, end)
        elif not is_resident(self.entries, at, end):
            return False
        reason = _ELSEWHERE
        while reason == _ELSEWHERE:
            if waits:
                with cython.nogil:
                    reason = self.gather(True, ahead)
            else:
                reason = self.gather(False, ahead)
            if reason == _ELSEWHERE and not self.move(
                self.offset_of(self.entry), self.size_of(self.entry)
            ):
                self.entry += 1  # it is lost
        return reason == _FULL

    def gather(self, waits: bool, ahead: bool) -> int:
        """Look where the records of the next entries are, near ones at once; say why it stops."""
        start = end = 0
        reason = _FULL
        while self.entry < self.stop and (ahead or self.count == 0 or self.count < self.most):
            offset = self.offset_of(self.entry)
            size = self.size_of(self.entry)
            is_message = size > 0 and offset >= 0 and not (size == _FILLER_SIZE and offset == 0)
            if is_message and (self.pages.tag_count == 0 or self.may_match(self.entry)):
                is_in_disk = offset < self.in_disk_below
                is_full = self.is_full(self.count, self.size, size, is_in_disk)
                if self.count > 0 and (self.size > _AHEAD_BYTES if ahead else is_full):
                    break
                if not self.holds(offset, size):
                    reason = _ELSEWHERE
                    break
                at = offset - self.base
                if at < start or at > end + _GAP:
                    if not self.has_records(start, end, waits):
                        return _COLD
                    start = end = at
                end = max(end, at + size)
                self.count += 1
                self.size += size
            self.entry += 1
        return reason if self.has_records(start, end, waits) else _COLD

    def has_records(self, start: int, end: int, waits: bool) -> bool:
        """Return whether a part of the file is in memory; if it `waits`, read it in."""
        if waits and start < end:
            read_in(self.data, start, end)
        return waits or start >= end or is_resident(self.data, start, end)

    def is_ours(self) -> bool:
        """Return whether the record of another queue belongs to this one as well."""
        at = self.offset_of(self.entry) - self.base
        topic_at, topic_size = topic_of(self.data, at)
        properties_at = topic_at + topic_size + 2
        end = at + self.size_of(self.entry)
        return self.pages.may_stand_in(
            topic_text(view.copy_of(self.data, topic_at, topic_size)),
            view.load_i32(self.data, at + 12),
            decode_properties(view.copy_of(self.data, properties_at, end - properties_at)),
            (self.pages.topic, self.pages.queue_id),
        )

    def add_to(self, items: list[Any]) -> None:
        """Add the records that were noted to a page."""
        if self.kind == MESSAGES:
            for n in range(self.picked):
                items.append(message_of(self.data, self.targets[2 * n]))  # noqa: PERF401 - no closure
        elif self.picked > 0:
            whole = memoryview(self.buffer)
            for n in range(self.picked):
                at = self.targets[2 * n]
                items.append(whole[at : at + self.targets[2 * n + 1]])


class GetCounts:
    """Counts of gets; safe to add to from several threads.

    Compiled, no other thread runs amid `note`: it needs no lock, which would take as long as
    counting eight pages.
    """

    def __init__(self) -> None:
        self.found = self.missed = self.messages = self.longest_ms = 0
        self.lock = Lock()

    def note(self, message_count: int, elapsed_ms: int) -> None:
        """Count a get; without a message it is a miss.

        Source: StoreStatsService, getMessageTimesTotalFound and getMessageTimesTotalMiss.
        """
        if cython.compiled:
            self.add(message_count, elapsed_ms)
        else:
            with self.lock:
                self.add(message_count, elapsed_ms)

    def add(self, message_count: int, elapsed_ms: int) -> None:
        """Add to the counts, without the interpreter."""
        if message_count > 0:
            self.found += 1
            self.messages += message_count
        else:
            self.missed += 1
        self.longest_ms = max(self.longest_ms, elapsed_ms)
