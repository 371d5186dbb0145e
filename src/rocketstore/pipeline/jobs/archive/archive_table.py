"""The archive: two Delta tables, what their rows mean, and how they are read and written.

**Identity.** For each broker, the records of `messages` and the extents of `LOG_KINDS` cover the
log from the first run's `begin` to the last one's `end`, each byte once; what no row covers was
deleted from the archive since. A record is `rawHead`, `body` and `rawTail`, back to back.
Rows come in any order and in any file, since OPTIMIZE and other tools rewrite files.

**Runs.** A run is two commits, its extents and then its messages, and only the second one makes it
count. It names the run before it that counts, so a run whose second commit never came has no
effect. Extents are always read in their latest version, and only those of runs that count in the
version of `messages` at hand (`Archive.runs`).

Page: docs/reference/archive.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from rocketstore.errors import ArchiveDamagedError, ArchiveError
from rocketstore.pipeline.columns import TABLES, arrow_schema
from rocketstore.pipeline.jobs.archive.archive_place import TableKind, open_tables, sync_log
from rocketstore.places.files import ArrowFiles, files_at, side_by_side, sync_all
from rocketstore.places.location import is_remote, joined
from rocketstore.units import MiB, system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable


MESSAGES: Final = "messages"
EXTENTS: Final = "extents"

EXTENT_BYTES: Final = 4 * MiB
"""Content of one row of extents."""

DAY: Final = "day"
"""Store time in UTC; null where no calendar has it. In the names of directories, not in files."""

FROM_BACKUP: Final = (
    "restore another version (as_of, --as-of), or the archive from a backup; nothing was restored"
)

LOG_KINDS: Final = ("blank", "damage", "gap")
"""Of extents: stretches of the log that are no records."""

_RAW: Final = "rawHead BINARY, rawTail BINARY, recordCRC INT"
MESSAGE_FIELDS: Final = arrow_schema(", ".join(map(" ".join, TABLES[MESSAGES].items())))
"""The columns of table ``messages`` of the data source, in its types."""

FILE_SCHEMA: Final = pa.schema([*MESSAGE_FIELDS, *arrow_schema(_RAW)])
"""Of a Parquet file of messages: what queries want, and what identity needs besides."""

EXTENT_SCHEMA: Final = arrow_schema(
    "brokerName STRING, run BIGINT, kind STRING, physicalOffset BIGINT, size BIGINT, file BIGINT, "
    "fileSize BIGINT, name STRING, reason STRING, evidence STRING, content BINARY, contentCRC INT"
)

STATISTICS: Final = {
    MESSAGES: (
        *("brokerName", "topic", "queueId", "queueOffset", "physicalOffset"),
        *("storeTimestamp", "bornTimestamp"),
    ),
    EXTENTS: ("brokerName", "run", "kind", "physicalOffset"),
}
"""Columns of which the tables keep least and greatest values per file."""

_FOR_TERMINALS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_NEXT: Final = "see that there is room, and that this user may write there; then run it again"
_LEFT: Final = "VACUUM removes what this run wrote and no version names"
_UNREADABLE: Final = "see that this user may read it and that its disk is there; then run it again"

BATCH_BYTES: Final = 4 * MiB
_BATCH_ROWS: Final = 1 << 16
_EXTENTS_AT_ONCE: Final = 4
_READING: Final = {"buffer_size": MiB, "pre_buffer": False, "page_checksum_verification": True}

_FLUSH_BYTES: Final = 64 * MiB
"""Bytes that may wait to be sent to an object store: nothing else limits how many parts wait."""

_DELTA: Final = "DELTA_BINARY_PACKED"
_ENCODINGS: Final = {
    **dict.fromkeys(("queueOffset", "bornTimestamp", "storeTimestamp", "physicalOffset"), _DELTA),
    **dict.fromkeys(("uniqKey", "msgId"), "DELTA_BYTE_ARRAY"),
    **dict.fromkeys(("bodyCRC", "recordCRC", "body", "rawHead", "rawTail"), "PLAIN"),
    **dict.fromkeys(("properties.key_value.value", "keys.list.element"), "PLAIN"),
}
"""Columns whose values hardly repeat; those that only grow are stored as differences."""

_OPTIONS: Final[dict[str, Any]] = {"write_page_checksum": True, "store_schema": False}


def _compressed(*columns: str) -> dict[str, Any]:
    """Return options for columns of which zstd saves something; others it may make larger.

    For each column it takes 25 µs, most of the time of a small file. Level 3 takes a tenth more
    time in all, for 3 % less of JSON bodies.
    """
    names, levels = dict.fromkeys(columns, "zstd"), dict.fromkeys(columns, 1)
    return {"compression": names, "compression_level": levels}


_MESSAGE_OPTIONS: Final = _OPTIONS | {
    **_compressed(
        *("topic", "queueOffset", "size", "bornHost", "uniqKey", "msgId", "body"),
        *("rawHead", "rawTail", "properties.key_value.value", "keys.list.element"),
    ),
    "column_encoding": _ENCODINGS,
    "use_dictionary": ["properties.key_value.key", *{*MESSAGE_FIELDS.names} - {*_ENCODINGS}],
    # Least and greatest body would be copied into every footer; so would those of raw columns.
    "write_statistics": [*STATISTICS[MESSAGES], "tags", "uniqKey"],
    "write_page_index": True,
}
_FILES: Final[dict[str, Any]] = {
    MESSAGES: (FILE_SCHEMA, _MESSAGE_OPTIONS),
    EXTENTS: (EXTENT_SCHEMA, _OPTIONS | _compressed("content", "evidence", "reason", "name")),
}
"""Columns of a table's files, and how they are written."""

