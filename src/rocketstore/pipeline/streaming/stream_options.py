"""Options of a stream: those of a query, and where and how fast it reads.

What says where it begins is for a query without a checkpoint. Limits hold per store: a busy store
never takes what another may read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import RECORD_TABLES
from rocketstore.pipeline.offsets import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    QueuePlace,
    parse_places,
    parse_timestamps,
)
from rocketstore.pipeline.option_table import OPTIONS, STREAM, GivenOptions
from rocketstore.pipeline.options import (
    ReadOptions,
    check_offsets_are_of_chosen_topics,
    parse_options,
    read_options,
)
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

WHOLE_LOG: Final = QueueKey("", -1)
"""Stands for a store's log where options name queues."""

_BY_TIME: Final = "startingOffsetsByTimestamp"
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_STARTS: Final = ("startingOffsets", "startingTimestamp", _BY_TIME)
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "-2": EARLIEST, "-1": LATEST}
_LONGEST_WAIT_S: Final = 15 * 60.0


class Limits(NamedTuple):
    """Most records and bytes that a batch has of one store, fewest records of all; None is none.

    Law: a batch holds at least one record where there is one, whatever it weighs: a stream that
    waits for a smaller record would wait for ever.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether everything there is may be read."""
        return self.max_rows is None and self.max_bytes is None

    def fitting(self, sizes: npt.NDArray[np.int64], rows: int = 0, size_bytes: int = 0) -> int:
        """Return how many of some records fit when `rows` of `size_bytes` were taken already."""
        count = len(sizes)
        if self.max_rows is not None:
            count = min(count, self.max_rows - rows)
        if self.max_bytes is not None:
            room = self.max_bytes - size_bytes
            count = min(count, int(sizes.cumsum().searchsorted(room, side="right")))
        return count if rows else max(count, min(1, len(sizes)))


UNLIMITED: Final = Limits()


@dataclass(frozen=True)
class StreamOptions:
    """What a stream was asked for.

    Attributes
    ----------
    read
        Table, columns, topics, damage and the like; without any start or end.
    start
        `EARLIEST` or `LATEST`: where begins what `starts` and `start_times_ms` do not name.
    starts
        First offset, `EARLIEST` or `LATEST` of queues, or of logs (as `WHOLE_LOG`).
    start_times_ms
        Store time of the first record of queues or logs; of all of them under the key None.
    must_have_time
        Whether it is an error that nothing was stored since then.
    """

    read: ReadOptions
    start: int = LATEST
    starts: dict[QueuePlace, int] = field(default_factory=dict)
    start_times_ms: dict[QueuePlace | None, int] = field(default_factory=dict)
    must_have_time: bool = False
    limits: Limits = UNLIMITED
    longest_wait_s: float = _LONGEST_WAIT_S

    @property
    def has_queues(self) -> bool:
        """Whether the stream follows queues, and not the whole log."""
        return self.read.has_topic_choice

    def __str__(self) -> str:
        read = self.read
        topics = sorted(read.topics or {place.topic for place in read.queues or ()})
        chosen = read.topic_pattern or ",".join(topics)
        what = f"queues of {chosen}" if self.has_queues else "the whole log"
        return f"{what} in {', '.join(read.locations)}"

    @property
    def row_options(self) -> ReadOptions:
        """Of `read`, what remains to be asked of a record that belongs to the batch."""
        return replace(self.read, topics=None, topic_pattern=None, queues=None)

    def limits_of(self, given: Any) -> Limits:
        """Return the limits of a batch for the ``ReadLimit`` that Spark hands over.

        Spark knows one limit of one kind, so the others of several options are applied here. Where
        it says "all" (``Trigger.Once``), no limit holds.
        """
        kind, (rows, size, least) = type(given).__name__, self.limits
        if kind == "ReadAllAvailable":
            return UNLIMITED
        if kind == "ReadMaxRows":
            rows = min(given.max_rows, rows or given.max_rows)
        elif kind == "ReadMaxBytes":
            size = min(given.max_bytes, size or given.max_bytes)
        return Limits(rows, size, least)

    def default_limit(self) -> Any:
        """Return the limit that Spark is to hand to every batch."""
        from pyspark.sql.streaming import datasource as spark  # noqa: PLC0415 - needs PySpark

        rows, size, least = self.limits
        if rows is not None:
            return spark.ReadMaxRows(rows)
        if size is not None:
            return spark.ReadMaxBytes(size)
        return spark.ReadAllAvailable() if least is None else spark.ReadMinRows(least)


