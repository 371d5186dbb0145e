"""How commands read a store: without a lock, beside any writer, never changing a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.storage.results import GetMessageStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketstore.cli.options import StoreSettings
    from rocketstore.message import StoredMessage
    from rocketstore.storage.read_only import ReadOnlyStore


def open_for_reading(path: Path, settings: StoreSettings | None) -> ReadOnlyStore:
    """Open a store read-only."""
    from rocketstore.cli.options import StoreSettings as Settings
    from rocketstore.storage.read_only import ReadOnlyStore as Store

    return Store.open(path, (settings or Settings()).load())


def read_queue(
    reader: ReadOnlyStore, topic: str, queue_id: int, offset: int, limit: int, tags: str | None
) -> Iterator[StoredMessage]:
    """Yield up to `limit` messages of a queue, over as many pages as that takes.

    A page is bounded by the limits of 4.9 (32 messages, 800 entries scanned), so an empty page
    is not the end of the queue.
    """
    while limit > 0:
        page = reader.get(topic, queue_id, offset, limit, tags)
        yield from page.messages
        limit -= len(page.messages)
        goes_on = page.status in (
            GetMessageStatus.FOUND,
            GetMessageStatus.NO_MATCHED_MESSAGE,
            GetMessageStatus.MESSAGE_WAS_REMOVING,
            GetMessageStatus.OFFSET_TOO_SMALL,
            GetMessageStatus.OFFSET_FOUND_NULL,
        )
        if not goes_on or page.next_offset <= offset:
            return
        offset = page.next_offset
