"""The commit of a batch: the only part of the sink that touches the store, once, on the driver.

Law: nothing is appended before an intent is on the disk that says from where on, and no intent goes
away before its batch is wholly in the log, on the disk and in the ledger, or not in it at all.
The next commit first settles an intent that was left. The store's own
recovery has cut what was torn by then; of the rest each row's place in the log follows from the
intent, and it is there if the record in this place is the row in every field:

- none is there: the intent is undone;
- otherwise the missing ones are appended, under an intent that says which are there.

Messages are never taken back: a consumer may have them. See docs/decisions/0008-spark-sink.md.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from rocketstore.config import (
    BrokerRole,
    FlushDiskType,
    StoreConfig,
    from_properties,
    load_broker_conf,
    resolve_sizes,
)
from rocketstore.errors import (
    NotAStoreError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from rocketstore.events import get_logger
from rocketstore.format.blank import END_FILE_MIN_BLANK_SIZE
from rocketstore.format.host import encode_host
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    LOCK_FILE_NAME,
)
from rocketstore.format.record import host_flags, record_size
from rocketstore.pipeline.sink.sink_ledger import (
    Intent,
    Ranges,
    intent_path,
    is_among,
    ledger_path,
    read_intent,
    read_ledger,
    sealed,
)
from rocketstore.pipeline.sink.sink_rows import EncodeSettings
from rocketstore.pipeline.sink.sink_staging import (
    SINK_DIRECTORY,
    StagedFile,
    StagingJob,
    check_staged,
    read_chunks,
    staging_root,
    sweepable,
)
from rocketstore.storage.clock import system_clock_ms
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import refuse_writer
from rocketstore.storage.files.metadata_file import replace_whole
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.log.prepared import HOST_BITS, PreparedMessage
from rocketstore.storage.opening import observed_sizes
from rocketstore.storage.results import PutMessageStatus
from rocketstore.storage.store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from rocketstore.pipeline.sink.sink_settings import SinkOptions

    Sleep = Callable[[float], None]

_SIGNS_OF_A_STORE: Final = frozenset(
    {SINK_DIRECTORY, LOCK_FILE_NAME, ABORT_FILE_NAME, CHECKPOINT_FILE_NAME, CONSUME_QUEUE_DIRECTORY}
)
"""One of them makes a directory a store, or what a first commit that was killed left of one."""

_PAUSE_S: Final = 0.1
"""Between two looks at a store that is in use."""

_log: Final = get_logger(__name__)
_Result = TypeVar("_Result")


class CommitOutcome(NamedTuple):
    """What a commit did: `is_new` is False when the batch was in the store already."""

    is_new: bool
    start: int
    messages: int


class _Row(NamedTuple):
    """A message of a batch; `number` counts over all staged files, `size` is its record's."""

    number: int
    size: int
    queue_id: int
    body: bytes
    prepared: PreparedMessage


def check_target(options: SinkOptions, *, sleep: Sleep = time.sleep) -> None:
    """Refuse a place that cannot be written, before any work; settle what a killed commit left.

    Raises
    ------
    StoreLockedError, NotAStoreError, StoreError
        A writer does not let go in ``lockTimeout``; it holds something else; it is not writable.
    """
    root = Path(options.root)
    _waiting(options, lambda: refuse_writer(root / LOCK_FILE_NAME, hint=""), sleep)
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
        with _opened(options, Disk(), system_clock_ms, sleep) as store:
            store.settle()


def encode_settings(options: SinkOptions) -> EncodeSettings:
    """Return what tasks have to know of the store."""
    config = _config_of(options)
    return EncodeSettings(
        topic=options.topic,
        queue_count=options.queue_count,
        max_message_size=config.max_message_size,
        file_size=_file_size_of(options, config),
        store_host=encode_host(config.store_host),
    )


