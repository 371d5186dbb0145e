"""Plan a restore: which files of the archive each task reads, and where its records go.

A task restores what a task of the archive archived: so it has about the size of a split, its
records lie in one stretch of the log, and their checksum is known.

A whole restore puts every byte where it was. A selection is laid out anew, by the rule of a broker:
a record that would leave less than 8 bytes of a file begins the next one, a BLANK fills the rest.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstore.errors import ArchiveDamagedError, ConfigError
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.pipeline.jobs.archive.layout import EXTENTS, MESSAGES, run_name
from rocketstore.pipeline.jobs.archive.manifest import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from rocketstore.pipeline.jobs.archive.manifest import DataFile, ExtentFile, Manifest, Part
    from rocketstore.pipeline.jobs.archive.place import ArchivePlace

_DEFAULT_FILE_SIZE: Final = 1 << 30
"""Of a CommitLog file, for a selection from an archive that knows no file."""


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

    def may_have(self, file: DataFile) -> bool:
        """Whether a file may hold a wanted message."""
        return (
            (not self.topics or file.topic in self.topics)
            and (self.begin_ms is None or file.max_store_timestamp >= self.begin_ms)
            and (self.end_ms is None or file.min_store_timestamp < self.end_ms)
        )

    def describe(self) -> str:
        """Return the selection as a phrase."""
        words = [f"of topic {', '.join(self.topics)}"] if self.topics else []
        words += [] if self.begin_ms is None else [f"stored at {self.begin_ms} ms or later"]
        words += [] if self.end_ms is None else [f"stored before {self.end_ms} ms"]
        return " and ".join(words)


class SourceFile(NamedTuple):
    """A Parquet file of the archive, and what its manifest says of it.

    Attributes
    ----------
    archive
        Location of the archive on an object store, else empty.
    """

    path: str
    size: int
    footer_crc32: int
    topic: bytes
    archive: str = ""


class Stretch(NamedTuple):
    """Records from row `row` of a task on stand at `physical_offset` and behind, gaplessly."""

    row: int
    physical_offset: int


class RestoreTask(NamedTuple):
    """What one task restores.

    Attributes
    ----------
    part
        What the records are together; None for a selection of them.
    stretches
        Where the records go; empty when they go where they were.
    extents
        File of extents instead of records.
    """

    number: int
    files: tuple[SourceFile, ...]
    part: Part | None
    selection: Selection
    stretches: tuple[Stretch, ...]
    extents: ExtentTask | None
    log_files: tuple[LogFile, ...]
    commit_log: str


class ExtentTask(NamedTuple):
    """A file of extents; `has_tail` says whether what stood behind the log's end still counts."""

    file: SourceFile
    crc32: int
    has_tail: bool


def final_log_files(manifests: Iterable[Manifest]) -> tuple[LogFile, ...]:
    """Return the CommitLog files as the last run found them, with those deleted since."""
    files: dict[int, LogFile] = {}
    for manifest in manifests:
        # A run knows all files that reach behind its begin; an earlier run's word on them is old.
        files = {base: one for base, one in files.items() if base + one.file_size <= manifest.begin}
        files |= {one.base: one for one in manifest.log_files}
    return tuple(files[base] for base in sorted(files))


def plan_whole(
    archive: ArchivePlace, manifests: Sequence[Manifest], commit_log: str
) -> list[RestoreTask]:
    """Return the tasks that put every archived byte where it was."""
    log_files = final_log_files(manifests)
    tasks = [
        RestoreTask(0, files, part, Selection(), (), None, log_files, commit_log)
        for files, part in _units(archive, manifests, Selection())
    ]
    for manifest in manifests:
        for extents in manifest.extents:
            task = _extent_task(archive, manifest, extents, is_last=manifest is manifests[-1])
            tasks.append(RestoreTask(0, (), None, Selection(), (), task, log_files, commit_log))
    return [task._replace(number=number) for number, task in enumerate(tasks)]


def _extent_task(
    archive: ArchivePlace, manifest: Manifest, extents: ExtentFile, *, is_last: bool
) -> ExtentTask:
    path = archive.path(EXTENTS, run_name(manifest.run), extents.path)
    file = SourceFile(path, extents.size, extents.footer_crc32, b"", archive.location)
    return ExtentTask(file, extents.crc32, is_last)


