"""Every option of source, streams and sink: where it means something, its default and meaning.

It is the table of docs/reference/spark-options.md; `options` takes texts by it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from rocketstore.arguments import nearest
from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import RECORD_TABLES, TABLES

T = TypeVar("T")

SERVERS: Final = "kafka.bootstrap.servers"
PLACES: Final = ("path", "paths", SERVERS)
OF_KAFKA: Final = (
    "kafka.", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "maxRecordsPerPartition",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
"""What Spark's Kafka source is told besides: how names begin, in Kafka's own spelling."""

STRATEGY: Final = "startingOffsetsByTimestampStrategy"
BY_TIME: Final = "startingOffsetsByTimestamp"
TIME_STARTS: Final = ("startingTimestamp", BY_TIME)
STREAM, SINK = "stream", "sink"
"""Uses of an option in ``readStream`` and in writes; in ``read`` a table's name is its use."""

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "serialization.format"})
"""What Spark itself adds to the options."""

READS: Final = frozenset(TABLES)
_ANY: Final = READS | {STREAM}
_RECORDS: Final = RECORD_TABLES | {STREAM}
_MESSAGES: Final = frozenset({"messages", STREAM})
_LOG: Final = _RECORDS | {"delays", "transactions"}
_READ: Final = RECORD_TABLES | {"reads"}
_QUEUES: Final = _READ | {STREAM, "consumequeue"}
_TOPICS: Final = _QUEUES | {"batchqueue", "queues", "topics", "consumers"}
_BATCH_QUEUES: Final = _READ | {"consumequeue"}
_LOSS: Final = _LOG | _QUEUES
_CUT: Final = _QUEUES | {"batchqueue", "index", "damage", "delays"}
_INDEX: Final = frozenset({"index"})
_STREAM: Final = frozenset({STREAM})
_SINK: Final = frozenset({SINK})


class SparkOption(NamedTuple):
    """One option: where it means something (tables, `STREAM`, `SINK`), default and meaning."""

    name: str
    uses: frozenset[str]
    default: str
    meaning: str


