"""Messages by key: what the index suggests, held against the records.

The index knows 31 bits of a hash of topic and key, and whole seconds. What it returns are
candidates: other keys hash alike, items may be left over from records that are gone, and one record
may be indexed twice.

Law: a message is returned only when its topic and one of its keys (or its unique key) are exactly
those asked for and its store time lies in the range, each at most once, newest first. Candidates
that fail do not use up the quota (K-Q1), deleted records are passed over (K-Q2), the begin of the
range is exact to the millisecond (K-I5, K-I6), duplicates vanish (K-I8).

How derived: DefaultMessageStore.queryMessage and IndexService.queryOffset of 4.9 (spec B14, B15.4).
Java sorts each round by offset, oldest first, which mixes rounds; here the order is that of
IndexService.queryOffset, which is also the more useful one when there are more hits than wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.storage.record_access import message_at

if TYPE_CHECKING:
    from rocketstore.message import StoredMessage
    from rocketstore.storage.read_sources import IndexSource, LogSource


def find_messages(  # noqa: PLR0913 - the subject, the key and the three bounds of a query
    log: LogSource,
    index: IndexSource,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int | None = None,
    max_messages: int = 64,
) -> list[StoredMessage]:
    """Return the messages of a topic that carry a key, newest first.

    Parameters
    ----------
    key
        One of the words of ``KEYS``, or the value of ``UNIQ_KEY``.
    begin_ms, end_ms
        Range of store times, both included; an `end_ms` of None has no end.
    max_messages
        Most messages to return.
    """
    messages: list[StoredMessage] = []
    if max_messages <= 0 or not key:
        return messages
    seen: set[int] = set()
    for physical_offset in index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms):
        if physical_offset in seen:
            continue
        seen.add(physical_offset)
        message = message_at(log, physical_offset)
        if message is None or not is_hit(message, topic, key):
            continue
        stored = message.store_timestamp_ms
        if stored < begin_ms or (end_ms is not None and stored > end_ms):
            continue
        messages.append(message)
        if len(messages) == max_messages:
            break
    return messages


def is_hit(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message is of a topic and carries a key."""
    return message.topic == topic and (key in message.keys or key == message.unique_key)
