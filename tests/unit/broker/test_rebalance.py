"""Consumers that join, leave and crash: each queue has one reader, in order, and nothing is lost.

Each run has 200 rounds, of one seed; ``ROCKETSTORE_FAULT_WALK=all`` has twenty seeds.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rocketstore.broker.loop import Loop
from rocketstore.broker.queue_locks import LOCK_LIFE_MS
from support.broker_desk import Desk
from support.fault_settings import WALKS_ALL
from support.model_clients import TOPIC, Journal, ModelConsumer, ModelProducer
from support.patience import PATIENCE_S
from support.wire import opened

ROUNDS: Final = 200
SEEDS: Final = 20 if WALKS_ALL else 1
QUEUES: Final = 6
MOST_MEMBERS: Final = 4
RENEWALS: Final = 4
"""Within the life of a lock: who lives renews each 20 s, and who crashed does not."""


class Group:
    """The members of one group, and what they saw."""

    def __init__(self, address: str, name: str, *, is_orderly: bool) -> None:
        self.address, self.name, self.is_orderly = address, name, is_orderly
        self.members: list[ModelConsumer] = []
        self.journal = Journal()
        self._names = itertools.count()

    def join(self) -> None:
        name = f"{self.name}-{next(self._names)}"
        self.members.append(
            ModelConsumer(
                self.address, self.name, name, QUEUES, self.journal, is_orderly=self.is_orderly
            )
        )

    async def change(self, chance: random.Random) -> None:
        """Let a member join, leave or crash."""
        kind = chance.choice(["join", "leave", "crash"])
        if kind == "join" or len(self.members) < 2:
            if len(self.members) < MOST_MEMBERS:
                self.join()
            return
        member = self.members.pop(chance.randrange(len(self.members)))
        await (member.leave() if kind == "leave" else member.crash())

    def is_settled(self) -> bool:
        """Whether each queue has one reader, and the members have as many as the rule says."""
        read = sorted(queue for member in self.members for queue in member.readers)
        counts = sorted(len(member.readers) for member in self.members)
        size, more = divmod(QUEUES, len(self.members))
        fair = [size] * (len(self.members) - more) + [size + 1] * more
        return read == list(range(QUEUES)) and counts == fair


class Life:
    """A broker, a producer and two groups, and what happens to them."""

    def __init__(self, desk: Desk, address: str) -> None:
        self.desk = desk
        self.producer = ModelProducer(address)
        self.groups = [Group(address, "P", is_orderly=True), Group(address, "C", is_orderly=False)]
        for group in self.groups:
            group.join()

    @property
    def members(self) -> list[ModelConsumer]:
        return [member for group in self.groups for member in group.members]

    async def time_passes(self) -> None:
        """Let locks of those who crashed end, while the others renew theirs."""
        for _ in range(RENEWALS):
            self.desk.clock.now_ms += LOCK_LIFE_MS // RENEWALS + 1
            await asyncio.gather(*(member.renew() for member in self.members))

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Let the members look again, until something is true."""
        async with asyncio.timeout(PATIENCE_S):
            for looks in itertools.count(1):
                if is_true():
                    return
                for member in self.members:
                    member.poke()
                await asyncio.sleep(0.002)
                if looks % 100 == 0:
                    await self.time_passes()

    async def round(self, chance: random.Random) -> None:
        """Send, change both groups, and see to what that comes."""
        sends = [self.producer.send(queue, QUEUES) for queue in chance.sample(range(QUEUES), 3)]
        await asyncio.gather(*sends, *(group.change(chance) for group in self.groups))
        if chance.random() < 0.5:
            return  # the next change comes before this one has settled
        await self.time_passes()
        await self.until(lambda: all(group.is_settled() for group in self.groups))
        for group, queue in itertools.product(self.groups, range(QUEUES)):
            offset = self.desk.store.consumer_offsets.get(TOPIC, group.name, queue) or 0
            assert offset <= group.journal.committed[queue] <= group.journal.seen[queue]

    async def end(self) -> None:
        """Let everything be consumed, and all go."""
        sent = self.producer.acknowledged
        await self.until(lambda: all(group.journal.seen == sent for group in self.groups))
        for member in self.members:
            await member.leave()
        for group, queue in itertools.product(self.groups, range(QUEUES)):
            assert self.desk.store.consumer_offsets.get(TOPIC, group.name, queue) == sent[queue]
        await self.producer.remoting.close()


async def live(path: Path, seed: int) -> list[Group]:
    """Live through all rounds; return what the groups saw."""
    chance = random.Random(seed)
    desk = Desk(
        path, loop=lambda store: Loop(store.attached["async_puts"]),
        broker_fast_failure_enable=False,  # it has the test's clock, and the server has its own
    )  # fmt: skip
    server = await opened(desk.table)
    life = Life(desk, "{}:{}".format(*server.address))
    await asyncio.gather(*(life.producer.send(queue, QUEUES) for queue in range(QUEUES)))
    for _ in range(ROUNDS):
        await life.round(chance)
    await life.end()
    await server.close()
    desk.loop.close()
    desk.close()
    return life.groups


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_queue_has_one_reader_while_consumers_come_and_go(tmp_path, seed):
    for group in asyncio.run(live(tmp_path, seed)):
        assert group.journal.faults == []
        assert sum(group.journal.seen.values()) > ROUNDS
