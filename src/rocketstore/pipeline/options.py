"""How the text of each option becomes a value, and what a read asks for.

Offsets of queues are JSON, the way Spark's Kafka source and rocketmq-spark take them: two levels
name topic and queue, three the broker in between. -2 is the earliest, -1 the latest offset::

    {"orders": {"0": 23, "1": -2}}              {"orders": {"broker-a": {"0": 23}}}

Law: no option is ever ignored. One that is not in the table, or means nothing where it is given, is
an error that names it. The value of an unknown one may be a password, and no error repeats it.
Nothing here looks at a store, except whether a path with commas exists.
"""

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from rocketstore.arguments import nearest
from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import (
    BODY,
    COLUMNS_OF,
    HEADERS,
    KAFKA,
    PROPERTIES,
    TABLES,
    column_type,
)
from rocketstore.pipeline.option_table import (
    OF_KAFKA,
    OPTIONS,
    PLACES,
    READS,
    SERVERS,
    SINK,
    SPARKS_OWN,
    STRATEGY,
    STREAM,
    TIME_STARTS,
    decoded,
    of_kafka,
    refused,
)
from rocketstore.places.location import is_remote, local_path, refuse_secrets
from rocketstore.units import MiB, QueueKey

DEFAULT_SPLIT_BYTES: Final = 256 * MiB  # a task costs 0.02 s of processor before it reads a byte

EARLIEST: Final = -2
LATEST: Final = -1
ANY_BROKER: Final = ""  # of an offset that names none
_SIDES: Final = (("starting", "earliest", LATEST), ("ending", "latest", EARLIEST))

TOPIC_CHOICES: Final = ("subscribe", "topic", "subscribePattern", "assign")

_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1024, "m": MiB, "g": 1024 * MiB}
_TIME_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = 2**63 - 1

_Texts: TypeAlias = Mapping[str, str]
Unit = TypeVar("Unit", int, float)


class QueuePlace(NamedTuple):
    """A queue, of one broker or of any that has it."""

    topic: str
    broker: str
    queue_id: int


