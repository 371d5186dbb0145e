"""What waits for the disk many times does so at once (decision 0002)."""

from __future__ import annotations

import _thread
import contextlib
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE: Final = 16
"""How many waits for the disk go on at once: a disk flushes its cache once for all that ask
meanwhile, so that 1,000 syncs take some 0.1 s and not 3."""

LEAST_EACH: Final = 4
"""For fewer waits a thread would cost more than it saves."""

T = TypeVar("T")
R = TypeVar("R")


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what `work`, which waits for the disk, makes of each item; many are done at once.

    This thread works too, and alone where the system gives no other. After an error no item is
    begun any more, and it is raised once those under way are done.
    """
    if len(items) < 2 * LEAST_EACH:
        return [work(item) for item in items]
    todo = deque(enumerate(items))
    results: list[Any] = [None] * len(items)
    failures: list[BaseException] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        while todo:
            try:
                number, item = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                if not failures:
                    results[number] = work(item)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                failures.append(error)
            ended.put(None)

    try:
        with contextlib.suppress(RuntimeError):  # the system gives no thread
            for _ in range(min(AT_ONCE, len(items) // LEAST_EACH) - 1):
                # An interrupt in `threading.Thread.start` can leave a lock taken for ever.
                _thread.start_new_thread(run, ())
        run()
        for _ in items:
            ended.get()
    finally:
        todo.clear()  # after an interrupt there may be something in it
    if failures:
        raise failures[0]
    return results
