"""Put: check a message, append it, wait for what its flush mode promises, say what became of it.

Law: nothing is appended before every check has passed, and a put that is not acknowledged says why,
as a status where 4.9 has one, else as a typed error. The append lock is not held while waiting.

How derived: DefaultMessageStore.checkStoreStatus and checkMessage, CommitLog.asyncPutMessage of
4.9.8 (spec B3). The order of checks is 4.9's, except that a name is refused first, before it could
become a path. A put in which nothing is to be refused is one call of `native.put.PlainPuts`, which
says no to nothing: what it does not take comes here.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from rocketstore.config import BrokerRole
from rocketstore.errors import (
    FlushFailedError,
    RefusedMessageError,
    StoreError,
    StoreForkedError,
    SystemRefusedError,
)
from rocketstore.events import get_logger
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.format.properties import PROPERTIES_SIZE_MAX
from rocketstore.format.record import TOPIC_SIZE_MAX
from rocketstore.format.refusals import encoded_born_host
from rocketstore.format.topic_name import check_queue_id, check_topic_characters
from rocketstore.message import Message
from rocketstore.native.put import PlainPuts
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.log.prepared import (
    PreparedMessage,
    body_bytes,
    may_wait,
    record_of,
    refuse_other_types,
)
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.running_flags import STOPS_PUTS
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.config import StoreConfig
    from rocketstore.native.log_end import QueueCounter, Record
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.flush import CommitLogFlusher
    from rocketstore.storage.running_flags import RunningFlags
    from rocketstore.storage.statistics import StoreStatistics

_log: Final = get_logger(__name__)
_OK: Final = PutMessageStatus.PUT_OK

_SLOW_NS: Final = 1_000_000
"""Only puts of a millisecond and more are entered in the histogram one by one."""

_KNOWN_HOSTS: Final = 4096
"""Most born hosts that are kept encoded."""

_BUSY_LIMIT_MS: Final = 10_000_000
"""A lock that seems to be held for longer is a clock that moved (isOSPageCacheBusy)."""


class StoreWriter:
    """The putting side of an open store.

    Parameters
    ----------
    log
        Where messages go.
    flusher
        Waits for durability.
    flags
        Why puts are not taken at the moment.
    statistics
        Counts what is put.
    config
        Limits and flush mode.
    clock
        The time in ms.

    Attributes
    ----------
    plain
        Takes the puts that nobody would refuse.
    put_at_once, put_prepared_at_once
        What is tried before `put` and `put_prepared`; None where the put has to be looked at.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        flusher: CommitLogFlusher,
        flags: RunningFlags,
        statistics: StoreStatistics,
        config: StoreConfig,
        clock: Callable[[], int],
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._flags = flags
        self._statistics = statistics
        self._config = config
        self._clock = clock
        self._is_slave = config.broker_role is BrokerRole.SLAVE
        self._is_closed = False
        self.forked: StoreForkedError | None = None
        self._end_at_refusal = -1
        self._syncs = config.is_sync_flush
        self._needs_replica = config.broker_role is BrokerRole.SYNC_MASTER
        self._wakes = not self._syncs and not config.flush_commit_log_timed
        self._flush_timeout_s = config.sync_flush_timeout / 1000
        self._born_hosts: dict[str, bytes] = {}
        self.is_immediate = not (self._syncs or self._needs_replica or self._wakes)
        self.plain = PlainPuts(
            log.end,
            counters=log.counters,
            born_hosts=self._born_hosts,
            flags=flags,
            statistics=statistics,
            message_type=Message,
            prepared_type=PreparedMessage,
            result_type=PutResult,
            done=_OK,
            longest_body=config.max_message_size,
            clock=None if clock is system_clock_ms else clock,
            waits=not self.is_immediate,
        )
        if self._is_slave:
            self.plain.is_open = False
        is_immediate = self.is_immediate
        self.put_at_once = self.plain.put_message if is_immediate else self._put_and_wait
        self.put_prepared_at_once = (
            self.plain.put_prepared if is_immediate else self._put_prepared_and_wait
        )

    def stop(self) -> None:
        """Take no put any more; each gets SERVICE_NOT_AVAILABLE."""
        self._is_closed = True
        self.plain.is_open = False

    def fail(self, _error: FlushFailedError) -> None:
        """Take no put any more; each gets the error of the flusher."""
        self.plain.is_open = False

    # --- one message ----------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message that `put_at_once` left; see `MessageStore.put`."""
        began_ns = monotonic_ns()
        refused = self.refusal()
        if refused is not None:
            return refused
        refuse_other_types(message)
        counter = self.counter_of(message.topic, queue_id)
        if isinstance(counter, PutResult):
            return counter
        record = record_of(message, self.born_host)
        return self._append(counter, record, waits=may_wait(message), began_ns=began_ns)

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message that `put_prepared_at_once` left."""
        began_ns = monotonic_ns()
        refused = self.refusal()
        if refused is not None:
            return refused
        counter = self.counter_of(prepared.topic, queue_id)
        if isinstance(counter, PutResult):
            return counter
        record = prepared.record
        if body is not None:
            record = record.with_body(body_bytes(body))
        return self._append(counter, record, waits=prepared.wait_flush, began_ns=began_ns)

    def _put_and_wait(self, message: Message, queue_id: int = 0) -> PutResult | None:
        began_ns = monotonic_ns()
        result = self.plain.put_message(message, queue_id)
        return None if result is None else self.of_plain(result, began_ns)

    def _put_prepared_and_wait(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult | None:
        began_ns = monotonic_ns()
        result = self.plain.put_prepared(prepared, body, queue_id)
        return None if result is None else self.of_plain(result, began_ns)

    def of_plain(self, result: PutResult, began_ns: int) -> PutResult:
        """Return the result of a put that `plain` took, once it may be acknowledged."""
        if self.is_immediate:
            return result
        return self.acknowledged(result, waits=True, began_ns=began_ns)

    def _append(
        self, counter: QueueCounter, record: Record, *, waits: bool, began_ns: int
    ) -> PutResult:
        refused = self._size_refusal(counter, record)
        if refused is not None:
            return refused
        return self.append([record], counter, waits=waits, began_ns=began_ns)

    def append(
        self, records: list[Record], counter: QueueCounter, *, waits: bool, began_ns: int
    ) -> PutResult:
        """Append records that were checked; return the result of their put."""
        try:
            done = self._log.append(counter, records)
        except (StoreError, OSError) as error:
            return self.failed(error)
        result = PutResult(
            _OK, done.offset, done.queue_offset, done.size, done.store_timestamp_ms,
            self._log.store_host, len(records), None, done.packed_sizes,
        )  # fmt: skip
        return self.acknowledged(result, waits=waits, began_ns=began_ns)

    # --- what can be wrong ----------------------------------------------------------------------

    def refusal(self) -> PutResult | None:
        """Return why no put is taken now, or None (checkStoreStatus, spec B3.1).

        Raises
        ------
        FlushFailedError
            A sync failed earlier; this writer takes nothing any more.
        StoreForkedError
            It is the writer of the process that forked this one.
        """
        self.check_process()
        failure = self._flusher.failure
        if failure is not None:
            raise FlushFailedError(failure.message, hint=failure.hint)
        if self._is_closed:
            return self._unavailable("the store was closed")
        if self._is_slave:
            return self._unavailable("brokerRole is SLAVE: messages come from its master only")
        if self._flags.bits & STOPS_PUTS:
            return self._unavailable("; ".join(self._flags.reasons))
        self._statistics.note_writeable()
        since = self._log.end.locked_since_ms
        if since:
            held_ms = self._clock() - since
            if self._config.os_page_cache_busy_time_out_mills < held_ms < _BUSY_LIMIT_MS:
                return self.refuse(
                    PutMessageStatus.OS_PAGECACHE_BUSY,
                    f"the append lock has been held for {held_ms} ms, more than "
                    f"{self._config.os_page_cache_busy_time_out_mills} ms",
                )
        return None

    def check_process(self) -> None:
        """Raise where this is a forked child."""
        if self.forked is not None:
            raise StoreForkedError(self.forked.message, hint=self.forked.hint)

    def _unavailable(self, why: str) -> PutResult:
        end = self._log.max_offset
        if end != self._end_at_refusal:
            # A put was taken since, which looked at nothing: it is the next refusal that says so.
            self._end_at_refusal = end
            self._statistics.note_writeable()
        self._statistics.note_unavailable(why)
        return self.refuse(PutMessageStatus.SERVICE_NOT_AVAILABLE, why)

    def refuse(self, status: PutMessageStatus, detail: str) -> PutResult:
        """Count a put that was not taken, and return its result."""
        self._statistics.note_failed_put()
        return PutResult(status, detail=detail)

    def counter_of(self, topic: object, queue_id: object) -> QueueCounter | PutResult:
        """Return the counter of a queue, or why there is none; raises `InvalidNameError`."""
        if type(topic) is str and type(queue_id) is int:  # True and 1.0 are equal to a queue id
            known = self._log.counters.get((topic, queue_id))
            if known is not None:
                return known
        name = check_topic_characters(topic)
        number = check_queue_id(queue_id)
        if len(name) > TOPIC_SIZE_MAX:
            return self.refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"topic of {len(name)} bytes exceeds the limit of {TOPIC_SIZE_MAX}",
            )
        return self._log.counter(QueueKey(name, number))

    def born_host(self, host: str) -> bytes:
        """Return a producer's host as a record holds it.

        Raises
        ------
        RefusedMessageError
            It is no address with a port.
        """
        known = self._born_hosts.get(host) if isinstance(host, str) else None
        if known is None:
            known = encoded_born_host(host)
            if len(self._born_hosts) >= _KNOWN_HOSTS:
                self._born_hosts.clear()
            self._born_hosts[host] = known
        return known

    def _size_refusal(self, counter: QueueCounter, record: Record) -> PutResult | None:
        """Return why a message is too large, or None (spec F3, B3.2; disagreement D1)."""
        if len(record.properties) > PROPERTIES_SIZE_MAX:
            return self.properties_refusal(record.properties)
        limit = self._config.max_message_size
        if len(record.body) > limit:
            return self.refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"body of {len(record.body)} bytes exceeds maxMessageSize of {limit}",
            )
        return self.file_refusal(self._log.end.size_of(record, counter))

    def properties_refusal(self, properties: bytes) -> PutResult:
        """Return the result of a put whose properties are too long.

        Notes
        -----
        Compatible: 4.9 looks at the length of the string first, then at that of its UTF-8 bytes,
        and has a status for each.
        """
        units = len(properties.decode("utf-8", "replace").encode("utf-16-le")) // 2
        detail = f"properties of {len(properties)} bytes exceed the limit of {PROPERTIES_SIZE_MAX}"
        if units > PROPERTIES_SIZE_MAX:
            return self.refuse(PutMessageStatus.MESSAGE_ILLEGAL, f"{detail} ({units} characters)")
        return self.refuse(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, detail)

    def file_refusal(self, size: int) -> PutResult | None:
        """Return the result of a put whose `size` bytes fit no CommitLog file, None if they do."""
        file_size = self._log.file_size
        if size + END_FILE_MIN_BLANK_SIZE <= file_size:
            return None
        return self.refuse(
            PutMessageStatus.MESSAGE_ILLEGAL,
            f"{size} bytes do not fit a CommitLog file of {file_size} bytes, "
            f"which holds {file_size - END_FILE_MIN_BLANK_SIZE}",
        )

    def failed(self, error: StoreError | OSError) -> PutResult:
        """Return the status of an append that raised, or raise what has no status."""
        if isinstance(error, (RefusedMessageError, FlushFailedError)):
            self._raise(error)
        if not isinstance(error, StoreError) and error.errno is None:
            raise error  # of a signal handler (a time limit, say), not of the system
        if isinstance(error, StoreError) and not isinstance(error, SystemRefusedError):
            return self.refuse(PutMessageStatus.CREATE_MAPEDFILE_FAILED, str(error))
        return self.refuse(PutMessageStatus.UNKNOWN_ERROR, f"the system refused: {error}")

    def _raise(self, error: StoreError) -> NoReturn:
        self._statistics.note_failed_put()
        raise error

    # --- durability -----------------------------------------------------------------------------

    def acknowledged(self, result: PutResult, *, waits: bool, began_ns: int) -> PutResult:
        """Return the result of a put that was appended, once its flush mode's promise holds."""
        status = _OK
        if self._wakes or not (waits or self.is_immediate):
            self._flusher.wake()
        elif self._syncs:
            status = self._after_wait(result.physical_offset + result.size, self._flush_timeout_s)
        if self._needs_replica and waits:
            # Compatible: no replica is connected, as there is no replication yet, and what is said
            # of the replica counts for more than what is said of the flush (CommitLog.handleHA).
            status = PutMessageStatus.SLAVE_NOT_AVAILABLE
        elapsed_ns = monotonic_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self._statistics.note_slow_put(elapsed_ns // _SLOW_NS, result.message_count)
        return result if status is _OK else msgspec.structs.replace(result, status=status)

    def _after_wait(self, offset: int, timeout_s: float) -> PutMessageStatus:
        if self._flusher.wait_flushed(offset, timeout_s):
            return _OK
        _log.error(
            "put.flush_timeout",
            end_physical_offset=offset,
            flushed_physical_offset=self._log.flushed_offset,
            timeout_ms=self._config.sync_flush_timeout,
        )
        return PutMessageStatus.FLUSH_DISK_TIMEOUT
