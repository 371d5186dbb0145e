"""Which topics are batch topics, their queues, and puts of batches to them.

A topic is one if ``config/topics.json`` says ``"queue.type": "BatchCQ"`` of it, as a broker of 5.x
writes it. A store without such topics knows nothing of this package: only where there may be one
are its calls wound around, and its dispatch asked.

Law: the kind of a topic never changes; files of the other kind are an error, not a queue. After
opening, the queues have every record of the log that recovery kept and no other.

How derived: ConsumeQueueStore, DefaultMessageStore.asyncPutMessage, SendMessageProcessor of 5.3.1,
which this follows (spec F9); see docs/decisions/0029-batch-queues.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.batch_queue.mapped_queue import MappedBatchQueue
from rocketstore.batch_queue.reading import BatchReads
from rocketstore.config import BrokerRole
from rocketstore.config.files import commonest
from rocketstore.errors import FormatError, RefusedMessageError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.batch_queue_entry import BATCH_COUNT_MAX, BATCH_ENTRY_SIZE_BYTES
from rocketstore.format.client_batch import decode_client_batch, encode_client_batch
from rocketstore.format.file_name import is_directory_name
from rocketstore.format.metadata_json import BATCH_QUEUES, QUEUE_TYPE, TopicConfig
from rocketstore.format.properties import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_NUM,
    decode_properties,
    encode_properties,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.format.refusals import (
    check_queue_id,
    check_topic,
    delay_level,
    encoded_born_host,
    refuse_transaction,
)
from rocketstore.format.stored_message import inflated
from rocketstore.message import COMPRESSED_FLAG, DEFAULT_HOST, INNER_BATCH, NEED_UNWRAP, Message
from rocketstore.native.log_end import QueueCounter, Record
from rocketstore.native.row import PutEntry
from rocketstore.rules.properties import with_properties
from rocketstore.storage.files.pread_files import file_lengths
from rocketstore.storage.log.commit_log import QueueMovedError
from rocketstore.storage.log.prepared import (
    body_bytes,
    record_of,
    storable_block,
)
from rocketstore.storage.queues.queue_listing import batch_topics_in, listed_queues
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.units import QueueKey
from rocketstore.verification.batch_entries import entry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rocketstore.config import StoreConfig, StoreSizes
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.log.prepared import PreparedMessage
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.store import BaseStore
    from rocketstore.tables.topics import TopicFile

_IS_BATCH: Final = INNER_BATCH | NEED_UNWRAP

_log: Final = get_logger(__name__)


class BatchTopics(BatchReads):
    """The batch topics of an open store."""

    def __init__(self, store: BaseStore, parts: StoreParts, file: TopicFile) -> None:
        self._store = store
        self._file = file
        self._parts = parts
        self._table = parts.queues
        self._root = parts.layout.batch_consume_queue
        self._file_size = file_size(parts.layout, parts.config, parts.sizes)
        self._mapped: dict[QueueKey, MappedBatchQueue] = {}
        super().__init__(store, parts.log, self._mapped, parts.kinds)
        self._load()
        self._attach()

    # --- opening --------------------------------------------------------------------------------

    def _load(self) -> None:
        """Take in the queues, and let them agree with the log that recovery left."""
        parts = self._parts
        report = parts.recovery
        start = report.start
        for key in listed_queues(self._root):
            queue = self._take_in(key)
            parts.problems += queue.load(after_crash=not parts.was_clean)
            lost = queue.settle(report.end if parts.was_clean else report.start)
            start = start if lost is None else min(start, lost)
        self._said = batch_topics_in(parts.layout)
        for topic in self.names - self._said:  # as the log told
            self._say(topic)
        new = [name for name in self.names if not (self._root / name).is_dir()]
        if new:
            start = 0
        self._table.enter_batch = self.enter
        parts.kinds.enters_batches = True
        if self.names:  # else there is nothing to enter, and the store may be running
            self._enter_all(max(start, parts.log.min_offset), report.end)
        for name in new:
            self._make_directory(name)
        for key, queue in self._mapped.items():
            counter = QueueCounter(key, key.topic.encode(), key.queue_id, queue.max_offset)
            parts.log.counters[key] = counter

    def _enter_all(self, start: int, end: int) -> None:
        parts, dispatcher = self._parts, self._parts.dispatcher
        if start < end:
            check_crc = parts.config.check_crc_on_recover
            dispatcher.dispatch_range(start, end, force=False, check_crc=check_crc)
        time_ms = parts.recovery.last_store_timestamp_ms
        dispatcher.start_at(end, last_store_timestamp_ms=time_ms)
        dispatcher.stepped_over.clear()  # recovery has reported them

    def _make_directory(self, topic: str) -> None:
        """Make the directory that says of a topic that its queues are whole."""
        self._parts.disk.make_directory(self._root / topic)

    def _take_in(self, key: QueueKey) -> MappedBatchQueue:
        directory = self._root / key.topic / str(key.queue_id)
        queue = MappedBatchQueue(directory, self._file_size, disk=self._parts.disk)
        self._mapped[key] = self._table.batch_queues[key] = queue
        return queue

    # --- dispatch -------------------------------------------------------------------------------

    def enter(self, columns: RecordColumns, number: int) -> PutEntry:
        """Enter a record of a batch topic into its queue; on the dispatching thread."""
        key = QueueKey(columns.topic(number), int(columns.queue_id[number]))
        entry = entry_of(columns, number)
        if not entry.is_written or key.queue_id < 0 or not is_directory_name(key.topic):
            _log.warning(
                "batch_queue.refused", why="it does not say which queue offsets its messages have",
                queue=str(key), physical_offset=int(columns.physical_offset[number]),
            )  # fmt: skip
            return PutEntry.REFUSED
        if key.topic not in self._said:
            self._say(key.topic)
        return (self._mapped.get(key) or self._take_in(key)).put(entry)

    def _say(self, topic: str) -> None:
        """Say in the table what a record told; no other thread writes it now or in a slave."""
        self._file.mark(topic, TopicConfig(topic_name=topic).read_queue_nums, _marked)
        self._said |= {topic}

    # --- making a topic -------------------------------------------------------------------------

    def create(self, topic: str, queue_count: int = 1) -> None:
        """Make a batch topic, for good: ``topics.json`` says so, to brokers of 5.x as well.

        Parameters
        ----------
        topic
            One that is one already stays as it is.
        queue_count
            What the table says; any queue id can be put to.

        Raises
        ------
        StoreError
            The topic has messages, or stands in the table as one of another kind; or the store is
            a slave, of whose topics its master's log tells.
        StoreClosedError
            The store was closed, or is that of the process that forked this one.
        """
        self._store.check_open()
        check_topic(topic)
        check_queue_id(queue_count)
        if self._store.config.broker_role is BrokerRole.SLAVE:
            raise StoreError(
                f"{topic} cannot be made a batch topic of a slave", hint="make it in the master"
            )
        if topic in self.names:
            return

        def marks(known: Mapping[str, Any]) -> Mapping[str, Any]:
            if (known.get("attributes") or {}).get(QUEUE_TYPE) or known.get("memory"):
                raise StoreError(
                    f"{topic} cannot become a batch topic: {self._file.path} says another kind"
                )
            self._make_directory(topic)
            return _marked(known)

        with self._parts.becoming(topic, "batch"):
            self.kinds.batch |= {topic}
            self._file.mark(topic, queue_count, marks)
            self._said |= {topic}

    # --- puts -----------------------------------------------------------------------------------

    def put(self, message: Message, queue_id: int = 0) -> PutResult:
        """Store a message, which counts 1, or a batch that is encoded already."""
        flag, properties = message.sys_flag, message.properties
        is_plain = not isinstance(flag, int) or not flag & INNER_BATCH
        if is_plain and not (isinstance(properties, Mapping) and INNER_NUM in properties):
            return self._put(message, queue_id)
        record, waits = record_of(message, encoded_born_host, alone=True)
        return self._put_batch_record(message.topic, queue_id, record, wait_flush=waits)

    def put_prepared(
        self, prepared: PreparedMessage, body: bytes | None = None, queue_id: int = 0
    ) -> PutResult:
        """Store a prepared message as `put` does."""
        record = prepared.record
        if not (record.sys_flag & INNER_BATCH or INNER_NUM.encode() in record.properties):
            return self._put_prepared(prepared, body, queue_id)
        if body is not None:
            record = record.with_body(body_bytes(body))
        return self._put_batch_record(
            prepared.topic, queue_id, record, wait_flush=prepared.wait_flush
        )

    def put_batch(self, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages as one record; host, times and system flags are those of the first."""
        made = [record_of(message, encoded_born_host) for message in messages]
        first = made[0][0]
        if any(record.sys_flag != first.sys_flag for record, _ in made):
            return self._illegal("messages of one batch have one sysFlag")
        if first.sys_flag & (COMPRESSED_FLAG | INNER_BATCH):
            return self._illegal("a message in a batch is neither compressed nor a batch itself")
        try:
            body = encode_client_batch((one.flag, one.body, one.properties) for one, _ in made)
        except FormatError as error:
            return self._illegal(str(error))
        record = Record(
            body,
            b"",
            first.born_host,
            sys_flag=first.sys_flag | _IS_BATCH,
            born_timestamp_ms=None if first.is_born_now else first.born,
            reconsume_times=first.reconsume_times,
        )
        return self._put_batch_record(
            messages[0].topic, queue_id, record, wait_flush=all(waits for _, waits in made)
        )

    def put_client_batch(  # noqa: PLR0913 - as `BaseStore.put_client_batch`
        self,
        topic: str,
        queue_id: int,
        batch: bytes | memoryview,
        *,
        properties: Mapping[str, str] | bytes = b"",
        sys_flag: int = 0,
        born_host: str = DEFAULT_HOST,
        wait_flush: bool = True,
        **fields: Any,
    ) -> PutResult:
        """Store a batch as a producer encodes it, as one record with `properties` of its own."""
        refuse_transaction(sys_flag)
        block, may_wait = storable_block(properties)
        record = Record(
            body_bytes(batch),
            block,
            encoded_born_host(born_host),
            sys_flag=sys_flag | _IS_BATCH,
            **fields,
        )
        waits = wait_flush and may_wait
        return self._put_batch_record(topic, queue_id, record, wait_flush=waits)

    def put_record(
        self, topic: str, queue_id: int, record: Record, *, wait_flush: bool = True
    ) -> PutResult:
        """Store a record as it is; of a batch with the queue offset that it gets here."""
        if not record.sys_flag & INNER_BATCH:
            return self._put_record(topic, queue_id, record, wait_flush=wait_flush)
        return self._put_batch_record(topic, queue_id, record, wait_flush=wait_flush)

    def _put_batch_record(
        self, topic: str, queue_id: int, record: Record, *, wait_flush: bool
    ) -> PutResult:
        check_queue_id(queue_id)
        properties = decode_properties(record.properties)
        if not record.sys_flag & INNER_BATCH:
            return self._illegal(f"property {INNER_NUM}, but sysFlag says that it is not a batch")
        if (
            not record.offset_count
            or delay_level(properties) > 0
            or INNER_MULTI_DISPATCH in properties
        ):
            return self._illegal("a batch is not delayed, of a transaction, or for several queues")
        try:
            body = inflated(record.body, record.sys_flag, "that is put")
            count = sum(1 for _ in decode_client_batch(body))
        except FormatError as error:
            raise RefusedMessageError(f"batch of {len(record.body)} bytes: {error}") from error
        if properties.pop(INNER_NUM, str(count)) != str(count):
            return self._illegal(f"property {INNER_NUM} is not the {count} messages of the batch")
        if not 0 < count <= BATCH_COUNT_MAX:
            return self._illegal(f"a batch has 1 to {BATCH_COUNT_MAX} messages, not {count}")
        while True:
            base = self._parts.log.next_queue_offset(QueueKey(topic, queue_id))
            properties |= {INNER_NUM: str(count), INNER_BASE: str(base)}
            held = with_properties(record, encode_properties(properties))
            held.hold_batch(base, count)
            try:
                result = self._put_record(topic, queue_id, held, wait_flush=wait_flush)
            except QueueMovedError:  # by a put of another thread: this one comes after it
                continue
            return msgspec.structs.replace(result, message_count=count)

    def _illegal(self, why: str) -> PutResult:
        self._store.statistics.note_failed_put()
        return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, detail=why)

    # --- routes ---------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Let the store's calls that name a batch topic come here; a closed store has none."""
        store: Any = self._store
        self._put: Callable[..., PutResult] = store.put
        self._put_prepared: Callable[..., PutResult] = store.put_prepared
        self._put_record: Callable[..., PutResult] = store.put_record
        self.attach_reads(lambda: self.queues)
        self.attach_puts()


def _marked(known: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = known.get("attributes") or {}
    return {"attributes": {**attributes, QUEUE_TYPE: BATCH_QUEUES}}


def file_size(layout: StoreLayout, config: StoreConfig, sizes: StoreSizes) -> int:
    """Return the length of a batch queue's file: set, or learnt from the files.

    Else it has as many entries as a ConsumeQueue's file, which are 5.x's 300,000 by default.
    """
    root, entry = layout.batch_consume_queue, BATCH_ENTRY_SIZE_BYTES
    wanted = config.mapped_file_size_batch_queue
    if wanted is not None:
        return -(-wanted // entry) * entry
    queues = [root / key.topic / str(key.queue_id) for key in listed_queues(root)]
    usual = commonest(file_lengths(queues), entry)
    if usual is not None:
        return usual.size_bytes
    return sizes.consume_queue_file_bytes // ENTRY_SIZE_BYTES * entry
