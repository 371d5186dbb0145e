"""The commit of a batch: the only part of the sink that touches the store, once, on the driver.

``sink/intent.json`` says what is about to be appended, and from where on; how far a killed commit
got is read from the log. ``sink/done/<sinkId>.json`` is the ledger of a sink: its batches in the
store.

Law: nothing is appended before an intent is on the disk, and no intent goes away before its batch
is wholly in the log, on the disk and in the ledger, or not in it at all. Messages are never taken
back: a consumer may have them. The files that another sink staged are not swept: it is not known
here whether its driver lives. See docs/decisions/0008-spark-sink.md.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from rocketstore import errors
from rocketstore.config import resolve_sizes
from rocketstore.events import get_logger
from rocketstore.format.file_name import COMMIT_LOG_DIRECTORY
from rocketstore.format.record import END_FILE_MIN_BLANK_SIZE, crc32
from rocketstore.message import INNER_BATCH as BATCH
from rocketstore.native.log_end import QueueCounter
from rocketstore.pipeline.jobs.publishing import plain_write_errors, refuse_inside_store
from rocketstore.pipeline.sink.sink_writer import (
    ABOUT,
    SINK_DIRECTORY,
    SinkOptions,
    StagedFile,
    staging_root,
)
from rocketstore.rules.runs import joined, pairs, runs_of
from rocketstore.scan.arrow import bytes_of
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.lock import refuse_writer
from rocketstore.storage.files.whole_file import replace_whole
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.opening import observed_sizes
from rocketstore.storage.results import NotTakenError, PutMessageStatus
from rocketstore.storage.store import BaseStore
from rocketstore.units import KiB, QueueKey, system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rocketstore.native.row import Int64Array

_log: Final = get_logger(__name__)
_T = TypeVar("_T")

BORN_NOW: Final = -(1 << 63)  # as a born time: the store's
Ranges = tuple[tuple[int, int], ...]  # first of each run of numbers and the one after its last


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages about to be appended, from physical offset `start` on, all with one store time.

    `present` are the rows, counted over all files, that killed commits have brought into the log.
    """

    job: str
    sink_id: str | None
    batch_id: int | None
    files: tuple[StagedFile, ...]
    start: int = 0
    store_timestamp_ms: int = 0
    present: Ranges = ()

    def __str__(self) -> str:
        named = f"batch {self.batch_id} of sink {self.sink_id}"
        return f"write {self.job}" if self.sink_id is None else named


@system_errors("cannot write to the store")
def check_target(options: SinkOptions) -> int:
    """Refuse a path that is not a store, settle a killed commit; return the size of a log file."""
    root, layout = Path(options.root), StoreLayout.of(options.root, options.config)
    refuse_inside_store(options.root, "path")
    with plain_write_errors(root):
        _waiting(options, lambda: refuse_writer(layout.lock, hint=""))
    signs = (root / SINK_DIRECTORY, layout.lock, *layout.commit_log_directories)
    is_free = not root.exists() or (root.is_dir() and not any(root.iterdir()))
    if not is_free and not any(sign.exists() for sign in signs):
        what = f"{root} is not a store and not empty: it has no {COMMIT_LOG_DIRECTORY}"
        hint = "name a store, or a directory that is empty or not there"
        raise errors.NotAStoreError(what, hint=hint)
    if _intent_path(root).exists():
        with _opened(options, Disk(), system_clock_ms):
            pass
    sizes = resolve_sizes(options.config, observed_sizes(layout, options.config))
    return sizes.commit_log_file_bytes


@system_errors("cannot append to the store")
def commit_batch(
    options: SinkOptions,
    job: str,
    files: Sequence[StagedFile],
    batch_id: int | None,
    *,
    disk: Disk | None = None,
    clock: Callable[[], int] = system_clock_ms,
) -> int | None:
    """Append what committed attempts staged; return its messages, None if the batch was there."""
    disk, count = disk or Disk(), None
    with _opened(options, disk, clock) as store:
        if not _is_known(options, batch_id):
            count = store.append(Intent(job, options.sink_id, batch_id, tuple(sorted(files))))
        _sweep(options, _jobs_of_sink(options.root, job), disk)
    return count


def _is_known(options: SinkOptions, batch_id: int | None) -> bool:
    """Whether the ledger has a batch; of one checkpoint Spark repeats only a stream's last one."""
    ledger = read_ledger(options.root, options.sink_id)
    if batch_id is None or not ledger:
        return False
    last = ledger[-1][1] - 1
    if options.streaming and batch_id < last:
        path = ledger_path(options.root, options.sink_id)
        raise errors.ConfigError(
            f"{path} has batches of sinkId {options.sink_id} up to {last}, and batch {batch_id} "
            "comes again: the sinkId was used with another checkpoint; nothing was appended",
            key="sinkId",
            value=options.sink_id,
            hint="start the query with that checkpoint, or give it a new sinkId, under which "
            "everything it reads is appended, also what is in the store already",
        )
    if not is_among(ledger, batch_id):
        return False
    _log.warning("sink.batch_known", sink_id=options.sink_id, batch_id=batch_id)
    return True


