"""Batches for the sink without Spark: stage as tasks do, commit as the driver does, look at it."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rocketstore import MessageStore, StoreConfig, verify_store
from rocketstore.format.stored_message import StoredMessage
from rocketstore.pipeline.sink.row_encoder import RowEncoder
from rocketstore.pipeline.sink.sink_commit import commit_batch
from rocketstore.pipeline.sink.sink_writer import (
    SinkOptions,
    StagedFile,
    new_job,
    parse_sink_options,
    stage_chunks,
)
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.results import PutResult
from rocketstore.storage.store import BaseStore
from support.hooked_disk import HookedDisk
from support.reading import all_messages
from support.small_store import CONFIG, LOG_FILE_BYTES, QUEUE_FILE_BYTES

SIZES = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


def sink_options(root: Path, *, streaming: bool = True, **given: str) -> SinkOptions:
    """Return options with small files; a stream's have a sinkId."""
    texts = {"path": str(root), "chunkBytes": "3000", "lockTimeout": "0s", **SIZES, **given}
    if streaming:
        texts.setdefault("sinkId", "sink")
    return parse_sink_options(texts, streaming=streaming)


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return rows whose content follows from their number."""
    return [
        {
            "topic": f"Topic{number % 2}",
            "body": b"%06d-" % number * (1 + number % 40),
            "keys": [f"key-{number}"] if number % 3 else None,
            "tags": f"Tag{number % 3}",
            "queueId": number % 3 if number % 5 else None,
            "bornTimestamp": 1_600_000_000_000 + number if number % 2 else None,
        }
        for number in range(first, first + count)
    ]


def stage(
    options: SinkOptions, job: str, tasks: Sequence[Sequence[dict[str, Any]]]
) -> list[StagedFile]:
    """Stage rows as so many tasks do."""
    files = []
    for partition_id, task in enumerate(tasks):
        encoder = RowEncoder(options, LOG_FILE_BYTES, partition_id)
        batch = pa.RecordBatch.from_pylist(list(task), SCHEMA)
        file = stage_chunks(options.root, job, partition_id, encoder.encode(batch))
        if file is not None:
            files.append(file)
    return files


def staged(
    root: Path, tasks: Sequence[Sequence[dict[str, Any]]], **given: Any
) -> tuple[SinkOptions, str, list[StagedFile]]:
    """Stage rows as tasks of a new job do; return what its commit is given."""
    options = sink_options(root, **given)
    job = new_job(options)
    return options, job, stage(options, job, tasks)


def commit(
    root: Path, tasks: Sequence[Sequence[dict[str, Any]]], batch_id: int | None = 0,
    *, disk: Disk | None = None, clock: Callable[[], int] | None = None, **given: Any,
) -> int | None:  # fmt: skip
    """Stage rows and commit them."""
    more = {} if clock is None else {"clock": clock}
    return commit_batch(*staged(root, tasks, **given), batch_id, disk=disk, **more)


def numbers_of(*tasks: Sequence[dict[str, Any]]) -> list[int]:
    """Return the numbers of rows of tasks."""
    return [int(row["body"][:6]) for task in tasks for row in task]


SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("body", pa.binary()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("queueId", pa.int32()),
        ("bornTimestamp", pa.int64()),
    ]
)


def stored_numbers(root: Path) -> list[int]:
    """Return the numbers of all rows in the store, in the order of the log."""
    return [int(message.body[:6]) for message in stored_messages(root)]


def stored_messages(root: Path, *, has_gaps: bool = False) -> list[StoredMessage]:
    """Return all messages in the store, in the order of the log.

    Opens it for writing first, as the next writer would, so that it is recovered. `has_gaps` says
    that a power cut took records, whose queue offsets nobody else gets.
    """
    messages = []
    with MessageStore.open(root, CONFIG, threads=False) as store:
        for topic, queue_id in queues_of(root):
            found = [*all_messages(store, topic, queue_id)]
            start = store.min_offset(topic, queue_id)
            numbers = [message.queue_offset for message in found]
            assert has_gaps or numbers == [*range(start, start + len(found))]
            messages += found
    return sorted(messages, key=lambda message: message.physical_offset)


def queues_of(root: Path) -> list[tuple[str, int]]:
    """Return every queue of the topics that `rows` name."""
    return [
        (path.parent.name, int(path.name)) for path in sorted((root / "consumequeue").glob("*/*"))
    ]


def check_whole(root: Path, config: StoreConfig | None = CONFIG) -> None:
    """Assert that a verification finds nothing and that nothing staged or intended is left."""
    report = verify_store(root, config)
    assert [str(finding) for finding in report.findings] == []
    assert not (root / "abort").exists()
    assert not (root / "sink" / "intent.json").exists()
    assert list((root / "sink" / "staging").glob("*")) == []


# --- kills ----------------------------------------------------------------------------------------


TORN_PUTS = 11
"""One put of so many is a place to die in."""


class _KillPoints:
    """Counts the places where a process may die, and kills this one at one of them."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.puts = 0

    def passed(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


class _Copies(_KillPoints):
    """Copies a store at each place where a process may die."""

    def __init__(self, root: Path) -> None:
        super().__init__(0)
        self.root = root
        self.count = 0
        self._lock = threading.Lock()  # syncs of many queues go on at once

    def passed(self) -> None:
        with self._lock:
            shutil.copytree(self.root, self.root.parent / str(self.count), copy_function=_copied)
            self.count += 1


def _copied(source: str, target: str) -> None:
    """Copy a file; the lock of a process ends where it closes that file once more."""
    (os.link if Path(source).name == "lock" else shutil.copy2)(source, target)


class KillingDisk(HookedDisk):
    """Kills the process before a call that changes or syncs something, or in a write's middle."""

    def __init__(self, points: _KillPoints) -> None:
        super().__init__(lambda _call, _path: points.passed())

    def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
        half = len(data) // 2
        super().write_at(descriptor, path, position, data[:half])
        super().write_at(descriptor, path, position + half, data[half:])


def killed_at(point: int, work: Callable[[Disk], object]) -> bool:
    """Do `work` in a process that SIGKILL ends at a point; False when it ended before that.

    Points are the calls of the disk, and for each eleventh message: before it, with the first half
    of its record in the log, and with the second.
    """
    pid = os.fork()
    if pid == 0:
        points = _KillPoints(point)
        status = 1
        try:
            _tear_puts(points)
            work(KillingDisk(points))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the commit failed by itself"
    return False


def copied_at_points(root: Path, work: Callable[[Disk], object]) -> int:
    """Do `work`, and copy the store at `root` beside it at each point of `killed_at`, by number.

    A copy has what a kill at that point would leave: what was written is in files. Return how many.
    """
    points, put, put_rows = _Copies(root), BaseStore.put_prepared, BaseStore.put_rows
    try:
        _tear_puts(points)
        work(KillingDisk(points))
    finally:
        BaseStore.put_prepared = put  # type: ignore[method-assign]
        BaseStore.put_rows = put_rows  # type: ignore[method-assign]
    return points.count


def _tear_puts(points: _KillPoints) -> None:
    """Let some puts of this process be places to die in, those of rows at once, too."""
    put, put_rows = BaseStore.put_prepared, BaseStore.put_rows

    def torn(store: BaseStore, *arguments: Any) -> PutResult:
        points.puts += 1
        if points.puts % TORN_PUTS:
            return put(store, *arguments)
        points.passed()
        result = put(store, *arguments)
        tear(store, result.physical_offset, result.size)
        return result

    def torn_rows(store: BaseStore, messages: Any, queue_ids: Any, rows: Any, *parts: Any) -> int:
        before = points.puts
        for row in range(len(rows)):
            is_place = (points.puts + 1) % TORN_PUTS == 0
            if is_place:
                points.passed()
            start = store.max_physical_offset
            if not put_rows(store, messages, queue_ids, rows[row : row + 1], *parts):
                break
            points.puts += 1
            if is_place:
                tear(store, start, store.max_physical_offset - start)
        return points.puts - before

    def tear(store: BaseStore, physical_offset: int, whole: int) -> None:
        half = whole // 2
        for start, size in ((half, whole - half), (0, half)):
            position = physical_offset + start
            file_start = position // LOG_FILE_BYTES * LOG_FILE_BYTES
            path = store.layout.root / "commitlog" / f"{file_start:020}"
            with path.open("r+b") as log:
                content = os.pread(log.fileno(), size, position - file_start)
                os.pwrite(log.fileno(), bytes(size), position - file_start)
                points.passed()
                os.pwrite(log.fileno(), content, position - file_start)

    BaseStore.put_prepared = torn  # type: ignore[method-assign, assignment]
    BaseStore.put_rows = torn_rows  # type: ignore[method-assign, assignment]
