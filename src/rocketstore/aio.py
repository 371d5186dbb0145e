"""A store for asyncio: puts, gets and waits of `MessageStore` under the same names, to be awaited.

Law: nothing here waits on the event loop's thread. A put appends there, which takes microseconds,
and its sync is waited for elsewhere; what may take longer runs on a thread of the loop's executor;
waiting for messages costs no thread. A consumer takes its messages on the loop: a call that is
cancelled would otherwise have taken a message that no caller gets.
Law: an opening or a close that is cancelled ends first, and the store is released: nobody could
close what an opening that goes on alone leaves open.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, Self

from rocketstore.arguments import checked
from rocketstore.errors import StoreClosedError
from rocketstore.message_store import MessageStore
from rocketstore.storage.threads import Bell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.consuming.consumer import ConsumedMessage, Consumer
    from rocketstore.message import Message
    from rocketstore.storage.results import GetResult, PutResult
    from rocketstore.units import QueueKey


@contextlib.asynccontextmanager
async def open(  # noqa: A001 - as in `aiofiles.open` and `MessageStore.open`
    path: str | Path, config: StoreConfig | None = None
) -> AsyncIterator[AsyncMessageStore]:
    """Open a store for the length of an ``async with`` block; see `MessageStore.open`."""
    opened: list[MessageStore] = []
    try:
        await _to_its_end(lambda: opened.append(MessageStore.open(path, config)))
        yield AsyncMessageStore(opened[0])
    finally:
        for store in opened:
            await _to_its_end(store.close)


class AsyncMessageStore:
    """A store that is open, for tasks of one event loop.

    Attributes
    ----------
    store
        The `MessageStore`, for everything that does not wait (`max_offset`, `queues`, …). What else
        reads files or waits for a sync (`find`, `begin`) goes through `asyncio.to_thread`.
    """

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    async def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message; see `MessageStore.put`. It is stored also when this is cancelled."""
        return await asyncio.wrap_future(self.store.put_async(message, queue_id))

    async def put_batch(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic at once; see `MessageStore.put_batch`."""
        return await asyncio.to_thread(self.store.put_batch, messages, queue_id)

    async def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> GetResult:
        """Return messages of one queue; see `MessageStore.get`."""
        return await asyncio.to_thread(self.store.get, topic, queue_id, offset, max_messages, tags)

    async def flush(self) -> None:
        """Put everything on the disk; see `MessageStore.flush`."""
        await asyncio.to_thread(self.store.flush)

    @checked
    async def wait_for(
        self, topic: str, queue_id: int, offset: int, timeout_s: float | None = 1.0
    ) -> bool:
        """Wait until a queue offset can be read; False when the time is over."""
        store = self.store
        return await wait_until(
            store, lambda: store.max_offset(topic, queue_id) > offset, timeout_s
        )

    @checked
    async def wait_dispatched(
        self, physical_offset: int | None = None, timeout_s: float | None = None
    ) -> bool:
        """Wait until messages before an offset, None for all put so far, can be read."""
        store = self.store
        wanted = store.appended_physical_offset if physical_offset is None else physical_offset
        return await wait_until(
            store, lambda: store.dispatched_physical_offset >= wanted, timeout_s
        )

    def consume(self, topics: str | Iterable[str], group: str, **settings: Any) -> AsyncConsumer:
        """Return an asynchronous iterator over what a group has not consumed yet.

        Parameters are those of `MessageStore.consume`.
        """
        idle_timeout_s = settings.pop("idle_timeout_s", None)
        consumer = self.store.consume(topics, group, **settings)
        return AsyncConsumer(consumer, self.store, idle_timeout_s)

    async def close(self) -> None:
        """Close the store; see `MessageStore.close`."""
        await _to_its_end(self.store.close)


class AsyncConsumer(contextlib.AbstractAsyncContextManager["AsyncConsumer"]):
    """Takes messages for a group; made by `AsyncMessageStore.consume`.

    ``message.ack()`` waits for nothing and is called as it is; give a message back here.
    """

    def __init__(
        self, consumer: Consumer, store: MessageStore, idle_timeout_s: float | None
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._idle_timeout_s = idle_timeout_s

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedMessage:
        message = None
        if not self._consumer.is_closed:
            message = await self.poll(self._idle_timeout_s)
        if message is None:
            raise StopAsyncIteration
        return message

    @property
    def queues(self) -> list[QueueKey]:
        """The queues that this consumer reads at the moment, in order."""
        return self._consumer.queues

    @checked
    async def poll(self, timeout_s: float | None = 0.0) -> ConsumedMessage | None:
        """Return the next message, None where none comes in time; without a time-out, wait."""
        found: list[ConsumedMessage] = []
        await wait_until(self._store, lambda: self._consumer.look(found), timeout_s)
        return found[0] if found else None

    def acknowledge(self, message: ConsumedMessage) -> bool:
        """Count a message as consumed; see `Consumer.acknowledge`."""
        return self._consumer.acknowledge(message)

    async def give_back(self, message: ConsumedMessage, delay_level: int = 0) -> bool:
        """Have a message consumed again later; see `Consumer.give_back`."""
        return await asyncio.to_thread(self._consumer.give_back, message, delay_level)

    async def close(self) -> None:
        """Leave the group; see `Consumer.close`."""
        await _to_its_end(self._consumer.close)


async def _to_its_end(work: Callable[[], object]) -> None:
    """Do something on a thread; a cancellation is raised once it is done."""
    context = contextvars.copy_context()
    doing = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    doing.result()
    if cancelled is not None:
        raise cancelled


async def wait_until(
    store: MessageStore, is_true: Callable[[], bool], timeout_s: float | None = None
) -> bool:
    """Wait until something is true, as `MessageStore.wait_until` does, on the event loop."""
    if is_true():
        return True
    changed = asyncio.Event()
    try:
        with contextlib.ExitStack() as ringing, contextlib.suppress(TimeoutError):
            ringing.callback(store.ring(_LoopBell(changed)))
            async with asyncio.timeout(timeout_s):
                # Makes dispatch look at once, instead of at its next turn.
                while not (is_true() or store.is_closed or store.wait_until(is_true, 0)):
                    await changed.wait()
                    changed.clear()
        return is_true()
    except StoreClosedError:  # since the first look, by another task or thread
        return False


class _LoopBell(Bell):
    """Sets an event of the loop that runs."""

    def __init__(self, event: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = event

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._event.set)
