"""Puts that answer later: a message is appended at once, and its future resolved when it is safe.

Law: a future is resolved exactly once, with what `put` returns or raises; none is left when the
store closes. One thread waits for all of them: a sync that serves many puts resolves their futures
one after the other. A future cannot be cancelled, because its message is in the log.

How derived: CommitLog.asyncPutMessage of 4.9, whose future the flush completes (spec B3).
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from rocketstore.config import BrokerRole
from rocketstore.message import Message
from rocketstore.storage.results import PutResult
from rocketstore.storage.threads import Bell, ServiceThread

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

PutFuture = Future[PutResult]


class AsyncPuts:
    """Puts of a store whose results come later; a package above storage."""

    def __init__(self, store: BaseStore) -> None:
        config = store.config
        self._store = store
        self._waits = config.is_sync_flush or config.broker_role is BrokerRole.SYNC_MASTER
        self._pending: deque[tuple[PutFuture, PutResult]] = deque()
        self._bell = Bell()
        self._starting = threading.Lock()
        self._may_run = False
        self._thread: ServiceThread | None = None

    def put(self, message: Message, queue_id: int) -> PutFuture:
        """Append a message; see `MessageStore.put_async`."""
        future = PutFuture()
        future.set_running_or_notify_cancel()
        try:
            later = self._waits and isinstance(message, Message) and message.wait_flush
            if later:
                message = msgspec.structs.replace(message, wait_flush=False)
            result = self._store.put(message, queue_id)
            if later and result.is_stored:
                self._acknowledge_later(future, result)
            else:
                future.set_result(result)
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future

    def _acknowledge_later(self, future: PutFuture, result: PutResult) -> None:
        self._pending.append((future, result))
        if self._thread is None and self._may_run:
            self._run_thread()
        thread = self._thread
        if thread is not None and thread.is_running and self._may_run:
            self._bell.ring()
        else:
            self._resolve_all()

    def _run_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = ServiceThread("rocketstore-put-async", self._work, self._bell.ring)
                thread.on_death = self._note_death
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        while self._may_run:
            self._resolve_all()
            self._bell.wait()

    def _resolve_all(self) -> None:
        while self._pending:
            future, result = self._pending.popleft()
            try:
                result = self._store.acknowledged(result)
            except Exception as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)

    def _note_death(self, _name: str, error: BaseException) -> None:
        for future, _ in tuple(self._pending):
            future.set_exception(error)
        self._pending.clear()

    def start(self) -> None:
        """Let a thread wait for the puts to come; it starts with the first one."""
        self._may_run = True

    def stop(self) -> None:
        """Resolve every future that is left."""
        self._may_run = False
        if self._thread is not None:
            self._thread.stop()
        self._resolve_all()