KINDS: Final = {
    MESSAGES: TableKind(
        pa.schema([pa.field(DAY, pa.date32()), *FILE_SCHEMA]), [DAY], STATISTICS[MESSAGES]
    ),
    EXTENTS: TableKind(EXTENT_SCHEMA, [], STATISTICS[EXTENTS]),
}

Condition = tuple[str, str, Any]
"""Of rows: a column, how it is compared, and a value; a filter of ``pyarrow.parquet``."""

_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<": pc.less,
    ">=": pc.greater_equal,
    "in": lambda column, values: pc.is_in(column, pa.array(values, column.type)),
}

LastRecord = tuple[int, int, str]
"""Physical offset, size and SHA-256 of a log's last record; 0 bytes when there is none."""


class Run(msgspec.Struct, rename="camel", frozen=True):
    """A run: it archived the log of a broker from `begin` to `end`.

    `previous` is the number of the run before it that counts, 0 for none. The next run compares
    `last_record` with the log. `beside` is the SHA-256 of what else is archived: sizes of files,
    what stands after the log's end, the JSON tables.
    """

    number: int
    previous: int
    begin: int
    end: int
    last_record: LastRecord
    beside: str


def run_id(broker: str) -> str:
    """Return the application transaction whose version is the number of a broker's last run."""
    return f"{broker}#run"


