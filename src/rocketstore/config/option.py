"""What is known about one option: its meaning, unit, limits and effect.

The facts stand in the annotation of each field of `StoreConfig`, so that the documentation, the
range checks, ``config show`` and the parser of ``broker.conf`` read one and the same table.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

INT32_MAX: Final = 2**31 - 1


class Group(enum.Enum):
    """What an option changes; the order is that of the documentation."""

    PLACE = "where files lie"
    SIZE = "sizes of files"
    LIMIT = "limits"
    DURABILITY = "durability"
    PERFORMANCE = "performance"
    READING = "reading"
    INDEX = "index"
    RECOVERY = "recovery"
    RETENTION = "retention"
    LATER = "accepted, without effect so far"


class Option(NamedTuple):
    """Facts about one option.

    Attributes
    ----------
    group
        Section of the documentation.
    doc
        What it is, and when to change it.
    unit
        ``ms``, ``bytes``, ``%``, ``hours``, ``count``, … or ``-``.
    low, high
        Inclusive limits of a number, None for none.
    ours
        True where 4.9's ``broker.conf`` does not know the key.
    """

    group: Group
    doc: str
    unit: str = "-"
    low: float | None = None
    high: float | None = INT32_MAX
    ours: bool = False
