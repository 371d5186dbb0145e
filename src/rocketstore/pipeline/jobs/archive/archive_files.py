"""Parquet files of the archive's tables: rows from records, and each file's facts for the commit.

Law: built from buffers, never row by row. A file has a name that no other attempt has, and is on
the disk before it is reported.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations
import pyarrow.compute
import pyarrow.parquet as pq

from rocketstore.pipeline.files import ArrowFiles, files_at, sync_path
from rocketstore.pipeline.jobs.archive.archive_table import (
    DAY,
    EXTENT_SCHEMA,
    EXTENT_STATISTICS,
    EXTENTS,
    FILE_SCHEMA,
    MESSAGE_FIELDS,
    MESSAGE_STATISTICS,
    MESSAGES,
)
from rocketstore.pipeline.projection import (
    FIRST_TIMESTAMP_MS,
    LAST_TIMESTAMP_MS,
    batch_of,
    record_batches,
)
from rocketstore.scan import kernels
from rocketstore.scan.arrow import binary_slices
from rocketstore.scan.columns import BORN_HOST_V6, STORE_HOST_V6, RecordColumns
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

pa: Any = pyarrow
pc: Any = pyarrow.compute

_TEXTS: Final = ("table", "path", "day", "stats", "last_sha256")
SUMS: Final = ("records", "record_bytes", "extent_bytes", "damaged_bytes")
_NUMBERS: Final = ("size", *SUMS, "last_offset", "last_size")
RESULT_FIELDS: Final = pa.schema(
    [*((name, pa.string()) for name in _TEXTS), *((name, pa.int64()) for name in _NUMBERS)]
)

RESULT_SCHEMA: Final = ", ".join(
    [*(f"{name} STRING" for name in _TEXTS), *(f"{name} BIGINT" for name in _NUMBERS)]
)
"""A row per file; `extent_bytes` are those of the log, and the last record is the task's."""

COMPRESSION_LEVEL: Final = 1
"""Of zstd: level 3 takes a tenth more time in all, for 3 % less of JSON bodies."""

_FLUSH_BYTES: Final = 64 * MiB
"""What may wait to be sent to an object store: nothing else bounds how many parts wait."""

_NO_DAY_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
_DELTAS: Final = {
    "queueOffset": "DELTA_BINARY_PACKED",
    "bornTimestamp": "DELTA_BINARY_PACKED",
    "storeTimestamp": "DELTA_BINARY_PACKED",
    "physicalOffset": "DELTA_BINARY_PACKED",
    "bodyCRC": "PLAIN",
    "recordCRC": "PLAIN",
    "uniqKey": "DELTA_BYTE_ARRAY",
    "msgId": "DELTA_BYTE_ARRAY",
    "body": "PLAIN",
    "rawProperties": "PLAIN",
    "properties.key_value.value": "PLAIN",
    "keys.list.element": "PLAIN",
}
"""Columns whose values hardly repeat; those that only grow are stored as differences."""

_NO_STATISTICS: Final = frozenset({"body", "bodyCRC", "msgId", "properties", "keys"})
"""Least and greatest body would be copied into every footer; so would those of raw columns."""

_BORN_HOST_AT: Final = 48
"""Of a record, whatever it is like."""

_LEAVES: Final = {
    "properties": ["properties.key_value.key", "properties.key_value.value"],
    "keys": ["keys.list.element"],
}


