"""The most frequent keys, as a sketch of bounded size (Apache DataSketches, frequent items).

A task has one sketch for all its blocks, Spark puts those of a partition into one, and the driver
those of all: whatever the log, it holds two of them. Items are keys, and keys with their topic.

Law: a count is never too high, and too low by no more than what `most_frequent` says.
"""

from collections import Counter
from typing import Any, Final

from datasketches import frequent_items_error_type, frequent_strings_sketch

LG_SLOTS: Final = 15
"""Logarithm of a sketch's room: it holds three quarters of 32,768 items, is exact as long as there
are no more, and up to 1 MiB long. With more, a count is too low by at most 3.5 / 2**LG_SLOTS of all
counts: 0.011 %."""

TOPIC_MARK: Final = "\x02"
"""Between a key and its topic: ends a property, so no key has it."""


def new_sketch() -> Any:
    """Return an empty sketch."""
    return frequent_strings_sketch(LG_SLOTS)


def add_counts(sketch: Any, groups: Any) -> None:
    """Count messages by topic and key."""
    of_keys: Counter[str] = Counter()
    columns = (groups[name].to_pylist() for name in ("topic", "name", "messages"))
    for topic, key, messages in zip(*columns, strict=True):
        sketch.update(f"{key}{TOPIC_MARK}{topic}", messages)
        of_keys[key] += messages
    for key, messages in of_keys.items():
        sketch.update(key, messages)


def add_packed(sketch: Any, rows: Any) -> None:
    """Add the sketches of some rows, one after the other."""
    for packed in rows["sketch"].drop_null():
        sketch.merge(frequent_strings_sketch.deserialize(packed.as_py()))


def most_frequent(sketch: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the groups of parts ``keys`` and ``allKeys``, and by how much they may be too low."""
    found: list[dict[str, Any]] = []
    topics: Counter[str] = Counter()
    items = sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
    for item, _, messages, _ in items:
        key, mark, topic = item.partition(TOPIC_MARK)
        topics[key] += bool(mark)
        of_item = {"part": "keys", "topic": topic} if mark else {"part": "allKeys"}
        found.append(of_item | {"name": key, "messages": messages})
    for row in found:
        if row["part"] == "allKeys":
            row["number"] = max(1, topics[row["name"]])
    return found, int(sketch.get_upper_bound(""))
