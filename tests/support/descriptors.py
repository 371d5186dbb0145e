"""Which files this process has open: what a test counts to see that nothing was left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["open_descriptors"]


def open_descriptors(directory: Path) -> int:
    """Return how many descriptors of files in or below `directory` this process has.

    Others are not counted: they come and go with the garbage of earlier tests and other threads.
    """
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists, or another thread's
            links.append(str(entry.readlink()))
    return sum(link.startswith(f"{directory}/") for link in links)
