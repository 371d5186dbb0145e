"""Tests of units wait for no disk: half of their time went by in syncs.

They look at what is written, and at which calls are made; what a sync is good for is shown by
tests/crash with a simulated disk. Files themselves (unit/storage/files) are tested on the disk.
"""

from support.memory import root, tmp_path

__all__ = ["root", "tmp_path"]