def commit_batch(  # noqa: PLR0913 - the last three are of tests
    options: SinkOptions,
    job: StagingJob,
    files: Sequence[StagedFile],
    batch_id: int | None,
    *,
    disk: Disk | None = None,
    clock: Callable[[], int] = system_clock_ms,
    sleep: Sleep = time.sleep,
) -> CommitOutcome:
    """Bring the staged rows of a batch into the store, unless they are there already.

    Parameters
    ----------
    files
        Of the committed attempts only.

    Raises
    ------
    StoreLockedError, ConfigError
        Somebody does not let go of the store; a stream with another checkpoint used this sinkId.
        Nothing was appended.
    StoreDamagedError, StoreError
        A staged file, intent or ledger cannot be trusted; the store could not take it all. The next
        commit finishes the batch.
    """
    chosen = Disk() if disk is None else disk
    with _opened(options, chosen, clock, sleep) as store:
        store.settle()
        outcome = store.commit(job, sorted(files), batch_id)
        _sweep(sweepable(options.root, job, kept=None, now_s=clock() / 1000), chosen)
    return outcome


def sweep_job(options: SinkOptions, job: StagingJob) -> None:
    """Take away what a failed job staged, and with a stream's what earlier ones of it left.

    The job of an intent stays: its commit will be finished from it. Needs no lock.
    """
    root, disk = Path(options.root), Disk()
    try:
        intent = read_intent(root)
        kept = None if intent is None else intent.job
        _sweep(sweepable(root, job, kept=kept, now_s=time.time()), disk)
        for directory in (staging_root(root), root / SINK_DIRECTORY):
            disk.remove_directory(directory)
    except (OSError, StoreDamagedError) as error:
        _log.warning("sink.sweep_failed", root=str(root), error=str(error))


def _sweep(directories: Sequence[Path], disk: Disk) -> None:
    for directory in directories:
        for path in sorted(directory.iterdir()):
            disk.unlink(path)
        disk.remove_directory(directory)


