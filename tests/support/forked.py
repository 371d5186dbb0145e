"""What a test has a forked child do, and which files it finds afterwards."""

import os
import signal
import traceback
from collections.abc import Callable

LIMIT_S = 240


def in_child(work: Callable[[], object]) -> None:
    """Fork, work in the child, and assert that it ended well and in time."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(LIMIT_S)  # ends the child by a signal if it hangs
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - told to the parent
            os.write(write_end, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    _, ended = os.waitpid(pid, 0)
    assert ended == 0, said or f"the child ended with {ended}"


class HeldChild:
    """A forked child that works, and then lives on until it is let go of."""

    def __init__(self, work: Callable[[], object]) -> None:
        said, say = os.pipe()
        held, hold = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                signal.alarm(LIMIT_S)
                os.close(hold)
                work()
                os.write(say, b"well")
                os.read(held, 1)
                status = 0
            except BaseException:  # noqa: BLE001 - told to the parent
                os.write(say, traceback.format_exc().encode()[-60_000:])
            finally:
                os._exit(status)
        os.close(say)
        os.close(held)
        self._hold = hold
        with os.fdopen(said) as pipe:
            self.said = pipe.read(4)
            if self.said != "well":
                self.said += pipe.read()

    def let_go(self) -> None:
        """Have it end, and assert that it was well."""
        os.close(self._hold)
        _, ended = os.waitpid(self._pid, 0)
        assert (self.said, ended) == ("well", 0), self.said
