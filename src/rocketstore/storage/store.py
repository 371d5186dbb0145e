"""BaseStore: a store directory, open for writing and reading, until it is closed.

The public `MessageStore` (``rocketstore.message_store``) adds the services of the packages above.

Law: one store object per directory and machine writes, by the lock of `storage.files.lock`. Once
`close` has returned without an error, all is on the disk and the next open has nothing to recover.
Files and lock are released only when no thread of the store runs any more, whatever interrupts
that; a close that did not get that far continues when called again. A forked child has no threads,
no lock, and its parent's mappings: it refuses every use, touches no file and waits for no lock.

How derived: DefaultMessageStore of 4.9, whose order of start and shutdown this follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from rocketstore.arguments import checked, explained
from rocketstore.config import RecoveryPolicy, StoreConfig
from rocketstore.errors import StoreForkedError
from rocketstore.events import get_logger
from rocketstore.message import DEFAULT_HOST, Message
from rocketstore.scan.kernels import note_missing
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.observation import Observation
from rocketstore.storage.opening import StoreParts, open_parts
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import ClosedPart, Reader
from rocketstore.storage.replicated_log import ReplicatedLog
from rocketstore.storage.topics_of_kind import TopicsOfKind
from rocketstore.storage.workers import StoreWorkers
from rocketstore.units import QueueKey, system_clock_ms

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.native.log_end import Record
    from rocketstore.storage.attached import Maker
    from rocketstore.storage.dispatch.dispatch_service import DispatchHealth
    from rocketstore.storage.dispatch.dispatcher import ArrivalListener, Queues
    from rocketstore.storage.queues.topic_kinds import TopicKind
    from rocketstore.storage.results import PutResult
    from rocketstore.storage.threads import Bell

_log: Final = get_logger(__name__)


class BaseStore(Reader):
    """A store that this process writes; made by `open`, a context manager.

    Attributes
    ----------
    config, layout
        Its settings and paths.
    recovery
        What recovery found and did when the store was opened.
    problems
        Faults of files that were found at opening.
    statistics, dispatching
        Counters; and what dispatches, which a loop may lead (`DispatchService`).
    running_flags
        Why puts or gets are refused at the moment.
    replicated_log
        The log as master and slave see it.
    attached
        Its services by name, in the order of their start.
    observation
        Its runtime information and numbers.
    transient_pool
        What commits the transient store pool; None where it is off.
    clock, disk
        The time in ms, and the calls that make things durable, as `open` got them.
    extra_queues, kinds
        Which queues a message may name besides its own; which topics are of a special kind.
    """

    is_read_only: Final = False
    keeps_memory = False
    """Whether it is opened for long: only such a store keeps messages of memory topics."""

    def __init__(
        self, parts: StoreParts, *wrong: object, threads: bool = True,
        services: Iterable[Maker] = (),
    ) -> None:  # fmt: skip
        """Take what `open` made; programs call that."""
        if wrong or not isinstance(parts, StoreParts):
            raise TypeError("a store is opened by MessageStore.open(path), not MessageStore(path)")
        self._workers = own = StoreWorkers(parts, threads=threads)
        super().__init__(
            parts.layout, parts.config, parts.log, parts.queues, parts.index, parts.kinds,
            check_readable=parts.flags.check_readable, note_get=own.statistics.note_get,
        )  # fmt: skip
        self.clock, self.disk, self.problems = parts.clock, parts.disk, parts.problems
        self.recovery, self.running_flags = parts.recovery, parts.flags
        self._parts, self._writer, self.extra_queues = parts, own.writer, own.writer.extra_queues
        self._put_at_once, self.dispatching = own.writer.put_at_once, own.dispatch
        self._put_prepared_at_once = own.writer.put_prepared_at_once
        self.transient_pool, self.attached = parts.committer, own.attached
        self.statistics = own.statistics
        self.replicated_log = ReplicatedLog(parts, own.writer, own.commit)
        self.observation = Observation(self, parts, own.statistics, own.dispatch, own.attached)
        self._is_closed = self._is_let_go = False
        self._closing: dict[str, object] = {}
        self._pid = os.getpid()
        own.attach(self, services)

    @overload
    @classmethod
    def open(
        cls, path: str | Path, config: StoreConfig | None = None, *,
        read_only: Literal[False] = False, clock: Callable[[], int] = system_clock_ms,
        disk: Disk | None = None, policy: RecoveryPolicy | None = None, threads: bool = True,
        services: Iterable[Maker] = (), kinds: Iterable[Callable[[], TopicKind]] = (),
    ) -> Self: ...  # fmt: skip

    @overload
    @classmethod
    def open(
        cls, path: str | Path, config: StoreConfig | None = None, *, read_only: Literal[True]
    ) -> ReadOnlyStore: ...

    @overload
    @classmethod
    def open(
        cls, path: str | Path, config: StoreConfig | None = None, *, read_only: bool
    ) -> Self | ReadOnlyStore: ...

    @classmethod
    @checked
    def open(  # noqa: PLR0913 - settings by name, all with defaults
        cls, path: str | Path, config: StoreConfig | None = None, *, read_only: bool = False,
        clock: Callable[[], int] = system_clock_ms, disk: Disk | None = None,
        policy: RecoveryPolicy | None = None, threads: bool = True, services: Iterable[Maker] = (),
        kinds: Iterable[Callable[[], TopicKind]] = (),
    ) -> Self | ReadOnlyStore:  # fmt: skip
        """Open the store at `path`, recover it, and make it when there is none.

        Parameters
        ----------
        path
            The store's root directory.
        config
            Settings; file sizes left unset are learnt from the files.
        read_only
            Take no lock, start no thread, write no byte; for a store that another process writes.
        clock
            The time in ms; a test passes its own.
        disk
            The calls that make things durable; a test passes its own.
        policy
            What a recovery keeps; None takes the one of the settings.
        threads
            False runs nothing in the background: puts flush, and `wait_dispatched` dispatches, on
            the calling thread. For tests that must not depend on time.
        services
            What makes further services of the store (`Service`); they start last, and stop first.
        kinds
            What makes further kinds of topics (`TopicKind`).

        Raises
        ------
        StoreLockedError
            Another process writes to it, or this one does already.
        ConfigError
            A size that is set differs from the files, or cannot be learnt from them.
        NotAStoreError, StoreDamagedError
            With `read_only` there is no store; or it needs a repair first.
        StoreFullError
            No disk space to recover it.
        """
        config = StoreConfig.of(config)
        policy = None if policy is None else RecoveryPolicy.of(policy)
        note_missing()
        if read_only:
            return ReadOnlyStore.open(path, config)
        to_drop = ExitStack()
        try:
            parts = open_parts(
                StoreLayout.of(path, config), config, disk=Disk() if disk is None else disk,
                clock=clock, to_drop=to_drop, policy=policy, keeps_memory=cls.keeps_memory,
                kinds=kinds,
            )  # fmt: skip
            store = cls(parts, threads=threads, services=services)
        except BaseException:
            to_drop.close()
            raise
        try:
            store._workers.start()
        except BaseException:
            store.close()
            raise
        return store

    # --- put ------------------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message at the end of a queue, which is made with its first message.

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
            A fault that has no status in 4.9: separators in properties, a number that does not fit,
            a body that is not bytes, a transaction.
        FlushFailedError
            A sync failed, now or earlier; this store takes no message any more.
        """
        result = self._put_at_once(message, queue_id)
        return self._writer.put(message, queue_id) if result is None else result

    def prepare(self, message: Message) -> PreparedMessage:
        """Encode topic and properties once, for `put_prepared`; refuses what `put` refuses."""
        return PreparedMessage.of(message)

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message, with its own body or another one; otherwise as `put`."""
        result = self._put_prepared_at_once(prepared, body, queue_id)
        return self._writer.put_prepared(prepared, body, queue_id) if result is None else result

    def put_rows(self, messages: Any, queue_ids: Any, rows: Any, bodies: Any, blocks: Any) -> int:
        """Store checked rows up to one that needs `put_prepared`; see `PlainPuts.put_rows`."""
        return self._writer.put_rows(messages, queue_ids, rows, bodies, blocks)

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
        self, topic: str, queue_id: int, batch: bytes | memoryview, *,
        properties: Mapping[str, str] | bytes = b"", sys_flag: int = 0,
        born_timestamp_ms: int | None = None, born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0, wait_flush: bool = True,
    ) -> PutResult:  # fmt: skip
        """Store a batch as a producer encodes it, without decoding it; as `put_batch`.

        `batch` holds messages back to back, as `format.client_batch.encode_client_batch` makes
        them; `properties` are added to those of each, and the other fields are those of each, see
        `Message`. One cut off inside a message is refused. Source: DefaultMessageStore.putMessages.
        """
        result = self._writer.put_client_batch_at_once(
            batch, properties, topic, queue_id, wait_flush, born_host, sys_flag, born_timestamp_ms,
            reconsume_times,
        )  # fmt: skip
        return result if result is not None else self._writer.put_client_batch(
            batch, properties, topic, queue_id, born_host, wait_flush=wait_flush,
            sys_flag=sys_flag, born_timestamp_ms=born_timestamp_ms, reconsume_times=reconsume_times,
        )  # fmt: skip

    @property
    def put_encoded(self) -> Callable[..., PutResult]:
        """Stores a message as it came over the wire; see `StoreWriter.put_encoded`."""
        return self._writer.put_encoded

    @explained
    def put_record(
        self, topic: str, queue_id: int, record: Record, *, wait_flush: bool = True
    ) -> PutResult:
        """Store a record as it is, whatever its properties and transaction bits ask for.

        Only its offsets in extra queues are filled in; one whose topic became of another kind since
        gets a copy. For services that deliver, commit or give back; otherwise as `put`.
        """
        return self._writer.put_record(topic, queue_id, record, wait_flush=wait_flush)

    @explained
    def acknowledged(self, result: PutResult, waited_s: float = 0.0) -> PutResult:
        """Return what a put with ``wait_flush=False`` would have returned had it waited.

        `waited_s` of its time-outs have passed. Raises what `put` raises for a message in the log.
        """
        return self._writer.acknowledged(result, waited_s)

    # --- waiting --------------------------------------------------------------------------------

    @checked
    def wait_dispatched(
        self, physical_offset: int | None = None, timeout_s: float | None = None
    ) -> bool:
        """Wait until messages before an offset, None for all put so far, can be read.

        False when that takes longer than `timeout_s`, None being as long as it takes.
        """
        self.check_open()
        wanted = self._parts.log.max_offset if physical_offset is None else physical_offset
        return self._workers.wait_dispatched(wanted, timeout_s)

    @checked
    def wait_for(
        self, topic: str, queue_id: int, offset: int, timeout_s: float | None = 1.0
    ) -> bool:
        """Wait until a queue offset can be read; False when the time is over."""
        return self.wait_until(lambda: self.max_offset(topic, queue_id) > offset, timeout_s)

    @checked
    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition is true; `is_true` is called whenever dispatch made progress.

        For a condition that dispatch does not change, `look_again` has it called again. False when
        it takes longer than `timeout_s`; without threads in the store there is no wait.
        """
        self.check_open()
        return self._workers.wait_until(is_true, timeout_s)

    def look_again(self) -> None:
        """Let all waiting callers check again; takes no lock."""
        self._parts.dispatcher.board.wake()

    @checked
    def ring(self, bell: Bell) -> Callable[[], None]:
        """Ring `bell` whenever `wait_until` would check again, until the result is called."""
        return self._parts.dispatcher.board.changes.ring(bell)

    @checked
    def add_listener(self, listener: ArrivalListener, queues: Queues = None) -> None:
        """Call `listener` with an `Arrival` for each message, of `queues` or all, from now on."""
        self._parts.dispatcher.board.add_listener(listener, queues)

    @checked
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
        self.check_held()
        self._workers.flush()

    # --- about the store ------------------------------------------------------------------------

    def topics_of(self, kind: str) -> TopicsOfKind:
        """Return the topics of a kind, such as ``batch``; the result can make more of them."""
        return TopicsOfKind(self._parts, kind, check_open=self.check_open)

    @property
    def max_physical_offset(self) -> int:
        """Physical offset after the last record in the files."""
        return self._parts.log.committed_offset

    @property
    def appended_physical_offset(self) -> int:
        """Physical offset after the last record put, which a transient store pool may hold yet."""
        return self._parts.log.max_offset

    def settle(self) -> int:
        """Finish an append that an exception cut short; return where the log ends."""
        with self._parts.log.held():
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
        return self.dispatching.health

    @checked
    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of a queue will get."""
        offset = self._parts.log.next_queue_offset(QueueKey(topic, queue_id))
        # Messages from a master count in their queues only.
        return max(offset, self.max_offset(topic, queue_id)) if self._writer.is_slave else offset

    @property
    def queue_count(self) -> int:
        """How many queues there are; it changes with each new one."""
        special = (len(list(kind.queue_keys())) for kind in self._kinds.known.values())
        return len(self._parts.queues) + sum(special)

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the last record, 0 without any; later ones are not earlier."""
        return self._parts.log.last_store_timestamp_ms

    # --- the end --------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or the store is that of the process that forked this one."""
        return self._is_closed

    def close(self) -> None:
        """Flush everything, mark the store as ended in order, and release it.

        A second call does nothing, nor does one in a forked child; one after two interrupts ends
        what was begun. After an error ``abort`` stays, and the next open checks what is there.

        Raises
        ------
        FlushFailedError
            Not everything is on the disk. The store is closed nevertheless.
        StoreError
            A transient store pool cannot be written, and keeps what it has: call this again later.
        """
        call = object()
        try:
            if self._is_let_go or self._closing.setdefault("by", call) is not call:
                return
            self._is_closed = True
            try:
                self._end()
            finally:  # nothing is left, except after an interrupt
                self._end()
        finally:
            if "by" in self._closing and self._closing["by"] is call:
                del self._closing["by"]  # without a call, in which an interrupt could come

    def _end(self) -> None:
        try:
            self._workers.stop()
        finally:
            if self._workers.is_stopped and not self._is_let_go:
                self._let_go()

    def abandon(self) -> None:
        """Release a store without threads as a crash would; the next open recovers it."""
        if not self._is_let_go:
            self._is_closed = True
            self._writer.stop()
            self._let_go()

    def _let_go(self) -> None:
        super().close()
        try:
            self._parts.drop()
        except OSError as error:
            then = "the next open deletes what was made ahead"
            _log.warning("store.files_left", root=self.layout.root, error=str(error), next=then)
        self._is_let_go = True

    def check_open(self) -> None:
        """Raise `StoreClosedError` or, in a forked child, `StoreForkedError` if not usable."""
        if self._is_closed:
            raise self._closed_part.again()

    def check_held(self) -> None:
        """Raise as `check_open` does, but not while the store closes: services work then."""
        if self._is_let_go:
            raise self._closed_part.again()

    def _go_on_in_child(self) -> None:
        """Refuse every use in a forked child, also of parts that are reached in other ways."""
        if self._is_let_go:
            return
        error = StoreForkedError(
            f"{self.layout.root} was opened by process {self._pid}, which forked this one "
            f"({os.getpid()}); it cannot be used here",
            hint="open it after the fork, in the process that uses it, or use the spawn method",
        )
        self._writer.stop(error)
        self._kept = self._parts  # a view that a reader holds stays valid
        self._is_closed = self._is_let_go = True
        closed: Any = ClosedPart(error)
        self._closed_part = self.dispatching = closed
        self._parts = self._workers = self._writer = self.statistics = self.running_flags = closed
        super().close()
        for service in self.attached.values():
            service.forget(error)
