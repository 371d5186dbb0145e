"""A store whose directory is moved or unmounted while it is open makes nothing in its old place."""

import contextlib
import os
import stat
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore
from rocketstore.config import FlushDiskType
from rocketstore.errors import FlushFailedError, StoreError
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.results import PutMessageStatus
from support.broker_desk import SEND, Desk
from support.small_store import CONFIG

GONE = "is gone, or another directory, while the store is open: it was moved or unmounted; bring it"
DELETED = "it was deleted or moved while the store was open; see what cleans up there"
FAILED = PutMessageStatus.CREATE_MAPEDFILE_FAILED


def open_store(root: Path, **settings: str) -> MessageStore:
    config = msgspec.structs.replace(CONFIG, **settings)
    return MessageStore.open(root, config, threads=False)


def move(place: Path) -> None:
    place.rename(place.with_name("moved"))


def unmount(place: Path) -> None:
    move(place)
    place.mkdir()


def lead_nowhere(place: Path) -> None:
    move(place)
    place.symlink_to(place)


def left_at(place: Path) -> list[Path]:
    return list(place.rglob("*")) if place.exists() else []


def put_until_refused(store: MessageStore) -> tuple[int, str]:
    """Return how many messages were acknowledged, and why the next one was not."""
    for number in range(10_000):
        result = store.put(Message(topic="orders", body=bytes(1000)), queue_id=0)
        if not result.is_stored:
            assert result.status is FAILED
            return number, result.detail
    raise AssertionError("no put was refused")


@pytest.mark.parametrize("lose", [move, unmount, lead_nowhere])
def test_a_root_that_is_gone_ends_puts_with_the_log_file_and_makes_nothing_there(tmp_path, lose):
    root, moved = tmp_path / "store", tmp_path / "moved"
    store = open_store(root)
    assert store.put(Message(topic="orders", body=b"first"), queue_id=0).is_stored
    lose(root)
    count, why = put_until_refused(store)
    assert why.startswith(f"{root} {GONE}")
    for make in (store.wait_dispatched, store.consumer_offsets.save):
        store.consumer_offsets.set("orders", "billing", 0, 1)
        with pytest.raises(StoreError, match=f"{root} {GONE}"):
            make()
    store.close()  # which says in the log what it could not write
    assert left_at(root) == []
    with open_store(moved) as again:
        assert again.next_queue_offset("orders", 0) == count + 1


@pytest.mark.parametrize("call", ["create_file", "create_unnamed", "make_directory"])
def test_no_call_that_makes_a_file_or_directory_passes_over_a_root_that_is_gone(tmp_path, call):
    (tmp_path / "store").mkdir()
    disk = Disk()
    disk.hold(tmp_path / "store")
    unmount(tmp_path / "store")
    with pytest.raises(StoreError, match=GONE):
        getattr(disk, call)(tmp_path / "store" / "new")
    assert left_at(tmp_path / "store") == []


def replace(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


@pytest.mark.parametrize("lose", [Path.unlink, replace])
@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("mode", FlushDiskType)
def test_a_log_file_that_is_deleted_or_replaced_while_it_is_written_is_no_success(
    tmp_path, lose, threads, mode
):
    config = msgspec.structs.replace(CONFIG, flush_disk_type=mode)
    store = MessageStore.open(tmp_path, config, threads=threads)
    store.put(Message(topic="orders", body=b"first"))
    for file in [*(tmp_path / "commitlog").iterdir()]:
        lose(file)
    if not config.is_sync_flush:
        store.put(Message(topic="orders", body=b"taken, and not promised yet"))
        with pytest.raises(FlushFailedError, match=DELETED):
            store.flush()
    for _ in range(2):
        with pytest.raises(FlushFailedError, match=DELETED):
            store.put(Message(topic="orders", body=b"gone"))
    with pytest.raises(FlushFailedError, match=DELETED):
        store.close()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("mode", FlushDiskType)
def test_a_file_system_that_counts_no_names_of_a_file_is_written(tmp_path, monkeypatch, mode):
    of_system = os.fstat

    def uncounted(descriptor: int) -> os.stat_result:
        status = [*of_system(descriptor)]
        status[stat.ST_NLINK] = 0
        return os.stat_result(status)

    config = msgspec.structs.replace(CONFIG, flush_disk_type=mode)
    monkeypatch.setattr(os, "fstat", uncounted)
    store = MessageStore.open(tmp_path, config)
    for _ in range(3):
        assert store.put(Message(topic="orders", body=b"kept")).status is PutMessageStatus.PUT_OK
    store.flush()
    (tmp_path / "commitlog" / "00000000000000000000").unlink()
    with contextlib.suppress(FlushFailedError):  # with SYNC_FLUSH
        store.put(Message(topic="orders", body=b"gone"))
    for call in (store.flush, store.close):
        with pytest.raises(FlushFailedError, match=DELETED):
            call()


def test_a_root_that_is_brought_back_is_written_again(tmp_path):
    root = tmp_path / "store"
    with open_store(root) as store:
        store.put(Message(topic="orders", body=b"first"), queue_id=0)
        move(root)
        count, _ = put_until_refused(store)
        root.with_name("moved").rename(root)
        assert store.put(Message(topic="orders", body=bytes(1000)), queue_id=0).is_stored
        assert store.wait_dispatched()
        assert store.max_offset("orders", 0) == count + 2


@pytest.mark.parametrize("lose", [move, unmount])
def test_a_log_directory_elsewhere_is_as_the_root(tmp_path, lose):
    log = tmp_path / "disk" / "log"
    with open_store(tmp_path / "store", store_path_commit_log=str(log)) as store:
        lose(log)
        count, why = put_until_refused(store)
        assert why.startswith(f"{log} is gone")
        assert left_at(log) == []
        if log.exists():
            log.rmdir()
        log.with_name("moved").rename(log)
        assert store.put(Message(topic="orders", body=b"1"), queue_id=0).queue_offset == count


def test_a_broker_answers_what_4_9_answers_without_a_log_file(tmp_path):
    desk = Desk(tmp_path / "store", CONFIG)
    desk.answer(310, SEND, b"first")
    move(tmp_path / "store")
    for _ in range(10_000):
        answer = desk.answer(310, SEND, bytes(1000))
        if answer.code:
            break
    assert (answer.code, answer.remark) == (
        1, "create mapped file failed, server is busy or broken.",
    )  # fmt: skip
    (tmp_path / "moved").rename(tmp_path / "store")
    assert desk.answer(310, SEND, b"x").code == 0
    desk.store.close()