@dataclass(frozen=True)
class Archive:
    """The two tables, as they were when they were opened."""

    location: str
    messages: DeltaTable
    extents: DeltaTable

    @classmethod
    def open(
        cls, location: str | Path, as_of: int | str | None = None, *, or_create: bool = False
    ) -> Self:
        """Open an archive; `as_of` is a version of `messages`, or an ISO 8601 time (UTC)."""
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415 - as above

        location = str(location)
        try:
            if isinstance(as_of, str):
                moment = datetime.fromisoformat(as_of)
                as_of = moment.replace(tzinfo=moment.tzinfo or UTC).isoformat()
            tables = open_tables(location, KINDS, as_of, or_create=or_create)
        except (DeltaError, OSError, ValueError, OverflowError) as error:
            if isinstance(error, TableNotFoundError) and not or_create:
                what = f"is not an archive: it has no Delta tables {MESSAGES} and {EXTENTS}"
                hint = "name the directory that rocketstore pipeline archive wrote to"
                raise ArchiveError(f"{location} {what}", hint=hint) from error
            version, said = "" if as_of is None else f" as of {as_of}", _said(error)
            done = "opened or made" if or_create else "opened"
            denied = _UNREADABLE if "Permission denied" in said else None
            what = f"{location}{version} cannot be {done}: {said}"
            raise ArchiveError(what, hint=_NEXT if or_create else denied) from error
        return cls(location, **tables)

    def brokers(self) -> list[str]:
        """Return the brokers that have a run which counts."""
        found = {row["brokerName"] for row in self._run_rows}
        return sorted(name for name in found if self.last_run(name))

    @cached_property
    def _run_rows(self) -> list[dict[str, Any]]:
        return self.read_extents(["run"], ["brokerName", "content"])

    def last_run(self, broker: str) -> int:
        """Return the number of a broker's last run that counts; 0 for none."""
        return self.messages.transaction_version(run_id(broker)) or 0

    def runs(self, broker: str, *, only_last: bool = False) -> tuple[Run, ...]:
        """Return the runs of a broker that count, oldest first, or `only_last` of them."""
        number = self.last_run(broker)
        if not number:
            return ()
        rows = self._run_rows
        if only_last:
            rows = self.read_extents(["run"], ["brokerName", "content"], broker, number)
        contents = {row["run"]: row["content"] for row in rows if row["brokerName"] == broker}
        found: list[Run] = []
        while number:
            if number not in contents:
                raise ArchiveDamagedError(
                    f"run {number} of broker {broker} has no row of kind run in "
                    f"{joined(self.location, EXTENTS)}",
                    hint="bring the table back to a version that has it (DeltaTable.restore)",
                )
            found.append(msgspec.json.decode(contents[number], type=Run))
            number = 0 if only_last else found[-1].previous
        return tuple(reversed(found))

    def read_extents(
        self, kinds: Sequence[str], columns: Sequence[str], broker: str | None = None, run: int = 0
    ) -> list[dict[str, Any]]:
        """Return the extents of some kinds, of runs that count and that do not, or of one `run`.

        Besides the given columns there are `run`, `kind` and ``path``, of the row's file in the
        table. `content` may be large, but for kinds ``run`` and ``config``.
        """
        wanted: list[Condition] = [("kind", "in", list(kinds))]
        if broker is not None:
            wanted.append(("brokerName", "=", broker))
        if run:
            wanted.append(("run", "=", run))

        def read(path: str) -> list[dict[str, Any]]:
            place = joined(self.location, EXTENTS, *path.split("/"))
            batches = read_rows(place, EXTENT_SCHEMA, wanted, ["run", "kind", *columns])
            return [row | {"path": path} for batch in batches for row in batch.to_pylist()]

        paths = [
            one["path"]
            for one in pa.table(self.extents.get_add_actions(flatten=True)).to_pylist()
            if not run or (one.get("min.run") or 0) <= run <= (one.get("max.run") or run)
        ]
        found = side_by_side(self.location, len(paths))(read, paths)
        return [row for rows in found for row in rows]

    def commit(
        self, name: str, broker: str, marks: Mapping[str, int], files: Sequence[WrittenFile]
    ) -> None:
        """Add those files that are of a table, and move application transactions of a broker.

        Raises an `ArchiveError` where another archiver of this broker has committed since the
        archive was opened.
        """
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415 - as above
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415 - as above
        from deltalake.transaction import AddAction  # noqa: PLC0415 - as above

        table = self.messages if name == MESSAGES else self.extents
        transactions = [Transaction(mark, version) for mark, version in marks.items()]
        now_ms, days = system_clock_ms(), table.metadata().partition_columns
        added: list[Any] = [
            AddAction(
                one.path,
                one.size,
                dict.fromkeys(days, one.day),
                now_ms,
                data_change=True,
                stats=one.stats,
            )
            for one in files
            if one.table == name
        ]
        try:
            table.create_write_transaction(
                added,
                mode="append",
                schema=table.schema(),
                partition_by=days,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
            sync_log(self.location, name, table.version())
        except (DeltaError, OSError) as error:
            what, hint = f"{self.location} cannot be committed to: {_said(error)}", _NEXT
            if "table features" in what:  # that `deltalake` cannot write
                hint = "drop them (ALTER TABLE … DROP FEATURE), or archive to a new place"
            elif isinstance(error, CommitFailedError):
                what = f"{self.location}: broker {broker} was archived by another process at the "
                what += f"same time, so nothing of this run counts: {_said(error)}"
                hint = "let one process archive a broker; the next run has what this one would have"
            raise ArchiveError(what, hint=f"{hint}; {_LEFT}") from error


def _said(error: Exception) -> str:
    """Return what `deltalake` says, in one line and without what colours it on a terminal."""
    return " ".join(_FOR_TERMINALS.sub(" ", str(error)).split())


# --- Parquet files ------------------------------------------------------------------------------


def _arrow_place(location: str) -> tuple[Any, str]:
    files, path = files_at(location)
    return (files.system if isinstance(files, ArrowFiles) else fs.LocalFileSystem()), path


def read_rows(
    path: str, schema: Any, wanted: Sequence[Condition], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a Parquet file of an archive, in batches of a few megabytes."""
    from pyarrow import dataset  # noqa: PLC0415 - loads pandas, which those who write need not

    needed = [*dict.fromkeys((*columns, *(name for name, _, _ in wanted)))]
    condition = pq.filters_to_expression([*wanted])
    read_as = pa.schema([schema.field(name) for name in needed])
    try:
        system, place = _arrow_place(path)
        known: Any = dataset.ParquetFileFormat().make_fragment(place, system)
        if missing := {*needed} - {*known.physical_schema.names}:
            # A footer has no checksum: for a damaged name, Arrow would return nulls.
            raise ArchiveDamagedError(f"{path} has no column {min(missing)}", hint=FROM_BACKUP)
        groups = [one.row_groups[0].id for one in known.split_by_row_group(condition, schema)]
        # A scan of the groups takes several times as long where they are small.
        with pq.ParquetFile(place, metadata=known.metadata, filesystem=system, **_READING) as file:
            for group in groups:
                count = _EXTENTS_AT_ONCE if "content" in columns else _BATCH_ROWS
                if "body" in columns:
                    sizes = file.read_row_group(group, ["size"], use_threads=False)["size"]
                    count = _rows_at_once(sizes.to_numpy(), count)
                left = file.metadata.row_group(group).num_rows
                for batch in file.iter_batches(count, [group], needed, use_threads=False):
                    left -= batch.num_rows
                    rows = batch.select(needed).cast(read_as)
                    # A filter that is an expression starts a plan with threads for each batch.
                    held = (_COMPARED[how](rows[name], value) for name, how, value in wanted)
                    found = rows.filter(reduce(pc.and_, held)).select(columns)
                    if found.num_rows:
                        yield found
                if left:  # a column that says it has fewer values ends the others too
                    raise ArchiveDamagedError(f"{path} lacks {left} rows", hint=FROM_BACKUP)
    except FileNotFoundError:
        reason = "is missing: VACUUM, or another program, deleted a file of this version"
        raise ArchiveDamagedError(f"{path} {reason}", hint=FROM_BACKUP) from None
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        what = f"{path} cannot be read: {' '.join(str(error).split())}"
        if getattr(error, "errno", None):  # the system's word says nothing of the file's bytes
            raise ArchiveError(what, hint=_UNREADABLE) from error
        raise ArchiveDamagedError(what, hint=FROM_BACKUP) from error


def _rows_at_once(sizes: Any, most: int) -> int:
    while most > 1 and max(np.add.reduceat(sizes, range(0, len(sizes), most))) > BATCH_BYTES:
        most //= 2
    return most


class WrittenFile(NamedTuple):
    """A Parquet file: what its commit needs, and how much of the log it has."""

    table: str
    path: str
    day: str | None
    size: int
    stats: str
    rows: int
    log_bytes: int
    damaged_bytes: int


class TableFile:
    """A Parquet file of a table, being written under a name that no other attempt has."""

    def __init__(self, target: str, table: str, number: int, token: str, day: date | None) -> None:
        self.log_bytes = self.damaged_bytes = self._flushed = 0
        self._table, self._day = table, str(day) if day else None
        self._is_local = not is_remote(target)
        self._path = f"part-{number:05d}-{token}-{uuid.uuid4().hex}.parquet"
        if table == MESSAGES:
            self._path = f"{DAY}={day or '__HIVE_DEFAULT_PARTITION__'}/{self._path}"
        system, root = _arrow_place(target)
        self._place = Path(root, table, self._path)
        if self._is_local:
            # Only the day: where a worker does not see the table itself, it must not make one.
            self._place.parent.mkdir(exist_ok=True)
        self._sink = system.open_output_stream(str(self._place))
        columns, options = _FILES[table]
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._sink, columns, metadata_collector=self._footers, **options
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a row group."""
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        if self._sink.tell() - self._flushed >= _FLUSH_BYTES:
            self._sink.flush()
            self._flushed = self._sink.tell()

    def close(self) -> WrittenFile:
        """Bring the file to the disk."""
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        if self._is_local:
            sync_all((self._place, self._place.parent, self._place.parent.parent))
        (footer,) = self._footers
        stats = _statistics(footer, STATISTICS[self._table])
        counts = footer.num_rows, self.log_bytes, self.damaged_bytes
        return WrittenFile(self._table, self._path, self._day, size, stats, *counts)

    def remove(self) -> None:
        """Free space on a disk; a failed task's files on an object store wait for VACUUM."""
        self._writer.is_open = False  # otherwise it writes a footer when it is collected
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()
        if self._is_local:
            self._place.unlink(missing_ok=True)


def _statistics(footer: Any, names: Sequence[str]) -> str:
    """Return what Delta keeps of a Parquet file, from the file's own footer."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    found: dict[str, Any] = {"numRecords": footer.num_rows}
    found |= {kind: {} for kind in ("minValues", "maxValues", "nullCount")}
    for name in names:
        known = [group.column(places[name]).statistics for group in groups]
        found["nullCount"][name] = sum(one.null_count for one in known)
        for kind, pick in ("min", min), ("max", max):
            if values := [getattr(one, kind) for one in known if one.has_min_max]:
                found[f"{kind}Values"][name] = pick(values)
    return json.dumps(found, default=lambda at: f"{at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z")
