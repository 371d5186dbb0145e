"""Options of the data source: parsed once, refused by name when unknown or out of place.

Law: no option is ever ignored. One that this source does not know, or that means nothing for the
chosen table, is an error that names it.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import (
    BODY,
    PROPERTIES,
    RECORD_TABLES,
    TABLES,
    column_type,
)
from rocketstore.pipeline.files import refuse_secrets
from rocketstore.pipeline.offsets import QueuePlace, parse_assignment, parse_offsets
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_SPLIT_BYTES: Final = 256 * MiB
"""A task costs 0.02 s of processor time before it reads a byte, so it should have work."""

DAMAGE_POLICIES: Final = ("fail", "skip", "report")

_EVERY: Final = frozenset(TABLES)
_QUEUES: Final = RECORD_TABLES | {"consumequeue"}
_TOPICS: Final = _QUEUES | {"queues", "topics", "consumers"}
_CUT: Final = RECORD_TABLES | {"consumequeue", "index", "damage"}


class Option(NamedTuple):
    """One option: where it means something, its default and its meaning, as the page has them."""

    name: str
    tables: frozenset[str]
    default: str
    meaning: str


OPTIONS: Final = (
    Option("path", _EVERY, "-", "one store, several separated by commas, or a directory of stores"),
    Option("paths", _EVERY, "-", "the same as a JSON array, as `load([...])` gives it"),
    Option("table", _EVERY, "messages", "which table to read"),
    Option("brokerName", _EVERY, "directory's name", "name of the store, one per store"),
    Option("storePathCommitLog", _EVERY, "-", "every directory of the log, when not `commitlog`"),
    Option("columns", _EVERY, "all", "columns to read, separated by commas, in this order"),
    Option("includeBody", frozenset({"messages"}), "true", "whether there is a column `body`"),
    Option("includeProperties", RECORD_TABLES, "true", "whether there is a column `properties`"),
    Option("decompressBody", frozenset({"messages"}), "true", "whether zlib bodies are inflated"),
    Option("subscribe", _TOPICS, "-", "topics, separated by commas"),
    Option("topic", _TOPICS, "-", "the same as `subscribe`"),
    Option("subscribePattern", _TOPICS, "-", "regular expression that a whole topic matches"),
    Option("assign", _TOPICS, "-", 'queues: `{"topic":[0,1]}`'),
    Option("startingOffsets", _QUEUES, "earliest", "first queue offset of each queue, JSON"),
    Option("endingOffsets", _QUEUES, "latest", "queue offset behind the last, JSON"),
    Option("startingTimestamp", RECORD_TABLES, "-", "store time in ms, from which on"),
    Option("endingTimestamp", RECORD_TABLES, "-", "store time in ms, before which"),
    Option("subExpression", RECORD_TABLES, "*", "tags, with two bars between several"),
    Option("maxSplitBytes", _CUT, "256 MiB", "most bytes of one task; `64m`, `1g` are understood"),
    Option("minPartitions", _CUT, "1", "least tasks, as far as there are bytes"),
    Option("failOnDataLoss", _QUEUES, "true", "whether missing files or offsets are an error"),
    Option("damage", RECORD_TABLES, "fail", "`fail`, `skip` or `report`"),
    Option("pushDownPredicate", _EVERY, "false", "whether the source uses the query's filter, too"),
    Option("maxOffsetsPerTrigger", RECORD_TABLES, "-", "streams: most records of a batch"),
    Option("maxBytesPerTrigger", RECORD_TABLES, "-", "streams: most bytes of records of a batch"),
    Option("maxHashSlotNum", frozenset({"index"}), "learnt", "slots of an index file"),
    Option("maxIndexNum", frozenset({"index"}), "learnt", "items of an index file"),
)
"""The page's table; names are matched without regard to case, as Spark's are."""

STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
"""Options that a batch query does not have."""

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}
_TOPIC_CHOICES: Final = ("subscribe", "topic", "subscribePattern", "assign")
_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1024, "m": MiB, "g": 1024 * MiB}


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
    push_down_predicate
        Whether filters of Spark are used where the query is planned.
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
    push_down_predicate: bool = False
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
    options = _known({key.lower(): value for key, value in given.items()})
    table = _one_of(options, "table", tuple(TABLES), "messages")
    for option in options:
        if table not in option.tables:
            raise _error(
                option.name,
                options[option],
                f"does not apply to table {table}",
                f"it belongs to {', '.join(sorted(option.tables))}",
            )
    values = {option.name: value for option, value in options.items()}
    for name in STREAM_ONLY:
        if name in values:
            raise _error(name, values[name], "is one of streams", "read with spark.readStream")
    topics, pattern, queues = _topic_choice(values)
    starting = parse_offsets(
        "startingOffsets", values.get("startingOffsets", "earliest"), keyword="earliest"
    )
    ending = parse_offsets("endingOffsets", values.get("endingOffsets", "latest"), keyword="latest")
    tags = values.get("subExpression")
    parsed = ReadOptions(
        table=table,
        locations=_locations(values),
        columns=_columns(values, table),
        broker_names=_names(values.get("brokerName", "")),
        decompress_body=_boolean(values, "decompressBody", default=True),
        topics=topics,
        topic_pattern=pattern,
        queues=queues,
        starting_offsets=starting,
        ending_offsets=ending,
        starting_timestamp_ms=whole_number(values, "startingTimestamp"),
        ending_timestamp_ms=whole_number(values, "endingTimestamp"),
        tags=None if tags is None else _tags(tags),
        max_split_bytes=byte_count(values, "maxSplitBytes") or DEFAULT_SPLIT_BYTES,
        min_partitions=whole_number(values, "minPartitions", minimum=1) or 1,
        fail_on_data_loss=_boolean(values, "failOnDataLoss", default=True),
        damage=_one_of(options, "damage", DAMAGE_POLICIES, "fail"),
        layout=_layout(values),
        push_down_predicate=_boolean(values, "pushDownPredicate", default=False),
        log_directories=_log_directories(values),
    )
    check_offsets_are_of_chosen_topics(parsed, "startingOffsets", starting)
    check_offsets_are_of_chosen_topics(parsed, "endingOffsets", ending)
    return parsed


def _known(given: Mapping[str, str]) -> dict[Option, str]:
    known = {}
    for key, value in given.items():
        option = _BY_KEY.get(key)
        if option is None:
            near = difflib.get_close_matches(key, _BY_KEY, n=1)
            hint = f"did you mean {_BY_KEY[near[0]].name}?" if near else None
            names = ", ".join(option.name for option in OPTIONS)
            raise _error(key, value, "is unknown", hint or f"there are {names}")
        known[option] = value
    return known


def _locations(values: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in values:
        try:
            listed = json.loads(values["paths"])
        except ValueError as error:
            raise _error("paths", values["paths"], "is no JSON array") from error
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise _error("paths", values["paths"], "is no JSON array of texts")
        locations = tuple(listed)
    else:
        locations = _names(values.get("path", ""))
    if not locations:
        raise ConfigError("no store is named", key="path", hint="give its directory to load()")
    for location in locations:
        refuse_secrets(location)
    return locations


def _log_directories(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories that a query names, by commas or as a JSON array."""
    text = values.get("storePathCommitLog")
    if text is None:
        return ()
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise _error("storePathCommitLog", text, "is no JSON array") from error
        names = tuple(str(one) for one in listed)
    else:
        names = _names(text)
    if not names or not all(Path(one).is_absolute() for one in names):
        raise _error("storePathCommitLog", text, "must name directories by whole paths")
    return tuple(dict.fromkeys(one.rstrip("/") for one in names))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _columns(values: Mapping[str, str], table: str) -> tuple[str, ...]:
    left_out = set()
    if not _boolean(values, "includeBody", default=True):
        left_out.add(BODY)
    if not _boolean(values, "includeProperties", default=True):
        left_out.add(PROPERTIES)
    if "columns" not in values:
        return tuple(name for name in TABLES[table] if name not in left_out)
    names = _names(values["columns"])
    for name in names:
        column_type(table, name)
    if not names or len(set(names)) < len(names):
        raise _error("columns", values["columns"], "must name columns, each once")
    if left_out & set(names):
        (first, *_) = left_out & set(names)
        raise _error("columns", values["columns"], f"names {first}, which is not included")
    return names


