"""Put: check a message, append it, wait for what its flush mode promises, return the outcome.

Law: nothing is appended before every check has passed, and a put that is not acknowledged says why,
as a status where 4.9 has one, else as a typed error. The append lock is not held while waiting. A
batch is judged as a whole; its messages get one store time, and a consumer sees them one by one.

How derived: DefaultMessageStore.checkStoreStatus and checkMessage, CommitLog.asyncPutMessage and
MessageExtBatch of 4.9.8 (spec B3, F15). The order of checks is 4.9's, except that a name is refused
first, before it could become a path. What 4.9 answers to a batch by an exception is a status here
(K-P7). A plain put is one call of `native.put.PlainPuts`; messages that it does not store come
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from rocketstore.config import BrokerRole, StoreConfig, parse_delay_levels
from rocketstore.errors import (
    ArgumentError,
    FlushFailedError,
    RefusedMessageError,
    StoreClosedError,
    StoreError,
    StoreForkedError,
)
from rocketstore.events import get_logger
from rocketstore.format.client_batch import BATCH_MESSAGE_FIXED_SIZE
from rocketstore.format.properties import GIVE_BACK_ROOM, PROPERTIES_SIZE_MAX, PROPERTIES_SIZE_ROOMY
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.format.refusals import (
    body_bytes,
    check_queue_id,
    check_topic_characters,
    encoded_born_host,
    refuse_other_types,
    refuse_transaction,
)
from rocketstore.message import DEFAULT_HOST, INNER_BATCH, Message
from rocketstore.native.log_end import QueueCounter, Record
from rocketstore.native.put import PlainPuts
from rocketstore.rules.extra_queues import EXTRA, ExtraQueues, room_for
from rocketstore.rules.limits import (
    Refusal,
    refused_length,
    refused_properties,
    refused_record,
    refused_topic,
)
from rocketstore.rules.waiting import delayed
from rocketstore.storage.log.prepared import (
    PreparedMessage,
    batch_messages,
    client_messages,
    may_wait,
    record_of,
    storable_block,
)
from rocketstore.storage.results import FIRST_IN_MEMORY, NotTakenError, PutMessageStatus, PutResult
from rocketstore.storage.running_flags import STOPS_PUTS, RunningFlags
from rocketstore.units import QueueKey, system_clock_ms

if TYPE_CHECKING:
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.flush import CommitLogFlusher
    from rocketstore.storage.queues.topic_kinds import TopicKind
    from rocketstore.storage.statistics import StoreStatistics

_log: Final = get_logger(__name__)
_OK: Final = PutMessageStatus.PUT_OK

_SLOW_NS: Final = 1_000_000
"""Only puts of a millisecond and more are entered in the histogram one by one."""

_KNOWN_HOSTS: Final = 4096
"""Most born hosts that are kept encoded."""

_BUSY_LIMIT_MS: Final = 10_000_000
"""Compatible: a lock held for longer than this counts as free (isOSPageCacheBusy)."""


def _refuse(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise NotTakenError(PutMessageStatus[refusal.status], refusal.why)


@dataclass(eq=False)
class StoreWriter:
    """Puts into an open store; `plain` does a plain put in one compiled call.

    `put_at_once` is tried before `put`, `put_prepared_at_once` before `put_prepared`. What a topic
    of a kind does with a message is decided by its `TopicKind`. `wake` lets waiting callers look
    again.
    """

    _log: CommitLog
    flusher: CommitLogFlusher
    flags: RunningFlags
    statistics: StoreStatistics
    config: StoreConfig
    clock: Callable[[], int]
    wake: Callable[[], object]

    def __post_init__(self) -> None:
        config, log = self.config, self._log
        self.is_slave = config.broker_role is BrokerRole.SLAVE
        self._is_closed = False
        self._replica: Callable[[int, float], PutMessageStatus] | None = None
        self._forked: StoreForkedError | None = None
        self._end_at_refusal = -1
        self._longest = config.max_message_size
        self.extra_queues = ExtraQueues(log.counters, log.counter, config, log.kinds)
        self._last_level = len(parse_delay_levels(config.message_delay_level))
        self._syncs = config.is_sync_flush
        self._timeout_s = config.sync_flush_timeout / 1000
        self._needs_replica = config.broker_role is BrokerRole.SYNC_MASTER
        self._wakes = not self._syncs and not config.flush_commit_log_timed
        self._wakes &= not config.has_transient_pool  # then a commit wakes the flush
        self._born_hosts: dict[str, bytes] = {}
        self._is_immediate = not (self._syncs or self._needs_replica or self._wakes)
        self.plain = plain = self._plain_puts(log.counters)
        self._special = {kind.name: self._plain_puts(kind.counters) for kind in log.kinds.on_disk()}
        self.flusher.failure_listeners.append(self._close_plain)
        if self.is_slave:
            self._close_plain()
        self.put_at_once: Callable[..., PutResult | None] = plain.put_message
        self.put_prepared_at_once: Callable[..., PutResult | None] = plain.put_prepared
        self.put_encoded_at_once: Callable[..., PutResult | None] = plain.put_encoded
        self.put_client_batch_at_once: Callable[..., PutResult | None] = plain.put_client_batch

    def _plain_puts(self, counters: dict[tuple[str, int], QueueCounter]) -> PlainPuts:
        clock = self.clock
        return PlainPuts(
            self._log.end, counters=counters, born_hosts=self._born_hosts, flags=self.flags,
            statistics=self.statistics, message_type=Message, prepared_type=PreparedMessage,
            result_type=PutResult, done=_OK, longest_body=self._longest,
            clock=None if clock is system_clock_ms else clock, timeout_s=self._timeout_s,
            acknowledge=None if self._is_immediate else self._acknowledged,
            group=self.flusher.group if self._syncs and not self._needs_replica else None,
        )  # fmt: skip

    def _close_plain(self) -> None:
        """Leave all puts to the checks, which refuse them: with the flusher's error, or another."""
        for puts in (self.plain, *self._special.values()):
            puts.close()

    def set_replica(self, wait: Callable[[int, float], PutMessageStatus]) -> None:
        """Have puts wait by `wait(offset, timeout_s)` until replicas have all before an offset."""
        self._replica = wait

    def stop(self, forked: StoreForkedError | None = None) -> None:
        """Refuse puts from now on: each gets SERVICE_NOT_AVAILABLE, or, in a child, that error."""
        self._is_closed, self._forked = True, forked
        self._close_plain()

    # --- puts -----------------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message that `put_at_once` did not store; see `MessageStore.put`."""
        topic = message.topic if isinstance(message, Message) else None
        kind = self._log.kinds.get(topic) if isinstance(topic, str) else None
        if kind is not None and kind.is_by_itself(message):
            result = self._special[kind.name].put_message(message, queue_id)
            if result is not None:
                return cast("PutResult", result)
        try:
            self._check_state(topic)
            refuse_other_types(message)
            queue = self._queue_of(message.topic, queue_id)
            record, waits = record_of(message, self._born_host, alone=True)
            return self._put_one(*queue, record, waits=waits, checks=True)
        except NotTakenError as refused:
            return self._refused(refused)

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message that `put_prepared_at_once` did not store."""
        if not isinstance(prepared, PreparedMessage):
            raise ArgumentError("prepared", expected="PreparedMessage", found=prepared)
        try:
            self._check_state(prepared.topic)
            queue = self._queue_of(prepared.topic, queue_id)
            record = prepared.record
            if body is not None:
                record = record.with_body(body_bytes(body))
            return self._put_one(*queue, record, waits=prepared.wait_flush, checks=True)
        except NotTakenError as refused:
            return self._refused(refused)

    def put_rows(self, *rows: Any) -> int:
        """Store checked rows up to one that needs `put_prepared`; see `PlainPuts.put_rows`."""
        file = self._log.end.file
        if file is None or file.has_buffer:
            return 0
        with file.descriptor() as descriptor:
            return int(self.plain.put_rows(file, descriptor, *rows))

    def put_encoded(  # noqa: PLR0913 - the fields of a send request
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", *, flag: int = 0,
        sys_flag: int = 0, born_timestamp_ms: int | None = None, born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0, wait_flush: bool = True,
    ) -> PutResult:  # fmt: skip
        """Store a message as it came over the wire; a plain one without a `PreparedMessage`."""
        result = self.put_encoded_at_once(
            body, properties, topic, queue_id, wait_flush, born_host, flag, sys_flag,
            born_timestamp_ms, reconsume_times,
        )  # fmt: skip
        if result is not None:
            return result
        prepared = PreparedMessage(
            topic, body, properties, flag=flag, sys_flag=sys_flag, born_host=born_host,
            born_timestamp_ms=born_timestamp_ms, reconsume_times=reconsume_times,
            wait_flush=wait_flush,
        )  # fmt: skip
        self._born_host(born_host)  # it is known from now on
        return self.put_prepared(prepared, None, queue_id)

    def put_record(
        self, topic: str, queue_id: int, record: Record, *, wait_flush: bool = True
    ) -> PutResult:
        """Store a record as it is; see `BaseStore.put_record`."""
        try:
            self._check_state(topic)
            result = self._put_one(*self._queue_of(topic, queue_id), record, waits=wait_flush)
        except NotTakenError as refused:
            return self._refused(refused)
        if result.is_stored:
            own, in_memory = QueueKey(topic, queue_id), result.physical_offset >= FIRST_IN_MEMORY
            # Further queues that cannot point at it.
            for queue, copy in self.extra_queues.apart(record, own, is_own_in_memory=in_memory):
                found = self.put_record(*queue, copy)
                if not found.is_stored:
                    why = str(found.detail)
                    hint = "once that is mended, put the message there again"
                    _log.error("put.further_queue_lost", queue=str(queue), reason=why, hint=hint)
        return result

    def acknowledged(self, result: PutResult, waited_s: float = 0.0) -> PutResult:
        """Return the result of a put that waited for nothing; see `BaseStore.acknowledged`."""
        left_s = max(self._timeout_s - waited_s, 0.0)
        return self._acknowledged(result, time_ns(), left_s, waited_s=waited_s)

    def _put_one(
        self, counter: QueueCounter, kind: TopicKind | None, record: Record, *, waits: bool,
        checks: bool = False,
    ) -> PutResult:  # fmt: skip
        """Store a record; with `checks` what a producer asks for in its properties is heeded."""
        fill = None if kind is None else kind.numbering(counter, record, checks=checks)
        is_alone = fill is not None or (kind is not None and not kind.is_on_disk)
        queues: list[QueueKey] = []
        if EXTRA in record.properties and not is_alone:
            record, queues = self.extra_queues.of(record, counter.key, refuses=checks)
        level = 0
        if checks and not is_alone:
            level, record = delayed(record, *counter.key, self._last_level)
        if level:
            # Checked now: it must fit its own queue when it is delivered.
            self._check_fits(self._log.end.size_of(record, counter))
            _refuse(refused_properties(record.properties, room=room_for(queues)))
            counter, queues = self._log.counter(QueueKey(DELAY_TOPIC, level - 1)), []
            kind = None
        _refuse(refused_properties(record.properties))
        _refuse(refused_length("body", len(record.body), self._longest))
        if not queues:
            return self._append(counter, kind, [record], waits=waits, numbered=fill)

        limit = self.config.max_lmq_consume_queue_num if checks else None

        def numbered() -> tuple[Record, list[QueueCounter]]:
            if any(queue.topic in self._log.kinds for queue in queues):
                raise self._unavailable("a further queue's topic became of another kind just now")
            made = self.extra_queues.numbered(record, queues, limit)
            if made is None:
                status = PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
                raise NotTakenError(
                    status, f"more than maxLmqConsumeQueueNum of {limit} light queues"
                )
            return made

        return self._append(counter, kind, [record], waits=waits, numbered=numbered)

    def put_messages(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic; see `MessageStore.put_batch`."""
        try:
            result = self.plain.put_messages(messages, queue_id, self._longest)
            if result is not None:
                return cast("PutResult", result)
            messages = batch_messages(messages)
            self._check_state(messages[0].topic)
            counter, kind = self._queue_of(messages[0].topic, queue_id)
            made = [record_of(message, self._born_host) for message in messages]
            records = [record for record, _ in made]
            _refuse(refused_properties(max((record.properties for record in records), key=len)))
            fixed = BATCH_MESSAGE_FIXED_SIZE
            size = sum(fixed + len(each.body) + len(each.properties) for each in records)
            _refuse(refused_length("batch", size, self._longest))
            waits = all(waits for _, waits in made)
            joined = None if kind is None else kind.joined(records)
            if joined is not None:
                return self._put_one(counter, kind, joined, waits=waits)
            return self._append(counter, kind, records, waits=waits)
        except NotTakenError as refused:
            return self._refused(refused)

    def put_client_batch(
        self, batch: object, properties: Mapping[str, str] | bytes, topic: str, queue_id: int,
        born_host: str, *, wait_flush: bool, **fields: Any,
    ) -> PutResult:  # fmt: skip
        """Store a batch that `put_client_batch_at_once` left; see `MessageStore.put_client_batch`.

        `fields` are those of a `Record` that all messages have.
        """
        try:
            given, batch = batch, body_bytes(batch)
            if batch is not given:
                result = self.put_client_batch_at_once(
                    batch, properties, topic, queue_id, wait_flush, born_host, **fields
                )
                if result is not None:
                    return result
            self._check_state(topic)
            counter, kind = self._queue_of(topic, queue_id)
            host = self._born_host(born_host)
            refuse_transaction(fields["sys_flag"])
            more, wanted = storable_block(properties)
            _refuse(refused_properties(more))
            _refuse(refused_length("batch", len(batch), self._longest))
            waits = wait_flush and may_wait(wanted)
            whole = None if kind is None else kind.client_record(batch, more, host, **fields)
            if whole is not None:
                return self._put_one(counter, kind, whole, waits=waits)
            records = [
                Record(body, block, host, flag=flag, **fields)
                for flag, body, block in client_messages(batch, more)
            ]
            longest = max((record.properties for record in records), key=len)
            _refuse(refused_properties(longest, "properties of a message and of its batch"))
            return self._append(counter, kind, records, waits=waits)
        except NotTakenError as refused:
            return self._refused(refused)

    def _append(
        self, counter: QueueCounter, kind: TopicKind | None, records: list[Record], *, waits: bool,
        numbered: Callable[[], tuple[Record, Sequence[QueueCounter]]] | None = None,
    ) -> PutResult:  # fmt: skip
        """Append records that were checked except for the file size; see `CommitLog.append`."""
        began_ns = time_ns()
        if (kind is None or numbered is None) and any(
            one.sys_flag & INNER_BATCH for one in records
        ):
            why = f"sysFlag says that it holds a batch, which {counter.key.topic} does not take"
            raise NotTakenError(PutMessageStatus.MESSAGE_ILLEGAL, why)
        is_on_disk = kind is None or kind.is_on_disk
        size_of, fill = self._log.end.size_of, numbered
        if is_on_disk:
            self._check_fits(sum(size_of(record, counter) for record in records))

        def checked() -> tuple[Record, Sequence[QueueCounter]]:
            assert fill is not None
            made = fill()
            _refuse(refused_properties(made[0].properties))
            self._check_fits(size_of(made[0], counter))
            return made

        log = self._log if kind is None or is_on_disk else kind.log
        try:
            result = log.append(counter, records, numbered and checked)
        except OSError as error:
            if not isinstance(error, StoreError) and error.errno is None:
                raise  # from a signal handler (for example a time limit), not from the system
            why = f"the system refused: {error}"
            raise NotTakenError(PutMessageStatus.UNKNOWN_ERROR, why) from error
        except (RefusedMessageError, FlushFailedError):
            self.statistics.note_failed_put()
            raise
        except StoreClosedError as error:
            raise self._unavailable(str(error)) from error
        except StoreError as error:
            raise NotTakenError(PutMessageStatus.CREATE_MAPEDFILE_FAILED, str(error)) from error
        size = max(len(record.properties) for record in records)
        if size > PROPERTIES_SIZE_ROOMY:
            detail = (
                f"properties of {size} bytes leave less than {GIVE_BACK_ROOM} of "
                f"{PROPERTIES_SIZE_MAX}: a copy that a consumer gives back may lack the longest"
            )
            result = msgspec.structs.replace(result, detail=detail)
        return self._acknowledged(result, began_ns, self._timeout_s, waits=waits)

    # --- refusals ----------------------------------------------------------------------

    def _check_state(self, topic: object) -> None:
        """Raise where puts to a topic are refused now (checkStoreStatus, spec B3.1)."""
        self.refuse_forked()
        is_on_disk = not self._log.kinds.is_in_memory(topic)
        if is_on_disk:
            self.flusher.raise_failure()
        if self._is_closed:
            raise self._unavailable("the store was closed, and has to be opened again")
        if self.is_slave:
            raise self._unavailable("brokerRole is SLAVE: messages come from its master only")
        if not is_on_disk:
            return
        if self.flags.bits & STOPS_PUTS:
            raise self._unavailable("; ".join(self.flags.reasons))
        self.statistics.note_writeable()
        since = self._log.end.locked_since_ms
        held_ms = self._log.monotonic() - since if since else 0
        limit_ms = self.config.os_page_cache_busy_time_out_mills
        if limit_ms < held_ms < _BUSY_LIMIT_MS:
            why = f"the append lock has been held for {held_ms} ms, more than {limit_ms} ms"
            raise NotTakenError(PutMessageStatus.OS_PAGECACHE_BUSY, why)

    def refuse_forked(self) -> None:
        """Raise in a forked child."""
        if self._forked is not None:
            raise StoreForkedError(self._forked.message, hint=self._forked.hint)

    def _unavailable(self, why: str) -> NotTakenError:
        end = self._log.max_offset
        if end != self._end_at_refusal:
            # A put succeeded since: refusals count from the start again.
            self._end_at_refusal = end
            self.statistics.note_writeable()
        self.statistics.note_unavailable(why)
        return NotTakenError(PutMessageStatus.SERVICE_NOT_AVAILABLE, why)

    def _queue_of(self, topic: object, queue_id: object) -> tuple[QueueCounter, TopicKind | None]:
        """Return counter and kind of a queue; raises `InvalidNameError` for an impossible one."""
        name = check_topic_characters(topic)
        number = check_queue_id(queue_id)
        _refuse(refused_topic(name))
        kind = self._log.kinds.get(name)
        if kind is not None and (refusal := kind.refusal(name)) is not None:
            raise self._unavailable(refusal)
        return self._log.counter(QueueKey(name, number)), kind

    def _born_host(self, host: str) -> bytes:
        """Return a producer's host as a record holds it; raises `RefusedMessageError`."""
        known = self._born_hosts.get(host) if isinstance(host, str) else None
        if known is None:
            known = encoded_born_host(host)
            if len(self._born_hosts) >= _KNOWN_HOSTS:
                self._born_hosts.clear()
            self._born_hosts[host] = known
        return known

    def _check_fits(self, size: int) -> None:
        _refuse(refused_record(size, self._log.files.file_size))

    def _refused(self, refused: NotTakenError) -> PutResult:
        self.statistics.note_failed_put()
        return PutResult(refused.status, detail=str(refused))

    # --- durability -----------------------------------------------------------------------------

    def _acknowledged(
        self, result: PutResult, began_ns: int, timeout_s: float, *, waits: bool = True,
        waited_s: float = 0.0,
    ) -> PutResult:  # fmt: skip
        """Return the result of a put that was appended, once its flush mode's promise holds.

        A plain put that waited only for a sync, which succeeded, needs none of this.
        """
        if result.physical_offset >= FIRST_IN_MEMORY:
            self.wake()
            return result
        status, end = _OK, result.physical_offset + result.size
        if self._wakes or not (waits or self._is_immediate):
            self.flusher.wake()
        elif self._syncs and not self.flusher.wait_flushed(end, timeout_s):
            status = PutMessageStatus.FLUSH_DISK_TIMEOUT
            _log.error(
                "put.flush_timeout", end_physical_offset=end,
                flushed_physical_offset=self._log.flushed_offset,
                timeout_ms=self.config.sync_flush_timeout,
                hint="see the system's log (dmesg) for a disk that hangs; for a slow one raise "
                "syncFlushTimeout",
            )  # fmt: skip
        if self._needs_replica and waits:
            # Compatible: the status of the replica wins over that of the flush
            # (CommitLog.submitReplicaRequest, and asyncPutMessage, which combines both).
            replicated = PutMessageStatus.SLAVE_NOT_AVAILABLE
            if self._replica is not None:
                left_s = max(self.config.slave_timeout / 1000 - waited_s, 0.0)
                replicated = self._replica(end, left_s)
            status = status if replicated is _OK else replicated
        elapsed_ns = time_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self.statistics.note_slow_put(elapsed_ns // _SLOW_NS, result.message_count)
        return result if status is _OK else msgspec.structs.replace(result, status=status)
