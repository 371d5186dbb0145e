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
from rocketstore.pipeline.options import (
    STREAM_ONLY,
    ReadOptions,
    byte_count,
    check_offsets_are_of_chosen_topics,
    parse_options,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.pipeline.offsets import QueuePlace

_BATCH_ONLY: Final = {
    "endingOffsets": "which has no end",
    "endingTimestamp": "which has no end",
    "pushDownPredicate": "whose filters Spark keeps to itself",
}
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
    by_key = {key.lower(): value for key, value in given.items()}
    for name, reason in _BATCH_ONLY.items():
        if name.lower() in by_key:
            raise ConfigError(
                f"option {name} does not apply to a stream, {reason}", key=name,
                value=by_key[name.lower()], hint="read it with spark.read, or leave it out",
            )  # fmt: skip
    own = {name: by_key.pop(name.lower()) for name in (*_STARTS, *STREAM_ONLY)
           if name.lower() in by_key}  # fmt: skip
    read = parse_options(by_key)
    if read.table not in RECORD_TABLES:
        raise ConfigError(
            f"table {read.table} cannot be read as a stream", key="table", value=read.table,
            hint=f"streams are of {' and '.join(sorted(RECORD_TABLES))}; read it with spark.read",
        )  # fmt: skip
    if all(name in own for name in _STARTS):
        raise ConfigError(
            "option startingTimestamp excludes startingOffsets", key="startingTimestamp",
            value=own["startingTimestamp"], hint="give one of them",
        )  # fmt: skip
    options = StreamOptions(
        read,
        starting_timestamp_ms=whole_number(own, "startingTimestamp"),
        max_offsets=whole_number(own, "maxOffsetsPerTrigger", minimum=1),
        max_bytes=byte_count(own, "maxBytesPerTrigger"),
    )
    return _with_start(options, own.get("startingOffsets", "latest").strip())


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
            keys = {key.lower() for key in given}
            is_stream = any(name.lower() in keys for name in STREAM_ONLY)
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
