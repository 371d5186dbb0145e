"""What a rebuild has to know of a store beside its log: sizes of files, delay levels, switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.config import (
    ObservedSizes,
    parse_delay_levels,
    resolve_sizes,
)
from rocketstore.format.index_file import IndexLayout, is_index_file_name
from rocketstore.format.markers import (
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at
from rocketstore.pipeline.stores import commonest_size, offset_files
from rocketstore.scan.dispatch_state import NO_LEVEL_DELAY_MS, Int64Array

if TYPE_CHECKING:
    from rocketstore.config import StoreConfig


class RebuildSettings(NamedTuple):
    """Facts that every task needs.

    Attributes
    ----------
    delays_ms
        Delay of each level, from index 1; a level without one waits a second (spec F5).
    has_index
        ``messageIndexEnable``: without it the index is left as it is.
    multi_dispatch, lmq
        ``enableMultiDispatch``, ``enableLmq``.
    """

    queue_file_bytes: int
    slot_count: int
    item_count: int
    delays_ms: tuple[int, ...]
    has_index: bool
    multi_dispatch: bool
    lmq: bool

    @property
    def entries_per_file(self) -> int:
        """Entries of a queue file."""
        return self.queue_file_bytes // ENTRY_SIZE_BYTES

    @property
    def layout(self) -> IndexLayout:
        """Slots and items of an index file."""
        return IndexLayout(self.slot_count, self.item_count)

    @property
    def items_per_file(self) -> int:
        """Items that an index file takes: item 0 is never used."""
        return max(1, self.item_count - 1)

    @property
    def delays(self) -> Int64Array:
        """`delays_ms` as an array."""
        return np.array(self.delays_ms, np.int64)


def learn_settings(location: str, config: StoreConfig) -> RebuildSettings:
    """Return the settings of a store: set, else learnt from the commonest of its files.

    Raises
    ------
    ConfigError
        Slots and items of the index cannot be learnt.
    """
    files, root = files_at(location)
    queue_files = (
        file
        for topic in files.list(f"{root}/{CONSUME_QUEUE_DIRECTORY}")
        if topic.is_directory
        for queue in files.list(topic.path)
        if queue.is_directory
        for file in offset_files(files.list(queue.path))
    )
    index_files = (
        file
        for file in files.list(f"{root}/{INDEX_DIRECTORY}")
        if is_index_file_name(file.name) and not file.is_directory
    )
    has_layout = config.max_hash_slot_num is not None and config.max_index_num is not None
    has_queue_size = config.mapped_file_size_consume_queue is not None
    observed = ObservedSizes(
        consume_queue=None if has_queue_size else commonest_size(queue_files, ENTRY_SIZE_BYTES),
        index_file=None if has_layout else commonest_size(index_files),
    )
    sizes = resolve_sizes(config, observed)
    return RebuildSettings(
        sizes.consume_queue_file_bytes,
        sizes.hash_slot_count,
        sizes.index_item_count,
        _delays(config),
        config.message_index_enable,
        config.enable_multi_dispatch,
        config.enable_lmq,
    )


def _delays(config: StoreConfig) -> tuple[int, ...]:
    levels = parse_delay_levels(config.message_delay_level)
    delays = [NO_LEVEL_DELAY_MS] * (max(levels, default=0) + 1)
    for level, delay_ms in levels.items():
        delays[level] = delay_ms
    return tuple(delays)
