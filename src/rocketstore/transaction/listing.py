"""The transactions of a store that are open, for a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocketstore.format.properties import REAL_QID, REAL_TOPIC
from rocketstore.rules.half_messages import PRODUCER_GROUP
from rocketstore.tables.consumer_offsets import read_offsets
from rocketstore.transaction.ledger import endings_of, read_ledger
from rocketstore.transaction.records import times_checked

if TYPE_CHECKING:
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.reading.reader import Reader


class OpenTransaction(NamedTuple):
    """A transaction that nobody has ended; `half` is the copy that stands for it."""

    half: StoredMessage
    producer_group: str | None
    topic: str | None
    queue_id: str | None
    checks: int


def open_transactions(reader: Reader) -> list[OpenTransaction]:
    """Return the transactions that are open, oldest copy first; changes nothing."""
    offsets = {(key.topic, group, key.queue_id): offset
               for group, key, offset in read_offsets(reader.layout, reader).rows()}  # fmt: skip
    _, halves = read_ledger(reader, lambda *place: offsets.get(place))
    endings = endings_of(reader, halves)
    return [
        OpenTransaction(
            half,
            half.properties.get(PRODUCER_GROUP),
            half.properties.get(REAL_TOPIC),
            half.properties.get(REAL_QID),
            times_checked(half),
        )
        for half in halves
        if half.queue_offset not in endings
    ]
