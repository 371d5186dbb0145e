"""A broker is killed under load: clients try again, lose nothing, and see queues in order.

A day's run kills it twice in each flush mode, ``ROCKETSTORE_FAULT_WALK=all`` fifty times.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from rocketstore import FlushDiskType
from rocketstore.storage.layout import StoreLayout
from rocketstore.tables.consumer_offsets import read_offsets
from support.fault_settings import WALKS_ALL
from support.model_clients import TOPIC, Journal, ModelConsumer, ModelProducer
from support.patience import PATIENCE_S
from support.ports import free_port

KILLS: Final = 50 if WALKS_ALL else 2
QUEUES: Final = 4
GROUPS: Final = {"P": True, "C": False}
"""Two groups of two members each; whether one consumes in order."""

SETTINGS: Final = {
    "mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 500,
    "maxIndexNum": 2000, "flushConsumerOffsetInterval": 20, "retention": "false",
    "brokerName": "broker-a",
}  # fmt: skip
"""Files of which many are filled between two kills, and offsets that are saved all the time."""

END_S: Final = 5.0
"""How long SIGTERM may take; a machine that stands still does not do so three times."""


class Life:
    """What lives on while brokers come and go at one address."""

    def __init__(self, root: Path, flush: FlushDiskType) -> None:
        port = free_port()
        self.root = root
        self.address = f"127.0.0.1:{port}"
        settings = {**SETTINGS, "flushDiskType": flush.value, "listenPort": port,
                    "namesrvPort": free_port()}  # fmt: skip
        self._command = [sys.executable, "-W", "ignore", "-m", "rocketstore", "serve", "broker"]
        self._command += [str(root), *(f"--set={key}={one}" for key, one in settings.items())]
        self.producer = ModelProducer(self.address)
        self.journals = {name: Journal() for name in GROUPS}
        self.members = [
            ModelConsumer(self.address, name, f"{name}-{number}", QUEUES, journal,
                          is_orderly=GROUPS[name])
            for name, journal in self.journals.items() for number in range(2)
        ]  # fmt: skip

    @contextlib.asynccontextmanager
    async def broker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a broker, which a test may kill."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                said = b""
                while said != b"ready\n":
                    before, said = said, await process.stderr.readline()
                    assert said, f"the broker ended before it was ready: {before.decode()}"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def send_on(self, queue: int) -> None:
        while True:
            await self.producer.send(queue, QUEUES)

    def count(self) -> int:
        return sum(self.producer.acknowledged.values())

    async def until(self, is_true: Callable[[], bool], *, pokes: bool = False) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_true():
                for member in self.members if pokes else ():
                    member.poke()
                await asyncio.sleep(0.002)

    def check_saved(self) -> int:
        """No saved offset is beyond what a member committed; return how many there are."""
        rows = [
            (group, key, offset)
            for group, key, offset in read_offsets(StoreLayout.of(self.root)).rows()
            if key.topic == TOPIC
        ]
        for group, key, offset in rows:
            assert offset <= self.journals[group].committed[key.queue_id], (group, key)
        return len(rows)


async def ended(process: asyncio.subprocess.Process) -> float:
    """End a broker in order; return how long it took."""
    began = time.monotonic()
    process.terminate()
    assert await process.wait() == 0
    return time.monotonic() - began


async def live(root: Path, flush: FlushDiskType, chance: random.Random) -> Life:
    """Kill brokers while clients work; end the last one in order."""
    life = Life(root, flush)
    senders = [asyncio.create_task(life.send_on(queue)) for queue in range(QUEUES)]
    saved = 0
    for _ in range(KILLS):
        async with life.broker() as process:
            enough = life.count() + chance.randrange(1, 400)
            await life.until(lambda enough=enough: life.count() >= enough)
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
        saved += life.check_saved()
    async with life.broker() as process:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        sent = life.producer.acknowledged
        await life.until(
            lambda: all(
                one.seen[queue] >= sent[queue] for one in life.journals.values() for queue in sent
            ),
            pokes=True,
        )
        for member in life.members:
            await member.leave()
        await life.producer.remoting.close()
        times = [await ended(process)]
    while times[-1] >= END_S and len(times) < 3:
        async with life.broker() as process:
            times.append(await ended(process))
    assert times[-1] < END_S, times
    assert life.check_saved() == len(GROUPS) * QUEUES
    assert saved
    return life


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_clients_of_killed_brokers_lose_nothing_and_keep_order(tmp_path, flush):
    life = asyncio.run(live(tmp_path / "store", flush, random.Random(flush.value)))
    assert life.producer.refused
    for name, journal in life.journals.items():
        assert journal.faults == [], name
