"""The tables of a report and the figures of its page, as SQL over the groups that Spark wrote.

``groups`` has one row for each combination of keys, as `partial_groups` says; of files also rows of
the plan. Each table becomes a Parquet file, and a table of its name for the statements of the page.
"""

# ruff: noqa: S608 - statements are put together of this module's own constants
from typing import Final

from rocketstore.rules.topics import PURPOSE_OF_NAME, PURPOSE_OF_PREFIX

KEY_ROWS: Final = 1_000  # that tables ``keys`` and ``allKeys`` have
MAP_CELLS: Final = 200  # parts of a file that the damage map draws

_CONDITIONS: Final = {
    **{f"topic = '{name}'": purpose for name, purpose in PURPOSE_OF_NAME.items()},
    **{f"starts_with(topic, '{one}')": purpose for one, purpose in PURPOSE_OF_PREFIX.items()},
}
_PURPOSES: Final = " ".join(f"WHEN {is_so} THEN '{of}'" for is_so, of in _CONDITIONS.items())

VIEWS: Final = f"""
CREATE MACRO moment(ms) AS make_timestamp_ms(ms)::TIMESTAMPTZ;
CREATE MACRO kind_of(topic) AS CASE {_PURPOSES} ELSE 'normal' END;
CREATE VIEW buckets AS
  FROM groups WHERE part = 'sizes' OR part = 'latencies' AND name = 'direct';
CREATE TABLE percentiles AS
  SELECT part, topic, min(most) FILTER (seen >= total * 0.5) AS p50,
    min(most) FILTER (seen >= total * 0.9) AS p90, min(most) FILTER (seen >= total * 0.99) AS p99,
    min(least) AS least, max(most) AS most, any_value(total) AS sent,
    coalesce(sum(messages) FILTER (number < 0), 0) AS negative
  FROM (
    SELECT *, sum(messages) OVER (PARTITION BY part, topic ORDER BY number) AS seen,
      sum(messages) OVER (PARTITION BY part, topic) AS total
    FROM (
      SELECT part, topic, number, messages, least, most FROM buckets UNION ALL
      SELECT part, NULL, number, sum(messages), min(least), max(most) FROM buckets
      GROUP BY part, number))
  GROUP BY part, topic"""
"""The purpose of a topic follows from its name (`rules.topics`). Percentiles are of each topic, and
of all together where ``topic`` is null: the greatest value in the bucket that so many percent are
reached in."""

_STORED: Final = "moment(firstMs) AS firstStoreTimestamp, moment(lastMs) AS lastStoreTimestamp"

