"""Tables, their columns and types: what a query sees of a store.

Names follow rocketmq-spark first, then Spark's Kafka source. This module is loaded by every process
that plans a query, so it imports nothing but the standard library.
"""

from __future__ import annotations

from typing import Final

from rocketstore.errors import ConfigError

BODY: Final = "body"
PROPERTIES: Final = "properties"
BROKER_NAME: Final = "brokerName"

_RECORD: Final = """
    topic STRING, flag INT, body BINARY, properties MAP<STRING,STRING>, brokerName STRING,
    queueId INT, queueOffset BIGINT, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP,
    tags STRING, keys ARRAY<STRING>, uniqKey STRING, physicalOffset BIGINT, size BIGINT,
    sysFlag INT, bornHost STRING, storeHost STRING, reconsumeTimes INT,
    preparedTransactionOffset BIGINT, bodyCRC INT, msgId STRING
"""

_WAITING: Final = """
    realTopic STRING, realQueueId INT, queueOffset BIGINT, physicalOffset BIGINT, size BIGINT,
    bodySize INT, tags STRING, keys ARRAY<STRING>, uniqKey STRING, bornTimestamp TIMESTAMP,
    storeTimestamp TIMESTAMP, brokerName STRING
"""

_DDL: Final = {
    "messages": _RECORD,
    "commitlog": _RECORD.replace("body BINARY, ", ""),
    "consumequeue": """
        topic STRING, queueId INT, queueOffset BIGINT, physicalOffset BIGINT, size INT,
        tagsCode BIGINT, extensionAddress BIGINT, storeTimestamp TIMESTAMP, bitMap BINARY,
        brokerName STRING
    """,
    "batchqueue": """
        topic STRING, queueId INT, baseOffset BIGINT, messageCount INT, physicalOffset BIGINT,
        size INT, tagsCode BIGINT, storeTimestamp TIMESTAMP, brokerName STRING
    """,
    "index": """
        keyHash INT, physicalOffset BIGINT, storeTimestamp TIMESTAMP, itemNumber INT,
        previousItem INT, slot INT, file STRING, brokerName STRING
    """,
    "segments": """
        physicalOffset BIGINT, size BIGINT, firstStoreTimestamp TIMESTAMP, state STRING,
        file STRING, brokerName STRING
    """,
    "queues": """
        topic STRING, queueId INT, minOffset BIGINT, maxOffset BIGINT, bytes BIGINT,
        firstStoreTimestamp TIMESTAMP, lastStoreTimestamp TIMESTAMP, brokerName STRING
    """,
    "topics": """
        topic STRING, queueCount INT, messageCount BIGINT, bytes BIGINT,
        firstStoreTimestamp TIMESTAMP, lastStoreTimestamp TIMESTAMP, readQueueNums INT,
        writeQueueNums INT, perm INT, brokerName STRING
    """,
    "consumers": """
        group STRING, topic STRING, queueId INT, offset BIGINT, maxOffset BIGINT,
        lag BIGINT, brokerName STRING
    """,
    "delays": f"""
        level INT, dueTimestamp TIMESTAMP, {_WAITING}
    """,
    "transactions": f"""
        producerGroup STRING, checkTimes INT, {_WAITING}
    """,
    "damage": """
        physicalOffset BIGINT, size BIGINT, reason STRING, evidence STRING, file STRING,
        foundTimestamp TIMESTAMP, brokerName STRING
    """,
}

TABLES: Final[dict[str, dict[str, str]]] = {
    table: dict(one.split() for one in " ".join(columns.split()).split(", "))
    for table, columns in _DDL.items()
}
"""Table, its columns in default order, and their types in Spark's DDL."""

NULLABLE: Final = frozenset({
    "tags", "uniqKey", "bornTimestamp", "storeTimestamp", "firstStoreTimestamp",
    "lastStoreTimestamp", "foundTimestamp", "readQueueNums", "writeQueueNums", "perm",
    "dueTimestamp", "realTopic", "realQueueId", "producerGroup", "tagsCode", "extensionAddress",
    "bitMap",
})  # fmt: skip
"""Columns of any table whose rows can be without a value."""

RECORD_TABLES: Final = frozenset({"messages", "commitlog"})


def column_type(table: str, name: str) -> str:
    """Return the type of a column, which the table must have."""
    columns = TABLES[table]
    if name not in columns:
        what, hint = (
            f"table {table} has no column {name!r}",
            f"its columns are {', '.join(columns)}",
        )
        raise ConfigError(what, key="columns", value=name, hint=hint)
    return columns[name]
