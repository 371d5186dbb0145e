"""A reader beside a writer sees memory, wherever the files are: no disk is waited for."""

from support.memory import tmp_path

__all__ = ["tmp_path"]
"""A directory in memory."""
