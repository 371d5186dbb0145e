"""Consumers and producers that speak the protocol as real clients do, many in one event loop.

A `ModelConsumer` does what the push consumers of 4.9 do: heartbeats, shares the queues with the
members of its group whenever the broker says so, locks queues where order counts, pulls, commits,
and goes in order or by a crash. A `Journal` notes what each group saw, and is asked whether a queue
was consumed in order and without a gap.

Each message of a queue is its number, from 0; one that is acknowledged is followed by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rocketstore.broker.codes import BrokerRequest as Code
from rocketstore.consuming.group import share_of
from rocketstore.errors import RemotingError
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.command import ONEWAY, Command
from rocketstore.remoting.requests import RequestTable
from support.broker_desk import SEND
from support.oracle.record import decode_record
from support.patience import PATIENCE_MS

TOPIC: Final = "orders"
BROKER: Final = "broker-a"
PAUSE_S: Final = 0.005
"""Before a client whose broker is away tries again; real ones take seconds."""

_SIZE_AND_PLACE: Final = struct.Struct(">i24xq")


class Journal:
    """What the members of one group saw and committed, by queue."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = defaultdict(int)
        """How many numbers, from 0 on, were seen."""
        self.committed: dict[int, int] = defaultdict(int)
        """The highest offset that a member said that it had done."""
        self.readers: dict[int, set[str]] = defaultdict(set)
        self.repeats = 0
        self.faults: list[str] = []

    @contextlib.contextmanager
    def reading(self, queue: int, who: ModelConsumer) -> Iterator[None]:
        """Take note that a member reads a queue; where order counts, it is the only one."""
        self.readers[queue].add(who.name)
        if who.is_orderly and len(self.readers[queue]) > 1:
            self.faults.append(f"queue {queue} is read by {sorted(self.readers[queue])}")
        try:
            yield
        finally:
            self.readers[queue].discard(who.name)

    def note(self, queue: int, number: int, who: ModelConsumer) -> None:
        """Take note of a message that was consumed."""
        if number > self.seen[queue]:
            self.faults.append(f"{who.name}: {number} of queue {queue} after {self.seen[queue]}")
        self.repeats += number < self.seen[queue]
        self.seen[queue] = max(self.seen[queue], number + 1)


class Client:
    """What producers and consumers have in common: a connection, made again when it ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        asked = RequestTable((), unknown=lambda call: self.told(call.command))
        self.remoting = RemotingClient(asked)

    def told(self, command: Command) -> None:
        """Take what the broker asks."""

    async def ask(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"",
                  *, flag: int = 0) -> Command:  # fmt: skip
        """Send a request, and return its reply; `RemotingError` where none comes."""
        texts = None if fields is None else {name: str(value) for name, value in fields.items()}
        request = Command(code, fields=texts, body=body, flag=flag)
        if flag & ONEWAY:
            await self.remoting.tell(self.address, request)
            return request
        return await self.remoting.ask(self.address, request, timeout_ms=PATIENCE_MS)


class ModelProducer(Client):
    """Sends the numbers of each queue one after the other, each until it is acknowledged."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.acknowledged: dict[int, int] = defaultdict(int)
        self.refused = 0

    async def send(self, queue: int, queue_count: int) -> None:
        """Send the next number of a queue; only one task per queue does."""
        body = b"%d" % self.acknowledged[queue]
        fields = {**SEND, "b": TOPIC, "d": queue_count, "e": queue}
        while True:
            try:
                if (await self.ask(Code.SEND_MESSAGE_V2, fields, body)).code == 0:
                    self.acknowledged[queue] += 1
                    return
                self.refused += 1
            except RemotingError:
                self.refused += 1
            await asyncio.sleep(PAUSE_S)


