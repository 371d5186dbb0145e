"""Faults are simulated, and a killed process leaves to memory what it leaves to a disk.

So these stores wait for no disk, which took two thirds of their time; a disk that gets full is one
of its own (`test_full_disk`).
"""

from support.interrupts import watchdog
from support.memory import root, tmp_path

__all__ = ["root", "tmp_path", "watchdog"]