def named_place(named: Mapping[Any, int], broker: str, queue: QueueKey) -> int | None:
    """Return the number that is given to a queue, or to all of them; its own broker's wins."""
    for name in (broker, ANY_BROKER):
        if (place := QueuePlace(queue.topic, name, queue.queue_id)) in named:
            return named[place]
    return named.get(None)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream.

    Raises
    ------
    ConfigError
        An option that a stream cannot have, a malformed value, or two that exclude each other.
    """
    values = GivenOptions(given, frozenset({STREAM}))
    read = read_options(values)
    if read.table not in RECORD_TABLES:
        what = "names one that cannot be read as a stream"
        hint = f"streams are of {' and '.join(sorted(RECORD_TABLES))}; read it with spark.read"
        raise values.refused("table", what, hint)
    chosen = [name for name in _STARTS if name in values]
    if len(chosen) > 1:
        raise values.refused(chosen[1], f"excludes {chosen[0]}", "give one of them")
    most, least = (values.number(f"{one}OffsetsPerTrigger", 1) for one in ("max", "min"))
    if least is not None and most is not None and least > most:
        raise values.refused("minOffsetsPerTrigger", f"is more than maxOffsetsPerTrigger, {most}")
    for name, needed in (
        ("maxTriggerDelay", ("minOffsetsPerTrigger",)), (_STRATEGY, _STARTS[1:]),
    ):  # fmt: skip
        if name in values and not any(one in values for one in needed):
            raise values.refused(name, "means nothing alone", f"it needs {' or '.join(needed)}")
    wait_s = values.seconds("maxTriggerDelay")
    options = StreamOptions(
        read,
        must_have_time=values.one_of(_STRATEGY, ("latest", "error")) == "error",
        limits=Limits(most, values.byte_count("maxBytesPerTrigger"), least),
        longest_wait_s=_LONGEST_WAIT_S if wait_s is None else wait_s,
    )
    return _with_start(options, values)


def read_options_of_either(given: Mapping[str, str]) -> ReadOptions:
    """Return what a batch query or a stream reads; its reader checks the options in full.

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
            own = {one.name.lower() for one in OPTIONS if one.uses == {STREAM}} - {
                "startingoffsets"
            }
            is_stream = any(key.lower() in own for key in given)
            raise (stream_error if is_stream else batch_error) from None


def _with_start(options: StreamOptions, values: GivenOptions) -> StreamOptions:
    since_ms = values.timestamp_ms("startingTimestamp")
    if since_ms is not None:
        return replace(options, start_times_ms={None: since_ms})
    # A log or queue that is not named is one that nobody knew of: it begins at its beginning.
    if _BY_TIME in values:
        if not options.has_queues:
            times: dict[QueuePlace, int] = _of_logs(values, _BY_TIME, "times in ms", 0)
        else:
            times = parse_timestamps(_BY_TIME, values[_BY_TIME])
            check_offsets_are_of_chosen_topics(options.read, _BY_TIME, times)
        return replace(options, start=EARLIEST, start_times_ms=dict(times.items()))
    text = values.get("startingOffsets", "latest").strip()
    if text.lower() in _KEYWORDS:
        return replace(options, start=_KEYWORDS[text.lower()])
    if not options.has_queues:
        what = "earliest, latest, or physical offsets"
        starts = _of_logs(values, "startingOffsets", what, EARLIEST)
    else:
        starts = parse_places("startingOffsets", text, keyword="earliest, latest")
        check_offsets_are_of_chosen_topics(options.read, "startingOffsets", starts)
    return replace(options, start=EARLIEST, starts=starts)


def _of_logs(values: GivenOptions, name: str, what: str, least: int) -> dict[QueuePlace, int]:
    """Return the number that JSON gives the log of each broker."""
    try:
        loaded = json.loads(values[name])
    except ValueError:
        loaded = None
    if not isinstance(loaded, dict) or any(
        type(number) is not int or number < least for number in loaded.values()
    ):
        what = f'must be {what} of brokers in JSON such as {{"broker-a":4711}}'
        hint = "to name queues, choose them: subscribe, subscribePattern or assign"
        raise values.refused(name, what, hint)
    topic, queue_id = WHOLE_LOG
    return {QueuePlace(topic, broker, queue_id): number for broker, number in loaded.items()}
