"""The ``rocketstore`` command: ``rocketstore <noun> <verb> [STORE]``.

One module per noun::

    rocketstore store verify data/store --output json

Law: tables on a terminal, JSON for programs, progress on stderr only; how a command ends
is said by `exit_codes`. Nothing is imported before `main`, where a Ctrl-C would show a traceback.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    # No command multiplies matrices: the threads that NumPy makes for that only wait, by turning
    # round for some 20 ms of a core. Spark's workers get the variable too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        import signal
        from threading import current_thread, main_thread

        before = signal.getsignal(signal.SIGINT)
        is_ours = before is signal.default_int_handler and current_thread() is main_thread()
        # The next import takes the time in which a user thinks again; nothing is open yet. In
        # callbacks of the import locks Python would only print a `KeyboardInterrupt`, and go on.
        if is_ours:
            signal.signal(signal.SIGINT, _end)
        from rocketstore.cli import application

        if is_ours:
            signal.signal(signal.SIGINT, before)
        application.main(arguments)
    except KeyboardInterrupt:  # before the command began, or after its end
        _end()


def _end(*_of_signal: object) -> NoReturn:
    os.write(2, b"rocketstore: interrupted\n")
    os._exit(130)  # `exit_codes.INTERRUPTED`, which may not be imported yet
