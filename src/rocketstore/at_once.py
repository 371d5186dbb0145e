"""What waits for the disk many times does so at once (decision 0002)."""

import _thread
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

AT_ONCE: Final = 16
"""How many waits for the disk go on at once: a disk flushes its cache once for all that ask
meanwhile, so that 1,000 syncs take some 0.1 s and not 3."""

LEAST_EACH: Final = 4
"""For fewer waits a thread would cost more than it saves."""

T = TypeVar("T")
R = TypeVar("R")


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what `work`, which waits for the disk, makes of each item; many are done at once.

    Threads and errors are those of `spread`.
    """
    if len(items) < 2 * LEAST_EACH:
        return [work(item) for item in items]
    return list(spread(work, items, most=min(AT_ONCE, len(items) // LEAST_EACH)))


def spread(work: Callable[[T], R], items: Sequence[T], *, most: int) -> Iterator[R]:
    """Yield what `work` makes of each item, in their order; so many threads work at most.

    This thread works too, and alone where the system gives no other. After an error no item is
    begun any more, and it is raised once those under way are done.
    """
    shared = _Shared(work, items)
    left = len(items)
    try:
        with contextlib.suppress(RuntimeError):  # the system gives no thread
            for _ in range(min(most, left) - 1):
                # An interrupt in `threading.Thread.start` can leave a lock taken for ever.
                _thread.start_new_thread(shared.run, ())
        for number in range(len(items)):
            while number not in shared.results and not shared.failures:
                if not shared.does_one():
                    shared.ended.get()
                    left -= 1
            if shared.failures:
                break
            yield shared.results.pop(number)
        shared.run()
        for _ in range(left):
            shared.ended.get()
    finally:
        shared.todo.clear()  # after an interrupt there may be something in it
    if shared.failures:
        raise shared.failures[0]


class _Shared(Generic[T, R]):
    """Items of which each thread takes the next one; `ended` gets something for each one done."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._work = work
        self.todo = deque(enumerate(items))
        self.results: dict[int, R] = {}
        self.failures: list[BaseException] = []
        self.ended: SimpleQueue[None] = SimpleQueue()

    def does_one(self) -> bool:
        """Work on the next item; whether there was one."""
        try:
            number, item = self.todo.popleft()
        except IndexError:  # another thread took the last one
            return False
        try:
            if not self.failures:
                self.results[number] = self._work(item)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.failures.append(error)
        self.ended.put(None)
        return True

    def run(self) -> None:
        """Work until nothing is left."""
        while self.does_one():
            pass