_ROWS: Final = (  # the page's table; names are matched without regard to case, as Spark's are
    ("path", _ANY, "-", "stores, separated by commas, or a directory of stores"),
    ("paths", _ANY, "-", "the same as a JSON array, as `load([...])` gives it"),
    (SERVERS, _MESSAGES | {SINK}, "-", "the same as `path`, with Kafka's `columnNames`"),
    ("columnNames", _MESSAGES | {SINK}, "rocketstore", "`kafka`: columns of Spark's Kafka source"),
    ("includeHeaders", _MESSAGES, "false", "whether Kafka's columns have `headers`"),
    ("table", _ANY, "messages", "table to read; streams have `messages`, `commitlog`"),
    ("brokerName", _ANY, "directory's name", "name of the store, one per store"),
    ("storePathCommitLog", _ANY, "-", "every directory of the log, when not `commitlog`"),
    ("columns", _ANY, "all", "columns to read, separated by commas, in this order"),
    ("includeBody", _MESSAGES, "true", "whether there is a column `body`"),
    ("includeProperties", _RECORDS, "true", "whether there is a column `properties`"),
    ("decompressBody", _MESSAGES, "true", "whether zlib bodies are inflated"),
    ("subscribe", _TOPICS, "-", "topics, separated by commas"),
    ("topic", _TOPICS, "-", "the same as `subscribe`"),
    ("subscribePattern", _TOPICS, "-", "regular expression for whole topics; Kafka's: for a part"),
    ("assign", _TOPICS, "-", 'queues: `{"topic":[0,1]}`'),
    ("startingOffsets", _BATCH_QUEUES, "earliest", "first queue offset of each queue, JSON"),
    ("endingOffsets", _BATCH_QUEUES, "latest", "queue offset after each queue's last, JSON"),
    ("endOffset", frozenset({"reads"}), "-", "of a batch of a stream, as its progress has it"),
    ("startingTimestamp", _READ, "-", "earliest store time of a row, ms or ISO 8601"),
    ("endingTimestamp", _READ, "-", "store time to stop before, in ms or ISO 8601"),
    (BY_TIME, _READ, "-", '`{"topic":{"0":ms}}`: first times'),
    ("endingOffsetsByTimestamp", _READ, "-", "the time to stop before, in the same form"),
    (STRATEGY, _READ | _STREAM, "latest; Kafka's: error", "if a queue has nothing that late"),
    ("subExpression", _READ | {STREAM}, "*", "tags, with two bars between several"),
    ("maxSplitBytes", _CUT, "256 MiB", "most bytes of one task; `64m`, `1g` are understood"),
    ("minPartitions", _CUT, "1", "fewest tasks to make, where there are as many bytes"),
    ("failOnDataLoss", _LOSS, "true", "whether missing files or offsets are an error"),
    ("damage", _LOG, "fail", "`fail`, `skip` or `report`"),
    ("maxHashSlotNum", _INDEX, "learnt", "slots of an index file"),
    ("maxIndexNum", _INDEX, "learnt", "items of an index file"),
    ("startingOffsets", _STREAM, "latest", "where a new query begins, or JSON of it"),
    ("startingTimestamp", _STREAM, "-", "store time of the first record of a new query"),
    (BY_TIME, _STREAM, "-", '`{"topic":{"0":ms}}`: store times'),
    ("maxOffsetsPerTrigger", _STREAM, "-", "most records of a batch"),
    ("maxBytesPerTrigger", _STREAM, "-", "most bytes of records of a batch"),
    ("triggerLimitOf", _STREAM, "store; Kafka's: all", "whose the most are: of each, or together"),
    ("minOffsetsPerTrigger", _STREAM, "-", "records that a batch waits for"),
    ("maxTriggerDelay", _STREAM, "15m", "longest wait for `minOffsetsPerTrigger`"),
    ("path", _SINK, "-", "directory of the store; made when it is not there"),
    ("topic", _SINK, "-", "topic of every message; wins over the column `topic`"),
    ("includeHeaders", _SINK, "true", "of Kafka's columns: `headers` are written where they are"),
    ("sinkId", _SINK, "-; a stream's id", "name of this writer, under which its batches are known"),
    ("batchId", _SINK, "-", "number of this batch; for `write` only, together with `sinkId`"),
    ("queueCount", _SINK, "4", "queues of a topic among which rows without `queueId` go"),
    ("chunkBytes", _SINK, "8 MiB", "bytes that a task or the commit holds at a time"),
    ("lockTimeout", _SINK, "1m", "how long to wait for a store that another process writes"),
    ("storeConfig", _SINK, "-", "a `broker.conf` with the settings of the store"),
    ("mappedFileSizeCommitLog", _SINK, "learnt, or 1 GiB", "bytes of a CommitLog file"),
    ("mappedFileSizeConsumeQueue", _SINK, "learnt, or 6 MB", "bytes of a queue file"),
    ("maxHashSlotNum", _SINK, "learnt, or 5 million", "slots of an index file"),
    ("maxIndexNum", _SINK, "learnt, or 20 million", "items of an index file"),
    ("maxMessageSize", _SINK, "4 MiB", "largest body in bytes"),
)
OPTIONS: Final = tuple(map(SparkOption._make, _ROWS))


def of_kafka(key: str, given: Iterable[str], known: Mapping[str, str]) -> str:
    """Return what to do with an option that only a Kafka client has, and all such; else nothing."""
    starts = tuple(one.lower() for one in OF_KAFKA)
    theirs = {one for one in given if one.lower().startswith(starts) and one.lower() not in known}
    theirs = {one for one in theirs if nearest(one, known.values()) != SERVERS}  # misspelt
    if key not in theirs:
        return ""
    others = sorted(theirs - {key})
    hint = f"leave out {', '.join(others)} too" if others else "leave it out"
    hint += ": a store is files, and has no such settings"
    if "perpart" in str(theirs).lower() and "maxSplitBytes" in known.values():
        hint += "; how much a task reads is maxSplitBytes"
    return hint


def refused(name: str, value: str, what: str, hint: str | None = None) -> ConfigError:
    """Return the error that an option has a value that it cannot have."""
    said = f"option {name} {what}, found {value!r:.200}"
    return ConfigError(said, key=name, value=value, hint=hint)


def decoded(key: str, text: str, kind: type[T], what: str, hint: str | None = None) -> T:
    """Return what the JSON of an option says; raise where it is of another kind."""
    import msgspec  # noqa: PLC0415 - few reads need it

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise refused(key, text, "has a name twice, of which one would not count")
        return found

    try:
        return msgspec.convert(json.loads(text, object_pairs_hook=once), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise refused(key, text, what, hint) from error