class GivenOptions(dict[str, str]):
    """Options as given, under their names in the table; each means something to one of `uses`."""

    def __init__(self, given: Mapping[str, str], uses: frozenset[str]) -> None:
        super().__init__()
        known = {one.name.lower(): one.name for one in OPTIONS if one.uses & uses}
        for key, value in given.items():
            if key.lower() in SPARKS_OWN:
                continue
            if key.lower() not in known:
                raise _not_known(key, given, uses, known)
            if "\0" in value:
                raise refused(known[key.lower()], value, "has U+0000 in it")
            self[known[key.lower()]] = value

    def refused(self, name: str, what: str, hint: str | None = None) -> ConfigError:
        """Return the error that an option has a value that it cannot have."""
        return refused(name, self.get(name, ""), what, hint)

    def only_one(self, given: Iterable[str]) -> list[str]:
        """Return the option that is given of some that exclude each other, if any is."""
        found = [*given]
        if found[1:]:
            what = f"cannot be given together with {found[0]}"
            raise self.refused(found[1], what, "give one of them")
        return found

    def check_company(self, name: str, needed: Sequence[str]) -> None:
        """Refuse an option without any of those that it is about."""
        if name in self and not any(one in self for one in needed):
            raise self.refused(name, "does nothing by itself", f"it needs {' or '.join(needed)}")

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of some words, in lower case; the first one where nothing is given."""
        value = self.get(name, allowed[0]).strip().lower()
        if value not in allowed:
            raise self.refused(name, f"must be one of {', '.join(allowed)}")
        return value

    def is_on(self, name: str) -> bool:
        """Return true or false; true where nothing is given."""
        return self.one_of(name, ("true", "false")) == "true"

    def number(self, name: str, least: int = 0, most: int = _INT64_MAX) -> int | None:
        """Return a whole number; None where nothing is given."""
        limits = f"of at least {least}" if most == _INT64_MAX else f"from {least} to {most}"
        return self._measured(name, "()", {"": 1}, (least, most), f"a number {limits}")

    def byte_count(self, name: str, most: int = _INT64_MAX) -> int | None:
        """Return a number of bytes such as ``64m``; None where nothing is given."""
        limit = "" if most == _INT64_MAX else f" up to {most // MiB}m"
        what = f"a number of bytes{limit}, such as 268435456 or 256m"
        return self._measured(name, "([kmg]?)i?b?", _SIZE_UNITS, (1, most), what)

    def seconds(self, name: str, default: float, plain: str = "s") -> float:
        """Return a length of time such as ``90s``, of unit `plain` where it names none."""
        what = "a length of time, such as 500ms, 90s, 15m or 1h"
        units = _TIME_UNITS | {"": _TIME_UNITS[plain]}
        count = self._measured(name, "(ms|s|m|min|h|d|)", units, (0, 10**9), what)
        return default if count is None else count

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in ms, given so or in ISO 8601; None where nothing is given."""
        if name not in self:
            return None
        text = self[name].strip()
        if text.isascii() and text.isdigit() and len(text) <= len(str(_INT64_MAX)):
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            what = "must be ms since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z"
            raise self.refused(name, what) from error
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        # Store times are whole milliseconds: what is from or before a part of one is from the next.
        return -((_EPOCH - zoned) // timedelta(milliseconds=1))

    def names(self, name: str, *, json_too: bool = False) -> tuple[str, ...]:
        """Return names that stand between commas, or in a JSON array; none without a value."""
        text = self.get(name, "").strip()
        if json_too and text.startswith("["):
            return decoded(name, text, tuple[str, ...], "must be a JSON array of texts")
        return tuple(part.strip() for part in text.split(",") if part.strip())

    @property
    def has_kafka_names(self) -> bool:
        """Whether columns are called as Spark's Kafka source calls them."""
        words = (KAFKA, "rocketstore") if SERVERS in self else ("rocketstore", KAFKA)
        return self.one_of("columnNames", words) == KAFKA

    def path_name(self) -> str:
        """Return the name of the option that says where the store is."""
        given = self.only_one(one for one in PLACES if one in self)
        if any(re.fullmatch(r"(\w+://)?[\w.%:\[\]-]+:\d+", one) for one in self.names(SERVERS)):
            # A sink would make a directory of that name, and the messages would not be where meant.
            raise self.refused(SERVERS, "has addresses of brokers", "name the store's directory")
        return given[0] if given else "path"

    def places(self, name: str) -> tuple[str, ...]:
        """Return locations: the text as it stands if that is there, else those between commas."""
        whole = self.get(name, "")
        is_there = whole.strip() and not is_remote(whole) and os.path.lexists(local_path(whole))
        return (whole,) if is_there else self.names(name, json_too=name != "path")

    def _measured(
        self, name: str, unit: str, units: Mapping[str, Unit], limits: tuple[int, int], what: str
    ) -> Unit | None:
        """Return a number times its unit, within limits; None where nothing is given."""
        if name not in self:
            return None
        match = re.fullmatch(rf"\s*(\d{{1,19}})\s*{unit}\s*", self[name], re.IGNORECASE | re.ASCII)
        count = int(match[1]) * units[match[2].lower()] if match else -1
        if not limits[0] <= count <= limits[1]:
            raise self.refused(name, f"must be {what}")
        return count


def _not_known(key: str, given: _Texts, uses: frozenset[str], known: _Texts) -> ConfigError:
    if elsewhere := [one for one in OPTIONS if one.name.lower() == key.lower()]:
        its = set().union(*(one.uses for one in elsewhere))
        kind = "".join(uses) if len(uses) == 1 else ""
        place = {SINK: "a sink", STREAM: "a stream", "": "a read"}.get(kind, f"table {kind}")
        what, then = f"does not apply to {place}", f"it belongs to {', '.join(sorted(its))}"
        if its == {STREAM} and SINK not in uses:
            what, then = "applies to streams only", "read with spark.readStream"
        return refused(elsewhere[0].name, given[key], what, then)
    near = nearest(key, known.values())
    if hint := of_kafka(key, given, known):
        name = next((one for one in OF_KAFKA if one.lower() == key.lower()), key)
        return ConfigError(f"option {name} belongs to a Kafka client", key=name, hint=hint)
    hint = f"did you mean {near}? All" if near else "all"
    hint += " are in docs/reference/spark-options.md; Spark lowers their case"
    return ConfigError(f"option {key} is unknown", key=key, hint=hint)


def parse_places(key: str, text: str, *, keyword: str) -> dict[QueuePlace, int]:
    """Return the offset, -2 or -1 that JSON gives each queue; `keyword` is for errors."""
    if not text.strip().startswith("{"):
        raise refused(key, text, f'must be {keyword} or JSON such as {{"topic":{{"0":23}}}}')
    return parse_numbers(key, text, EARLIEST, f"a queue offset, {EARLIEST} or {LATEST}")


def parse_numbers(key: str, text: str, least: int, expected: str) -> dict[QueuePlace, int]:
    """Return the number that JSON gives each queue, `least` at least."""
    kind, what = dict[str, dict[str, int | dict[str, int]]], 'must be JSON such as {"t":{"0":23}}'
    given = [
        (topic, *((name, one) if isinstance(one, dict) else (ANY_BROKER, {name: one})))
        for topic, inner in decoded(key, text, kind, what).items()
        for name, one in inner.items()
    ]
    numbers: dict[QueuePlace, int] = {}
    for topic, broker, queues in given:
        for queue, number in queues.items():
            if not re.fullmatch("0|[1-9][0-9]*", queue):
                raise refused(key, text, f"must be a queue id where {queue!r} stands")
            if number < least:
                raise refused(key, text, f"must be {expected}")
            numbers[QueuePlace(topic, broker, int(queue))] = number
    return numbers


def of_broker(numbers: Mapping[Any, int], broker: str) -> dict[QueueKey, int]:
    """Return the offsets or times of queues that hold for a broker; the ones that name it win."""
    of_queues = [place for place in numbers if isinstance(place, QueuePlace)]
    places = [place for place in of_queues if place.broker in (ANY_BROKER, broker)]
    places.sort(key=lambda place: place.broker)
    return {QueueKey(place.topic, place.queue_id): numbers[place] for place in places}


def _parse_assignment(key: str, text: str) -> frozenset[QueuePlace]:
    """Return the queues of ``{"topic": [0, 1]}`` or ``{"topic": {"broker": [0, 1]}}``."""
    what = 'must be JSON such as {"topic":[0,1]}'
    found = decoded(key, text, dict[str, list[int] | dict[str, list[int]]], what)
    places = frozenset(
        QueuePlace(topic, broker, queue)
        for topic, of in found.items()
        for broker, queues in (of if isinstance(of, dict) else {ANY_BROKER: of}).items()
        for queue in queues
    )
    if not places or any(place.queue_id < 0 for place in places):
        raise refused(key, text, what if places else "names no queue")
    return places


@dataclass(frozen=True)
class ReadOptions:
    """What a query asked for; of `topics`, `topic_pattern` and `queues` at most one."""

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
    starting_times_ms: dict[QueuePlace, int] = field(default_factory=dict)
    ending_times_ms: dict[QueuePlace, int] = field(default_factory=dict)
    tags: frozenset[str] | None = None
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    must_have_time: bool = False  # fail where a queue has no message since its starting time
    damage: str = "fail"
    layout: tuple[int, int] | None = None  # slots and items of index files
    log_directories: tuple[str, ...] = ()  # none: in commitlog
    has_kafka_names: bool = False
    end_offset: str = ""  # of a batch of a stream
    had: tuple["ReadOptions", ...] = ()  # whose choices a stream has read already

    @property
    def columns_of(self) -> str:
        """The key of `COLUMNS_OF` that has the columns."""
        return KAFKA if self.has_kafka_names else self.table

    @property
    def has_topic_choice(self) -> bool:
        """Whether not every topic is wanted."""
        return not (self.topics is None and self.topic_pattern is None and self.queues is None)

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is among the chosen ones."""
        if self.topic_pattern is None:
            return not self.has_topic_choice or topic in self.named_topics
        if self.has_kafka_names:
            from rocketstore.rules.topics import is_reserved  # noqa: PLC0415 - few reads need it

            # As there: found anywhere in a name, and not in that of an internal topic.
            return re.search(self.topic_pattern, topic) is not None and not is_reserved(topic)
        return re.fullmatch(self.topic_pattern, topic) is not None

    @cached_property
    def named_topics(self) -> frozenset[str]:
        """The topics that are named, by themselves or with a queue."""
        return self.topics or frozenset(place.topic for place in self.queues or ())


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a query; `ConfigError` where one makes no sense."""
    table = GivenOptions(given, READS).one_of("table", tuple(TABLES))
    values = GivenOptions(given, frozenset({table}))
    parsed, bounds = read_options(values), dict[str, Any]()
    for side, keyword, not_allowed in _SIDES:
        name, by_time = f"{side}Offsets", f"{side}OffsetsByTimestamp"
        text = values.get(name, keyword)
        named = text.strip().lower() != keyword
        offsets = parse_places(name, text, keyword=keyword) if named else {}
        if not_allowed in offsets.values():
            raise values.refused(name, f"must be a queue offset or {keyword}, not {not_allowed}")
        times_ms = queue_times_ms(values, by_time)
        of_all = values.timestamp_ms(f"{side}Timestamp")
        # In Kafka's source the time for all is a third way to say it, and excludes the other two;
        # ours limits the rows of any choice.
        one_ms = of_all if values.has_kafka_names else None
        said = zip((name, by_time, f"{side}Timestamp"), (offsets, times_ms, one_ms), strict=True)
        values.only_one(one for one, what in said if what)
        check_offsets_are_of_chosen_topics(parsed, name, offsets)
        check_offsets_are_of_chosen_topics(parsed, by_time, times_ms)
        bounds |= {f"{side}_offsets": offsets, f"{side}_times_ms": times_ms}
        bounds[f"{side}_timestamp_ms"] = of_all
    read = replace(parsed, **bounds)
    low, high = read.starting_timestamp_ms, read.ending_timestamp_ms
    if values.has_kafka_names and low is not None and high is not None and high < low:
        raise values.refused("endingTimestamp", f"is before startingTimestamp, {low}")
    for name, starts, ends in (
        ("endingOffsets", read.starting_offsets, read.ending_offsets),
        ("endingOffsetsByTimestamp", read.starting_times_ms, read.ending_times_ms),
    ):
        for place in starts.keys() & ends.keys() if values.has_kafka_names else ():
            if LATEST < ends[place] < starts[place]:
                where = f"{place.topic}/{place.queue_id}"
                raise values.refused(name, f"ends {where} before its start, {starts[place]}")
    return read


def queue_times_ms(values: GivenOptions, name: str) -> dict[QueuePlace, int]:
    """Return the store time that JSON gives each queue."""
    if name not in values:
        return {}
    what = 'JSON such as {"topic":{"0":1700000000000}}, times in ms'
    times_ms = parse_numbers(name, values[name], 0, what)
    if not times_ms:
        raise values.refused(name, "names no queue")
    return times_ms


def read_options(values: GivenOptions) -> ReadOptions:
    """Return what is read, of a query or a stream, without from where to where."""
    table = values.one_of("table", tuple(TABLES))
    columns_of = KAFKA if values.has_kafka_names else table
    if columns_of == KAFKA and table != "messages":
        raise values.refused("table", "must be messages where columnNames is kafka")
    values.check_company(STRATEGY, TIME_STARTS)
    # With the default of those who use its names.
    strategies = ("error", "latest") if columns_of == KAFKA else ("latest", "error")
    locations = values.places(values.path_name())
    if not locations:
        raise ConfigError("no store is named", key="path", hint="give its directory to load()")
    for location in locations:
        refuse_secrets(location)
    if "brokerName" in values and not values.names("brokerName"):
        raise values.refused("brokerName", "names no store")
    logs = values.places("storePathCommitLog")
    if not all(Path(one).is_absolute() for one in logs) or (
        "storePathCommitLog" in values and not logs
    ):
        raise values.refused("storePathCommitLog", "must name directories by whole paths")
    return ReadOptions(
        table=table,
        locations=locations,
        columns=_columns(values, columns_of),
        has_kafka_names=values.has_kafka_names,
        broker_names=values.names("brokerName"),
        decompress_body=values.is_on("decompressBody"),
        **topic_choice(values),
        tags=_tags(values),
        max_split_bytes=values.byte_count("maxSplitBytes") or DEFAULT_SPLIT_BYTES,
        min_partitions=values.number("minPartitions", 1) or 1,
        fail_on_data_loss=values.is_on("failOnDataLoss"),
        must_have_time=values.one_of(STRATEGY, strategies) == "error",
        damage=values.one_of("damage", ("fail", "skip", "report")),
        layout=_layout(values),
        log_directories=tuple(dict.fromkeys(one.rstrip("/") for one in logs)),
        end_offset=values.get("endOffset", ""),
    )


def _columns(values: GivenOptions, columns_of: str) -> tuple[str, ...]:
    switches = {"includeBody": BODY, "includeProperties": PROPERTIES, "includeHeaders": HEADERS}
    left_out = set()
    for option, column in switches.items():
        is_there = column in COLUMNS_OF[columns_of]
        if option in values and not is_there and columns_of in (KAFKA, "messages"):
            what = f"needs other columnNames: with these there is no {column}"
            raise values.refused(option, what)
        words = ("false", "true") if column == HEADERS else ("true", "false")
        if is_there and values.one_of(option, words) == "false":
            left_out.add(column)
    if "columns" not in values:
        return tuple(name for name in COLUMNS_OF[columns_of] if name not in left_out)
    names = values.names("columns")
    for name in names:
        column_type(columns_of, name)
    if not names or len(set(names)) < len(names):
        raise values.refused("columns", "must name columns, each once")
    for name in left_out & set(names):
        raise values.refused("columns", f"names {name}, which is not included")
    return names


def topic_choice(values: GivenOptions) -> dict[str, Any]:
    """Return what of topics or queues is chosen, as fields of `ReadOptions`; none for all."""
    for name in values.only_one(one for one in TOPIC_CHOICES if one in values):
        if not values.names(name):
            raise values.refused(name, "names no topic")
        if name == "assign":
            return {"queues": _parse_assignment(name, values[name])}
        if name == "subscribePattern":
            try:
                with warnings.catch_warnings(action="error"):  # for what Java reads differently
                    re.compile(values[name])
            except (re.error, FutureWarning) as error:
                what, hint = f"is not a regular expression: {error}", "write it as Python has it"
                raise values.refused(name, what, hint) from error
            return {"topic_pattern": values[name]}
        return {"topics": frozenset(values.names(name))}
    return {}


def check_offsets_are_of_chosen_topics(
    options: ReadOptions, key: str, places: Iterable[object]
) -> None:
    """Refuse offsets of topics or queues that the query does not read, or that chose none."""
    queues = options.queues or frozenset()
    assigned = queues | {one._replace(broker=ANY_BROKER) for one in queues}
    for place in (one for one in places if isinstance(one, QueuePlace)):
        if not options.has_topic_choice:
            hint = "give subscribe, subscribePattern or assign"
            raise ConfigError(f"option {key} needs to know the topics", key=key, hint=hint)
        what = f"option {key} names topic {place.topic!r}, "
        if options.wants_topic(place.topic):
            if not queues or place in assigned or place._replace(broker=ANY_BROKER) in queues:
                continue
            what += f"queue {place.queue_id}, "
        what, hint = what + "which is not chosen", "add it to subscribe or assign, or leave it out"
        raise ConfigError(what, key=key, value=place.topic, hint=hint)


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
    values.check_company("maxHashSlotNum", ["maxIndexNum"])
    values.check_company("maxIndexNum", ["maxHashSlotNum"])
    return None if slots is None or items is None else (slots, items)
