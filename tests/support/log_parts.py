"""A CommitLog with its flusher and its writer, without queues, for tests of putting."""

from dataclasses import dataclass, field
from pathlib import Path

from rocketstore.config import StoreConfig
from rocketstore.format.host import encode_host
from rocketstore.storage.checkpoint import StoreCheckpoint
from rocketstore.storage.files.ahead import Preallocator
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.log.flush import CommitLogFlusher
from rocketstore.storage.log.writer import StoreWriter
from rocketstore.storage.running_flags import RunningFlags
from rocketstore.storage.statistics import StoreStatistics
from support.clock import Clock

LOG_FILE_BYTES = 4096


@dataclass
class LogParts:
    """Everything between a message and the disk."""

    root: Path
    config: StoreConfig = field(default_factory=StoreConfig)
    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=Clock)
    log_file_bytes: int = LOG_FILE_BYTES

    def __post_init__(self) -> None:
        directory = self.root / "commitlog"
        self.files = MappedFileQueue(directory, self.log_file_bytes, disk=self.disk)
        self.files.load()
        self.preallocator = Preallocator(
            lambda _base: [directory], self.log_file_bytes, disk=self.disk
        )
        self.log = CommitLog(
            self.files,
            preallocator=self.preallocator,
            clock=self.clock,
            store_host=encode_host(self.config.store_host),
            sync_flush=self.config.is_sync_flush,
            monotonic=self.clock,
        )
        self.checkpoint = StoreCheckpoint(self.root / "checkpoint", disk=self.disk)
        self.flusher = CommitLogFlusher(
            self.log, checkpoint=self.checkpoint, config=self.config, monotonic=self.clock
        )
        self.flags = RunningFlags()
        self.statistics = StoreStatistics(self.clock, self.log.every_counter, self.log.put_totals)
        self.writer = StoreWriter(
            self.log,
            wake=lambda: None,
            flusher=self.flusher,
            flags=self.flags,
            statistics=self.statistics,
            config=self.config,
            clock=self.clock,
        )

    def written(self) -> bytes:
        """Return the log's bytes as its files hold them, the last one up to its end."""
        return b"".join(file.read_at(0, file.write_position) for file in self.files.files)
