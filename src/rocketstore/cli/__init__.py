"""The ``rocketstore`` command: ``rocketstore <noun> <verb> [STORE]``.

One module per noun. Tables on a terminal, JSON for programs, progress on stderr only. Exit
codes: 0 fine, 1 something found or changed, 2 usage, 3 unreachable, 4 damage is in the store now,
5 in use by another writer.
"""

from rocketstore.cli.application import main

__all__ = ["main"]