def sweep_job(options: SinkOptions, job: str) -> None:
    """Remove the files that a failed job staged, unless its commit has begun; needs no lock.

    A stream is aborted by a writer that does not know the job: all of its sink's go.
    """
    try:
        intent = read_intent(options.root)
    except errors.StoreDamagedError:
        return  # the next commit reports it
    jobs = _jobs_of_sink(options.root, job) if options.streaming else {job}
    _sweep(options, jobs - {intent.job if intent else None}, Disk())


def _jobs_of_sink(root: str, job: str) -> set[str]:
    """Return the job and those of its stream, or of the batch that its write numbered."""
    kind = job.rpartition(".")[0]
    listed = () if kind == "write" else staging_root(root).iterdir()
    return {job, *(one.name for one in listed if one.name.rpartition(".")[0] == kind)}


def _sweep(options: SinkOptions, jobs: Iterable[str], disk: Disk) -> None:
    try:
        for directory in sorted(staging_root(options.root) / job for job in jobs):
            for path in sorted(directory.glob("*")):
                disk.unlink(path)
            disk.remove_directory(directory)
    except OSError as error:  # another commit or abort of this sink sweeps as well
        _log.warning("sink.sweep_failed", root=options.root, error=str(error))


class StagedChunk:
    """Rows of a staged file as `BaseStore.put_rows` takes them; `first` is the number of the first.

    Law: every row was checked by its task, and the checksum of its file since: none is looked at.
    """

    def __init__(self, batch: pa.RecordBatch, first: int) -> None:
        self.first, self.sizes = first, batch.column("size")
        bodies, blocks, like = (batch.column(name) for name in ("body", "properties", "like"))
        (body_ends, self.bodies), (block_ends, self.blocks) = bytes_of(bodies), bytes_of(blocks)
        firsts = like.to_numpy()
        heads = np.flatnonzero(firsts == np.arange(len(firsts)))
        about = batch.select(ABOUT).take(pa.array(heads)).to_pylist()
        self.messages = [
            PreparedMessage(
                one["topic"], flag=one["flag"], sys_flag=one["sysFlag"], born_host=one["bornHost"],
                reconsume_times=one["reconsumeTimes"],
                prepared_transaction_offset=one["preparedTransactionOffset"],
            )
            for one in about
        ]  # fmt: skip
        self.queue_ids = [one["queueId"] for one in about]
        columns = [np.searchsorted(heads, firsts)]
        for ends in (body_ends, block_ends):
            columns += [ends[:-1], np.diff(ends)]
        born = batch.column("bornTimestamp").fill_null(BORN_NOW).to_numpy()
        self.rows = np.stack([*columns, born], axis=1)

    def row(self, row: int) -> tuple[PreparedMessage, bytes, int]:
        """Return message, body and queue of one row."""
        number, at, size, block_at, block_size, born = self.rows[row].tolist()
        message = self.messages[number]
        block = self.blocks[block_at : block_at + block_size].tobytes()
        message.record.describe(block, None if born == BORN_NOW else born)
        body = self.bodies[at : at + size].tobytes()
        return message, body, self.queue_ids[number]


