"""Everything that works while a store is open: its writer, its threads, and their order.

Law: threads start from the disk upwards (files, flush, dispatch, retention) and stop in reverse
order, each after the one that gives it work. Work that is left at the end is done on the closing
thread, so that an orderly end does not depend on a thread that died. After the death of a thread
puts are refused, with its error as the reason.

How derived: DefaultMessageStore.start and shutdown of 4.9 (spec B1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rocketstore.arguments import enter_by_name
from rocketstore.errors import FlushFailedError, RocketStoreError, StoreLockedError
from rocketstore.events import get_logger
from rocketstore.locks import OwnedLock
from rocketstore.storage.attached import Maker, Service
from rocketstore.storage.checkpoint import QueueFlusher
from rocketstore.storage.dispatch.dispatch_service import DispatchService
from rocketstore.storage.files.disk import system_errors
from rocketstore.storage.log.flush import CommitLogFlusher
from rocketstore.storage.log.writer import StoreWriter
from rocketstore.storage.running_flags import RunningFlag
from rocketstore.storage.statistics import StoreStatistics
from rocketstore.storage.threads import Periodic, ServiceThread
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    from rocketstore.storage.opening import StoreParts

SAMPLE_INTERVAL_S: Final = 1.0
FIRST_CLEAN_AFTER_S: Final = 60.0
DISK_CHECK_INTERVAL_S: Final = 10.0
FIRST_DISK_CHECK_AFTER_S: Final = 1.0
DISPATCH_ERROR_AFTER_MS: Final = 30_000
"""Dispatch may fail so long before puts are refused (30 tries a second apart in 4.9, B12)."""

CATCH_UP_TIMEOUT_S: Final = 5.0
"""Longest wait for dispatch to get any further while the store closes (B1, shutdown)."""

_CATCH_UP_TURN_S: Final = 0.1

_log: Final = get_logger(__name__)


class StoreWorkers:
    """The working parts of an open store; `is_stopped` when none of its threads runs any more."""

    def __init__(self, parts: StoreParts, *, threads: bool) -> None:
        self._parts = parts
        self._threads = threads
        self.is_stopped = False
        self.attached: dict[str, Any] = {}
        config, clock, log = parts.config, parts.clock, parts.log
        self.flusher = CommitLogFlusher(
            log, checkpoint=parts.checkpoint, config=config, monotonic=monotonic_ms
        )
        self.statistics = StoreStatistics(
            monotonic_ms, log.every_counter, log.put_totals, boot_ms=clock(), syncs=log.sync_times
        )
        self.writer = StoreWriter(
            log, wake=parts.dispatcher.board.wake, flusher=self.flusher, flags=parts.flags,
            statistics=self.statistics, config=config, clock=clock,
        )  # fmt: skip
        on_death = parts.flags.note_death
        self.dispatch = DispatchService(
            parts.dispatcher, monotonic=monotonic_ms, log=parts.committer or log, on_death=on_death
        )
        self.queue_flusher = QueueFlusher(
            parts.queues, parts.index, checkpoint=parts.checkpoint, known_ends=parts.known_ends,
            dispatched_timestamp=lambda: parts.dispatcher.last_store_timestamp_ms,
            config=config, monotonic=monotonic_ms,
        )  # fmt: skip
        # Without threads the waiting caller dispatches; listeners called then may wait too.
        self._dispatching = OwnedLock()
        self._made_ahead_of = -1
        pause_s = config.flush_interval_consume_queue / 1000
        self._queue_flush = Periodic(
            "rocketstore-queue-flush", self.queue_flusher.run_once, pause_s, on_death=on_death
        )
        self._watchers = list(self._made_watchers())

    def _made_watchers(self) -> Iterator[ServiceThread]:
        """Yield the threads that no message waits for."""
        config, retention = self._parts.config, self._parts.retention
        on_death = self._parts.flags.note_death
        yield Periodic("rocketstore-statistics", self._sample, SAMPLE_INTERVAL_S, on_death=on_death)
        if config.retention:
            # Two, so that a slow deletion never delays the moment at which a full disk stops puts
            # (K-E3; DefaultMessageStore.addScheduleTask).
            pauses = DISK_CHECK_INTERVAL_S, FIRST_DISK_CHECK_AFTER_S
            yield Periodic(
                "rocketstore-disk-check", retention.check_disk, *pauses, on_death=on_death
            )
            pauses = config.clean_resource_interval / 1000, FIRST_CLEAN_AFTER_S
            yield Periodic("rocketstore-retention", retention.run_once, *pauses, on_death=on_death)

    def attach(self, store: object, services: Iterable[Maker]) -> None:
        """Make services, each of which finds those before it."""
        for make in services:
            if (service := make(store)) is not None:
                enter_by_name(self.attached, service, Service, "services")

    def start(self) -> None:
        """Start the threads, and then the services; after a failure the caller stops them."""
        if not self._threads:
            return
        parts = self._parts
        parts.preallocator.thread.start()
        self.flusher.start()
        optional = (one.thread for one in (parts.touch_ahead, parts.committer) if one is not None)
        threads = (*optional, self.dispatch.thread, self._queue_flush, *self._watchers)
        for one in (*threads, *self.attached.values()):
            one.start()

    # --- waiting and flushing -------------------------------------------------------------------

    def commit(self) -> None:
        """Write the buffers to the log's files; `StoreError` if that fails."""
        if self._parts.committer is not None:
            self._parts.committer.commit()

    def wait_dispatched(self, physical_offset: int, timeout_s: float | None) -> bool:
        """Wait until everything before an offset is dispatched."""
        if self._parts.log.readable_limit < physical_offset:
            # Only flushed messages are dispatched, and a put without wait does not ask for a flush.
            self.flusher.wake()
            self.commit()
        dispatcher = self._parts.dispatcher
        return self.wait_until(lambda: dispatcher.dispatched_offset >= physical_offset, timeout_s)

    @system_errors("cannot dispatch all messages")
    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition becomes true that dispatch changes."""
        if self._threads:
            return self.dispatch.wait_until(is_true, timeout_s)
        self.commit()
        self.flusher.flush()
        self._catch_up()
        return is_true()

    @system_errors("cannot flush queues, index and checkpoint")
    def flush(self) -> None:
        """Make log, queues, index and checkpoint durable."""
        self.commit()
        self.flusher.flush()
        self.wait_dispatched(self._parts.log.max_offset, CATCH_UP_TIMEOUT_S)
        self.queue_flusher.flush_all()

    def _catch_up(self) -> None:
        if self._dispatching.is_held_here():  # a listener waits
            self._dispatch_all()
            return
        with self._dispatching:
            self._dispatch_all()  # a call: an interrupt in a loop here would keep the lock

    def _dispatch_all(self) -> None:
        while self._parts.dispatcher.run_once():
            pass

    # --- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop everything and flush, once; remove the marker ``abort`` if all is well.

        `FlushFailedError` says that the log is not wholly on the disk; all threads have stopped, as
        they have after the error of a broken service, which comes last. After any other
        `StoreError` buffers hold what could not be committed, and nothing stopped.
        """
        if not self.is_stopped:
            self._stop()

    def _stop(self) -> None:
        self.dispatch.thread.refuse_itself()
        broken = self._tell_services("stop")
        self.writer.stop()
        # A put that is in the log's lock ends first.
        self._parts.log.settle()
        self.commit()
        failure: FlushFailedError | None = None
        if self._parts.committer is not None:
            self._parts.committer.stop()
        if self._parts.touch_ahead is not None:
            self._parts.touch_ahead.thread.stop()
        self._parts.retention.stopping.set()
        for watcher in reversed(self._watchers):
            watcher.stop()
        try:
            self.flusher.close()
        except FlushFailedError as error:
            failure = error
        broken = self._tell_services("finish") or broken
        if self.dispatch.thread.is_running:
            self._wait_for_dispatch()
        self.dispatch.stop()
        self._queue_flush.stop()
        self._parts.preallocator.thread.stop()
        self.is_stopped = True
        why = "not everything is on the disk"
        if failure is None and self._finish():
            why = self._take_marker_away()
        if why:
            _log.warning("store.abort_stays", root=str(self._parts.layout.root), reason=why)
        if (worst := failure or broken) is not None:
            raise worst

    def _tell_services(self, what: str) -> Exception | None:
        """Have all stop or finish; return the error of one that is broken: the others end too."""
        broken = None
        for service in reversed(self.attached.values()):
            try:
                getattr(service, what)()
            except RocketStoreError:  # its thread works on, or calls this: nothing may end yet
                raise
            except Exception as error:  # noqa: BLE001 - code from outside of the package
                broken = error
        return broken

    def _take_marker_away(self) -> str:
        """Mark the store as ended in order; return why not, if that fails."""
        try:
            self._parts.disk.unlink(self._parts.layout.abort)
            self._parts.disk.fsync_directory(self._parts.layout.root)
        except OSError as error:  # the next open checks more, and finds all in order
            return str(error)
        return ""

    def _wait_for_dispatch(self) -> None:
        """Wait as long as dispatch makes progress, or tries to."""
        dispatcher, wanted = self._parts.dispatcher, self._parts.log.readable_limit
        reached, idle_turns = -1, 0
        while idle_turns * _CATCH_UP_TURN_S < CATCH_UP_TIMEOUT_S and self.dispatch.health.is_well:
            if self.dispatch.wait_until(
                lambda: dispatcher.dispatched_offset >= wanted, _CATCH_UP_TURN_S
            ):
                return
            idle_turns = idle_turns + 1 if dispatcher.dispatched_offset == reached else 0
            reached = dispatcher.dispatched_offset

    def _finish(self) -> bool:
        """Dispatch and flush the rest, on this thread."""
        parts = self._parts
        try:
            self._catch_up()
            is_all = parts.dispatcher.dispatched_offset >= parts.log.max_offset
            is_durable = self.queue_flusher.flush_all(is_closed=is_all)
            self._parts.checkpoint.flush()
            last = parts.log.files.last()
            if is_durable and is_all and last is not None and parts.touch_ahead is not None:
                last.give_back()
        except (RocketStoreError, OSError) as error:
            # Queues and index can be built again; the next open does so.
            _log.error("store.close_incomplete", error=str(error))
            return False
        return is_durable and is_all

    # --- turns of the threads -------------------------------------------------------------------

    def _sample(self) -> None:
        self.statistics.sample(self._parts.dispatcher.behind_bytes)
        self.watch_dispatch()
        self.make_ahead()
        try:
            self._parts.lock.renew()
        except StoreLockedError as error:
            self._parts.flags.set(RunningFlag.NOT_WRITEABLE, str(error))

    def make_ahead(self) -> None:
        """Have the next files of the log made once the last one is half full; not before."""
        last = self._parts.log.files.last()
        if last is None or last.base == self._made_ahead_of:
            return
        if self._parts.log.max_offset - last.base >= last.size // 2:
            self._made_ahead_of = last.base
            self._parts.preallocator.request(last.base)

    def watch_dispatch(self) -> None:
        """Refuse puts while dispatch has failed for long, and take them again when it works."""
        health, flags = self.dispatch.health, self._parts.flags
        failed_ms = 0 if health.is_well else monotonic_ms() - health.since_ms
        if failed_ms >= DISPATCH_ERROR_AFTER_MS:
            flags.set(
                RunningFlag.QUEUE_WRITE_ERROR,
                f"dispatch has failed for {failed_ms // 1000} s: {health.error}",
            )
        elif health.is_well:
            flags.clear(RunningFlag.QUEUE_WRITE_ERROR)
