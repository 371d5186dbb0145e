"""The loaded parts of a store, as `MessageStore.open` hands them to recovery."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.format.index_file import IndexLayout
from rocketstore.storage.checkpoint import read_checkpoint
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery.recover import RecoveryParts

if TYPE_CHECKING:
    from pathlib import Path

LOG_FILE_BYTES = 65_536
QUEUE_FILE_BYTES = 2000
INDEX_LAYOUT = IndexLayout(500, 2000)
"""Sizes of the golden stores."""


def load_parts(
    root: Path,
    *,
    now_ms: int,
    config: StoreConfig | None = None,
    log_file_bytes: int = LOG_FILE_BYTES,
    queue_file_bytes: int = QUEUE_FILE_BYTES,
    index_layout: IndexLayout = INDEX_LAYOUT,
    disk: Disk | None = None,
) -> RecoveryParts:
    """Load a store's files without recovering them."""
    config = config or StoreConfig()
    disk = disk or Disk()
    layout = StoreLayout.of(root)
    log = MappedFileQueue(layout.commit_log_directories, log_file_bytes, disk=disk)
    log.load()
    queues = ConsumeQueueTable(
        layout.consume_queue, queue_file_bytes, disk=disk, log_min_offset=lambda: log.min_offset
    )
    queues.load()
    index = IndexService(
        layout.index, index_layout, disk=disk, clock=lambda: now_ms, tz=UTC,
        enabled=config.message_index_enable,
    )  # fmt: skip
    index.load()
    dispatcher = Dispatcher(
        log,
        queues,
        index,
        readable_limit=lambda: log.max_offset,
        delays_ms=parse_delay_levels(config.message_delay_level),
        multi_dispatch=config.enable_multi_dispatch,
        lmq=config.enable_lmq,
    )
    return RecoveryParts(
        layout=layout,
        config=config,
        log=log,
        queues=queues,
        index=index,
        dispatcher=dispatcher,
        checkpoint=read_checkpoint(layout.checkpoint),
        disk=disk,
    )
