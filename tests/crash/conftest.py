"""Fixtures of simulated accidents; the kills of `test_kill` happen to stores on a disk."""

from support.memory import root, tmp_path

__all__ = ["root", "tmp_path"]
"""A directory in memory."""
