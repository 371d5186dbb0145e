"""A full disk is a status or an error, never a dead process, and loses no acknowledged message."""

import contextlib
import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, StoreFullError
from rocketstore.config import FlushDiskType
from rocketstore.storage.results import PutMessageStatus
from support import disk_filler
from support.clock import Clock, TickingClock
from support.configured_store import TINY, open_small
from support.descriptors import open_descriptors
from support.fault_workload import Label, check_store, labels_of, places_of, small_files, step_of
from support.faulty_disk import FaultyDisk, nth, once
from support.patience import PATIENCE_S, START_S
from support.power_cut import abandon
from support.python_process import run_python
from support.reading import all_messages
from support.said import capture_logs
from support.skipping import skip_but_in_ci

SIZE_KIB = 1024
BALLASTS_KIB = (0, 3, 40, 111, 260)
"""How much is taken away before, so that the disk gets full at different files."""

FLUSH_MODES = [flush.value for flush in FlushDiskType]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB; needs the right to mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"root, but not allowed to mount a tmpfs here: {done.stderr.strip()}"
        skip_but_in_ci(reason)
    yield disk
    # Lazily: a map that lives as long as its object may still be there.
    subprocess.run(["umount", "-l", str(disk)], check=True)


class Filled:
    """What a process that filled a store said."""

    def __init__(self, root: Path, flush: str, run: int) -> None:
        done = run_python(disk_filler.__file__, root, flush, run, limit_s=START_S)
        # -7 would be SIGBUS.
        assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
        *puts, self.end = [json.loads(line) for line in done.stdout.splitlines()]
        self.acknowledged: dict[Label, tuple[int, int]] = {}
        for put in puts:
            for part, offset in enumerate(put["at"]):
                label = Label(run, 0, put["step"], part)
                self.acknowledged[label] = offset, put["offset"] + part
        steps = range(1, self.end["steps"] + 1)
        self.tried = {label for step in steps for label in labels_of(run, 0, step)}


def check_dispatched(
    store: MessageStore, acknowledged: dict[Label, tuple[int, int]], tried: set[Label]
) -> None:
    assert store.wait_dispatched(timeout_s=PATIENCE_S)
    check_store(store, tried, acknowledged)


@pytest.mark.parametrize("ballast_kib", BALLASTS_KIB)
@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_a_full_disk_refuses_puts_and_keeps_what_was_acknowledged(small_disk, flush, ballast_kib):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * (ballast_kib * 1024))
    reserve = small_disk / "reserve"
    reserve.write_bytes(b"r" * 200_000)
    root = small_disk / "store"
    filled = Filled(root, flush, run=100 + ballast_kib)
    assert filled.acknowledged
    assert len(filled.end["refused"]) == disk_filler.REFUSALS
    assert {text.split(":")[0] for text in filled.end["refused"]} <= {
        PutMessageStatus.CREATE_MAPEDFILE_FAILED.value,
        PutMessageStatus.SERVICE_NOT_AVAILABLE.value,
    }
    # Still full: it opens, or says that it is full.
    with contextlib.suppress(StoreFullError):
        MessageStore.open(root, small_files(flush)).close()
    reserve.unlink()
    with MessageStore.open(root, small_files(flush, max_msgs_num_batch=1000)) as store:
        check_dispatched(store, filled.acknowledged, filled.tried)
        result = step_of(99, 0, 1).do(store)
        assert result.status is PutMessageStatus.PUT_OK
        filled.tried.update(labels_of(99, 0, 1))
        check_dispatched(store, filled.acknowledged, filled.tried)


def test_a_store_that_has_no_room_to_begin_with_says_so(small_disk):
    (small_disk / "ballast").write_bytes(b"b" * ((SIZE_KIB - 16) * 1024))
    filled = Filled(small_disk / "store", "SYNC_FLUSH", run=5)
    assert filled.acknowledged == {}
    assert all("CREATE_MAPEDFILE_FAILED" in text for text in filled.end["refused"])
    (small_disk / "ballast").unlink()
    with MessageStore.open(small_disk / "store", small_files("SYNC_FLUSH")) as store:
        assert step_of(5, 0, 1).do(store).status is PutMessageStatus.PUT_OK


def test_a_lock_for_which_there_is_no_room_is_named(tmp_path, monkeypatch):
    def pwrite(*_given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StoreFullError, match=r"cannot write .*/lock: No space left"):
        MessageStore.open(tmp_path)


