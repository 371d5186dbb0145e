"""Queues and queue offsets as JSON, the way Spark's Kafka source and rocketmq-spark take them.

Two levels name topic and queue, three name the broker in between::

    {"orders": {"0": 23, "1": -2}}              {"orders": {"broker-a": {"0": 23}}}

-2 is the earliest, -1 the latest offset. Nothing here looks at a store.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.pipeline.option_table import refused

if TYPE_CHECKING:
    from rocketstore.errors import ConfigError

EARLIEST: Final = -2
LATEST: Final = -1

ANY_BROKER: Final = ""
"""Broker of an offset that names none."""


class QueuePlace(NamedTuple):
    """A queue, of one broker or of whichever has it."""

    topic: str
    broker: str
    queue_id: int


def parse_offsets(key: str, text: str, *, keyword: str) -> dict[QueuePlace, int]:
    """Return the offset that each queue is given; empty for the keyword.

    Parameters
    ----------
    key
        Name of the option, for errors.
    text
        JSON, or the keyword.
    keyword
        ``earliest`` or ``latest``, whichever this option may be.

    Raises
    ------
    ConfigError
        Not that JSON, or an offset that this option may not have.
    """
    if text.strip().lower() == keyword:
        return {}
    forbidden = LATEST if keyword == "earliest" else EARLIEST
    places = parse_places(key, text, keyword=keyword)
    if forbidden in places.values():
        raise _refused(key, text, f"a queue offset, or {EARLIEST + LATEST - forbidden}")
    return places


def parse_places(key: str, text: str, *, keyword: str) -> dict[QueuePlace, int]:
    """Return the offset, -2 or -1 that JSON gives each queue.

    Parameters
    ----------
    key
        Name of the option, for errors.
    text
        JSON.
    keyword
        What else the option may be, for errors.

    Raises
    ------
    ConfigError
        Not that JSON, or no offset.
    """
    if not text.strip().startswith("{"):
        raise _refused(key, text, f"{keyword} or JSON such as " + '{"topic":{"0":23}}')
    found = {}
    for place, offset in _leaves(key, text).items():
        if type(offset) is not int or offset < EARLIEST:
            raise _refused(key, text, f"a queue offset, {EARLIEST} or {LATEST}")
        found[place] = offset
    return found


def parse_timestamps(key: str, text: str) -> dict[QueuePlace, int]:
    """Return the time in ms that JSON gives each queue.

    Raises
    ------
    ConfigError
        Not that JSON, or no time.
    """
    times = _leaves(key, text)
    if not times or not all(type(one) is int and one >= 0 for one in times.values()):
        raise _refused(key, text, 'JSON such as {"topic":{"0":1700000000000}}, times in ms')
    return times


def parse_assignment(key: str, text: str) -> frozenset[QueuePlace]:
    """Return the queues of ``{"topic": [0, 1]}`` or ``{"topic": {"broker": [0, 1]}}``.

    Raises
    ------
    ConfigError
        Not that JSON.
    """
    places = set()
    for topic, inner in _object(key, text).items():
        lists = inner if isinstance(inner, dict) else {ANY_BROKER: inner}
        for broker, queue_ids in lists.items():
            is_list = isinstance(queue_ids, list)
            if not is_list or not all(type(n) is int and n >= 0 for n in queue_ids):
                raise _refused(key, text, 'JSON such as {"topic":[0,1]}')
            places |= {QueuePlace(topic, broker, queue_id) for queue_id in queue_ids}
    return frozenset(places)


def _leaves(key: str, text: str) -> dict[QueuePlace, Any]:
    leaves: dict[QueuePlace, Any] = {}
    for topic, inner in _object(key, text).items():
        if not isinstance(inner, dict):
            raise _refused(key, text, 'JSON such as {"topic":{"0":23}}')
        for name, value in inner.items():
            queues = value if isinstance(value, dict) else {name: value}
            broker = name if isinstance(value, dict) else ANY_BROKER
            for queue, offset in queues.items():
                if not (queue.isascii() and queue.isdigit()):
                    raise _refused(key, text, f"a queue id where {queue!r} stands")
                leaves[QueuePlace(topic, broker, int(queue))] = offset
    return leaves


def _object(key: str, text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise _refused(key, text, "JSON") from error
    if not isinstance(loaded, dict):
        raise _refused(key, text, "a JSON object")
    return loaded


def _refused(key: str, text: str, expected: str) -> ConfigError:
    return refused(key, text, f"must be {expected}")
