"""Outcomes of a put and of a get: expected outcomes are values, with Java's names.

Source: PutMessageStatus, GetMessageStatus, PutMessageResult, GetMessageResult of 4.9.
"""

import struct
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple, Self

import msgspec

from rocketstore.errors import PutFailedError
from rocketstore.format.host import encode_message_id, encode_message_ids
from rocketstore.format.stored_message import StoredMessage


class PutMessageStatus(Enum):
    """Status of a put; the causes are in docs/how-it-works/append.md."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGECACHE_BUSY = "OS_PAGECACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"


FIRST_IN_MEMORY: Final = 1 << 62
"""Physical offset of the first message put to memory: no CommitLog gets so long."""


class NotTakenError(Exception):
    """A put that is answered with a status; it becomes the result of the put."""

    def __init__(self, status: PutMessageStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


_STORED: Final = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)
_REFUSED_AGAIN: Final = (
    PutMessageStatus.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
)


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a put (PutMessageResult and AppendMessageResult of 4.9).

    Attributes
    ----------
    physical_offset
        Where the record, or the first of a batch, begins in the CommitLog; -1 when nothing was
        stored.
    queue_offset
        Its offset in the queue; 0 for prepared and rollback messages.
    size, message_count
        Bytes stored and messages, of all records of a batch.
    store_host
        Host of the store as records hold it.
    detail
        What was refused and why, for a status that is not ``PUT_OK``; for a stored message, that
        its properties leave too little space for a copy to be given back.
    packed_sizes
        Of a batch, the bytes of each record, 4 bytes each; `record_sizes` reads them.
    """

    status: PutMessageStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size: int = 0
    store_timestamp_ms: int = 0
    store_host: bytes = b""
    message_count: int = 1
    detail: str | None = None
    packed_sizes: bytes = b""

    @property
    def is_stored(self) -> bool:
        """Whether the message is in the log, which a time-out of the flush does not change."""
        return self.status in _STORED

    @property
    def retriable(self) -> bool:
        """Whether it was not stored, and the same put may be taken when the cause is gone."""
        return self.status not in _STORED + _REFUSED_AGAIN

    def raise_for_status(self) -> Self:
        """Return this result if its status is ``PUT_OK``.

        Raises
        ------
        PutFailedError
            It is another one; the error says which, why, and whether the message is in the log.
        """
        if self.status is PutMessageStatus.PUT_OK:
            return self
        what = "the message was not stored"
        hint = "put it again when the cause is gone"
        if self.is_stored:
            what = f"the message is in the log at {self.physical_offset}, but not as safe as asked"
            hint = "do not put it again, it would be there twice"
        elif not self.retriable:
            hint = "it would be refused again: change the message, or the limit that is named"
        why = "" if self.detail is None else f": {self.detail}"
        raise PutFailedError(
            f"{self.status.name}: {what}{why}",
            hint=hint,
            status=self.status,
            is_stored=self.is_stored,
            retriable=self.retriable,
        )

    @property
    def message_id(self) -> str:
        """Offset message id; of a batch all ids, separated by commas; empty when not stored."""
        if self.physical_offset < 0:
            return ""
        if not self.packed_sizes:
            return encode_message_id(self.store_host, self.physical_offset)
        return encode_message_ids(self.store_host, self.record_offsets)

    @property
    def record_sizes(self) -> list[int]:
        """Bytes of each record stored; they stand one after the other."""
        if self.physical_offset < 0:
            return []
        sizes = struct.unpack(f">{len(self.packed_sizes) // 4}i", self.packed_sizes)
        return list(sizes) or [self.size]

    @property
    def record_offsets(self) -> list[int]:
        """Physical offset of each record stored."""
        return list(accumulate(self.record_sizes, initial=self.physical_offset))[:-1]


class GetMessageStatus(Enum):
    """What a get found; the causes are in docs/how-it-works/reading.md."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult(NamedTuple):
    """A page of messages of one queue.

    Attributes
    ----------
    next_offset
        Queue offset to ask for next.
    min_offset, max_offset
        Of the queue at the time of the call; `max_offset` is one past the last entry.
    skipped_entries
        Entries stepped over because their record is lost or they are filler.
    """

    status: GetMessageStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    skipped_entries: int = 0


class GetRawResult(NamedTuple):
    """A page of one queue as `message_count` raw records, copied back to back into one buffer.

    So a pull response carries them.
    """

    status: GetMessageStatus
    records: bytes | bytearray
    message_count: int
    next_offset: int
    min_offset: int
    max_offset: int
    skipped_entries: int = 0


class GetViewsResult(NamedTuple):
    """A page of one queue as views of raw records, which are copied nowhere.

    A view keeps its file's memory map alive while it lives.
    """

    status: GetMessageStatus
    records: list[memoryview]
    next_offset: int
    min_offset: int
    max_offset: int
    skipped_entries: int = 0
