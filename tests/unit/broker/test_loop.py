"""What comes back to the loop from other threads: results, failures, work."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rocketstore.broker.loop import Loop
from rocketstore.errors import FlushFailedError, StoreClosedError
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.requests import Call
from rocketstore.storage.results import PutMessageStatus, PutResult
from support.broker_desk import Peer

if TYPE_CHECKING:
    from collections.abc import Callable


class Puts:
    """In place of `AsyncPuts`: one future, which the test resolves."""

    def __init__(self) -> None:
        self.future: Future[PutResult] = Future()

    def settled(self, _result: PutResult) -> Future[PutResult]:
        return self.future


def heard(use: Callable[[Loop, Puts, Call], object]) -> list[Command]:
    """Return what a client heard of one call, after the others of the loop have worked."""
    peer = Peer()

    async def main() -> None:
        puts = Puts()
        loop = Loop(puts)  # type: ignore[arg-type]
        use(loop, puts, Call(Command(310), 0, peer, 0))
        loop.close()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(main())
    return peer.heard


def test_message_whose_sync_fails_is_answered_that_the_store_takes_none() -> None:
    def use(loop: Loop, puts: Puts, call: Call) -> None:
        result = PutResult(PutMessageStatus.PUT_OK, physical_offset=0)
        loop.when_safe(call, result, lambda _: reply(), call.answer)
        puts.future.set_exception(FlushFailedError("the disk is gone"))

    [answer] = heard(use)
    assert (answer.code, answer.remark) == (14, "the disk is gone")


def test_work_aside_that_fails_is_an_answer() -> None:
    def closed() -> Command:
        raise StoreClosedError("it was closed")

    def broken() -> Command:
        raise ZeroDivisionError

    for work, code in ((closed, 14), (broken, 1)):
        [answer] = heard(lambda loop, _, call, work=work: loop.aside(call, work))  # type: ignore[misc]
        assert answer.code == code


def test_work_that_fails_does_not_end_what_comes_after_it() -> None:
    def use(loop: Loop, _puts: Puts, call: Call) -> None:
        loop.post(lambda: 1 / 0)
        loop.post(lambda: call.answer(reply()))

    assert [answer.code for answer in heard(use)] == [0]
