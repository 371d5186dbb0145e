"""What a query asked for, or a stream: what to read, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import BODY, PROPERTIES, TABLES, column_type
from rocketstore.pipeline.files import refuse_secrets
from rocketstore.pipeline.offsets import QueuePlace, parse_assignment, parse_offsets
from rocketstore.pipeline.option_table import STREAM, GivenOptions
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_SPLIT_BYTES: Final = 256 * MiB
"""A task costs 0.02 s of processor time before it reads a byte, so it should have work."""

DAMAGE_POLICIES: Final = ("fail", "skip", "report")

_TOPIC_CHOICES: Final = ("subscribe", "topic", "subscribePattern", "assign")


@dataclass(frozen=True)
class ReadOptions:
    """What a query asked for.

    Attributes
    ----------
    locations
        Paths or URIs of stores, or of directories of stores.
    columns
        In the wanted order.
    topics, topic_pattern, queues
        At most one of them is given.
    starting_offsets, ending_offsets
        Of queues that were given one.
    layout
        Slots and items of index files, when given.
    log_directories
        Where the files of the log lie; empty: in ``commitlog``.
    """

    table: str
    locations: tuple[str, ...]
    columns: tuple[str, ...]
    broker_names: tuple[str, ...] = ()
    decompress_body: bool = True
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queues: frozenset[QueuePlace] | None = None
    starting_offsets: dict[QueuePlace, int] = field(default_factory=dict)
    ending_offsets: dict[QueuePlace, int] = field(default_factory=dict)
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    tags: frozenset[str] | None = None
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    damage: str = "fail"
    layout: tuple[int, int] | None = None
    log_directories: tuple[str, ...] = ()

    @property
    def has_topic_choice(self) -> bool:
        """Whether not every topic is wanted."""
        return not (self.topics is None and self.topic_pattern is None and self.queues is None)

    @property
    def has_offsets(self) -> bool:
        """Whether some queue is not wanted from its beginning to its end."""
        return bool(self.starting_offsets or self.ending_offsets)

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is among the chosen ones."""
        if self.topics is not None:
            return topic in self.topics
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        if self.queues is not None:
            return any(place.topic == topic for place in self.queues)
        return True


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a query.

    Parameters
    ----------
    given
        Names in any case, and values as text.

    Raises
    ------
    ConfigError
        An unknown option, one that the table does not have, a malformed value, or two that exclude
        each other.
    """
    values = GivenOptions(given, frozenset({*TABLES, STREAM}))
    table = values.one_of("table", tuple(TABLES))
    values.check_table(table)
    starting = parse_offsets(
        "startingOffsets", values.get("startingOffsets", "earliest"), keyword="earliest"
    )
    ending = parse_offsets("endingOffsets", values.get("endingOffsets", "latest"), keyword="latest")
    parsed = read_options(
        values,
        starting_offsets=starting,
        ending_offsets=ending,
        starting_timestamp_ms=values.timestamp_ms("startingTimestamp"),
        ending_timestamp_ms=values.timestamp_ms("endingTimestamp"),
    )
    check_offsets_are_of_chosen_topics(parsed, "startingOffsets", starting)
    check_offsets_are_of_chosen_topics(parsed, "endingOffsets", ending)
    return parsed


def read_options(values: GivenOptions, **bounds: Any) -> ReadOptions:
    """Return what is read, of a query or a stream; `bounds` say from where to where.

    Raises
    ------
    ConfigError
        A malformed value, or options that exclude each other.
    """
    table = values.one_of("table", tuple(TABLES))
    topics, pattern, queues = _topic_choice(values)
    return ReadOptions(
        table=table,
        locations=_locations(values),
        columns=_columns(values, table),
        broker_names=values.names("brokerName"),
        decompress_body=values.boolean("decompressBody", default=True),
        topics=topics,
        topic_pattern=pattern,
        queues=queues,
        tags=_tags(values),
        max_split_bytes=values.byte_count("maxSplitBytes") or DEFAULT_SPLIT_BYTES,
        min_partitions=values.number("minPartitions", 1) or 1,
        fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
        damage=values.one_of("damage", DAMAGE_POLICIES),
        layout=_layout(values),
        log_directories=_log_directories(values),
        **bounds,
    )


def _locations(values: GivenOptions) -> tuple[str, ...]:
    locations = values.text_list("paths") if "paths" in values else values.names("path")
    if not locations:
        raise ConfigError("no store is named", key="path", hint="give its directory to load()")
    for location in locations:
        refuse_secrets(location)
    return locations


def _log_directories(values: GivenOptions) -> tuple[str, ...]:
    """Return the directories that a query names, by commas or as a JSON array."""
    name = "storePathCommitLog"
    if name not in values:
        return ()
    names = values.text_list(name) if values[name].lstrip().startswith("[") else values.names(name)
    if not names or not all(Path(one).is_absolute() for one in names):
        raise values.refused(name, "must name directories by whole paths")
    return tuple(dict.fromkeys(one.rstrip("/") for one in names))


def _columns(values: GivenOptions, table: str) -> tuple[str, ...]:
    left_out = set()
    if not values.boolean("includeBody", default=True):
        left_out.add(BODY)
    if not values.boolean("includeProperties", default=True):
        left_out.add(PROPERTIES)
    if "columns" not in values:
        return tuple(name for name in TABLES[table] if name not in left_out)
    names = values.names("columns")
    for name in names:
        column_type(table, name)
    if not names or len(set(names)) < len(names):
        raise values.refused("columns", "must name columns, each once")
    if left_out & set(names):
        (first, *_) = left_out & set(names)
        raise values.refused("columns", f"names {first}, which is not included")
    return names


def _topic_choice(
    values: GivenOptions,
) -> tuple[frozenset[str] | None, str | None, frozenset[QueuePlace] | None]:
    chosen = [name for name in _TOPIC_CHOICES if name in values]
    if len(chosen) > 1:
        raise values.refused(chosen[1], f"excludes {chosen[0]}", "give one of them")
    if not chosen:
        return None, None, None
    (name,) = chosen
    if name == "assign":
        return None, None, parse_assignment(name, values[name])
    if name == "subscribePattern":
        try:
            re.compile(values[name])
        except re.error as error:
            raise values.refused(name, f"is no regular expression: {error}") from error
        return None, values[name], None
    topics = values.names(name)
    if not topics:
        raise values.refused(name, "names no topic")
    return frozenset(topics), None, None


def check_offsets_are_of_chosen_topics(
    options: ReadOptions, key: str, places: Iterable[QueuePlace]
) -> None:
    """Refuse offsets of topics that the query does not read.

    Raises
    ------
    ConfigError
        There is such an offset, or no topic was chosen at all.
    """
    for place in places:
        if not options.has_topic_choice:
            raise ConfigError(
                f"option {key} needs to know the topics",
                key=key,
                hint="give subscribe, subscribePattern or assign",
            )
        if not options.wants_topic(place.topic):
            raise ConfigError(
                f"option {key} names topic {place.topic!r}, which is not chosen",
                key=key,
                value=place.topic,
                hint="add it to subscribe or assign, or leave it out",
            )


def _tags(values: GivenOptions) -> frozenset[str] | None:
    """Return the tags of ``a || b``; None where everything is wanted."""
    expression = values.get("subExpression", "*")
    if expression.strip() in ("", "*"):
        return None
    tags = frozenset(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise values.refused("subExpression", "names no tag", "write 'a || b', or '*' for all")
    return tags


def _layout(values: GivenOptions) -> tuple[int, int] | None:
    slots, items = values.number("maxHashSlotNum", 1), values.number("maxIndexNum", 1)
    if slots is None and items is None:
        return None
    if slots is None or items is None:
        raise ConfigError("maxHashSlotNum and maxIndexNum come together", key="maxHashSlotNum")
    return slots, items
