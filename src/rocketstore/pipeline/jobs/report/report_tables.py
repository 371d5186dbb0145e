"""The tables of a report and the figures of its page, as SQL over the groups of all tasks.

``groups`` is what `partial_groups` says, with one row for each combination of keys. The statements
keep to what Spark and other engines have in common, apart from Spark's ``timestamp_millis``.
"""

# ruff: noqa: S608 - statements are put together of this module's own constants
from __future__ import annotations

from typing import Final, NamedTuple

KEY_ROWS: Final = 1_000
"""Keys that tables ``keys`` and ``allKeys`` list."""

STORED: Final = (
    "timestamp_millis({0}firstMs) AS firstStoreTimestamp, "
    "timestamp_millis({0}lastMs) AS lastStoreTimestamp"
)

KIND: Final = """CASE
  WHEN topic = 'SCHEDULE_TOPIC_XXXX' THEN 'delay'
  WHEN left(topic, 7) = '%RETRY%' THEN 'retry'
  WHEN left(topic, 5) = '%DLQ%' THEN 'dead letter'
  WHEN topic IN ('RMQ_SYS_TRANS_HALF_TOPIC', 'RMQ_SYS_TRANS_OP_HALF_TOPIC',
                 'TRANS_CHECK_MAX_TIME_TOPIC') THEN 'transaction'
  WHEN topic IN ('TBW102', 'SELF_TEST_TOPIC', 'OFFSET_MOVED_EVENT')
       OR lower(left(topic, 8)) = 'rmq_sys_' THEN 'system'
  ELSE 'normal' END"""
"""What a topic is for, by its name (spec F, system names; TopicValidator and MixAll of 4.9.8)."""


def _percentile(part: str, share: float, bound: str = "most") -> str:
    return f"min({bound}) FILTER (WHERE part = '{part}' AND seen >= total * {share})"


_MEASURED: Final = ", ".join(
    f"{_percentile(part, share)} AS {name}P{share * 100:.0f}, "
    f"{_percentile(part, share)} = {_percentile(part, share, 'least')} "
    f"AS {name}P{share * 100:.0f}Exact"
    for part, name in (("sizes", "bodyBytes"), ("latencies", "latencyMs"))
    for share in (0.5, 0.9, 0.99)
)

PERCENTILES: Final = f"""
SELECT topic, {_MEASURED},
  min(least) FILTER (WHERE part = 'sizes') AS bodyBytesLeast,
  max(most) FILTER (WHERE part = 'sizes') AS bodyBytesMost,
  min(least) FILTER (WHERE part = 'latencies') AS latencyMsLeast,
  max(most) FILTER (WHERE part = 'latencies') AS latencyMsMost,
  sum(messages) FILTER (WHERE part = 'latencies') AS sent,
  sum(messages) FILTER (WHERE part = 'latencies' AND number < 0) AS negative
FROM (
  SELECT *, sum(messages) OVER (PARTITION BY part, topic ORDER BY number) AS seen,
    sum(messages) OVER (PARTITION BY part, topic) AS total
  FROM (
    SELECT part, topic, number, sum(messages) AS messages, min(least) AS least,
      max(most) AS most
    FROM {{groups}} WHERE part = 'sizes' OR part = 'latencies' AND name = 'direct'
    GROUP BY GROUPING SETS ((part, topic, number), (part, number))))
GROUP BY topic"""
"""Of each topic, and of all together where ``topic`` is null: the greatest value in the bucket that
so many percent are reached in, never too low, and exact where all in that bucket are equal."""

ALL_PERCENTILES: Final = f"SELECT * FROM ({PERCENTILES}) WHERE topic IS NULL"


class Statement(NamedTuple):
    """A statement, and the columns that its rows are in the order of; ``-``: the greatest first."""

    sql: str
    order: tuple[str, ...]


def _all_names(part: str, name: str, measures: str) -> str:
    return (
        f"SELECT name AS {name}, count(*) AS topics, {measures} "
        f"FROM {{groups}} WHERE part = '{part}' GROUP BY name"
    )


