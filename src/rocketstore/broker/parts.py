"""What the parts of a broker work with: one value that all of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rocketstore.broker.clients import Clients
    from rocketstore.broker.flow_control import FlowControl
    from rocketstore.broker.loop import Loop
    from rocketstore.broker.registration import Registration
    from rocketstore.broker.settings import BrokerSettings
    from rocketstore.broker.topics import Topics
    from rocketstore.message_store import MessageStore


class Parts(NamedTuple):
    """The store that is served, and what knows topics, clients, name servers, time and the loop."""

    store: MessageStore
    settings: BrokerSettings
    topics: Topics
    clients: Clients
    loop: Loop
    registration: Registration
    flow: FlowControl
    monotonic: Callable[[], int]


class Part:
    """The base of those that answer requests."""

    def __init__(self, parts: Parts) -> None:
        self._store, self._settings, self._topics, self._clients = parts[:4]
        self._loop, self._registration, self._flow, self._monotonic = parts[4:]
