"""A store of small files for tests, with a clock that the test moves and without threads."""

from pathlib import Path
from typing import Any

from rocketstore import MessageStore, StoreConfig
from support.clock import Clock

LOG_FILE_BYTES = 64 * 1024
QUEUE_FILE_BYTES = 2000

TINY: dict[str, Any] = {
    "mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 20, "max_index_num": 80,
}  # fmt: skip
"""Sizes of files of which a few messages fill several."""


def small_config(**settings: Any) -> StoreConfig:
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": LOG_FILE_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
        "retention": False,
    }
    return StoreConfig(**(sizes | settings))


def open_small(
    root: Path,
    clock: Clock | None = None,
    *,
    disk: Any = None,
    threads: bool = False,
    **settings: Any,
) -> MessageStore:
    return MessageStore.open(
        root, small_config(**settings), clock=clock or Clock(), disk=disk, threads=threads
    )
