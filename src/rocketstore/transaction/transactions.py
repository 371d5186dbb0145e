"""Begin, commit and roll back: how a message becomes a half message, and how that one ends.

Law: a half message ends once. A commit puts the final message first, then the op message; a process
killed in between leaves a final message, which the next reader of the ledger looks for before it
does anything else with the half message. After a failed or interrupted put it may be unknown
whether the message is in the log: it is looked for in the same way, before the next attempt.

Law: one call at a time works on one half message, and no lock is held while anything is put.

How derived: EndTransactionProcessor, TransactionalMessageServiceImpl of 4.9 (spec B19). Better than
there: a second commit, one after a rollback, and one of a half message whose copy was asked about
put nothing a second time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.config import BrokerRole, parse_delay_levels
from rocketstore.errors import RocketStoreError
from rocketstore.events import get_logger
from rocketstore.format.host import encode_host
from rocketstore.format.properties import UNIQ_KEY
from rocketstore.format.refusals import refuse_no_mapping, refuse_other_types
from rocketstore.locks import Lock
from rocketstore.rules.half_messages import PRODUCER_GROUP, TRANSACTION_GROUP, Half
from rocketstore.storage.attached import Service
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.threads import Changes
from rocketstore.transaction.ledger import Ledger, endings_of, final_place, read_ledger, read_ops
from rocketstore.transaction.records import (
    DEFAULT_PRODUCER_GROUP,
    HALF,
    OP,
    EndStatus,
    half_record,
    immune_record,
    known,
    missing_room,
    op_record,
    refusal,
)
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.message import Message
    from rocketstore.native.log_end import Record
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.consumer_offsets import ConsumerOffsetTable

WAIT_S: Final = 60.0
"""Longest wait for another call that ends the same half message, and for dispatch."""

SETTLE_EVERY: Final = 256
"""Ends after which the two offsets are brought up to date, where no check does it."""

_32_BITS: Final = 0xFFFFFFFF
_16_BITS: Final = 0xFFFF

_log: Final = get_logger(__name__)


class TransactionIds:
    """Makes unique keys for messages that have none, in the layout of a Java client's.

    Address, process, a number of this run, milliseconds since the month began, a counter: 32
    hexadecimal digits, from which 4.9's tools tell when a message was made. Source:
    MessageClientIDSetter.
    """

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


class HalfMessage(msgspec.Struct, frozen=True):
    """A transaction that has begun: what its commit or rollback needs.

    Attributes
    ----------
    put
        Outcome of the put of the half message; nothing has begun unless ``put.is_stored``.
    producer_group, transaction_id
        The producer group that answers for it, and its unique key.
    """

    put: PutResult
    producer_group: str
    transaction_id: str

    @property
    def physical_offset(self) -> int:
        """Where the half message lies in the log, END_TRANSACTION's ``commitLogOffset``."""
        return self.put.physical_offset

    @property
    def queue_offset(self) -> int:
        """Its place in the half topic's queue, END_TRANSACTION's ``tranStateTableOffset``."""
        return self.put.queue_offset

    @property
    def message_id(self) -> str:
        """Offset message id of the half message."""
        return self.put.message_id


class EndResult(msgspec.Struct, frozen=True):
    """Outcome of a commit or rollback.

    Attributes
    ----------
    put
        Of the final message, or of the op message of a rollback; None where nothing was put.
    detail
        What was found instead, for a status that is neither COMMITTED nor ROLLED_BACK.
    """

    status: EndStatus
    put: PutResult | None = None
    detail: str | None = None


