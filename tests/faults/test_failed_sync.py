"""A sync that fails ends the writer: nothing is acknowledged after it, nothing before it is lost.

The system reports a failed write-back once and may drop the pages, so a later sync that succeeds
proves nothing (K-D1). Here the bytes of a failed sync are gone with the power.
"""

import errno
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketstore import FlushFailedError, MessageStore
from rocketstore.config import FlushDiskType
from rocketstore.storage.checkpoint import read_checkpoint
from rocketstore.storage.results import PutMessageStatus
from support.clock import TickingClock
from support.fault_workload import Label, check_store, labels_of, places_of, small_files, step_of
from support.faulty_disk import FaultyDisk, nth, once
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S
from support.power_cut import abandon
from support.reading import all_messages
from support.shadow_disk import ShadowDisk, Survival

RUN = 31
STEPS = 50
NOTHING = Survival(pages=0.0, names=0.0, in_order=True, torn=False)


def flush_clock() -> TickingClock:
    """Return a clock that moves so far with every look that every flush is due."""
    return TickingClock(step_ms=3000)


TRIED = {label for step in range(1, STEPS + 1) for label in labels_of(RUN, 0, step)}


def failing_shadow(root: Path, call: str, below: str, number: int) -> ShadowDisk:
    """Return a shadow disk one of whose syncs fails; what it should have written is gone.

    Later syncs of that file seem to work and write nothing, until the file is made anew.
    """
    seen = 0
    failed: set[Path] = set()

    def hook(name: str, path: Path) -> None:
        nonlocal seen
        if name == "create_file":
            failed.discard(path)
        if name == call and below in str(path.relative_to(root)):
            seen += 1
            if seen == number + 1:
                failed.add(path)
                raise OSError(errno.EIO, "Input/output error", str(path))

    return ShadowDisk(
        root, hook=hook, forgets=lambda _call, path: path in failed and path.is_file()
    )


