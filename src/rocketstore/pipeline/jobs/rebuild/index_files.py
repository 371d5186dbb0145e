"""Divide index items over index files, and build one file from its items.

An index file takes so many items and the next one begins: which items a file has follows from how
many each part of the log has. The file itself is written by the code that dispatch writes it with,
so its chains are the same.

Law: a file gets its name when it is whole.
"""

from __future__ import annotations

import mmap
import os
import uuid
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.errors import FieldRangeError
from rocketstore.format.index_file import next_index_file_name
from rocketstore.pipeline.jobs.rebuild.queue_files import open_whole
from rocketstore.scan import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rocketstore.format.index_file import IndexLayout
    from rocketstore.pipeline.jobs.rebuild.extraction import Items


class ItemRange(NamedTuple):
    """Index items of one part."""

    part: int
    start: int
    item_count: int


def divide_items(counts: Sequence[int], items_per_file: int) -> list[list[ItemRange]]:
    """Return the items of each index file.

    Parameters
    ----------
    counts
        Items of each part, in the order of the log.
    items_per_file
        What a file takes.
    """
    files: list[list[ItemRange]] = []
    room = 0
    for part, part_count in enumerate(counts):
        start = 0
        while start < part_count:
            if room == 0:
                files.append([])
                room = items_per_file
            count = min(room, part_count - start)
            files[-1].append(ItemRange(part, start, count))
            start += count
            room -= count
    return files


def index_names(first_timestamps_ms: Iterable[int]) -> list[str]:
    """Return the names of index files whose first items were stored at these times."""
    names: list[str] = []
    newest: str | None = None
    for timestamp_ms in first_timestamps_ms:
        try:
            newest = next_index_file_name(timestamp_ms, None, newest)
        except FieldRangeError:  # no date: a damaged header
            newest = next_index_file_name(0, None, newest)
        names.append(newest)
    return names


def build_index_file(
    path: str, layout: IndexLayout, items: Iterable[Items], *, sync: bool = True
) -> None:
    """Write an index file with some items under its name.

    Parameters
    ----------
    path
        The file; its directory is there, or the rebuild is over.
    items
        All items of the file, in the order of the log.
    """
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.{uuid.uuid4().hex}"
    try:
        _write(temporary, layout, items, sync=sync)
        os.replace(temporary, path)  # noqa: PTH105 - a path made of strings
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)  # noqa: PTH108 - as above


def _write(temporary: str, layout: IndexLayout, items: Iterable[Items], *, sync: bool) -> None:
    descriptor = open_whole(temporary, layout.size_bytes)
    try:
        mapping = mmap.mmap(descriptor, layout.size_bytes)
        put_all(np.frombuffer(mapping, np.uint8), layout, items)
        if sync:
            mapping.flush()
        # Not after an error: what still holds the array would turn it into another one.
        mapping.close()
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def put_all(
    array: np.ndarray[tuple[int], np.dtype[np.uint8]], layout: IndexLayout, items: Iterable[Items]
) -> None:
    """Put items into the bytes of a file, all of which have room there."""
    put: Callable[..., int] = kernels.load("put_items")
    for some in items:
        count = put(array, layout.slot_count, layout.item_count, *some)
        assert count == len(some.key_hashes), "a file is given no more items than it has room for"
