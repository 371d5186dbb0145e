"""Which half messages have ended, which copy stands for which one, and where none is open any more.

Two offsets of the group `GROUP`, which 4.9 keeps too, bound what has to be read: before the one in
the half topic everything has ended or was moved to the tail by a check, before the one in the op
topic every op message names such a half message.

Law: a ledger is a value that others fill; it knows no store, no thread and no clock. `read_ledger`
fills one from a store that another process may be writing: it changes nothing.

How derived: TransactionalMessageServiceImpl.fillOpRemoveMap and calculateOpOffset of 4.9 (spec
B19), which keep the same in maps for one turn of the check. There nothing stored links a copy to
the half message that it stands for, so both could be committed. Here they are matched, in order, by
the fields that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from rocketstore.format.properties import DELAY
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.message import TRANSACTION_COMMIT, TRANSACTION_MASK
from rocketstore.rules.half_messages import TRANSACTION_GROUP, Half, Halves, ended_by, is_final_of
from rocketstore.rules.waiting import delayed, real_queue, waiting_offsets
from rocketstore.storage.reading.reader import Reader, messages_of
from rocketstore.tables.consumer_offsets import read_offsets
from rocketstore.transaction.records import DISCARDED, HALF, OP, final_record, known
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.log_end import Record
    from rocketstore.rules.half_messages import Identity

LONGEST: Final = 10_000
"""Half messages that may follow an open one before that one is put again at the tail: a
quarter of a second of reading at the next start."""


class Ledger(Halves):
    """What is known of the half messages from `base` on; before it none is open.

    A half message that began since the queue was read counts as open.

    Before the op queue offset `op_base` every op names a half message before `base`; `op_read` is
    the one to read next.
    """

    def __init__(self, base: int, op_base: int) -> None:
        super().__init__(base)
        self.op_base = self.op_read = op_base
        self._ops: dict[int, int] = {}

    def note_ended(self, half: Half) -> None:
        """Record that a half message has ended."""
        self.end(half.queue_offset)
        self._copies.pop(half.identity, None)

    def note_op(self, op_offset: int, queue_offset: int | None) -> None:
        """Record the last half message that an op message names; None where it names none."""
        if op_offset >= self.op_base:
            self._ops[op_offset] = -1 if queue_offset is None else queue_offset

    def advance(self) -> None:
        """Pass over what has ended, and over the op messages that say so."""
        self._same.clear()  # which copy stands for which is known; nothing more is read in order
        while self.base in self._ended or self.base in self._moved:
            self.base += 1  # first: after an interrupt the one before it would be open again
            self._ended.discard(self.base - 1)
            self._moved.pop(self.base - 1, None)
        while self._ops.get(self.op_base, self.base) < self.base:
            del self._ops[self.op_base]
            self.op_base += 1

    def next_op(self) -> int:
        """Return the first op message that is not known; those of this process are."""
        self.op_read = max(self.op_read, self.op_base)
        while self.op_read in self._ops:
            self.op_read += 1
        return self.op_read

    def is_long(self, stop: int) -> bool:
        """Whether the half messages before `stop` that have ended should not be read again.

        Moving those that are open then costs less than what was ended meanwhile.
        """
        length = stop - self.base
        count = length - len(self._ended) - len(self._moved)
        return length > max(LONGEST, 2 * count)


# --- read from a store --------------------------------------------------------------------------


def read_ledger(
    reader: Reader, offset_of: Callable[[str, str, int], int | None]
) -> tuple[Ledger, list[StoredMessage]]:
    """Return what the queues of a store say, and the half messages that are open according to them.

    These come without their bodies.
    One of these may be committed nevertheless: where a process was killed between the final message
    and its op message. `endings_of` finds out. `offset_of` answers with the offset of a topic, a
    group and a queue, None where there is none.
    """
    left = []
    for queue in (HALF, OP):
        stored = offset_of(queue.topic, TRANSACTION_GROUP, queue.queue_id)
        bounds = reader.min_offset(*queue), reader.max_offset(*queue)
        left.append(waiting_offsets(stored, *bounds))
    ledger = Ledger(left[0].start, left[1].start)
    halves: dict[int, StoredMessage] = {}
    in_order = merge(
        messages_of(reader, HALF, ledger.base),
        messages_of(reader, OP, ledger.op_base),
        key=attrgetter("physical_offset"),
    )
    for message in in_order:
        offset = message.queue_offset
        if message.topic == OP.topic:
            named = _named(message, ledger.stop)
            _take_op(ledger, offset, named)
            for one in named:
                halves.pop(ledger.end(one), None)
            continue
        for lost in range(ledger.stop, offset):
            ledger.end(lost)
        older = ledger.take(known(message))
        halves[offset] = replace(message, raw_body=b"")  # a million of them may be open
        if older is not None:
            halves.pop(older, None)
    for lost in range(ledger.stop, left[0].stop):
        ledger.end(lost)
    return ledger, [half for half in halves.values() if ledger.is_open(half.queue_offset)]


def open_transactions(reader: Reader) -> Iterator[StoredMessage]:
    """Yield the half messages that have no end, oldest copy first; changes nothing."""
    rows = read_offsets(reader.layout, reader).rows()
    offsets = {(key.topic, group, key.queue_id): offset for group, key, offset in rows}
    _, halves = read_ledger(reader, lambda *place: offsets.get(place))
    endings = endings_of(reader, halves)
    places = (half.physical_offset for half in halves if half.queue_offset not in endings)
    return filter(None, map(reader.at_physical_offset, places))


def read_ops(reader: Reader, ledger: Ledger) -> None:
    """Record every op message that the ledger has not seen."""
    for op in messages_of(reader, OP, ledger.next_op()):
        named = []
        for one in _named(op, reader.max_offset(*HALF)):
            entry = next(reader.queue_entries(*HALF, one, 1), None) if one >= ledger.base else None
            if one < ledger.base or (entry and entry[1].physical_offset <= op.physical_offset):
                named.append(one)
        _take_op(ledger, op.queue_offset, named)
        for one in named:
            ledger.end(one)


def _named(op: StoredMessage, stop: int) -> list[int]:
    """Return which half messages an op message ends; later ones do not count."""
    return [named for named in ended_by(op.tags, op.raw_body) if named < stop]


def _take_op(ledger: Ledger, offset: int, named: Sequence[int]) -> None:
    for lost in range(ledger.op_read, offset):
        ledger.note_op(lost, None)
    ledger.note_op(offset, max(named, default=None))
    ledger.op_read = offset + 1


def final_place(half: StoredMessage, max_level: int) -> tuple[QueueKey, Record] | None:
    """Return the queue into which a commit of a half message puts; None where it names none.

    That is in the delay topic if it asks for a delay, of which there are `max_level` levels.
    """
    queue = real_queue(half)
    if queue is None:
        return None
    level, record = delayed(final_record(half), *queue, max_level)
    return (QueueKey(DELAY_TOPIC, level - 1) if level else queue), record


def endings_of(reader: Reader, halves: Sequence[StoredMessage]) -> dict[int, StoredMessage]:
    """Return which message ended which half message, for ends that no op message states.

    By their queue offsets: the final message, or what is kept of one that was discarded. The queues
    are read, as which keys were indexed and which delay levels there were was set at the time.
    """
    waiting: dict[QueueKey, dict[Identity, list[StoredMessage]]] = {}
    delays = reader.queues(DELAY_TOPIC)
    for half in halves:
        queue = real_queue(half)
        places = [DISCARDED] if queue is None else [DISCARDED, queue]
        for place in [*places, *delays] if DELAY in half.properties else places:
            waiting.setdefault(place, {}).setdefault(known(half).identity, []).append(half)
    endings: dict[int, StoredMessage] = {}
    for place, by_identity in waiting.items():
        births = {identity.born_ms for identity in by_identity}
        for one in messages_of(reader, place, _first_ending(reader, place, by_identity)):
            if one.born_timestamp_ms not in births:
                continue
            same = by_identity.get(known(one).identity, ())
            ended = [half for half in same if half.queue_offset not in endings]
            ended = [half for half in ended if _ends(reader, place, one, half)]
            for half in ended[:1] if place == DISCARDED else ended:
                endings[half.queue_offset] = one
    return endings


def _ends(reader: Reader, place: QueueKey, one: StoredMessage, half: StoredMessage) -> bool:
    """Whether a message of the same identity ended a half message."""
    if place == DISCARDED:
        return one.physical_offset > half.physical_offset

    def is_lost(physical_offset: int) -> bool:
        return reader.at_physical_offset(physical_offset) is None

    named, own = one.prepared_transaction_offset, known(half)
    is_commit = one.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_commit and is_final_of(own, named, own.identity, is_lost)


def _first_ending(
    reader: Reader, queue: QueueKey, by_identity: dict[Identity, list[StoredMessage]]
) -> int:
    """Return the queue offset before which no message can have ended one of some half messages.

    A copy may have been ended by what names the one that it stands for, of the same born time.
    """
    halves = [half for same in by_identity.values() for half in same]
    first = reader.end_within(*queue, min(half.physical_offset for half in halves))
    copies = [half for half in halves if known(half).is_copy]
    times = [min(half.store_timestamp_ms, half.born_timestamp_ms) for half in copies]
    return min([first, *(reader.offset_at(*queue, since) for since in times and [min(times)])])
