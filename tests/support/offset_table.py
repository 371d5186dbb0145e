"""A table of consumer offsets without a store."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocketstore.config import StoreConfig
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.tables.consumer_offsets import ConsumerOffsetTable


def offset_table(
    root: Path,
    config: StoreConfig | None = None,
    *,
    flush: Callable[[], object] = lambda: None,
    disk: Disk | None = None,
) -> ConsumerOffsetTable:
    """Return the table below `root`, which belongs to no log."""
    store: Any = SimpleNamespace(
        layout=StoreLayout.of(root),
        config=config or StoreConfig(),
        disk=disk or Disk(),
        kinds=TopicKinds(),
        flush=flush,
        check_held=lambda: None,
        appended_physical_offset=0,
    )
    return ConsumerOffsetTable(store)
