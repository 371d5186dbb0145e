"""The broker's event loop, as its parts see it: back to it from other threads, and aside from it.

Law: what is called back runs on the loop, in the order in which it was given; a wake-up of the loop
serves all that was given meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketstore.broker.refused import failure
from rocketstore.events import get_logger
from rocketstore.remoting.requests import LATER, Call, Later

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from rocketstore.consuming.async_puts import AsyncPuts
    from rocketstore.remoting.command import Command
    from rocketstore.storage.results import PutResult

T = TypeVar("T")

THREADS: Final = 4
"""For what may be slow, and as many for the disk; 4.9 has 8 and more for queries, 16 for admins."""

_log: Final = get_logger(__name__)


class Loop:
    """Made on the loop's thread; `puts` tell when a message is as safe as its flush mode says."""

    def __init__(self, puts: AsyncPuts) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._puts = puts
        self._given: deque[Callable[[], object]] = deque()
        self._is_woken = False
        self._pool = ThreadPoolExecutor(THREADS, "rocketstore-broker-aside")
        self._readers = ThreadPoolExecutor(THREADS, "rocketstore-broker-read")

    def post(self, work: Callable[[], object]) -> None:
        """Have something done on the loop; from any thread."""
        self._given.append(work)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._do_given)

    def run(self, work: Callable[[], object]) -> None:
        """Do something at once on the loop, or have it done there."""
        if threading.get_ident() == self._thread:
            work()
        else:
            self.post(work)

    def paced(self, interval_s: float, work: Callable[[], object]) -> Callable[[], None]:
        """Return what has something done soon on the loop, no more often than at an interval."""
        next_s = 0.0

        def turn() -> None:
            nonlocal next_s
            next_s = self._loop.time() + interval_s
            self._given.append(work)
            self._do_given()

        def soon() -> None:
            left_s = next_s - self._loop.time()
            if left_s > 0:
                self._loop.call_later(left_s, turn)
            else:
                turn()

        return lambda: self.post(soon)

    def _do_given(self) -> None:
        self._is_woken = False  # what is given from now on wakes again
        while self._given:
            try:
                self._given.popleft()()
            except Exception:  # noqa: BLE001 - one piece of work does not end the others
                _log.exception("broker.work_failed")

    def every(self, interval_s: float, work: Callable[[], object]) -> None:
        """Do something at an interval."""

        def turn() -> None:
            self._loop.call_later(interval_s, turn)
            self._given.append(work)
            self._do_given()

        self._loop.call_later(interval_s, turn)

    def aside(self, call: Call, work: Callable[[], Command]) -> Later:
        """Answer a call with what a thread finds out."""
        return self._after(self._pool.submit(work), call, lambda answer: answer)

    def served_aside(self, answer: Callable[[Any, Call], Command]) -> Callable[[Any, Call], Later]:
        """Return a handler of requests that has a thread answer them."""
        return lambda header, call: self.aside(call, lambda: answer(header, call))

    def once_read(
        self, call: Call, read: Callable[[], T], go_on: Callable[[T], Command | Later]
    ) -> Later:
        """Go on with a call when a thread of those for the disk has read what it needs."""
        return self._after(self._readers.submit(read), call, go_on)

    def once_asked(
        self, call: Call, asked: Coroutine[Any, Any, T], go_on: Callable[[T], Command | Later]
    ) -> Later:
        """Go on with a call when a client has answered what it was asked."""
        return self._after(asyncio.run_coroutine_threadsafe(asked, self._loop), call, go_on)

    def _after(self, work: Future[T], call: Call, go_on: Callable[[T], Command | Later]) -> Later:
        def answer(done: Future[T]) -> None:
            try:
                found = go_on(done.result())
                if not isinstance(found, Later):
                    call.answer(found)  # which may be longer than a frame
            except Exception as error:  # noqa: BLE001 - it fails one request
                call.answer(failure(error, call))

        work.add_done_callback(lambda done: self.post(lambda: answer(done)))
        return LATER

    def when_safe(
        self, call: Call, result: PutResult, made: Callable[[PutResult], Command],
        then: Callable[[Command], object],
    ) -> None:  # fmt: skip
        """Call `then` with the reply to a put that did not wait, once its flush is over.

        It is `made` of the result, or says that the flush failed.
        """

        def go_on(done: Future[PutResult]) -> None:
            error = done.exception()
            then(made(done.result()) if error is None else failure(error, call))

        future = self._puts.settled(result)
        future.add_done_callback(lambda done: self.post(lambda: go_on(done)))

    def close(self) -> None:
        """Take no work any more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)
