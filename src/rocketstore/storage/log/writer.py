"""Put: check a message, append it, wait for what its flush mode promises, say what became of it.

Law: nothing is appended before every check has passed, and a put that is not acknowledged says why,
as a status where 4.9 has one, else as a typed error. The append lock is not held while waiting.

How derived: DefaultMessageStore.checkStoreStatus and checkMessage, CommitLog.asyncPutMessage of
4.9.8 (spec B3). The order of checks is 4.9's, except that a name is refused first, before it could
become a path. `put_plainly` and `put_prepared_plainly` are written out, not layered: each call
costs 60 ns of 2 us. Where it was compiled, `put` does the common case and leaves the rest to them
(``storage.log.put_state``).
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, NoReturn

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
from rocketstore.format.properties import PROPERTIES_SIZE_MAX, message_properties
from rocketstore.format.record import TOPIC_SIZE_MAX, host_flags, record_size
from rocketstore.format.refusals import encoded_born_host, refuse_special, refuse_transaction
from rocketstore.format.topic_name import check_queue_id, check_topic_characters
from rocketstore.message import Message
from rocketstore.storage.log.append_state import IS_COMPILED
from rocketstore.storage.log.prepared import (
    HOST_BITS,
    PreparedMessage,
    is_true,
    refuse_other_types,
)
from rocketstore.storage.log.put_state import PutState
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.running_flags import STOPS_PUTS
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketstore.config import StoreConfig
    from rocketstore.storage.log.append_state import QueueCell
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.flush import CommitLogFlusher
    from rocketstore.storage.running_flags import RunningFlags
    from rocketstore.storage.statistics import StoreStatistics

_log: Final = get_logger(__name__)
_OK: Final = PutMessageStatus.PUT_OK
_NO_ID: Final = -1
"""No queue has it: what is no int, and may be equal to one (True, 1.0), is not looked up."""

_SLOW_NS: Final = 1_000_000
"""Only puts of a millisecond and more are entered in the histogram one by one."""

_KNOWN_HOSTS: Final = 4096
"""Most born hosts that are kept encoded."""

_BUSY_LIMIT_MS: Final = 10_000_000
"""A lock that seems to be held for longer is a clock that moved (isOSPageCacheBusy)."""

_LARGEST_REST: Final = 115 + TOPIC_SIZE_MAX + PROPERTIES_SIZE_MAX + END_FILE_MIN_BLANK_SIZE
"""Most bytes that a record and the end of its file need besides the body."""


class StoreWriter(PutState):
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
        waits = config.is_sync_flush or config.broker_role is BrokerRole.SYNC_MASTER
        wakes = not config.is_sync_flush and not config.flush_commit_log_timed
        longest = min(config.max_message_size, log.file_size - _LARGEST_REST)
        host_bits = host_flags(b"", log.store_host)
        super().__init__(
            log, flags, {}, Message, PreparedMessage, PutResult, _OK, longest, host_bits,
            not waits and not wakes,
        )  # fmt: skip
        self._flusher = flusher
        self._statistics = statistics
        self._config = config
        self._clock = clock
        self._is_slave = config.broker_role is BrokerRole.SLAVE
        self._is_closed = False
        self.forked: StoreForkedError | None = None
        self._never = self._is_slave
        self._end_at_refusal = -1
        self._host_bits = host_bits
        self._max_body = config.max_message_size
        self._easy_body = longest
        self._syncs = config.is_sync_flush
        self._needs_replica = config.broker_role is BrokerRole.SYNC_MASTER
        self._waits = waits
        self._wakes = wakes
        self._flush_timeout_s = config.sync_flush_timeout / 1000

    def stop(self) -> None:
        """Take no put any more; each gets SERVICE_NOT_AVAILABLE."""
        self._is_closed = self._never = True

    def fail(self, _error: FlushFailedError) -> None:
        """Take no put any more; each gets the error of the flusher."""
        self._never = True

    # --- one message ----------------------------------------------------------------------------

    def put_plainly(  # noqa: C901, PLR0912 - one straight run of checks, see above
        self, message: Message, queue_id: int = 0
    ) -> PutResult:
        """Store a message; see `MessageStore.put`, which calls `put`, this or its twin."""
        began_ns = monotonic_ns()
        log = self._log
        if self._never or self._flags.bits or log.locked_since_ms:
            refused = self.refusal()
            if refused is not None:
                return refused
        try:
            cell = self._cells[message.topic, queue_id if type(queue_id) is int else _NO_ID]
        except (KeyError, TypeError, AttributeError):
            refuse_other_types((message,))
            made = self._new_cell(message.topic, queue_id)
            if isinstance(made, PutResult):
                return made
            cell = made
        body = message.body
        if type(body) is not bytes:
            body = body_bytes(body)
        waits = message.wait_flush
        if message.properties:
            refuse_special(message.properties)
            waits = waits and is_true(message.properties.get("WAIT"))
        properties = message_properties(message)
        try:
            born_host, sys_flag = self._born_hosts[message.born_host]
        except (KeyError, TypeError):
            born_host, sys_flag = self.born_host(message.born_host)
        if message.sys_flag:
            refuse_transaction(message.sys_flag)
            sys_flag |= message.sys_flag & ~HOST_BITS
        if len(body) > self._easy_body or len(properties) > PROPERTIES_SIZE_MAX:
            refused = self._size_refusal(cell, body, properties, sys_flag)
            if refused is not None:
                return refused
        try:
            offset, size, queue_offset, timestamp = log.append(
                cell, body, properties, message.flag, sys_flag, message.born_timestamp_ms,
                born_host, message.reconsume_times, message.prepared_transaction_offset,
            )  # fmt: skip
        except (StoreError, OSError) as error:
            return self.failed(error)
        status = self._flushed(offset + size, waits) if self._waits else _OK
        if self._wakes:
            self._flusher.wake()
        elapsed_ns = monotonic_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self._statistics.note_slow_put(elapsed_ns // _SLOW_NS)
        return PutResult(status, offset, queue_offset, size, timestamp, log.store_host)

    def put_prepared_plainly(  # noqa: C901 - as put
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message; see `MessageStore.put_prepared` and `put_plainly`."""
        began_ns = monotonic_ns()
        log = self._log
        if self._never or self._flags.bits or log.locked_since_ms:
            refused = self.refusal()
            if refused is not None:
                return refused
        try:
            cell = self._cells[prepared.topic, queue_id if type(queue_id) is int else _NO_ID]
        except (KeyError, TypeError):
            made = self._new_cell(prepared.topic, queue_id)
            if isinstance(made, PutResult):
                return made
            cell = made
        if body is None:
            body = prepared.body
        if type(body) is not bytes:
            body = body_bytes(body)
        properties = prepared.properties
        sys_flag = prepared.sys_flag | self._host_bits
        if len(body) > self._easy_body or len(properties) > PROPERTIES_SIZE_MAX:
            refused = self._size_refusal(cell, body, properties, sys_flag)
            if refused is not None:
                return refused
        try:
            offset, size, queue_offset, timestamp = log.append(
                cell, body, properties, prepared.flag, sys_flag,
                prepared.born_timestamp_ms, prepared.born_host, prepared.reconsume_times,
                prepared.prepared_transaction_offset,
            )  # fmt: skip
        except (StoreError, OSError) as error:
            return self.failed(error)
        status = self._flushed(offset + size, prepared.wait_flush) if self._waits else _OK
        if self._wakes:
            self._flusher.wake()
        elapsed_ns = monotonic_ns() - began_ns
        if elapsed_ns >= _SLOW_NS:
            self._statistics.note_slow_put(elapsed_ns // _SLOW_NS)
        return PutResult(status, offset, queue_offset, size, timestamp, log.store_host)

    if TYPE_CHECKING or not IS_COMPILED:
        put = put_plainly
        put_prepared = put_prepared_plainly

    def note_slow(self, elapsed_ms: int) -> None:
        """Count a put that took a millisecond or more, for the compiled ones."""
        self._statistics.note_slow_put(elapsed_ms)

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
        since = self._log.locked_since_ms
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

    def _new_cell(self, topic: object, queue_id: object) -> QueueCell | PutResult:
        """Return the cell of a queue that got no message yet, once its name is found fit."""
        name = check_topic_characters(topic)
        number = check_queue_id(queue_id)
        if len(name) > TOPIC_SIZE_MAX:
            return self.refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"topic of {len(name)} bytes exceeds the limit of {TOPIC_SIZE_MAX}",
            )
        return self._log.cell(QueueKey(name, number))

    def cell_of(self, topic: object, queue_id: object) -> QueueCell | PutResult:
        """Return the cell of a queue, or why there is none; raises `InvalidNameError`."""
        try:
            return self._cells[topic, queue_id if type(queue_id) is int else _NO_ID]  # type: ignore[index]
        except (KeyError, TypeError):
            return self._new_cell(topic, queue_id)

    def born_host(self, host: str) -> tuple[bytes, int]:
        """Return a producer's host as a record holds it, and the host bits of the record's sysFlag.

        Raises
        ------
        RefusedMessageError
            It is no address with a port.
        """
        known = self._born_hosts.get(host) if isinstance(host, str) else None
        if known is None:
            encoded = encoded_born_host(host)
            known = (encoded, host_flags(encoded, self._log.store_host))
            if len(self._born_hosts) >= _KNOWN_HOSTS:
                self._born_hosts.clear()
            self._born_hosts[host] = known
        return known

    def _size_refusal(
        self, cell: QueueCell, body: bytes, properties: bytes, sys_flag: int
    ) -> PutResult | None:
        """Return why a message is too large, or None (spec F3, B3.2; disagreement D1)."""
        if len(properties) > PROPERTIES_SIZE_MAX:
            return self.refuse(*properties_refusal(properties))
        if len(body) > self._max_body:
            return self.refuse(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"body of {len(body)} bytes exceeds maxMessageSize of {self._max_body}",
            )
        size = record_size(
            body_size=len(body),
            topic_size=cell.topic_size,
            properties_size=len(properties),
            sys_flag=sys_flag,
        )
        is_fit = size + END_FILE_MIN_BLANK_SIZE <= self._log.file_size
        return None if is_fit else self.file_refusal(size)

    def file_refusal(self, size: int) -> PutResult:
        """Return the result of a put whose `size` bytes fit no CommitLog file."""
        file_size = self._log.file_size
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

    def acknowledge(self, offset: int, *, waits: bool) -> PutMessageStatus:
        """Do what the flush mode promises before all up to `offset` is acknowledged."""
        if self._waits:
            return self._flushed(offset, waits)
        if self._wakes:
            self._flusher.wake()
        return _OK

    def _flushed(self, offset: int, waits: bool) -> PutMessageStatus:  # noqa: FBT001 - hot path
        """Wait until all before `offset` is on the disk, if the message asks for that."""
        if not waits:
            self._flusher.wake()
            return _OK
        flushed = self._after_wait(offset, self._flush_timeout_s) if self._syncs else _OK
        if self._needs_replica:
            # Compatible: no replica is connected, as there is no replication yet, and what is said
            # of the replica counts for more than what is said of the flush (CommitLog.handleHA).
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        return flushed

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


def properties_refusal(properties: bytes) -> tuple[PutMessageStatus, str]:
    """Return status and detail for properties that are too long.

    Notes
    -----
    Compatible: 4.9 looks at the length of the string first, then at that of its UTF-8 bytes, and
    has a status for each.
    """
    units = len(properties.decode("utf-8", "replace").encode("utf-16-le")) // 2
    detail = f"properties of {len(properties)} bytes exceed the limit of {PROPERTIES_SIZE_MAX}"
    if units > PROPERTIES_SIZE_MAX:
        return PutMessageStatus.MESSAGE_ILLEGAL, f"{detail} ({units} characters)"
    return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, detail


def body_bytes(body: Any) -> bytes:
    """Return a body as bytes, if it is some kind of bytes."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise RefusedMessageError(
        f"a body is bytes, not {type(body).__name__}", hint="encode text, for example as UTF-8"
    )
