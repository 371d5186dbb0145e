"""A disk that tells a test of each call before it makes it: to fail it, or to end there."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketstore.storage.files.disk import Disk

Before = Callable[[str, Path], object]
"""Told the name of a call and the path that it changes; what it raises, the call raises."""


class HookedDisk(Disk):
    """The real disk; `before` hears of each call that makes, changes, syncs or deletes something.

    Whether a file gets its name at once or later, it is made by ``create_file``.
    """

    def __init__(self, before: Before) -> None:
        self.before = before


def _hooked(name: str, told: str) -> Callable[..., Any]:
    call = getattr(Disk, name)

    @functools.wraps(call)
    def work(self: HookedDisk, *arguments: Any, **named: Any) -> Any:
        self.before(told, [one for one in arguments if isinstance(one, Path)][-1])
        return call(self, *arguments, **named)

    return work


HookedDisk.create_unnamed = _hooked("create_unnamed", "create_file")  # type: ignore[method-assign]
for _name in (
    "create_file", "give_name", "allocate", "write_at", "zero_range", "fdatasync",
    "fsync_directory", "make_directory", "replace", "exchange", "unlink",
    "remove_directory",
):  # fmt: skip
    setattr(HookedDisk, _name, _hooked(_name, _name))


class KilledError(Exception):
    """The process would be gone now."""


def ends_after(calls: int, error: type[BaseException]) -> Before:
    """Return what carries out so many calls of a disk, and raises an error at every later one."""
    left = itertools.count(calls, -1)

    def before(_call: str, _path: Path) -> None:
        if next(left) <= 0:
            raise error

    return before


def dying_disk(calls: int) -> HookedDisk:
    """Return a disk that carries out so many calls, and fails every later one: it was a kill."""
    return HookedDisk(ends_after(calls, KilledError))
