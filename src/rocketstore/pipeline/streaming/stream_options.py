"""What a stream is asked for, and how far it has come, as Spark keeps that in its checkpoint.

A place in the log of a store is a physical offset, evidence of the record before it (where it
starts, and the CRC-32 of all its bytes), and where its batch began, since Spark asks for the
initial offset again after a restart. It stands for all queues of the store; those that begin after
the stream does are kept with their first numbers `until` the stream has passed them all::

    {"version": 1, "log": {"broker-a": {"offset": 4711, "record": 4500, "crc": 1234, "since": 80}}}
    {"version": 2, "queues": {"broker-a": {"offset": 4711, ..., "since": 80,
                                           "first": {"orders": {"0": 23}}, "until": 9000}}}

Evidence of the record *at* a place would be impossible at the end of a log, where a stream usually
is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline import option_table, options
from rocketstore.pipeline.columns import RECORD_TABLES
from rocketstore.pipeline.option_table import BY_TIME
from rocketstore.pipeline.options import EARLIEST, LATEST, GivenOptions, QueuePlace
from rocketstore.pipeline.queues import ALL_OFFSETS
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.native.row import Int64Array

LOG: Final = "log"
QUEUES: Final = "queues"
VERSIONS: Final = {LOG: 1, QUEUES: 2}  # of an offset; the first one of queues had a place of each

_FOLLOWED: Final = {LOG: "the whole log", QUEUES: "queues (subscribe, subscribePattern or assign)"}
_STARTS: Final = ("startingOffsets", *option_table.TIME_STARTS)
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST, "-2": EARLIEST, "-1": LATEST}

_KEPT: Final = range(1, 1001)  # characters of a choice that each offset keeps, for every batch

Starts = dict[QueuePlace | str | None, int]


class Place(NamedTuple):
    """What comes next, the record before it if it is known, and where the batch began.

    Up to `until`, queues in `first` (by topic and queue id) begin at a number of their own.
    `choice` is the option that chose the queues. `then` is the place, with a choice of its own, at
    which the stream stood before it went back for queues that were added to that.
    """

    offset: int
    record: int | None = None
    crc: int | None = None
    since: int | None = None
    first: dict[str, dict[str, int]] | None = None
    until: int | None = None
    choice: dict[str, str] | None = None
    then: dict[str, Any] | None = None

    def begun(self) -> Place:
        """Return the place where the next batch begins, without what is passed."""
        place = self
        if self.then and self.then["offset"] <= self.offset:
            place = Place(**self.then)._replace(choice=self.choice)
        if place.until is not None and place.until <= place.offset:
            place = place._replace(first=None, until=None)
        return place._replace(since=place.offset)

    @property
    def choices(self) -> tuple[dict[str, str] | None, ...]:
        """What is read here, and what of it was read before, see `queues.choosing`."""
        return self.choice, *(Place(**self.then).choices if self.then else ())

    def saved(self) -> dict[str, Any]:
        """Return the place as an offset has it."""
        return {field: value for field, value in self._asdict().items() if value is not None}


Places = dict[str, Place]


def ranges_of(place: Place) -> dict[QueueKey, range]:
    """Return the queues that begin at a number of their own, each with those that are wanted."""
    return {
        QueueKey(topic, int(queue_id)): range(number, ALL_OFFSETS.stop)
        for topic, queues in (place.first or {}).items()
        for queue_id, number in queues.items()
    }


def to_json(kind: str, places: Places) -> dict[str, Any]:
    """Return an offset as Spark keeps it; equal offsets give equal text."""
    kept = {name: places[name].saved() for name in sorted(places)}
    return {"version": VERSIONS[kind], kind: kept}


def from_json(saved: Any, kind: str) -> Places:
    """Return an offset that a checkpoint holds, unless that is another version's or query's."""
    other = QUEUES if kind == LOG else LOG
    fields = saved if isinstance(saved, dict) else {}  # other sources keep a number, say
    with suppress(KeyError, TypeError, AttributeError):  # its content is not an offset either
        if fields.get("version") == VERSIONS[kind] and other not in fields:
            return {name: Place(**one) for name, one in fields[kind].items()}
    problem = f"its offset is not one of this version: {saved!r:.200}"
    hint = "give this query a checkpointLocation of its own"
    if other in fields:
        problem = f"it is of a query that follows {_FOLLOWED[other]}, not {_FOLLOWED[kind]}"
    elif kind == QUEUES and fields.get("version") == 1:
        problem = "it has an offset of each queue (version 1), and now a place in the log is kept"
        hint += ", and to go on where it stood its last offsets as startingOffsets"
    raise ConfigError(f"this checkpoint cannot be used: {problem}", hint=hint)


class BatchLimits(NamedTuple):
    """Most records and bytes of a batch, fewest records of all stores; None for no limit.

    The most are of each store, or `of_all` together.

    Law: a batch holds a record where there is one, whatever it weighs, or it would wait for ever.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    of_all: bool = False

    def share(self, stores: int, rows: int, size_bytes: int) -> BatchLimits:
        """Return what one of some stores may have, where others have taken their part already."""
        if not self.of_all:
            return self
        most_rows, most_bytes = (
            most and max(1, (most - taken) // stores)
            for most, taken in ((self.max_rows, rows), (self.max_bytes, size_bytes))
        )
        return BatchLimits(most_rows, most_bytes)

    def fitting(self, sizes: Int64Array, rows: int = 0, size_bytes: int = 0) -> int:
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

    Queues, or logs (by store), begin at the first record since one of `start_times_ms`, or at the
    end unless that is refused, else where `starts` says; None names all of them. `choice` is
    the option that chose the queues, to be kept with offsets.
    """

    read: options.ReadOptions
    choice: dict[str, str] | None
    starts: Starts
    start_times_ms: Starts
    limits: BatchLimits
    longest_wait_s: float

    def __str__(self) -> str:
        read = self.read
        chosen = read.topic_pattern or ",".join(sorted(read.named_topics))
        what = f"queues of {chosen}" if read.has_topic_choice else "the whole log"
        return f"{what} in {', '.join(read.locations)}"


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream, which must fit together."""
    values = GivenOptions(given, frozenset({option_table.STREAM}))
    read = options.read_options(values)
    if read.table not in RECORD_TABLES:
        hint = f"streams are of {' and '.join(sorted(RECORD_TABLES))}; read it with spark.read"
        raise values.refused("table", "names one that cannot be read as a stream", hint)
    values.only_one(name for name in _STARTS if name in values)
    most, least = (values.number(f"{one}OffsetsPerTrigger", 1) for one in ("max", "min"))
    if least is not None and most is not None and least > most:
        raise values.refused("minOffsetsPerTrigger", f"is more than maxOffsetsPerTrigger, {most}")
    for name, needed in (
        ("maxTriggerDelay", ["minOffsetsPerTrigger"]),
        ("triggerLimitOf", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"]),
    ):
        values.check_company(name, needed)
    since_ms = values.timestamp_ms("startingTimestamp")
    text = values.get("startingOffsets", "latest").strip().lower()
    # A log or queue that is not named is a new one: it begins at its beginning.
    starts: Starts = {None: EARLIEST if BY_TIME in values else _KEYWORDS.get(text, EARLIEST)}
    if text not in _KEYWORDS:
        starts |= _numbers(values, read, "startingOffsets")
    times_ms = _numbers(values, read, BY_TIME) if BY_TIME in values else {}
    limit_of = ("all", "store") if read.has_kafka_names else ("store", "all")
    of_all = values.one_of("triggerLimitOf", limit_of) == "all"
    unit = "ms" if read.has_kafka_names else "s"
    chosen = options.TOPIC_CHOICES if read.has_kafka_names else ()
    kept = {one: values[one] for one in chosen if len(values.get(one, "")) in _KEPT}
    return StreamOptions(
        read,
        choice=kept or None,
        starts=starts,
        start_times_ms=times_ms if since_ms is None else {None: since_ms},
        limits=BatchLimits(most, values.byte_count("maxBytesPerTrigger"), least, of_all),
        longest_wait_s=values.seconds("maxTriggerDelay", 15 * 60, unit),
    )


def read_options_of_either(given: Mapping[str, str]) -> options.ReadOptions:
    """Return what a batch query or a stream reads; its reader checks the options in full."""
    try:
        return options.parse_options(given)
    except ConfigError as batch_error:
        try:
            return parse_stream_options(given).read
        except ConfigError as stream_error:
            of_stream, of_reads = (
                {one.name.lower() for one in option_table.OPTIONS if one.uses & uses}
                for uses in ({option_table.STREAM}, option_table.READS)
            )
            is_stream = any(key.lower() in of_stream - of_reads for key in given)
            raise (stream_error if is_stream else batch_error) from None


def _numbers(values: GivenOptions, read: options.ReadOptions, name: str) -> Starts:
    """Return the offset or time that JSON gives each queue, or the log of each broker."""
    is_time = name == BY_TIME
    if read.has_topic_choice:
        if is_time:
            return dict(options.queue_times_ms(values, name).items())
        return dict(options.parse_places(name, values[name], keyword="earliest, latest").items())
    what, least = ("times in ms", 0) if is_time else ("-1, -2, offsets", EARLIEST)
    what = f'must be a word or {what} of brokers in JSON such as {{"broker-a":4711}}'
    hint = "to name queues, choose them: subscribe, subscribePattern or assign"
    given = option_table.decoded(name, values[name], dict[str, int], what, hint)
    if any(number < least for number in given.values()):
        raise values.refused(name, what, hint)
    return dict(given.items())
