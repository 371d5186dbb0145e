"""Unique keys for transactions whose message has none, in the layout of a Java client's.

Address, process, a number of this run, milliseconds since the month began, a counter: 32
hexadecimal digits, from which 4.9's tools tell when a message was made.
Source: MessageClientIDSetter of 4.9.
"""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rocketstore.format.host import encode_host

if TYPE_CHECKING:
    from collections.abc import Callable

_32_BITS = 0xFFFFFFFF
_16_BITS = 0xFFFF


class TransactionIds:
    """Makes unique keys."""

    def __init__(self, store_host: str, clock: Callable[[], int]) -> None:
        address = encode_host(store_host)[:-4]
        self._start = (address[:2] + address[-2:]).hex()
        self._run = os.urandom(4).hex()
        self._clock = clock
        self._count = itertools.count()

    def next(self) -> str:
        """Return a key that no other call returns."""
        now_ms = self._clock()
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        elapsed_ms = (now_ms - int(month.timestamp() * 1000)) & _32_BITS
        count = next(self._count) & _16_BITS
        number = f"{os.getpid() & _16_BITS:04x}{self._run}{elapsed_ms:08x}{count:04x}"
        return (self._start + number).upper()
