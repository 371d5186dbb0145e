"""A queue's directory copied beside it, as runbooks advise: nothing of it is lost."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstore import (
    Message,
    MessageStore,
    RecoveryPolicy,
    StoreError,
    repair_store,
    verify_store,
)
from rocketstore.audit.repair import rebuild_store
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, ENTRY_STRUCT
from rocketstore.storage.recovery import recover
from rocketstore.units import MiB
from support.clock import START_MS, Clock
from support.small_store import CONFIG, crashed
from support.store_files import overwrite_file
from support.trees import tree

NOW_MS = START_MS + 3_600_000
COUNT = 150  # entries in more than one file
COPIES = ("orders.bak", "orders_20240101", "orders~")


def opened(root: Path, policy: RecoveryPolicy | None = None) -> MessageStore:
    return MessageStore.open(root, CONFIG, clock=Clock(NOW_MS), threads=False, policy=policy)


def put(store: MessageStore, topic: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        message = Message(topic=topic, body=f"{topic}-{number}".encode(), keys=f"k{number}")
        assert store.put(message).is_stored
    assert store.wait_dispatched()


@pytest.fixture
def root(tmp_path):
    with opened(tmp_path) as store:
        put(store, "orders", COUNT)
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory that hold anything."""
    return {name: content for name, content in tree(directory).items() if any(content)}


def entries_in(directory: Path) -> list[bytes]:
    """Return the entries of a queue that are not zero."""
    content = b"".join(contents(directory).values())
    found = [content[at : at + ENTRY_SIZE_BYTES] for at in range(0, len(content), ENTRY_SIZE_BYTES)]
    return [entry for entry in found if any(entry)]


def copied(root: Path, name: str) -> dict[str, bytes]:
    queues = root / "consumequeue"
    shutil.copytree(queues / "orders", queues / name)
    return contents(queues / name)


def kept(root: Path, name: str) -> dict[str, bytes]:
    """Return what became of a copy: left alone, or whole in repair/."""
    places = [root / "consumequeue" / name, *root.glob(f"repair/*/consumequeue/{name}")]
    found: dict[str, bytes] = {}
    for place in places:
        found |= contents(place) if place.is_dir() else {}
    return found