class SinkStore:
    """A store that is open for a commit."""

    def __init__(self, options: SinkOptions, disk: Disk, clock: Callable[[], int]) -> None:
        config = _config_of(options)
        self._clock = clock
        self._store_host = encode_host(config.store_host)
        self.root, self.disk = Path(options.root), disk
        # Without threads: one commit is one row of steps, and retention deletes nothing.
        self.store = MessageStore.open(
            options.root, config, disk=disk, clock=self._time_ms, threads=False
        )
        self._file_size = _file_size_of(options, config)

    def _time_ms(self) -> int:
        return self._clock()

    def commit(
        self, job: StagingJob, files: Sequence[StagedFile], batch_id: int | None
    ) -> CommitOutcome:
        """Append a batch that is not there yet."""
        sink_id = job.sink_id
        if sink_id is not None and batch_id is not None:
            ledger = read_ledger(self.root, sink_id)
            if job.streaming:
                ledger.refuse_older(batch_id, ledger_path(self.root, sink_id))
            if batch_id in ledger:
                _log.warning(
                    "sink.batch_known", sink_id=sink_id, batch_id=batch_id, last=ledger.last,
                    hint="it was committed before and is passed over",
                )  # fmt: skip
                return CommitOutcome(is_new=False, start=0, messages=0)
        check_staged(staging_root(self.root) / job.name, files, begun=False)
        intent = Intent(
            job=job.name, sink_id=sink_id, batch_id=batch_id, start=0, store_timestamp_ms=0,
            files=tuple(files),
        )  # fmt: skip
        start = self.store.max_physical_offset
        return CommitOutcome(is_new=True, start=start, messages=self._append(intent))

    def settle(self) -> None:
        """Finish or undo what a killed commit left; see the module's head."""
        intent = read_intent(self.root)
        if intent is None:
            return
        is_done = False
        if intent.sink_id is not None and intent.batch_id is not None:
            is_done = intent.batch_id in read_ledger(self.root, intent.sink_id)
        present: Ranges = ()
        if not is_done:
            present = intent.present
            if self.store.max_physical_offset > intent.start:
                present = self._present(intent)
            _log.info("sink.settled", batch=intent.title, present=present)
        if present:
            self._append(msgspec.structs.replace(intent, present=present))
        else:
            self._forget_intent()

    # --- the log ------------------------------------------------------------------------------

    def _append(self, intent: Intent) -> int:
        """Append the rows of a batch that are not present, under an intent, and finish it."""
        # What the intent calls present, and all in front of it, stays whatever is lost after this.
        self.store.flush()
        now_ms = max(self._clock(), self.store.last_store_timestamp_ms)
        self._clock = lambda: now_ms
        place = self.store.max_physical_offset
        intent = msgspec.structs.replace(intent, start=place, store_timestamp_ms=now_ms)
        self._write_intent(intent)
        count = 0
        with closing(self._rows(intent)) as rows:
            for row in rows:
                if is_among(intent.present, row.number):
                    continue
                result = self.store.put_prepared(row.prepared, row.body, row.queue_id)
                if not result.is_stored:
                    is_full = result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
                    raise (StoreFullError if is_full else StoreError)(
                        f"{intent.title}: after {count} messages the store took no more: "
                        f"{result.detail}",
                        hint="put that right; the next write to the store finishes this first",
                    )
                place = self._fitted(place, row)
                if (result.physical_offset, result.store_timestamp_ms) != (place, now_ms):
                    raise StoreError(
                        f"{intent.title}: a message went to physical offset "
                        f"{result.physical_offset} at {result.store_timestamp_ms} ms, expected "
                        f"{place} at {now_ms} ms",
                        hint="report it with the sizes of the store's files",
                    )
                place += result.size
                count += 1
        self.store.flush()
        if not self.store.wait_dispatched():
            raise StoreError(
                f"{intent.title} is in the log but not in its queues",
                hint="open the store again, which dispatches what is missing",
            )
        if intent.sink_id is not None and intent.batch_id is not None:
            ledger = read_ledger(self.root, intent.sink_id).with_batch(intent.batch_id)
            path = ledger_path(self.root, intent.sink_id)
            self.disk.make_directory(path.parent)
            replace_whole(path, sealed(ledger), self.disk)
        self._forget_intent()
        return count

    def _present(self, intent: Intent) -> Ranges:
        """Return which rows of an interrupted batch are in the log."""
        if intent.start < self.store.min_physical_offset:
            raise StoreError(
                f"{intent.title} was interrupted at physical offset {intent.start}, and the log "
                f"begins at {self.store.min_physical_offset} by now: what is missing is unknown",
                hint=f"look at the messages, then move {intent_path(self.root)} away",
            )
        check_staged(staging_root(self.root) / intent.job, intent.files, begun=True)
        place = intent.start
        present: list[tuple[int, int]] = []
        with closing(self._rows(intent)) as rows:
            for row in rows:
                is_present = is_among(intent.present, row.number)
                if not is_present:
                    place = self._fitted(place, row)
                    is_present = self._stands_at(place, row, intent.store_timestamp_ms)
                    place += row.size
                if is_present and present and present[-1][1] == row.number:
                    present[-1] = (present[-1][0], row.number + 1)
                elif is_present:
                    present.append((row.number, row.number + 1))
        return tuple(present)

    def _stands_at(self, place: int, row: _Row, now_ms: int) -> bool:
        """Whether the record at a place of the log is what a commit put there for a row."""
        found = self.store.at_physical_offset(place)
        if found is None or found.store_timestamp_ms != now_ms:
            return False
        prepared = row.prepared
        born_ms = now_ms if prepared.born_timestamp_ms is None else prepared.born_timestamp_ms
        return (
            found.topic, found.queue_id, found.raw_body, found.raw_properties, found.flag,
            found.sys_flag & ~HOST_BITS, found.born_timestamp_ms, encode_host(found.born_host),
            found.reconsume_times, found.prepared_transaction_offset,
        ) == (
            prepared.topic, row.queue_id, row.body, prepared.properties, prepared.flag,
            prepared.sys_flag & ~HOST_BITS, born_ms, prepared.born_host,
            prepared.reconsume_times, prepared.prepared_transaction_offset,
        )  # fmt: skip

    def _fitted(self, place: int, row: _Row) -> int:
        """Return where a row goes that follows `place`: a record leaves room for a BLANK."""
        rest = self._file_size - place % self._file_size
        return place if row.size + END_FILE_MIN_BLANK_SIZE <= rest else place + rest

    def _rows(self, intent: Intent) -> Generator[_Row, None, None]:
        """Yield the rows of a batch in order; one chunk of them is held."""
        number = 0
        last = prepared = None
        for chunk in read_chunks(staging_root(self.root) / intent.job, intent.files):
            for body, queue_id, *about in zip(
                *(column.to_pylist() for column in chunk.columns), strict=True
            ):
                if about != last or prepared is None:
                    last = about
                    topic, properties, flag, sys_flag, born_ms, born_host, times, offset = about
                    prepared = PreparedMessage(
                        topic, b"", properties, flag=flag, sys_flag=sys_flag,
                        born_timestamp_ms=born_ms, born_host=born_host, reconsume_times=times,
                        prepared_transaction_offset=offset,
                    )  # fmt: skip
                size = record_size(
                    body_size=len(body),
                    topic_size=len(prepared.topic),
                    properties_size=len(prepared.properties),
                    sys_flag=host_flags(prepared.born_host, self._store_host),
                )
                yield _Row(number, size, queue_id, body, prepared)
                number += 1

    # --- intent and ledger ----------------------------------------------------------------------

    def _write_intent(self, intent: Intent) -> None:
        # The tasks synced their files; that these can be found again is seen to here.
        job = staging_root(self.root) / intent.job
        for directory in (job, job.parent, job.parent.parent, self.root):
            self.disk.fsync_directory(directory)
        replace_whole(intent_path(self.root), sealed(intent), self.disk)

    def _forget_intent(self) -> None:
        path = intent_path(self.root)
        self.disk.unlink(path)
        self.disk.fsync_directory(path.parent)


