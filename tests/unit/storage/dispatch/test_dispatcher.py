"""Dispatch: from records to queue entries and index items."""

import errno
import threading

import numpy as np
import pytest

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.format.index_file import IndexLayout
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import FILLER, QueueEntry
from rocketstore.scan import kernels
from rocketstore.scan.columns import StopReason
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.dispatch import dispatch_service
from rocketstore.storage.dispatch.dispatch_service import DispatchService
from rocketstore.storage.dispatch.dispatcher import BATCH_RECORDS, Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.consume_queue import ConsumeQueue
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.units import ByteRange, QueueKey
from support.clock import Clock
from support.dispatch_parts import DispatchParts
from support.faulty_disk import FaultyDisk
from support.golden_stores import golden_root
from support.index_answers import find
from support.oracle.codecs import decode_item
from support.patience import PATIENCE_S, wait_until
from support.said import capture_logs
from support.trees import copy_tree, tree


@pytest.fixture
def parts(tmp_path):
    return DispatchParts(tmp_path)


# --- the files of Java ----------------------------------------------------------------------------


def dispatch(store, root, *, has_index=True):
    """Dispatch the log of a store of Java into queues, and an index, below another directory."""
    copy_tree(store / "commitlog", root / "commitlog")
    disk = Disk()
    log = MappedFileQueue(root / "commitlog", 65_536, disk=disk)
    log.load()
    end = max(batch.end_of_data for f in log.files for batch in scan_window(f.array, base=f.base))
    table = ConsumeQueueTable(
        root / "consumequeue", 2000, disk=disk, log_min_offset=lambda: log.min_offset
    )
    index = IndexService(
        root / "index", IndexLayout(500, 2000), disk=disk, clock=Clock(), is_enabled=has_index
    )
    dispatcher = Dispatcher(
        log, table, index, readable_limit=lambda: end,
        delays_ms=parse_delay_levels(StoreConfig().message_delay_level),
        lmq=True,
    )  # fmt: skip
    dispatcher.start_at(log.min_offset)
    dispatcher.run_once()
    assert dispatcher.dispatched_offset == end


@pytest.mark.parametrize(
    "name", ["basic", "batch", "ipv6", "expired/base", "delay", "transactions", "multidispatch"]
)
def test_dispatching_a_log_of_java_gives_the_queue_and_index_bytes_of_java(name, tmp_path):
    store = golden_root(name)
    dispatch(store, tmp_path)
    assert tree(tmp_path / "consumequeue") == tree(store / "consumequeue")
    assert _in_order(tmp_path / "index") == _in_order(store / "index")


def _in_order(directory):
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def test_an_expired_log_without_queues_gives_javas_fillers(tmp_path):
    store = golden_root("expired/files_and_cq_removed")
    dispatch(store, tmp_path, has_index=False)
    ours, java = tree(tmp_path / "consumequeue"), tree(store / "consumequeue")
    assert ours == {name: java[name] for name in ours}
    assert any(bytes(8) + b"\x7f\xff\xff\xff" in data for data in ours.values())


# --- entries --------------------------------------------------------------------------------------


def test_a_record_becomes_the_entry_of_its_number(parts):
    [first] = parts.append(properties=b"TAGS\x01TagA")
    [second] = parts.append(properties=b"TAGS\x01TagB")
    parts.run()
    assert parts.entries() == [
        (first, second - first, tags_code("TagA")),
        (second, parts.end - second, tags_code("TagB")),
    ]
    assert parts.queue().max_physical_offset == parts.end


def test_dispatch_begins_where_it_is_told_to(parts):
    placed = parts.append(4)
    parts.dispatcher.start_at(placed[2])
    parts.run()
    assert [entry[0] for entry in parts.entries()] == [0, 0, *placed[2:]]  # two fillers


def test_nothing_beyond_the_readable_limit_is_dispatched(parts):
    [first, second] = parts.append(2)
    limit = second
    dispatcher = Dispatcher(
        parts.log, parts.table, parts.index, readable_limit=lambda: limit, delays_ms={}
    )
    dispatcher.run_once()
    assert [entry[0] for entry in parts.entries()] == [first]
    assert dispatcher.dispatched_offset == second


