"""The ``rocketstore`` command: ``rocketstore <noun> <verb> [STORE]``.

One module per noun::

    rocketstore store verify data/store --output json

Law: tables on a terminal, JSON for programs, progress on stderr only; how a command ends
is said by `exit_codes`.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn

from rocketstore.cli import exit_codes


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    # No command multiplies matrices: the threads that NumPy makes for that only wait, by turning
    # round for some 20 ms of a core. Spark's workers get the variable too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with _ended_by_interrupt():  # it takes the time in which a user thinks again
            from rocketstore.cli import application
        application.main(arguments)
    except KeyboardInterrupt:  # before the command began, or after its end
        _end()


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """End the process at once at a Ctrl-C: nothing is open yet.

    In callbacks of the import locks Python would only print a `KeyboardInterrupt`, and go on.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or current_thread() is not main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_of_signal: object) -> NoReturn:
    os.write(2, b"rocketstore: interrupted\n")
    os._exit(exit_codes.INTERRUPTED)
