"""Which half messages have ended, which copy stands for which, and where nothing is open any more.

Two offsets of the group `GROUP`, which 4.9 keeps too, bound what has to be read: before the one in
the half topic everything has ended or was moved to the tail by a check, before the one in the op
topic every op message names such a half message.

Law: a ledger is a value that others fill; it knows no store, no thread and no clock. `read_ledger`
fills one from a store that anybody may write: it changes nothing.

How derived: TransactionalMessageServiceImpl.fillOpRemoveMap and calculateOpOffset of 4.9 (spec
B19), which keep the same in maps for one turn of the check. What links a copy to the half message
it stands for is not stored there: both could be committed. Here they are matched, in order, by
what they have in common.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.config import parse_delay_levels
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.storage.log.prepared import delayed
from rocketstore.transaction.records import (
    GROUP,
    HALF,
    OP,
    Identity,
    ended_by,
    final_record,
    identity_of,
    is_copy,
    is_final_of,
    real_queue,
)
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rocketstore.message import StoredMessage
    from rocketstore.native.log_end import Record
    from rocketstore.storage.reading.reader import Reader

PAGE_MESSAGES: Final = 32
"""Messages read at a time, as 4.9 does (OP_MSG_PULL_NUMS)."""

_ALL: Final = 1 << 30
"""More messages than ever carry one unique key."""


class Place(NamedTuple):
    """Where a half message lies: in its queue, and in the log."""

    queue_offset: int
    physical_offset: int


class Ledger:
    """What is known of the half messages from `base` on; before it nothing stands open.

    Attributes
    ----------
    base
        Half queue offset before which every half message has ended or was moved.
    op_base, op_read
        Op queue offsets: before the first every op names a half message before `base`; the second
        is the one to read next.
    """

    def __init__(self, base: int, op_base: int) -> None:
        self.base = base
        self.op_base = self.op_read = op_base
        self._ended: set[int] = set()
        self._moved: dict[int, Place] = {}
        self._copies: dict[Identity, Place] = {}
        self._ops: dict[int, int] = {}

    def note_ended(self, queue_offset: int, identity: Identity | None = None) -> None:
        """Take down that a half message has ended, or is lost."""
        if queue_offset >= self.base:
            self._ended.add(queue_offset)
        if identity is not None:
            self._copies.pop(identity, None)

    def note_op(self, op_offset: int, queue_offset: int | None) -> None:
        """Take down an op message; None for one that names nothing."""
        if op_offset >= self.op_base:
            self._ops[op_offset] = -1 if queue_offset is None else queue_offset
        if queue_offset is not None:
            self.note_ended(queue_offset)

    def note_moved(self, queue_offset: int, copy: Place, identity: Identity) -> None:
        """Take down that a copy stands for a half message from now on."""
        if queue_offset >= self.base:
            self._moved[queue_offset] = copy
        self._copies[identity] = copy

    def has_ended(self, queue_offset: int) -> bool:
        """Whether this very half message was ended; one that was moved was not."""
        return queue_offset in self._ended

    def is_open(self, queue_offset: int) -> bool:
        """Whether this very half message waits for its end."""
        return not (
            queue_offset < self.base or queue_offset in self._ended or queue_offset in self._moved
        )

    def standing(self, place: Place, identity: Identity) -> Place | None:
        """Return the copy that stands for a half message, itself if it is open, None if ended."""
        while (newer := self._moved.get(place.queue_offset)) is not None:
            place = newer
        if self.is_open(place.queue_offset):
            return place
        newer = self._copies.get(identity)
        if newer is None or place.queue_offset >= self.base:
            return None
        return newer if self.is_open(newer.queue_offset) else None

    def advance(self) -> None:
        """Pass over what has ended, and over the op messages that say so."""
        while self.base in self._ended or self.base in self._moved:
            self._ended.discard(self.base)
            self._moved.pop(self.base, None)
            self.base += 1
        while self._ops.get(self.op_base, self.base) < self.base:
            del self._ops[self.op_base]
            self.op_base += 1
        self.op_read = max(self.op_read, self.op_base)


# --- read from a store --------------------------------------------------------------------------


def read_ledger(
    reader: Reader, offset_of: Callable[[str, str, int], int | None]
) -> tuple[Ledger, list[StoredMessage]]:
    """Return what the queues of a store say, and the half messages that are open by them.

    One of these may be committed nevertheless: where a process was killed between the final message
    and its op message. `final_of` finds out. `offset_of` answers with the offset of a topic, a
    group and a queue, None where there is none.
    """
    ledger = Ledger(
        _start(reader, HALF, offset_of(HALF.topic, GROUP, HALF.queue_id)),
        _start(reader, OP, offset_of(OP.topic, GROUP, OP.queue_id)),
    )
    read_ops(reader, ledger)
    halves: list[StoredMessage] = []
    waiting: dict[Identity, list[StoredMessage]] = defaultdict(list)
    expected = ledger.base
    for half in messages_of(reader, HALF, ledger.base):
        for lost in range(expected, half.queue_offset):
            ledger.note_ended(lost)
        expected = half.queue_offset + 1
        _link(ledger, half, waiting[identity_of(half)])
        halves.append(half)
    for lost in range(expected, reader.max_offset(*HALF)):
        ledger.note_ended(lost)
    return ledger, [half for half in halves if ledger.is_open(half.queue_offset)]


def _link(ledger: Ledger, half: StoredMessage, waiting: list[StoredMessage]) -> None:
    """Let a copy stand for the oldest half message of the same identity that has none yet."""
    if is_copy(half):
        offsets = [earlier.queue_offset for earlier in waiting]
        at = next((at for at, one in enumerate(offsets) if not ledger.has_ended(one)), 0)
        place = Place(half.queue_offset, half.physical_offset)
        if not waiting:
            ledger.note_moved(-1, place, identity_of(half))
        elif ledger.has_ended(offsets[at]):
            # The producer's answer about an earlier copy came late: it counts for this one too.
            ledger.note_ended(half.queue_offset)
        else:
            ledger.note_moved(offsets[at], place, identity_of(half))
        del waiting[at : at + 1]
    waiting.append(half)


def read_ops(reader: Reader, ledger: Ledger) -> None:
    """Take down every op message that the ledger has not seen."""
    for op in messages_of(reader, OP, ledger.op_read):
        for lost in range(ledger.op_read, op.queue_offset):
            ledger.note_op(lost, None)
        ledger.op_read = op.queue_offset + 1
        ended = ended_by(op)
        if ended is not None and ended >= ledger.base:
            # One that stands before what it names would end a half message that was still to come.
            entry = next(reader.queue_entries(*HALF, ended, 1), None)
            is_before = entry is not None and entry[1].physical_offset < op.physical_offset
            ended = ended if is_before else None
        ledger.note_op(op.queue_offset, ended)


def messages_of(reader: Reader, queue: QueueKey, offset: int) -> Iterator[StoredMessage]:
    """Yield the messages of a queue from an offset on, as far as they can be read."""
    while offset < reader.max_offset(*queue):
        page = reader.get(*queue, offset, PAGE_MESSAGES)
        yield from page.messages
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def _start(reader: Reader, queue: QueueKey, stored: int | None) -> int:
    first, stop = reader.min_offset(*queue), reader.max_offset(*queue)
    return first if stored is None else min(max(stored, first), stop)


def final_place(half: StoredMessage, max_level: int) -> tuple[QueueKey, Record] | None:
    """Return what a commit of a half message puts, and where; None where it names no queue.

    That is in the delay topic if it asks for a delay, of which there are `max_level` levels.
    """
    queue = real_queue(half)
    if queue is None:
        return None
    level, record = delayed(final_record(half), *queue, max_level)
    return (QueueKey(DELAY_TOPIC, level - 1) if level else queue), record


def final_of(reader: Reader, half: StoredMessage) -> StoredMessage | None:
    """Return the message that a commit of a half message put, None if there is none.

    By the index, or where there is none, by the queue's messages from the half one's store time on.
    """
    place = final_place(half, len(parse_delay_levels(reader.config.message_delay_level)))
    if place is None:
        return None
    queue, _ = place
    found: Iterable[StoredMessage]
    if half.unique_key is not None and reader.config.message_index_enable:
        found = reader.find(queue.topic, half.unique_key, max_messages=_ALL)
    else:
        since = half.store_timestamp_ms
        since = min(since, half.born_timestamp_ms) if is_copy(half) else since
        found = messages_of(reader, queue, reader.offset_at(*queue, since))

    def is_lost(physical_offset: int) -> bool:
        return reader.at_physical_offset(physical_offset) is None

    return next((one for one in found if is_final_of(half, one, is_lost)), None)
