"""What a stream is asked for, and how far it has come, as Spark keeps that in its checkpoint.

A place is the number of what comes next (a physical offset, or a queue offset), evidence of the
record before it (where it starts, and the CRC-32 of all its bytes), and where its batch began,
since Spark asks for the initial offset again after a restart::

    {"version": 1, "log": {"broker-a": {"offset": 4711, "record": 4500, "crc": 1234, "since": 80}}}
    {"version": 1, "queues": {"broker-a": {"orders": {"0": {"offset": 23, "record": 4500, ...}}}}}

Evidence of the record *at* a place would be impossible at the end of a log, where a stream usually
is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline import option_table, options
from rocketstore.pipeline.columns import RECORD_TABLES
from rocketstore.pipeline.options import ANY_BROKER, EARLIEST, LATEST, GivenOptions, QueuePlace
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

VERSION: Final = 1
LOG: Final = "log"
QUEUES: Final = "queues"
WHOLE_LOG: Final = QueueKey("", -1)  # a store's log where options name queues

_FOLLOWED: Final = {LOG: "the whole log", QUEUES: "queues (subscribe, subscribePattern or assign)"}
_BY_TIME: Final = "startingOffsetsByTimestamp"
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_STARTS: Final = ("startingOffsets", "startingTimestamp", _BY_TIME)
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "-2": EARLIEST, "-1": LATEST}

Key = tuple[str, ...]  # of a log (broker,), of a queue (broker, topic, queue id)
Starts = dict[QueuePlace | None, int]


class Place(NamedTuple):
    """What comes next, the record before it if it is known, and where the batch began."""

    offset: int
    record: int | None = None
    crc: int | None = None
    since: int | None = None


Places = dict[Key, Place]


def to_json(kind: str, places: Places) -> dict[str, Any]:
    """Return an offset as Spark keeps it; equal offsets give equal text."""
    kept = {
        key: {name: n for name, n in place._asdict().items() if n is not None}
        for key, place in places.items()
    }
    return {"version": VERSION, kind: nested(kept)}


def from_json(saved: dict[str, Any], kind: str) -> Places:
    """Return an offset that a checkpoint holds, unless that is another version's or query's."""
    other = QUEUES if kind == LOG else LOG
    try:
        if saved.get("version") == VERSION and other not in saved:
            return dict(_flat(saved[kind], 1 if kind == LOG else 3))
    except (KeyError, TypeError, AttributeError):
        pass  # its content is not an offset either
    problem = f"its offset is not one of this version: {saved!r:.200}"
    if other in saved:
        problem = f"it is of a query that follows {_FOLLOWED[other]}, not {_FOLLOWED[kind]}"
    hint = "give this query a checkpointLocation of its own"
    raise ConfigError(f"the checkpoint is of no use here: {problem}", hint=hint)


def nested(flat: Mapping[Key, dict[str, int]]) -> dict[str, Any]:
    """Return what is kept or shown of logs or queues as nested objects, by the parts of its key."""
    outer: dict[str, Any] = {}
    # Queues by number, whatever the order they were found in.
    for key in sorted(flat, key=lambda key: (*key[:-1], key[-1].zfill(20))):
        inner = outer
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1]] = flat[key]
    return outer


def _flat(outer: Any, depth: int) -> Iterator[tuple[Key, Place]]:
    if not depth:
        yield (), Place(**outer)
        return
    for name, inner in outer.items():
        yield from (((name, *key), place) for key, place in _flat(inner, depth - 1))


class BatchLimits(NamedTuple):
    """Most records and bytes of a batch from one store, fewest records of all; None for no limit.

    Law: a batch holds a record where there is one, whatever it weighs, or it would wait for ever.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None

    def fitting(self, sizes: npt.NDArray[np.int64], rows: int = 0, size_bytes: int = 0) -> int:
        """Return how many of some records fit when `rows` of `size_bytes` were taken already."""
        count = len(sizes)
        if self.max_rows is not None:
            count = min(count, self.max_rows - rows)
        if self.max_bytes is not None:
            room = self.max_bytes - size_bytes
            count = min(count, int(sizes.cumsum().searchsorted(room, side="right")))
        return count if rows else max(count, min(1, len(sizes)))


UNLIMITED: Final = BatchLimits()


