"""A port for a server that must know it before it listens.

Between the choice and the listening another process of the suite may get it: as its own choice, as
the source of a connection, or two below a broker's for the VIP channel. So each process of the
suite goes through ports of its own, below those that the system hands out.
"""

import _socket  # not counted by `FailingCalls`
import contextlib
import itertools
import os

__all__ = ["free_port"]

FIRST, LAST = 12_000, 32_000
STEP = 4
"""Of them a server takes one, a broker another for the VIP channel."""

WORKERS = 8
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_own = range(FIRST, LAST, STEP)[_worker::WORKERS]
# Another suite on this machine begins elsewhere.
_ports = itertools.islice(itertools.cycle(_own), os.getpid() % len(_own), None)


def free_port() -> int:
    """Return a port that is free, and that no other process of this suite is given."""
    for port in _ports:
        with contextlib.closing(_socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there is always one more")
