"""Calls of a store that name a topic of a room go to that room.

A room (memory topics, batch topics) extends `TopicRoutes` and has methods of the same names. A
store without such topics pays nothing: its calls are wound around only where there may be one.

Law: a call that names no topic of the room goes where it went before, and so does every call of a
closed store.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from rocketstore.message import Message
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS
from rocketstore.storage.log.prepared import PreparedMessage, batch_messages
from rocketstore.storage.results import GetRawResult, GetResult, GetViewsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketstore.units import QueueKey

_PAGES: Final = (
    ("get", MESSAGES, GetResult),
    ("get_raw", RECORDS, GetRawResult),
    ("get_views", VIEWS, GetViewsResult),
)
_READS: Final = (
    "min_offset", "max_offset", "queue_entries", "offset_at", "earliest_timestamp",
    "store_timestamp",
)  # fmt: skip


class TopicRoutes(ABC):
    """What the rooms share."""

    def __init__(self, store: Any) -> None:
        self._routed_store = store

    @property
    @abstractmethod
    def names(self) -> frozenset[str]:
        """The room's topics at the moment."""

    @abstractmethod
    def _page(
        self,
        form: tuple[int, type[Any]],
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | None = None,
    ) -> Any:
        """Return the result of `get`, or of one of its twins: `form` is its kind and its type."""

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's first message, None when it has none."""
        store = self._routed_store
        found: int | None = store.store_timestamp(
            topic, queue_id, store.min_offset(topic, queue_id)
        )
        return found

    def attach_reads(self, keys: Callable[[], Iterable[QueueKey]]) -> None:
        """Let calls that read come here, and `queues` name those of `keys` too."""
        for name in _READS:
            self._route(name)
        for name, kind, result in _PAGES:
            self._route(name, own=functools.partial(self._page, (kind, result)))
        store = self._routed_store
        without = store.queues
        store.queues = lambda: sorted({*without(), *keys()})

    def attach_puts(self) -> None:
        """Let calls that put come here, and no message of another topic."""
        store = self._routed_store
        self._route("put", "message", _topic_of)
        self._route("put_prepared", "prepared", _topic_of)
        self._route("put_record")
        self._route("put_client_batch")
        listed = functools.wraps(store.put_batch)
        self._route("put_batch", "messages", lambda messages: messages[0].topic)
        batch = store.put_batch
        store.put_batch = listed(
            lambda messages, queue_id=0: batch(batch_messages(messages), queue_id)
        )

    def _route(
        self,
        name: str,
        first: str = "topic",
        topic_of: Callable[[Any], Any] = lambda topic: topic,
        own: Callable[..., Any] | None = None,
    ) -> None:
        """Let a call come here if its first argument, also given as `first`, is of the room."""
        store = self._routed_store
        without, own = getattr(store, name), own or getattr(self, name)

        @functools.wraps(without)
        def call(*arguments: Any, **named: Any) -> Any:
            topic = topic_of(arguments[0] if arguments else named.get(first))
            if (
                type(topic) is str
                and topic in self.names
                and not getattr(store, "is_closed", False)  # one that is read only has no such
            ):
                return own(*arguments, **named)
            return without(*arguments, **named)

        setattr(store, name, call)


def _topic_of(message: object) -> object:
    return message.topic if isinstance(message, Message | PreparedMessage) else None
