"""Which stores and queues the options of a query choose, and from where to where."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rocketstore.arguments import nearest
from rocketstore.errors import ConfigError, FormatError, StoreDamagedError, StoreError
from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.metadata_json import TOPICS_FILE, TopicConfig, TopicTable
from rocketstore.pipeline.option_table import STREAM
from rocketstore.pipeline.options import (
    ANY_BROKER,
    EARLIEST,
    LATEST,
    GivenOptions,
    QueuePlace,
    ReadOptions,
    of_broker,
    parse_options,
    topic_choice,
)
from rocketstore.places.files import entries_of
from rocketstore.places.log_files import Segment, segment_at, store_timestamp_ms
from rocketstore.places.queue_files import EVERY_KIND, ScanNeeded, list_queues, queue_opener
from rocketstore.places.small_files import read_consumer_offsets, read_known_ends, read_metadata
from rocketstore.places.stores import StorePlace, configured_log, find_stores
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocketstore.config import StoreConfig

ALL_OFFSETS: Final = range(2**62)  # of a queue to its end, wherever that will be


def named_stores(options: ReadOptions) -> list[StorePlace]:
    """Return the stores that the locations of a query name, in order."""
    return find_stores(options.locations, options.log_directories, options.broker_names)


def job_options(location: str, config: StoreConfig | None, max_split_bytes: int) -> ReadOptions:
    """Return the options of a job that reads the log at a location, whatever its name contains."""
    given = {"paths": json.dumps([location]), "maxSplitBytes": str(max_split_bytes)}
    if logs := configured_log(location, config):
        given["storePathCommitLog"] = json.dumps(logs)
    return parse_options(given | {"failOnDataLoss": "false"})


def chosen_queues(store: StorePlace, options: ReadOptions, *directories: str) -> list[QueueKey]:
    """Return the queues that the options choose and that lie in one of some directories."""
    listed = (list_queues(store.location, one, options.wants_topic) for one in directories)
    keys, broker = itertools.chain.from_iterable(listed), store.broker_name
    return sorted({key for key in keys if is_chosen(options, broker, key)})


def choosing(read: ReadOptions, choices: Sequence[Mapping[str, str] | None]) -> ReadOptions:
    """Return a read by the first of the choices that a Kafka job's stream kept, without the others.

    None is what the read chooses itself.
    """
    found, nothing = [], dict[str, Any](topics=None, topic_pattern=None, queues=None)
    for one in choices or [None]:
        values = GivenOptions(one or {}, frozenset({STREAM}))
        chosen = nothing | topic_choice(values) if one else {}
        found.append(replace(read, has_kafka_names=bool(one) or read.has_kafka_names, **chosen))
    return replace(found[0], had=tuple(found[1:]))


def is_chosen(options: ReadOptions, broker: str, key: QueueKey) -> bool:
    """Whether a queue of a broker is among those that the options choose."""
    if any(is_chosen(one, broker, key) for one in options.had):
        return False
    if options.queues is None:
        return options.wants_topic(key.topic)
    places = (QueuePlace(key.topic, one, key.queue_id) for one in (ANY_BROKER, broker))
    return any(one in options.queues for one in places)


def chosen_stores(options: ReadOptions) -> list[StorePlace]:
    """Return the stores of a query; an error where offsets or assignment match none."""
    stores = named_stores(options)
    known = [store.broker_name for store in stores]
    # What names no store is passed over, and more rows are read than were asked for. But one
    # assignment may serve for several reads, each of one of its stores.
    if not any(place.broker in (ANY_BROKER, *known) for place in options.queues or ()):
        check_brokers("assign", options.queues or (), known)
    for side in ("starting", "ending"):
        check_brokers(f"{side}Offsets", getattr(options, f"{side}_offsets"), known)
        check_brokers(f"{side}OffsetsByTimestamp", getattr(options, f"{side}_times_ms"), known)
    return stores


def lost_queues(
    store: StorePlace, options: ReadOptions, there: Iterable[QueueKey], *, or_maybe: bool = False
) -> str:
    """Return the chosen queues that are not `there` and had messages by what is said of a store.

    A queue's directory comes with its first message, so that one is absent says nothing. By
    ``known-ends`` a queue had messages, and by an offset, of a group or of the query. Where
    ``known-ends`` does not count, those of ``topics.json`` may have had some (`or_maybe`).
    """
    asked = [
        of_broker(one, store.broker_name)
        for one in (options.starting_offsets, options.ending_offsets)
    ]
    said = {key for offsets in asked for key, offset in offsets.items() if offset > 0}
    said |= {key for _, key, offset in read_consumer_offsets(store).rows() if offset > 0}
    known = read_known_ends(store)
    for name, one in configured_topics(store).items() if or_maybe and known is None else ():
        if not options.wants_topic(name):
            continue
        count = min(max(one.read_queue_nums, one.write_queue_nums), MOST_QUEUES)
        said |= {QueueKey(name, number) for number in range(count)}
    lost = (said | (known or set())).difference(there)
    chosen = (one for one in sorted(lost) if is_chosen(options, store.broker_name, one))
    return ", ".join(map(str, chosen))


def check_none_lost(store: StorePlace, options: ReadOptions, there: Iterable[QueueKey]) -> None:
    """Raise `ScanNeeded` where a chosen queue is not `there` that had messages, or may have had."""
    try:
        lost = lost_queues(store, options, there, or_maybe=True)
    except (FormatError, StoreDamagedError) as error:
        raise ScanNeeded(error.message) from error
    if lost:
        raise ScanNeeded(f"there is no queue {lost:.200}, which the store had, or may have had")


def configured_topics(store: StorePlace) -> Mapping[str, TopicConfig]:
    """Return what ``topics.json`` says of each topic."""
    table = read_metadata(store, TOPICS_FILE, TopicTable)
    return {} if table is None else table.topic_config_table


def unknown_topics(stores: Sequence[StorePlace], options: ReadOptions) -> dict[str, str]:
    """Return the topics asked for by name that no store has, and what may be meant by each."""
    named, known = options.named_topics, set[str]()
    if options.fail_on_data_loss:
        for store in stores if named else ():
            listed = (entries_of(store.location, kind) for kind in EVERY_KIND)
            known |= {one.name for one in itertools.chain.from_iterable(listed)}
        for store in stores if named - known else ():
            known.update(configured_topics(store))
            known |= {key.topic for key in read_known_ends(store) or ()}
    shown, said = ", ".join(sorted(known)[:10]) + ", …" * (len(known) > 10), dict[str, str]()
    for name in sorted(named - known) if known else ():
        near = nearest(name, sorted(known))
        said[name] = f"did you mean {near}?" if near else f"the topics are {shown}."
    return said


def refuse_unknown(stores: Sequence[StorePlace], topics: Mapping[str, str]) -> None:
    """Raise where topics are asked for that no store has."""
    for name, near in topics.items():
        what = f"no topic {name} in {', '.join(one.location for one in stores)}"
        hint = f'{near} To read what is there: option("failOnDataLoss", "false")'
        raise ConfigError(what, key="subscribe", value=name, hint=hint)


def check_brokers(key: str, given: Iterable[QueuePlace | str | None], known: Iterable[str]) -> None:
    """Refuse places, or whole logs, that an option gives for a store that is not known."""
    named = {one if isinstance(one, str) else one.broker for one in given if one}
    for name in sorted(named - {ANY_BROKER, *known}):
        hint = f"the stores are {', '.join(sorted(known))}"
        raise ConfigError(f"option {key} names store {name!r}", key=key, value=name, hint=hint)


def check_times(
    store: StorePlace,
    segments: Sequence[Segment],
    options: ReadOptions,
    times_ms: Mapping[QueuePlace | str | None, int],
) -> None:
    """Refuse, if so asked, a start at a time since which a queue has had no message.

    None stands for all queues; where none is chosen, one of them has to have a message. Of a store
    without queues the log has to begin with one.
    """
    times = of_broker(times_ms if options.must_have_time else {}, store.broker_name)
    if options.must_have_time and None in times_ms:
        chosen = chosen_queues(store, options, CONSUME_QUEUE_DIRECTORY)
        times = dict.fromkeys(chosen, times_ms[None]) | times
        first = next(iter(segments), None)
        if not times and store_timestamp_ms(store.location, first) is None:
            raise nothing_since(store.location, times_ms[None])
    queue_of, late = queue_opener(store.location), []
    for key, since_ms in sorted(times.items()):
        queue = queue_of(key)
        entry = queue.entry(queue.max_offset - 1)
        at = -1 if entry is None else entry.physical_offset
        stored_ms = store_timestamp_ms(store.location, segment_at(segments, at), at)
        if entry is None or (stored_ms is not None and stored_ms < since_ms):
            late.append(nothing_since(f"queue {key} of {store.location}", since_ms))
    if late and (options.has_topic_choice or len(late) == len(times)):
        raise late[0]


def nothing_since(feed: object, since_ms: int) -> StoreError:
    """Return the error that nothing was stored since a time at which a read has to begin."""
    hint = 'to begin at its end: startingOffsetsByTimestampStrategy "latest"'
    return StoreError(f"{feed}: nothing was stored at {since_ms} ms or later", hint=hint)


def queue_ranges(
    store: StorePlace, segments: Sequence[Segment], options: ReadOptions
) -> dict[QueueKey, range]:
    """Return the queue offsets of every queue that is given some; `failOnDataLoss` checks them."""
    starting = of_broker(options.starting_offsets, store.broker_name)
    ending = of_broker(options.ending_offsets, store.broker_name)
    ranges, queue_of = {}, queue_opener(store.location)
    for key in sorted(starting.keys() | ending.keys()):
        start, stop = starting.get(key, EARLIEST), ending.get(key, LATEST)
        ranges[key] = range(max(start, 0), ALL_OFFSETS.stop if stop == LATEST else stop)
        if not options.fail_on_data_loss:
            continue
        queue = queue_of(key)
        maximum = queue.max_offset
        minimum = queue.first_left(segments[0].base) if segments else maximum
        if not queue.files.files and max(start, stop) > 0:  # it had messages
            problem = f"there is no queue {key}"
        elif start != EARLIEST and not minimum <= start <= maximum:
            problem = f"startingOffsets asks for {start}, there are {minimum} to {maximum}"
        elif stop > maximum or 0 < stop < minimum:
            problem = f"endingOffsets asks for {stop}, there are {minimum} to {maximum}"
        else:
            continue
        what, hint = f"queue {key} of {store.location}: {problem}", "to read what is there: "
        raise StoreError(what, hint=hint + 'option("failOnDataLoss", "false")')
    return ranges
