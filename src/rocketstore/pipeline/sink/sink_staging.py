"""Staging: the rows that tasks leave for the commit, in a directory that the driver makes.

A file belongs to one attempt of one task and has a name of its own, so attempts that run side by
side or one after the other never meet. Only files that committed attempts report are used; the
rest goes with the directory of its job. A file is an Arrow IPC stream; its task reports how long it
is and its CRC-32, and no byte is believed before both were compared.

Law: a staged file is on the disk before its task reports it. Runs on executors.
"""

from __future__ import annotations

import os
import socket
import uuid
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.format.record import crc32
from rocketstore.pipeline.files import sync_path
from rocketstore.pipeline.jobs.publishing import plain_write_errors
from rocketstore.pipeline.sink.sink_rows import STAGED
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocketstore.pipeline.sink.sink_writer import SinkOptions

SINK_DIRECTORY: Final = "sink"
"""Below the root of a store; 4.9 knows no such directory and leaves it alone."""

_WRITE: Final = "write"
_NOTHING: Final = "nothing was appended"


class StagedFile(NamedTuple):
    """A staged file as its task reports it."""

    name: str
    size: int
    crc32: int


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / "staging"


def new_job(options: SinkOptions) -> str:
    """Make the directory that a job's tasks stage in, on the driver; return its name."""
    batch = () if options.batch_id is None else (str(options.batch_id),)
    named = () if options.sink_id is None else (options.sink_id, *batch)
    job = ".".join(("stream" if options.streaming else _WRITE, *named, uuid.uuid4().hex))
    directory = staging_root(options.root) / job
    with plain_write_errors(directory, _NOTHING):
        directory.mkdir(parents=True)
    return job


def jobs_of_sink(root: str | Path, job: str) -> list[str]:
    """Return the job and those of its stream, or of the batch that its write numbered."""
    named = job.rpartition(".")[0]
    if named == _WRITE:
        return [job]
    jobs = {path.name for path in staging_root(root).glob("*")}
    return sorted(one for one in jobs | {job} if one.rpartition(".")[0] == named)


def stage_chunks(
    root: str | Path, job: str, partition_id: int, chunks: Iterator[pa.RecordBatch]
) -> StagedFile | None:
    """Write the chunks of one attempt of a task and sync them; None when there is none."""
    first = next(chunks, None)
    if first is None:
        return None
    path = staging_root(root) / job / f"{partition_id:05}-{uuid.uuid4().hex}.arrows"
    size = checksum = 0
    with plain_write_errors(path.parent, _NOTHING):
        try:
            with path.open("xb") as file:
                for part in chain((STAGED, first), chunks):
                    content = part.serialize()
                    size += file.write(content)
                    checksum = crc32(content, checksum)
                file.flush()
                os.fsync(file.fileno())
            sync_path(path.parent)  # its name; the driver syncs those of the directories above
        except FileNotFoundError as error:
            # Made here, the directory would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it: "
                f"the directory is not shared, or somebody cleared it; {_NOTHING}",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return StagedFile(path.name, size, checksum)


def check_staged(directory: Path, files: Iterable[StagedFile]) -> None:
    """Refuse files that are missing or not what was reported, before anything is appended."""
    for file in files:
        path = directory / file.name
        size = checksum = 0
        try:
            with path.open("rb") as content:
                while block := content.read(8 * MiB):
                    size += len(block)
                    checksum = crc32(block, checksum)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        if size != file.size:
            raise _damaged(path, f"has {size} bytes, its task wrote {file.size}")
        if checksum != file.crc32:
            raise _damaged(path, f"was changed: checksum {checksum}, of its task {file.crc32}")


def read_chunks(directory: Path, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
    """Yield the chunks of staged files that were checked; one at a time is held."""
    for file in files:
        path = directory / file.name
        try:
            with pa.OSFile(str(path)) as content:
                yield from pa.ipc.open_stream(content)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"staged file {path} {what}",
        hint="run the write again; where the store has sink/intent.json, a part of the batch is in "
        "the log: bring the file back, or move the intent away to leave it at that part",
    )
