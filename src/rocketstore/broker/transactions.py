"""Ends of transactions, and the question to producers that ended none (codes 37 and 39).

An end may wait for a sync, or for another end of the same half message: a thread does it, not the
loop. A check asks one producer of the group by the connection that it has; the answer comes as an
end like any other.

How derived: EndTransactionProcessor, AbstractTransactionalMessageCheckListener and Broker2Client of
4.9 (transactions-and-schedule, section 1); what is put is that of `transaction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.broker.admin import NOT_SET
from rocketstore.broker.codes import BrokerAnswer, BrokerRequest
from rocketstore.broker.parts import Part, Parts
from rocketstore.broker.refused import Refused
from rocketstore.broker.sending import not_stored
from rocketstore.config import BrokerRole
from rocketstore.events import get_logger
from rocketstore.format.record import encode_stored
from rocketstore.message import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rocketstore.remoting.codes import ResponseCode
from rocketstore.remoting.command import Command, reply
from rocketstore.remoting.fields import Header, Int32, Int64
from rocketstore.remoting.requests import Call, Later, Row, request
from rocketstore.rules.half_messages import PRODUCER_GROUP
from rocketstore.transaction.records import EndStatus

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.transaction.transactions import EndResult

_REMARKS: Final = {
    EndStatus.NOT_FOUND: "Find prepared transaction message failed",
    EndStatus.NOT_A_HALF_MESSAGE: "The prepared message is not one of a transaction",
    EndStatus.WRONG_GROUP: "The producer group wrong",
    EndStatus.WRONG_QUEUE_OFFSET: "The transaction state table offset wrong",
    EndStatus.WRONG_PHYSICAL_OFFSET: "The commit log offset wrong",
    EndStatus.BUSY: "another request is ending this transaction",
}
"""Why an end is refused; the second is an exception's text in 4.9, the last is ours."""

_log: Final = get_logger(__name__)


class EndHeader(Header):
    """How a transaction ends, and where its half message is."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckHeader(Header):
    """Which transaction a producer is asked about."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class TransactionEnds(Part):
    """Ends transactions, and has producers asked."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        # From the thread of the checks; a producer answers with an end.
        parts.store.check_transactions(lambda half: parts.loop.post(lambda: self._ask(half)))

    def rows(self) -> list[Row]:
        """Return what is served."""
        return [Row(BrokerRequest.END_TRANSACTION, EndHeader, None, self.end)]

    def end(self, header: EndHeader, call: Call) -> Command | Later | None:
        """Commit or roll back; a producer that does not know yet gets no answer."""
        if self._store.config.broker_role is BrokerRole.SLAVE:
            remark = "Message store is slave mode, so end transaction is forbidden. "
            raise Refused(BrokerAnswer.SLAVE_NOT_AVAILABLE, remark)
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            if header.commit_or_rollback:
                raise Refused(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
            return None
        return self._loop.aside(call, lambda: self._flow.refusal(call, 0) or self._ended(header))

    def _ended(self, header: EndHeader) -> Command:
        is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
        half = header.tran_state_table_offset, header.commit_log_offset
        result: EndResult = self._store.end_transaction(
            header.producer_group, *half, commits=is_commit
        )
        if (remark := _REMARKS.get(result.status)) is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if result.status is EndStatus.NOT_STORED and result.put is not None:
            raise not_stored(result.put, self._store)
        # Compatible: that of a rollback keeps its first remark.
        return reply(remark=None if is_commit else NOT_SET)

    def _ask(self, half: StoredMessage) -> None:
        group = half.properties[PRODUCER_GROUP]
        client = self._clients.next_producer(group)
        if client is None:
            _log.info("transaction.no_producer", group=group, half=half.message_id)
            return
        key = half.unique_key
        question = CheckHeader(
            tran_state_table_offset=half.queue_offset, commit_log_offset=half.physical_offset,
            msg_id=key, transaction_id=key, offset_msg_id=half.message_id,
        )  # fmt: skip
        client.peer.tell(
            request(BrokerRequest.CHECK_TRANSACTION_STATE, question, encode_stored(half))
        )
