"""The tables of a report, with the names, types and order that readers of its files see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.pipeline.jobs.report.buckets import MINUTE_MS, bucket_bounds
from rocketstore.pipeline.jobs.report.distribution import Distribution
from rocketstore.pipeline.jobs.report.groups import pa
from rocketstore.pipeline.jobs.report.tally import DIRECT
from rocketstore.pipeline.jobs.report.topics import group_of, topic_kind
from rocketstore.pipeline.stores import SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.pipeline.jobs.report.counts import Counts
    from rocketstore.pipeline.jobs.report.plan import ReportPlan

KEY_ROWS: Final = 1_000
"""Keys that tables ``keys`` and ``allKeys`` list."""

_TEXT, _COUNT = pa.string(), pa.int64()
_TIME = pa.timestamp("ms", "UTC")
_TRAFFIC: Final = {"messages": _COUNT, "bytes": _COUNT}
_STORED: Final = {"firstStoreTimestamp": _TIME, "lastStoreTimestamp": _TIME}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "topics": {
        "topic": _TEXT,
        "kind": _TEXT,
        "queues": _COUNT,
        **_TRAFFIC,
        "bodyBytes": _COUNT,
        "bodyBytesP50": _COUNT,
        "bodyBytesP99": _COUNT,
        "bodyBytesExact": pa.bool_(),
        "latencyMsP50": _COUNT,
        "latencyMsP99": _COUNT,
        "latencyMsExact": pa.bool_(),
        **_STORED,
    },
    "queues": {
        "brokerName": _TEXT,
        "topic": _TEXT,
        "queueId": _COUNT,
        **_TRAFFIC,
        "bodyBytes": _COUNT,
        "minQueueOffset": _COUNT,
        "maxQueueOffset": _COUNT,
        **_STORED,
    },
    "tags": {"topic": _TEXT, "tags": _TEXT, **_TRAFFIC},
    "keys": {"topic": _TEXT, "key": _TEXT, "messages": _COUNT},
    "allTags": {"tags": _TEXT, "topics": _COUNT, **_TRAFFIC},
    "allKeys": {"key": _TEXT, "topics": _COUNT, "messages": _COUNT},
    "minutes": {"startTimestamp": _TIME, "widthMs": _COUNT, **_TRAFFIC},
    "traffic": {"startTimestamp": _TIME, "widthMs": _COUNT, "topic": _TEXT, **_TRAFFIC},
    "sizes": {
        "topic": _TEXT,
        "lowBytes": _COUNT,
        "highBytes": _COUNT,
        "messages": _COUNT,
        "leastBytes": _COUNT,
        "mostBytes": _COUNT,
    },
    "latencies": {
        "topic": _TEXT,
        "way": _TEXT,
        "lowMs": _COUNT,
        "highMs": _COUNT,
        "messages": _COUNT,
        "leastMs": _COUNT,
        "mostMs": _COUNT,
    },
    "delays": {
        "brokerName": _TEXT,
        "level": _COUNT,
        "delayMs": _COUNT,
        **_TRAFFIC,
        "waiting": _COUNT,
        "overdue": _COUNT,
        "firstDueTimestamp": _TIME,
        "lastDueTimestamp": _TIME,
    },
    "retries": {
        "topic": _TEXT,
        "kind": _TEXT,
        "consumerGroup": _TEXT,
        "reconsumeTimes": _COUNT,
        **_TRAFFIC,
        **_STORED,
    },
    "files": {
        "brokerName": _TEXT,
        "file": _TEXT,
        "physicalOffset": _COUNT,
        "size": _COUNT,
        "state": _TEXT,
        "messages": _COUNT,
        "messageBytes": _COUNT,
        "dataEnd": _COUNT,
        "damagedRanges": _COUNT,
        "damagedBytes": _COUNT,
    },
    "damage": {
        "brokerName": _TEXT,
        "file": _TEXT,
        "physicalOffset": _COUNT,
        "position": _COUNT,
        "size": _COUNT,
        "reason": _TEXT,
        "evidence": _TEXT,
    },
}
"""Columns of each table, in order. Times are UTC."""

MISSING_FILE: Final = "missing file"

Row = dict[str, Any]


def report_tables(counts: Counts, plan: ReportPlan) -> dict[str, Any]:
    """Return every table of `SCHEMAS`, in an order that does not depend on how work was cut."""
    rows = {
        "topics": _topics(counts),
        "queues": _ordered(counts.rows("queues"), "brokerName", "topic", "queueId"),
        "tags": _by_messages(counts.rows("tags"), "topic", "tags"),
        "keys": _by_messages(counts.rows("keys"), "topic", "key")[:KEY_ROWS],
        "allTags": _over_topics(counts.rows("tags"), "tags"),
        "allKeys": _over_topics(counts.rows("keys"), "key")[:KEY_ROWS],
        "minutes": _by_time(counts, "minutes"),
        "traffic": _by_time(counts, "traffic"),
        "sizes": _ordered(_sizes(counts), "topic", "lowBytes"),
        "latencies": _ordered(_latencies(counts), "topic", "way", "lowMs"),
        "delays": _delays(counts, plan),
        "retries": _retries(counts),
        "files": _files(counts, plan),
        "damage": _damage(counts, plan),
    }
    return {name: table_of(name, rows[name]) for name in SCHEMAS}


def table_of(name: str, rows: Iterable[Row]) -> Any:
    """Return rows as a table; times are taken from keys that end in ``Ms`` where they have to."""
    schema = pa.schema(list(SCHEMAS[name].items()))
    listed = list(rows)
    columns = {field.name: [row.get(_source_name(field)) for row in listed] for field in schema}
    return pa.table(columns, schema=schema)


def plain_rows(table: Any) -> list[Row]:
    """Return the rows of a table with times as milliseconds, under names that end in ``Ms``."""
    columns = {}
    for field in table.schema:
        column = table[field.name]
        columns[_source_name(field)] = column.cast(_COUNT) if field.type == _TIME else column
    found: list[Row] = pa.table(columns).to_pylist()
    return found


def second_rows(counts: Counts) -> list[Row]:
    """Return traffic in buckets below a minute; nothing when there are too many."""
    if counts.width_ms("seconds") >= MINUTE_MS:
        return []
    return _by_time(counts, "seconds")


def _source_name(field: Any) -> str:
    name: str = field.name
    return name.removesuffix("Timestamp") + "Ms" if field.type == _TIME else name


def _ordered(rows: list[Row], *names: str) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(_comparable(row[name]) for name in names))


def _by_messages(rows: list[Row], *names: str) -> list[Row]:
    return sorted(
        rows, key=lambda row: (-row["messages"], *(_comparable(row[name]) for name in names))
    )


def _comparable(value: Any) -> tuple[bool, Any]:
    """Return what sorts also where a value may be missing."""
    return (value is not None, 0 if value is None else value)


def _topics(counts: Counts) -> list[Row]:
    sizes = _by_topic(counts.rows("sizes"))
    latencies = _by_topic([row for row in counts.rows("latencies") if row["way"] == DIRECT])
    exact_sizes = _by_topic(counts.rows("exactSizes"))
    exact_latencies = _by_topic(counts.rows("exactLatencies"))
    found = []
    for topic, queues in _by_topic(counts.rows("queues")).items():
        size = distribution_of(sizes.get(topic, []), exact_sizes.get(topic, []), "Bytes")
        latency = distribution_of(latencies.get(topic, []), exact_latencies.get(topic, []), "Ms")
        firsts = [row["firstStoreMs"] for row in queues if row["firstStoreMs"] is not None]
        lasts = [row["lastStoreMs"] for row in queues if row["lastStoreMs"] is not None]
        found.append(
            {
                "topic": topic,
                "kind": topic_kind(topic),
                "queues": len(queues),
                **{
                    name: sum(row[name] for row in queues)
                    for name in ("messages", "bytes", "bodyBytes")
                },
                "bodyBytesP50": size.percentile(50),
                "bodyBytesP99": size.percentile(99),
                "bodyBytesExact": size.is_exact,
                "latencyMsP50": latency.percentile(50),
                "latencyMsP99": latency.percentile(99),
                "latencyMsExact": latency.is_exact,
                "firstStoreMs": min(firsts, default=None),
                "lastStoreMs": max(lasts, default=None),
            }
        )
    return _by_messages(found, "topic")


def distribution_of(rows: list[Row], exact: list[Row], unit: str) -> Distribution:
    """Return groups of ``sizes`` (unit ``Bytes``) or ``latencies`` (``Ms``) as one distribution.

    `exact` are the groups of ``exactSizes`` or ``exactLatencies`` of the same messages.
    """
    is_known = all(row["value"] is not None for row in exact)
    return Distribution(
        ((row["bucket"], row["messages"]) for row in rows),
        min((row[f"least{unit}"] for row in rows), default=None),
        max((row[f"most{unit}"] for row in rows), default=None),
        ((row["value"], row["messages"]) for row in exact) if is_known else None,
    )


def _by_topic(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["topic"], []).append(row)
    return found


def _over_topics(rows: list[Row], name: str) -> list[Row]:
    """Return tags or keys over all topics, the most frequent first."""
    found: dict[str | None, Row] = {}
    for row in rows:
        total = found.setdefault(row[name], {name: row[name], "topics": 0, "messages": 0})
        total["topics"] += 1
        for measure in ("messages", "bytes"):
            if measure in row:
                total[measure] = total.get(measure, 0) + row[measure]
    return _by_messages(list(found.values()), name)


def _by_time(counts: Counts, name: str) -> list[Row]:
    width = counts.width_ms(name)
    rows = [row | {"widthMs": width} for row in counts.rows(name)]
    return _ordered(rows, *counts.groups[name].shape.keys)


def _sizes(counts: Counts) -> list[Row]:
    found = []
    for row in counts.rows("sizes"):
        low, high = bucket_bounds(row["bucket"])
        found.append(row | {"lowBytes": low, "highBytes": high})
    return found


def _latencies(counts: Counts) -> list[Row]:
    found = []
    for row in counts.rows("latencies"):
        low, high = bucket_bounds(row["bucket"])
        found.append(row | {"lowMs": low, "highMs": high})
    return found


def _delays(counts: Counts, plan: ReportPlan) -> list[Row]:
    rows = [
        row | {"delayMs": plan.delays[row["brokerName"]].delays_ms.get(row["level"])}
        for row in counts.rows("delays")
    ]
    return _ordered(rows, "brokerName", "level")


def _retries(counts: Counts) -> list[Row]:
    rows = [
        row | {"kind": topic_kind(row["topic"]), "consumerGroup": group_of(row["topic"])}
        for row in counts.rows("retries")
    ]
    return _ordered(rows, "topic", "reconsumeTimes")


def _files(counts: Counts, plan: ReportPlan) -> list[Row]:
    counted = {(row["brokerName"], row["file"]): row for row in counts.rows("files")}
    nothing = dict.fromkeys(("messages", "messageBytes", "damagedRanges", "damagedBytes"), 0)
    found = []
    for place, segments in plan.stores:
        for segment in segments:
            row = nothing | {"dataEnd": 0} | counted.get((place.broker_name, segment.path), {})
            if segment.state is SegmentState.MISSING:
                row |= {"damagedRanges": 1, "damagedBytes": segment.size}
            found.append(
                row
                | {
                    "brokerName": place.broker_name,
                    "file": segment.path,
                    "physicalOffset": segment.base,
                    "size": segment.size,
                    "state": segment.state.value,
                }
            )
    return found


def _damage(counts: Counts, plan: ReportPlan) -> list[Row]:
    missing = [
        {
            "brokerName": place.broker_name,
            "file": segment.path,
            "physicalOffset": segment.base,
            "position": 0,
            "size": segment.size,
            "reason": MISSING_FILE,
            "evidence": "its neighbours are there, it is not",
        }
        for place, segments in plan.stores
        for segment in segments
        if segment.state is SegmentState.MISSING
    ]
    return _ordered(counts.damage().to_pylist() + missing, "brokerName", "physicalOffset")
