"""What a run of an archive consists of, and how an archive's runs are found and read.

Law: only files that a manifest names count, and only runs that are numbered without a gap from 1 on
are read. A manifest has no clock in it: the same store, cut into the same tasks, gives the same.
"""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Final

import msgspec

from rocketstore.errors import ArchiveDamagedError, ArchiveError
from rocketstore.pipeline.jobs.archive.layout import MANIFEST, MESSAGES, run_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.jobs.archive.place import ArchivePlace

FORMAT: Final = 1
"""Version of the layout; a reader refuses any other."""


class LastRecord(msgspec.Struct, rename="camel", frozen=True):
    """The last record of the log that is archived: what the next run compares with the log."""

    physical_offset: int
    size: int
    sha256: str


class LogFile(msgspec.Struct, rename="camel", frozen=True):
    """A CommitLog file as it was: `size` bytes, of `file_size` that it should have."""

    base: int
    size: int
    file_size: int


class DataFile(msgspec.Struct, rename="camel", frozen=True):
    """A Parquet file of messages: one topic, one day, one task.

    Attributes
    ----------
    path
        Below the run's directory.
    topic, raw_topic
        As text; the stored bytes in base64 where they are no UTF-8.
    day
        Days since 1970-01-01, None when no calendar has the time.
    footer_crc32
        Of the file's footer, for which Parquet has no checksum of its own, as it has for pages.
    """

    path: str
    task: int
    topic: str
    raw_topic: str | None
    day: int | None
    rows: int
    size: int
    footer_crc32: int
    record_bytes: int
    min_store_timestamp: int
    max_store_timestamp: int
    min_physical_offset: int
    max_physical_offset: int

    @property
    def topic_bytes(self) -> bytes:
        """The topic as stored."""
        if self.raw_topic is None:
            return self.topic.encode()
        return base64.b64decode(self.raw_topic)


class Part(msgspec.Struct, rename="camel", frozen=True):
    """What one task archived: its records in the order of the log have this CRC-32 together."""

    task: int
    records: int
    record_bytes: int
    crc32: int


class ExtentFile(msgspec.Struct, rename="camel", frozen=True):
    """A Parquet file of extents, below ``extents/run=…``."""

    path: str
    rows: int
    size: int
    footer_crc32: int
    is_tail: bool
    """Holds what stood behind the log's end, which only counts as long as no run follows."""
    crc32: int
    """Of all contents, one after the other."""


class ConfigFile(msgspec.Struct, rename="camel", frozen=True):
    """A file of the store's directory ``config``."""

    name: str
    size: int
    crc32: int


class Manifest(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A run.

    Attributes
    ----------
    begin, end
        Physical offsets: everything of the log in this range is in this run.
    gap
        Range of the log in front of `begin` that was deleted before it was archived.
    last_record
        Of the log up to `end`; from an earlier run when this one has no record.
    log_files
        The store's CommitLog files that reach behind `begin`.
    """

    format: int
    run: int
    broker_name: str
    begin: int
    end: int
    gap: tuple[int, int] | None
    records: int
    record_bytes: int
    last_record: LastRecord | None
    log_files: tuple[LogFile, ...]
    parts: tuple[Part, ...]
    files: tuple[DataFile, ...]
    extents: tuple[ExtentFile, ...]
    config: tuple[ConfigFile, ...]

    def has_news(self, last: Manifest | None) -> bool:
        """Whether this run says anything that `last`, the run before it, does not say already."""
        if last is None or self.begin != self.end or self.gap is not None:
            return True
        tails = [(one.rows, one.crc32) for one in self.extents if one.is_tail]
        last_tails = [(one.rows, one.crc32) for one in last.extents if one.is_tail]
        last_files = tuple(one for one in last.log_files if one.base + one.file_size > self.begin)
        return (tails, self.log_files, self.config) != (last_tails, last_files, last.config)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(archive: ArchivePlace, run: int) -> Manifest:
    """Return the manifest of a run.

    Raises
    ------
    ArchiveDamagedError
        It is missing or is none.
    ArchiveError
        It is of another version, or cannot be read.
    """
    path = archive.path(MESSAGES, run_name(run), MANIFEST)
    content = archive.content(path)
    if content is None:
        raise ArchiveDamagedError(
            f"{path} is missing, so run {run} of the archive cannot be trusted",
            hint="restore the directory from a backup, or archive the store anew",
        )
    try:
        version = msgspec.json.decode(content, type=_Version).format
        if version != FORMAT:
            raise ArchiveError(
                f"{path}: expected format {FORMAT}, found {version}",
                hint="use the version of rocketstore that wrote the archive",
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise ArchiveDamagedError(
            f"{path} is no manifest: {error}",
            hint="restore the file from a backup, or archive the store anew",
        ) from error


class _Version(msgspec.Struct):
    format: int


def list_runs(archive: ArchivePlace) -> list[int]:
    """Return the numbers of an archive's runs, 1 and on; none when there is no archive.

    Raises
    ------
    ArchiveDamagedError
        A run between others is gone.
    ArchiveError
        The directory cannot be read.
    """
    runs = archive.run_numbers()
    for expected, run in enumerate(runs, start=1):
        if run != expected:
            raise ArchiveDamagedError(
                f"{archive.path(MESSAGES, run_name(expected))} is missing, "
                f"but {run_name(run)} is there",
                hint="restore the directory from a backup, or archive the store anew",
            )
    return runs


def read_manifests(archive: ArchivePlace) -> Sequence[Manifest]:
    """Return the manifests of all runs in order.

    Raises
    ------
    ArchiveError
        There is no archive, or a manifest cannot be read.
    ArchiveDamagedError
        A run is missing or broken, or does not begin where the one before it ends.
    """
    runs = list_runs(archive)
    if not runs:
        raise ArchiveError(
            f"{archive.name} is no archive: it has no run below {MESSAGES}/",
            hint="name the directory that `rocketstore pipeline archive` wrote to",
        )
    found = [read_manifest(archive, run) for run in runs]
    for earlier, later in itertools.pairwise(found):
        begins = later.begin if later.gap is None else later.gap[0]
        if begins != earlier.end:
            raise ArchiveDamagedError(
                f"{archive.name}: run {later.run} begins at physical offset {begins}, "
                f"but run {earlier.run} ends at {earlier.end}",
                hint="restore the archive from a backup, or archive the store anew",
            )
    return found
