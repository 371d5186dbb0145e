"""MessageStore: a store directory, open for writing and reading.

Law: one `MessageStore` per directory and machine writes, held by the lock of
`storage.files.lock`. After `close` returned without an error everything is on the disk, and the
next open has nothing to recover.

How derived: DefaultMessageStore of 4.9, whose order of start and shutdown this follows.
Reading is `storage.reading.reader`, which this class extends; putting is `storage.log.writer`; how
a store ends is `storage.store_end`.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Literal, Self, overload

from rocketstore.config import StoreConfig
from rocketstore.message import DEFAULT_HOST
from rocketstore.native.page import RECORDS
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.compiled_parts import note_missing
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.opening import StoreParts
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.results import GetRawResult
from rocketstore.storage.store_end import EndingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rocketstore.config import RecoveryPolicy
    from rocketstore.message import Message
    from rocketstore.storage.dispatch.arrival import ArrivalListener
    from rocketstore.storage.dispatch.dispatch_service import DispatchHealth
    from rocketstore.storage.recovery.recover import RecoveryReport
    from rocketstore.storage.results import GetResult, PutResult
    from rocketstore.verification.file_rules import FileFinding

_NANOS_PER_MS: Final = 1_000_000
_result: Final = tuple.__new__


class MessageStore(EndingStore):
    """A store that this process writes; made by `MessageStore.open`, a context manager.

    Attributes
    ----------
    config, layout
        Its settings and paths.
    recovery
        What recovery found and did when the store was opened.
    problems
        Files met at opening that are not what they should be.
    statistics
        Counters.
    running_flags
        Why puts or gets are refused at the moment.
    """

    def __init__(self, parts: StoreParts, *wrong: object, threads: bool = True) -> None:
        """Take what `MessageStore.open` made; programs call that."""
        if wrong or not isinstance(parts, StoreParts):
            raise TypeError("a store is opened by MessageStore.open(path), not MessageStore(path)")
        super().__init__(parts, threads=threads)
        self.find_limit = parts.config.max_msgs_num_batch
        self.config: StoreConfig = parts.config
        self.recovery: RecoveryReport = parts.recovery
        self.problems: list[FileFinding[Path]] = parts.problems

    @overload
    @classmethod
    def open(
        cls,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        read_only: Literal[False] = False,
        clock: Callable[[], int] = system_clock_ms,
        disk: Disk | None = None,
        policy: RecoveryPolicy | None = None,
        threads: bool = True,
    ) -> Self: ...

    @overload
    @classmethod
    def open(
        cls, path: str | Path, config: StoreConfig | None = None, *, read_only: Literal[True]
    ) -> ReadOnlyStore: ...

    @classmethod
    def open(  # noqa: PLR0913 - settings by name, all with defaults
        cls,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        read_only: bool = False,
        clock: Callable[[], int] = system_clock_ms,
        disk: Disk | None = None,
        policy: RecoveryPolicy | None = None,
        threads: bool = True,
    ) -> Self | ReadOnlyStore:
        """Open the store at `path`, recover it, and make it when there is none.

        Parameters
        ----------
        path
            The store's root directory.
        config
            Settings; file sizes left unset are learnt from the files.
        read_only
            Take no lock, start no thread, write no byte; for a store that somebody else writes.
        clock
            The time in ms; a test passes its own.
        disk
            The calls that make things durable; a test passes its own.
        policy
            What a recovery keeps; None takes the one of the settings.
        threads
            False runs nothing in the background: puts flush, and `wait_dispatched` dispatches, on
            the calling thread. For tests that must not depend on time.

        Raises
        ------
        StoreLockedError
            Another process writes to it, or this one does already.
        ConfigError
            A size that is set differs from the files, or cannot be learnt from them.
        NotAStoreError, StoreDamagedError
            With `read_only` there is no store; or it needs a repair first.
        StoreFullError
            No room to recover it.
        """
        config = StoreConfig() if config is None else config
        if read_only:
            return ReadOnlyStore.open(path, config)
        note_missing()
        parts = StoreParts(
            StoreLayout.of(path, config),
            config,
            disk=Disk() if disk is None else disk,
            clock=clock,
            policy=policy,
        )
        try:
            store = cls(parts, threads=threads)
            store._services.start()
        except BaseException:
            parts.drop()
            raise
        return store

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"MessageStore({self.layout.root}, {state})"

    # --- put ------------------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message at the end of a queue, which comes into being with its first message.

        Returns
        -------
        PutResult
            With status ``PUT_OK`` it is stored as the flush mode promises: with SYNC_FLUSH it is on
            the disk, with ASYNC_FLUSH it survives the death of this process.

        Raises
        ------
        InvalidNameError
            The topic or queue id cannot be the name of a directory.
        RefusedMessageError
            Something that has no status in 4.9: separators in properties, a number that does not
            fit, a body that is not bytes, a delay, a transaction.
        FlushFailedError
            A sync failed, now or earlier; this store takes no message any more.
        """
        result = self._put_at_once(message, queue_id)
        return self._writer.put(message, queue_id) if result is None else result

    def prepare(self, message: Message) -> PreparedMessage:
        """Encode topic and properties once, for `put_prepared`.

        Raises
        ------
        RefusedMessageError
            As `put`.
        """
        return PreparedMessage.of(message)

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message, with its own body or another one; otherwise as `put`."""
        result = self._put_prepared_at_once(prepared, body, queue_id)
        return self._writer.put_prepared(prepared, body, queue_id) if result is None else result

    def put_batch(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic at once: all with consecutive queue offsets, or none.

        A process that is killed while it stores them may leave the first ones of them.

        Returns
        -------
        PutResult
            Offsets of the first message, `message_count`, and the ids of all in `message_id`.

        Raises
        ------
        InvalidNameError, RefusedMessageError, FlushFailedError
            As `put`; a batch without messages, or with several topics, is refused as well.
        """
        return self._writer.put_messages(messages, queue_id)

    def put_client_batch(  # noqa: PLR0913 - the fields of a send request
        self,
        topic: str,
        queue_id: int,
        batch: bytes | memoryview,
        *,
        properties: Mapping[str, str] | bytes = b"",
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0,
        wait_flush: bool = True,
    ) -> PutResult:
        """Store a batch as a producer encodes it, without decoding it; as `put_batch`.

        `batch` holds messages back to back, as `format.client_batch.encode_client_batch` makes
        them; `properties` are added to those of every message, and the other fields are those of
        every message, see `Message`. A batch that is cut off inside a message is refused as well.
        Source: DefaultMessageStore.putMessages.
        """
        return self._writer.put_client_batch(
            topic,
            queue_id,
            batch,
            properties=properties,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
            wait_flush=wait_flush,
        )

    # --- get ------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetResult:
        """Return messages of one queue, in queue order; see `Reader.get`."""
        began_ns = monotonic_ns()
        result = super().get(topic, queue_id, offset, max_messages, tags)
        self.statistics.note_get(len(result.messages), (monotonic_ns() - began_ns) // _NANOS_PER_MS)
        return result

    def get_raw(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetRawResult:
        """Return raw records of one queue in one buffer; see `Reader.get_raw`."""
        self._check_readable()
        began_ns = monotonic_ns()
        # What Reader.get_raw does, without the way there: a page takes a few microseconds.
        queue = self._queue_of(topic, queue_id)
        try:
            pages = self._pages[topic, queue_id, tags]
        except TypeError:
            pages = self._pages_of(topic, queue_id, tags)
        page = pages.read(RECORDS, queue, offset, max_messages)
        result = _result(GetRawResult, page)
        self.statistics.note_get(result[2], (monotonic_ns() - began_ns) // _NANOS_PER_MS)
        return result

    # --- waiting --------------------------------------------------------------------------------

    def wait_dispatched(
        self, physical_offset: int | None = None, timeout_s: float | None = None
    ) -> bool:
        """Wait until messages before an offset, None for all put so far, can be read.

        False when that takes longer than `timeout_s`, None being as long as it takes.
        """
        self._check_open()
        wanted = self._parts.log.max_offset if physical_offset is None else physical_offset
        return self._services.wait_dispatched(wanted, timeout_s)

    def wait_for(self, topic: str, queue_id: int, offset: int, timeout_s: float = 1.0) -> bool:
        """Wait until a queue offset can be read; False when the time is over."""
        self._check_open()
        return self._services.wait_until(
            lambda: self.max_offset(topic, queue_id) > offset, timeout_s
        )

    def add_listener(self, listener: ArrivalListener) -> None:
        """Call `listener` with an `Arrival` for every message that can be read from now on."""
        self._parts.dispatcher.board.add_listener(listener)

    def remove_listener(self, listener: ArrivalListener) -> None:
        """Stop calling `listener`."""
        self._parts.dispatcher.board.remove_listener(listener)

    # --- durability -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Put everything on the disk: log, queues, index and checkpoint.

        Raises
        ------
        FlushFailedError
            Not everything is there, and this store takes no message any more.
        """
        self._check_open()
        self._services.flush()

    # --- about the store ------------------------------------------------------------------------

    @property
    def is_read_only(self) -> bool:
        """False."""
        return False

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the first byte of the CommitLog."""
        return self._parts.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the last record."""
        return self._parts.log.max_offset

    @property
    def flushed_physical_offset(self) -> int:
        """Physical offset up to which the CommitLog is known to be on the disk."""
        return self._parts.log.flushed_offset

    @property
    def dispatched_physical_offset(self) -> int:
        """Physical offset up to which messages can be read."""
        return self._parts.dispatcher.dispatched_offset

    @property
    def dispatch_health(self) -> DispatchHealth:
        """Whether dispatch works, and what keeps it from working."""
        return self._services.dispatch.health

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue will get."""
        return self._services.next_queue_offset(topic, queue_id)

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the last record, 0 without any; later ones are not earlier."""
        return self._parts.log.last_store_timestamp_ms

    def delete_expired_files(self) -> None:
        """Let retention, if it is on, delete expired files at any hour for its next rounds."""
        self._parts.retention.delete_manually()

    def runtime_info(self) -> dict[str, str]:
        """Return what 4.9 tells of a running store, under its names."""
        self._check_open()
        return self._services.runtime_info()