# --- every single allocation, without a file system ---------------------------------------------


@pytest.mark.parametrize("lasting", [True, False], ids=["for-good", "once"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("number", range(14))
def test_any_allocation_may_find_no_room(tmp_path, number, code, *, lasting):
    fault = nth("allocate", number, code)
    disk = FaultyDisk(fault if lasting else once(fault))
    acknowledged: dict[Label, tuple[int, int]] = {}
    tried: set[Label] = set()
    statuses = set()
    config, clock = small_files("ASYNC_FLUSH", max_msgs_num_batch=1000), TickingClock(step_ms=200)
    store = MessageStore.open(tmp_path, config, clock=clock, disk=disk, threads=False)
    for number_of_step in range(1, 60):
        step = step_of(21, 0, number_of_step)
        labels = labels_of(21, 0, number_of_step)
        tried.update(labels)
        result = step.do(store)
        statuses.add(result.status)
        if result.status is PutMessageStatus.PUT_OK:
            acknowledged |= places_of(labels, result)
        elif result.status is not PutMessageStatus.CREATE_MAPEDFILE_FAILED:
            pytest.fail(str(result))
        if number_of_step % 5 == 0:
            with contextlib.suppress(StoreFullError):
                store.wait_dispatched()
    assert disk.failures, "nothing failed: more allocations than there are"
    disk.fails = lambda _call, _path, _number: None
    check_dispatched(store, acknowledged, tried)
    if number % 2:
        store.close()
    else:
        abandon(store)
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as again:
        check_dispatched(again, acknowledged, tried)


@pytest.mark.parametrize("number", range(8))
def test_no_room_while_recovering_is_said_and_costs_nothing(tmp_path, number):
    acknowledged: dict[Label, tuple[int, int]] = {}
    config, clock = small_files("ASYNC_FLUSH", max_msgs_num_batch=1000), Clock()
    store = MessageStore.open(tmp_path, config, clock=clock, threads=False)
    for step in range(1, 60):
        acknowledged |= places_of(labels_of(22, 0, step), step_of(22, 0, step).do(store))
    abandon(store)
    descriptors = open_descriptors(tmp_path)
    disk = FaultyDisk(nth("allocate", number, errno.ENOSPC))
    with pytest.raises(StoreFullError, match="no room"):
        MessageStore.open(tmp_path, config, clock=clock, disk=disk, threads=False)
    assert open_descriptors(tmp_path) == descriptors
    with MessageStore.open(tmp_path, config, clock=clock, threads=False) as again:
        check_dispatched(again, acknowledged, set(acknowledged))


# --- one directory of several ---------------------------------------------------------------------


def several(root: Path, disk: FaultyDisk | None = None) -> MessageStore:
    paths = f"{root}/one,{root}/two"
    return open_small(root / "store", disk=disk, store_path_commit_log=paths, **TINY)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("allocate", errno.ENOSPC), ("allocate", errno.EDQUOT), ("create_file", errno.EROFS),
        ("create_file", errno.EACCES), ("create_file", errno.EPERM),
    ],
)  # fmt: skip
def test_a_log_goes_on_in_those_of_its_directories_that_take_files(tmp_path, call, code):
    with several(tmp_path, FaultyDisk(nth(call, 0, code, below="/one/"))) as store:
        with capture_logs() as logs:
            results = [store.put(Message(topic="T", body=bytes(900))) for _ in range(100)]
        assert all(result.is_stored for result in results)
    (said,) = [log["error"] for log in logs if log["event"] == "file.made_elsewhere"]
    assert f"{tmp_path}/one" in said
    assert (len([*(tmp_path / "one").iterdir()]), len([*(tmp_path / "two").iterdir()])) == (0, 7)
    with several(tmp_path) as store:
        assert len([*all_messages(store, "T")]) == 100


def test_no_file_is_made_elsewhere_while_its_name_is_taken(tmp_path):
    """Of two files of one name the one without messages might be read."""
    disk = FaultyDisk(lambda *_call: None)
    with several(tmp_path, disk) as store:
        disk.fails = lambda call, path, _number: (
            errno.EROFS if call in {"fsync_directory", "unlink"} and "/one" in str(path) else None
        )
        result = store.put(Message(topic="T", body=b"x"))
        assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert not list((tmp_path / "two").iterdir())
        disk.fails = lambda *_call: None
        assert store.put(Message(topic="T", body=b"x")).is_stored