class _Commit:
    """A store that is open for a commit."""

    def __init__(self, options: SinkOptions, disk: Disk, clock: Callable[[], int]) -> None:
        self._options, self._disk, self._clock, self._now_ms = options, disk, clock, clock()
        # Without threads: a commit is a sequence of steps, and retention deletes nothing.
        self.store = BaseStore.open(
            options.root, options.config, disk=disk, clock=lambda: self._now_ms, threads=False
        )

    def settle(self) -> None:
        """Append the missing rows of a killed commit, or drop it if none of its rows is there."""
        intent = read_intent(self._options.root)
        if intent is None:
            return
        present = intent.present
        if is_among(read_ledger(self._options.root, intent.sink_id), intent.batch_id):
            present = ()
        elif self.store.appended_physical_offset > intent.start:
            present = self._present(intent)
        _log.info("sink.settled", batch=str(intent), present=present)
        if present:
            self.append(replace(intent, present=present))
        else:
            self._forget_intent()
        _sweep(self._options, {intent.job}, self._disk)

    def append(self, intent: Intent) -> int:
        """Append the rows of a batch that are not present, and finish it."""
        root, store, disk = self._options.root, self.store, self._disk
        job = staging_root(root) / intent.job
        check_staged(job, intent.files)
        for chunk, missing in self._chunks(intent):
            if why := self._refusal(chunk, missing):
                raise errors.RefusedMessageError(f"{intent}: {why}; nothing was appended")
        # Rows that the intent calls present, and all before them, stay whatever is lost after this.
        store.flush()
        self._now_ms = max(self._clock(), store.last_store_timestamp_ms)
        start, now_ms = store.appended_physical_offset, self._now_ms
        intent = replace(intent, start=start, store_timestamp_ms=now_ms)
        # The tasks synced their files; their names are synced here.
        for directory in (job, job.parent, job.parent.parent, Path(root)):
            disk.fsync_directory(directory)
        replace_whole(_intent_path(root), sealed(intent), disk)
        count = 0
        for chunk, missing in self._chunks(intent):
            first = 0
            while first < len(missing):
                rows = chunk.rows[missing[first:]]
                first += store.put_rows(
                    chunk.messages, chunk.queue_ids, rows, chunk.bodies, chunk.blocks
                )
                if first < len(missing):
                    self._put_alone(chunk, int(missing[first]), f"{intent}: after {count + first}")
                    first += 1
            count += first
        store.flush()
        if intent.sink_id is not None and intent.batch_id is not None:
            path = ledger_path(root, intent.sink_id)
            disk.make_directory(path.parent)
            ledger = with_numbers(read_ledger(root, intent.sink_id), [intent.batch_id])
            replace_whole(path, sealed(ledger), disk)
        self._forget_intent()
        return count

    def _refusal(self, chunk: StagedChunk, missing: Int64Array) -> str | None:
        """Return why the store takes nothing of a row's topic, or not a batch that a row holds."""
        kinds, heads = self.store.kinds, enumerate(chunk.messages)
        looked_at = [n for n, one in heads if one.topic in kinds or one.record.sys_flag & BATCH]
        for row in missing[np.isin(chunk.rows[missing, 0], looked_at)].tolist():
            message, body, queue_id = chunk.row(row)
            topic, kind = message.topic, kinds.get(message.topic)
            if kind is None:
                what = f"sysFlag says that a row holds a batch, which {topic} does not take"
                return f"{what}: unpack it by inner_messages, or make {topic} a batch topic"
            if why := kind.refusal(topic):
                return why
            counter = QueueCounter(QueueKey(topic, queue_id), topic.encode(), queue_id, 0)
            try:
                kind.numbering(counter, message.record.with_body(body), checks=True)
            except (NotTakenError, errors.RefusedMessageError) as error:
                return str(error)
        return None

    def _put_alone(self, chunk: StagedChunk, row: int, after: str) -> None:
        """Put a row that needs more than a copy: the first of a queue or of a file, or refused."""
        result = self.store.put_prepared(*chunk.row(row))
        if not result.is_stored:
            is_full = result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
            raise (errors.StoreFullError if is_full else errors.StoreError)(
                f"{after} messages the store took no more: {result.detail}",
                hint="correct that; the next write to the store finishes this batch first",
            )

    def _present(self, intent: Intent) -> Ranges:
        """Return which rows of an interrupted batch are in the log, unless another put since."""
        root, store = self._options.root, self.store
        if intent.start < store.min_physical_offset:
            raise errors.StoreError(
                f"{intent} was interrupted at physical offset {intent.start}, and the log "
                f"begins at {store.min_physical_offset} by now: what is missing is unknown",
                hint=f"look at the messages, then move {_intent_path(root)} away",
            )
        check_staged(staging_root(root) / intent.job, intent.files)
        file_size = store.config.mapped_file_size_commit_log
        assert file_size is not None, "the settings of an open store have all sizes"
        place, present = intent.start, []
        missing = ((chunk, row) for chunk, rows in self._chunks(intent) for row in rows.tolist())
        for chunk, row in missing:
            size, (message, body, queue_id) = chunk.sizes[row].as_py(), chunk.row(row)
            rest = file_size - place % file_size
            if size + END_FILE_MIN_BLANK_SIZE > rest:
                place += rest
            found = store.at_physical_offset(place)
            if found is not None and (
                found.store_timestamp_ms, found.size, found.topic, found.queue_id,
                found.raw_properties, found.raw_body,
            ) == (
                intent.store_timestamp_ms, size, message.topic, queue_id,
                message.record.properties, body,
            ):  # fmt: skip
                present.append(chunk.first + row)
            place += size
        return with_numbers(intent.present, present)

    def _chunks(self, intent: Intent) -> Iterator[tuple[StagedChunk, Int64Array]]:
        """Yield what was staged, in order, and the rows of each chunk that are not present."""
        first = 0
        job = staging_root(self._options.root) / intent.job
        staged = (pa.memory_map(str(job / file.name)) for file in intent.files)
        for batch in chain.from_iterable(map(pa.ipc.open_stream, staged)):
            chunk = StagedChunk(batch, first)
            is_missing = np.ones(batch.num_rows, dtype=np.bool_)
            for start, stop in intent.present:
                is_missing[max(start - first, 0) : max(stop - first, 0)] = False
            yield chunk, np.flatnonzero(is_missing)
            first += batch.num_rows

    def _forget_intent(self) -> None:
        path = _intent_path(self._options.root)
        self._disk.unlink(path)
        self._disk.fsync_directory(path.parent)


