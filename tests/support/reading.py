"""What a consumer of a queue gets, page by page."""

from collections.abc import Iterator
from typing import Any

from rocketstore import GetResult, StoredMessage


def pages_of(store: Any, topic: str, queue_id: int = 0, **how: Any) -> Iterator[GetResult]:
    """Yield the pages from the first message of a queue to its end; `how` as in a get."""
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        page = store.get(topic, queue_id, offset, **how)
        assert page.next_offset > offset, page
        yield page
        offset = page.next_offset


def all_messages(store: Any, topic: str, queue_id: int = 0, **how: Any) -> Iterator[StoredMessage]:
    """Yield their messages."""
    for page in pages_of(store, topic, queue_id, **how):
        yield from page.messages