class TableFile:
    """A Parquet file of one of the tables, under a name of its own, and its row."""

    def __init__(self, target: str, table: str, day: str | None, number: int) -> None:
        self._table = table
        self._day = day
        name = f"part-{number:05d}-{uuid.uuid4().hex}.parquet"
        self._path = f"{DAY}={day or _NO_DAY_NAME}/{name}" if table == MESSAGES else name
        files, root = files_at(target)
        self._place = f"{root}/{table}/{self._path}"
        self._local = None if isinstance(files, ArrowFiles) else Path(self._place)
        if isinstance(files, ArrowFiles):
            self._sink = files.system.open_output_stream(self._place)
        else:
            # Only the day: where a worker does not see the table itself, it must not make one.
            Path(self._place).parent.mkdir(exist_ok=True)
            self._sink = pa.OSFile(self._place, "wb")
        schema, options = _SETTINGS[table]
        self._writer = pq.ParquetWriter(self._sink, schema, **options)
        self._columns = MESSAGE_STATISTICS if table == MESSAGES else EXTENT_STATISTICS
        self._bounds: dict[str, list[Any]] = {name: [] for name in self._columns}
        self._nulls = dict.fromkeys(self._columns, 0)
        self._sent = 0
        self._rows = 0
        self.totals = dict.fromkeys(SUMS, 0)

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Write a row group."""
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self._rows += batch.num_rows
        for name in self._columns:
            column = batch.column(name)
            self._nulls[name] += column.null_count
            self._bounds[name] += [
                one for one in pc.min_max(column).as_py().values() if one is not None
            ]
        if self._local is None and self._sink.tell() - self._sent >= _FLUSH_BYTES:
            self._sink.flush()
            self._sent = self._sink.tell()

    def close(self) -> dict[str, object]:
        """Bring the file to the disk; return its row, but for the last record."""
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        if self._local is not None:
            for path in (self._local, self._local.parent, self._local.parent.parent):
                sync_path(path)
        bounds = {name: values for name, values in self._bounds.items() if values}
        stats = {
            "numRecords": self._rows,
            "minValues": {name: _in_json(min(values)) for name, values in bounds.items()},
            "maxValues": {name: _in_json(max(values)) for name, values in bounds.items()},
            "nullCount": self._nulls,
        }
        return {
            "table": self._table,
            "path": self._path,
            "day": self._day,
            "size": size,
            "stats": msgspec.json.encode(stats).decode(),
            **self.totals,
        }

    def remove(self) -> None:
        """Make room on a disk; what a failed task left on an object store waits for VACUUM."""
        if self._local is not None:
            self._local.unlink(missing_ok=True)


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


# --- rows ---------------------------------------------------------------------------------------


def _writer_settings() -> dict[str, Any]:
    leaves = [leaf for name in FILE_SCHEMA.names for leaf in _LEAVES.get(name, [name])]
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [name for name in leaves if name not in _DELTAS],
        "column_encoding": dict(_DELTAS),
        "write_statistics": [one for one in MESSAGE_FIELDS.names if one not in _NO_STATISTICS],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
    }


_SETTINGS: Final[Mapping[str, tuple[Any, dict[str, Any]]]] = {
    MESSAGES: (FILE_SCHEMA, _writer_settings()),
    EXTENTS: (
        EXTENT_SCHEMA,
        {"compression": "zstd", "write_page_checksum": True, "store_schema": False},
    ),
}


def message_batch(columns: RecordColumns, broker: str) -> pyarrow.RecordBatch:
    """Return records as one batch of ``FILE_SCHEMA``."""
    (batch,) = record_batches(columns, MESSAGE_FIELDS, broker=broker, decompress=False)
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    flags = columns.sys_flag
    born_sizes = np.where(flags & BORN_HOST_V6, np.int64(20), np.int64(8))
    store_sizes = np.where(flags & STORE_HOST_V6, np.int64(20), np.int64(8))
    topics = binary_slices(columns, columns.topic_at, columns.topic_size, "rawTopic")
    is_same = pc.equal(arrays["topic"].cast(topics.type), topics)
    arrays |= {
        "magic": _magics(columns),
        "rawTopic": pc.if_else(is_same, pa.scalar(None, topics.type), topics),
        "rawProperties": binary_slices(
            columns, columns.properties_at, columns.properties_size, "rawProperties"
        ),
        "rawBornHost": binary_slices(columns, columns.born_host_at, born_sizes, "rawBornHost"),
        "rawStoreHost": binary_slices(columns, columns.store_host_at, store_sizes, "rawStoreHost"),
        "rawBornTimestamp": _without_date(columns.born_timestamp),
        "rawStoreTimestamp": _without_date(columns.store_timestamp),
        "recordCRC": _record_crcs(columns),
    }
    return batch_of(arrays, FILE_SCHEMA)


def _magics(columns: RecordColumns) -> Any:
    """Return the magic numbers, which stand in the record's second word."""
    at = columns.born_host_at - _BORN_HOST_AT + 4
    words = columns.buffer[at[:, np.newaxis] + np.arange(4)]
    return pa.array(words.view(">i4").reshape(-1).astype(np.int32))


def _record_crcs(columns: RecordColumns) -> Any:
    found = np.empty(len(columns), dtype=np.int64)
    kernels.slice_crcs(columns.buffer, columns.born_host_at - _BORN_HOST_AT, columns.size, found)
    return pa.array(found)


def _without_date(milliseconds: npt.NDArray[np.int64]) -> Any:
    return pa.array(milliseconds, type=pa.int64(), mask=has_date(milliseconds))


def has_date(milliseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell which times some calendar has."""
    found: npt.NDArray[np.bool_] = (milliseconds >= FIRST_TIMESTAMP_MS) & (
        milliseconds <= LAST_TIMESTAMP_MS
    )
    return found
