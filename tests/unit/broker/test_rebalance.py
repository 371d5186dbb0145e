"""Consumers that join, leave and crash: each queue has one reader, in order, and nothing is lost.

Each run has 200 rounds, of one seed; ``ROCKETSTORE_FAULT_WALK=all`` has twenty seeds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from typing import TYPE_CHECKING, Final

import pytest

from rocketstore.broker.loop import Loop
from rocketstore.broker.queue_locks import LOCK_LIFE_MS
from rocketstore.remoting.server import RemotingServer
from support.broker_desk import Desk
from support.model_clients import TOPIC, Journal, ModelConsumer, ModelProducer
from support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROUNDS: Final = 200
SEEDS: Final = 20 if os.environ.get("ROCKETSTORE_FAULT_WALK") == "all" else 1
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


async def live(path: Path, seed: int) -> list[Group]:
    chance = random.Random(seed)
    desk = Desk(path, loop=lambda store: Loop(store.attached["async_puts"]))
    server = await RemotingServer.open(desk.table)
    address = "{}:{}".format(*server.address)
    producer = ModelProducer(address)
    groups = [Group(address, "P", is_orderly=True), Group(address, "C", is_orderly=False)]
    await asyncio.gather(*(producer.send(queue, QUEUES) for queue in range(QUEUES)))
    for group in groups:
        group.join()

    async def time_passes() -> None:
        """Let locks of those who crashed end, while the others renew theirs."""
        for _ in range(RENEWALS):
            desk.clock.now_ms += LOCK_LIFE_MS // RENEWALS + 1
            await asyncio.gather(*(one.renew() for group in groups for one in group.members))

    async def until(is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for looks in itertools.count(1):
                if is_true():
                    return
                for group in groups:
                    for member in group.members:
                        member.poke()
                await asyncio.sleep(0.002)
                if looks % 100 == 0:
                    await time_passes()

    for _ in range(ROUNDS):
        sends = [producer.send(queue, QUEUES) for queue in chance.sample(range(QUEUES), 3)]
        changes = [group.change(chance) for group in groups]
        await asyncio.gather(*sends, *changes)
        if chance.random() < 0.5:
            continue  # the next change comes before this one has settled
        await time_passes()
        await until(lambda: all(one.is_settled() for one in groups))
        for group, queue in itertools.product(groups, range(QUEUES)):
            offset = desk.store.consumer_offsets.get(TOPIC, group.name, queue) or 0
            assert offset <= group.journal.committed[queue] <= group.journal.seen[queue]
    await time_passes()
    for group in groups:
        await until(lambda group=group: group.journal.seen == producer.acknowledged)
        for member in group.members:
            await member.leave()
        for queue in range(QUEUES):
            offset = desk.store.consumer_offsets.get(TOPIC, group.name, queue)
            assert offset == producer.acknowledged[queue]
    await producer.remoting.close()
    await server.close()
    desk.loop.close()
    desk.close()
    return groups


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_queue_has_one_reader_whoever_comes_and_goes(tmp_path: Path, seed: int) -> None:
    for group in asyncio.run(live(tmp_path, seed)):
        assert group.journal.faults == []
        assert sum(group.journal.seen.values()) > ROUNDS
