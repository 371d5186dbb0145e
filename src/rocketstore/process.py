"""What one process has: a limit of files and sockets, and objects that no other can copy."""

from __future__ import annotations

import contextlib
import os
import resource
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from rocketstore.events import get_logger

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_Made = TypeVar("_Made", int, Path)
_log: Final = get_logger(__name__)

_MANY_DESCRIPTORS: Final = 1 << 20
"""Stands for no limit."""

_OF_A_LOOP: Final = 12
"""Descriptors that uvloop takes as it starts, and two or three to spare."""


def most_descriptors() -> int:
    """Return how many files and sockets this process may have open at present."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MANY_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


@cache
def _most_maps() -> int:
    """Return how many pieces of memory Linux maps for a process, of files and others."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text("ascii"))
    except (OSError, ValueError):
        return _MANY_DESCRIPTORS


def most_mapped_files() -> int:
    """Return how many files this process may have mapped at present; each has a descriptor too."""
    return min(most_descriptors(), _most_maps())


def raise_descriptors(wanted: int = _MANY_DESCRIPTORS) -> int:
    """Ask the system for so many files and sockets, and return how many it grants.

    A Java VM takes all that it may have as it starts.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MANY_DESCRIPTORS)
    wanted = min(wanted, most)
    before = most_descriptors()
    if wanted > before:
        with contextlib.suppress(OSError, ValueError):  # it may refuse what its own limit grants
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _log.info("descriptors.raised", soft_limit=wanted, before=before)
    return most_descriptors()


def leaves_descriptors(count: int) -> bool:
    """Whether `count` are no more than half of what this process may have, raised if need be."""
    is_short = count > most_descriptors() // 2
    return not is_short or count <= raise_descriptors(4 * count) // 2


def new_event_loop() -> AbstractEventLoop:
    """Return the loop of a server: uvloop's where it is installed, or Python's.

    An `OSError` where the process may not open the files that it needs: uvloop would end it.
    """
    try:
        import uvloop  # noqa: PLC0415 - the extra "broker"
    except ImportError:
        import asyncio  # noqa: PLC0415 - few need it

        return asyncio.new_event_loop()
    with contextlib.ExitStack() as stack:
        for _ in range(_OF_A_LOOP):
            stack.enter_context(Path(os.devnull).open("rb", buffering=0))
    loop: AbstractEventLoop = uvloop.new_event_loop()
    return loop


def give_to_owner(made: _Made, directory: Path) -> _Made:
    """Let what root made belong to its directory's owner; a link in its place is not followed."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a root that may not, as over NFS
            status = directory.stat()
            give = os.lchown if isinstance(made, Path) else os.fchown
            give(made, status.st_uid, status.st_gid)
    return made


class OfOneProcess:
    """Base of an open store and its parts, of which no other process can have a copy."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} belongs to this process: give the other one the store's path")
