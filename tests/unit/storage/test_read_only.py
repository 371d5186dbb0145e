"""A store read beside its writer: nothing changed, nothing taken, everything dispatched seen."""

import builtins
import os
import shutil
import threading
from pathlib import Path

import pytest

from rocketstore import MessageStore, verify_store
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError
from rocketstore.format.file_name import file_name
from rocketstore.rules.files import FileProblem
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.results import GetMessageStatus
from rocketstore.units import QueueKey
from support.descriptors import open_descriptors
from support.store_files import INDEX_LAYOUT, StoreFiles

QUEUE = QueueKey("TopicTest", 0)


@pytest.fixture
def files(tmp_path):
    return StoreFiles(tmp_path / "store")


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of a directory that a reader must not change, access times aside."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mtime_ns, status.st_size, content)
    return found


def bodies(store: ReadOnlyStore, offset: int = 0) -> list[bytes]:
    return [message.body for message in store.get(*QUEUE, offset).messages]


# --- it only reads --------------------------------------------------------------------------------


def test_reading_everything_changes_no_byte_and_no_name(files):
    for number in range(20):
        files.put(body=b"%d" % number * 100, keys=f"k{number}", tags="t")
    (files.root / "abort").touch()
    before = snapshot(files.root)
    with ReadOnlyStore(files.root) as store:
        for key in store.queues():
            list(store.queue_entries(*key))
            store.get(*key, 0)
            store.get_raw(*key, 0, 5, "t")
            store.offset_at(*key, 0)
        store.get("absent", 0, 0)
        store.find("TopicTest", "k1")
        store.by_id("0" * 32)
        assert not store.wait_for(*QUEUE, 20, 0)
        assert list(store.cut_short()) == store.holes == store.index_files() == []
        assert store.findings == []
        assert store.checkpoint() is None
    assert snapshot(files.root) == before


def test_files_are_opened_for_reading_only_and_never_locked_or_mapped(files, monkeypatch):
    files.put()
    real_open = os.open
    opened: list[tuple[str, int]] = []

    def watched(path: str, flags: int, *rest: int, **options: int) -> int:
        opened.append((str(path), flags))
        return real_open(path, flags, *rest, **options)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a reader maps nothing and locks nothing")

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr("mmap.mmap", refused)
    monkeypatch.setattr("fcntl.lockf", refused)
    real_builtin = builtins.open
    monkeypatch.setattr(
        builtins,
        "open",
        lambda path, mode="r", *rest, **options: (
            real_builtin(path, mode, *rest, **options) if "r" in mode else refused()
        ),
    )
    threads = set(threading.enumerate())
    store = ReadOnlyStore(files.root)
    assert bodies(store) == [b"body"]
    assert store.get_raw(*QUEUE, 0).message_count == 1
    assert opened
    assert all(flags & os.O_ACCMODE == os.O_RDONLY for _, flags in opened)
    assert not [path for path, _ in opened if path.endswith("/lock")]
    assert set(threading.enumerate()) <= threads


def test_a_time_alone_is_no_question_to_the_index_but_to_a_queue(files):
    for number in range(3):
        files.put(keys="k", store_timestamp_ms=1_000 + number)
    store = ReadOnlyStore(files.root)
    with pytest.raises(TypeError, match="key"):
        store.find("TopicTest", begin_ms=1_000, end_ms=1_000 + 2)  # type: ignore[call-arg]
    assert store.offset_at(*QUEUE, 1_000 + 1) == 1


# --- opening --------------------------------------------------------------------------------------


def test_a_writer_that_has_not_put_anything_yet_can_be_read(tmp_path):
    with StoreLock(tmp_path / "lock"):
        store = ReadOnlyStore(tmp_path)
    assert store.queues() == []
    files = StoreFiles(tmp_path)
    files.put(body=b"first")
    assert bodies(store) == [b"first"]
    assert open_descriptors(tmp_path)
    store.close()
    assert not open_descriptors(tmp_path)


def test_queues_without_a_log_are_no_store(files):
    files.put()
    files.log_path(0).unlink()
    with pytest.raises(NotAStoreError, match="had messages, and has no CommitLog file"):
        ReadOnlyStore(files.root)


