"""Half messages: which of them are still open, known from their records and those that end them.

Law: numbers and properties are taken wherever they were read: tables, lists and services that look
at the same store say the same.

How derived: TransactionalMessageServiceImpl.check of 4.9.3 (spec B19). How far half and op topic
were looked through is kept in ``consumerOffset.json`` under `TRANSACTION_GROUP`.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rocketstore.format.properties import UNIQ_KEY

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
ENDED_TAG: Final = "d"
"""Names of 4.9's TransactionalMessageUtil: an op record of this tag names a half that is ended."""

PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_HALF_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""Properties of 4.9's MessageConst, the last two of copies that a check has written."""


def decimal_number(text: str | None, digits: int = 18) -> int | None:
    """Return a property or body as a number, None where it is not one."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= digits):
        return None
    return int(text)


class Identity(NamedTuple):
    """What a half message, its copies and its final message have in common.

    A producer that sends again keeps the key, but not the time; a check keeps both.
    """

    unique_key: str | None
    born_ms: int
    body_crc: int
    producer_group: str | None


class Half(NamedTuple):
    """A half message.

    A check writes it again at the end of its queue: that `is_copy`, of the same `identity`.
    """

    queue_offset: int
    physical_offset: int
    identity: Identity
    is_copy: bool


def half_of(
    place: tuple[int, int], born_ms: int, body_crc: int, properties: Mapping[str, str]
) -> Half:
    """Return a half message by its queue offset and physical offset, and what its record says."""
    is_copy = CHECK_TIMES in properties or FIRST_HALF_OFFSET in properties
    return Half(*place, identity_of(born_ms, body_crc, properties), is_copy)


def identity_of(born_ms: int, body_crc: int, properties: Mapping[str, str]) -> Identity:
    """Return the identity in the record of a half or final message."""
    return Identity(properties.get(UNIQ_KEY), born_ms, body_crc, properties.get(PRODUCER_GROUP))


def ended_by(tags: str | None, body: bytes) -> list[int]:
    """Return the half messages that an op record of this tag and body ends.

    One for 4.9, several for 5.x, which has a comma after each.
    """
    texts = body.decode("ascii", "replace").split(",") if tags == ENDED_TAG else []
    return [number for text in texts if (number := decimal_number(text)) is not None]


def is_final_of(
    half: Half, prepared_offset: int, identity: Identity, is_lost: Callable[[int], bool]
) -> bool:
    """Return whether a committed message is that of a half message, or of a copy of it.

    A later copy that the final message names counts if it `is_lost`: a power cut may have lost it
    and kept later messages.
    """
    if prepared_offset == half.physical_offset or identity != half.identity:
        return prepared_offset == half.physical_offset
    return half.is_copy if prepared_offset < half.physical_offset else is_lost(prepared_offset)


class Halves:
    """Which half messages of one queue have ended, and which copy stands for which.

    Takes messages in the order of the log. A copy without a link to its original stands for the
    oldest open half message of its identity. If all of these have ended, so has the copy: the
    answer came while it was written.

    Before queue offset `base` nothing is open; `stop` is the one after the last that was taken.
    """

    def __init__(self, base: int = 0) -> None:
        self.base = self.stop = base
        self._ended: set[int] = set()
        self._moved: dict[int, Half] = {}
        self._copies: dict[Identity, Half] = {}
        self._same: dict[Identity, list[int]] = {}  # those of an identity without a copy

    def take(self, half: Half) -> int | None:
        """Take the next half message of the queue; return the one that it stands for, if any."""
        self.stop = half.queue_offset + 1
        same = self._same.setdefault(half.identity, [])
        older = next(filter(self.is_open, same), None) if half.is_copy else None
        if half.is_copy and same:
            same.remove(same[0] if older is None else older)
            if older is None:
                self._ended.add(half.queue_offset)
        if half.is_copy and self.is_open(half.queue_offset):
            self.move(older, half)
        same.append(half.queue_offset)
        return older

    def move(self, queue_offset: int | None, copy: Half) -> None:
        """Let a copy stand for a half message from now on."""
        if queue_offset is not None:
            self._moved[queue_offset] = copy
        self._copies[copy.identity] = copy

    def end(self, queue_offset: int) -> int:
        """End a half message, or the copy that stands for it; return which."""
        while (newer := self._moved.get(queue_offset)) is not None:
            queue_offset = newer.queue_offset
        if queue_offset >= self.base:
            self._ended.add(queue_offset)
        return queue_offset

    def is_open(self, queue_offset: int) -> bool:
        """Whether this very half message waits for its end."""
        return not (
            queue_offset < self.base or queue_offset in self._ended or queue_offset in self._moved
        )

    def standing(self, half: Half) -> Half | None:
        """Return the copy that stands for a half message, itself if it is open, None if ended."""
        while (newer := self._moved.get(half.queue_offset)) is not None:
            half = newer
        if self.is_open(half.queue_offset):
            return half
        newer = self._copies.get(half.identity) if half.queue_offset < self.base else None
        return newer if newer is not None and self.is_open(newer.queue_offset) else None
