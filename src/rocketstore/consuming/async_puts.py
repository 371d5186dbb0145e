"""Puts that answer later: a message is appended at once, and its future resolved when it is safe.

Law: a future is resolved exactly once, with what `put` returns or raises, and none is pending when
the store has closed. Only the store's own answer about a message goes into its future. Any other
failure, such as an interrupt or a lack of memory, is raised by the call that it hit, or makes the
thread ask again. One thread, started with the store, waits for all of them; a put while that thread
ends waits by itself. A future cannot be cancelled, because its message is in the log.

How derived: CommitLog.asyncPutMessage of 4.9, whose future the flush completes (spec B3).
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.config import BrokerRole
from rocketstore.errors import RocketStoreError
from rocketstore.events import get_logger
from rocketstore.message import Message
from rocketstore.storage.attached import Service
from rocketstore.storage.results import PutResult
from rocketstore.storage.threads import Bell, ServiceThread

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

PutFuture = Future[PutResult]

_ASK_AGAIN_S: Final = 1.0
_ASKED_FOR_S: Final = 5.0
"""An unforeseen failure, say a lack of memory, may be over by then; if not, the future gets it."""

_log: Final = get_logger(__name__)


class AsyncPuts(Service):
    """Puts of a store whose results come later; `waits` says whether any put waits here."""

    name = "async_puts"

    def __init__(self, store: BaseStore) -> None:
        config = store.config
        self._store = store
        self.waits = config.is_sync_flush or config.broker_role is BrokerRole.SYNC_MASTER
        self._pending: dict[PutFuture, tuple[PutResult, float]] = {}
        self._bell = Bell()
        self._thread = ServiceThread("rocketstore-put-async", self._work, self._bell.ring)

    def put(self, message: Message, queue_id: int) -> PutFuture:
        """Append a message; see `MessageStore.put_async`."""
        later = self.waits and isinstance(message, Message) and message.wait_flush
        if later:
            message = msgspec.structs.replace(message, wait_flush=False)
        try:
            result = self._store.put(message, queue_id)
        except RocketStoreError as error:
            future = PutFuture()
            future.set_exception(error)
            return future
        return self.settled(result, waits=later)

    def settled(self, result: PutResult, *, waits: bool = True) -> PutFuture:
        """Return a future of the result that a put would have had if it had waited."""
        future = PutFuture()
        future.set_running_or_notify_cancel()
        if not (waits and self.waits and result.is_stored):
            future.set_result(result)
            return future
        self._pending[future] = result, monotonic()
        # The thread knows of it by now: it looks once more after it was told to stop.
        is_at_work = self._thread.is_running and not self._thread.stopping.is_set()
        if is_at_work and not self._thread.is_current:  # as in a future's callback
            self._bell.ring()
        else:
            self._resolve(future)
        return future

    def _work(self) -> None:
        while True:
            try:
                is_over = self._thread.stopping.is_set()
                for future in list(self._pending):
                    self._resolve(future)
                if is_over:
                    return
                self._bell.wait()
            except BaseException:  # noqa: BLE001 - for example from a user's callback
                _log.exception("put_async.failed", next=f"asked again in {_ASK_AGAIN_S:.0f} s")
                self._bell.wait(_ASK_AGAIN_S)

    def _resolve(self, future: PutFuture, patience_s: float = _ASKED_FOR_S) -> None:
        """Resolve a future when `put` would have returned; two threads may, and one does."""
        result, put_at = self._pending.get(future, (None, 0.0))
        if result is None:
            return
        waited_s = monotonic() - put_at
        with contextlib.suppress(InvalidStateError):
            try:
                result = self._store.acknowledged(result, waited_s)
            except Exception as error:
                if waited_s < patience_s and not isinstance(error, RocketStoreError):
                    raise
                future.set_exception(error)
            else:
                future.set_result(result)
        self._pending.pop(future, None)

    def forget(self, error: RocketStoreError) -> None:
        """End the futures in a forked child, where no thread resolves them, and run no callback."""
        for future in self._pending:
            future._condition = threading.Condition()  # noqa: SLF001 - a thread may have held it
            future._done_callbacks = []  # type: ignore[attr-defined] # noqa: SLF001 - the parent's
            future.set_exception(error)
        self._pending = {}

    def start(self) -> None:
        """Start the thread, if any put has to wait."""
        if self.waits:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, which resolves what is left."""
        self._thread.stop()
        for future in list(self._pending):  # it died, or could not ask
            self._resolve(future, patience_s=0)
