"""Put many messages of one queue at once: all of them or none, with consecutive offsets.

Law: a batch is judged as a whole before anything is appended. Its messages get one store time, and
a consumer sees them one by one, like any others.

How derived: MessageExtBatch, MessageExtEncoder.encode and the batch callback of 4.9.8 (spec B3.6,
F15). What 4.9 answers by an exception is a status here (K-P7), and the last file is looked up under
the lock (K-P3). As with one message, `native.put.PlainPuts` takes what nobody would refuse, and
what it does not take is made a list of `Record` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import FormatError, RefusedMessageError
from rocketstore.format.client_batch import BATCH_MESSAGE_FIXED_SIZE, decode_client_batch
from rocketstore.format.properties import PROPERTIES_SIZE_MAX, encode_properties
from rocketstore.format.record_text import storable_properties
from rocketstore.format.refusals import refuse_transaction
from rocketstore.message import DEFAULT_HOST, Message
from rocketstore.native.log_end import Record
from rocketstore.storage.log.prepared import (
    body_bytes,
    may_wait,
    record_of,
    refuse_other_types,
    refuse_special_block,
    waits_for_flush,
)
from rocketstore.storage.results import PutMessageStatus, PutResult

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig
    from rocketstore.native.log_end import QueueCounter
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.storage.log.writer import StoreWriter

_SEPARATOR: Final = b"\x02"


class BatchWriter:
    """The part of an open store that takes batches; parameters as `StoreWriter`."""

    def __init__(self, writer: StoreWriter, log: CommitLog, *, config: StoreConfig) -> None:
        self._writer = writer
        self._log = log
        self._max_body = config.max_message_size

    # --- messages of our own --------------------------------------------------------------------

    def put_messages(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages of one topic; see `MessageStore.put_batch`."""
        began_ns = monotonic_ns()
        writer = self._writer
        result = writer.plain.put_messages(messages, queue_id, self._max_body)
        if result is not None:
            return writer.of_plain(result, began_ns)
        messages = _checked(messages)
        refused = writer.refusal()
        if refused is not None:
            return refused
        topic = messages[0].topic
        counter = writer.counter_of(topic, queue_id)
        if isinstance(counter, PutResult):
            return counter
        if any(message.topic != topic for message in messages):
            raise RefusedMessageError(f"a batch has one topic, but others than {topic} came")
        records = [record_of(message, writer.born_host) for message in messages]
        waits = all(may_wait(message) for message in messages)
        longest = max((record.properties for record in records), key=len)
        if len(longest) > PROPERTIES_SIZE_MAX:
            return writer.properties_refusal(longest)
        size = sum(
            BATCH_MESSAGE_FIXED_SIZE + len(record.body) + len(record.properties)
            for record in records
        )
        return self._append(counter, records, size, waits=waits, began_ns=began_ns)

    # --- a client's batch -----------------------------------------------------------------------

    def put_client_batch(  # noqa: PLR0911, PLR0913 - the fields of a send request, each checked
        self,
        topic: str,
        queue_id: int,
        batch: bytes | bytearray | memoryview,
        *,
        properties: Mapping[str, str] | bytes = b"",
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
        born_host: str = DEFAULT_HOST,
        reconsume_times: int = 0,
        wait_flush: bool = True,
    ) -> PutResult:
        """Store messages as a producer encoded them; see `MessageStore.put_client_batch`."""
        began_ns = monotonic_ns()
        writer = self._writer
        batch = body_bytes(batch)
        result = None
        if wait_flush and len(batch) <= self._max_body:
            result = writer.plain.put_encoded(
                batch, properties, topic, queue_id, sys_flag=sys_flag,
                born_timestamp_ms=born_timestamp_ms, born_host=born_host,
                reconsume_times=reconsume_times,
            )  # fmt: skip
        if result is not None:
            return writer.of_plain(result, began_ns)
        refused = writer.refusal()
        if refused is not None:
            return refused
        counter = writer.counter_of(topic, queue_id)
        if isinstance(counter, PutResult):
            return counter
        host = writer.born_host(born_host)
        refuse_transaction(sys_flag)
        more = storable_properties(_encoded(properties))
        refuse_special_block(more)
        if len(more) > PROPERTIES_SIZE_MAX:
            return writer.properties_refusal(more)
        if len(batch) > self._max_body:
            return self._too_long(len(batch))
        records = [
            Record(
                body, block, host, flag=flag, sys_flag=sys_flag,
                born_timestamp_ms=born_timestamp_ms, reconsume_times=reconsume_times,
            )
            for flag, body, block in _messages_of(batch, more)
        ]  # fmt: skip
        if any(len(record.properties) > PROPERTIES_SIZE_MAX for record in records):
            return writer.refuse(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                "properties of a message and of its batch together exceed the limit of "
                f"{PROPERTIES_SIZE_MAX} bytes",
            )
        waits = wait_flush and waits_for_flush(more)
        return self._append(counter, records, len(batch), waits=waits, began_ns=began_ns)

    # --- both -----------------------------------------------------------------------------------

    def _append(
        self,
        counter: QueueCounter,
        records: list[Record],
        batch_size: int,
        *,
        waits: bool,
        began_ns: int,
    ) -> PutResult:
        if batch_size > self._max_body:
            return self._too_long(batch_size)
        end = self._log.end
        refused = self._writer.file_refusal(sum(end.size_of(each, counter) for each in records))
        if refused is not None:
            return refused
        return self._writer.append(records, counter, waits=waits, began_ns=began_ns)

    def _too_long(self, size: int) -> PutResult:
        return self._writer.refuse(
            PutMessageStatus.MESSAGE_ILLEGAL,
            f"batch of {size} bytes exceeds maxMessageSize of {self._max_body}",
        )


def _checked(messages: object) -> Sequence[Message]:
    """Return the messages of a batch; raise if it is not one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RefusedMessageError(
            f"a batch is a sequence of messages, or bytes, not {type(messages).__name__}"
        )
    kept = tuple(message for message in messages)  # never asking how many it says they are
    if not kept:
        raise _empty()
    for message in kept:
        refuse_other_types(message)
    return kept


def _empty() -> RefusedMessageError:
    return RefusedMessageError("a batch has at least one message")


def _encoded(properties: Any) -> bytes:
    """Return properties of a batch as bytes."""
    if isinstance(properties, (bytes, bytearray, memoryview)):
        return bytes(properties)
    return encode_properties(properties)


def _messages_of(batch: bytes, more: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and properties of the messages of a client's batch.

    `more` stands after the properties of each, with one separator between (4.9.3's rule).
    """
    messages = []
    at = 0
    try:
        for flag, body, own in decode_client_batch(batch):
            block = storable_properties(own)
            refuse_special_block(block)
            if more and block and not block.endswith(_SEPARATOR):
                block += _SEPARATOR
            messages.append((flag, body, block + more))
            at += BATCH_MESSAGE_FIXED_SIZE + len(body) + len(own)
    except FormatError as error:
        raise RefusedMessageError(
            f"batch of {len(batch)} bytes ends inside the message at byte {at}"
        ) from error
    if not messages:
        raise _empty()
    return messages
