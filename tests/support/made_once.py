"""Directories that many tests begin with: each is made once in a process, and copied for a test."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.trees import copy_tree

_MADE: list[Path] = []


def made_directories() -> list[Path]:
    """Return the temporary directories made so far; conftest removes them at the end."""
    return _MADE


def new_directory() -> Path:
    """Return a temporary directory that stays until the process ends."""
    _MADE.append(Path(tempfile.mkdtemp(prefix="rocketstore-made-once-")))
    return _MADE[-1]


def made_once(make: Callable[..., object]) -> Callable[..., Path]:
    """Have `make(root, …)` make each directory once, with what it puts beside; return a copy's."""

    @functools.cache
    def first(name: str, *arguments: Any) -> Path:
        place = new_directory()
        make(place / name, *arguments)
        return place

    def copied(root: Path, *arguments: Any) -> Path:
        copy_tree(first(root.name, *arguments), root.parent)
        return root

    return copied
