"""Records as the rows of an archive's Parquet files.

A row has every column of the data source's table ``messages`` but `topic`, which is in the name of
the directory, and what those columns cannot give back: the properties, hosts and times as they are
stored. Bodies are as stored.

Law: built from buffers, never row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations

from rocketstore.pipeline.projection import (
    FIRST_TIMESTAMP_MS,
    LAST_TIMESTAMP_MS,
    batch_of,
    record_batches,
)
from rocketstore.scan.arrow import binary_slices
from rocketstore.scan.columns import BORN_HOST_V6, STORE_HOST_V6, RecordColumns

if TYPE_CHECKING:
    import numpy.typing as npt

pa: Any = pyarrow
"""Its annotations know too little of what it takes."""

_TIMESTAMP: Final = pa.timestamp("us", "UTC")

MESSAGE_FIELDS: Final = pa.schema(
    [
        ("flag", pa.int32()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("bornTimestamp", _TIMESTAMP),
        ("storeTimestamp", _TIMESTAMP),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("uniqKey", pa.string()),
        ("physicalOffset", pa.int64()),
        ("size", pa.int64()),
        ("sysFlag", pa.int32()),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bodyCRC", pa.int32()),
        ("msgId", pa.string()),
    ]
)
"""The columns of table ``messages``, in its types."""

RAW_FIELDS: Final = pa.schema(
    [
        ("magic", pa.int32()),
        ("rawProperties", pa.binary()),
        ("rawBornHost", pa.binary()),
        ("rawStoreHost", pa.binary()),
        ("rawBornTimestamp", pa.int64()),
        ("rawStoreTimestamp", pa.int64()),
    ]
)
"""What identity needs besides. The raw times are null where the timestamps say the same."""

SCHEMA: Final = pa.schema([*MESSAGE_FIELDS, *RAW_FIELDS])

EXTENT_SCHEMA: Final = pa.schema(
    [
        ("physicalOffset", pa.int64()),
        ("size", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("evidence", pa.string()),
        ("file", pa.int64()),
        ("content", pa.binary()),
    ]
)

_DELTAS: Final = {
    "queueOffset": "DELTA_BINARY_PACKED",
    "bornTimestamp": "DELTA_BINARY_PACKED",
    "storeTimestamp": "DELTA_BINARY_PACKED",
    "physicalOffset": "DELTA_BINARY_PACKED",
    "bodyCRC": "PLAIN",
    "uniqKey": "DELTA_BYTE_ARRAY",
    "msgId": "DELTA_BYTE_ARRAY",
    "body": "PLAIN",
    "rawProperties": "PLAIN",
    "properties.key_value.value": "PLAIN",
    "keys.list.element": "PLAIN",
}
"""Columns whose values hardly repeat; those that only grow are stored as differences."""

_STATISTICS: Final = (
    "flag",
    "queueId",
    "queueOffset",
    "bornTimestamp",
    "storeTimestamp",
    "tags",
    "uniqKey",
    "physicalOffset",
    "size",
    "sysFlag",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
)
"""Columns that queries compare. Least and greatest body would be copied into every footer."""

COMPRESSION_LEVEL: Final = 1
"""Of zstd: level 3 takes a tenth more time in all, for 3 % less of JSON bodies."""


def writer_settings() -> dict[str, Any]:
    """Return how Parquet files of messages are written."""
    leaves = [*_leaves()]
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [name for name in leaves if name not in _DELTAS],
        "column_encoding": dict(_DELTAS),
        "write_statistics": list(_STATISTICS),
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
    }


def _leaves() -> list[str]:
    inner = {
        "properties": ["properties.key_value.key", "properties.key_value.value"],
        "keys": ["keys.list.element"],
    }
    return [leaf for name in SCHEMA.names for leaf in inner.get(name, [name])]


def message_batch(columns: RecordColumns, broker: str) -> pyarrow.RecordBatch:
    """Return records as one batch of `SCHEMA`."""
    (batch,) = record_batches(columns, MESSAGE_FIELDS, broker=broker, decompress=False)
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    flags = columns.sys_flag
    born_sizes = np.where(flags & BORN_HOST_V6, np.int64(20), np.int64(8))
    store_sizes = np.where(flags & STORE_HOST_V6, np.int64(20), np.int64(8))
    arrays |= {
        "magic": _magics(columns),
        "rawProperties": binary_slices(
            columns, columns.properties_at, columns.properties_size, "rawProperties"
        ),
        "rawBornHost": binary_slices(columns, columns.born_host_at, born_sizes, "rawBornHost"),
        "rawStoreHost": binary_slices(columns, columns.store_host_at, store_sizes, "rawStoreHost"),
        "rawBornTimestamp": _without_date(columns.born_timestamp),
        "rawStoreTimestamp": _without_date(columns.store_timestamp),
    }
    return batch_of(arrays, SCHEMA)


def _magics(columns: RecordColumns) -> Any:
    """Return the magic numbers, which stand in the record's second word."""
    # The born host stands 48 bytes behind the record's begin, whatever the record is like.
    at = columns.born_host_at - 44
    words = columns.buffer[at[:, np.newaxis] + np.arange(4)]
    return pa.array(words.view(">i4").reshape(-1).astype(np.int32))


def _without_date(milliseconds: npt.NDArray[np.int64]) -> Any:
    is_date = has_date(milliseconds)
    return pa.array(milliseconds, type=pa.int64(), mask=is_date)


def has_date(milliseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell which times some calendar has."""
    found: npt.NDArray[np.bool_] = (milliseconds >= FIRST_TIMESTAMP_MS) & (
        milliseconds <= LAST_TIMESTAMP_MS
    )
    return found
