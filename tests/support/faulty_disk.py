"""A disk whose calls fail when a test says so.

`FaultyDisk(fails)` asks `fails` before every call; what it returns is raised as the system's error.
The faults that the store promises to survive, and how, are listed in docs/how-it-works/faults.md.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rocketstore.storage.files.disk import NO_SPACE_ERRORS, no_space_error
from support.hooked_disk import HookedDisk

Fails = Callable[[str, Path, int], int | None]
"""From the name of a call, its path and how many like it came before, to an errno or None."""


class FaultyDisk(HookedDisk):
    """The real disk, with faults.

    Attributes
    ----------
    calls
        How often each call was made.
    failures
        The calls that failed, in order.
    """

    def __init__(self, fails: Fails) -> None:
        super().__init__(self._may_fail)
        self.fails = fails
        self.calls: Counter[str] = Counter()
        self.failures: list[tuple[str, Path]] = []
        self._lock = threading.Lock()

    def _may_fail(self, call: str, path: Path) -> None:
        with self._lock:
            number = self.calls[call]
            self.calls[call] += 1
            code = self.fails(call, path, number)
            if code is None:
                return
            self.failures.append((call, path))
        if code in NO_SPACE_ERRORS and call in {"allocate", "write_at"}:
            # As `Disk` itself says it.
            raise no_space_error(path, 0) from OSError(code, os.strerror(code), str(path))
        raise OSError(code, os.strerror(code), str(path))


def nth(call: str, number: int, code: int = errno.EIO, *, below: str = "") -> Fails:
    """Return the fault "call `number` (from 0) on a path that contains `below`, and all after"."""
    seen = 0

    def fails(name: str, path: Path, _number: int) -> int | None:
        nonlocal seen
        if name != call or below not in str(path):
            return None
        seen += 1
        return code if seen > number else None

    return fails


def once(fails: Fails) -> Fails:
    """Return the same fault, only the first time."""
    happened = False

    def fails_once(call: str, path: Path, number: int) -> int | None:
        nonlocal happened
        code = None if happened else fails(call, path, number)
        happened = happened or code is not None
        return code

    return fails_once