TABLES: Final[dict[str, Statement]] = {
    "topics": Statement(
        f"""
        SELECT q.topic, {KIND.replace("topic", "q.topic")} AS kind, queues, messages, bytes,
          leastOfQueue, mostOfQueue, bodyBytes, bodyBytesP50, bodyBytesP99, bodyBytesP50Exact,
          latencyMsP50, latencyMsP99, latencyMsP50Exact, {STORED.format("q.")}
        FROM (
          SELECT topic, count(*) AS queues, sum(messages) AS messages, sum(bytes) AS bytes,
            min(messages) AS leastOfQueue, max(messages) AS mostOfQueue,
            sum(bodyBytes) AS bodyBytes, min(firstMs) AS firstMs, max(lastMs) AS lastMs
          FROM {{groups}} WHERE part = 'queues' GROUP BY topic) q
        LEFT JOIN ({PERCENTILES}) p ON p.topic = q.topic""",
        ("-messages", "topic"),
    ),
    "queues": Statement(
        f"""
        SELECT brokerName, topic, number AS queueId, messages, bytes, bodyBytes,
          least AS minQueueOffset, most AS maxQueueOffset, {STORED.format("")}
        FROM {{groups}} WHERE part = 'queues'""",
        ("brokerName", "topic", "queueId"),
    ),
    "tags": Statement(
        "SELECT topic, name AS tags, messages, bytes FROM {groups} WHERE part = 'tags'",
        ("-messages", "topic", "tags"),
    ),
    "keys": Statement(
        "SELECT topic, name AS key, messages FROM {groups} WHERE part = 'keys' "
        f"ORDER BY messages DESC, topic, key LIMIT {KEY_ROWS}",
        ("-messages", "topic", "key"),
    ),
    "allTags": Statement(
        _all_names("tags", "tags", "sum(messages) AS messages, sum(bytes) AS bytes"),
        ("-messages", "tags"),
    ),
    "allKeys": Statement(
        _all_names("keys", "key", "sum(messages) AS messages")
        + f" ORDER BY messages DESC, key LIMIT {KEY_ROWS}",
        ("-messages", "key"),
    ),
    "traffic": Statement(
        """
        SELECT timestamp_millis(startMs) AS startTimestamp, topic, sum(messages) AS messages,
          sum(bytes) AS bytes
        FROM (SELECT *, number - number % 60000 AS startMs FROM {groups} WHERE part = 'traffic')
        GROUP BY startMs, topic""",
        ("startTimestamp", "topic"),
    ),
    "sizes": Statement(
        "SELECT topic, number AS bucketBytes, messages, least AS leastBytes, most AS mostBytes "
        "FROM {groups} WHERE part = 'sizes'",
        ("topic", "bucketBytes"),
    ),
    "latencies": Statement(
        "SELECT topic, name AS way, number AS bucketMs, messages, least AS leastMs, "
        "most AS mostMs FROM {groups} WHERE part = 'latencies'",
        ("topic", "way", "bucketMs"),
    ),
    "delays": Statement(
        """
        SELECT brokerName, number AS level, least AS delayMs, messages, bytes, waiting, overdue,
          timestamp_millis(firstMs) AS firstDueTimestamp,
          timestamp_millis(lastMs) AS lastDueTimestamp
        FROM {groups} WHERE part = 'delays'""",
        ("brokerName", "level"),
    ),
    "retries": Statement(
        f"""
        SELECT topic, {KIND} AS kind,
          CASE WHEN left(topic, 5) = '%DLQ%' THEN substring(topic, 6) ELSE substring(topic, 8) END
            AS consumerGroup,
          number AS reconsumeTimes, messages, bytes, {STORED.format("")}
        FROM {{groups}} WHERE part = 'retries'""",
        ("topic", "reconsumeTimes"),
    ),
    "files": Statement(
        """
        SELECT brokerName, name AS file, number AS physicalOffset, max(least) AS size,
          max(detail) AS state, coalesce(sum(messages), 0) AS messages,
          coalesce(sum(bytes), 0) AS messageBytes, coalesce(max(most), 0) AS dataEnd,
          coalesce(sum(damagedRanges), 0) AS damagedRanges,
          coalesce(sum(damagedBytes), 0) AS damagedBytes
        FROM {groups} WHERE part = 'files' GROUP BY brokerName, name, number""",
        ("brokerName", "physicalOffset", "file"),
    ),
    "damage": Statement(
        """
        SELECT brokerName, name AS file, number AS physicalOffset, least AS position,
          damagedBytes AS size, topic AS reason, detail AS evidence
        FROM {groups} WHERE part = 'damage'""",
        ("brokerName", "physicalOffset"),
    ),
}