def test_queue_files_roll_and_every_entry_is_there(parts):
    placed = parts.append(23)
    parts.run()
    assert [entry[0] for entry in parts.entries()] == placed
    assert [file.base for file in parts.queue().files.files] == [0, 100, 200, 300, 400]


def test_log_files_roll_without_a_gap(parts):
    placed = parts.append(100, body=b"x" * 100)
    parts.run()
    assert len(parts.log.files) > 2
    assert [entry[0] for entry in parts.entries()] == placed
    assert parts.dispatcher.behind_bytes == 0
    assert not parts.dispatcher.stepped_over, "a blank is no damage"


@pytest.mark.parametrize(
    ("later_ms", "seconds"),
    [(999, 0), (1000, 1), (-1, 0), (-5000, 0), ((2**31 - 1) * 1000, 2**31 - 1),
     (2**31 * 1000, 2**31 - 1)],
)  # fmt: skip
def test_an_item_keeps_whole_seconds_from_0_to_the_largest_integer(tmp_path, later_ms, seconds):
    """Also where the log's times go back, as those of a log of Java may."""
    parts = DispatchParts(tmp_path)
    first_ms = 1_600_000_000_000
    placed = [
        *parts.append(properties=b"KEYS\x01k", store_timestamp_ms=first_ms),
        *parts.append(properties=b"KEYS\x01k", store_timestamp_ms=first_ms + later_ms),
        *parts.append(properties=b"KEYS\x01k", store_timestamp_ms=first_ms),
    ]
    parts.run()
    file = parts.index.files[0]
    item = decode_item(bytes(file.file.array), file.layout.item_position(2))
    assert (item.physical_offset, item.time_difference_s) == (placed[1], seconds)
    assert find(parts.index, "TopicTest", "k", max_count=9) == placed[::-1]


def test_prepared_and_rollback_records_have_no_entry_and_rollback_no_item(parts):
    parts.append(properties=b"KEYS\x01a", sys_flag=0x4)
    parts.append(properties=b"KEYS\x01b", sys_flag=0xC)
    [committed] = parts.append(properties=b"KEYS\x01c", sys_flag=0x8, queue_offset=0)
    parts.run()
    assert [entry[0] for entry in parts.entries()] == [committed]
    assert [len(find(parts.index, "TopicTest", key, max_count=9)) for key in "abc"] == [1, 0, 1]


def test_the_first_entry_of_a_new_queue_may_have_a_late_number(parts):
    """F6: fillers from the start of the file that holds it; nothing before that file (as 4.9)."""
    parts.append(queue_offset=12)
    parts.run()
    assert [file.base for file in parts.queue().files.files] == [200]
    assert parts.entries()[:2] == [tuple(FILLER)] * 2
    assert (parts.queue().min_offset, parts.queue().max_offset) == (12, 13)


def test_a_gap_is_filled_with_fillers_and_no_number_shifts(parts):
    """K-C1: Java writes entry 7 at place 1."""
    parts.append(30, topic=b"Other")
    parts.append(queue_offset=0)
    parts.append(30, topic=b"Other")
    [late] = parts.append(queue_offset=7)
    parts.run()
    assert parts.entries()[1:7] == [tuple(FILLER)] * 6
    assert parts.entries()[7][0] == late


def test_a_first_queue_offset_that_no_file_has_gives_no_entry(parts):
    parts.append(queue_offset=250_000_000_000_000_000)  # below 2^58, above 2^62 / 20
    [placed] = parts.append(queue_offset=0)
    assert parts.dispatcher.run_once()
    assert [entry[0] for entry in parts.entries()] == [placed]


def test_an_impossible_gap_does_not_fill_the_disk(parts):
    parts.append()
    parts.append(queue_offset=10**12)
    [after] = parts.append(queue_offset=1)
    parts.run()
    assert [entry[0] for entry in parts.entries()] == [0, after]


def test_a_topic_that_is_no_utf_8_gets_the_queue_that_java_reads(parts):
    for topic in (b"\xffA", b"\xfeA", "\ufffdA".encode()):
        parts.append(topic=topic)
    parts.run()
    assert list(parts.table.next_offsets()) == [("\ufffdA", 0)]