DOORS: dict[str, Callable[[Path], object]] = {
    "open": lambda root: opened(root).close(),
    "compatible": lambda root: opened(root, RecoveryPolicy.COMPATIBLE).close(),
    "repair": lambda root: repair_store(root, CONFIG, now_ms=NOW_MS),
    "rebuild": lambda root: rebuild_store(root, CONFIG, what="queues", now_ms=NOW_MS),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_copy_beside_its_queue_is_left_or_kept_whole(root, name, door, *, is_crashed):
    before = copied(root, name)
    if is_crashed:
        crashed(root)
    DOORS[door](root)
    assert kept(root, name).items() >= before.items()
    with opened(root) as store:
        assert store.topics() == ["orders"] or door == "compatible"
        assert len(store.get("orders", 0, COUNT - 32).messages) == 32
    assert kept(root, name).items() >= before.items()


def alias(root: Path) -> None:
    (root / "consumequeue/orders.bak").symlink_to("orders")


def two_files_become_one(root: Path) -> None:
    """Link equal files, as programs do that look for them to save space."""
    first, second = (root / f"consumequeue/orders/{number}/{0:020}" for number in (0, 1))
    second.unlink()
    second.hardlink_to(first)


@pytest.mark.parametrize("link", [alias, two_files_become_one])
@pytest.mark.parametrize("door", DOORS)
def test_two_names_of_one_queue_file_are_refused_before_anything_is_written(root, link, door):
    with opened(root) as store:
        store.put(Message(topic="orders", body=b"in the other queue"), queue_id=1)
    link(root)
    before = tree(root)
    with pytest.raises(StoreError, match="are one file; remove the link"):
        DOORS[door](root)
    assert {name: content for name, content in tree(root).items() if name in before} == before
    assert kept(root, "orders") == contents(root / "consumequeue/orders")


def test_an_open_says_what_it_moved(root, caplog):
    copied(root, "orders.bak")
    with caplog.at_level(logging.INFO, logger="rocketstore"), opened(root) as store:
        (cut,) = [one for one in store.recovery.findings if one.kind == "queue-cut"]
        assert store.recovery.evidence is not None
    assert (cut.file, cut.size) == ("consumequeue/orders.bak/0", COUNT * ENTRY_SIZE_BYTES)
    assert "repair/" in cut.action
    assert "copy of another queue" in cut.reason
    assert "findings=1" in caplog.text
    assert "repair/" in caplog.text
    assert not (root / "consumequeue" / "orders.bak" / "0").exists()
    assert verify_store(root, CONFIG, now_ms=NOW_MS).findings == []


def test_a_reader_sees_no_message_of_a_copy(root):
    for name in COPIES:
        copied(root, name)
    with MessageStore.open(root, CONFIG, read_only=True) as reader:
        for name in COPIES:
            assert reader.message_count(name, 0) == 0
            assert reader.get(name, 0, 0).messages == []
        assert reader.message_count("orders", 0) == COUNT
    report = verify_store(root, CONFIG, now_ms=NOW_MS)
    assert {one.topic for one in report.findings} == {*COPIES}


def test_a_topic_whose_name_a_copy_had_begins_at_its_first_message(root):
    before = copied(root, "orders_20240101")
    with opened(root) as store:
        put(store, "orders_20240101", 3)
        assert store.topics() == ["orders", "orders_20240101"]
        page = store.get("orders_20240101", 0, 0)
        assert [one.queue_offset for one in page.messages] == [0, 1, 2]
    assert kept(root, "orders_20240101").items() >= before.items() or list(
        root.glob("repair/*/consumequeue/orders_20240101/0/*")
    )
    with opened(root) as store:
        assert store.max_offset("orders_20240101", 0) == 3


@pytest.mark.parametrize(
    ("source", "copy"), [(0, 1), (1, 0), (1, 3), (4, 2), (2, 4), (1, 5), (0, 7)]
)
def test_a_file_of_a_queue_that_was_copied_over_another_one_is_made_again(root, source, copy):
    with opened(root) as store:
        put(store, "orders", 300, COUNT)
    files = sorted((root / "consumequeue/orders/0").iterdir())
    size = files[0].stat().st_size
    assert len(files) == 5
    shutil.copy(files[source], files[0].with_name(f"{copy * size:020}"))
    with opened(root) as store:
        found, at = list[int](), 0
        while (page := store.get("orders", 0, at)).messages:
            found += [one.queue_offset for one in page.messages]
            at = page.next_offset
        assert found == list(range(COUNT + 300))


def test_other_copies_are_left_where_they_are(root):
    queues = root / "consumequeue"
    shutil.copytree(queues / "orders" / "0", queues / "orders" / "0.bak")
    shutil.copytree(queues / "orders" / "0", queues / "orders" / "0 (copy)")
    shutil.copytree(queues, root / "kept")
    (root / "kept").rename(queues / "consumequeue")
    first = queues / "orders" / "0" / ("0" * 20)
    shutil.copy(first, first.with_name(first.name + ".bak"))
    log = root / "commitlog" / ("0" * 20)
    shutil.copy(log, log.with_name(log.name + ".bak"))
    shutil.copytree(root / "commitlog", root / "commitlog.bak")
    shutil.move(root / "commitlog.bak", root / "commitlog" / "bak")
    (index,) = (root / "index").iterdir()
    shutil.copy(index, index.with_name(index.name + ".bak"))
    strays = ["orders/0.bak", "orders/0 (copy)", "consumequeue", f"orders/0/{first.name}.bak"]
    places = [queues / name for name in strays]
    places += [root / "commitlog" / "bak", log.with_name(log.name + ".bak")]
    places += [index.with_name(index.name + ".bak")]

    def state() -> list[object]:
        return [contents(one) if one.is_dir() else one.read_bytes() for one in places]

    before = state()
    for is_crashed in (False, True):
        if is_crashed:
            crashed(root)
        with opened(root) as store:
            assert store.topics() == ["orders"]
            assert [*map(str, store.queues())] == ["orders/0"]
        assert state() == before


@pytest.mark.parametrize("is_crashed", [False, True])
def test_entries_that_end_a_queue_are_copied_before_they_are_cut(root, *, is_crashed):
    with opened(root) as store:
        put(store, "other", 5)
    queues = root / "consumequeue"
    theirs = (queues / "orders" / "0" / ("0" * 20)).read_bytes()[: 3 * ENTRY_SIZE_BYTES]
    overwrite_file(queues / "other" / "0" / ("0" * 20), 5 * ENTRY_SIZE_BYTES, theirs)
    if is_crashed:
        crashed(root)
    with opened(root) as store:
        (cut,) = [one for one in store.recovery.findings if one.kind == "queue-cut"]
        assert (cut.offset, cut.size) == (5 * ENTRY_SIZE_BYTES, 3 * ENTRY_SIZE_BYTES)
        assert store.max_offset("other", 0) == 5
    (copy,) = root.glob("repair/*/consumequeue/other/0/*@*")
    assert copy.read_bytes() == theirs.rstrip(b"\0")


def test_numbers_whose_places_are_kept_are_copied_once(root):
    max((root / "commitlog").iterdir()).unlink()
    for _ in range(3):
        crashed(root)
        with opened(root) as store:
            assert store.next_queue_offset("orders", 0) == COUNT
    assert 0 < len(list(root.glob("repair/*/consumequeue/orders/0/*@*"))) <= 2


@pytest.mark.parametrize("known", ["own", "theirs", "none"])
@pytest.mark.parametrize("count", [20, COUNT + 20], ids=["shorter", "longer"])
@pytest.mark.parametrize("tail", [1, 32 * MiB], ids=["long log", "short log"])
@pytest.mark.parametrize("is_idle", [False, True])
def test_queues_of_another_store_are_made_again_from_the_log(
    root, monkeypatch, known, count, tail, *, is_idle
):
    """Its entries point into other records: a log of the same topics, of another broker."""
    monkeypatch.setattr(recover, "CLEAN_TAIL_BYTES", tail)
    if is_idle:
        with opened(root) as store:
            put(store, "other", 100)
    theirs = root / "theirs"
    with opened(theirs) as store:
        put(store, "before", 1)
        put(store, "orders", count)
        put(store, "other", 3)
    shutil.rmtree(root / "consumequeue")
    shutil.copytree(theirs / "consumequeue", root / "consumequeue")
    theirs_there = entries_in(root / "consumequeue" / "orders")
    if known != "own":
        (root / "known-ends").unlink()
    if known == "theirs":
        shutil.copy(theirs / "known-ends", root)
    with opened(root) as store:
        assert numbers(store) == [*range(COUNT)]
        assert store.recovery.findings
        kept_there = b"".join(kept(root, "orders").values())
        gone = set(theirs_there) - set(entries_in(root / "consumequeue" / "orders"))
        # A copy ends with the last byte that is not zero.
        assert all(entry.rstrip(b"\0") in kept_there for entry in gone), "copied to repair/"
        put(store, "orders", 1)
        assert len(numbers(store)) == COUNT + 1
    with opened(root) as store:
        assert len(numbers(store)) == COUNT + 1


@pytest.mark.parametrize("known", ["own", "none"])
def test_entries_in_another_order_than_the_log_s_cost_no_message(root, known):
    """Entries that point past the log's end, after which dispatch puts right ones."""
    path = max((root / "consumequeue" / "orders" / "0").iterdir())
    with opened(root) as store:
        end = store.max_physical_offset
    with path.open("r+b") as file:
        content = file.read()
        at = content.index(bytes(ENTRY_SIZE_BYTES)) // ENTRY_SIZE_BYTES * ENTRY_SIZE_BYTES
        file.seek(at)
        for number in range(5):
            file.write(ENTRY_STRUCT.pack(end + 120 * number, 120, 0))
    if known == "none":
        (root / "known-ends").unlink()
    with opened(root) as store:
        given = store.next_queue_offset("orders", 0)
        put(store, "orders", 2)
    with path.open("r+b") as file:  # the places that were kept have such entries again
        file.seek(at)
        for number in range(given - COUNT):
            file.write(ENTRY_STRUCT.pack(end + 1_000_000 + 120 * number, 120, 0))
        file.write(bytes(2 * ENTRY_SIZE_BYTES))
    with opened(root) as store:
        assert numbers(store) == [*range(COUNT), given, given + 1]


def numbers(store: MessageStore) -> list[int]:
    found, offset = [], 0
    while (page := store.get("orders", 0, offset)).next_offset > offset:
        found += [message.queue_offset for message in page.messages]
        offset = page.next_offset
    return found


@pytest.mark.parametrize("is_log_last", [True, False])
def test_a_copy_of_a_running_store_lacks_nothing_if_its_log_comes_last(tmp_path, is_log_last):
    """In the order of docs/guide/repair.md; else entries lead to what the copy lacks."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    copy.mkdir()
    with opened(live) as store:
        put(store, "orders", COUNT)
        for comes_first in (True, False):
            for part in live.iterdir():
                if (part.name != "commitlog") is (comes_first is is_log_last):
                    (shutil.copytree if part.is_dir() else shutil.copy)(part, copy / part.name)
            put(store, "orders", COUNT, COUNT)
    assert verify_store(copy, CONFIG).is_damaged is not is_log_last
    assert repair_store(copy, CONFIG).is_damaged is not is_log_last
    with opened(copy) as store:
        assert len(store.find("orders", f"k{2 * COUNT - 1}")) == is_log_last