class ModelConsumer(Client):
    """One member of a group."""

    def __init__(
        self, address: str, group: str, name: str, queue_count: int, journal: Journal,
        *, is_orderly: bool,
    ) -> None:  # fmt: skip
        super().__init__(address)
        self.group, self.name = group, name
        self.queue_count = queue_count
        self.journal = journal
        self.is_orderly = is_orderly
        self.readers: dict[int, asyncio.Task[None]] = {}
        self._done: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._driver = asyncio.create_task(self._run())

    def told(self, command: Command) -> None:
        if command.code == Code.NOTIFY_CONSUMER_IDS_CHANGED:
            self.poke()

    def poke(self) -> None:
        """Have it share the queues again, as each does every 20 s; raises what ended it."""
        if self._driver.done() and not self._driver.cancelled():
            self._driver.result()
        self._changed.set()

    # --- its life -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._heartbeat()
                while True:
                    self._changed.clear()
                    await self._share()
                    if any(reader.done() for reader in self.readers.values()):
                        break  # its connection ended
                    await self._changed.wait()
            except RemotingError:
                pass
            await self._drop(list(self.readers), says_so=False)
            await asyncio.sleep(PAUSE_S)

    async def leave(self) -> None:
        """Go in order: commit, unlock, unregister."""
        await _ended(self._driver)
        await self._drop(list(self.readers), says_so=True)
        fields = {"clientID": self.name, "consumerGroup": self.group}
        await self.ask(Code.UNREGISTER_CLIENT, fields)
        await self.remoting.close()

    async def crash(self) -> None:
        """Go without a word."""
        await _ended(self._driver)
        await self._drop(list(self.readers), says_so=False)
        await self.remoting.close()

    async def _heartbeat(self) -> None:
        subscriptions = [{"topic": TOPIC, "subString": "*", "subVersion": 1}]
        consumer = {"groupName": self.group, "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}  # fmt: skip
        said = {"clientID": self.name, "consumerDataSet": [consumer]}
        await self.ask(Code.HEART_BEAT, None, json.dumps(said).encode())

    # --- its queues -----------------------------------------------------------------------------

    async def _share(self) -> None:
        """Read the queues that are its own now, and no other."""
        reply = await self.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        ids = json.loads(bytes(reply.body))["consumerIdList"] if reply.code == 0 else []
        members = sorted(ids)  # none where the broker has let go of all, as silent
        if self.name not in members:
            await self._heartbeat()
            return
        queues = range(self.queue_count)
        wanted = set(share_of(queues, members.index(self.name), len(members)))
        await self._drop([queue for queue in self.readers if queue not in wanted], says_so=True)
        for queue in sorted(wanted - self.readers.keys()):
            if not self.is_orderly or await self._lock(queue):
                self.readers[queue] = asyncio.create_task(self._read(queue))

    async def renew(self) -> None:
        """Lock its queues again, as orderly consumers do every 20 s."""
        await self._heartbeat()  # after whose reply the queues are known that were locked before
        for queue in list(self.readers):
            if self.is_orderly and queue in self.readers:  # and not unlocked meanwhile
                await self._lock(queue)

    async def _lock(self, queue: int) -> bool:
        reply = await self.ask(Code.LOCK_BATCH_MQ, None, self._queues(queue))
        return bool(json.loads(bytes(reply.body))["lockOKMQSet"])

    def _queues(self, queue: int) -> bytes:
        queues = [{"brokerName": BROKER, "queueId": queue, "topic": TOPIC}]
        said = {"clientId": self.name, "consumerGroup": self.group, "mqSet": queues}
        return json.dumps(said).encode()

    async def _drop(self, queues: list[int], *, says_so: bool) -> None:
        for queue in queues:
            reader = self.readers.pop(queue)
            await _ended(reader)
            offset = self._done.pop(queue, None)
            if says_so and offset is not None:
                await self._commit(queue, offset)
            if says_so and self.is_orderly:
                await self.ask(Code.UNLOCK_BATCH_MQ, None, self._queues(queue))

    def _place(self, queue: int) -> dict[str, object]:
        return {"consumerGroup": self.group, "topic": TOPIC, "queueId": queue}

    async def _commit(self, queue: int, offset: int) -> None:
        self.journal.committed[queue] = max(self.journal.committed[queue], offset)
        fields = {**self._place(queue), "commitOffset": offset}
        await self.ask(Code.UPDATE_CONSUMER_OFFSET, fields)

    async def _read(self, queue: int) -> None:
        """Pull a queue from where its group stands, until it is another's or nobody answers."""
        with self.journal.reading(queue, self), contextlib.suppress(RemotingError):
            reply = await self.ask(Code.QUERY_CONSUMER_OFFSET, self._place(queue))
            offset = int((reply.fields or {}).get("offset", 0))
            while True:
                self.journal.committed[queue] = max(self.journal.committed[queue], offset)
                reply = await self.ask(Code.PULL_MESSAGE, {
                    **self._place(queue), "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 7,
                    "commitOffset": offset, "suspendTimeoutMillis": 15_000, "subscription": "*",
                    "subVersion": 1, "expressionType": "TAG",
                })  # fmt: skip
                if reply.code == 0:
                    for number in _numbers(bytes(reply.body)):
                        self.journal.note(queue, number, self)
                elif reply.code not in (19, 20, 21):
                    await asyncio.sleep(PAUSE_S)
                    continue
                assert reply.fields is not None
                offset = self._done[queue] = int(reply.fields["nextBeginOffset"])
        self.poke()


def _numbers(records: bytes) -> list[int]:
    found, position = [], 0
    while position < len(records):
        size, physical_offset = _SIZE_AND_PLACE.unpack_from(records, position)
        message = decode_record(records, position, base=physical_offset - position)
        found.append(int(message.body))
        position += size
    return found


async def _ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
