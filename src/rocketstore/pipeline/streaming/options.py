"""Options of a stream: those of a query, and where and how fast it reads.

A stream has no end, so the options that name one are refused; `startingOffsets` and
`startingTimestamp` say where a *new* query begins, and mean nothing once it has a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import RECORD_TABLES
from rocketstore.pipeline.offsets import EARLIEST, LATEST, parse_places
from rocketstore.pipeline.option_table import STREAM, GivenOptions
from rocketstore.pipeline.options import (
    ReadOptions,
    check_offsets_are_of_chosen_topics,
    parse_options,
    read_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.pipeline.offsets import QueuePlace

_STARTS: Final = ("startingOffsets", "startingTimestamp")
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "-2": EARLIEST, "-1": LATEST}


@dataclass(frozen=True)
class StreamOptions:
    """What a stream was asked for.

    Attributes
    ----------
    read
        Table, columns, topics, damage and the like; without any start or end.
    start
        `EARLIEST` or `LATEST`: where begins what `queue_offsets` and `log_offsets` do not name.
    queue_offsets, log_offsets
        Where queues begin, or whole logs (by broker).
    starting_timestamp_ms
        Store time of the first record, if given.
    """

    read: ReadOptions
    start: int = LATEST
    queue_offsets: dict[QueuePlace, int] = field(default_factory=dict)
    log_offsets: dict[str, int] = field(default_factory=dict)
    starting_timestamp_ms: int | None = None
    max_offsets: int | None = None
    max_bytes: int | None = None

    @property
    def has_queues(self) -> bool:
        """Whether the stream follows queues, and not the whole log."""
        return self.read.has_topic_choice

    @property
    def row_options(self) -> ReadOptions:
        """Of `read`, what remains to be asked of a record that belongs to the batch."""
        return replace(self.read, topics=None, topic_pattern=None, queues=None)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream.

    Raises
    ------
    ConfigError
        As of ``parse_options``; an option that a stream cannot have.
    """
    values = GivenOptions(given, frozenset({STREAM}))
    read = read_options(values)
    if read.table not in RECORD_TABLES:
        raise ConfigError(
            f"table {read.table} cannot be read as a stream", key="table", value=read.table,
            hint=f"streams are of {' and '.join(sorted(RECORD_TABLES))}; read it with spark.read",
        )  # fmt: skip
    if all(name in values for name in _STARTS):
        raise ConfigError(
            "option startingTimestamp excludes startingOffsets", key="startingTimestamp",
            value=values["startingTimestamp"], hint="give one of them",
        )  # fmt: skip
    options = StreamOptions(
        read,
        starting_timestamp_ms=values.timestamp_ms("startingTimestamp"),
        max_offsets=values.number("maxOffsetsPerTrigger", 1),
        max_bytes=values.byte_count("maxBytesPerTrigger"),
    )
    return _with_start(options, values.get("startingOffsets", "latest").strip())


def read_options_of_either(given: Mapping[str, str]) -> ReadOptions:
    """Return what a batch query or a stream reads; whoever reads it checks the options in full.

    Raises
    ------
    ConfigError
        Neither can have these options.
    """
    try:
        return parse_options(given)
    except ConfigError as batch_error:
        try:
            return parse_stream_options(given).read
        except ConfigError as stream_error:
            is_stream = any("pertrigger" in key.lower() for key in given)
            raise (stream_error if is_stream else batch_error) from None


def _with_start(options: StreamOptions, text: str) -> StreamOptions:
    if text.lower() in _KEYWORDS:
        return replace(options, start=_KEYWORDS[text.lower()])
    # A log or queue that is not named is one that nobody knew of: it begins at its beginning.
    if not options.has_queues:
        return replace(options, start=EARLIEST, log_offsets=_log_offsets(text))
    places = parse_places("startingOffsets", text, keyword="earliest, latest")
    check_offsets_are_of_chosen_topics(options.read, "startingOffsets", places)
    return replace(options, start=EARLIEST, queue_offsets=places)


def _log_offsets(text: str) -> dict[str, int]:
    try:
        loaded = json.loads(text)
    except ValueError:
        loaded = None
    is_right = isinstance(loaded, dict) and all(
        type(offset) is int and offset >= EARLIEST for offset in loaded.values()
    )
    if not is_right or not isinstance(loaded, dict):
        raise ConfigError(
            "option startingOffsets: expected earliest, latest, or JSON of brokers and physical "
            f'offsets such as {{"broker-a":4711}}, found {text!r:.200}',
            key="startingOffsets", value=text,
            hint="queue offsets need subscribe, subscribePattern or assign",
        )  # fmt: skip
    return loaded