@pytest.mark.parametrize("listings", [1, 2])
def test_a_first_message_that_comes_while_it_opens_is_read(files, monkeypatch, listings):
    listdir, listed = os.listdir, []

    def then_the_writer_puts(directory: str | Path) -> list[str]:
        names = listdir(directory)
        if Path(directory).name == "commitlog":
            listed.append(directory)
            if len(listed) == listings:
                files.put(body=b"first")
        return names

    monkeypatch.setattr(os, "listdir", then_the_writer_puts)
    store = ReadOnlyStore(files.root)
    assert len(listed) >= listings
    assert bodies(store) == [b"first"]


def test_a_store_without_a_message_is_empty(files):
    store = ReadOnlyStore(files.root)
    assert store.queues() == store.topics() == []
    assert store.max_physical_offset == store.min_physical_offset == 0
    assert store.get(*QUEUE, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.find("TopicTest", "k") == []


def test_an_index_of_another_ratio_needs_its_layout_and_names_the_file(files):
    files.put(keys="k")
    (files.root / "index").mkdir()
    (files.root / "index" / "20240101000000000").write_bytes(bytes(40 + 4 * 10 + 20 * 30))
    with pytest.raises(ConfigError, match=r"20240101000000000.*maxHashSlotNum"):
        ReadOnlyStore(files.root).find("TopicTest", "k")
    store = ReadOnlyStore(files.root, StoreConfig(max_hash_slot_num=10, max_index_num=30))
    assert store.find("TopicTest", "k") == []


def index_of(files: StoreFiles) -> None:
    items = [("TopicTest", "k", 0, 1_000)]
    files.index("20240101000000000", items, begin_ms=1_000, end_ms=1_000)


def test_an_index_file_that_was_cut_off_does_not_hide_the_others(files):
    files.put(keys="k")
    index_of(files)
    whole = next((files.root / "index").iterdir())
    cut = whole.with_name("20990101000000000")
    cut.write_bytes(whole.read_bytes()[:100])
    store = ReadOnlyStore(files.root)
    assert [message.keys for message in store.find("TopicTest", "k")] == [("k",)]
    assert (cut, FileProblem.WRONG_SIZE) in {
        (finding.path, finding.problem) for finding in store.findings
    }


@pytest.mark.parametrize(
    "setting",
    [
        {"max_hash_slot_num": INDEX_LAYOUT.slot_count + 1},
        {
            "max_hash_slot_num": INDEX_LAYOUT.slot_count,
            "max_index_num": INDEX_LAYOUT.item_count + 1,
        },
    ],
)
def test_an_index_layout_that_is_set_and_differs_from_the_files_is_an_error(files, setting):
    files.put(keys="k")
    index_of(files)
    with pytest.raises(ConfigError, match="maxHashSlotNum"):
        ReadOnlyStore(files.root, StoreConfig(**setting))


def test_one_number_of_an_index_layout_gives_the_other(files):
    files.put(keys="k")
    index_of(files)
    config = StoreConfig(max_index_num=INDEX_LAYOUT.item_count)
    assert len(ReadOnlyStore(files.root, config).find("TopicTest", "k")) == 1


def test_a_queue_file_that_was_cut_off_does_not_keep_a_store_from_being_read(files):
    for queue_id in range(3):
        files.put(queue_id=queue_id)
    first = next((files.root / "consumequeue" / "TopicTest" / "0").iterdir())
    os.truncate(first, 33)
    store = ReadOnlyStore(files.root)
    assert store.get("TopicTest", 1, 0).status is GetMessageStatus.FOUND
    assert store.get("TopicTest", 0, 0).status is GetMessageStatus.FOUND


# --- beside a writer ------------------------------------------------------------------------------


def test_messages_that_the_writer_adds_are_seen_by_the_next_question(files):
    (files.root / "abort").touch()
    files.put(body=b"0")
    store = ReadOnlyStore(files.root)
    assert bodies(store) == [b"0"]
    expected = [b"0"]
    for number in range(1, 60):  # log and queue roll several times
        files.put(body=b"%d" % number * 100)
        expected.append(b"%d" % number * 100)
        assert store.max_offset(*QUEUE) == number + 1
        assert bodies(store, number) == [expected[-1]]
    files.put(queue_id=7)
    assert store.max_offset("TopicTest", 7) == 1
    assert store.queues() == [QUEUE, QueueKey("TopicTest", 7)]


def test_a_record_that_is_not_dispatched_yet_is_not_seen_while_a_writer_runs(files):
    (files.root / "abort").touch()
    files.put(body=b"0")
    end = files.end
    offset = files.put(body=b"1", dispatch=False)
    store = ReadOnlyStore(files.root)
    assert store.max_physical_offset == end
    assert store.at_physical_offset(offset) is None
    assert store.max_offset(*QUEUE) == 1
    (files.root / "abort").unlink()
    at_rest = ReadOnlyStore(files.root)
    assert at_rest.max_physical_offset == files.end
    assert at_rest.at_physical_offset(offset) is not None


def test_without_queues_the_end_is_found_by_following_the_records(files):
    offsets = [files.put(body=b"x" * 500, dispatch=False) for _ in range(20)]
    (files.root / "abort").touch()
    store = ReadOnlyStore(files.root)
    assert store.max_physical_offset == files.end
    assert store.at_physical_offset(offsets[-1]) is not None


def test_files_that_the_writer_deletes_move_the_minimum(files):
    for number in range(40):
        files.put(body=b"%d" % number * 300)
    store = ReadOnlyStore(files.root)
    assert bodies(store, 0)
    files.log_path(0).unlink()
    assert store.min_physical_offset == 4096
    minimum = store.min_offset(*QUEUE)
    assert minimum > 0
    page = store.get(*QUEUE, 0)
    assert (page.status, page.next_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, minimum)
    assert bodies(store, minimum)[0] == b"%d" % minimum * 300
    (files.queue_directory(QUEUE) / file_name(0)).unlink()
    assert store.min_offset(*QUEUE) == max(minimum, 10)
    assert bodies(store, 30)


def test_when_every_message_has_expired_the_minimum_is_the_maximum(files):
    for _ in range(12):
        files.put(body=b"x" * 300)
    for _ in range(30):
        files.put(queue_id=1, body=b"y" * 300)
    files.log_path(0).unlink()
    files.log_path(4096).unlink()
    store = ReadOnlyStore(files.root)
    assert store.min_offset(*QUEUE) == store.max_offset(*QUEUE) == 12
    assert store.get(*QUEUE, 0).next_offset == 12
    assert store.offset_at(*QUEUE, 0) == 12
    assert store.earliest_timestamp(*QUEUE) is None


def test_a_queue_that_is_deleted_and_created_again_starts_from_the_beginning(files):
    for _ in range(5):
        files.put(body=b"old")
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 5
    path = files.queue_directory(QUEUE) / file_name(0)
    path.rename(files.root / "away")
    assert store.max_offset(*QUEUE) == 0
    files.next_offsets.clear()
    files.put(body=b"new")
    assert store.max_offset(*QUEUE) == 1
    assert bodies(store) == [b"new"]


@pytest.mark.parametrize("is_open_before", [True, False])
def test_a_half_written_entry_is_not_seen(files, monkeypatch, *, is_open_before):
    (files.root / "abort").touch()
    files.put(body=b"0", tags="t")
    store = ReadOnlyStore(files.root)
    if is_open_before:
        assert store.max_offset(*QUEUE) == 1
    files.put(body=b"1", tags="t")
    real_pread = os.pread
    torn_reads = 0
    smallest = 20 if is_open_before else 21  # an open queue looks at one entry, a new one at many

    def torn(fd: int, count: int, position: int) -> bytes:
        nonlocal torn_reads
        data = real_pread(fd, count, position)
        if count >= smallest and position == 20 and not torn_reads:  # its tags code not yet written
            torn_reads += 1
            return data[:12] + bytes(8) + data[20:]
        return data

    monkeypatch.setattr(os, "pread", torn)
    assert store.max_offset(*QUEUE) == 1
    assert torn_reads
    monkeypatch.undo()
    assert store.max_offset(*QUEUE) == 2
    assert len(store.get(*QUEUE, 0, tags="t").messages) == 2


def test_entries_beyond_the_end_of_the_log_do_not_count(files):
    files.put(body=b"0")
    files.put(body=b"1")
    torn = files.put(body=b"2")
    files.write_log(torn + 60, bytes(40))  # half of the last record was never written
    files.put("Other", body=b"never", dispatch=False)
    files.enter(QUEUE, 3 * 4096, 100, 0)
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 2
    assert store.get(*QUEUE, 2).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert len(list(store.queue_entries(*QUEUE))) == 2


def test_a_lost_last_message_keeps_its_place_where_the_log_goes_on(files):
    lost = files.put(body=b"0")
    files.put(queue_id=1, body=b"1")
    files.write_log(lost + 4, bytes(4))
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 1
    page = store.get(*QUEUE, 0)
    assert (page.status, page.skipped_entries) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 1)
    assert page.next_offset == 1


