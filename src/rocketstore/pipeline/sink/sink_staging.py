"""Staging: the rows that tasks leave for the commit, in a directory that the driver makes.

A file belongs to one attempt of one task and has a name of its own, so attempts that run side by
side or one after the other never meet. Only files that committed attempts report are used; the
rest goes with the directory of its job.

A file is Arrow IPC streams back to back, one for each chunk of rows; its task reports the length
and the CRC-32 of each, so that no bit is believed unseen and each byte is read once.

Law: a staged file is on the disk before its task reports it. Runs on executors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.format.record import crc32
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.publishing import plain_write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

SINK_DIRECTORY: Final = "sink"
"""Below the root of a store; 4.9 knows no such directory and leaves it alone."""

ABANDONED_AFTER_S: Final = 24 * 3600
"""Age of the last change of a job's directory, after which it is swept. Nobody can tell from here
whether a driver on another machine lives; if it did, its write would fail and lose nothing."""


@dataclass(frozen=True)
class StagingJob:
    """One ``df.write``, or one micro-batch; `name` is its directory's, `host` its driver's."""

    name: str
    sink_id: str | None
    streaming: bool
    host: str

    @classmethod
    def new(cls, sink_id: str | None, *, streaming: bool) -> StagingJob:
        """Return a new job of this driver."""
        kind = "stream" if streaming else "write"
        name = f"{kind}.{sink_id or ''}.{uuid.uuid4().hex}"
        return cls(name, sink_id, streaming, socket.gethostname())

    def follows(self, name: str) -> bool:
        """Whether a directory is of an earlier batch of the same stream: a sinkId has one query."""
        return self.streaming and name.rpartition(".")[0] == self.name.rpartition(".")[0]


class StagedFile(NamedTuple):
    """A staged file as its task reports it, with bytes and CRC-32 of each of its chunks."""

    name: str
    chunks: tuple[tuple[int, int], ...]


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / "staging"


def make_job_directory(root: str | Path, job: StagingJob) -> None:
    """Make the directory that a job's tasks stage in; on the driver, before they start."""
    directory = staging_root(root) / job.name
    with plain_write_errors(directory, "nothing was appended"):
        try:
            directory.mkdir(parents=True)
        except FileNotFoundError:  # an abort has just taken the empty directory above
            directory.mkdir(parents=True)


def stage_chunks(
    root: str | Path, job: StagingJob, partition_id: int, chunks: Iterable[pa.RecordBatch]
) -> StagedFile | None:
    """Write the chunks of one attempt of a task and sync them; None when there is none.

    Raises
    ------
    StoreError
        The place cannot be written, or is not the one that the driver made.
    """
    directory = staging_root(root) / job.name
    path = directory / f"{partition_id:05}-{uuid.uuid4().hex}.arrows"
    written: list[tuple[int, int]] = []
    with contextlib.ExitStack() as stack:
        descriptor = -1
        for chunk in chunks:
            if descriptor < 0:
                descriptor = _create(path, job)
                stack.callback(os.close, descriptor)
                stack.push(lambda kind, *_: path.unlink(missing_ok=True) if kind else None)
            content = memoryview(_stream_of(chunk))
            written.append((len(content), crc32(content)))
            with plain_write_errors(directory, "nothing was appended"):
                while content:
                    content = content[os.write(descriptor, content) :]
        if written:
            with plain_write_errors(directory, "nothing was appended"):
                os.fsync(descriptor)
                sync_path(directory)  # its name; the driver syncs those of the directories above
    return StagedFile(path.name, tuple(written)) if written else None


def check_staged(directory: Path, files: Iterable[StagedFile], *, begun: bool) -> None:
    """Refuse files that are missing or not as long as reported, before anything is appended.

    Parameters
    ----------
    begun
        Whether an earlier commit may have appended a part of the batch.

    Raises
    ------
    StoreDamagedError
        There is one.
    """
    for file in files:
        expected = sum(size for size, _ in file.chunks)
        try:
            found = (directory / file.name).stat().st_size
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise _damaged(directory / file.name, what, begun=begun) from error
        if found != expected:
            what = f"has {found} bytes, its task wrote {expected}"
            raise _damaged(directory / file.name, what, begun=begun)


def read_chunks(directory: Path, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
    """Yield the chunks of staged files; one at a time is held.

    Raises
    ------
    StoreDamagedError
        A file is missing, shorter than reported, or was changed.
    """
    import pyarrow as pa  # noqa: PLC0415 - kept out of planning processes

    for file in files:
        path = directory / file.name
        at = 0
        try:
            with path.open("rb", buffering=0) as content:
                for size, expected in file.chunks:
                    chunk = bytearray(size)
                    found = content.readinto(chunk)
                    if found != size or crc32(chunk) != expected:
                        raise _damaged(path, f"checksum mismatch in the {size} bytes at {at}")
                    at += size
                    yield pa.ipc.open_stream(pa.py_buffer(chunk)).read_next_batch()
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error


def sweepable(root: str | Path, job: StagingJob, *, kept: str | None, now_s: float) -> list[Path]:
    """Return the directories of a job and of earlier batches of its stream, and old ones."""
    directory = staging_root(root)
    found = [one for one in directory.iterdir() if one.name != kept] if directory.is_dir() else []
    return [
        one
        for one in found
        if one.name == job.name
        or job.follows(one.name)
        or _last_change_s(one) < now_s - ABANDONED_AFTER_S
    ]


def _create(path: Path, job: StagingJob) -> int:
    with plain_write_errors(path.parent, "nothing was appended"):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError as error:
            # Made here, the directory would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it "
                f"on {job.host}: the directory is not shared, or somebody cleared it; "
                "nothing was appended",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error


def _stream_of(chunk: pa.RecordBatch) -> pa.Buffer:
    import pyarrow as pa  # noqa: PLC0415 - kept out of planning processes

    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, chunk.schema) as stream:
        stream.write_batch(chunk)
    return content.getvalue()


def _last_change_s(directory: Path) -> float:
    with contextlib.suppress(OSError):
        return max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
    return float("inf")


def _damaged(path: Path, what: str, *, begun: bool = True) -> StoreDamagedError:
    if not begun:
        hint = "nothing of it was appended; run the write again"
        return StoreDamagedError(f"staged file {path} {what}", hint=hint)
    return StoreDamagedError(
        f"staged file {path} {what}",
        hint="a part of the batch may be in the log: bring the file back and write again, or move "
        "sink/intent.json of the store away to leave it at that part",
    )
