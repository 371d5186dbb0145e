"""Where a group begins in a queue if it has no offset there and wants only new messages.

Source: ConsumerManageProcessor.queryConsumerOffset of 4.9, which answers 0 there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.storage.reading.pages import PageLimits

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore


def is_consumed_from_the_beginning(store: BaseStore, topic: str, queue_id: int) -> bool:
    """Whether a queue is empty, or still whole and so young that all of it may be in memory."""
    if store.min_offset(topic, queue_id) > 0:
        return False
    _, first = next(store.queue_entries(topic, queue_id, 0, 1), (0, None))
    span = PageLimits.from_config(store.config).memory_span_bytes
    return first is None or store.max_physical_offset - first.physical_offset <= span
