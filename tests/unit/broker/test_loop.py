"""What comes back to the loop from other threads: results, failures, work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from threading import get_ident

from rocketstore.broker.loop import Loop
from rocketstore.errors import FlushFailedError, StoreClosedError
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.frame import LONGEST_FRAME, encode_frame
from rocketstore.remoting.requests import Call
from rocketstore.storage.results import PutMessageStatus, PutResult
from support.broker_desk import Peer
from support.patience import PATIENCE_S


class Puts:
    """In place of `AsyncPuts`: one future, which the test resolves."""

    def __init__(self) -> None:
        self.future: Future[PutResult] = Future()

    def settled(self, _result: PutResult) -> Future[PutResult]:
        return self.future


class FramingPeer(Peer):
    """Takes what fits a frame."""

    def answer(self, request: Command, size: int, reply: Command | None) -> None:
        assert reply is not None
        encode_frame(reply)
        super().answer(request, size, reply)


def heard(use: Callable[[Loop, Puts, Call], object]) -> list[Command]:
    """Return what a client heard of one call."""
    peer = FramingPeer()

    async def main() -> None:
        puts = Puts()
        loop = Loop(puts)  # type: ignore[arg-type]
        use(loop, puts, Call(Command(310), 0, peer, 0))
        async with asyncio.timeout(PATIENCE_S):
            while not peer.heard:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.001)
        loop.close()  # which cancels what no thread has begun

    asyncio.run(main())
    return peer.heard


def test_message_whose_sync_fails_is_answered_that_the_store_takes_none():
    def use(loop: Loop, puts: Puts, call: Call) -> None:
        result = PutResult(PutMessageStatus.PUT_OK, physical_offset=0)
        loop.when_safe(call, result, lambda _: reply(), call.answer)
        puts.future.set_exception(FlushFailedError("the disk is gone"))

    [answer] = heard(use)
    assert (answer.code, answer.remark) == (14, "the disk is gone")


def test_work_aside_that_fails_is_an_answer():
    def closed() -> Command:
        raise StoreClosedError("it was closed")

    def broken() -> Command:
        raise ZeroDivisionError

    for work, code in ((closed, 14), (broken, 1)):
        [answer] = heard(lambda loop, _, call, work=work: loop.aside(call, work))  # type: ignore[misc]
        assert answer.code == code


def test_work_aside_that_finds_more_than_a_frame_takes_is_an_answer():
    long = reply(body=bytes(LONGEST_FRAME))
    [answer] = heard(lambda loop, _, call: loop.aside(call, lambda: long))
    assert answer.code == 1
    assert "frame" in (answer.remark or "")


def test_work_that_fails_does_not_end_what_comes_after_it():
    def use(loop: Loop, _puts: Puts, call: Call) -> None:
        loop.post(lambda: 1 / 0)
        loop.post(lambda: call.answer(reply()))

    assert [answer.code for answer in heard(use)] == [0]


def test_paced_work_is_done_at_once_and_then_no_more_often_than_at_its_interval():
    times: list[float] = []

    async def main() -> None:
        loop = Loop(Puts())  # type: ignore[arg-type]
        clock = asyncio.get_running_loop()
        soon = loop.paced(0.05, lambda: times.append(clock.time()))
        began = clock.time()
        soon()
        await asyncio.sleep(0)
        assert len(times) == 1
        while len(times) < 3:
            assert clock.time() < began + PATIENCE_S
            await asyncio.to_thread(soon)
            await asyncio.sleep(0.05)
        loop.close()

    asyncio.run(main())
    assert all(later - earlier >= 0.049 for earlier, later in pairwise(times))


def test_work_is_done_at_once_on_the_loop_and_later_from_another_thread():
    threads: list[int] = []

    async def main() -> None:
        loop = Loop(Puts())  # type: ignore[arg-type]
        loop.run(lambda: threads.append(get_ident()))
        assert len(threads) == 1
        await asyncio.to_thread(loop.run, lambda: threads.append(get_ident()))
        await asyncio.sleep(0)
        loop.close()

    asyncio.run(main())
    assert threads == [get_ident()] * 2
