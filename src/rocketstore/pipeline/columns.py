"""Tables, their columns and types: what a query sees of a store.

Names follow rocketmq-spark first, then Spark's Kafka source. This module is loaded by every process
that plans a query, so it imports nothing but the standard library.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from rocketstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from pyspark.sql.types import StructType

BODY: Final = "body"
PROPERTIES: Final = "properties"
BROKER_NAME: Final = "brokerName"
KAFKA: Final = "kafka"
HEADERS: Final = "headers"

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
    "reads": """
        file STRING, physicalOffset BIGINT, size BIGINT, way STRING, bytesRead BIGINT,
        records BIGINT, rows BIGINT, resyncs BIGINT, damagedRanges BIGINT, damagedBytes BIGINT,
        brokerName STRING
    """,
}

TABLES: Final[dict[str, dict[str, str]]] = {
    table: dict(one.split() for one in " ".join(columns.split()).split(", "))
    for table, columns in _DDL.items()
}
"""Table, its columns in default order, and their types in Spark's DDL."""

COLUMNS_OF: Final = TABLES | {
    KAFKA: {
        "key": "BINARY", "value": "BINARY", "topic": "STRING", "partition": "INT",
        "offset": "BIGINT", "timestamp": "TIMESTAMP", "timestampType": "INT",
        HEADERS: "ARRAY<STRUCT<key:STRING,value:BINARY>>",
    },
}  # fmt: skip
"""The same, and how Spark's Kafka source would call the columns of ``messages``."""

NULLABLE: Final = frozenset({
    "tags", "uniqKey", "bornTimestamp", "storeTimestamp", "firstStoreTimestamp",
    "lastStoreTimestamp", "foundTimestamp", "readQueueNums", "writeQueueNums", "perm",
    "dueTimestamp", "realTopic", "realQueueId", "producerGroup", "tagsCode", "extensionAddress",
    "bitMap", "key", HEADERS,
})  # fmt: skip
"""Columns of any table whose rows can be without a value."""

RECORD_TABLES: Final = frozenset({"messages", "commitlog"})


@functools.cache
def arrow_schema(columns: str) -> pa.Schema:
    """Return the types in which Spark's workers exchange columns that are given in its DDL."""
    import pyarrow as pa  # noqa: PLC0415 - who plans a query needs none

    text = pa.string()
    kinds = {
        "STRING": text,
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "BINARY": pa.binary(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "ARRAY<STRING>": pa.list_(pa.field("element", text)),
        "MAP<STRING,STRING>": pa.map_(text, text),
    }
    named = (one.split() for one in columns.split(", "))
    return pa.schema([(name, kinds[kind]) for name, kind in named])


def column_type(table: str, name: str) -> str:
    """Return the type of a column, which the table must have."""
    columns = COLUMNS_OF[table]
    if name not in columns:
        what = f"{_called(table)} has no column {name!r}"
        hint = f"its columns are {', '.join(columns)}"
        raise ConfigError(what, key="columns", value=name, hint=hint)
    return columns[name]


def _called(table: str) -> str:
    """Return a table's name as users know it: Spark's Kafka columns are of ``messages``."""
    return f"table {'messages with columnNames kafka' if table == KAFKA else table}"


def check_schema(table: str, columns: Collection[str], schema: StructType) -> None:
    """Refuse a schema that the table's rows would not fit."""
    for at, field in enumerate(schema.fields):
        name, hint = field.name, None
        wanted = column_type(table, name).lower()
        found = field.dataType.simpleString().lower()
        if found != wanted:
            problem = f"is {wanted}, the schema asks for {found}"
            hint = "read it as it is and cast it"
        elif name in schema.names[:at]:
            problem = "stands in the schema twice"
        elif not field.nullable and name in NULLABLE:
            problem, hint = "may be null, the schema says that it is not", "leave out NOT NULL"
        elif name not in columns:
            problem = "is in the schema, and the options leave it out"
            hint = "choose columns either by a schema or by columns, includeBody, includeProperties"
        else:
            continue
        what = f"column {name} of {_called(table)} {problem}"
        raise ConfigError(what, key="schema", value=name, hint=hint)