def plan_selection(
    archive: ArchivePlace, manifests: Sequence[Manifest], selection: Selection, commit_log: str
) -> list[RestoreTask]:
    """Return the tasks of a selection, which do not know yet where their records go.

    Raises
    ------
    ConfigError
        No file of the archive can hold such a message, or it has nothing of a named topic.
    """
    known = {file.topic for manifest in manifests for file in manifest.files}
    unknown = tuple(topic for topic in selection.topics if topic not in known)
    if unknown:
        # Beside others that are there it would be left out without a word.
        raise nothing_selected(manifests, Selection(unknown))
    units = _units(archive, manifests, selection)
    if not units:
        raise nothing_selected(manifests, selection)
    return [
        RestoreTask(number, files, None, selection, (), None, (), commit_log)
        for number, (files, _) in enumerate(units)
    ]


def nothing_selected(manifests: Sequence[Manifest], selection: Selection) -> ConfigError:
    """Return the error that says what there is instead."""
    files = [file for manifest in manifests for file in manifest.files]
    topics = sorted({file.topic for file in files})
    times = "no time"
    if files:
        first = min(file.min_store_timestamp for file in files)
        last = max(file.max_store_timestamp for file in files)
        times = f"{first} to {last} ms"
    shown = ", ".join(topics[:10]) + (", …" if len(topics) > 10 else "")
    return ConfigError(
        f"the archive has no message {selection.describe()}",
        hint=f"it has topics {shown or 'none'}, stored {times}",
    )


def _units(
    archive: ArchivePlace, manifests: Sequence[Manifest], selection: Selection
) -> list[tuple[tuple[SourceFile, ...], Part]]:
    """Return what each task of the archive wrote, in the order of the log."""
    units = []
    for manifest in manifests:
        by_task: dict[int, list[SourceFile]] = {}
        for file in manifest.files:
            if selection.may_have(file):
                source = SourceFile(
                    archive.path(MESSAGES, run_name(manifest.run), file.path),
                    file.size,
                    file.footer_crc32,
                    file.topic_bytes,
                    archive.location,
                )
                by_task.setdefault(file.task, []).append(source)
        units += [
            (tuple(by_task[part.task]), part) for part in manifest.parts if part.task in by_task
        ]
    return units


# --- a new log ----------------------------------------------------------------------------------


class NewLog(NamedTuple):
    """A log that selected records are laid out in.

    Attributes
    ----------
    stretches
        Of each task.
    blanks
        Where each BLANK begins, and its size.
    """

    log_files: tuple[LogFile, ...]
    stretches: tuple[tuple[Stretch, ...], ...]
    blanks: tuple[tuple[int, int], ...]


def file_size_of(manifests: Iterable[Manifest]) -> int:
    """Return how long a CommitLog file of the archived store was last."""
    sizes = [one.file_size for manifest in manifests for one in manifest.log_files]
    return sizes[-1] if sizes else _DEFAULT_FILE_SIZE


def lay_out(sizes: Sequence[npt.NDArray[np.int32]], file_size: int) -> NewLog:
    """Place records of these sizes, those of each task in turn, in files of one size.

    Raises
    ------
    ArchiveDamagedError
        A record does not fit into a file.
    """
    ends = np.cumsum(np.concatenate([np.empty(0, np.int32), *sizes]), dtype=np.int64)
    firsts = [0]
    capacity = file_size - END_FILE_MIN_BLANK_SIZE
    while firsts[-1] < len(ends):
        begin = firsts[-1]
        done = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, done + capacity, side="right"))
        if end == begin:
            raise ArchiveDamagedError(
                f"record number {begin} of the selection has {int(ends[begin]) - done} bytes: "
                f"expected at most {capacity}, the room of a CommitLog file",
                hint="restore the archive from a backup",
            )
        firsts.append(end)
    edges = [0, *np.cumsum([len(one) for one in sizes]).tolist()]
    spans = list(itertools.pairwise(firsts))
    before = [int(ends[row - 1]) if row else 0 for row in firsts]
    log_files = tuple(LogFile(n * file_size, file_size, file_size) for n in range(len(spans)))
    blanks = tuple(
        (n * file_size + used, file_size - used)
        for n, used in enumerate(after - begun for begun, after in itertools.pairwise(before))
    )
    stretches = [
        tuple(
            Stretch(
                max(first, begin) - begin,
                n * file_size
                + (int(ends[max(first, begin) - 1]) if max(first, begin) else 0)
                - before[n],
            )
            for n, (first, last) in enumerate(spans)
            if first < end and begin < last
        )
        for begin, end in itertools.pairwise(edges)
    ]
    # The log ends in its last file, which is not closed.
    return NewLog(log_files, tuple(stretches), blanks[:-1])
