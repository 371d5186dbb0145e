"""What tasks tell the driver: counts, places and runs, never a record.

Law: facts of neighbouring byte ranges add up to the facts of both ranges together, so what the
driver concludes does not depend on how a log was cut.
"""

from __future__ import annotations

from typing import Final

import msgspec

NO_PLACE: Final = 2**63 - 1
"""The first of no places: larger than any."""


class QueueFacts(msgspec.Struct, array_like=True):
    """What the records of one chain say about one queue.

    Attributes
    ----------
    topic
        UTF-8 as stored.
    record_count, first, last
        Records with a place in the queue, the smallest and the largest queue offset they state.
    backed
        Runs of queue offsets whose entry agrees with a record.
    missing
        Runs of queue offsets of records whose entry is not there, or says something else.
    """

    topic: bytes
    queue_id: int
    record_count: int
    first: int
    last: int
    backed: list[tuple[int, int]]
    missing: list[tuple[int, int]]
    is_extra: bool
    """Whether only extra queues of multi-dispatch records are named here."""


class ChainFacts(msgspec.Struct, array_like=True):
    """Records, and a BLANK, that follow one another without a break, inside one byte range.

    Attributes
    ----------
    start, stop
        Physical offsets.
    placed_count, agreed_count, contradicted_count
        Records with a place in a queue; those whose entry agrees; those whose place another entry
        has.
    last_ms, latest_ms
        Store time of the last record, and the latest of all.
    lacking_count, first_lacking
        Keys that the index does not have, and the first record that has one.
    """

    start: int
    stop: int
    record_count: int = 0
    has_blank: bool = False
    record_bytes: int = 0
    body_bytes: int = 0
    placed_count: int = 0
    agreed_count: int = 0
    contradicted_count: int = 0
    last_ms: int = 0
    latest_ms: int = 0
    lacking_count: int = 0
    first_lacking: int = NO_PLACE
    queues: list[QueueFacts] = []


class DamageFacts(msgspec.Struct, array_like=True):
    """Bytes that are neither record nor blank nor the unwritten tail."""

    start: int
    stop: int
    reason: str
    evidence: str


class StrayItems(msgspec.Struct, array_like=True):
    """Items of an index file that no record calls for.

    Attributes
    ----------
    beyond
        A physical offset that lies at or behind the log's end only if they point there.
    """

    file: str
    count: int
    first_item: int
    beyond: int


class SplitFacts(msgspec.Struct, array_like=True, tag=True):
    """What stands in one byte range of a log."""

    base: int
    start: int
    stop: int
    chains: list[ChainFacts] = []
    damage: list[DamageFacts] = []
    stray: list[StrayItems] = []
    is_gone: bool = False
    """The file was deleted before it could be read."""


class Trouble(msgspec.Struct, array_like=True):
    """Something wrong inside one index file."""

    kind: str
    offset: int
    reason: str


class IndexFacts(msgspec.Struct, array_like=True, tag=True):
    """What one index file holds, looked at by itself."""

    file: str
    item_count: int
    first: int = -1
    last: int = -1
    troubles: list[Trouble] = []
    stray: list[StrayItems] = []


class EntryRun(msgspec.Struct, array_like=True):
    """Neighbouring entries of one kind that no intact record backs."""

    kind: str
    start: int
    stop: int


class GapFacts(msgspec.Struct, array_like=True, tag=True):
    """What stands in queue entries that no intact record backs."""

    queue: int
    runs: list[EntryRun]


Facts = SplitFacts | IndexFacts | GapFacts

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Facts)


def encode(facts: Facts) -> bytes:
    """Return facts as bytes."""
    return _encoder.encode(facts)


def decode(content: bytes) -> Facts:
    """Return facts from bytes."""
    decoded: Facts = _decoder.decode(content)
    return decoded
