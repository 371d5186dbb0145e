"""The ``rocketstore`` command: ``rocketstore <noun> <verb> [STORE]``.

One module per noun. Tables on a terminal, JSON for programs, progress on stderr only; `exit_codes`
says how commands end.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from rocketstore.cli import exit_codes


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    try:
        from rocketstore.cli import application
    except KeyboardInterrupt:  # the import takes the time in which a user thinks again
        sys.stderr.write("rocketstore: interrupted\n")
        sys.exit(exit_codes.INTERRUPTED)
    application.main(arguments)
