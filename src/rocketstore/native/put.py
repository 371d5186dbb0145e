"""Plain puts, the fast path: messages become records after the log's end in one call.

A message is written straight from its fields into the mapping: its properties are checked while
they are copied. Some messages need the slow path: a text with a separator, a number of another
class, a queue that got no message yet, no space in the file. Nothing is changed for those, and the
writer takes over: it says what is wrong, or makes a `Record` of the message for `CommitLog.append`.

Law: every field of a message is read once. Compiled, no Python runs from the first look at the
log's end to its move; interpreted, all is left to the writer, which takes the append lock.

Sources: CommitLog.DefaultAppendMessageCallback.doAppend, MessageExtEncoder.encode and
MessageDecoder.messageProperties2String of 4.9.8 (spec B3.5, B3.6, F3, F15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.format.properties import PROPERTIES_SIZE_ROOMY, WAIT

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view
    from rocketstore.native.log_end import LogEnd, QueueCounter, Record, bare_size
    from rocketstore.native.view import Bytes
    from rocketstore.native.walk import is_plain_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.native.group import SyncGroup

_WAIT = f"{WAIT}\1".encode()
_WAIT_TRUE = f"{WAIT}\1true".encode()
_PIECE_BYTES = 256 * 1024  # written at once: stays in the processor's second-level cache


class PlainPuts:
    """Plain puts, each in one call; None where a put needs the slow path.

    `counters` are queues by topic and queue id, none of which is ever replaced, `born_hosts` hosts
    by their text.
    A clock of None is the system's. With a `group`, a put ends with a wait there of at most
    `timeout_s`. Where it ends without a flush, or there is no group, `acknowledge` waits for what
    the flush mode promises, within the seconds that are left. Without either a put only appends.
    """

    def __init__(
        self, end: LogEnd, *, counters: dict[tuple[str, int], QueueCounter],
        born_hosts: dict[str, bytes], flags: Any, statistics: Any, message_type: type,
        prepared_type: type, result_type: Callable[..., Any], done: Any, longest_body: int,
        clock: Callable[[], int] | None, acknowledge: Any, group: SyncGroup | None,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self.end = end
        self.counters = counters
        self.queues: dict[str, dict[int, QueueCounter]] = {}
        self.born_hosts = born_hosts
        self.flags = flags
        self.statistics = statistics
        self.message_type = message_type
        self.prepared_type = prepared_type
        self.result_type = result_type
        self.done = done
        self.longest_body = longest_body
        self.clock = clock
        self.acknowledge = acknowledge
        self.group = group
        self.timeout_s = timeout_s
        self.waits = acknowledge is not None
        self.is_open = cython.compiled
        self.record = Record(b"", b"", bytes(8))
        self.bits_slot = view.slot_named(type(flags), "bits")
        self.topic = view.slot_named(message_type, "topic")
        self.body = view.slot_named(message_type, "body")
        self.tags = view.slot_named(message_type, "tags")
        self.keys = view.slot_named(message_type, "keys")
        self.properties = view.slot_named(message_type, "properties")
        self.unique_key = view.slot_named(message_type, "unique_key")
        self.flag = view.slot_named(message_type, "flag")
        self.sys_flag = view.slot_named(message_type, "sys_flag")
        self.born_timestamp_ms = view.slot_named(message_type, "born_timestamp_ms")
        self.born_host = view.slot_named(message_type, "born_host")
        self.reconsume_times = view.slot_named(message_type, "reconsume_times")
        self.prepared_offset = view.slot_named(message_type, "prepared_transaction_offset")
        self.wait_flush = view.slot_named(message_type, "wait_flush")
        self.prepared_topic = view.slot_named(prepared_type, "topic")
        self.prepared_record = view.slot_named(prepared_type, "record")
        self.prepared_wait_flush = view.slot_named(prepared_type, "wait_flush")

    def close(self) -> None:
        """Leave every put from now on to the writer."""
        self.is_open = False

    # --- place and time: parts that may run Python ------------------------------------------------

    def now_ms(self, began_ns: int) -> int:
        """Return the time of a put that began at that time of the system's clock."""
        return began_ns // 1_000_000 if self.clock is None else self.clock()

    def counter_of(self, topic: Any, queue_id: Any) -> QueueCounter | None:
        """Return the counter of a queue that had a message before; None for a first one."""
        if type(topic) is not str or type(queue_id) is not int:
            return None
        # By topic, then by queue id: a key of both takes a twelfth of a put to make and compare.
        queues = self.queues.get(topic)
        counter = None if queues is None else queues.get(queue_id)
        if counter is None:
            counter = self.counters.get((topic, queue_id))
            if counter is not None:
                self.queues.setdefault(topic, {})[queue_id] = counter
        return None if counter is None or counter.next_offset == 0 else counter

    def host_of(self, host: Any) -> bytes | None:
        """Return a born host that is known."""
        return self.born_hosts.get(host) if type(host) is str else None

    # --- the log's end: no Python runs from here to `publish` -----------------------------------

    def is_ready(self, now: int) -> bool:
        """Return whether puts are taken, the append lock is free, and no clock went back."""
        end = self.end
        return (
            self.is_open
            and not end.is_busy
            and end.locked_since_ms == 0
            and end.limit > 0
            and now >= end.last_store_timestamp_ms
            and not view.in_slot(self.flags, self.bits_slot)
        )

    def write_message(
        self, message: Any, counter: QueueCounter, host: bytes, at: int, number: int, now: int
    ) -> int:
        """Write a message without its length; return where it ends, also for the slow path."""
        end = self.end
        record = self.record
        body = view.in_slot(message, self.body)
        is_fit = record.take(
            host, view.in_slot(message, self.flag), view.in_slot(message, self.sys_flag),
            view.in_slot(message, self.born_timestamp_ms),
            view.in_slot(message, self.reconsume_times),
            view.in_slot(message, self.prepared_offset),
        )  # fmt: skip
        if not is_fit or type(body) is not bytes or len(body) > self.longest_body:
            end.needs_slow_path = True
            return at
        start = end.write_head(record, view.bytes_inside(body), counter, at, number, now)
        if start < 0:
            return at
        stop = end.add_properties(
            start, view.in_slot(message, self.properties), view.in_slot(message, self.keys),
            view.in_slot(message, self.unique_key), view.in_slot(message, self.tags),
        )  # fmt: skip
        end.end_properties(start, stop)
        return stop

    # --- puts -----------------------------------------------------------------------------------

    def put_message(self, message: Any, queue_id: Any = 0) -> Any:
        """Store a message; see `MessageStore.put`."""
        began_ns = view.system_ns()
        if type(message) is not self.message_type:
            return None
        now = self.now_ms(began_ns)
        counter = self.counter_of(view.in_slot(message, self.topic), queue_id)
        host = self.host_of(view.in_slot(message, self.born_host))
        if counter is None or host is None:
            return None
        waits = view.in_slot(message, self.wait_flush)
        if type(waits) is not bool or not self.is_ready(now):
            return None
        end = self.end
        stop = self.write_message(message, counter, host, end.position, counter.next_offset, now)
        return self.finish(counter, stop, now, began_ns, 1, None, waits is True)

    def put_prepared(self, prepared: Any, body: Any = None, queue_id: Any = 0) -> Any:
        """Store a prepared message; see `MessageStore.put_prepared`."""
        began_ns = view.system_ns()
        if type(prepared) is not self.prepared_type:
            return None
        now = self.now_ms(began_ns)
        counter = self.counter_of(view.in_slot(prepared, self.prepared_topic), queue_id)
        held = view.in_slot(prepared, self.prepared_record)
        if counter is None or type(held) is not Record:
            return None
        record = held
        waits = view.in_slot(prepared, self.prepared_wait_flush)
        if type(waits) is not bool:
            return None
        if body is None:
            body = record.body
        if type(body) is not bytes or len(body) > self.longest_body:
            return None
        if len(record.properties) > PROPERTIES_SIZE_ROOMY or not self.is_ready(now):
            return None
        end = self.end
        content = view.bytes_inside(body)
        stop = end.add_record(record, content, counter, end.position, counter.next_offset, now)
        return self.finish(counter, stop, now, began_ns, 1, None, waits is True)

    def put_encoded(
        self, body: Any, block: Any, topic: Any, queue_id: Any, wait_flush: Any, born_host: Any,
        flag: Any, sys_flag: Any, born_timestamp_ms: Any, reconsume_times: Any,
    ) -> Any:  # fmt: skip
        """Store a message whose properties are encoded; see `StoreWriter.put_encoded`."""
        began_ns = view.system_ns()
        now = self.now_ms(began_ns)
        counter = self.counter_of(topic, queue_id)
        host = self.host_of(born_host)
        if (
            counter is None
            or host is None
            or type(body) is not bytes
            or len(body) > self.longest_body
            or type(block) is not bytes
            or _WAIT in block
            or type(wait_flush) is not bool
        ):
            return None
        properties = view.bytes_inside(block)
        record = self.record
        if not (
            is_plain_block(properties, 0, properties.size)
            and self.is_ready(now)
            and record.take(host, flag, sys_flag, born_timestamp_ms, reconsume_times, 0)
        ):
            return None
        end = self.end
        stop = end.position
        content = view.bytes_inside(body)
        start = end.write_head(record, content, counter, stop, counter.next_offset, now)
        if start >= 0:
            stop = end.add_bytes(start, properties, 0, properties.size)
            end.end_properties(start, stop)
        return self.finish(counter, stop, now, began_ns, 1, None, wait_flush is True)

    def put_rows(
        self, file: Any, descriptor: int, messages: Any, queue_ids: Any, rows: Any, bodies: Any,
        blocks: Any,
    ) -> int:  # fmt: skip
        """Store rows up to one that needs the slow path; return how many.

        A row has the number of its message and queue, where its body begins and its size, the same
        of its encoded properties, and its born time, the smallest number for the store's. `file` is
        where the log is to end: pages written whole to its descriptor need no fault, and no zeros.
        """
        now = self.now_ms(view.system_ns())
        end = self.end
        source, texts = view.bytes_of(bodies), view.bytes_of(blocks)
        room = view.empty_record(_PIECE_BYTES)
        records, counters = [], []
        for message, queue_id in zip(messages, queue_ids, strict=True):
            is_plain = type(message) is self.prepared_type
            held = view.in_slot(message, self.prepared_record) if is_plain else None
            records.append(held if type(held) is Record else None)
            topic = view.in_slot(message, self.prepared_topic) if is_plain else None
            counters.append(self.counter_of(topic, queue_id))
        count = 0
        before = -1
        while count > before and not self.waits and end.file is file and self.is_ready(now):
            before = count
            count = self.write_rows(
                descriptor, room, records, counters, rows, count, source, texts, now
            )
        if end.position >= end.look_at:
            end.on_look()
        return count

    def write_rows(
        self, descriptor: int, room: bytes, records: list[Any], counters: list[Any], rows: Any,
        count: int, source: Bytes, texts: Bytes, now: int,
    ) -> int:  # fmt: skip
        """Write the rows after the first `count`, as many as `room` takes; return the new count."""
        end = self.end
        before = count
        position = end.position
        end.begin_piece(view.bytes_inside(room))
        while count < rows.shape[0]:
            number, at, size, block_at, block_size, born = (
                rows[count, 0], rows[count, 1], rows[count, 2], rows[count, 3],
                rows[count, 4], rows[count, 5],
            )  # fmt: skip
            if number < 0 or number >= len(records):
                break
            record = records[number]
            counter = counters[number]
            if (
                record is None
                or counter is None
                or min(at, size, block_at, block_size) < 0
                or at > source.size - size
                or block_at > texts.size - block_size
                or size > self.longest_body
            ):
                break
            record.is_born_now = born == view.NO_NUMBER
            record.born = born
            body = view.part_of(source, at, size)
            start = end.write_head(record, body, counter, position, counter.next_offset, now)
            if start < 0:
                break
            stop = end.add_bytes(start, texts, block_at, block_size)
            end.end_properties(start, stop)
            if end.needs_slow_path:
                break
            view.store_i32(end.data, position, stop - position)
            counter.next_offset += 1
            counter.stored_bytes += stop - position
            position = stop
            count += 1
        end.end_piece(descriptor, position)
        if count > before:
            end.put_count += count - before
            end.put_bytes += position - end.position
            end.reach(position, now)
        return count

    def put_messages(self, messages: Any, queue_id: Any, longest: int) -> Any:
        """Store messages of one topic and host, together no longer than a client may send."""
        began_ns = view.system_ns()
        now = self.now_ms(began_ns)
        if (type(messages) is not list and type(messages) is not tuple) or not messages:
            return None
        first = messages[0]
        if type(first) is not self.message_type:
            return None
        topic = view.in_slot(first, self.topic)
        born_host = view.in_slot(first, self.born_host)
        counter = self.counter_of(topic, queue_id)
        host = self.host_of(born_host)
        sizes = view.empty_record(4 * len(messages))
        slots = view.bytes_inside(sizes)
        if counter is None or host is None or not self.is_ready(now):
            return None
        end = self.end
        at = end.position
        number = counter.next_offset
        # What a client's batch would hold of each message besides body and properties.
        spared = bare_size(len(host), len(end.store_host), len(counter.topic)) - 22
        payload = 0
        count = 0
        for message in messages:
            if 4 * count == slots.size or not (
                type(message) is self.message_type
                and is_same(view.in_slot(message, self.topic), topic)
                and is_same(view.in_slot(message, self.born_host), born_host)
                and view.in_slot(message, self.wait_flush) is True
            ):
                end.needs_slow_path = True
                break
            stop = self.write_message(message, counter, host, at, number + count, now)
            payload += stop - at - spared
            view.store_i32(slots, 4 * count, stop - at)
            # For the record after the next one: the lines of the next would come too late.
            view.prefetch_writes(end.data, 2 * stop - at, stop - at)
            at = stop
            count += 1
            if end.needs_slow_path or payload > longest:
                end.needs_slow_path = True
                break
        return self.finish(counter, at, now, began_ns, count, sizes, True)

    def put_client_batch(
        self, batch: Any, more: Any, topic: Any, queue_id: Any, wait_flush: Any, born_host: Any,
        sys_flag: Any, born_timestamp_ms: Any, reconsume_times: Any,
    ) -> Any:  # fmt: skip
        """Store a batch as a client encodes it; `more` follows the properties of each message."""
        began_ns = view.system_ns()
        now = self.now_ms(began_ns)
        counter = self.counter_of(topic, queue_id)
        host = self.host_of(born_host)
        if (
            counter is None
            or host is None
            or type(wait_flush) is not bool
            or type(batch) is not bytes
            or len(batch) > self.longest_body
            or type(more) is not bytes
            or (_WAIT in more and _WAIT_TRUE not in more)
        ):
            return None
        added = view.bytes_inside(more)
        sizes = view.empty_record(4 * (len(batch) // 22))
        if not (
            is_plain_block(added, 0, added.size)
            and self.is_ready(now)
            and self.record.take(host, 0, sys_flag, born_timestamp_ms, reconsume_times, 0)
        ):
            return None
        return self.put_parts(counter, batch, added, sizes, now, began_ns, wait_flush is True)

    def put_parts(
        self, counter: QueueCounter, batch: bytes, more: Bytes, sizes: Any, now: int, began_ns: int,
        waits: bool,
    ) -> Any:  # fmt: skip
        """Store the messages of a client's batch, which have all else from `self.record`."""
        end = self.end
        record = self.record
        source = view.bytes_inside(batch)
        slots = view.bytes_inside(sizes)
        at = end.position
        number = counter.next_offset
        count = 0
        begin = 0
        while begin < source.size:
            # Total size, magic and CRC of a message are ignored, as in 4.9.
            left = source.size - begin - 22
            body_size = view.load_i32(source, begin + 16) if left >= 0 else -1
            if body_size < 0 or body_size > left or body_size > self.longest_body:
                break
            block_at = begin + 22 + body_size
            size = view.load_i16(source, block_at - 2)
            if size < 0 or size > left - body_size or not is_plain_block(source, block_at, size):
                break
            view.prefetch_reads(source, block_at + size, body_size)  # of the next message
            record.flag = view.load_i32(source, begin + 12)
            body = view.part_of(source, begin + 20, body_size)
            start = end.write_head(record, body, counter, at, number + count, now)
            if start < 0:
                break
            stop = end.add_bytes(start, source, block_at, size)
            if more.size > 0:
                if size > 0 and view.load_u8(source, block_at + size - 1) != 2:
                    stop = end.add_byte(stop, 2)
                stop = end.add_bytes(stop, more, 0, more.size)
            end.end_properties(start, stop)
            view.store_i32(slots, 4 * count, stop - at)
            view.prefetch_writes(end.data, 2 * stop - at, stop - at)
            at = stop
            if end.needs_slow_path:
                break
            begin = block_at + size
            count += 1
        end.needs_slow_path = begin < source.size
        return self.finish(counter, at, now, began_ns, count, sizes, waits)

    def finish(
        self, counter: QueueCounter, stop: int, now: int, began_ns: int, count: int, sizes: Any,
        waits: bool,
    ) -> Any:  # fmt: skip
        """Publish and acknowledge what was written, and return the result.

        What needs the slow path is taken back, and the result is None.
        """
        end = self.end
        position = end.position
        if end.needs_slow_path or count == 0:
            end.take_back(stop)
            return None
        number = counter.next_offset
        at = position
        packed = b""
        if count == 1:
            view.store_i32(end.data, at, stop - at)
            view.prefetch_writes(end.data, stop, stop - at)  # of the next one
        else:
            slots = view.bytes_inside(sizes)
            for each in range(count):
                size = view.load_i32(slots, 4 * each)
                view.store_i32(end.data, at, size)
                at += size
            packed = view.filled_record(sizes, 4 * count)
        position += end.base
        size = stop - end.position
        end.publish(counter, count, stop, now)
        result = self.result_type(
            self.done, position, number, size, now, end.store_host, count, None, packed
        )
        if end.position >= end.look_at:
            try:
                end.on_look()
            except BaseException:
                end.on_look()  # an interrupt: once too often is better than never
                raise
        if self.waits:
            if not waits:
                return self.acknowledge(result, began_ns, self.timeout_s, waits=False)
            left_s = self.timeout_s
            if self.group is not None:
                left_s = -1.0 if self.group.wait(position + size, left_s) else 0.0
            if left_s >= 0:
                return self.acknowledge(result, began_ns, left_s)
        elapsed_ns = view.system_ns() - began_ns
        if elapsed_ns >= 1_000_000:
            self.statistics.note_slow_put(elapsed_ns // 1_000_000, count)
        return result


def is_same(one: Any, other: Any) -> bool:
    """Return whether two objects are the same text, of no class of its own."""
    return one is other or (type(one) is str and type(other) is str and one == other)