class Witness:
    """What a store promised, and when it stopped promising."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.promised: set[Label] = set()
        self.failed_at: tuple[int, int] | None = None

    def put(self, step: int) -> None:
        """Put, flush where a put does not, and note what that promised."""
        store = self.store
        try:
            result = step_of(RUN, 0, step).do(store)
            if not store.config.is_sync_flush:
                store.flush()
        except FlushFailedError:
            self.failed_at = self.failed_at or (step, store.flushed_physical_offset)
            return
        if result.status is not PutMessageStatus.PUT_OK:
            # A file's own sync is part of making it.
            assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
            return
        assert self.failed_at is None, f"step {step} was acknowledged after {self.failed_at}"
        if step_of(RUN, 0, step).waits or not store.config.is_sync_flush:
            self.promised.update(labels_of(RUN, 0, step))

    def consume(self) -> None:
        """Note what a consumer of a SYNC_FLUSH store sees."""
        if not self.store.config.is_sync_flush:
            return
        for queue in self.store.queues():
            for message in all_messages(self.store, *queue):
                self.promised.add(Label.parse(message.properties["label"]))


@pytest.mark.parametrize("number", [0, 1, 2, 5, 11, 20, 33])
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_after_a_failed_sync_of_the_log_nothing_is_promised_and_nothing_promised_is_lost(
    tmp_path, flush, number
):
    root, after = tmp_path / "root", tmp_path / "after"
    root.mkdir()
    after.mkdir()
    disk = failing_shadow(root, "fdatasync", "commitlog", number)
    config, clock = small_files(flush, max_msgs_num_batch=1000), flush_clock()
    store = MessageStore.open(root, config, clock=clock, disk=disk, threads=False)
    witness = Witness(store)
    for step in range(1, STEPS + 1):
        witness.put(step)
        if step % 3:
            workers_of(store)._catch_up()
        witness.consume()
    if witness.failed_at is not None:
        assert store.flushed_physical_offset == witness.failed_at[1], "the flushed position moved"
        with pytest.raises(FlushFailedError):
            store.flush()
        with pytest.raises(FlushFailedError):
            store.close()
        assert (root / "abort").exists()
    abandon(store)
    disk.hook = lambda _call, _path: None
    disk.cut(after, random.Random(number), NOTHING)
    with MessageStore.open(after, config, clock=clock, threads=False) as again:
        assert witness.promised <= set(check_store(again, TRIED))
        assert step_of(RUN + 1, 0, 1).do(again).status is PutMessageStatus.PUT_OK


@pytest.mark.parametrize("lasting", [True, False], ids=["for-good", "once"])
def test_every_put_that_waits_gets_the_error_and_later_ones_too(tmp_path, *, lasting):
    fault = nth("fdatasync", 12, below="commitlog")
    disk = FaultyDisk(fault if lasting else once(fault))
    config = small_files("SYNC_FLUSH", mapped_file_size_commit_log=1 << 20)
    acknowledged: dict[Label, tuple[int, int]] = {}
    errors: list[BaseException] = []
    store = MessageStore.open(tmp_path, config, disk=disk)

    def put(thread: int) -> None:
        for number in range(1, 40):
            step = step_of(RUN, thread, number)
            try:
                result = step.do(store)
            except FlushFailedError as error:
                errors.append(error)
                continue
            if step.waits and result.status is PutMessageStatus.PUT_OK:
                acknowledged.update(places_of(labels_of(RUN, thread, number), result))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(4)))
    assert len(errors) >= 4
    assert all("fdatasync" in str(error) for error in errors)
    flushed = store.flushed_physical_offset
    assert all(offset < flushed for offset, _ in acknowledged.values())
    with pytest.raises(FlushFailedError):
        store.put(step_of(RUN, 9, 1).messages[0])
    assert store.flushed_physical_offset == flushed
    with pytest.raises(FlushFailedError):
        store.close()
    with MessageStore.open(tmp_path, config) as again:
        assert again.wait_dispatched(timeout_s=PATIENCE_S)
        places = {
            Label.parse(one.properties["label"]): (one.physical_offset, one.queue_offset)
            for queue in again.queues()
            for one in all_messages(again, *queue)
        }
        assert acknowledged.items() <= places.items()


@pytest.mark.parametrize("part", ["consumequeue", "index"])
@pytest.mark.parametrize("call", ["fdatasync", "fsync_directory"])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_failed_sync_of_queues_or_index_stops_the_checkpoint_not_the_puts(
    tmp_path, part, call, number
):
    root, after = tmp_path / "root", tmp_path / "after"
    root.mkdir()
    after.mkdir()
    disk = failing_shadow(root, call, part, number)
    config, clock = small_files("SYNC_FLUSH", max_msgs_num_batch=1000), flush_clock()
    store = MessageStore.open(root, config, clock=clock, disk=disk, threads=False)
    acknowledged: set[Label] = set()
    failures = 0
    before = read_checkpoint(root / "checkpoint")
    for step in range(1, STEPS + 1):
        result = step_of(RUN, 0, step).do(store)
        assert result.status is PutMessageStatus.PUT_OK
        acknowledged.update(labels_of(RUN, 0, step) if step_of(RUN, 0, step).waits else ())
        worked = _flushes(store)
        failures += not worked
        if parts_of(store).queues.is_flush_broken or parts_of(store).index.is_flush_broken:
            assert not worked
            assert read_checkpoint(root / "checkpoint") == before
        before = read_checkpoint(root / "checkpoint")
    assert failures or call == "fsync_directory", "nothing failed"
    abandon(store)
    disk.hook = lambda _call, _path: None
    disk.cut(after, random.Random(number), NOTHING)
    with MessageStore.open(after, config, clock=clock, threads=False) as again:
        assert acknowledged <= set(check_store(again, TRIED))


def _flushes(store: MessageStore) -> bool:
    """Dispatch and flush as the background does; return whether that worked."""
    try:
        store.wait_dispatched()
        return workers_of(store).queue_flusher.flush_all()
    except (FlushFailedError, OSError):
        return False


@pytest.mark.parametrize("number", range(4))
def test_a_checkpoint_that_cannot_be_written_costs_a_longer_recovery_only(tmp_path, number):
    disk = FaultyDisk(nth("write_at", number, below="/checkpoint"))
    config, clock = small_files("ASYNC_FLUSH", max_msgs_num_batch=1000), flush_clock()
    store = MessageStore.open(tmp_path, config, clock=clock, disk=disk, threads=False)
    for step in range(1, STEPS + 1):
        assert step_of(RUN, 0, step).do(store).status is PutMessageStatus.PUT_OK
        if step % 7 == 0:
            _flushes(store)
    store.close()
    assert (tmp_path / "abort").exists()
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as again:
        assert set(check_store(again, TRIED)) == TRIED


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("call", ["fdatasync", "fsync_directory"])
def test_a_sync_that_fails_while_opening_is_an_error_and_the_next_opening_works(
    tmp_path, call, number
):
    config, clock = small_files("SYNC_FLUSH", max_msgs_num_batch=1000), flush_clock()
    store = MessageStore.open(tmp_path, config, clock=clock, threads=False)
    for step in range(1, STEPS + 1):
        step_of(RUN, 0, step).do(store)
    abandon(store)
    disk = FaultyDisk(once(nth(call, number)))
    try:
        opened = MessageStore.open(tmp_path, config, clock=clock, disk=disk, threads=False)
    except (FlushFailedError, OSError) as error:
        assert "Input/output error" in str(error)  # noqa: PT017 - not every number fails
    else:
        assert disk.failures == []
        abandon(opened)
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as again:
        assert set(check_store(again, TRIED)) == TRIED
