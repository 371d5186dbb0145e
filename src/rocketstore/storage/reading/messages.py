"""The messages of a queue, page after page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.reading.reader import Reader
    from rocketstore.units import QueueKey


def messages_of(
    reader: Reader, queue: QueueKey, offset: int, tags: str | None = None
) -> Iterator[StoredMessage]:
    """Yield the messages of a queue from an offset on, as far as they can be read.

    A page is bounded as in 4.9 (32 messages, 800 entries looked at), so that with `tags` an empty
    one is not the end of the queue.
    """
    while offset < reader.max_offset(*queue):
        page = reader.get(*queue, offset, tags=tags)
        yield from page.messages
        if page.next_offset <= offset:
            return
        offset = page.next_offset
