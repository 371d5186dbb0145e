"""The archive: two Delta tables, what their rows mean, and how they are opened and committed.

    <archive>/messages   partitioned by `day`: one row per intact record of the log
    <archive>/extents    one row per stretch that is no record, and what lies beside the log

**Identity.** For each broker, the records of `messages` and the extents of kind ``blank``,
``damage``, ``unwritten`` and ``gap`` cover the log from the first run's `begin` to the last one's
`end`, each byte once. What no row covers was deleted from the archive since. A record is: `size`,
`magic`, the numbers, `rawBornHost`, `rawStoreHost`, `body` as stored (compressed where `sysFlag`
says so), `rawTopic` or else `topic`, `rawProperties`. `rawBornTimestamp` and `rawStoreTimestamp`
are null where the timestamps, which have milliseconds, say the same. Rows come in any order: files
are rewritten by OPTIMIZE and by other tools.

**Checksums.** `recordCRC` is the CRC-32 of the record's bytes as they stand in the log,
`contentCRC` that of an extent's `content`, both cut to 31 bits as `bodyCRC` is
(``kernels.slice_crcs``, ``body_crc``). A restore compares it: page
checksums of Parquet are lost when another tool rewrites a file, and cover no footer.

**Runs.** A run is two commits: its extents, then its messages, and only the second one makes it
count. Each has application transactions of the broker: in `messages` the end of the log
(the broker's name) and the run's number (`run_id(broker)`), in `extents` the run's number. A run
whose second commit never came stays without effect: the run that replaces it names, as `previous`,
the last one that counts. So the runs that count in a version of `messages` are found by following
`previous` from the run that this version names (`Archive.runs`); extents are always read in their
latest version, and only rows of such runs. Delta refuses a commit over a transaction of the same
broker that it has not seen, so of two archivers of one broker one fails; other brokers' commits
are no conflict.

**Extents.** `file` is the physical offset at which the CommitLog file begins. `content` may be
shorter than `size`: zeros follow, up to the rest of a file. A stretch with more content than
``EXTENT_BYTES`` is several rows.

=========== ==========================================================================
kind        row
=========== ==========================================================================
run         `physicalOffset` and `size`: the range that the run archived; `content`: `RunFacts` as
            JSON
blank       a BLANK up to the end of a file, with its 8 bytes
damage      bytes that are no record, with `reason` and `evidence`
unwritten   zeros up to the end of a file that another one follows
gap         deleted before it was archived; no content
file        a CommitLog file at `physicalOffset`: it has `size` bytes and should have `fileSize`
excess      bytes of a file after the size that it should have
tail        bytes after the log's end that are not zeros; not rows of zeros only
config      a file ``config/<name>``; `physicalOffset` is the position in it, `size` the content's
=========== ==========================================================================

Of ``file`` and ``excess`` those count that stand in the newest run which has a ``file`` row for
that file; of ``tail`` and ``config`` those of the newest run.

Page: docs/reference/archive.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations

from rocketstore.errors import ArchiveDamagedError, ArchiveError
from rocketstore.pipeline.files import is_remote, joined, local_path, refuse_secrets, sync_path
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

pa: Any = pyarrow
"""Its annotations know too little of what it takes."""

MESSAGES: Final = "messages"
EXTENTS: Final = "extents"

EXTENT_BYTES: Final = 4 * MiB
"""Content of one row of extents."""

DAY: Final = "day"
"""Store time in UTC; null where no calendar has it. In the names of directories, not in files."""

_TIMESTAMP: Final = pa.timestamp("us", "UTC")

MESSAGE_FIELDS: Final = pa.schema(
    [
        ("brokerName", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("physicalOffset", pa.int64()),
        ("size", pa.int64()),
        ("storeTimestamp", _TIMESTAMP),
        ("bornTimestamp", _TIMESTAMP),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("uniqKey", pa.string()),
        ("msgId", pa.string()),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("bodyCRC", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
    ]
)
"""The columns of table ``messages`` of the data source, in its types."""

RAW_FIELDS: Final = pa.schema(
    [
        ("magic", pa.int32()),
        ("rawTopic", pa.binary()),
        ("rawProperties", pa.binary()),
        ("rawBornHost", pa.binary()),
        ("rawStoreHost", pa.binary()),
        ("rawBornTimestamp", pa.int64()),
        ("rawStoreTimestamp", pa.int64()),
        ("recordCRC", pa.int32()),
    ]
)
"""What identity needs besides; `rawTopic` is null where `topic` is the stored bytes in UTF-8."""

FILE_SCHEMA: Final = pa.schema([*MESSAGE_FIELDS, *RAW_FIELDS])
"""Of a Parquet file of messages."""

MESSAGE_SCHEMA: Final = pa.schema([(DAY, pa.date32()), *FILE_SCHEMA])

EXTENT_SCHEMA: Final = pa.schema(
    [
        ("brokerName", pa.string()),
        ("run", pa.int64()),
        ("kind", pa.string()),
        ("physicalOffset", pa.int64()),
        ("size", pa.int64()),
        ("file", pa.int64()),
        ("fileSize", pa.int64()),
        ("name", pa.string()),
        ("reason", pa.string()),
        ("evidence", pa.string()),
        ("content", pa.binary()),
        ("contentCRC", pa.int32()),
    ]
)

MESSAGE_STATISTICS: Final = (
    "brokerName",
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "storeTimestamp",
    "bornTimestamp",
)
EXTENT_STATISTICS: Final = ("brokerName", "run", "kind", "physicalOffset")
"""Columns of which the tables keep least and greatest values per file."""


class RunFacts(msgspec.Struct, rename="camel", frozen=True):
    """What a run says of itself.

    Attributes
    ----------
    previous
        The run before it that counts; 0 for none.
    last_offset, last_size, last_sha256
        The last record of the log up to the run's end, which the next run compares with the log; 0
        bytes when there is none.
    beside
        SHA-256 of what else is archived: the files' sizes, where the tail ends, the tables.
    """

    previous: int
    records: int
    record_bytes: int
    last_offset: int
    last_size: int
    last_sha256: str
    beside: str


class Run(NamedTuple):
    """A run that counts: it archived the log from `begin` to `end`."""

    number: int
    begin: int
    end: int
    facts: RunFacts


def run_id(broker: str) -> str:
    """Return the application transaction whose version is the number of a broker's last run."""
    return f"{broker}#run"


