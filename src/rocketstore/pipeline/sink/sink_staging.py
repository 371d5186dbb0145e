"""Staging: the rows that tasks leave for the commit, in a directory that the driver makes.

A file belongs to one attempt of one task and has a name of its own, so attempts that run side by
side or one after the other never meet. Only files that committed attempts report are used; the
rest goes with the directory of its job. A file is record batches of Arrow IPC back to back, and its
task reports the length and the CRC-32 of each: no bit is believed unseen, each byte is read once.

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocketstore.pipeline.sink.sink_writer import SinkOptions

SINK_DIRECTORY: Final = "sink"
"""Below the root of a store; 4.9 knows no such directory and leaves it alone."""

_NOTHING: Final = "nothing was appended"


class StagedFile(NamedTuple):
    """A staged file as its task reports it, with bytes and CRC-32 of each of its chunks."""

    name: str
    chunks: tuple[tuple[int, int], ...]


def staging_root(root: str | Path) -> Path:
    """Return the directory of all jobs that stage for a store."""
    return Path(root) / SINK_DIRECTORY / "staging"


def new_job(options: SinkOptions) -> str:
    """Make the directory that a job's tasks stage in, on the driver; return its name."""
    job = f"{options.kind}.{uuid.uuid4().hex}"
    directory = staging_root(options.root) / job
    with plain_write_errors(directory, _NOTHING):
        directory.mkdir(parents=True)
    return job


def stage_chunks(
    root: str | Path, job: str, partition_id: int, chunks: Iterable[pa.RecordBatch]
) -> StagedFile | None:
    """Write the chunks of one attempt of a task and sync them; None when there is none."""
    path = staging_root(root) / job / f"{partition_id:05}-{uuid.uuid4().hex}.arrows"
    rest = iter(chunks)
    first = next(rest, None)
    if first is None:
        return None
    written = []
    descriptor = _create(path)
    try:
        for chunk in chain((first,), rest):
            content = memoryview(chunk.serialize())
            written.append((len(content), crc32(content)))
            with plain_write_errors(path.parent, _NOTHING):
                while content:
                    content = content[os.write(descriptor, content) :]
        with plain_write_errors(path.parent, _NOTHING):
            os.fsync(descriptor)
            sync_path(path.parent)  # its name; the driver syncs those of the directories above
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return StagedFile(path.name, tuple(written))


def check_staged(directory: Path, files: Iterable[StagedFile]) -> None:
    """Refuse files that are missing or not as long as reported, before anything is appended."""
    for file in files:
        path = directory / file.name
        expected = sum(size for size, _ in file.chunks)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        if found != expected:
            raise _damaged(path, f"has {found} bytes, its task wrote {expected}")


def read_chunks(directory: Path, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch]:
    """Yield the chunks of staged files as they were written; one at a time is held."""
    for file in files:
        path = directory / file.name
        try:
            with path.open("rb", buffering=0) as content:
                for size, expected in file.chunks:
                    chunk = content.read(size)
                    if len(chunk) != size or crc32(chunk) != expected:
                        at = content.tell() - len(chunk)
                        raise _damaged(path, f"checksum mismatch in the {size} bytes at {at}")
                    yield pa.ipc.read_record_batch(pa.py_buffer(chunk), STAGED)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error


def _create(path: Path) -> int:
    with plain_write_errors(path.parent, _NOTHING):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError as error:
            # Made here, the directory would be on a disk that the commit does not see.
            raise StoreError(
                f"{path.parent} is not there on {socket.gethostname()}, and the driver made it: "
                "the directory is not shared, or somebody cleared it; nothing was appended",
                hint="write to a directory that the driver and all workers reach under one path",
            ) from error


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"staged file {path} {what}",
        hint="run the write again; where the store has sink/intent.json, a part of the batch is in "
        "the log: bring the file back, or move the intent away to leave it at that part",
    )
