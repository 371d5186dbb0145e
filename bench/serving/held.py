"""The client of ``held``: many connections in one process, each with pulls that wait.

A message is sent to a queue of which pulls wait; how long after its sending began each of them was
answered is what is measured. Each then waits again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketstore.broker.admin import CreateTopicHeader
from rocketstore.broker.codes import BrokerRequest
from rocketstore.broker.held_pulls import PullHeader
from rocketstore.broker.pulling import SUBSCRIBES, WAITS
from rocketstore.broker.send_headers import SendHeaderV2
from rocketstore.process import new_event_loop
from rocketstore.remoting.channel import Channel, Turns
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.limits import DEFAULT_LIMITS
from rocketstore.remoting.requests import RequestTable, request

if TYPE_CHECKING:
    from rocketstore.remoting.command import Command

TOPIC = "held"
WAIT_MS = 3_600_000
PAUSE_S = 0.01
PATIENCE_MS = 60_000
AT_ONCE = 500


class Pulls:
    """All pulls: when the newest message of each queue was sent, how long each answer took."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.sent_ns: dict[int, int] = {}
        self.took_ns: list[int] = []
        self.wrong: list[str] = []


class Pull:
    """One pull; a `Channel` takes it for the future of its reply."""

    __slots__ = ("_channel", "_header", "_pulls")

    def __init__(self, pulls: Pulls, channel: Channel, queue: int, offset: int) -> None:
        self._pulls = pulls
        self._channel = channel
        self._header = PullHeader(
            consumer_group="held", topic=TOPIC, queue_id=queue, queue_offset=offset,
            max_msg_nums=32, sys_flag=WAITS | SUBSCRIBES, commit_offset=0,
            suspend_timeout_millis=WAIT_MS, subscription="*",
        )  # fmt: skip
        self.ask()

    def ask(self) -> None:
        """Ask for what follows."""
        self._channel.connection.ask(request(BrokerRequest.PULL_MESSAGE, self._header), self)
        self._pulls.turns.touch(self._channel)

    def done(self) -> bool:
        """Whether nobody wants the reply."""
        return False

    def set_result(self, reply: Command) -> None:
        """Take the reply, and wait for the next message."""
        taken_ns = time.perf_counter_ns()
        if reply.code != ResponseCode.SUCCESS or reply.fields is None:
            self._pulls.wrong.append(f"a pull was answered with code {reply.code}: {reply.remark}")
            return
        count = int(reply.fields["nextBeginOffset"]) - self._header.queue_offset  # 2 in a late one
        self._pulls.took_ns += [taken_ns - self._pulls.sent_ns[self._header.queue_id]] * count
        self._header.queue_offset += count
        self.ask()

    def set_exception(self, error: Exception) -> None:
        """Take note of the end of the connection."""


class Client:
    """Does what the lines of the standard input say, a JSON object each."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._turns = Turns(RequestTable(()), DEFAULT_LIMITS)
        self._pulls = Pulls(self._turns)
        self._channels: list[Channel] = []
        self._waiting: list[Pull] = []

    async def _connect(self) -> Channel:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Channel(self._turns), *self._address))[1]

    async def _ask(self, command: Command) -> Command:
        answer = await self._channels[0].ask(command, PATIENCE_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise AssertionError(f"code {answer.code}: {answer.remark}")
        return answer

    async def _send(self, queue: int) -> None:
        header = SendHeaderV2(
            producer_group="held", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=8,
            queue_id=queue, sys_flag=0, born_timestamp=int(time.time() * 1000), flag=0,
        )  # fmt: skip
        self._pulls.sent_ns[queue] = time.perf_counter_ns()
        await self._ask(request(BrokerRequest.SEND_MESSAGE_V2, header, b"x" * 128))

    async def _dispatched(self, queue: int) -> None:
        """Wait for the first message of a queue: a pull after it would be refused before."""
        asked = request(BrokerRequest.GET_MAX_OFFSET, None)
        asked.fields = {"topic": TOPIC, "queueId": str(queue)}
        until = time.monotonic() + PATIENCE_MS / 1000
        while (answer := await self._ask(asked)).fields == {"offset": "0"}:
            if time.monotonic() > until:
                raise AssertionError(f"queue {queue} has no message: {answer}")
            await asyncio.sleep(PAUSE_S)

    async def hold(
        self, connections: int, pulls: int, queues: int, woken: int, **_more: Any
    ) -> dict[str, Any]:
        """Connect, make the topic, and have all pulls wait."""
        self._channels.append(await self._connect())
        topic = CreateTopicHeader(
            topic=TOPIC, read_queue_nums=queues, write_queue_nums=queues, perm=6
        )
        await self._ask(request(BrokerRequest.UPDATE_AND_CREATE_TOPIC, topic))
        for queue in range(woken):  # its files are there
            await self._send(queue)
        await self._dispatched(woken - 1)
        began = time.perf_counter()
        while (left := connections - len(self._channels)) > 0:
            made = (self._connect() for _ in range(min(left, AT_ONCE)))
            self._channels += await asyncio.gather(*made)
        for number in range(pulls):
            queue, channel = number % queues, self._channels[number % connections]
            self._waiting.append(Pull(self._pulls, channel, queue, int(queue < woken)))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        offset = request(BrokerRequest.QUERY_CONSUMER_OFFSET, None)
        offset.fields = {"consumerGroup": "held", "topic": TOPIC, "queueId": "0"}
        for channel in self._channels:  # answered after all pulls before it were looked at
            await channel.ask(offset, PATIENCE_MS)
        if self._pulls.took_ns or self._pulls.wrong:
            raise AssertionError(f"{len(self._pulls.took_ns)} pulls found; {self._pulls.wrong[:3]}")
        seconds = time.perf_counter() - began
        gc.freeze()  # this side's collector shall not stop the clock
        return {"seconds": seconds}

    async def wake(
        self, pulls: int, queues: int, woken: int, wakes: int, **_more: Any
    ) -> dict[str, Any]:
        """Send messages at a rate, and say how long the pulls that each wakes took."""
        for number in range(wakes):  # in turn: a pull waits again before its queue gets the next
            await self._send(number % woken)
            await asyncio.sleep(PAUSE_S)
        wanted = wakes * pulls // queues
        until = time.monotonic() + PATIENCE_MS / 1000
        while len(self._pulls.took_ns) < wanted:
            if time.monotonic() > until:
                break
            await asyncio.sleep(PAUSE_S)
        if self._pulls.wrong or len(self._pulls.took_ns) != wanted:
            found = f"{len(self._pulls.took_ns)} pulls of {wanted} found"
            raise AssertionError(f"{found}; {self._pulls.wrong[:3]}")
        took = np.percentile(self._pulls.took_ns, (50, 99, 100)) / 1e6
        names = ("p50Milliseconds", "p99Milliseconds", "mostMilliseconds")
        return dict(zip(names, map(float, took), strict=True))

    async def run(self) -> None:
        """Answer lines until there is none."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            ask = json.loads(line)
            try:
                work = self.hold if ask.pop("cmd") == "hold" else self.wake
                answer = {"ok": True, **await work(**ask)}
            except Exception as failure:  # noqa: BLE001 - the other side reports it
                answer = {"ok": False, "error": repr(failure)}
            print(json.dumps(answer), flush=True)


async def _main(host: str, port: str) -> None:
    await Client(host, int(port)).run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_main(*sys.argv[1:]))
