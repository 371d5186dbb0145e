"""Plan a restore: which CommitLog files there will be, and which rows of the archive are in each.

Each file is one task, which writes all of it. A whole restore has the files that were archived,
with every byte where it was. A selection is laid out in new files by the rule of a broker: a record
that would leave less than 8 bytes of a file begins the next one, and a BLANK fills the rest. They
are counted in steps of a 256th of a file, so a file may end that much before it is full.

Law: what the driver holds grows with the number of files, not with that of records.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rocketstore.errors import ArchiveDamagedError, ArchiveError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.archive.archive_table import Archive, Run

_DEFAULT_FILE_SIZE: Final = 1 << 30
"""Of a CommitLog file, for a selection from an archive that knows no file."""

_DAY_MS: Final = 86_400_000
_LOG_KINDS: Final = ("blank", "damage", "unwritten")
_FAR: Final = (1 << 63) - 1


class Selection(NamedTuple):
    """Which messages are restored.

    Attributes
    ----------
    topics
        Any when empty.
    begin_ms, end_ms
        Store time: from the first on and before the second; None for no bound.
    """

    topics: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.topics and self.begin_ms is None and self.end_ms is None

    def may_have(self, day: int | None) -> bool:
        """Whether a wanted message may be of a day since 1970, None for those of no calendar."""
        return day is None or (
            (self.begin_ms is None or (day + 1) * _DAY_MS > self.begin_ms)
            and (self.end_ms is None or day * _DAY_MS < self.end_ms)
        )

    def describe(self) -> str:
        """Return the selection as a phrase."""
        words = [f"of topic {', '.join(self.topics)}"] if self.topics else []
        words += [] if self.begin_ms is None else [f"stored at {self.begin_ms} ms or later"]
        words += [] if self.end_ms is None else [f"stored before {self.end_ms} ms"]
        return " and ".join(words)


class MessageFile(NamedTuple):
    """A Parquet file of `messages`, and the physical offsets of its first and last record.

    Attributes
    ----------
    is_mixed
        Whether other brokers' rows may be in it.
    """

    path: str
    first: int
    last: int
    is_mixed: bool


class ExtentFile(NamedTuple):
    """A Parquet file of `extents`, and which rows of it count: their runs and kinds."""

    path: str
    counting: tuple[tuple[int, str], ...]


class LogFileTask(NamedTuple):
    """A CommitLog file to be restored.

    Attributes
    ----------
    base, size
        Of the file.
    begin, end
        Physical offsets in the archived log: records between them are in this file.
    gaps
        Ranges between them that were deleted before they could be archived.
    blank
        Whether a BLANK follows the last record.
    records, record_bytes
        What a selection has in it.
    allows_gaps
        Whether bytes that the archive has lost become zeros.
    place
        Location of the store that is being made.
    """

    archive: str
    broker: str
    selection: Selection
    base: int
    size: int
    begin: int
    end: int
    messages: tuple[MessageFile, ...]
    extents: tuple[ExtentFile, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    blank: bool = False
    records: int = 0
    record_bytes: int = 0
    allows_gaps: bool = False
    place: str = ""


def chosen_broker(archive: Archive, broker: str | None) -> str:
    """Return the broker that is restored.

    Raises
    ------
    ArchiveError
        There are several and none is named, or there is no such.
    """
    names = archive.brokers()
    if broker in names or (broker is None and len(names) == 1):
        return broker or names[0]
    listed = ", ".join(names) or "none"
    if broker is not None or not names:
        raise ArchiveError(f"{archive.location} has no broker {broker or ''}".rstrip(),
                           hint=f"it has {listed}")  # fmt: skip
    raise ArchiveError(
        f"{archive.location} holds {len(names)} brokers: {listed}",
        hint="say which one to restore: broker=…, --broker …",
    )


def message_files(archive: Archive, broker: str, selection: Selection) -> list[MessageFile]:
    """Return the Parquet files that may have wanted records of a broker, in the log's order."""
    actions = pa.table(archive.messages.get_add_actions(flatten=True)).to_pylist()
    found = []
    for action in actions:
        day = action.get("partition.day")
        names = action.get("min.brokerName"), action.get("max.brokerName")
        is_known = None not in names
        if is_known and not names[0] <= broker <= names[1]:
            continue
        if not selection.may_have(None if day is None else day.toordinal() - 719_163):
            continue
        first, last = action.get("min.physicalOffset"), action.get("max.physicalOffset")
        found.append(
            MessageFile(
                action["path"],
                0 if first is None else first,
                _FAR if last is None else last,
                is_mixed=names != (broker, broker),
            )
        )
    return sorted(found, key=lambda file: (file.first, file.path))


