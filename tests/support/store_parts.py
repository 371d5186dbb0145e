"""The loaded parts of a store, as `MessageStore.open` hands them to recovery."""

from pathlib import Path

from rocketstore.config import StoreConfig, StoreSizes
from rocketstore.format.index_file import IndexLayout
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.topic_kinds import TopicKinds
from rocketstore.storage.recovery.recover import LoadedStore

LOG_FILE_BYTES = 65_536
QUEUE_FILE_BYTES = 2000
INDEX_LAYOUT = IndexLayout(500, 2000)
"""Sizes of the golden stores."""


def load_parts(root: Path, *, now_ms: int, config: StoreConfig | None = None) -> LoadedStore:
    """Load a store's files without recovering them."""
    return LoadedStore(
        StoreLayout.of(root),
        StoreSizes(LOG_FILE_BYTES, QUEUE_FILE_BYTES, *INDEX_LAYOUT),
        config or StoreConfig(),
        disk=Disk(),
        clock=lambda: now_ms,
        drop_later=lambda _drop: None,
        after_crash=False,
        kinds=TopicKinds(),
    )