@dataclass(frozen=True)
class StreamOptions:
    """What a stream was asked for: of `read` everything but a start or an end.

    Queues, or logs (as `WHOLE_LOG`), begin at the first record since one of `start_times_ms`, or at
    the end unless they `must_have_time`, else where `starts` says; None names all of them.
    """

    read: options.ReadOptions
    starts: Starts
    start_times_ms: Starts
    must_have_time: bool
    limits: BatchLimits
    longest_wait_s: float

    def __str__(self) -> str:
        read = self.read
        topics = sorted(read.topics or {place.topic for place in read.queues or ()})
        chosen = read.topic_pattern or ",".join(topics)
        what = f"queues of {chosen}" if read.has_topic_choice else "the whole log"
        return f"{what} in {', '.join(read.locations)}"

    @property
    def row_options(self) -> options.ReadOptions:
        """The part of `read` that still has to be checked for a record of the batch."""
        return replace(self.read, topics=None, topic_pattern=None, queues=None)


def named_place(named: Starts, broker: str, queue: QueueKey) -> int | None:
    """Return the number that is given to a queue, or to all of them; its own broker's wins."""
    places = (QueuePlace(queue.topic, name, queue.queue_id) for name in (broker, ANY_BROKER))
    return next((named[one] for one in (*places, None) if one in named), None)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream, which must fit together."""
    values = GivenOptions(given, frozenset({option_table.STREAM}))
    read = options.read_options(values)
    if read.table not in RECORD_TABLES:
        hint = f"streams are of {' and '.join(sorted(RECORD_TABLES))}; read it with spark.read"
        raise values.refused("table", "names one that cannot be read as a stream", hint)
    first, *others = [name for name in _STARTS if name in values] or [""]
    if others:
        raise values.refused(others[0], f"excludes {first}", "give one of them")
    most, least = (values.number(f"{one}OffsetsPerTrigger", 1) for one in ("max", "min"))
    if least is not None and most is not None and least > most:
        raise values.refused("minOffsetsPerTrigger", f"is more than maxOffsetsPerTrigger, {most}")
    for name, needed in (("maxTriggerDelay", ["minOffsetsPerTrigger"]), (_STRATEGY, _STARTS[1:])):
        if name in values and not any(one in values for one in needed):
            raise values.refused(name, "means nothing alone", f"it needs {' or '.join(needed)}")
    since_ms = values.timestamp_ms("startingTimestamp")
    text = values.get("startingOffsets", "latest").strip().lower()
    # A log or queue that is not named is a new one: it begins at its beginning.
    starts: Starts = {None: EARLIEST if _BY_TIME in values else _KEYWORDS.get(text, EARLIEST)}
    if text not in _KEYWORDS:
        starts |= _numbers(values, read, "startingOffsets")
    times_ms = _numbers(values, read, _BY_TIME) if _BY_TIME in values else {}
    # Each with the default of those who use its names.
    strategies = ("error", "latest") if read.has_kafka_names else ("latest", "error")
    return StreamOptions(
        read,
        starts=starts,
        start_times_ms=times_ms if since_ms is None else {None: since_ms},
        must_have_time=values.one_of(_STRATEGY, strategies) == "error",
        limits=BatchLimits(most, values.byte_count("maxBytesPerTrigger"), least),
        longest_wait_s=values.seconds("maxTriggerDelay", 15 * 60),
    )


def read_options_of_either(given: Mapping[str, str]) -> options.ReadOptions:
    """Return what a batch query or a stream reads; its reader checks the options in full."""
    try:
        return options.parse_options(given)
    except ConfigError as batch_error:
        try:
            return parse_stream_options(given).read
        except ConfigError as stream_error:
            own = {
                one.name.lower()
                for one in option_table.OPTIONS
                if one.uses == {option_table.STREAM}
            }
            is_stream = any(key.lower() in own - {"startingoffsets"} for key in given)
            raise (stream_error if is_stream else batch_error) from None


def _numbers(values: GivenOptions, read: options.ReadOptions, name: str) -> Starts:
    """Return the offset or time that JSON gives each queue, or the log of each broker."""
    is_time = name == _BY_TIME
    if read.has_topic_choice:
        if is_time:
            places = options.queue_times_ms(values, name)
        else:
            places = options.parse_places(name, values[name], keyword="earliest, latest")
        options.check_offsets_are_of_chosen_topics(read, name, places)
        return dict(places.items())
    what, least = ("times in ms", 0) if is_time else ("-1, -2, offsets", EARLIEST)
    try:
        given = json.loads(values[name])
    except ValueError:
        given = None
    if not isinstance(given, dict) or any(type(n) is not int or n < least for n in given.values()):
        what = f'must be a word or {what} of brokers in JSON such as {{"broker-a":4711}}'
        hint = "to name queues, choose them: subscribe, subscribePattern or assign"
        raise values.refused(name, what, hint)
    return {QueuePlace(WHOLE_LOG.topic, name, WHOLE_LOG.queue_id): n for name, n in given.items()}
