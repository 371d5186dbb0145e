"""Rows of ``message tail``: the last messages of a topic, then each new one."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.cli.output import cell_text, fit, terminal_width
from rocketstore.storage.reading.reader import messages_of
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketstore.cli.options import Output
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.read_only import ReadOnlyStore

POLL_INTERVAL_S: Final = 0.1
_TURNS_PER_LISTING: Final = 5
"""Looks at the queues between two listings of their directory, which may have thousands."""

_LONGEST_BODY: Final = 4096
"""Characters of a body that a line shows where no terminal says less."""


def last_messages(
    reader: ReadOnlyStore, topic: str, queue_id: int | None, count: int, tags: str | None
) -> tuple[list[StoredMessage], dict[int, int]]:
    """Return the last messages by store time, and the offset at which each queue continues.

    With `tags` those of the last `count` messages of each queue that match.
    """
    messages: list[StoredMessage] = []
    ends: dict[int, int] = {}
    for key in _queue_ids(reader, topic, queue_id):
        end = ends[key] = reader.max_offset(topic, key)
        start = max(end - count, reader.min_offset(topic, key))
        found = itertools.islice(messages_of(reader, QueueKey(topic, key), start, tags), count)
        messages += [message for message in found if message.queue_offset < end]
    messages.sort(key=lambda one: (one.store_timestamp_ms, one.physical_offset))
    return messages[max(len(messages) - count, 0) :], ends


def new_messages(
    reader: ReadOnlyStore,
    topic: str,
    queue_id: int | None,
    ends: dict[int, int],
    tags: str | None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[StoredMessage]:
    """Yield messages as they come, for ever; queues that are new too."""
    for turn in itertools.count():
        is_idle = True
        if turn % _TURNS_PER_LISTING == 0:
            queue_ids = _queue_ids(reader, topic, queue_id)
        for key in queue_ids:
            offset = ends.get(key, 0)
            page = reader.get(topic, key, offset, 32, tags)
            yield from page.messages
            ends[key] = page.next_offset
            is_idle &= page.next_offset == offset
        if is_idle:
            sleep(POLL_INTERVAL_S)


def print_line(row: dict[str, Any], output: Output) -> None:
    """Print one message at once, as a line."""
    if output != "table":
        print(msgspec.json.encode(row).decode(), flush=True)
        return
    row["body"] = row["body"][:_LONGEST_BODY]
    names = ("storeTimestamp", "queueId", "queueOffset", "tags", "keys", "body")
    at, queue, offset, tags, keys, body = (cell_text(name, row[name]) for name in names)
    line = f"{at} {queue}/{offset} {tags} {keys} {body}".rstrip()
    width = terminal_width()
    print(line if width is None else fit(line, width), flush=True)


def _queue_ids(reader: ReadOnlyStore, topic: str, queue_id: int | None) -> list[int]:
    if queue_id is not None:
        return [queue_id]
    return [key.queue_id for key in reader.queues() if key.topic == topic]
