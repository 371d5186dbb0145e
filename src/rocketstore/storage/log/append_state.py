"""Where a CommitLog ends and where each queue goes on: plain Python, or compiled where it was.

The compiled twin (``_append.c``) is optional: it is built with the package where there is a C
compiler, and left out elsewhere or with ``ROCKETSTORE_KERNELS=off``. It has the same attributes and
one method more, ``append``, which does the common case of `CommitLog.append_plainly` in a quarter
of the time and calls that for everything else.

Law: both leave the same bytes and the same numbers (property test).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rocketstore.scan import kernels

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from rocketstore.storage.files.mapped_file import MappedFile
    from rocketstore.units import QueueKey


class PlainQueueCell:
    """The next offset of one queue, and what every record of it repeats.

    Attributes
    ----------
    topic
        As records hold it.
    next_offset
        Queue offset of the next message.
    first_offset
        `next_offset` when the store was opened; the difference is the number of messages put.
    stored_bytes
        Bytes of all records put since.
    """

    __slots__ = (
        "first_offset",
        "key",
        "next_offset",
        "queue_id",
        "stored_bytes",
        "topic",
        "topic_size",
    )

    def __init__(self, key: QueueKey, topic: bytes, queue_id: int, next_offset: int) -> None:
        self.key = key
        self.topic = topic
        self.topic_size = len(topic)
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.first_offset = next_offset
        self.stored_bytes = 0


class PlainAppendState:
    """The end of a CommitLog; base of `CommitLog`.

    Parameters
    ----------
    clock
        The time in ms.
    is_system_clock
        Whether that is the system's clock.
    crc32
        The function that makes checksums of bodies.
    store_host
        The store's address as records hold it.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        is_system_clock: bool,  # noqa: FBT001 - positional like its compiled twin
        crc32: Callable[[bytes], int],
        store_host: bytes,
    ) -> None:
        del is_system_clock, crc32
        self._clock = clock
        self.store_host = store_host
        self.max_offset = 0
        self.last_store_timestamp_ms = 0
        self.locked_since_ms = 0
        # Set by the first append, which finds no room below a limit of -1.
        self._file = cast("MappedFile", None)
        self._mapping = cast("mmap.mmap", None)
        self._base = 0
        self._position = 0
        self._limit = -1
        self._busy = 0


def _chosen() -> tuple[Any, Any]:
    """Return the compiled classes, or the plain ones where there are none."""
    if kernels.is_compiled():
        try:
            from rocketstore.storage.log import _append  # noqa: PLC0415 - optional
        except ImportError:
            return PlainQueueCell, PlainAppendState
        # One that was built of older sources knows nothing of puts, or not how they wait.
        if hasattr(getattr(_append, "PutState", None), "append_encoded"):
            return _append.QueueCell, _append.AppendState
    return PlainQueueCell, PlainAppendState


if TYPE_CHECKING:
    QueueCell = PlainQueueCell
    AppendState = PlainAppendState
else:
    QueueCell, AppendState = _chosen()

IS_COMPILED = AppendState is not PlainAppendState
"""Whether `CommitLog.append` is the compiled one."""