@pytest.mark.parametrize("topic", [b"..", b"a/b", b"", b"x" * 127])
def test_a_topic_that_names_no_directory_gets_no_queue(parts, topic):
    parts.append(topic=topic, properties=b"KEYS\x01k")
    parts.append()
    parts.run()
    expected = 1 if topic == b"x" * 127 else 0
    assert len(parts.table) == 1 + expected
    assert not (parts.root / "b").exists()


def test_the_first_record_of_a_number_keeps_it(parts):
    [first] = parts.append(queue_offset=0)
    parts.append(queue_offset=0)
    parts.run()
    assert [entry[0] for entry in parts.entries()] == [first]


def test_topics_with_the_same_hash_have_their_own_queues(parts):
    assert tags_code("AaTopic") == tags_code("BBTopic")
    [one] = parts.append(topic=b"AaTopic")
    [two] = parts.append(topic=b"BBTopic")
    parts.run()
    assert (parts.entries("AaTopic")[0][0], parts.entries("BBTopic")[0][0]) == (one, two)


def test_more_queues_than_the_first_tables_hold(parts):
    for number in range(300):
        parts.append(topic=f"Topic{number % 100}".encode(), queue_id=number // 100)
    parts.run()
    assert len(parts.table) == 300
    assert all(len(parts.entries(*queue.key)) == 1 for queue in parts.table.all())


def test_entries_of_the_delay_topic_keep_the_deliver_time(parts):
    """F5; levels are known before recovery dispatches (K-S1)."""
    topic, stored = b"SCHEDULE_TOPIC_XXXX", 1_600_000_000_123
    parts.append(topic=topic, properties=b"TAGS\x01t\x02DELAY\x012")
    parts.append(topic=topic, properties=b"TAGS\x01t\x02DELAY\x0199")
    parts.append(topic=topic, properties=b"TAGS\x01t\x02DELAY\x01+02")
    parts.append(topic=topic, properties=b"TAGS\x01t\x02DELAY\x01+")
    parts.append(topic=topic, properties=b"TAGS\x01t")
    parts.run()
    codes = [entry[2] for entry in parts.entries("SCHEDULE_TOPIC_XXXX")]
    assert codes == [stored + 5000] * 3 + [tags_code("t")] * 2


@pytest.mark.parametrize("has_numbers", [False, True])
def test_extra_queues_are_entered_where_a_record_states_its_number_there(parts, has_numbers):
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a,Other"
    if has_numbers:
        properties += b"\x02INNER_MULTI_QUEUE_OFFSET\x010,0"
    parts.append(queue_id=3, properties=properties)
    parts.run()
    extra = [QueueKey("%LMQ%a", 0), QueueKey("Other", 3)] if has_numbers else []
    assert parts.table.keys() == sorted([*extra, QueueKey("TopicTest", 3)])


# --- again, and by force --------------------------------------------------------------------------


def fill(parts):
    for number in range(40):
        parts.append(
            topic=(b"TopicA", b"TopicB")[number % 2],
            queue_id=number % 3,
            properties=b"KEYS\x01k%d all\x02UNIQ_KEY\x01u%d\x02TAGS\x01t" % (number % 5, number),
        )


def test_dispatching_again_by_force_changes_no_byte(parts):
    fill(parts)
    parts.run()
    before, written = parts.bytes_on_disk(), parts.written()
    parts.dispatcher.dispatch_range(0, parts.end)
    assert parts.written() == written == 40
    assert parts.bytes_on_disk() == before


def test_the_index_file_is_taken_with_the_first_item_that_is_put(parts):
    """Else a start would have the disk give room to a file that nothing is put into."""
    fill(parts)
    parts.run()
    parts.open_derived()
    parts.dispatcher.dispatch_range(0, parts.end)
    assert not parts.index.newest_bytes.size
    parts.append(properties=b"KEYS\x01another")
    parts.run()
    assert parts.index.newest_bytes.size


def test_a_search_ends_before_what_may_stand_on_the_page_after(parts, monkeypatch):
    stops = []
    resync = kernels.resync

    def noted(array, position, stop, base, size):
        stops.append(stop)
        return resync(array, position, stop, base, size)

    monkeypatch.setattr(kernels, "resync", noted)
    parts.append()
    parts.dispatcher.dispatch_range(0, parts.end + 100)
    assert stops == [parts.end + 100 - 7]  # from there on not even a BLANK would end before it


def test_a_forced_pass_repairs_zeroed_and_wrong_entries(parts):
    fill(parts)
    parts.run()
    before = parts.bytes_on_disk()
    queue = parts.queue("TopicA", 0)
    queue.put(1, QueueEntry(7, 120, 5), overwrite=True)
    queue.put(2, QueueEntry(parts.end + 1000, 120, 5), overwrite=True)
    file = queue.files.find(60)
    file.write_bytes(60 - file.base, bytes(20))
    written = parts.written()
    parts.dispatcher.dispatch_range(0, parts.end)
    assert parts.written() == written + 3
    assert parts.bytes_on_disk() == before


@pytest.mark.parametrize("topic", ["TopicTest", "further"])
@pytest.mark.parametrize("torn_at", [4, 8, 12, 16])  # where a page of 4096 bytes may end
@pytest.mark.parametrize("is_new", [False, True])  # which part of it is on the disk
def test_a_forced_pass_mends_an_entry_that_is_torn(parts, topic, torn_at, is_new):
    for number in (b"0", b"1"):
        names = b"INNER_MULTI_DISPATCH\x01further\x02INNER_MULTI_QUEUE_OFFSET\x01" + number
        parts.append(properties=b"TAGS\x01" + b"a" * 40 + b"\x02" + names)
    parts.run()
    right = parts.bytes_on_disk()
    file = parts.queue(topic, 0).files.find(20)
    gone = slice(20, 20 + torn_at) if is_new else slice(20 + torn_at, 40)
    file.write_bytes(gone.start, bytes(gone.stop - gone.start))
    parts.dispatcher.dispatch_range(0, parts.end)
    assert parts.bytes_on_disk() == right


@pytest.mark.parametrize(("name", "at"), [("further", 3), ("%LMQ%further", 0)])
def test_a_forced_pass_keeps_the_earlier_of_two_records_in_a_further_queue(parts, name, at):
    topic = name.encode()
    names = b"INNER_MULTI_DISPATCH\x01%b\x02INNER_MULTI_QUEUE_OFFSET\x010" % topic
    [first] = parts.append(properties=names, queue_id=3)
    parts.append(properties=names, queue_id=3)
    [third] = parts.append(topic=topic, queue_id=at, queue_offset=0)
    parts.run()
    parts.dispatcher.dispatch_range(0, parts.end)
    parts.dispatcher.dispatch_range(third, parts.end)
    assert [entry[0] for entry in parts.entries(name, at)] == [first]


def test_a_forced_pass_has_a_file_copied_once_before_it_replaces_its_first_entry(parts):
    for number in (b"0", b"1"):
        names = b"INNER_MULTI_DISPATCH\x01further\x02INNER_MULTI_QUEUE_OFFSET\x01" + number
        parts.append(properties=names)
    parts.run()
    right = parts.bytes_on_disk()
    for topic in ("TopicTest", "further"):
        for number in (0, 1):
            wrong = QueueEntry(parts.end + 1000, 120, 5)
            parts.queue(topic, 0).put(number, wrong, overwrite=True)
    wrong, copies = parts.bytes_on_disk(), {}

    def copy(path, start, stop):
        assert path not in copies
        assert (start, stop) == (0, path.stat().st_size)
        copies[path] = path.read_bytes()

    parts.dispatcher.dispatch_range(0, parts.end, copy=copy)
    assert {path.parts[-3] for path in copies} == {"TopicTest", "further"}
    assert set(copies.values()) <= set(wrong.values())
    assert not set(copies.values()) & set(right.values())
    assert parts.bytes_on_disk() == right


@pytest.mark.parametrize("which", [0, 1])
def test_a_forced_pass_leaves_a_number_to_the_intact_record_that_consumers_get_there(parts, which):
    both = [*parts.append(queue_offset=0), *parts.append(queue_offset=0)]
    parts.dispatcher.start_at(both[which])
    parts.run()
    for start in both:
        parts.dispatcher.dispatch_range(start, parts.end)
        assert parts.entries()[0][0] == both[which]


@pytest.mark.parametrize("walked_from", [0, 5])  # 5: there would be a gap
@pytest.mark.parametrize("is_further", [False, True])
def test_nothing_that_a_topic_had_before_it_was_made_again_comes_back(
    parts, is_further, walked_from
):
    placed = parts.append(topic=b"Other")
    for number in (*range(6), *range(2)):
        names = b"INNER_MULTI_DISPATCH\x01TopicA\x02INNER_MULTI_QUEUE_OFFSET\x01%d" % number
        own = {"properties": names} if is_further else {"topic": b"TopicA", "queue_offset": number}
        placed += parts.append(**own)
    parts.dispatcher.start_at(placed[7])
    parts.run()
    parts.dispatcher.dispatch_range(placed[walked_from], parts.end)
    assert [entry[0] for entry in parts.entries("TopicA")] == placed[7:]


def test_a_forced_pass_after_a_cut_of_the_index_gives_the_same_bytes(parts):
    fill(parts)
    parts.run()
    before = parts.bytes_on_disk()
    cut = parts.entries("TopicA", 0)[3][0]
    for target in (cut, 0):
        parts.index.truncate_to(target, lambda _: 1_600_000_000_123, now_ms=0)
        parts.dispatcher.dispatch_range(target, parts.end)
        assert parts.bytes_on_disk() == before
    assert len(parts.index.files) > 3


# --- damage ---------------------------------------------------------------------------------------


def test_dispatch_goes_on_after_damage(parts):
    """K-R3: Java skips all that follows in the file."""
    [first, second, third] = parts.append(3)
    file = parts.log.files[0]
    file.write_bytes(second + 4, b"\x00\x00\x00\x00")
    parts.run()
    assert [entry[0] for entry in parts.entries()] == [first, 0, third]
    assert parts.entries()[1] == tuple(FILLER)
    [stepped] = parts.dispatcher.stepped_over
    assert stepped == (ByteRange(second, third), StopReason.BAD_MAGIC)
    assert sum(over.range.size for over in parts.dispatcher.stepped_over) == third - second


def test_a_missing_log_file_is_stepped_over_and_not_waited_for(parts):
    placed = parts.append(100, body=b"x" * 100)
    gone = parts.log.files[1]
    parts.log.remove([gone], now_ms=0)
    parts.run()
    expected = [at for at in placed if not gone.base <= at < gone.base + gone.size]
    found = [entry[0] for entry in parts.entries() if entry != tuple(FILLER)]
    assert found == expected
    assert parts.dispatcher.stepped_over == [(ByteRange(gone.base, gone.base + gone.size), None)]


def test_a_wrong_checksum_is_damage_only_when_asked(parts):
    parts.append()
    parts.append(crc=1)
    parts.run()
    assert len(parts.entries()) == 2
    parts.append(crc=1)
    parts.dispatcher.dispatch_range(0, parts.end, check_crc=True)
    assert len(parts.entries()) == 2
    [late] = parts.append(crc=1)
    parts.run()
    assert parts.entries()[2:] == [tuple(FILLER), (late, parts.end - late, 0)]
    parts.dispatcher.dispatch_range(0, parts.end)
    assert tuple(FILLER) not in parts.entries()


# --- trouble, listeners, waiting ------------------------------------------------------------------


def no_room(call, path, _number):
    """Fail what allocates a file of a queue, or of the index."""
    codes = {"consumequeue": errno.ENOSPC, "index": errno.EIO}
    found = (code for name, code in codes.items() if name in str(path))
    return next(found, None) if call == "allocate" else None


@pytest.mark.parametrize("index_enabled", [True, False])
def test_no_record_is_skipped_while_the_disk_is_full(tmp_path, monkeypatch, index_enabled):
    """K-C6: Java drops entries and stays read-only; K-I7: it leaves files behind."""
    monkeypatch.setattr(dispatch_service, "LONGEST_RETRY_PAUSE_S", 0.001)
    disk = FaultyDisk(no_room)
    parts = DispatchParts(tmp_path, disk=disk, index_enabled=index_enabled)
    placed = parts.append(7, properties=b"KEYS\x01k")
    service = DispatchService(parts.dispatcher, monotonic=parts.clock)
    for _ in range(3):
        assert service.run_once() is None
    assert service.health.failure_count == 3
    assert not list((tmp_path / "index").glob("*"))
    assert not [path for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()]
    service.thread.start()
    wait_until(lambda: service.health.failure_count > 30 or not service.thread.is_running)
    disk.fails = lambda _call, _path, _number: None
    wait_until(lambda: service.health.is_well or not service.thread.is_running)
    service.stop()
    assert [entry[0] for entry in parts.entries()] == placed
    assert service.health.is_well


@pytest.mark.parametrize("error", [MemoryError("none left"), SystemExit(1), GeneratorExit()])
def test_whatever_a_round_raises_is_tried_again(parts, monkeypatch, error):
    """K-R4: an Error ends Java's thread silently."""
    (placed,) = parts.append()
    failures = [error, error]
    dispatch_stretch = Dispatcher._dispatch_stretch

    def failing(*arguments):
        if failures:
            raise failures.pop()
        return dispatch_stretch(*arguments)

    monkeypatch.setattr(Dispatcher, "_dispatch_stretch", failing)
    service = DispatchService(parts.dispatcher, monotonic=parts.clock)
    with capture_logs() as lines:
        pauses = [service.pause_after(service.run_once()) for _ in range(2)]
    assert service.health.error is error
    assert pauses == [0.01, 0.02]
    said = [(line["event"], line["log_level"], line["error"]) for line in lines]
    assert said == [("dispatch.failed", "error", f"{type(error).__name__}: {error}")] * 2
    assert parts.dispatcher.dispatched_offset == placed
    with capture_logs() as lines:
        assert service.run_once()
    assert [(line["event"], line["failure_count"]) for line in lines] == [("dispatch.recovered", 2)]
    assert [entry[0] for entry in parts.entries()] == [placed]
    assert service.health.is_well


def test_listeners_hear_of_every_message_in_order(parts):
    heard = []
    parts.append(properties=b"TAGS\x01before")
    parts.run()
    parts.dispatcher.board.add_listener(heard.append)
    parts.append(sys_flag=0x4)
    for number in range(1500):
        parts.append(properties=b"TAGS\x01t%d" % number)
    parts.run()
    assert [arrival.next_offset for arrival in heard] == list(range(2, 1502))
    assert heard[0].properties == b"TAGS\x01t0"
    assert heard[0].tags_code == tags_code("t0")
    parts.dispatcher.board.remove_listener(heard.append)
    parts.append()
    parts.run()
    assert len(heard) == 1500


def test_listener_of_some_queues_is_called_for_those_that_are_in_its_set_then(parts):
    heard, heard_all, queues = [], [], set()
    board = parts.dispatcher.board
    board.add_listener(heard.append, queues)
    parts.append()
    parts.run()
    board.add_listener(heard_all.append)
    parts.append()
    parts.run()
    queues.add(QueueKey("TopicTest", 0))
    parts.append()
    parts.append(queue_id=1)
    parts.run()
    assert [(one.queue_id, one.next_offset) for one in heard] == [(0, 3)]
    assert [(one.queue_id, one.next_offset) for one in heard_all] == [(0, 2), (0, 3), (1, 1)]


def test_listeners_hear_of_every_message_of_a_file_that_is_dispatched_at_once(tmp_path):
    count = 2 * BATCH_RECORDS + 3
    parts = DispatchParts(tmp_path, log_file_bytes=1 << 20)
    heard = []
    parts.dispatcher.board.add_listener(heard.append)
    parts.append(count)
    assert len(parts.log.files) == 1
    parts.run()
    assert [arrival.next_offset for arrival in heard] == list(range(1, count + 1))


def test_listeners_hear_of_what_was_done_before_an_error_and_of_no_record_without_an_entry(
    parts, monkeypatch
):
    heard = []
    parts.dispatcher.board.add_listener(heard.append)
    parts.append(queue_offset=0)
    parts.append(queue_offset=0)  # refused
    parts.append(8, queue_offset=1)
    placed = parts.append(3, topic=b"Other")
    map_for_write = ConsumeQueue.map_for_write

    def failing(queue, position):
        if queue.key.topic == "Other":
            raise OSError("no room")
        return map_for_write(queue, position)

    monkeypatch.setattr(ConsumeQueue, "map_for_write", failing)
    with pytest.raises(OSError, match="no room"):
        parts.dispatcher.run_once()
    assert parts.dispatcher.dispatched_offset == placed[0]
    assert [(arrival.topic, arrival.next_offset) for arrival in heard] == [
        ("TopicTest", 1), ("TopicTest", 2)
    ]  # fmt: skip


def test_of_many_records_that_get_no_entry_one_line_tells(parts, caplog):
    parts.append(queue_offset=0)
    parts.append(200, topic=b"../up")
    with caplog.at_level("WARNING", "rocketstore"):
        parts.run()
    (told,) = [one.fields for one in caplog.records if one.event == "dispatch.refused"]
    assert (told["queue"], told["count"]) == ("../up/0", 1)


def test_listeners_hear_of_extra_queues(parts):
    heard = []
    parts.dispatcher.board.add_listener(heard.append)
    parts.append(properties=b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010")
    parts.run()
    assert {(a.topic, a.queue_id, a.next_offset) for a in heard} == {
        ("%LMQ%a", 0, 1), ("TopicTest", 0, 1)
    }  # fmt: skip


@pytest.mark.parametrize(
    "offsets",
    [b"0", b"x,0", b",0", b"9999999999999999999,0"],
    ids=["too few", "no number", "left out by 5.3", "too large"],
)
def test_listeners_hear_of_no_extra_queue_that_got_no_entry(parts, offsets):
    heard = []
    parts.dispatcher.board.add_listener(heard.append)
    lists = b"INNER_MULTI_DISPATCH\x01%%LMQ%%a,%%LMQ%%b\x02INNER_MULTI_QUEUE_OFFSET\x01%b" % offsets
    parts.append(properties=lists)
    parts.run()
    extra = [("%LMQ%b", 1)] if b"," in offsets else []
    assert [(a.topic, a.next_offset) for a in heard] == [("TopicTest", 1), *extra]


def test_a_listener_that_raises_stops_nothing(parts):
    heard = []
    parts.dispatcher.board.add_listener(lambda arrival: 1 / 0)
    parts.dispatcher.board.add_listener(heard.append)
    parts.append(3)
    parts.run()
    assert len(heard) == len(parts.entries()) == 3


def test_waiters_are_woken_by_the_thread(parts):
    service = DispatchService(parts.dispatcher, monotonic=parts.clock)
    service.thread.start()
    try:
        woken, is_waiting = [], threading.Event()

        def is_there():
            is_waiting.set()
            return parts.queue() is not None and parts.queue().max_offset >= 50

        waiter = threading.Thread(
            target=lambda: woken.append(service.wait_until(is_there, PATIENCE_S))
        )
        waiter.start()
        assert is_waiting.wait(PATIENCE_S)
        for _ in range(50):
            assert woken == []
            parts.append()
        waiter.join(PATIENCE_S)
        assert woken == [True]
        assert service.wait_until(
            lambda: parts.dispatcher.dispatched_offset >= parts.end, timeout_s=60
        )
        assert service.health.is_well
    finally:
        service.stop()
    assert not service.thread.is_running


def test_stopping_lets_waiters_go(parts):
    service = DispatchService(parts.dispatcher, monotonic=parts.clock)
    service.thread.start()
    is_waiting, results = threading.Event(), []
    waiter = threading.Thread(
        target=lambda: results.append(service.wait_until(lambda: bool(is_waiting.set()))),
        daemon=True,
    )
    waiter.start()
    assert is_waiting.wait(PATIENCE_S)
    service.stop()
    waiter.join(PATIENCE_S)
    assert results == [False]


def test_the_time_is_that_of_the_last_record_also_of_one_without_an_entry(parts):
    parts.append(3, store_timestamp_ms=5000)
    parts.append(store_timestamp_ms=7000, sys_flag=0x4, properties=b"KEYS\x01a b")
    parts.run()
    assert len(parts.entries()) == 3
    assert parts.dispatcher.last_store_timestamp_ms == 7000
    assert isinstance(parts.table.rows.queues, np.ndarray)
