"""The parts of a broker without a loop, a socket or a thread: requests in, replies out."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from rocketstore import MessageStore, StoreConfig
from rocketstore.broker.settings import BrokerSettings
from rocketstore.broker.table import BrokerTable
from rocketstore.broker.topics import Topics, first_topics
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import RESPONSE, Command, reply
from rocketstore.remoting.requests import LATER, Call, Later
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.results import PutResult
from rocketstore.tables.topic_settings import TopicSettings
from support.clock import Clock

SEND = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
"""The fields of a send, by the letters of its header."""


class AtOnce:
    """In place of a `Loop`: whatever is to be done later is done at once."""

    def __init__(self) -> None:
        self.pending: list[tuple[PutResult, Callable[[PutResult], object]]] = []
        self._turns: list[Callable[[], object]] = []

    def post(self, work: Callable[[], object]) -> None:
        work()

    run = post

    def paced(self, _interval_s: float, work: Callable[[], object]) -> Callable[[], None]:
        return lambda: self.post(work)

    def every(self, _interval_s: float, work: Callable[[], object]) -> None:
        self._turns.append(work)

    def turn(self) -> None:
        """Do once what is done at an interval."""
        for work in self._turns:
            work()

    def aside(self, call: Call, work: Callable[[], Command]) -> Later:
        call.answer(work())
        return LATER

    def served_aside(self, answer: Callable[[Any, Call], Command]) -> Callable[[Any, Call], Later]:
        return lambda header, call: self.aside(call, lambda: answer(header, call))

    def once_asked(
        self, _call: Call, asked: Coroutine[Any, Any, Any], go_on: Callable[[Any], Any]
    ) -> Any:
        return go_on(asyncio.run(asked))

    def once_read(self, _call: Call, read: Callable[[], Any], go_on: Callable[[Any], Any]) -> Any:
        return go_on(read())

    def when_safe(
        self, _call: Call, result: PutResult, made: Callable[[PutResult], Command],
        then: Callable[[Command], object],
    ) -> None:  # fmt: skip
        self.pending.append((result, lambda safe: then(made(safe))))


class Told:
    """In place of a `Registration`; while it `waits`, nobody goes on."""

    def __init__(self) -> None:
        self.wanted = 0
        self.waits = False
        self.waiting: list[Callable[[], object]] = []

    def note_change(self) -> None:
        self.wanted += 1

    def then(self, go_on: Callable[[], object], *, is_new: bool = True) -> None:
        if self.waits and is_new:
            self.waiting.append(go_on)
        else:
            go_on()


class Peer:
    """A client's connection: what it was told and answered, in order."""

    def __init__(self, port: int = 50_000) -> None:
        self.address = f"127.0.0.1:{port}"
        self.heard: list[Command] = []
        self.answers: Callable[[Command, int], Command] = lambda _request, _timeout_ms: reply()

    def answer(self, _request: Command, _size: int, reply: Command | None) -> None:
        if reply is not None:
            self.heard.append(reply)

    def tell(self, request: Command) -> None:
        self.heard.append(request)

    async def ask(self, request: Command, timeout_ms: int) -> Command:
        """Hear a question; it answers as `answers` says, whose errors it raises."""
        self.heard.append(request)
        return self.answers(request, timeout_ms)

    @property
    def last(self) -> Command:
        return self.heard[-1]


class Desk:
    """A broker's table of requests, over a store that has no threads unless there is a `loop`."""

    def __init__(
        self, path: Path, config: StoreConfig | None = None,
        *, loop: Callable[[MessageStore], Any] | None = None, disk: Disk | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.clock = Clock()
        self.store = MessageStore.open(
            path,
            config or StoreConfig.small(),
            clock=self.clock,
            threads=loop is not None,
            disk=disk,
        )
        self.settings = BrokerSettings(**{"broker_name": "broker-a", **settings})
        self.loop = AtOnce() if loop is None else loop(self.store)
        self.told = Told()
        self.groups = self.store.attached["consuming"].settings
        known = TopicSettings(
            self.store.layout, clock=self.clock, disk=self.store.disk,
            system=first_topics(self.settings), has_light=self.store.config.enable_lmq,
        )  # fmt: skip
        self.topics = Topics(
            self.settings, known, self.groups, self.told.note_change, self.loop, self.clock
        )
        self.table = BrokerTable(
            self.store, self.settings, self.topics, self.loop, self.told, self.clock
        )
        self.peer = Peer()

    def call(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"",
        *, peer: Peer | None = None, version: int = 399,
        language: Language | None = Language.PYTHON,
    ) -> Command | None:  # fmt: skip
        """Send a request; return what it was answered with, None where that is still to come."""
        peer = peer or self.peer
        before = len(peer.heard)
        texts = None if fields is None else {key: text_of(one) for key, one in fields.items()}
        command = Command(code, fields=texts, body=body, version=version, language=language)
        self.table.process([Call(command, 0, peer, self.clock.now_ms)])
        replies = [one for one in peer.heard[before:] if one.flag & RESPONSE]
        return replies[-1] if replies else None

    def answer(self, *request: Any, **more: Any) -> Command:
        """Send a request that is answered at once."""
        reply = self.call(*request, **more)
        assert reply is not None, "it is not answered yet"
        return reply

    def send(self, topic: str, body: bytes = b"x", properties: str = "", **more: object) -> Command:
        """Send a message to queue 0, unless `more` says otherwise by the letters of the header."""
        fields = {**SEND, "b": topic, "g": self.clock.now_ms, "i": properties}
        return self.answer(310, {**fields, **more}, body)

    def dispatched(self, *message: Any, **more: Any) -> Command:
        """Send a message and let it be dispatched."""
        answer = self.send(*message, **more)
        self.store.wait_dispatched()
        return answer

    def close(self) -> None:
        self.store.close()


def text_of(value: object) -> str:
    """Return a field of a header as clients send it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def fields_of(reply: Command) -> dict[str, str]:
    assert reply.fields is not None
    return reply.fields


def place_of(sent: Command) -> int:
    """Return the physical offset of a message, which its id ends with."""
    return int(fields_of(sent)["msgId"][16:], 16)
