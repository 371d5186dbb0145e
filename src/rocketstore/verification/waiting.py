"""What waits in a store: messages to be delivered later, and half messages that nobody has ended.

Law: pure rules, which take numbers and properties wherever they were read: tables, lists and
services that look at the same store say the same.

How derived: ScheduleMessageService.load and TransactionalMessageServiceImpl.check of 4.9.3 (spec
B18, B19). Of each delay level the next entry is kept in ``delayOffset.json``, of half and op topic
in ``consumerOffset.json`` under `TRANSACTION_GROUP`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.format.properties import UNIQ_KEY

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
ENDED_TAG: Final = "d"
"""Names of 4.9's TransactionalMessageUtil: an op record of this tag names a half that is ended."""

PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_HALF_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""Properties of 4.9's MessageConst, the last two of copies that a check has written."""


def waiting_offsets(stored: int | None, first: int, stop: int) -> range:
    """Return the queue offsets that wait in a queue of [first, stop); `stored` is the next one.

    Examples
    --------
    >>> waiting_offsets(5, 0, 12), waiting_offsets(None, 3, 12), waiting_offsets(99, 3, 12)
    (range(5, 12), range(3, 12), range(12, 12))
    """
    return range(min(max(stored or 0, first), stop), stop)


def whole_number(text: str | None, digits: int = 18) -> int | None:
    """Return the number that a property or body is, None where it is none."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= digits):
        return None
    return int(text)


class Half(NamedTuple):
    """A half message; `message` is whatever its reader keeps of it.

    A check writes it again at the end of its queue: that `is_copy`, of the same `identity`, and
    `earlier` are the physical offsets of those that it stands for.
    """

    queue_offset: int
    physical_offset: int
    identity: Hashable
    is_copy: bool
    message: Any
    earlier: tuple[int, ...] = ()


def half_of(
    place: tuple[int, int], born_ms: int, body_crc: int, properties: Mapping[str, str], message: Any
) -> Half:
    """Return a half message by its queue offset and physical offset, and what its record says."""
    # A producer that sends again keeps the key, but not the time; a check keeps both.
    identity = properties.get(UNIQ_KEY), born_ms, body_crc, properties.get(PRODUCER_GROUP)
    is_copy = CHECK_TIMES in properties or FIRST_HALF_OFFSET in properties
    return Half(*place, identity, is_copy, message)


class OpenHalves:
    """The half messages of one queue that are open, by its records and those of its op queue.

    They are open until an op record after them names them or one that they are a copy of, a check
    writes them again, or they were committed, though a crash may have kept the op record away.
    """

    def __init__(self) -> None:
        self._open: dict[int, Half] = {}
        self._same: dict[Hashable, list[int]] = {}  # open ones of an identity, in order
        self._over: set[int] = set()  # hashes of identities: there are many
        self._copies: dict[int, int] = {}

    def add(self, half: Half) -> None:
        """Take the next half message of the queue."""
        same = self._same.get(half.identity)
        if half.is_copy and same:
            older = self._open[same[0]]
            self._drop(older)
            self._copies[older.queue_offset] = half.queue_offset
            half = half._replace(earlier=(*older.earlier, older.physical_offset))
        elif half.is_copy and hash(half.identity) in self._over:
            return  # the answer came while it was written again
        self._open[half.queue_offset] = half
        self._same.setdefault(half.identity, []).append(half.queue_offset)

    def end(self, tags: str | None, body: bytes) -> None:
        """Take the next op record, which stands after the half message that it names."""
        offset = whole_number(body[:32].decode("ascii", "replace")) if tags == ENDED_TAG else None
        while offset in self._copies:
            offset = self._copies[offset]
        if offset in self._open:
            self._over.add(hash(self._open[offset].identity))
            self._drop(self._open[offset])

    def commit(self, prepared_offsets: Iterable[int]) -> None:
        """Take the physical offsets of half messages that committed records name."""
        committed = set(prepared_offsets)
        for half in self.halves:
            if not committed.isdisjoint((half.physical_offset, *half.earlier)):
                self._drop(half)

    def _drop(self, half: Half) -> None:
        del self._open[half.queue_offset]
        same = self._same[half.identity]
        same.remove(half.queue_offset)
        if not same:
            del self._same[half.identity]

    @property
    def halves(self) -> list[Half]:
        """Those that are open by what was taken so far, in the order of the queue."""
        return list(self._open.values())