TABLES: Final = {  # each in the order of its rows
    "topics": f"""
        SELECT topic, kind_of(topic) AS kind, queues, messages, bytes, leastOfQueue, mostOfQueue,
          bodyBytes, bodies.p50 AS bodyBytesP50, bodies.p99 AS bodyBytesP99,
          waits.p50 AS latencyMsP50, waits.p99 AS latencyMsP99, {_STORED}
        FROM (
          SELECT topic, count(*) AS queues, sum(messages)::BIGINT AS messages,
            sum(bytes)::BIGINT AS bytes, min(messages) AS leastOfQueue,
            max(messages) AS mostOfQueue, sum(bodyBytes)::BIGINT AS bodyBytes,
            min(firstMs) AS firstMs, max(lastMs) AS lastMs
          FROM groups WHERE part = 'queues' GROUP BY topic) AS counted
        LEFT JOIN (FROM percentiles WHERE part = 'sizes') AS bodies USING (topic)
        LEFT JOIN (FROM percentiles WHERE part = 'latencies') AS waits USING (topic)
        ORDER BY messages DESC, topic""",
    "queues": f"""
        SELECT brokerName, topic, number AS queueId, messages, bytes, bodyBytes,
          least AS minQueueOffset, most AS maxQueueOffset, {_STORED}
        FROM groups WHERE part = 'queues' ORDER BY brokerName, topic, queueId""",
    "tags": """
        SELECT topic, name AS tags, messages, bytes FROM groups WHERE part = 'tags'
        ORDER BY messages DESC, topic, tags""",
    "keys": f"""
        SELECT topic, name AS key, messages FROM groups WHERE part = 'keys'
        ORDER BY messages DESC, topic, key LIMIT {KEY_ROWS}""",
    "allTags": """
        SELECT name AS tags, count(*) AS topics, sum(messages)::BIGINT AS messages,
          sum(bytes)::BIGINT AS bytes
        FROM groups WHERE part = 'tags' GROUP BY name ORDER BY messages DESC, tags""",
    "allKeys": f"""
        SELECT name AS key, number AS topics, messages FROM groups WHERE part = 'allKeys'
        ORDER BY messages DESC, key LIMIT {KEY_ROWS}""",
    "traffic": """
        SELECT moment(number - number % 60000) AS startTimestamp, topic,
          sum(messages)::BIGINT AS messages, sum(bytes)::BIGINT AS bytes
        FROM groups WHERE part = 'traffic' GROUP BY ALL ORDER BY startTimestamp, topic""",
    "sizes": """
        SELECT topic, number AS bucketBytes, messages, least AS leastBytes, most AS mostBytes
        FROM groups WHERE part = 'sizes' ORDER BY topic, bucketBytes""",
    "latencies": """
        SELECT topic, name AS way, number AS bucketMs, messages, least AS leastMs, most AS mostMs
        FROM groups WHERE part = 'latencies' ORDER BY topic, way, bucketMs""",
    "delays": """
        SELECT brokerName, number AS level, least AS delayMs, messages, bytes, waiting, overdue,
          moment(firstMs) AS firstDueTimestamp, moment(lastMs) AS lastDueTimestamp
        FROM groups WHERE part = 'delays' ORDER BY brokerName, level""",
    "transactions": """
        SELECT brokerName, topic, name AS producerGroup, number AS ageMs, messages, bytes,
          most AS checkTimes, moment(firstMs) AS firstBornTimestamp
        FROM groups WHERE part = 'halves' ORDER BY firstMs, brokerName, topic, producerGroup""",
    "retries": f"""
        SELECT topic, kind_of(topic) AS kind,
          regexp_replace(topic, '^%(RETRY|DLQ)%', '') AS consumerGroup,
          number AS reconsumeTimes, messages, bytes, {_STORED}
        FROM groups WHERE part = 'retries' ORDER BY topic, reconsumeTimes""",
    "files": """
        SELECT brokerName, name AS file, number AS physicalOffset, max(least) AS size,
          max(bodyBytes) AS expectedSize, max(detail) AS state,
          sum(messages)::BIGINT AS messages, sum(bytes)::BIGINT AS messageBytes,
          max(most) AS dataEnd, sum(damagedRanges)::BIGINT AS damagedRanges,
          sum(damagedBytes)::BIGINT AS damagedBytes,
          sum(waiting)::BIGINT AS bytesRead, sum(overdue)::BIGINT AS resyncs
        FROM groups WHERE part = 'files' GROUP BY brokerName, name, number
        ORDER BY brokerName, physicalOffset, file""",
    "damage": """
        SELECT brokerName, name AS file, number AS physicalOffset, least AS position,
          damagedBytes AS size, topic AS reason, detail AS evidence
        FROM groups WHERE part = 'damage' ORDER BY brokerName, physicalOffset""",
}

# --- figures of the page, over these tables -----------------------------------------------------

SUMMARY: Final = """
SELECT * FROM
  (SELECT sum(messages) AS messages, sum(bytes) AS bytes, sum(bodyBytes) AS bodyBytes,
     count(DISTINCT topic) AS topics, count(*) AS queues,
     min(firstStoreTimestamp) AS firstStoreTimestamp,
     max(lastStoreTimestamp) AS lastStoreTimestamp FROM queues),
  (SELECT count(*) AS files, sum(size) FILTER (state <> 'missing') AS fileBytes,
     sum(damagedRanges) AS damagedRanges, sum(damagedBytes) AS damagedBytes,
     count(*) FILTER (damagedRanges > 0) AS damagedFiles FROM files),
  (SELECT sum(messages) AS scheduled, sum(waiting) AS waiting, sum(overdue) AS overdue FROM delays),
  (SELECT sum(messages) FILTER (kind = 'retry') AS retries,
     sum(messages) FILTER (kind = 'dead letter') AS deadLetters FROM retries),
  (SELECT sum(messages) FILTER (tags IS NULL) AS untagged FROM allTags)"""