class _LogFile(NamedTuple):
    """A CommitLog file as the newest run that saw it has it."""

    run: int
    base: int
    size: int
    file_size: int


def log_files(archive: Archive, broker: str, runs: Sequence[Run]) -> list[_LogFile]:
    """Return the CommitLog files that were archived, by their bases."""
    columns = ["run", "physicalOffset", "size", "fileSize"]
    rows = archive.read_extents(["file"], columns, broker).to_pylist()
    order = {run.number: place for place, run in enumerate(runs)}
    rows = [row for row in rows if row["run"] in order]
    newest = {row["physicalOffset"]: row for row in sorted(rows, key=lambda row: order[row["run"]])}
    return [_LogFile(*(newest[base][name] for name in columns)) for base in sorted(newest)]


def plan_whole(archive: Archive, broker: str) -> list[LogFileTask]:
    """Return a task for each CommitLog file that was archived, retention's victims included."""
    runs = archive.runs(broker)
    files = log_files(archive, broker, runs)
    gaps, extents = _counting_extents(archive, broker, runs, files)
    overlapping = _finder(message_files(archive, broker, Selection()))
    tasks = []
    for file in files:
        begin = max(file.base, runs[0].begin)
        end = max(begin, min(file.base + min(file.size, file.file_size), runs[-1].end))
        tasks.append(
            LogFileTask(
                archive=archive.location,
                broker=broker,
                selection=Selection(),
                base=file.base,
                size=file.size,
                begin=begin,
                end=end,
                messages=overlapping(begin, end),
                extents=tuple(
                    ExtentFile(path, tuple(sorted(counting)))
                    for path, counting in sorted(extents.get(file.base, {}).items())
                ),
                gaps=tuple(
                    (max(start, begin), min(stop, end))
                    for start, stop in gaps
                    if start < end and begin < stop
                ),
            )
        )
    return tasks


def _counting_extents(
    archive: Archive, broker: str, runs: Sequence[Run], files: Sequence[_LogFile]
) -> tuple[list[tuple[int, int]], dict[int, dict[str, set[tuple[int, str]]]]]:
    """Return the gaps; and for each CommitLog file which Parquet files have extents of it."""
    numbers = {run.number for run in runs}
    seen = {file.base: file.run for file in files}
    columns = ["__filename", "run", "kind", "file", "physicalOffset", "size"]
    kinds = [*_LOG_KINDS, "gap", "excess", "tail"]
    gaps = []
    found: dict[int, dict[str, set[tuple[int, str]]]] = {}
    for row in archive.read_extents(kinds, columns, broker).to_pylist():
        run, kind, base = row["run"], row["kind"], row["file"]
        if kind == "gap" and run in numbers:
            gaps.append((row["physicalOffset"], row["physicalOffset"] + row["size"]))
        elif (
            (kind in _LOG_KINDS and run in numbers)
            or (kind == "excess" and run == seen.get(base))
            or (kind == "tail" and run == runs[-1].number)
        ):
            found.setdefault(base, {}).setdefault(row["__filename"], set()).add((run, kind))
    return gaps, found


