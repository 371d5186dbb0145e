"""What waits in a store: messages to be delivered later, and half messages that nobody has ended.

Law: pure rules, which take numbers and properties wherever they were read: tables, lists and
services that look at the same store say the same.

How derived: ScheduleMessageService.load and TransactionalMessageServiceImpl.check of 4.9.3 (spec
B18, B19). Of each delay level the next entry is kept in ``delayOffset.json``, of half and op topic
in ``consumerOffset.json`` under `TRANSACTION_GROUP`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
ENDED_TAG: Final = "d"
"""Names of 4.9's TransactionalMessageUtil: an op record of this tag names a half that is ended."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_HALF_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""Properties of 4.9's MessageConst; the last one names the half that a copy was made of."""


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

    A check writes it again behind the others, with one more of `check_times`, or with the queue
    offset of its first copy in `first_offset`; `identity` stays the same.
    """

    queue_offset: int
    physical_offset: int
    identity: Hashable
    check_times: int
    first_offset: int | None
    message: Any

    def is_copy_of(self, older: Half) -> bool:
        """Whether it was written in place of another one of the same identity."""
        is_named = self.first_offset in (older.queue_offset, older.first_offset)
        is_named &= self.first_offset is not None
        return self.check_times > older.check_times or is_named


def half_of(
    place: tuple[int, int], born_ms: int, body_crc: int, properties: Mapping[str, str], message: Any
) -> Half:
    """Return a half message by its queue offset and physical offset, and what its record says."""
    # A producer that sends again keeps the key, but not the time; a check keeps both.
    identity = (properties.get("UNIQ_KEY"), born_ms, body_crc)
    times = whole_number(properties.get(CHECK_TIMES), 9) or 0
    return Half(*place, identity, times, whole_number(properties.get(FIRST_HALF_OFFSET)), message)


class OpenHalves:
    """The half messages of one queue that are open, by its records and those of its op queue.

    They are open until an op record names them, a check writes them again, or their message was
    committed, though a crash may have kept the op record from being written.
    """

    def __init__(self) -> None:
        self._open: dict[int, Half] = {}
        self._copies: dict[Hashable, list[int]] = {}
        self._ended: set[int] = set()

    def add(self, half: Half) -> None:
        """Take the next half message of the queue."""
        older = (self._open[at] for at in self._copies.get(half.identity, ()))
        replaced = next((one for one in older if half.is_copy_of(one)), None)
        if replaced is not None:
            self._drop(replaced.queue_offset)
        self._open[half.queue_offset] = half
        self._copies.setdefault(half.identity, []).append(half.queue_offset)
        if half.queue_offset in self._ended:
            self._drop(half.queue_offset)

    def end(self, tags: str | None, body: bytes) -> None:
        """Take an op record, before or after the half message that it names."""
        offset = whole_number(body[:32].decode("ascii", "replace"))
        if tags == ENDED_TAG and offset is not None:
            self._ended.add(offset)
            self._drop(offset)

    def commit(self, prepared_offsets: Iterable[int]) -> None:
        """Take the physical offsets of half messages that committed records name."""
        places = {half.physical_offset: at for at, half in self._open.items()}
        for offset in prepared_offsets:
            if offset in places:
                self._drop(places[offset])

    def _drop(self, queue_offset: int) -> None:
        if (half := self._open.pop(queue_offset, None)) is not None:
            copies = self._copies[half.identity]
            copies.remove(queue_offset)
            if not copies:
                del self._copies[half.identity]

    @property
    def halves(self) -> list[Half]:
        """Those that are open by what was taken so far, in the order of the queue."""
        return [half for half in self._open.values() if half.first_offset not in self._ended]