class Archive(NamedTuple):
    """The two tables, as they were when they were opened."""

    location: str
    messages: DeltaTable
    extents: DeltaTable

    @classmethod
    def open(cls, location: str | Path, as_of: int | str | None = None) -> Self:
        """Open an archive.

        Parameters
        ----------
        location
            Path or URI.
        as_of
            Version of the table `messages`, or an ISO 8601 time; the latest by default.

        Raises
        ------
        ArchiveError
            There is no archive, no such version, or it cannot be read.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415 - driver

        location = str(location)
        try:
            messages = _table(location, MESSAGES)
            if as_of is not None:
                messages.load_as_version(as_of)
            return cls(location, messages, _table(location, EXTENTS))
        except TableNotFoundError as error:
            raise ArchiveError(
                f"{location} is no archive: it has no Delta tables {MESSAGES} and {EXTENTS}",
                hint="name the directory that rocketstore pipeline archive wrote to",
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            version = "" if as_of is None else f" as of {as_of}"
            raise ArchiveError(f"{location}{version} cannot be opened: {error}") from error

    @classmethod
    def open_or_create(cls, location: str | Path) -> Self:
        """Open an archive for writing; make its tables where there are none.

        Raises
        ------
        ArchiveError
            It can be neither opened nor made.
        """
        from deltalake import DeltaTable  # noqa: PLC0415 - as above
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

        location = str(location)
        try:
            for name, schema, days, columns in (
                (EXTENTS, EXTENT_SCHEMA, [], EXTENT_STATISTICS),
                (MESSAGES, MESSAGE_SCHEMA, [DAY], MESSAGE_STATISTICS),
            ):
                uri, options = table_uri(location, name)
                DeltaTable.create(
                    uri,
                    schema,
                    mode="ignore",
                    partition_by=days,
                    storage_options=options,
                    configuration={"delta.dataSkippingStatsColumns": ",".join(columns)},
                )
        except (DeltaError, OSError) as error:
            raise ArchiveError(
                f"the archive {location} cannot be made: {error}",
                hint="name a directory, or an object store, that can be written to",
            ) from error
        return cls.open(location)

    def brokers(self) -> list[str]:
        """Return the brokers that have a run which counts."""
        names = self.read_extents(["run"], ["brokerName"]).column("brokerName").unique()
        found = (str(name) for name in names.to_pylist())
        return sorted(name for name in found if self.last_run(name))

    def last_run(self, broker: str) -> int:
        """Return the number of a broker's last run that counts; 0 for none."""
        return self.messages.transaction_version(run_id(broker)) or 0

    def runs(self, broker: str) -> tuple[Run, ...]:
        """Return the runs of a broker that count, oldest first.

        Raises
        ------
        ArchiveDamagedError
            The row of a run is gone.
        """
        columns = ["run", "physicalOffset", "size", "content"]
        table = self.read_extents(["run"], columns, broker)
        rows = {int(row["run"]): row for row in table.to_pylist()}
        found: list[Run] = []
        number = self.last_run(broker)
        while number:
            row = rows.get(number)
            if row is None:
                raise ArchiveDamagedError(
                    f"run {number} of broker {broker} has no row of kind run in "
                    f"{joined(self.location, EXTENTS)}",
                    hint="bring the table back to a version that has it (DeltaTable.restore)",
                )
            begin = int(row["physicalOffset"])
            facts = msgspec.json.decode(row["content"], type=RunFacts)
            found.append(Run(number, begin, begin + int(row["size"]), facts))
            number = facts.previous
        return tuple(reversed(found))

    def read_extents(
        self, kinds: Sequence[str], columns: Sequence[str], broker: str | None = None
    ) -> Any:
        """Return columns of the extents of some kinds, of runs that count and that do not.

        With `content` of kind ``damage``, ``tail`` or ``excess`` this may be large: such rows are
        for workers to read. Column ``__filename`` is the path of a row's file in the table.

        Raises
        ------
        ArchiveDamagedError
            A file of the table is missing or cannot be read.
        """
        import pyarrow.compute as pc  # noqa: PLC0415 - of this function only
        from pyarrow import dataset  # noqa: PLC0415 - as above

        wanted = pc.field("kind").isin(list(kinds))
        if broker is not None:
            wanted &= pc.field("brokerName") == broker
        settings: dict[str, Any] = {
            "columns": list(columns),
            "filter": wanted,
            "fragment_scan_options": dataset.ParquetFragmentScanOptions(
                page_checksum_verification=True
            ),
        }
        source = self.extents.to_pyarrow_dataset()
        try:
            table = source.to_table(**settings)
            nulls = sum(table.column(name).null_count for name in {"run", "kind"} & {*columns})
            problem: Exception | None = ValueError("rows without run or kind") if nulls else None
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = error
        if problem is None:
            return table
        # It does not say in which file.
        found = EXTENTS
        for fragment in source.get_fragments():
            try:
                fragment.to_table(**settings)
            except (OSError, ValueError, pa.ArrowException):
                found = f"{EXTENTS}/{fragment.path}"
                break
        raise ArchiveDamagedError(
            f"{joined(self.location, *found.split('/'))} cannot be read: "
            f"{' '.join(str(problem).split())}",
            hint="restore the archive from a backup",
        ) from problem

    def commit_extents(self, broker: str, run: int, files: Sequence[AddAction]) -> None:
        """Commit the extents of a run, which do not count yet.

        Raises
        ------
        ArchiveError
            Another archiver of this broker has committed since the archive was opened.
        """
        self._commit(self.extents, broker, {run_id(broker): run}, files)

    def commit_messages(self, broker: str, run: int, end: int, files: Sequence[AddAction]) -> None:
        """Commit the messages of a run, and with them the run.

        Raises
        ------
        ArchiveError
            Another archiver of this broker has committed since the archive was opened.
        """
        self._commit(self.messages, broker, {broker: end, run_id(broker): run}, files)

    def _commit(
        self, table: DeltaTable, broker: str, marks: dict[str, int], files: Sequence[AddAction]
    ) -> None:
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415 - as above
        from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415 - as above

        transactions = [Transaction(name, version) for name, version in marks.items()]
        try:
            table.create_write_transaction(
                list(files),
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
            self._sync(table)
        except CommitFailedError as error:
            raise ArchiveError(
                f"{self.location}: broker {broker} was archived by another process at the same "
                f"time, so nothing of this run counts: {error}",
                hint="let one process archive a broker; what this run would have archived comes "
                "with the next one",
            ) from error
        except (DeltaError, OSError) as error:
            raise ArchiveError(f"{self.location} cannot be committed to: {error}") from error

    def _sync(self, table: DeltaTable) -> None:
        """Bring what was committed since a table was opened to the disk: `deltalake` does not."""
        if is_remote(self.location):
            return
        name = EXTENTS if table is self.extents else MESSAGES
        log = Path(local_path(self.location), name, "_delta_log")
        oldest = f"{table.version():020}.json"
        for path in (*(one for one in log.glob("*.json") if one.name >= oldest), log, log.parent):
            sync_path(path)


def table_uri(location: str, name: str) -> tuple[str, dict[str, str] | None]:
    """Return what ``deltalake`` opens one of an archive's tables by: a URI, and storage options.

    Parameters
    ----------
    location
        Path or URI of the archive; a URI with the query that ``pyarrow.fs`` knows.
    name
        ``messages`` or ``extents``.

    Examples
    --------
    >>> table_uri("s3://bucket/archive?region=eu-west-1", "messages")
    ('s3://bucket/archive/messages', {'AWS_REGION': 'eu-west-1'})
    """
    if not is_remote(location):
        return f"{local_path(location)}/{name}", None
    refuse_secrets(location)
    place = urlsplit(joined(location, name))
    return f"{place.scheme}://{place.netloc}{place.path}", dict(_storage_options(place.query))


def _storage_options(query: str) -> Iterator[tuple[str, str]]:
    options = dict(parse_qsl(query))
    if region := options.get("region"):
        yield "AWS_REGION", region
    if server := options.get("endpoint_override"):
        scheme = options.get("scheme", "https")
        yield "AWS_ENDPOINT_URL", server if "://" in server else f"{scheme}://{server}"
        yield "AWS_ALLOW_HTTP", str(scheme == "http").lower()


def _table(location: str, name: str) -> DeltaTable:
    from deltalake import DeltaTable  # noqa: PLC0415 - as above

    uri, options = table_uri(location, name)
    return DeltaTable(uri, storage_options=options)
