"""A small CommitLog on disk with its queues, its index and a dispatcher, for tests of dispatch."""

from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

from rocketstore.format.index_file import IndexLayout
from rocketstore.native.row import QueueColumn
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.units import QueueKey
from support.clock import Clock
from support.mapped_bytes import append_bytes
from support.synthetic_log import blank_bytes, record_bytes

LOG_FILE_BYTES = 4096
QUEUE_FILE_BYTES = 100
INDEX_LAYOUT = IndexLayout(5, 8)


@dataclass
class DispatchParts:
    """Everything between a log's bytes and its queues."""

    root: Path
    disk: Disk = field(default_factory=Disk)
    log_file_bytes: int = LOG_FILE_BYTES
    queue_file_bytes: int = QUEUE_FILE_BYTES
    index_layout: IndexLayout = INDEX_LAYOUT
    index_enabled: bool = True
    writer_limit: int | None = None
    clock: Clock = field(default_factory=Clock)
    offsets: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = MappedFileQueue(self.root / "commitlog", self.log_file_bytes, disk=self.disk)
        self.end = 0
        self.open_derived()

    def open_derived(self) -> None:
        """Open queues, index and dispatcher again, as a start does."""
        self.table = ConsumeQueueTable(
            self.root / "consumequeue",
            self.queue_file_bytes,
            disk=self.disk,
            log_min_offset=lambda: self.log.min_offset,
            writer_limit=self.writer_limit,
        )
        self.table.load()
        self.index = IndexService(
            self.root / "index", self.index_layout, disk=self.disk, clock=self.clock,
            is_enabled=self.index_enabled, tz=UTC,
        )  # fmt: skip
        self.index.load()
        self.dispatcher = Dispatcher(
            self.log, self.table, self.index, readable_limit=lambda: self.end,
            delays_ms={1: 1000, 2: 5000}, lmq=True,
        )  # fmt: skip

    def append(self, count: int = 1, **fields: object) -> list[int]:
        """Append records that continue their queue, and return their physical offsets."""
        placed = []
        for _ in range(count):
            key = (fields.get("topic", b"TopicTest"), fields.get("queue_id", 0))
            given = {"queue_offset": self.offsets.get(key, 0)} | fields
            if not given.get("sys_flag", 0) & 0x4:
                self.offsets[key] = given["queue_offset"] + 1
            placed.append(self._write(given))
        return placed

    def _write(self, fields: dict[str, object]) -> int:
        size = len(record_bytes(0, **fields))
        file = self.log.last() or self.log.create(0)
        if file.write_position + size + 8 > file.size:
            append_bytes(file, blank_bytes(file.size - file.write_position))
            file.write_position = file.size
            file = self.log.create(file.base + file.size)
        offset = file.end
        append_bytes(file, record_bytes(offset, **fields))
        self.end = file.end
        return offset

    def run(self) -> None:
        """Dispatch all there is."""
        while self.dispatcher.run_once():
            pass

    def queue(self, topic: str = "TopicTest", queue_id: int = 0):
        return self.table.get(QueueKey(topic, queue_id))

    def entries(self, topic: str = "TopicTest", queue_id: int = 0) -> list[tuple[int, int, int]]:
        """Every entry of a queue from its first file on, as stored."""
        queue = self.queue(topic, queue_id)
        return [
            tuple(queue.entry(offset)) for offset in range(queue.first_offset, queue.max_offset)
        ]

    def written(self) -> int:
        """Return how often an entry was written, a filler too, since the queues were opened."""
        return int(self.table.rows.queues[:, QueueColumn.CHANGES].sum())

    def bytes_on_disk(self) -> dict[str, bytes]:
        """The bytes of every queue file and index file, index files in order of their names."""
        found = {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted((self.root / "consumequeue").rglob("*"))
            if path.is_file()
        }
        for number, path in enumerate(sorted((self.root / "index").glob("*"))):
            found[f"index/{number}"] = path.read_bytes()
        return found
