"""The CommitLog as bytes: for whoever brings records that already state their offsets.

Law: it gives the same bytes, offsets and order as `CommitLog.append` would, under the same lock;
records that were made for another place are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import numpy.typing as npt

    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.writer import StoreWriter
    from rocketstore.units import QueueKey


class LogPlace(NamedTuple):
    """Where the log ends.

    Attributes
    ----------
    offset
        Physical offset behind the last byte.
    file_start
        Of the last file; -1 without files.
    """

    offset: int
    file_start: int
    file_size: int


class RecordLog:
    """The log of an open store."""

    def __init__(self, log: CommitLog, writer: StoreWriter) -> None:
        self._log = log
        self._writer = writer

    @property
    def end(self) -> LogPlace:
        """Where the next record goes, if it fits in the last file."""
        last = self._log.files.last()
        return LogPlace(
            self._log.max_offset, -1 if last is None else last.base, self._log.file_size
        )

    @property
    def last_store_timestamp_ms(self) -> int:
        """Of the last record; later ones may not be earlier."""
        return self._log.last_store_timestamp_ms

    def next_queue_offset(self, key: QueueKey) -> int:
        """Return the offset that the next message of a queue will get."""
        return self._log.next_queue_offset(key)

    def slice(self, offset: int, size: int) -> memoryview | None:
        """Return a view of written bytes; None where they are not, or cross into the next file."""
        return self._log.slice(offset, size)

    def append(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        offset: int,
        queues: Mapping[QueueKey, tuple[int, int]],
        store_timestamp_ms: int,
    ) -> None:
        """Append complete records; see `CommitLog.append_placed`.

        Raises
        ------
        StoreError
            The store takes no messages now, says why; or they are made for another place.
        StoreFullError
            A file was needed and could not be made.
        """
        refused = self._writer.refusal()
        if refused is not None:
            raise StoreError(f"the store takes no messages: {refused.detail}")
        self._log.append_placed(data, starts, offset, queues, store_timestamp_ms)

    def rewrite(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Give written bytes at physical offsets another content, durably.

        For records that a crash has left in part, and nothing else: what was dispatched stays.

        Raises
        ------
        StoreError
            A place is not written, or in a file that is only read.
        FlushFailedError
            Not all of it is on the disk.
        """
        self._writer.check_process()
        files = {}
        for offset, data in pieces:
            file = self._log.files.find(offset)
            if file is None or not file.writable or file.slice(offset - file.base, 1) is None:
                raise StoreError(f"physical offset {offset} is not among the written bytes")
            file.write_bytes(offset - file.base, data)
            files[file.base] = file
        for file in files.values():
            file.sync()
