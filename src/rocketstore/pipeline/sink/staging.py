"""Staged files: what a task leaves for the commit, in chunks that are read one at a time.

A file belongs to one attempt of one task and is named after it, so attempts that run side by side
or one after the other never meet. Only files that the committed attempts report are used; the rest
is swept with the directory of its job.

::

    chunk := magic "RSC1", record count u32, record bytes u64, queue bytes u32, crc32 u32
             queues (JSON: [[topic, queueId], ...]), record sizes i32[], queue indexes i32[],
             records

Numbers are little-endian; the checksum covers everything behind it.

Law: a staged file is on the disk before its task reports it. Runs on executors.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from rocketstore.errors import StoreDamagedError, StoreError, StoreFullError
from rocketstore.format.record import crc32
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.process import process_stat, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from rocketstore.pipeline.sink.rows import EncodedRow, Queue

SINK_DIRECTORY: Final = "sink"
"""Below the root of a store; 4.9 knows no such directory and leaves it alone."""

STAGING_DIRECTORY: Final = "staging"
OWNER_FILE_NAME: Final = "owner.json"
STAGED_SUFFIX: Final = ".staged"

ABANDONED_AFTER_S: Final = 24 * 3600
"""Age of the last change of a job's directory, after which it is swept when nobody can tell
whether its driver lives: that ran on another machine."""

_CHUNK_HEAD: Final = struct.Struct("<4sIQII")
_CHUNK_MAGIC: Final = b"RSC1"


class Remover(Protocol):
    """The store's `Disk`, of which executors know nothing."""

    def unlink(self, path: Path) -> None:
        """Delete a file."""

    def remove_directory(self, directory: Path) -> None:
        """Delete an empty directory."""


@dataclass(frozen=True)
class JobOwner:
    """Who stages: tells dead jobs from running ones.

    Attributes
    ----------
    pid, started
        Process that lives as long as the driver, and when it started, in clock ticks since boot;
        0 where that cannot be told.
    """

    job: str
    sink_id: str | None
    streaming: bool
    host: str
    pid: int
    started: int

    @classmethod
    def new(cls, sink_id: str | None, *, streaming: bool) -> JobOwner:
        """Return the owner of a new job of this driver."""
        pid = _driver_pid()
        return cls(uuid.uuid4().hex, sink_id, streaming, socket.gethostname(), pid, started(pid))

    @property
    def is_gone(self) -> bool | None:
        """Whether the driver is dead; None where that cannot be told from here."""
        if not self.pid or not self.started or self.host != socket.gethostname():
            return None
        return started(self.pid) != self.started


class StagedFile(NamedTuple):
    """A staged file as its task reports it; `name` is relative to the job's directory."""

    partition_id: int
    name: str
    size: int
    messages: int


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / STAGING_DIRECTORY


@contextlib.contextmanager
def written_at(directory: Path) -> Iterator[None]:
    """Say in one sentence that a place cannot be written, whatever the system says of it.

    Raises
    ------
    StoreFullError
        Its disk is full.
    StoreError
        Anything else went wrong with it.
    """
    try:
        yield
    except OSError as error:
        what = f"{directory} cannot be written: {error.strerror}; nothing was appended"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(what, hint="make room and write again") from error
        hint = "let the users that run Spark's driver and workers write to the store's directory"
        raise StoreError(what, hint=hint) from error


