"""The check: asks about half messages without an end, as their producer may have died.

Each turn goes over the open half messages in order. One whose producer is to be asked is put again
at the tail, with the number of times it was asked, and then `on_check` is called; so a count
survives a kill, and the offset before which nothing is open moves on.

Law: what becomes of a half message is recorded before anything else is done with it: a copy is in
the log before its original counts as moved, and in the ledger before the producer is asked. Where
that is not known, the ledger is read again. A put that fails ends the turn, and the next one goes
on.

How derived: TransactionalMessageServiceImpl.check, TransactionalMessageCheckService of 4.9 (spec
B19.4). There a half message is asked about only when enough op messages were read to be sure; here
every end is known, so its age alone decides.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.config import BrokerRole
from rocketstore.events import get_logger
from rocketstore.rules.half_messages import PRODUCER_GROUP
from rocketstore.rules.waiting import copy_of, real_queue
from rocketstore.storage.attached import Service
from rocketstore.storage.reading.reader import messages_of
from rocketstore.storage.threads import Periodic
from rocketstore.transaction.records import (
    DISCARDED,
    HALF,
    CheckStep,
    check_step,
    checked_record,
    immune_record,
    times_checked,
)
from rocketstore.units import monotonic_ms

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.native.log_end import Record
    from rocketstore.storage.store import BaseStore
    from rocketstore.transaction.transactions import Transactions

TURN_LIMIT_MS: Final = 60_000
"""Longest turn, after which the offsets are saved (TransactionalMessageServiceImpl's limit)."""

_log: Final = get_logger(__name__)


class CheckAnswer(Enum):
    """What a producer answers about a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class TransactionChecks(Service):
    """The checks of one open store; off until `watch` gives a callback to ask."""

    name = "transaction_checks"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._transactions: Transactions = store.attached["transactions"]
        self._met: dict[int, int] = {}
        self._on_check: Callable[[StoredMessage], CheckAnswer | None] | None = None
        interval_s = store.config.transaction_check_interval / 1000
        self._thread = Periodic(
            "rocketstore-transaction-check", lambda: self.turn(store.clock()), interval_s
        )

    def watch(self, on_check: Callable[[StoredMessage], CheckAnswer | None]) -> None:
        """Ask `on_check` from now on; see `MessageStore.check_transactions`."""
        self._store.check_open()
        self._on_check = on_check

    def start(self) -> None:
        """Start the thread, which does nothing before there is a callback to ask."""
        if self._store.config.broker_role is not BrokerRole.SLAVE:
            self._thread.start()

    def stop(self) -> None:
        """End the thread after the half message it is at."""
        self._thread.stop()

    def turn(self, now_ms: int) -> int:
        """Go once over the open half messages; return how many were asked about."""
        if self._on_check is None or self._store.config.broker_role is BrokerRole.SLAVE:
            return 0
        transactions = self._transactions
        ledger = transactions.ledger
        transactions.read_ops()
        began_ms, asked = monotonic_ms(), 0
        self._met = {offset: ms for offset, ms in self._met.items() if ledger.is_open(offset)}
        stop = expected = self._store.max_offset(*HALF)
        first = ledger.base
        for half in messages_of(self._store, HALF, first):
            offset = half.queue_offset
            if offset >= stop or self._is_late(began_ms):
                expected = min(offset, stop)
                break
            for lost in range(first, offset):
                transactions.note_lost(lost)
            first = offset + 1
            if not ledger.is_open(offset):
                continue
            step = check_step(half, self._counted_ms(half, now_ms), self._store.config)
            if step is CheckStep.WAIT and half.born_timestamp_ms > now_ms:
                continue  # what comes after it may be older
            copy = None if step is CheckStep.WAIT else self._taken(half, step)
            if copy is None:
                expected = offset
                break
            if copy is not half and step is CheckStep.ASK:
                asked += 1
                self._ask(copy)
        for lost in range(first, expected):
            transactions.note_lost(lost)
        transactions.save_offsets()
        return asked

    def _counted_ms(self, half: StoredMessage, now_ms: int) -> int:
        """Return the time by which a half message is judged.

        One that was born in the future, by a clock that is ahead, has its age from when it was met.
        """
        if half.born_timestamp_ms <= now_ms:
            return now_ms
        since_ms = min(self._met.get(half.queue_offset, now_ms), now_ms)
        self._met[half.queue_offset] = since_ms
        return half.born_timestamp_ms + now_ms - since_ms

    def _is_late(self, began_ms: int) -> bool:
        is_stopping = self._thread.stopping.is_set()
        return is_stopping or monotonic_ms() - began_ms > TURN_LIMIT_MS

    # --- one half message -----------------------------------------------------------------------

    def _taken(self, half: StoredMessage, step: CheckStep) -> StoredMessage | None:
        """Return the copy that now stands for a half message, else the message itself.

        None where the store does not take what is to be put.
        """
        transactions, offset = self._transactions, half.queue_offset
        if not transactions.claim_at_once(offset):
            return half  # it is being ended
        try:
            if not transactions.is_open(half):
                return half
            can_be_asked = real_queue(half) is not None and PRODUCER_GROUP in half.properties
            if step is CheckStep.DISCARD or not can_be_asked:
                return self._discarded(half)
            if step is CheckStep.MOVE:
                return self._moved(half, immune_record(half))
            return self._moved(half, checked_record(half, times_checked(half) + 1))
        finally:
            transactions.release(offset)

    def _moved(self, half: StoredMessage, record: Record) -> StoredMessage | None:
        put = self._transactions.move(half, record)
        return self._store.at_physical_offset(put.physical_offset) if put.is_stored else None

    def _discarded(self, half: StoredMessage) -> StoredMessage | None:
        """Keep one whose producer never answered (DefaultTransactionalMessageCheckListener)."""
        if not self._transactions.end_by(half, DISCARDED, copy_of(half)).is_stored:
            return None
        _log.warning("transaction.discarded", half=half.message_id, checks=times_checked(half))
        return half

    def _ask(self, half: StoredMessage) -> None:
        queue = real_queue(half)
        assert queue is not None and self._on_check is not None  # noqa: PT018 - `turn` has looked
        shown = msgspec.structs.replace(half, topic=queue.topic, queue_id=queue.queue_id)
        try:
            answer = self._on_check(shown)
        except Exception:  # noqa: BLE001 - whatever a program's check does, others go on
            hint = "it is asked about again; the traceback says where the program's check raised"
            _log.exception("transaction.check_failed", half=half.message_id, hint=hint)
            return
        if answer in (CheckAnswer.COMMIT, CheckAnswer.ROLLBACK):
            self._transactions.end(
                half.properties[PRODUCER_GROUP],
                half.queue_offset,
                half.physical_offset,
                commits=answer is CheckAnswer.COMMIT,
            )
