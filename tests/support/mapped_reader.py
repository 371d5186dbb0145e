"""A `Reader` over the memory maps of a store directory, without recovery, lock or threads."""

from mmap import mmap
from pathlib import Path

from rocketstore.config import StoreConfig
from rocketstore.format.index_file import layout_of
from rocketstore.native.log_end import LogEnd
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file import MappedFile
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.files.pread_files import OpenFiles
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.index.pread_index import PreadIndex
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.storage.reading.reader import Reader


class MappedLog:
    """The CommitLog of a store that nobody writes to; all its files count as written."""

    is_mapped = True

    def __init__(self, files: MappedFileQueue, end: int | None = None) -> None:
        self.files = files
        for file in files.files:
            file.set_end(file.size if end is None else min(max(end - file.base, 0), file.size))
        self.max_offset = self.readable_limit = files.max_offset if end is None else end
        self.end = LogEnd(b"")
        self.end.max_offset = self.max_offset

    @property
    def min_offset(self) -> int:
        return max(self.files.min_offset, 0)

    def bytes_at(self, offset: int, _size: int) -> tuple[mmap, int, int, MappedFile] | None:
        file = self.files.find(offset)
        return None if file is None else (file.mapping, file.base, file.write_position, file)


def mapped_reader(root: Path, *, end: int | None = None) -> Reader:
    """Return a reader; `end` is where the log ends."""
    disk = Disk()
    size = _size_of_files(root / "commitlog")
    log_files = MappedFileQueue([], size, disk=disk, read_only_directories=[root / "commitlog"])
    log_files.load()
    log = MappedLog(log_files, end)
    queue_sizes = [path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")]
    queues = ConsumeQueueTable(
        root / "consumequeue",
        queue_sizes[0] if queue_sizes else 2000,
        disk=disk,
        log_min_offset=lambda: log.min_offset,
    )
    queues.load()
    index = PreadIndex(root / "index", OpenFiles())
    if any((root / "index").glob("*")):
        index = IndexService(
            root / "index", layout_of(_size_of_files(root / "index")), disk=disk, clock=lambda: 0
        )
        index.load()
    return Reader(StoreLayout.of(root), StoreConfig(), log, queues, index, TopicKinds())


def _size_of_files(directory: Path) -> int:
    return next(path.stat().st_size for path in sorted(directory.iterdir()))