class StagingWriter:
    """Writes the staged file of one attempt of one task.

    Parameters
    ----------
    root
        Root of the store.
    owner
        Its job.
    partition_id
        Of the task.
    chunk_bytes
        How much is held before it is written.
    """

    def __init__(
        self, root: str | Path, owner: JobOwner, *, partition_id: int, chunk_bytes: int
    ) -> None:
        self._directory = staging_root(root) / owner.job
        self._owner = owner
        self._partition_id = partition_id
        self._chunk_bytes = chunk_bytes
        self._descriptor: int | None = None
        self._path = self._directory / f"{partition_id:05}-{uuid.uuid4().hex}{STAGED_SUFFIX}"
        self._queues: dict[Queue, int] = {}
        self._sizes: list[int] = []
        self._indexes: list[int] = []
        self._records: list[bytes] = []
        self._held_bytes = 0
        self._messages = 0
        self._written_bytes = 0

    def add(self, row: EncodedRow) -> None:
        """Stage a record."""
        self._indexes.append(self._queues.setdefault(row.queue, len(self._queues)))
        self._records.append(row.record)
        self._sizes.append(len(row.record))
        self._held_bytes += len(row.record)
        if self._held_bytes >= self._chunk_bytes:
            self._write_chunk()

    def finish(self) -> StagedFile | None:
        """Write the rest and sync; None when there was no record."""
        if self._records:
            self._write_chunk()
        if self._descriptor is None:
            return None
        with written_at(self._directory):
            os.fsync(self._descriptor)
            self._close()
            # Its name; the driver syncs those of the directories above.
            sync_path(self._directory)
        return StagedFile(self._partition_id, self._path.name, self._written_bytes, self._messages)

    def discard(self) -> None:
        """Take away what was staged by an attempt that failed; a killed one is swept later."""
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_chunk(self) -> None:
        import numpy as np  # noqa: PLC0415 - kept out of planning processes

        if self._descriptor is None:
            with written_at(self._directory):
                self._descriptor = self._create()
        parts = (
            json.dumps(list(self._queues)).encode(),
            np.array(self._sizes, dtype="<i4").tobytes(),
            np.array(self._indexes, dtype="<i4").tobytes(),
            *self._records,
        )
        checksum = 0
        for part in parts:
            checksum = crc32(part, checksum)
        head = _CHUNK_HEAD.pack(
            _CHUNK_MAGIC, len(self._sizes), self._held_bytes, len(parts[0]), checksum
        )
        content = b"".join((head, *parts))
        with written_at(self._directory):
            _write_all(self._descriptor, content)
        self._messages += len(self._sizes)
        self._written_bytes += len(content)
        self._queues, self._sizes, self._indexes, self._records = {}, [], [], []
        self._held_bytes = 0

    def _create(self) -> int:
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError as error:
            # Made here, it would be on a disk that the commit does not see.
            raise StoreError(
                f"{self._directory} is not there on {socket.gethostname()}, and the driver made it "
                f"on {self._owner.host}: the directory is not shared, or somebody cleared it; "
                "nothing was appended",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error


def make_job_directory(root: str | Path, owner: JobOwner) -> None:
    """Make the directory that a job's tasks stage in; on the driver, before they start.

    Raises
    ------
    StoreError
        It cannot be made.
    """
    directory = staging_root(root) / owner.job
    note = json.dumps(vars(owner)).encode()
    with written_at(directory):
        while True:
            directory.mkdir(parents=True, exist_ok=True)
            # A sweep takes empty directories, so this one may be gone before it has a file.
            with contextlib.suppress(FileNotFoundError):
                (directory / OWNER_FILE_NAME).write_bytes(note)
                return


@dataclass(slots=True)
class Chunk:
    """Records of one chunk, in order.

    Attributes
    ----------
    records
        The bytes of all, writable.
    sizes, queue_indexes
        Of each record: its length, and its queue in `queues`.
    """

    queues: list[tuple[str, int]]
    sizes: npt.NDArray[np.int64]
    queue_indexes: npt.NDArray[np.int64]
    records: npt.NDArray[np.uint8]


def read_chunks(path: Path, expected_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of a staged file; one at a time is held.

    Raises
    ------
    StoreDamagedError
        The file is missing, shorter than reported, or was changed.
    """
    import numpy as np  # noqa: PLC0415 - kept out of planning processes

    at = 0
    try:
        file = path.open("rb")
    except OSError as error:
        raise _damaged(path, 0, f"cannot be read: {error.strerror}") from error
    with file:
        while at < expected_bytes:
            head = file.read(_CHUNK_HEAD.size)
            if len(head) < _CHUNK_HEAD.size or head[:4] != _CHUNK_MAGIC:
                raise _damaged(path, at, f"expected a chunk, found {head[:8].hex() or 'the end'}")
            _, count, record_bytes, queue_bytes, checksum = _CHUNK_HEAD.unpack(head)
            size = queue_bytes + 8 * count + record_bytes
            if size > expected_bytes - at - len(head):
                raise _damaged(path, at, f"a chunk of {size} bytes does not fit in the file")
            content = bytearray(size)
            found = file.readinto(content)
            if found != size or crc32(content) != checksum:
                raise _damaged(path, at, "checksum mismatch, or the file ends before the chunk")
            queues = [(topic, queue_id) for topic, queue_id in json.loads(content[:queue_bytes])]
            sizes = np.frombuffer(content, "<i4", count, queue_bytes).astype(np.int64)
            indexes = np.frombuffer(content, "<i4", count, queue_bytes + 4 * count).astype(np.int64)
            records = np.frombuffer(content, np.uint8, record_bytes, queue_bytes + 8 * count)
            yield Chunk(queues, sizes, indexes, records)
            at += len(head) + size


def read_owner(directory: Path) -> JobOwner | None:
    """Return whose directory this is; None where nobody said so, or the note is broken."""
    try:
        fields: dict[str, Any] = json.loads((directory / OWNER_FILE_NAME).read_bytes())
        return JobOwner(**fields)
    except (OSError, ValueError, TypeError):
        return None


def is_abandoned(directory: Path) -> bool:
    """Whether nobody will ever commit what is staged here."""
    owner = read_owner(directory)
    gone = None if owner is None else owner.is_gone
    if gone is not None:
        return gone
    try:
        files = list(directory.iterdir())
        changed = max(path.stat().st_mtime for path in (directory, *files))
    except OSError:
        return False
    if not files:
        return True
    return time.time() - changed > ABANDONED_AFTER_S


def sweep_staging(root: Path, disk: Remover, owner: JobOwner, *, kept: str | None) -> None:
    """Take away what a job staged, and what dead jobs left.

    Parameters
    ----------
    kept
        A job whose files are still needed.
    """
    try:
        directories = sorted(staging_root(root).iterdir())
    except FileNotFoundError:
        return
    for directory in directories:
        if directory.name == kept or not directory.is_dir():
            continue
        if directory.name == owner.job or _is_former(directory, owner) or is_abandoned(directory):
            for path in sorted(directory.iterdir()):
                disk.unlink(path)
            disk.remove_directory(directory)


def _is_former(directory: Path, owner: JobOwner) -> bool:
    """Whether an earlier batch of the same stream staged here: a sinkId has one query."""
    found = read_owner(directory) if owner.streaming else None
    return found is not None and found.streaming and found.sink_id == owner.sink_id


def _driver_pid() -> int:
    """Return the process above that lives as long as the driver: the JVM, else the parent."""
    pid = os.getppid()
    above = pid
    while above > 1:
        if process_stat(above)[:1] == ["java"]:
            return above
        parent = process_stat(above)[1:2]
        above = int(parent[0]) if parent else 0
    return pid


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _damaged(path: Path, at: int, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"staged file {path} at offset {at}: {what}",
        hint="nothing of it was appended; run the write again",
    )