def _finder(files: Sequence[MessageFile]) -> Callable[[int, int], tuple[MessageFile, ...]]:
    """Return what finds the files that have records of a range of the log."""
    firsts = np.array([file.first for file in files], dtype=np.int64)
    lasts = np.array([file.last for file in files], dtype=np.int64)

    def overlapping(begin: int, end: int) -> tuple[MessageFile, ...]:
        return tuple(
            files[row] for row in np.flatnonzero((firsts < end) & (begin <= lasts)).tolist()
        )

    return overlapping


def config_tables(archive: Archive, broker: str) -> dict[str, bytes]:
    """Return the JSON tables of the newest run, by their names.

    Raises
    ------
    ArchiveDamagedError
        A part of one is missing.
    """
    run = archive.last_run(broker)
    columns = ["run", "name", "physicalOffset", "size", "content"]
    rows = archive.read_extents(["config"], columns, broker).to_pylist()
    tables: dict[str, bytes] = {}
    for row in sorted(rows, key=lambda row: (row["name"], row["physicalOffset"])):
        if row["run"] != run:
            continue
        before = tables.get(row["name"], b"")
        if len(before) != row["physicalOffset"]:
            raise ArchiveDamagedError(
                f"{archive.location}: run {run} has config/{row['name']} up to byte "
                f"{len(before)}, then from {row['physicalOffset']} on: a row is gone",
                hint="restore another version (as_of, --as-of)",
            )
        tables[row["name"]] = before + row["content"].ljust(row["size"], b"\0")
    return tables


# --- a new log ----------------------------------------------------------------------------------


def plan_selection(archive: Archive, broker: str, selection: Selection) -> list[LogFileTask]:
    """Return a task for each archived CommitLog file that may have wanted records.

    Such a task counts them; `lay_out` makes of what was counted the tasks that write.
    """
    overlapping = _finder(message_files(archive, broker, selection))
    tasks = []
    for file in log_files(archive, broker, archive.runs(broker)):
        end = file.base + file.file_size
        if messages := overlapping(file.base, end):
            task = LogFileTask(archive.location, broker, selection, file.base, file.file_size,
                               file.base, end, messages)  # fmt: skip
            tasks.append(task)
    return tasks


class Steps(NamedTuple):
    """Wanted records, counted in steps through the log: where each begins, and what it has."""

    place: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]


def lay_out(counting: Sequence[LogFileTask], steps: Steps) -> list[LogFileTask]:
    """Return the tasks that write the files of a new log.

    Raises
    ------
    ArchiveDamagedError
        A record does not fit into a file.
    """
    first = counting[0]
    file_size = counting[-1].size or _DEFAULT_FILE_SIZE
    overlapping = _finder(sorted({file for task in counting for file in task.messages}))
    ends = np.cumsum(steps.bytes)
    records = np.cumsum(steps.records)
    capacity = file_size - END_FILE_MIN_BLANK_SIZE
    edges = [0]
    while edges[-1] < len(ends):
        done = int(ends[edges[-1] - 1]) if edges[-1] else 0
        end = int(np.searchsorted(ends, done + capacity, side="right"))
        if end == edges[-1]:
            raise ArchiveDamagedError(
                f"the records from physical offset {steps.place[end]} on have "
                f"{int(ends[end]) - done} bytes: expected at most {capacity}, the room of a "
                "CommitLog file",
                hint="restore the archive from a backup",
            )
        edges.append(end)
    tasks = []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        is_last = end == len(ends)
        start = int(steps.place[begin])
        stop = counting[-1].end if is_last else int(steps.place[end])
        tasks.append(
            first._replace(
                base=number * file_size,
                size=file_size,
                begin=start,
                end=stop,
                messages=overlapping(start, stop),
                # The log ends in its last file, which is not closed.
                blank=not is_last,
                records=int(records[end - 1] - (records[begin - 1] if begin else 0)),
                record_bytes=int(ends[end - 1] - (ends[begin - 1] if begin else 0)),
            )
        )
    return tasks
