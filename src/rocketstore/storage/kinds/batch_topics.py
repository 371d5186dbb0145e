"""Batch topics: their queues, puts of batches to them, and how their queues recover.

A topic is one if ``config/topics.json`` says ``"queue.type": "BatchCQ"`` of it, as a broker of 5.x
writes it, or if a record of the log holds a batch, which no other topic takes.

Law: the kind of a topic never changes; files of the other kind are an error, not a queue. After
opening, the queues have every record of the log that recovery kept and no other.

How derived: ConsumeQueueStore, DefaultMessageStore.asyncPutMessage, SendMessageProcessor of 5.3.1,
which this follows (spec F9); see docs/decisions/0029-batch-queues.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rocketstore.config.files import commonest, resolve_size
from rocketstore.errors import FormatError, RefusedMessageError, StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format.batch_queue_entry import BATCH_COUNT_MAX, BATCH_ENTRY_SIZE_BYTES, BatchEntry
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
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, QueueEntry
from rocketstore.format.refusals import delay_level
from rocketstore.format.stored_message import inflated
from rocketstore.message import COMPRESSED_FLAG, INNER_BATCH, NEED_UNWRAP, Message
from rocketstore.native.log_end import QueueCounter, Record
from rocketstore.rules.batch_entries import entry_of
from rocketstore.rules.extra_queues import with_properties
from rocketstore.rules.queue_kinds import compare_kinds
from rocketstore.storage.dispatch.entry_decisions import is_elsewhere, record_at
from rocketstore.storage.files.pread_files import file_lengths, made_files
from rocketstore.storage.kinds.batch_pages import BatchPages, LastBatch
from rocketstore.storage.queues.batch_queues import BatchQueue, MappedBatchQueue, PreadBatchQueue
from rocketstore.storage.queues.queue_listing import listed_queues
from rocketstore.storage.queues.topic_kinds import TopicKind
from rocketstore.storage.results import NotTakenError, PutMessageStatus
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.config import StoreConfig, StoreSizes
    from rocketstore.format.known_ends import QueueEnds
    from rocketstore.rules.files import FileFinding
    from rocketstore.scan.columns import RecordColumns
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.queues.pread_queue import PreadQueues
    from rocketstore.storage.queues.topic_file import TopicFile
    from rocketstore.storage.reading.pages import Pages

    _Queues: TypeAlias = dict[QueueKey, MappedBatchQueue] | PreadQueues[PreadBatchQueue]

_IS_BATCH: Final = INNER_BATCH | NEED_UNWRAP

_log: Final = get_logger(__name__)


class BatchQueues(TopicKind):
    """The batch topics of a store that is read; `queues` may grow."""

    name = "batch"

    def __init__(self, layout: StoreLayout, queues: _Queues) -> None:
        super().__init__()
        self._layout = layout
        self._root = layout.batch_consume_queue
        self._queues = queues
        self._last = LastBatch()
        self._said: frozenset[str] = frozenset()

    def claims(self, topic: str, said: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the table says that a topic has queues of batches."""
        return (said.get("attributes") or {}).get(QUEUE_TYPE) == BATCH_QUEUES

    def marks(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attribute of a broker of 5.x, besides those that stand there."""
        attributes = said.get("attributes") or {}
        return {"attributes": {**attributes, QUEUE_TYPE: BATCH_QUEUES}}

    def refuse_unsaid(self, said: frozenset[str]) -> None:
        """Raise where a topic has batch queues and the table does not call it a batch topic."""
        self._said = said
        for one in compare_kinds(said, [], listed_queues(self._root)).findings:
            where = self._layout.root
            raise StoreDamagedError(f"{where}/{one.file}: {one.reason}", hint=one.action)

    def queue(self, key: QueueKey) -> BatchQueue | None:
        """Return a queue that exists, else None."""
        return self._queues.get(key)

    def queue_keys(self) -> list[QueueKey]:
        """Return every queue."""
        return list(self._queues.keys())

    def pages(self, plain: Pages, question: tuple[str, int, str | None]) -> BatchPages:
        """Return what reads pages of a queue."""
        return BatchPages(plain, question, self._last)

    def enter(self, columns: RecordColumns, number: int) -> None:
        """Leave the queues as they are."""


class BatchTopics(BatchQueues):
    """The batch topics of a store that is written, or repaired."""

    _log: MappedFileQueue

    def __init__(
        self, layout: StoreLayout, config: StoreConfig, sizes: StoreSizes, file: TopicFile, *,
        disk: Disk,
    ) -> None:  # fmt: skip
        self._mapped: dict[QueueKey, MappedBatchQueue] = {}
        super().__init__(layout, self._mapped)
        self._disk, self._file = disk, file
        self._file_size = file_size(layout, config, sizes)
        self._is_recovered = False

    # --- puts -----------------------------------------------------------------------------------

    def is_by_itself(self, message: Message) -> bool:
        """Whether a message says nothing of a batch; one that holds a batch is no plain put."""
        properties = message.properties
        return properties is None or (isinstance(properties, dict) and INNER_NUM not in properties)

    def numbering(
        self, counter: QueueCounter, record: Record, *, checks: bool
    ) -> Callable[[], tuple[Record, Sequence[QueueCounter]]] | None:
        """Return what states a batch's first queue offset and count; None of a message by itself.

        Raises `NotTakenError` for what is not a batch, or asks for what batches cannot have.
        """
        is_batch = record.sys_flag & INNER_BATCH
        if not is_batch and not (checks and INNER_NUM.encode() in record.properties):
            return None
        properties = decode_properties(record.properties)
        if not is_batch:
            if INNER_NUM not in properties:
                return None
            raise _illegal(f"property {INNER_NUM}, but sysFlag says that it is not a batch")
        if (
            not record.offset_count
            or delay_level(properties) > 0
            or INNER_MULTI_DISPATCH in properties
        ):
            raise _illegal("a batch is not delayed, of a transaction, or for several queues")
        try:
            body = inflated(record.body, record.sys_flag, "that is put")
            count = sum(1 for _ in decode_client_batch(body))
        except FormatError as error:
            raise RefusedMessageError(f"batch of {len(record.body)} bytes: {error}") from error
        if properties.pop(INNER_NUM, str(count)) != str(count):
            raise _illegal(f"property {INNER_NUM} is not the {count} messages of the batch")
        if not 0 < count <= BATCH_COUNT_MAX:
            raise _illegal(f"a batch has 1 to {BATCH_COUNT_MAX} messages, not {count}")

        def numbered() -> tuple[Record, Sequence[QueueCounter]]:
            base = counter.next_offset
            stated = properties | {INNER_NUM: str(count), INNER_BASE: str(base)}
            held = with_properties(record, encode_properties(stated))
            held.hold_batch(count)
            return held, ()

        return numbered

    def joined(self, records: Sequence[Record]) -> Record:
        """Return messages as one record; host, times and system flags are those of the first."""
        first = records[0]
        if any(record.sys_flag != first.sys_flag for record in records):
            raise _illegal("messages of one batch have one sysFlag")
        if first.sys_flag & (COMPRESSED_FLAG | INNER_BATCH):
            raise _illegal("a message in a batch is neither compressed nor a batch itself")
        body = encode_client_batch((one.flag, one.body, one.properties) for one in records)
        return Record(
            body,
            b"",
            first.born_host,
            sys_flag=first.sys_flag | _IS_BATCH,
            born_timestamp_ms=None if first.is_born_now else first.born,
            reconsume_times=first.reconsume_times,
        )

    def client_record(
        self, batch: bytes, block: bytes, host: bytes, *, sys_flag: int = 0, **fields: Any
    ) -> Record:
        """Return a client's batch as one record with properties of its own."""
        return Record(batch, block, host, sys_flag=sys_flag | _IS_BATCH, **fields)

    # --- opening --------------------------------------------------------------------------------

    def load(self, log: MappedFileQueue, *, after_crash: bool) -> list[FileFinding[Path]]:
        """Take in the queues that have files."""
        self._log = log
        inodes: dict[int, Path] = {}
        return [
            problem
            for key in listed_queues(self._root)
            for problem in self._take_in(key).load(after_crash=after_crash, inodes=inodes)
        ]

    def _take_in(self, key: QueueKey) -> MappedBatchQueue:
        directory = self._root / str(key)
        queue = MappedBatchQueue(
            directory, self._file_size, lambda: self._log.min_offset, disk=self._disk
        )
        self._mapped[key] = queue
        return queue

    def recover(
        self, topics: frozenset[str], start: int, end: int, *, clean: bool,
        known: Mapping[QueueKey, QueueEnds], dispatch: Callable[[int, int], object],
    ) -> None:  # fmt: skip
        """Cut the queues to what is certain, and have the log entered again from there.

        Queues of a topic without a directory, or `known` and gone, are built from the whole log.
        """
        self._is_recovered = True
        begin = start
        for key, queue in self._mapped.items():
            is_wrong = partial(self._is_wrong, key)
            lost = queue.settle(end if clean else start, is_wrong, known.get(key))
            begin = begin if lost is None else min(begin, lost)
        for topic in topics - self._said:  # by a record of the log
            self._say(topic)
        new = [topic for topic in topics if not (self._root / topic).is_dir()]
        gone = [key for key in known if key.topic in topics and key not in self._mapped]
        if new or gone:
            begin = 0
        if topics:
            dispatch(begin, end)
        for topic in new:
            self.begin(topic)

    def _is_wrong(self, key: QueueKey, entry: BatchEntry) -> bool:
        """Whether an entry is another one than the intact record calls for that it points at."""
        file = self._log.find(entry.physical_offset)
        if file is None:
            return False
        record = record_at(file, entry.physical_offset - file.base)
        if record is not None and entry_of(record, 0).message_count != entry.message_count:
            return True
        return is_elsewhere(file, QueueEntry(*entry[:3]), key, entry.base_offset)

    def begin(self, topic: str) -> None:
        """Make the directory which marks a topic whose queues are whole."""
        self._disk.make_directory(self._root / topic)
        self._said |= {topic}

    # --- dispatch -------------------------------------------------------------------------------

    def enter(self, columns: RecordColumns, number: int) -> None:
        """Enter a record into its queue; before recovery of the queues this does nothing."""
        if not self._is_recovered:
            return
        key = QueueKey(columns.topic(number), int(columns.queue_id[number]))
        entry = entry_of(columns, number)
        if not entry.is_written or key.queue_id < 0 or not is_directory_name(key.topic):
            why = "it does not state the queue offsets of its messages"
            at = int(columns.physical_offset[number])
            _log.warning("batch_queue.refused", reason=why, queue=str(key), physical_offset=at)
            return
        if key.topic not in self._said:
            self._say(key.topic)
        (self._mapped.get(key) or self._take_in(key)).put(entry)

    def _say(self, topic: str) -> None:
        """Write into the table what a record showed; no other thread writes it now."""
        self._file.mark(topic, TopicConfig(topic_name=topic).read_queue_nums, self.marks)
        self._said |= {topic}

    def files(self) -> list[MappedBatchQueue]:
        """Return the queues to be flushed, cleaned and dropped."""
        return list(self._mapped.values())


def _illegal(why: str) -> NotTakenError:
    return NotTakenError(PutMessageStatus.MESSAGE_ILLEGAL, why)


def file_size(layout: StoreLayout, config: StoreConfig, sizes: StoreSizes) -> int:
    """Return the length of a batch queue's file: set, or learnt from the files.

    Else it has as many entries as a ConsumeQueue's file, which are 5.x's 300,000 by default.
    """
    root, entry = layout.batch_consume_queue, BATCH_ENTRY_SIZE_BYTES
    wanted = config.mapped_file_size_batch_queue
    wanted = None if wanted is None else -(-wanted // entry) * entry
    queues = [root / str(key) for key in listed_queues(root)]
    lengths = made_files(file_lengths(queues), wanted)
    usual = commonest(one for one in lengths if one[1] % entry == 0)
    default = sizes.consume_queue_file_bytes // ENTRY_SIZE_BYTES * entry
    key = "mapperFileSizeBatchConsumeQueue"
    return resolve_size(key, wanted, usual, default)