@contextmanager
def _opened(options: SinkOptions, disk: Disk, clock: Callable[[], int]) -> Iterator[_Commit]:
    """Wait for the lock, recover and settle the store, made where there is none, and yield it."""
    commit = _waiting(options, lambda: _Commit(options, disk, clock))
    try:
        with commit.store:
            commit.settle()
            yield commit
    finally:  # a failed close keeps the store, and no caller could close it again
        commit.store.abandon()


def _waiting(options: SinkOptions, attempt: Callable[[], _T]) -> _T:
    """Return the result of an attempt, repeated while another process has the store."""
    stop_s = time.monotonic() + options.lock_timeout_s
    while True:
        try:
            return attempt()
        except errors.StoreLockedError as error:
            if time.monotonic() >= stop_s:
                raise errors.StoreLockedError(
                    f"{error.message}; waited {options.lock_timeout_s:g} s for it",
                    owner_pid=error.owner_pid,
                    hint="stop that writer, give a longer lockTimeout, or write to another store",
                ) from error
        time.sleep(0.1)


def check_staged(directory: Path, files: Iterable[StagedFile]) -> None:
    """Refuse files that are missing or differ from the report, before anything is appended."""
    for file in files:
        path, size, checksum = directory / file.name, 0, 0
        try:
            with path.open("rb") as content:
                while block := content.read(256 * KiB):
                    size, checksum = size + len(block), crc32(block, checksum)
            what = f"was changed: checksum {checksum} of {size} bytes, "
            what += f"of its task {file.crc32} of {file.size}"
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        if (file.name, size, checksum) != file:
            raise errors.StoreDamagedError(
                f"staged file {path} {what}",
                hint="run the write again; where the store has sink/intent.json, a part of the "
                "batch is in the log: bring the file back, or move the intent away to leave it at "
                "that part",
            )


def _intent_path(root: str | Path) -> Path:
    return Path(root) / SINK_DIRECTORY / "intent.json"


def ledger_path(root: str | Path, sink_id: str | None) -> Path:
    """Return where the ledger of a sink is."""
    return Path(root) / SINK_DIRECTORY / "done" / f"{sink_id}.json"


def read_intent(root: str | Path) -> Intent | None:
    """Return the intent that was left in a store."""
    return _read(_intent_path(root), Intent)


def read_ledger(root: str | Path, sink_id: str | None) -> Ranges:
    """Return the batches of a sink that are in the store."""
    return () if sink_id is None else _read(ledger_path(root, sink_id), Ranges) or ()


def is_among(ranges: Ranges, number: int | None) -> bool:
    """Whether a number is in one of the ranges."""
    return number is not None and any(first <= number < stop for first, stop in ranges)


def with_numbers(ranges: Ranges, numbers: Sequence[int]) -> Ranges:
    """Return the ranges with some more numbers."""
    return tuple(pairs(joined((ranges, runs_of(np.array(numbers, dtype=np.int64))))))


def sealed(content: Intent | Ranges) -> bytes:
    """Return the file of an intent or a ledger: JSON of a checksum and what it is of."""
    encoded = msgspec.json.encode(content)
    return msgspec.json.encode((crc32(encoded), msgspec.Raw(encoded)))


def _read(path: Path, kind: type[_T]) -> _T | None:
    """Return the content that `sealed` wrote; None without a file, which alone means "not done"."""
    try:
        checksum, content = msgspec.json.decode(path.read_bytes(), type=tuple[int, msgspec.Raw])
        what = f"checksum {checksum} expected, {crc32(content)} found"
        if crc32(content) == checksum:
            return msgspec.json.decode(content, type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        what = f"expected a checksum and its content: {error}"
    hint = "compare the end of the log with what was written last, then move the file away"
    raise errors.StoreDamagedError(f"{path} cannot be trusted: {what}", hint=hint)