class Transactions(Service):
    """The transactions of one open store; any thread may call."""

    name = "transactions"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._offsets: ConsumerOffsetTable = store.attached["consumer_offsets"]
        self._ids = TransactionIds(store.config.store_host, store.clock)
        self._max_level = len(parse_delay_levels(store.config.message_delay_level))
        self._loaded: Ledger | None = None
        self._loading, self._reading, self._lock = (Lock() for _ in range(3))
        self._claimed: set[int] = set()
        self._doubtful: set[int] = set()
        self._owed: dict[int, None] = {}
        self._released = Changes()
        self._ends = 0

    # --- the three calls ------------------------------------------------------------------------

    def begin(
        self, message: Message, queue_id: int, producer_group: str | None, *,
        wait_flush: bool = True,
    ) -> HalfMessage:  # fmt: skip
        """Put a half message; see `MessageStore.begin`."""
        refuse_other_types(message)
        properties = message.properties or {}
        refuse_no_mapping(properties)
        group = producer_group or properties.get(PRODUCER_GROUP) or DEFAULT_PRODUCER_GROUP
        key = message.unique_key or properties.get(UNIQ_KEY) or self._ids.next()
        record = half_record(message, queue_id, group, key)
        self._store.extra_queues.asked(properties, QueueKey(message.topic, queue_id))
        missing = missing_room(record, self._store.config.mapped_file_size_commit_log or 0)
        if missing is not None:
            put = PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, detail=missing)
        else:
            put = self._store.put_record(*HALF, record, wait_flush=wait_flush)
        return HalfMessage(put, group, key)

    def end(
        self, producer_group: str, queue_offset: int, physical_offset: int, *, commits: bool
    ) -> EndResult:
        """Commit or roll back the half message at an offset; see `MessageStore.end_transaction`."""
        half = self._store.at_physical_offset(physical_offset)
        if half is None:
            return self._missing(producer_group, queue_offset, physical_offset)
        why_not = refusal(half, producer_group, queue_offset)
        if why_not is not None:
            return EndResult(why_not, detail=_told(why_not, half))
        ledger, own = self.ledger, known(half)
        self._pay()
        while (standing := ledger.standing(own)) is not None:
            if not self.claim(standing.queue_offset):
                return EndResult(EndStatus.BUSY, detail="another call is ending it; ask again")
            try:
                if standing == ledger.standing(own):
                    return self._ended(half, standing, commits=commits)
            finally:
                self.release(standing.queue_offset)
        return EndResult(EndStatus.ENDED_ALREADY)

    def _ended(self, half: StoredMessage, standing: Half, *, commits: bool) -> EndResult:
        if standing.physical_offset != half.physical_offset:
            copy = self._store.at_physical_offset(standing.physical_offset)
            if copy is None:
                where = standing.physical_offset
                return EndResult(EndStatus.NOT_FOUND, detail=f"no message at {where}")
            half = copy
        return self.end_open(half, commits=commits)

    def end_open(self, half: StoredMessage, *, commits: bool) -> EndResult:
        """End a half message that is open and claimed by the caller."""
        offset = half.queue_offset
        if not self.is_open(half):
            return EndResult(EndStatus.ENDED_ALREADY)
        if commits:
            final = final_place(half, self._max_level)
            assert final is not None  # `refusal` has looked
            queue, record = final
        else:
            queue, record = OP, op_record(offset, self._store.config.store_host)
        put = self.end_by(half, queue, record)
        if not put.is_stored:
            return EndResult(EndStatus.NOT_STORED, put, put.detail)
        self._ends += 1
        if self._ends % SETTLE_EVERY == 0:
            self.save_offsets()
        return EndResult(EndStatus.COMMITTED if commits else EndStatus.ROLLED_BACK, put)

    def end_by(self, half: StoredMessage, queue: QueueKey, record: Record) -> PutResult:
        """Put what ends a half message that is open and claimed by the caller."""
        offset = half.queue_offset
        self._doubtful.add(offset)  # until it is known what became of the put
        put = self._store.put_record(*queue, record)
        if put.is_stored:
            self.note_ended(half)
            if queue == OP:
                self._note_op(put, offset)
            else:
                self.owe(offset)
        self._doubtful.discard(offset)
        return put

    # --- what has ended -------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What is known of the half messages of the store; read from it at the first use."""
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    self._loaded = self._read()
        return self._loaded

    def _read(self) -> Ledger:
        self._store.wait_dispatched(timeout_s=WAIT_S)
        ledger, halves = read_ledger(self._store, self._offsets.get)
        endings = endings_of(self._store, halves)
        for half in halves:
            by = endings.get(half.queue_offset)
            if by is not None:
                _log.info("transaction.had_ended", half=half.message_id, by=by.message_id)
                ledger.note_ended(known(half))
                self._owed[half.queue_offset] = None
        return ledger

    def settle(self, half: StoredMessage) -> bool:
        """Find out whether a half message is still open, where that is not known."""
        if not self._store.wait_dispatched(timeout_s=WAIT_S):
            return False
        offset = half.queue_offset
        self.read_ops()
        if self.ledger.is_open(offset):
            if not endings_of(self._store, [half]):
                self._doubtful.discard(offset)
                return True
            self.note_ended(half)
            self.owe(offset)
        self._doubtful.discard(offset)
        return False

    def is_open(self, half: StoredMessage) -> bool:
        """Whether a half message, claimed by the caller, waits for its end."""
        offset = half.queue_offset
        if offset in self._doubtful:
            return self.settle(half)
        return self.ledger.is_open(offset)

    def distrust(self) -> None:
        """Read the ledger again at the next use: it may not know what is in the log."""
        self._loaded = None

    def note_ended(self, half: StoredMessage) -> None:
        """Record that a half message has ended."""
        with self._lock:
            self.ledger.note_ended(known(half))

    def note_lost(self, queue_offset: int) -> None:
        """Record that no half message can be read at an offset (retention, damage)."""
        with self._lock:
            self.ledger.end(queue_offset)

    def move(self, half: StoredMessage, record: Record) -> PutResult:
        """Put a copy of an open half message, claimed by the caller, that stands for it then."""
        try:
            put = self._store.put_record(*HALF, record)
        except BaseException:
            self.distrust()  # the copy may be there
            raise
        if put.is_stored:
            place = put.queue_offset, put.physical_offset
            with self._lock:
                self.ledger.move(
                    half.queue_offset, Half(*place, known(half).identity, is_copy=True)
                )
        return put

    def read_ops(self) -> None:
        """Record the op messages that were not read yet."""
        ledger = self.ledger
        with self._reading:
            read_ops(self._store, ledger)

    def claim(self, queue_offset: int) -> bool:
        """Claim a half message for this call; False where another one keeps it too long."""
        return self._released.wait_for(lambda: self.claim_at_once(queue_offset), WAIT_S)

    def release(self, queue_offset: int) -> None:
        """Give up the claim on a half message."""
        self._claimed.discard(queue_offset)
        self._released.tell()

    def claim_at_once(self, queue_offset: int) -> bool:
        """Claim a half message for this call; False where another call has it."""
        with self._lock:
            is_free = queue_offset not in self._claimed
            self._claimed.add(queue_offset)
        return is_free

    # --- op messages ----------------------------------------------------------------------------

    def owe(self, queue_offset: int) -> None:
        """Say in an op message that a half message has ended; at once, or before the next end."""
        self._owed[queue_offset] = None
        self._pay()

    def _pay(self) -> None:
        for queue_offset in list(self._owed):
            record = op_record(queue_offset, self._store.config.store_host)
            put = self._store.put_record(*OP, record, wait_flush=False)
            if not put.is_stored:
                return
            self._note_op(put, queue_offset)
            self._owed.pop(queue_offset, None)

    def _note_op(self, put: PutResult, queue_offset: int) -> None:
        with self._lock:
            self.ledger.note_op(put.queue_offset, queue_offset)

    def save_offsets(self) -> None:
        """Let the group's offsets pass over what has ended."""
        ledger = self.ledger
        self._pay()
        self.read_ops()
        with self._lock:
            ledger.advance()
        while ledger.is_long(self._store.max_offset(*HALF)) and self._let_pass(ledger.base):
            with self._lock:
                ledger.advance()
        self._offsets.set(HALF.topic, TRANSACTION_GROUP, HALF.queue_id, ledger.base)
        self._offsets.set(OP.topic, TRANSACTION_GROUP, OP.queue_id, ledger.op_base)

    def _let_pass(self, queue_offset: int) -> bool:
        """Move the first half message to the tail, where too many after it have ended.

        4.9 does so by its checks alone, which are off here without a callback that answers them.
        """
        if not self.claim_at_once(queue_offset):
            return False
        try:
            half = next(iter(self._store.get(*HALF, queue_offset, 1).messages), None)
            if half is None or half.queue_offset != queue_offset:
                self.note_lost(queue_offset)
                return True
            return not self.is_open(half) or self.move(half, immune_record(half)).is_stored
        finally:
            self.release(queue_offset)

    # --- the service ----------------------------------------------------------------------------

    def start(self) -> None:
        """Finish what a kill left of commits, if the store has transactions and takes puts."""
        if self._store.config.broker_role is BrokerRole.SLAVE or not self._store.max_offset(*HALF):
            return
        try:
            _ = self.ledger
            self._pay()
        except RocketStoreError as error:  # the caller that ends a transaction gets it
            root = str(self._store.layout.root)
            _log.error("transaction.not_read", root=root, error=str(error))

    def stop(self) -> None:
        """Put the op messages that are owed, and set the offsets."""
        if self._loaded is None:
            return
        try:
            self.save_offsets()
        except (RocketStoreError, OSError) as error:
            _log.error("transaction.not_settled", owed=len(self._owed), error=str(error))

    # --- parts ----------------------------------------------------------------------------------

    def _missing(self, group: str, queue_offset: int, physical_offset: int) -> EndResult:
        """Describe what the half queue has at the given offset, where the log has no message."""
        page = self._store.get(*HALF, max(queue_offset, 0), 1)
        found = page.messages[0] if page.messages else None
        if found is None or refusal(found, group, queue_offset) is not None:
            return EndResult(EndStatus.NOT_FOUND, detail=f"no message at {physical_offset}")
        return EndResult(
            EndStatus.WRONG_PHYSICAL_OFFSET,
            detail=f"half message {queue_offset} lies at {found.physical_offset}, "
            f"not at {physical_offset}",
        )


def _told(status: EndStatus, half: StoredMessage) -> str:
    if status is EndStatus.WRONG_GROUP:
        return f"it belongs to the producer group {half.properties[PRODUCER_GROUP]}"
    if status is EndStatus.WRONG_QUEUE_OFFSET:
        return f"it is half message {half.queue_offset}"
    return f"a message of {half.topic} is there"