def test_an_unwritten_page_in_a_queue_does_not_end_it(files):
    wide = StoreFiles(files.root.parent / "wide", queue_file_size=1000 * 20)
    for number in range(600):
        wide.put(body=b"%d" % number)
    for number in range(100, 305):
        wide.write_entry(QUEUE, number, 0, 0)
    store = ReadOnlyStore(wide.root)
    assert store.max_offset(*QUEUE) == 600
    assert bodies(store, 599) == [b"599"]


def test_waiting_looks_again_until_the_time_is_over(files):
    files.put(body=b"0")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 0.1 and files.next_offsets[QUEUE] == 1:
            files.put(body=b"1")

    store = ReadOnlyStore(files.root, sleep=sleep, monotonic=lambda: now)
    assert store.wait_for(*QUEUE, 0)
    assert now == 0
    assert store.wait_for(*QUEUE, 1, timeout_s=1.0)
    assert 0.1 < now < 0.2
    assert not store.wait_for(*QUEUE, 2, timeout_s=1.0)
    assert now == pytest.approx(1.12, abs=0.05)


# --- files that are not as they should be ---------------------------------------------------------


def test_strange_files_are_named_and_do_not_stop_a_reader(files):
    for number in range(30):
        files.put(body=b"%d" % number * 300)
    (files.root / "commitlog" / "notes.txt").write_text("mine")
    (files.root / "commitlog" / file_name(1 << 20)).touch()
    os.truncate(files.log_path(4096), 1000)
    (files.queue_directory(QUEUE) / "core").touch()
    (files.root / "consumequeue" / "TopicTest" / "x").mkdir()
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 30
    assert store.queues() == [QUEUE]
    found = {(finding.path.name, finding.problem) for finding in store.findings}
    assert found == {
        ("notes.txt", FileProblem.WRONG_NAME),
        (file_name(1 << 20), FileProblem.EMPTY),
        (file_name(4096), FileProblem.WRONG_SIZE),
        ("core", FileProblem.WRONG_NAME),
    }
    assert [hole.start for hole in store.holes] == [5096]
    skipped = read = offset = 0
    while offset < 30:
        page = store.get(*QUEUE, offset)
        skipped, read = skipped + page.skipped_entries, read + len(page.messages)
        offset = page.next_offset
    assert (read + skipped, skipped > 0) == (30, True)
    (gone := files.root / "consumequeue" / "TopicTest" / "7").mkdir()
    (gone / "left").touch()
    assert store.max_offset("TopicTest", 7) == 0
    assert gone / "left" in {finding.path for finding in store.findings}
    shutil.rmtree(gone)
    assert store.max_offset("TopicTest", 7) == 0
    assert gone / "left" not in {finding.path for finding in store.findings}


