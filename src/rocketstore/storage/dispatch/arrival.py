"""Reporting that messages arrived in queues, to listeners and to callers that wait.

Law: nobody listening costs nothing. A waiter announces itself before it looks, and dispatch looks
for waiters after it has published, so no arrival is missed.

How derived: MessageArrivingListener and PullRequestHoldService of 4.9 (spec B11).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rocketstore.events import get_logger
from rocketstore.storage.threads import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log: Final = get_logger(__name__)


class Arrival(NamedTuple):
    """A message that can be read from a queue now.

    Attributes
    ----------
    next_offset
        Queue offset of the message, plus one.
    tags_code
        As in the queue entry.
    properties
        The record's properties as stored.
    """

    topic: str
    queue_id: int
    next_offset: int
    tags_code: int
    store_timestamp_ms: int
    physical_offset: int
    properties: bytes


if TYPE_CHECKING:
    ArrivalListener: TypeAlias = Callable[[Arrival], None]


class ArrivalBoard:
    """Listeners and waiters of one store."""

    def __init__(self) -> None:
        self._listeners: tuple[ArrivalListener, ...] = ()
        self._lock = threading.Lock()
        self._changes = Changes()
        self._closed = False

    @property
    def has_listeners(self) -> bool:
        """Whether dispatch has to make `Arrival` values at all."""
        return bool(self._listeners)

    def add_listener(self, listener: ArrivalListener) -> None:
        """Call `listener` for every message dispatched from now on, on the dispatching thread."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: ArrivalListener) -> None:
        """Stop calling `listener`; one that is unknown is not an error."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def announce(self, arrivals: Iterable[Arrival]) -> None:
        """Call every listener; one that raises is logged and does not stop dispatch."""
        listeners = self._listeners
        for arrival in arrivals:
            for listener in listeners:
                try:
                    listener(arrival)
                except Exception:  # noqa: BLE001 - whatever a listener does, dispatch goes on
                    _log.exception("arrival.listener_failed", topic=arrival.topic)

    def wake(self) -> None:
        """Let waiters look again."""
        if self._changes:
            self._changes.tell()

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return whether `is_true` became true in time; it is asked whenever dispatch got on."""
        self._changes.wait_for(lambda: self._closed or is_true(), timeout_s)
        return is_true()

    def close(self) -> None:
        """Let all waiters go; later ones do not wait."""
        self._closed = True
        self._changes.tell()
