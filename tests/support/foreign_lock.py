"""The lock of a store in hands that have no number here, as those of another container."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SET_LOCK_OF_DESCRIPTOR = getattr(fcntl, "F_OFD_SETLK", 37)
"""A CPython that was built with an old C library has no name for what the kernel takes."""


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold the lock as a descriptor's: the kernel tells of it, and of no process."""
    descriptor = os.open(root / "lock", os.O_RDWR)
    try:
        wanted = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
        fcntl.fcntl(descriptor, SET_LOCK_OF_DESCRIPTOR, wanted)
        yield
    finally:
        os.close(descriptor)