TOTALS: Final = """
SELECT part, CASE WHEN part = 'notes' THEN name WHEN part = 'retries' THEN left(topic, 5) END
    AS kind,
  count(*) AS groups, count(DISTINCT topic) AS topics, sum(messages) AS messages,
  sum(bytes) AS bytes, sum(bodyBytes) AS bodyBytes, sum(waiting) AS waiting,
  sum(overdue) AS overdue, sum(damagedRanges) AS damagedRanges, sum(damagedBytes) AS damagedBytes,
  sum(CASE WHEN damagedRanges > 0 THEN 1 ELSE 0 END) AS damagedFiles,
  min(firstMs) AS firstMs, max(lastMs) AS lastMs
FROM {groups} WHERE part IN ('queues', 'delays', 'retries', 'files', 'notes')
GROUP BY 1, 2"""

DISTRIBUTIONS: Final = """
SELECT part, name AS way, number AS bucket, sum(messages) AS messages
FROM {groups}
WHERE part IN ('sizes', 'latencies') OR part = 'retries' AND left(topic, 5) <> '%DLQ%'
GROUP BY part, name, number ORDER BY part, name, number"""

GROUPS: Final = """
SELECT CASE WHEN left(topic, 5) = '%DLQ%' THEN substring(topic, 6) ELSE substring(topic, 8) END
    AS consumerGroup,
  sum(CASE WHEN left(topic, 5) = '%DLQ%' THEN 0 ELSE messages END) AS retries,
  sum(CASE WHEN left(topic, 5) = '%DLQ%' THEN messages ELSE 0 END) AS deadLetters,
  max(number) AS times, max(lastMs) AS lastStoreMs
FROM {groups} WHERE part = 'retries' GROUP BY 1
ORDER BY deadLetters DESC, retries DESC, consumerGroup LIMIT {rows}"""

CELLS: Final = """
SELECT name AS file, brokerName, number AS cell FROM {groups}
WHERE part = 'cells' AND name IN (
  SELECT name FROM {groups} WHERE part = 'files' AND damagedRanges > 0
  ORDER BY brokerName, number, name LIMIT {files})
ORDER BY number"""

SPAN: Final = """
SELECT min(startMs) AS firstMs, max(startMs) AS lastMs, sum(messages) AS messages,
  min(startMs) FILTER (WHERE seen > total * {share}) AS lowMs,
  max(startMs) FILTER (WHERE total - seen + messages > total * {share}) AS highMs
FROM (
  SELECT *, sum(messages) OVER (PARTITION BY part ORDER BY startMs) AS seen,
    sum(messages) OVER (PARTITION BY part) AS total
  FROM (
    SELECT part, number - number % {width_ms} AS startMs, sum(messages) AS messages FROM {groups}
    WHERE part = 'traffic' GROUP BY 1, 2))"""
"""When messages were stored: all, and without so many of them at either end."""

BARS: Final = """
WITH timed AS (
  SELECT number - {start_ms} - (number - {start_ms}) % {width_ms} AS place, topic, messages, bytes
  FROM {groups} WHERE part = 'traffic' AND number >= {start_ms} AND number < {stop_ms})
SELECT place, CAST(NULL AS STRING) AS topic, sum(messages) AS messages, sum(bytes) AS bytes
FROM timed GROUP BY place
UNION ALL
SELECT place, topic, sum(messages) AS messages, sum(bytes) AS bytes
FROM timed WHERE topic IN (
  SELECT topic FROM {groups} WHERE part = 'queues' GROUP BY topic
  ORDER BY sum(messages) DESC, topic LIMIT {topics})
GROUP BY place, topic"""
"""Messages of bars, of all topics and of the first ones."""
