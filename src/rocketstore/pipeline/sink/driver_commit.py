"""The commit of a batch: the only part of the sink that touches the store, once, on the driver.

Law: nothing is appended before an intent is on the disk that says where it goes and what it is, and
no intent goes away before its batch is wholly in the log, on the disk and marked as done, or not in
it at all. Whoever opens the store for the next batch settles an intent that was left first:

- its records are all there: the done mark is made up for;
- none of them is there: the intent is undone, nothing has to be taken back;
- some are there: the batch is finished. Records that lost a page with the power get their bytes
  back in place; the rest is appended behind whatever the log ends with by now, under an intent of
  its own.

Bytes that are messages already are never taken back: a consumer may have them. See
docs/decisions/0008-spark-sink.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from rocketstore.config import StoreConfig, from_properties, load_broker_conf, resolve_sizes
from rocketstore.errors import NotAStoreError, StoreDamagedError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.format.host import encode_host
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    LOCK_FILE_NAME,
)
from rocketstore.format.record import crc32
from rocketstore.pipeline.sink.intent import DoneMarks, Intent, done_path, intent_path
from rocketstore.pipeline.sink.placement import (
    CommitClock,
    LogEnd,
    place_chunks,
    united,
    without_records,
)
from rocketstore.pipeline.sink.rows import EncodeSettings
from rocketstore.pipeline.sink.settlement import Comparison, compare, parts_of
from rocketstore.pipeline.sink.staging import (
    SINK_DIRECTORY,
    Chunk,
    JobOwner,
    StagedFile,
    read_chunks,
    staging_root,
    sweep_staging,
)
from rocketstore.storage.checkpoint import StoreCheckpoint
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import refuse_writer
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.opening import observed_sizes
from rocketstore.storage.store import MessageStore
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rocketstore.pipeline.sink.options import SinkOptions

_SIGNS_OF_A_STORE: Final = frozenset(
    {SINK_DIRECTORY, LOCK_FILE_NAME, ABORT_FILE_NAME, CHECKPOINT_FILE_NAME, CONSUME_QUEUE_DIRECTORY}
)
"""One of them makes a directory a store, or what a first commit that was killed left of one."""

_log: Final = get_logger(__name__)


class CommitOutcome(NamedTuple):
    """What a commit did.

    Attributes
    ----------
    is_new
        False when the batch was in the store already.
    start, length
        Range of the CommitLog that it took.
    """

    is_new: bool
    start: int
    length: int
    messages: int


def check_target(options: SinkOptions) -> None:
    """Refuse a place that cannot be written, before any work; settle what a killed commit left.

    Raises
    ------
    StoreLockedError
        A writer, ours or a broker, has the store open.
    NotAStoreError
        The directory holds something else.
    StoreError
        It may not be written to.
    """
    root = Path(options.root)
    refuse_writer(root / LOCK_FILE_NAME, hint="stop that writer, or write to another store")
    if root.exists() and not root.is_dir():
        raise NotAStoreError(f"{root} is no directory", hint="name the directory of a store")
    names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    logs = StoreLayout.of(root, _config_of(options)).commit_log_directories
    if names and not names & _SIGNS_OF_A_STORE and not any(log.is_dir() for log in logs):
        raise NotAStoreError(
            f"{root} is no store and not empty: it has no {COMMIT_LOG_DIRECTORY}",
            hint="name a store, or a directory that is empty or not there",
        )
    there = next(place for place in (root, *root.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        hint = "let the users that run Spark's driver and workers write there"
        raise StoreError(f"{there} cannot be written: Permission denied", hint=hint)
    if intent_path(root).exists():
        with SinkStore.open(options) as store:
            store.settle()


def encode_settings(options: SinkOptions) -> EncodeSettings:
    """Return what tasks have to know of the store."""
    config = _config_of(options)
    sizes = resolve_sizes(config, observed_sizes(StoreLayout.of(options.root, config), config))
    return EncodeSettings(
        topic=options.topic,
        queue_count=options.queue_count,
        max_message_size=config.max_message_size,
        file_size=sizes.commit_log_file_bytes,
        store_host=encode_host(config.store_host),
    )


def commit_batch(
    options: SinkOptions,
    owner: JobOwner,
    files: Sequence[StagedFile],
    batch_id: int | None,
    *,
    disk: Disk | None = None,
    clock: Callable[[], int] = system_clock_ms,
) -> CommitOutcome:
    """Bring the staged records of a batch into the store, unless they are there already.

    Parameters
    ----------
    owner
        The job that staged them.
    files
        Of the committed attempts only.
    disk, clock
        A test passes its own.

    Raises
    ------
    StoreLockedError
        Somebody else writes to the store; nothing was appended.
    StoreDamagedError
        A staged file or a mark cannot be trusted; nothing was appended.
    ConfigError
        A stream with another checkpoint has used this sinkId; nothing was appended.
    StoreError
        The store could not take it all. The next commit finishes the batch.
    """
    with SinkStore.open(options, disk=disk, clock=clock) as store:
        store.settle()
        outcome = store.commit(owner, sorted(files), batch_id)
        store.sweep(owner)
    return outcome


def sweep_job(options: SinkOptions, owner: JobOwner) -> None:
    """Take away what a failed job staged, and with a stream's what earlier ones of it left.

    The job of an intent stays: its commit will be finished from it. Needs no lock.
    """
    root = Path(options.root)
    disk = Disk()
    try:
        sweep_staging(root, disk, owner, kept=_job_of_intent(root))
        for directory in (staging_root(root), root / SINK_DIRECTORY):
            disk.remove_directory(directory)
    except (OSError, StoreDamagedError) as error:
        _log.warning("sink.sweep_failed", root=str(root), error=str(error))


class SinkStore:
    """A store that is open for a commit."""

    def __init__(self, options: SinkOptions, disk: Disk, clock: CommitClock) -> None:
        self._options = options
        self._root = Path(options.root)
        self._disk = disk
        self._clock = clock
        self._store = _open(options, disk, clock)

    @classmethod
    def open(
        cls,
        options: SinkOptions,
        *,
        disk: Disk | None = None,
        clock: Callable[[], int] = system_clock_ms,
    ) -> SinkStore:
        """Lock, recover and return the store, made where there is none."""
        return cls(options, Disk() if disk is None else disk, CommitClock(clock))

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)  # type: ignore[arg-type] # three values, as they came

    # --- what is left ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish or undo what a killed commit left; see the module's head."""
        intent = read_intent(self._root)
        if intent is None:
            return
        if intent.batch_id is not None and intent.batch_id in self._marks(intent.sink_id):
            self._forget_intent()
            return
        if self._is_whole(intent):
            _log.info("sink.settled", batch=intent.title, found="whole")
            self._finish(intent)
            return
        found = self._compared(intent)
        if found.has_parts:
            self._complete(intent)
            found = self._compared(intent)
        if not found.present and not intent.skipped:
            _log.info("sink.settled", batch=intent.title, found="nothing")
            self._forget_intent()
            return
        _log.info("sink.settled", batch=intent.title, found="a part")
        skipped = united(intent.skipped, found.present)
        self._append(intent.job, intent.files, (intent.sink_id, intent.batch_id), skipped)

    def _is_whole(self, intent: Intent) -> bool:
        """Whether all records of an intent stand where it says."""
        checksum = 0
        for offset, size in intent.runs:
            found = self._store.records.slice(offset, size)
            if found is None:
                return False
            checksum = crc32(found, checksum)
        return checksum == intent.crc

    def _compared(self, intent: Intent) -> Comparison:
        """Return how far the commit of an intent came."""
        if intent.start < self._store.min_physical_offset:
            raise StoreError(
                f"{intent.title} was interrupted at physical offset {intent.start}, and the log "
                f"begins at {self._store.min_physical_offset} by now: what is missing is unknown",
                hint=f"look at the messages, then move {intent_path(self._root)} away",
            )
        chunks = self._chunks(intent.job, intent.files, intent.skipped)
        return compare(intent, chunks, self._store.records.slice)

    def _complete(self, intent: Intent) -> None:
        """Give records their bytes that lost some with the power, and recover once more.

        The first recovery has read them as they were, so their queue entries may be wrong. Whoever
        opens the store next, be it after a kill in here, dispatches the whole batch anew: the
        checkpoint promises nothing of its time any more, and the marker ``abort`` is there.
        """
        self._store.flush()
        path = self._store.layout.checkpoint
        checkpoint = StoreCheckpoint(path, disk=self._disk)
        limit = intent.store_timestamp_ms - 1
        checkpoint.reset(Checkpoint(*(min(time, limit) for time in checkpoint.times)))
        checkpoint.flush()
        log = self._store.records
        chunks = self._chunks(intent.job, intent.files, intent.skipped)
        log.rewrite(
            (piece.offset, piece.data.tobytes()) for piece in parts_of(intent, chunks, log.slice)
        )
        self._store.abandon()
        self._store = _open(self._options, self._disk, self._clock)

    # --- the batch ------------------------------------------------------------------------------

    def commit(
        self, owner: JobOwner, files: Sequence[StagedFile], batch_id: int | None
    ) -> CommitOutcome:
        """Append a batch that is not there yet."""
        sink_id = owner.sink_id
        if batch_id is not None:
            marks = self._marks(sink_id)
            if owner.streaming:
                marks.refuse_older(batch_id, self._root)
            if batch_id in marks:
                _log.warning(
                    "sink.batch_known", sink_id=sink_id, batch_id=batch_id, last=marks.last,
                    hint="it was committed before and is passed over",
                )  # fmt: skip
                return CommitOutcome(is_new=False, start=0, length=0, messages=0)
        if not files:
            self._mark(sink_id, batch_id, start=self._store.max_physical_offset)
            return CommitOutcome(True, self._store.max_physical_offset, 0, 0)  # noqa: FBT003
        return self._append(owner.job, files, (sink_id, batch_id), ())

    def _append(
        self,
        job: str,
        files: Sequence[StagedFile],
        batch: tuple[str | None, int | None],
        skipped: Sequence[tuple[int, int]],
    ) -> CommitOutcome:
        """Append staged records under an intent, but for those that are there, and finish."""
        log = self._store.records
        now_ms = self._clock.stop_at_least(log.last_store_timestamp_ms)
        place = log.end
        planned = self._log_end(now_ms)
        checksum = messages = 0
        runs: list[tuple[int, int]] = []
        for run in place_chunks(self._chunks(job, files, skipped), planned):
            checksum = crc32(run.data, checksum)
            messages += len(run.sizes)
            if runs and sum(runs[-1]) == run.offset:
                runs[-1] = (runs[-1][0], runs[-1][1] + len(run.data))
            else:
                runs.append((run.offset, len(run.data)))
        intent = Intent(
            job=job,
            sink_id=batch[0],
            batch_id=batch[1],
            start=place.offset,
            length=planned.offset - place.offset if runs else 0,
            crc=checksum,
            messages=messages,
            store_timestamp_ms=now_ms,
            runs=tuple(runs),
            file_start=place.file_start,
            file_size=place.file_size,
            first_offsets=tuple(
                (topic, queue, offset) for (topic, queue), offset in planned.first_offsets.items()
            ),
            files=tuple(files),
            skipped=tuple(skipped),
        )
        self._write_intent(intent)
        for run in place_chunks(self._chunks(job, files, skipped), self._log_end(now_ms)):
            queues = {QueueKey(*queue): ends for queue, ends in run.queues.items()}
            log.append(run.data, run.starts, run.offset, queues, now_ms)
        if self._store.max_physical_offset != planned.offset:
            raise StoreError(
                f"{intent.title} ends at physical offset {self._store.max_physical_offset}, "
                f"expected {planned.offset}",
                hint="the next commit will settle it",
            )
        self._finish(intent)
        return CommitOutcome(True, intent.start, intent.length, intent.messages)  # noqa: FBT003

    def _log_end(self, now_ms: int) -> LogEnd:
        log = self._store.records
        place = log.end
        return LogEnd(
            place.offset,
            place.file_start,
            place.file_size,
            now_ms,
            lambda queue: log.next_queue_offset(QueueKey(*queue)),
        )

    def _finish(self, intent: Intent) -> None:
        """Make a batch durable that is wholly in the log, and only then mark it as done."""
        self._store.flush()
        if not self._store.wait_dispatched():
            raise StoreError(
                f"{intent.title} is in the log but not in its queues",
                hint="open the store again, which dispatches what is missing",
            )
        self._mark(
            intent.sink_id,
            intent.batch_id,
            start=intent.start,
            length=intent.length,
            messages=intent.messages,
        )
        self._forget_intent()

    def _chunks(
        self, job: str, files: Iterable[StagedFile], skipped: Sequence[tuple[int, int]]
    ) -> Iterator[Chunk]:
        directory = staging_root(self._root) / job
        first = 0
        for file in files:
            messages = 0
            for chunk in read_chunks(directory / file.name, file.size):
                messages += len(chunk.sizes)
                yield without_records(chunk, first, skipped)
                first += len(chunk.sizes)
            if messages != file.messages:
                raise StoreDamagedError(
                    f"staged file {directory / file.name} has {messages} messages, "
                    f"its task reported {file.messages}",
                    hint="nothing of it was appended; run the write again",
                )

    # --- marks ----------------------------------------------------------------------------------

    def _marks(self, sink_id: str | None) -> DoneMarks:
        if sink_id is None:
            return DoneMarks("")
        path = done_path(self._root, sink_id)
        try:
            return DoneMarks.decode(path.read_bytes(), path)
        except FileNotFoundError:
            return DoneMarks(sink_id)

    def _mark(self, sink_id: str | None, batch_id: int | None, **about: int) -> None:
        if sink_id is None or batch_id is None:
            return
        marks = self._marks(sink_id).marking(batch_id, **about)
        self._write(done_path(self._root, sink_id), marks.encode())

    def _write_intent(self, intent: Intent) -> None:
        # The tasks synced their files; that these can be found again is seen to here.
        job = staging_root(self._root) / intent.job
        for directory in (job, job.parent, job.parent.parent, self._root):
            self._disk.fsync_directory(directory)
        self._write(intent_path(self._root), intent.encode())

    def _forget_intent(self) -> None:
        path = intent_path(self._root)
        self._disk.unlink(path)
        self._disk.fsync_directory(path.parent)

    def _write(self, path: Path, content: bytes) -> None:
        """Give a file its new content as a whole, durably."""
        self._disk.make_directory(path.parent)
        temporary = path.with_name(path.name + ".tmp")
        self._disk.unlink(temporary)
        descriptor = self._disk.create_file(temporary)
        try:
            self._disk.write_at(descriptor, temporary, 0, content)
            self._disk.fdatasync(descriptor, temporary)
        finally:
            os.close(descriptor)
        self._disk.replace(temporary, path)
        self._disk.fsync_directory(path.parent)

    def sweep(self, owner: JobOwner) -> None:
        """Take away what this job staged, and what dead ones left."""
        sweep_staging(self._root, self._disk, owner, kept=_job_of_intent(self._root))


def _open(options: SinkOptions, disk: Disk, clock: CommitClock) -> MessageStore:
    # Without threads: one commit is one row of steps, and retention deletes nothing.
    return MessageStore.open(
        options.root, _config_of(options), disk=disk, clock=clock, threads=False
    )


def read_intent(root: Path) -> Intent | None:
    """Return the intent that was left in a store; raises `StoreDamagedError` for a broken one."""
    path = intent_path(root)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return Intent.decode(content, path)


def _config_of(options: SinkOptions) -> StoreConfig:
    texts = {} if options.store_config is None else load_broker_conf(options.store_config)
    config = from_properties(texts | options.store_settings)
    return msgspec.structs.replace(config, retention=False)


def _job_of_intent(root: Path) -> str | None:
    """Return the job whose files an intent needs; a broken one keeps everything, by raising."""
    intent = read_intent(root)
    return None if intent is None else intent.job