def _topic_choice(
    values: Mapping[str, str],
) -> tuple[frozenset[str] | None, str | None, frozenset[QueuePlace] | None]:
    chosen = [name for name in _TOPIC_CHOICES if name in values]
    if len(chosen) > 1:
        raise _error(chosen[1], values[chosen[1]], f"excludes {chosen[0]}", "give one of them")
    if not chosen:
        return None, None, None
    (name,) = chosen
    text = values[name]
    if name == "assign":
        return None, None, parse_assignment(name, text)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise _error(name, text, f"is no regular expression: {error}") from error
        return None, text, None
    topics = _names(text)
    if not topics:
        raise _error(name, text, "names no topic")
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


def _tags(expression: str) -> frozenset[str] | None:
    """Return the tags of ``a || b``; None where everything is wanted."""
    if expression.strip() in ("", "*"):
        return None
    tags = frozenset(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise _error("subExpression", expression, "names no tag", "write 'a || b', or '*' for all")
    return tags


def _layout(values: Mapping[str, str]) -> tuple[int, int] | None:
    slots = whole_number(values, "maxHashSlotNum", minimum=1)
    items = whole_number(values, "maxIndexNum", minimum=1)
    if slots is None and items is None:
        return None
    if slots is None or items is None:
        raise ConfigError("maxHashSlotNum and maxIndexNum come together", key="maxHashSlotNum")
    return slots, items


def _one_of(
    options: Mapping[Option, str], name: str, allowed: tuple[str, ...], default: str
) -> str:
    value = options.get(_BY_KEY[name.lower()], default)
    if value.lower() not in allowed:
        raise _error(name, value, f"must be one of {', '.join(allowed)}")
    return value.lower()


def _boolean(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise _error(name, values[name], "must be true or false")
    return text == "true"


def whole_number(values: Mapping[str, str], name: str, *, minimum: int = 0) -> int | None:
    """Return the number that an option has; None when it is not given.

    Raises
    ------
    ConfigError
        It is no number, or below `minimum`.
    """
    if name not in values:
        return None
    text = values[name].strip()
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise _error(name, values[name], f"must be a number of at least {minimum}")
    return int(text)


def byte_count(values: Mapping[str, str], name: str) -> int | None:
    """Return the bytes that an option has, such as ``64m``; None when it is not given.

    Raises
    ------
    ConfigError
        It is no number of bytes, or none at all.
    """
    if name not in values:
        return None
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", values[name], re.IGNORECASE | re.ASCII)
    count = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
    if count < 1:
        raise _error(name, values[name], "must be a number of bytes, such as 268435456 or 256m")
    return count


def _error(name: str, value: str, what: str, hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"option {name} {what}, found {value!r:.200}", key=name, value=value, hint=hint
    )