NOTES: Final = """
SELECT name, sum(messages) AS messages FROM groups WHERE part = 'notes' GROUP BY name"""

QUEUES_OF_TOPICS: Final = """
SELECT * FROM queues JOIN (SELECT topic, row_number() OVER () AS place FROM topics LIMIT {topics})
  USING (topic)
QUALIFY row_number() OVER (PARTITION BY topic ORDER BY brokerName, queueId) <= {queues}
ORDER BY place, brokerName, queueId"""

SIZES: Final = "SELECT bucketBytes AS bucket, sum(messages) AS messages FROM sizes GROUP BY 1"
LATENCIES: Final = """
SELECT way, bucketMs AS bucket, sum(messages) AS messages FROM latencies GROUP BY 1, 2"""

GROUPS: Final = """
SELECT consumerGroup, coalesce(sum(messages) FILTER (kind = 'retry'), 0) AS retries,
  coalesce(sum(messages) FILTER (kind = 'dead letter'), 0) AS deadLetters,
  max(reconsumeTimes) AS times, max(lastStoreTimestamp) AS lastStoreTimestamp
FROM retries GROUP BY consumerGroup
ORDER BY deadLetters DESC, retries DESC, consumerGroup LIMIT {rows}"""

FILES: Final = f"""
WITH shown AS (
  SELECT * FROM files WHERE damagedRanges > 0 OR (SELECT max(damagedRanges) FROM files) = 0
  ORDER BY brokerName, physicalOffset, file LIMIT {{rows}}),
cells AS (
  SELECT DISTINCT brokerName, file, unnest(range(
    position * {MAP_CELLS} // expectedSize,
    (least(position + damage.size, expectedSize) - 1) * {MAP_CELLS} // expectedSize + 1)) AS cell
  FROM damage JOIN shown USING (brokerName, file)),
runs AS (
  SELECT brokerName, file, min(cell) AS start, count(*) AS length
  FROM (SELECT *, cell - row_number() OVER (PARTITION BY brokerName, file ORDER BY cell) AS run
        FROM cells)
  GROUP BY brokerName, file, run)
SELECT shown.*, least(dataEnd, size) * {MAP_CELLS} / expectedSize AS dataCells,
  coalesce((SELECT list([start, length] ORDER BY start) FROM runs
    WHERE runs.brokerName = shown.brokerName AND runs.file = shown.file), []) AS lostCells
FROM shown ORDER BY brokerName, physicalOffset, file"""
"""Files of the damage map, damaged ones if there are: how far their data goes, and where runs of
damaged cells begin and how long they are."""

SPAN: Final = """
SELECT min(startMs) AS firstMs, max(startMs) AS lastMs, sum(messages) AS messages,
  min(startMs) FILTER (seen > total * {share}) AS lowMs,
  max(startMs) FILTER (total - seen + messages > total * {share}) AS highMs
FROM (
  SELECT *, sum(messages) OVER (ORDER BY startMs) AS seen, sum(messages) OVER () AS total
  FROM (SELECT number - number % {width_ms} AS startMs, sum(messages) AS messages
        FROM groups WHERE part = 'traffic' GROUP BY 1))"""
"""When messages were stored: all, and without so many of them at either end."""

BARS: Final = """
SELECT (number - {start_ms}) // {width_ms} AS bar,
  CASE WHEN topic IN (SELECT topic FROM topics LIMIT {topics}) THEN topic END AS topic,
  sum(messages) AS messages, sum(bytes) AS bytes
FROM groups WHERE part = 'traffic' AND number >= {start_ms} AND number < {stop_ms}
GROUP BY ALL ORDER BY ALL"""
"""Messages of bars by topic; those of all but the first topics together."""