@contextmanager
def _opened(
    options: SinkOptions, disk: Disk, clock: Callable[[], int], sleep: Sleep
) -> Iterator[SinkStore]:
    """Wait for the lock, recover and yield the store, made where there is none."""
    sink = _waiting(options, lambda: SinkStore(options, disk, clock), sleep)
    with sink.store:
        yield sink


def _waiting(options: SinkOptions, attempt: Callable[[], _Result], sleep: Sleep) -> _Result:
    """Return what an attempt gives, made again as long as somebody else has the store."""
    waited_s = 0.0
    while True:
        try:
            return attempt()
        except StoreLockedError as error:
            left_s = options.lock_timeout_s - waited_s
            if left_s <= 0:
                raise StoreLockedError(
                    f"{error.message}; waited {options.lock_timeout_s:g} s for it",
                    owner_pid=error.owner_pid,
                    hint="stop that writer, give a longer lockTimeout, or write to another store",
                ) from error
        pause_s = min(_PAUSE_S, left_s)
        sleep(pause_s)
        waited_s += pause_s


def _config_of(options: SinkOptions) -> StoreConfig:
    texts = {} if options.store_config is None else load_broker_conf(options.store_config)
    config = from_properties(texts | options.store_settings)
    # A commit flushes once, at its end, and no replica is there to wait for.
    is_slave = config.broker_role is BrokerRole.SLAVE
    return msgspec.structs.replace(
        config,
        retention=False,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        broker_role=BrokerRole.SLAVE if is_slave else BrokerRole.ASYNC_MASTER,
    )


def _file_size_of(options: SinkOptions, config: StoreConfig) -> int:
    sizes = resolve_sizes(config, observed_sizes(StoreLayout.of(options.root, config), config))
    return sizes.commit_log_file_bytes
