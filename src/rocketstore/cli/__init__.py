"""The ``rocketstore`` command: ``rocketstore <noun> <verb> [STORE]``.

One module per noun::

    rocketstore store verify data/store --output json

Law: tables on a terminal, JSON for programs, progress on stderr only; how a command ends
is said by `exit_codes`.
"""

import os
import sys
from typing import NoReturn

from rocketstore.cli import exit_codes


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    # No command multiplies matrices: the threads that NumPy makes for that only wait, by turning
    # round for some 20 ms of a core. Spark's workers get the variable too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from rocketstore.cli import application
    except KeyboardInterrupt:  # the import takes the time in which a user thinks again
        sys.stderr.write("rocketstore: interrupted\n")
        sys.exit(exit_codes.INTERRUPTED)
    application.main(arguments)
