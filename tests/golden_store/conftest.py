"""Golden stores are compared by their bytes: no disk is waited for."""

from support.memory import tmp_path

__all__ = ["tmp_path"]
"""A directory in memory."""
