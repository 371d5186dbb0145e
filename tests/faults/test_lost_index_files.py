"""Whatever the index loses, or its headers say: every message is found by key, and by key and time.

The losses are tried after a clean stop and after a crash, under both policies; the store is that of
`test_lost_queue_files`.
"""

import shutil
import struct
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore, verify_store
from rocketstore.config import RecoveryPolicy
from support.clock import Clock
from support.configured_store import TINY, small_config
from support.store_files import cut, garble, zero
from support.trees import copy_tree

CONFIG = small_config(**TINY)
COUNT = 330
STEP_MS = 700
HEADER, ITEM = struct.Struct(">qqqqii"), struct.Struct(">iqii")
ITEMS_AT = HEADER.size + CONFIG.max_hash_slot_num * 4
HOW = [(clean, policy) for clean in (True, False) for policy in RecoveryPolicy]


def open_store(root: Path, clock: Clock, policy: RecoveryPolicy | None = None) -> MessageStore:
    return MessageStore.open(root, CONFIG, clock=clock, threads=False, policy=policy)


def put(store: MessageStore, numbers: range, clock: Clock) -> None:
    for number in numbers:
        clock.now_ms += STEP_MS
        store.put(Message(topic="T", body=b"%d" % number * 30, keys=(f"k{number}",)), queue_id=0)
    store.wait_dispatched()
    store.flush()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root, clock = tmp_path_factory.mktemp("index") / "store", Clock()
    with open_store(root, clock) as store:
        put(store, range(COUNT), clock)
    assert len(index_files(root)) == 5
    return root, clock


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def damaged(
    whole: tuple[Path, Clock], tmp_path: Path, *, clean: bool, remembered: bool = True
) -> tuple[Path, Clock]:
    root, clock = copy_tree(whole[0], tmp_path / "store"), Clock(whole[1].now_ms)
    if not clean:
        open_store(root, clock).abandon()
    if not remembered:
        (root / "known-ends").unlink()
    return root, clock


def check_whole(root: Path, clock: Clock, policy: RecoveryPolicy) -> None:
    """Open; assert that everything is found before and after more is put."""
    with open_store(root, clock, policy) as store:
        check_found(store, COUNT)
        put(store, range(COUNT, COUNT + 100), clock)
        check_found(store, COUNT + 100)
    report = verify_store(root, CONFIG, now_ms=clock())
    assert [finding for finding in report.findings if finding.severity.value != "note"] == []


def check_found(store: MessageStore, count: int) -> None:
    for number in range(count):
        (found,) = store.find("T", key=f"k{number}")
        assert found.queue_offset == number
        at = found.store_timestamp_ms
        assert store.find("T", key=f"k{number}", begin_ms=at, end_ms=at) == [found]


@pytest.mark.parametrize(("clean", "policy"), HOW)
def test_an_opening_that_indexes_nothing_keeps_what_is_indexed(whole, tmp_path, clean, policy):
    root, clock = damaged(whole, tmp_path, clean=clean)
    config = msgspec.structs.replace(CONFIG, message_index_enable=False)
    with MessageStore.open(root, config, clock=clock, threads=False, policy=policy) as store:
        check_found(store, COUNT)
    check_whole(root, clock, policy)


@pytest.mark.parametrize(("clean", "policy"), HOW)
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("harm", [Path.unlink, zero, garble, cut])
def test_a_lost_index_file_is_made_again(whole, tmp_path, harm, number, clean, policy):
    root, clock = damaged(whole, tmp_path, clean=clean)
    harm(index_files(root)[number])
    check_whole(root, clock, policy)


@pytest.mark.parametrize(("clean", "policy"), HOW)
def test_a_lost_index_is_made_again(whole, tmp_path, clean, policy):
    root, clock = damaged(whole, tmp_path, clean=clean)
    shutil.rmtree(root / "index")
    check_whole(root, clock, policy)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("harm", [zero, garble, cut])
def test_what_the_files_alone_tell_is_found_without_memory(whole, tmp_path, harm, number, clean):
    root, clock = damaged(whole, tmp_path, clean=clean, remembered=False)
    harm(index_files(root)[number])
    check_whole(root, clock, RecoveryPolicy.SALVAGE)


LIES = {
    "begin time": (0, 1_800_000_000_000),
    "no begin time": (0, 0),
    "end time": (1, 5),
    "late end time": (1, 1_800_000_000_000),
    "begin offset": (2, 77),
    "end offset": (3, 77),
    "end offset 0": (3, 0),
    "end offset -1": (3, -1),
    "slots": (4, 1000),
    "few items": (5, 9),
    "no items": (5, 0),
    "many items": (5, 79),
}


def index_last_again(path: Path) -> None:
    """Put the newest item once more, as 4.9 does at each start (K-I8)."""
    content = bytearray(path.read_bytes())
    *header, count = HEADER.unpack_from(content)
    key_hash, *item, _ = ITEM.unpack_from(content, ITEMS_AT + (count - 1) * ITEM.size)
    slot_at = HEADER.size + key_hash % CONFIG.max_hash_slot_num * 4
    ITEM.pack_into(content, ITEMS_AT + count * ITEM.size, key_hash, *item, count - 1)
    struct.pack_into(">i", content, slot_at, count)
    HEADER.pack_into(content, 0, *header, count + 1)
    path.write_bytes(content)


@pytest.mark.parametrize(("clean", "policy"), HOW)
def test_a_broker_that_started_and_stored_nothing_costs_no_key(whole, tmp_path, clean, policy):
    root, clock = damaged(whole, tmp_path, clean=clean)
    index_last_again(index_files(root)[-1])
    check_whole(root, clock, policy)


def lie(path: Path, what: str) -> None:
    content = bytearray(path.read_bytes())
    header = list(HEADER.unpack_from(content))
    at, value = LIES[what]
    header[at] = value
    HEADER.pack_into(content, 0, *header)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("number", "clean", "remembered"),  # each pair of two of them
    [(0, True, True), (0, False, False), (-1, True, False), (-1, False, True)],
)
@pytest.mark.parametrize("what", LIES)
def test_a_header_is_not_believed_unread(whole, tmp_path, what, remembered, number, clean):
    root, clock = damaged(whole, tmp_path, clean=clean, remembered=remembered)
    lie(index_files(root)[number], what)
    kinds = {finding.kind for finding in verify_store(root, CONFIG, now_ms=clock()).findings}
    assert kinds & {"index-header", "index-item", "index-slot"}, kinds
    if what == "slots" and not remembered:
        return  # nobody reads it, and counting them would take a walk over all slots
    check_whole(root, clock, RecoveryPolicy.SALVAGE)


@pytest.mark.parametrize(("clean", "policy"), HOW)
@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("size", [1, 61])
def test_an_index_of_another_store_is_made_again(whole, tmp_path, size, remembered, clean, policy):
    root, clock = damaged(whole, tmp_path, clean=clean, remembered=remembered)
    other = tmp_path / "other"
    with open_store(other, Clock(), None) as store:
        for number in range(COUNT):
            store.put(Message(topic="T", body=bytes(size), keys=f"x{number}"))
        store.wait_dispatched()
    shutil.rmtree(root / "index")
    copy_tree(other / "index", root / "index")
    check_whole(root, clock, policy)
