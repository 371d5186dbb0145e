"""Bytes of a master's log that are not yet in ours: whole records go on, the rest waits.

Law: a byte reaches the log only as part of a record whose every check passed, its checksum
included (K-H3), or of a BLANK that fills its file. What waits is never more than one of these.
How derived: HAClient.dispatchReadRequest of 4.9 (spec B21.3), which appends what it gets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocketstore.replication.protocol import PeerError, Trouble
from rocketstore.scan import kernels
from rocketstore.scan.columns import Column, StopReason, new_columns

_ROWS: Final = 1024
_CHECK_CRC: Final = True
_LEAST_BYTES: Final = 8
"""Length and magic number: fewer bytes say nothing about a record."""


@dataclass(eq=False)
class Intake:
    """Bytes that follow `end`, the end of a log with files of `file_size` bytes.

    `append` gets an offset, whole records of one file, and the store time of the last of them; a
    record may have `longest` bytes.
    """

    end: int
    file_size: int
    longest: int
    append: Callable[[int, memoryview, int], None]

    def __post_init__(self) -> None:
        self._waiting = bytearray()
        self._store_time_ms = 0
        self._rows = new_columns(_ROWS)

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        self._waiting += data

    def append_whole(self) -> None:
        """Append the records that are whole by now."""
        while (size := self._whole_bytes()) > 0:
            with memoryview(self._waiting) as waiting, waiting[:size] as records:
                self.append(self.end, records, self._store_time_ms)
            self.end += size
            del self._waiting[:size]

    def _whole_bytes(self) -> int:
        """Return how many of the waiting bytes are whole and intact, of one file."""
        file_stop = self.file_size - self.end % self.file_size
        buffer = np.frombuffer(self._waiting, np.uint8)
        stop = min(len(buffer), file_stop)
        position, reason = 0, StopReason.END
        while position < stop and reason is StopReason.END:
            count, position, found = kernels.walk(
                buffer, position, stop, self.end, file_stop, _CHECK_CRC, self._rows
            )
            reason = StopReason(found)
            if count:
                self._store_time_ms = int(self._rows[count - 1, Column.STORE_TIMESTAMP])
        if position or reason is StopReason.END:
            return position  # what stopped the walk is judged once these are appended
        return self._whole_at_break(file_stop, reason)

    def _whole_at_break(self, file_stop: int, reason: StopReason) -> int:
        """Return the size of a whole BLANK where the walk does not begin; raise for damage."""
        waiting = len(self._waiting)
        if file_stop < _LEAST_BYTES and reason is StopReason.UNWRITTEN:
            return file_stop if waiting >= file_stop else 0  # too little room for a BLANK
        if waiting < _LEAST_BYTES <= file_stop:
            return 0
        if reason is StopReason.BLANK:  # long where a batch did not fit
            return file_stop if waiting >= file_stop else 0
        if reason is not StopReason.TRUNCATED:
            raise PeerError(
                Trouble.DAMAGED,
                f"at physical offset {self.end}: {reason.name}",
                hint="run `rocketstore store verify` on the master; nothing of it was appended",
            )
        needed = int.from_bytes(self._waiting[:4], "big")
        if waiting >= needed:
            return needed
        if needed > self.longest:
            raise PeerError(
                Trouble.DAMAGED,
                f"a record of {needed} bytes at physical offset {self.end}, longer than the "
                f"{self.longest} that are taken",
                hint="set maxMessageSize of the slave to the master's",
            )
        return 0
