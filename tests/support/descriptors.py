"""Which files this process has open: what a test counts to see that nothing was left behind."""

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["listening", "open_descriptors", "open_sockets"]


def open_descriptors(directory: Path) -> int:
    """Return how many descriptors of files in or below `directory` this process has.

    Others are not counted: they come and go with the garbage of earlier tests and other threads.
    """
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists, or another thread's
            links.append(str(entry.readlink()))
    return sum(link.startswith(f"{directory}/") for link in links)


def open_sockets() -> set[tuple[str, str]]:
    """Return the sockets and selectors that this process has open."""
    links = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists
            links.add((entry.name, str(entry.readlink())))
    return {one for one in links if one[1].startswith(("socket:", "anon_inode:"))}


def listening() -> set[object]:
    """Return the addresses at which this process can be connected to."""
    found = set()
    for number, link in open_sockets():
        if link.startswith("socket:"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(number))) as one:
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(one.getsockname())
    return found