def test_a_missing_log_file_is_reported_as_a_hole(files):
    for number in range(40):
        files.put(body=b"%d" % number * 300)
    files.log_path(4096).unlink()
    store = ReadOnlyStore(files.root)
    assert [(hole.start, hole.stop) for hole in store.holes] == [(4096, 8192)]
    assert [finding.problem for finding in store.findings] == [FileProblem.MISSING]
    assert store.max_offset(*QUEUE) == 40


def test_a_short_last_queue_file_is_read_as_far_as_it_goes(files):
    for number in range(15):
        files.put(body=b"%d" % number)
    os.truncate(files.queue_directory(QUEUE) / file_name(200), 3 * 20 + 7)
    store = ReadOnlyStore(files.root)
    assert store.max_offset(*QUEUE) == 13
    assert bodies(store, 10) == [b"10", b"11", b"12"]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (MessageStore.open, "is a file; name a directory"),
        (ReadOnlyStore.open, "file.txt is not a store: it is a file"),
        (verify_store, "file.txt is not a store: it is a file"),
    ],
)
def test_a_file_is_no_place_for_a_store(tmp_path, use, said):
    file = tmp_path / "file.txt"
    file.write_text("a line")

    with pytest.raises(NotAStoreError, match=said):
        use(file)

    assert file.read_text() == "a line"
