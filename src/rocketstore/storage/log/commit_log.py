"""The CommitLog: one endless row of records, written by one thread at a time.

Law: a record gets its queue offset, physical offset and store time under one lock, and the end of
the log moves only after all its bytes are in the mapping. Store times never go back. What a failed
append leaves behind the end is zero. An append happens as a whole or not at all, wherever an
exception ends it (`storage.log.whole_append`).

How derived: CommitLog.asyncPutMessage and DefaultAppendMessageCallback.doAppend of 4.9 (spec B3.4,
B3.5, F3.1). Cost: one `pack_into` of a whole-record `Struct`, cached by sizes, writes a record. A
batch is one call of a kernel.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, cast

from rocketstore.errors import RefusedMessageError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE, encode_blank
from rocketstore.format.record import MESSAGE_MAGIC_V1_SIGNED, body_crc, crc32, record_struct
from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketstore.native.batch_state import COUNT_SHIFT, BatchPlan, BatchRefusal
from rocketstore.native.group import SyncGroup
from rocketstore.scan import kernels
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.files.touch_ahead import WINDOW_BYTES, windows_ahead
from rocketstore.storage.log.append_state import IS_COMPILED, QueueCell
from rocketstore.storage.log.whole_append import WholeAppends

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from rocketstore.native.batch_state import Plan
    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.files.preallocate import Preallocator
    from rocketstore.storage.files.touch_ahead import TouchAhead
    from rocketstore.units import QueueKey

    ByteArray = npt.NDArray[np.uint8]
    Table = npt.NDArray[np.int64]

_CACHED_PACKERS: Final = 8192
_SIZE_MASK: Final = (1 << COUNT_SHIFT) - 1
_LARGEST_HEAD: Final = 75 + 2 * 20 + 1
"""Of a record besides body, topic and properties, with a separator between those."""
_OUTSIDE_QUEUES: Final = frozenset({TRANSACTION_PREPARED, TRANSACTION_ROLLBACK})
"""Transaction types whose records have queue offset 0 and no queue entry."""


class CommitLog(WholeAppends):
    """The log of a store that is open for writing.

    Parameters
    ----------
    files
        Loaded and recovered: the last file's write position is the end of the log.
    preallocator
        Gives the next file.
    clock
        The time in ms.
    store_host
        This store's address as records hold it.
    sync_flush
        Whether readers see flushed bytes only.
    touch_ahead
        Faults pages in ahead of a fast writer; None leaves that to the writer.

    Attributes
    ----------
    max_offset
        One past the last byte of the last complete record.
    last_store_timestamp_ms
        Of that record.
    clock_steps_back
        How often the clock showed an earlier time than the last record's, which then was repeated.
    locked_since_ms
        When the append lock was taken; 0 while it is free.
    put_group
        Who waits for the log's end to be on the disk.
    """

    is_mapped = True

    def __init__(
        self,
        files: MappedFileQueue,
        *,
        preallocator: Preallocator,
        clock: Callable[[], int],
        store_host: bytes,
        sync_flush: bool = False,
        touch_ahead: TouchAhead | None = None,
    ) -> None:
        super().__init__(clock, clock is system_clock_ms, crc32, store_host)
        self.files = files
        self.sync_flush = sync_flush
        self.put_group = SyncGroup()
        self.max_offset = files.max_offset
        self.flushed_offset = files.flushed_offset
        self._preallocator = preallocator
        self._touch_ahead = touch_ahead
        self._window_entered_ms = 0
        self._window_stop = -1
        self._ring: Callable[[], None] | None = None
        self._cells: dict[tuple[str, int], QueueCell] = {}
        self._packers: dict[tuple[int, int, int], Callable[..., None]] = {}
        self._target = cast("ByteArray", None)
        preallocator.is_in_use = lambda base: files.find(base) is not None

    def drop(self) -> None:
        """Let go of all files, and of what an append keeps of the last one."""
        self._file = cast("MappedFile", None)
        self._mapping = cast("mmap.mmap", None)
        self._target = cast("ByteArray", None)
        self._limit = -1
        self.files.drop()

    # --- what readers ask -----------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is still there; 0 without files."""
        return max(self.files.min_offset, 0)

    @property
    def flushed_offset(self) -> int:
        """One past the last byte that is on the disk for certain."""
        # The group's, which moves it round by round without running Python.
        return self.put_group.flushed_offset

    @flushed_offset.setter
    def flushed_offset(self, offset: int) -> None:
        self.put_group.flushed_offset = offset

    @property
    def readable_limit(self) -> int:
        """One past the last byte that dispatch, and with it every reader, may see (K-D2)."""
        return self.flushed_offset if self.sync_flush else self.max_offset

    @property
    def file_size(self) -> int:
        """Bytes of one file."""
        return self.files.file_size

    def slice(self, offset: int, size: int) -> memoryview | None:
        """Return a view of written bytes; None where they are not, or cross into the next file."""
        return self.files.slice(offset, size)

    def window(self, offset: int, _size: int) -> tuple[mmap.mmap, int, int, MappedFile] | None:
        """Return the mapping of the file that has the byte at `offset`; None without."""
        file = self.files.find(offset)
        if file is None or not file.is_available:
            return None
        try:
            return file.mapping, file.base, file.write_position, file
        except FileNotFoundError:  # retention was faster
            return None

    def record_at(self, offset: int, size: int) -> memoryview | None:
        """Return a view of `size` bytes at `offset`, if readers may see them."""
        if offset + size > self.readable_limit:
            return None
        return self.files.slice(offset, size)

    # --- queue offsets --------------------------------------------------------------------------

    def seed(
        self, queue_offsets: Mapping[QueueKey, int], *, last_store_timestamp_ms: int = 0
    ) -> None:
        """Take the next offset of every queue and the last store time, as recovery found them.

        Notes
        -----
        Source: DefaultMessageStore.recoverTopicQueueTable (spec B16.4).
        """
        self._cells.clear()
        self._cells.update((key, _cell(key, offset)) for key, offset in queue_offsets.items())
        self.last_store_timestamp_ms = last_store_timestamp_ms
        self.max_offset = self.files.max_offset
        self.flushed_offset = self.files.flushed_offset
        self._file = cast("MappedFile", None)
        self._limit = -1

    def cell(self, key: QueueKey) -> QueueCell:
        """Return the cell of a queue, a new one with offset 0 if need be; the name was checked."""
        return self._cells.setdefault(key, _cell(key, 0))

    @property
    def cells(self) -> dict[tuple[str, int], QueueCell]:
        """All cells by topic and queue id; for the put path, which asks before it checks names."""
        return self._cells

    def next_queue_offset(self, key: QueueKey) -> int:
        """Return the offset that the next message of a queue will get."""
        cell = self._cells.get(key)
        return 0 if cell is None else cell.next_offset

    def forget_queue(self, key: QueueKey) -> None:
        """Let a deleted queue begin at 0 again."""
        self._cells.pop(key, None)

    # --- append ---------------------------------------------------------------------------------

    def ring_at_next_append(self, ring: Callable[[], None]) -> None:
        """Have the next append call `ring` before it is done, and no append after it.

        That one finds no room below a limit of -1, and so comes by `_make_room`; to look for
        somebody who sleeps costs the others nothing.
        """
        with self.lock:
            self._ring = ring
            self._limit = -1

    def append_plainly(  # noqa: PLR0913, PLR0917 - a record's fields, positional on the hot path
        self,
        cell: QueueCell,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int | None,
        born_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> tuple[int, int, int, int]:
        """Append one record whose sizes are within their limits; `append` may be compiled.

        Parameters
        ----------
        cell
            Its queue.
        sys_flag
            With host bits that agree with the hosts.
        born_timestamp_ms
            None takes the store time.

        Returns
        -------
        tuple
            Physical offset, size in bytes, queue offset, store timestamp in ms.

        Raises
        ------
        RefusedMessageError
            A number does not fit its field; nothing was stored.
        StoreFullError, StoreError
            A file was needed and could not be made; nothing was stored.
        """
        body_size = len(body)
        properties_size = len(properties)
        topic_size = cell.topic_size
        crc = body_crc(body)
        store_host = self.store_host
        if sys_flag:
            pack = record_struct(
                body_size, topic_size, properties_size, len(born_host), len(store_host)
            ).pack_into
            size = 75 + body_size + topic_size + properties_size + len(born_host) + len(store_host)
            outside_queues = sys_flag & TRANSACTION_MASK in _OUTSIDE_QUEUES
        else:
            try:
                pack = self._packers[body_size, topic_size, properties_size]
            except KeyError:
                pack = self._packer(body_size, topic_size, properties_size)
            size = 91 + body_size + topic_size + properties_size
            outside_queues = False
        with self.lock:
            try:
                self._busy = 1
                if self._under_way is not None:
                    self._settle()
                now = self._clock()
                self.locked_since_ms = now
                if now < self.last_store_timestamp_ms:
                    now = self._clamped()
                position = self._position
                end = position + size
                if end > self._limit:
                    position = self._make_room(size)
                    end = position + size
                queue_offset = next_offset = cell.next_offset
                if outside_queues:
                    queue_offset = 0
                else:
                    next_offset += 1
                offset = self._base + position
                file = self._file
                stored_bytes = cell.stored_bytes + size
                queues = ((cell, next_offset, stored_bytes),)
                self._under_way = (file, position, end, end, now, queues)
                try:
                    pack(
                        self._mapping, position, size, MESSAGE_MAGIC_V1_SIGNED, crc, cell.queue_id,
                        flag, queue_offset, offset, sys_flag,
                        now if born_timestamp_ms is None else born_timestamp_ms, born_host, now,
                        store_host, reconsume_times, prepared_transaction_offset, body_size, body,
                        topic_size, cell.topic, properties_size, properties,
                    )  # fmt: skip
                except (struct.error, TypeError) as error:
                    self._settle()
                    raise RefusedMessageError(f"a field does not fit a record: {error}") from error
                file.write_position = self._position = end
                cell.next_offset = next_offset
                cell.stored_bytes = stored_bytes
                self.last_store_timestamp_ms = now
                self.max_offset = offset + size
                self._under_way = None
                self._busy = 0
            finally:
                self.locked_since_ms = 0
        return offset, size, queue_offset, now

    if TYPE_CHECKING or not IS_COMPILED:
        append = append_plainly

    def append_batch(
        self, cell: QueueCell, source: ByteArray, table: Table, plan: Plan
    ) -> tuple[int, int, int, int, int] | int:
        """Append a batch as consecutive records, all or none.

        Parameters
        ----------
        cell
            Its queue.
        source, table, plan
            As of the kernel `native.batch.write_batch`.

        Returns
        -------
        tuple
            As of `append`, for the first message; the size is that of all; then how many they are.
        int
            A `BatchRefusal`; nothing was stored. NO_ROOM: all records do not fit one file.

        Raises
        ------
        StoreFullError, StoreError
            A file was needed and could not be made; nothing was stored.
        """
        with self.lock:
            try:
                now = self._enter()
                if self._limit < 0:
                    self._make_room(0)
                done = self._write_batch(cell, source, table, plan, now)
                if done <= BatchRefusal.NO_ROOM:
                    needed = BatchRefusal.NO_ROOM - done
                    if needed + END_FILE_MIN_BLANK_SIZE <= self.file_size:
                        self._make_room(needed)
                        done = self._write_batch(cell, source, table, plan, now)
                offset, queue_offset = self._base + self._position, cell.next_offset
                count, size = done >> COUNT_SHIFT, done & _SIZE_MASK
                if done > 0:
                    after = cell, queue_offset + count, cell.stored_bytes + size
                    self._commit(size, now, (after,))
                self._busy = 0
            finally:
                self.locked_since_ms = 0
        if done < 0:
            return done
        return offset, size, queue_offset, now, count

    def _write_batch(
        self, cell: QueueCell, source: ByteArray, table: Table, plan: Plan, now_ms: int
    ) -> int:
        numbers = (cell.queue_id, cell.next_offset, now_ms, self._base)
        more = plan[BatchPlan.MORE_SIZE] + plan[BatchPlan.TOPIC_SIZE] + _LARGEST_HEAD
        self._begin(len(source) + len(table) * more, now_ms)
        done: int = kernels.write_batch(source, table, plan, numbers, self._target, self._position)
        if done < 0:  # nothing was written
            self._under_way = None
        return done

    def _packer(self, body_size: int, topic_size: int, properties_size: int) -> Callable[..., None]:
        """Return `pack_into` for a record with IPv4 hosts, keeping a bounded number of them."""
        if len(self._packers) >= _CACHED_PACKERS:
            self._packers.clear()
        pack = record_struct(body_size, topic_size, properties_size).pack_into
        self._packers[body_size, topic_size, properties_size] = pack
        return pack

    def _make_room(self, size: int) -> int:
        """Return where `size` bytes fit: in this file, or in the next; the lock is held."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring()
        file = self.files.last()
        if file is not None:
            end = file.write_position + size + END_FILE_MIN_BLANK_SIZE
            if end <= file.size:
                # The first append, the next window, or a sparse file whose pages must be probed.
                file.reserve(end)
                self._use(file, end)
                return self._position
        self._roll(file, size)
        return self._position

    def _use(self, file: MappedFile, end: int) -> None:
        """Make `file` the one that is written, up to the end of the window that holds `end`."""
        # All that can fail comes first, and no append looks at the rest before the limit is set.
        mapping, array = file.mapping, file.array
        self._limit = -1
        writable = min(file.size, file.backed_position)
        if self._touch_ahead is not None:
            window_stop = end + -end % WINDOW_BYTES
            if window_stop < writable:
                if file.base + window_stop != self._window_stop:
                    self._window_stop = file.base + window_stop
                    self._touch(file, window_stop)
                writable = window_stop
        self._file = file
        self._base = file.base
        self._position = file.write_position
        self._mapping = mapping
        self._target = array[:writable]
        self._limit = writable - END_FILE_MIN_BLANK_SIZE

    def _touch(self, file: MappedFile, start: int) -> None:
        """Have the next windows touched, if the last one was filled fast."""
        entered_ms, self._window_entered_ms = self._window_entered_ms, self.locked_since_ms
        ahead = windows_ahead(self.locked_since_ms - entered_ms)
        if self._touch_ahead is not None and ahead > 0:
            self._touch_ahead.request(file, start, start + ahead * WINDOW_BYTES)

    def _roll(self, full: MappedFile | None, size: int) -> None:
        """Go on in the next file, closing the full one; nothing changes if there is no next one.

        Parameters
        ----------
        size
            Bytes that are to be written there.

        Notes
        -----
        4.9 writes the BLANK first; taking the file first lets a smaller message still use the room
        of a file that cannot be followed because the disk is full.
        """
        base = 0 if full is None else full.base + full.size
        file = self._preallocator.take(base, ahead=full is not None)
        end = min(size + END_FILE_MIN_BLANK_SIZE, file.size)
        file.reserve(end)
        _ = file.array  # room for its map may be missing too
        self._limit = -1
        if full is not None:
            free = full.size - full.write_position
            if free >= END_FILE_MIN_BLANK_SIZE:
                full.write_bytes(full.write_position, encode_blank(free))
            full.write_position = full.size
            self.max_offset = full.base + full.size
            self._preallocator.retire(full)
        self.files.adopt(file)
        self._use(file, end)


def _cell(key: QueueKey, next_offset: int) -> QueueCell:
    return QueueCell(key, key.topic.encode("utf-8"), key.queue_id, next_offset)
