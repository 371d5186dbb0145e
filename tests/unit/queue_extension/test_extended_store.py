"""A store with queue extensions: what dispatch writes, and what is read of it."""

import errno
import shutil
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.errors import ConfigError, StoreDamagedError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import DELAY_TOPIC, MAX_EXT_ADDRESS
from rocketstore.format.queue_extension import ExtensionUnit, encode_unit
from rocketstore.storage.queues.queue_extension import QueueExtensions
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from support.clock import START_MS, Clock
from support.extended_store import (
    EXT_FILE_BYTES,
    EXTENDED,
    files_below,
    golden_log,
    open_extended,
    queue_files,
    units_of,
    units_on_disk,
)
from support.faulty_disk import FaultyDisk, nth
from support.golden_stores import golden_root, golden_store
from support.inside import parts_of
from support.memory import tmp_path  # noqa: F401 - a directory in memory
from support.reading import all_messages
from support.rebuild_runs import rebuilt_here
from support.small_store import CONFIG, QUEUE_FILE_BYTES

DIRECTORY = "consumequeue_ext"
NOW_MS = 1_800_000_000_000


def message(number: int, *, topic: str = "orders", **more: object) -> Message:
    return Message(topic=topic, body=b"b%d" % number, tags=f"Tag{number % 3}", **more)


def put(store: MessageStore, numbers: range, **more: object) -> None:
    for number in numbers:
        store.put(message(number, **more))
    store.wait_dispatched()


def expected_units(numbers: range) -> list[ExtensionUnit]:
    return [ExtensionUnit(tags_code(f"Tag{number % 3}"), START_MS) for number in numbers]


# --- Java's store -------------------------------------------------------------------------------


GOLDEN = msgspec.structs.replace(
    EXTENDED,
    mapped_file_size_commit_log=65536,
    max_hash_slot_num=500,
    max_index_num=2000,
    mapped_file_size_consume_queue_ext=4096,
)


def mark_crashed(root: Path) -> None:
    """Let the next opening check everything."""
    (root / "abort").touch()
    for name in ("checkpoint", "known-ends"):
        (root / name).unlink(missing_ok=True)


@pytest.fixture
def of_java(tmp_path, monkeypatch):  # noqa: F811
    """Return the log of ``cqext``; each message has the bit map that Java's had."""
    bit_maps = golden_log(tmp_path)
    monkeypatch.setattr(QueueExtensions, "bit_map", lambda _, _topic, block: bit_maps[block])
    return tmp_path


def test_dispatch_of_a_golden_log_writes_java_s_files(of_java):
    golden = golden_root("cqext")
    open_extended(of_java, Clock(NOW_MS), GOLDEN).close()
    assert queue_files(of_java) == queue_files(golden)
    open_extended(of_java, Clock(NOW_MS), GOLDEN).close()
    assert queue_files(of_java) == queue_files(golden)


@pytest.mark.parametrize("lost", ["nothing", "units", "last units", "entries", "last entries"])
def test_a_crash_leaves_what_java_wrote(of_java, lost):
    golden = golden_root("cqext")
    open_extended(of_java, Clock(NOW_MS), GOLDEN).close()
    directory = of_java / (DIRECTORY if "units" in lost else "consumequeue") / "ExtTopic" / "0"
    if lost in ("units", "entries"):
        for path in directory.iterdir():
            path.unlink()
    elif lost != "nothing":
        first = min(directory.iterdir())
        content = first.read_bytes()
        first.write_bytes(content[:1000] + bytes(len(content) - 1000))
    mark_crashed(of_java)
    open_extended(of_java, Clock(NOW_MS), GOLDEN).close()
    assert queue_files(of_java) == queue_files(golden)


def test_tags_of_java_s_units_are_found_without_and_with_extensions(tmp_path):  # noqa: F811
    golden, manifest = golden_store("cqext")
    root = shutil.copytree(golden, tmp_path / "store")
    wanted = [
        record["queueOffset"]
        for record in manifest["records"]
        if record.get("queueId") == 1 and record["properties"].get("TAGS") == "T1"
    ]
    plain = msgspec.structs.replace(GOLDEN, enable_consume_queue_ext=False)
    for config in (plain, GOLDEN):
        with open_extended(root, Clock(NOW_MS), config) as store:
            assert tagged(store, "ExtTopic", 1, "T1") == wanted
    with ReadOnlyStore.open(root) as store:
        assert tagged(store, "ExtTopic", 1, "T1") == wanted
    assert {one.kind for one in verify_store(root, now_ms=NOW_MS).findings} == {"queue-ext"}


def tagged(store: Reader, topic: str, queue_id: int, tags: str) -> list[int]:
    """Return the queue offsets of all messages that have the tags."""
    return [one.queue_offset for one in all_messages(store, topic, queue_id, tags=tags)]


# --- writing ------------------------------------------------------------------------------------


def test_each_entry_refers_to_the_unit_of_its_message(tmp_path):  # noqa: F811
    numbers = range(60)  # 25 units fill a file
    with open_extended(tmp_path, Clock()) as store:
        put(store, numbers)
        assert units_of(store, "orders") == expected_units(numbers)
        codes = [entry.tags_code for _, entry in store.queue_entries("orders", 0)]
        assert codes == sorted(codes)
        assert codes[-1] <= MAX_EXT_ADDRESS
        assert tagged(store, "orders", 0, "Tag1") == list(range(1, 60, 3))
        assert tagged(store, "orders", 0, "Tag1 || Tag2 || none") == [n for n in numbers if n % 3]
    assert units_on_disk(tmp_path, "orders") == expected_units(numbers)
    names = sorted(path.name for path in (tmp_path / DIRECTORY / "orders" / "0").iterdir())
    assert names == [f"{EXT_FILE_BYTES * number:020d}" for number in range(3)]
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(60, 90))
    assert units_on_disk(tmp_path, "orders") == expected_units(range(90))
    assert {one.kind for one in verify_store(tmp_path, now_ms=NOW_MS).findings} == {"queue-ext"}


def test_no_file_is_made_unless_it_is_switched_on(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock(), CONFIG) as store:
        put(store, range(3))
        assert units_of(store, "orders") == [None] * 3
        with pytest.raises(ConfigError, match="enableConsumeQueueExt is off"):
            _ = store.consumer_filters
    assert not (tmp_path / DIRECTORY).exists()


def test_entries_of_a_time_without_extensions_stay(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock(), CONFIG) as store:
        put(store, range(5))
    for crashes in (False, True):
        with open_extended(tmp_path, Clock()) as store:
            put(store, range(5, 10) if not crashes else range(10, 15))
        mark_crashed(tmp_path)
    open_extended(tmp_path, Clock()).close()
    assert units_on_disk(tmp_path, "orders") == [None] * 5 + expected_units(range(5, 15))
    path = tmp_path / DIRECTORY / "orders" / "0" / f"{0:020d}"
    assert not any(path.read_bytes()[200:])
    # And without them again: what recovery writes holds the hash.
    mark_crashed(tmp_path)
    with open_extended(tmp_path, Clock(), CONFIG) as store:
        put(store, range(15, 17))
        assert units_of(store, "orders") == [None] * 17
        assert tagged(store, "orders", 0, "Tag0") == [0, 3, 6, 9, 12, 15]


def test_a_lost_unit_s_address_is_given_to_no_other(tmp_path):  # noqa: F811
    """An opening makes the units of the log's end again; these entries are of before it."""
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(30))
        for path in (tmp_path / DIRECTORY / "orders" / "0").iterdir():
            path.unlink()
        queue = store._queues.get(("orders", 0))
        queue.extension = parts_of(store).queues.make_extension(queue.key, queue)
        put(store, range(30, 40))
        assert units_of(store, "orders") == [None] * 30 + expected_units(range(30, 40))
        assert tagged(store, "orders", 0, "Tag0") == list(range(0, 40, 3))


def test_lost_units_are_made_again_when_the_store_is_opened(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(30))
    shutil.rmtree(tmp_path / DIRECTORY)
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(30, 40))
        assert units_of(store, "orders") == expected_units(range(40))


@pytest.mark.parametrize("lost", [[1], [1, 2], [0, 2]])
def test_units_of_lost_files_are_made_again_whatever_files_follow(tmp_path, lost):  # noqa: F811
    """And stay where they are made: a crash that lost nothing moves none."""
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(100))
    directory = tmp_path / DIRECTORY / "orders" / "0"
    for number in lost:
        (directory / f"{number * EXT_FILE_BYTES:020d}").unlink()
    left = []
    for stop in (110, 120, 130):
        mark_crashed(tmp_path)
        with open_extended(tmp_path, Clock()) as store:
            assert units_of(store, "orders") == expected_units(range(stop - 10))
            left.append([entry.tags_code for _, entry in store.queue_entries("orders", 0)])
            put(store, range(stop - 10, stop))
        assert units_on_disk(tmp_path, "orders") == expected_units(range(stop))
    assert left[2][:110] == left[1], "no unit was moved"
    assert left[1] == sorted(left[1]), "they follow each other as their entries do"


def test_a_size_that_differs_from_the_files_is_refused(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(3))
    other = msgspec.structs.replace(EXTENDED, mapped_file_size_consume_queue_ext=1024)
    with pytest.raises(ConfigError, match=r"mappedFileSizeConsumeQueueExt is 1024, but .* has 512"):
        open_extended(tmp_path, Clock(), other)
    learnt = msgspec.structs.replace(EXTENDED, mapped_file_size_consume_queue_ext=None)
    with open_extended(tmp_path, Clock(), learnt) as store:
        put(store, range(3, 60))
    assert units_on_disk(tmp_path, "orders") == expected_units(range(60))


def test_an_entry_without_room_for_its_unit_keeps_the_tags_code(tmp_path):  # noqa: F811
    disk = FaultyDisk(nth("allocate", 0, errno.ENOSPC, below=DIRECTORY))
    with open_extended(tmp_path, Clock(), disk=disk) as store:
        put(store, range(4))
        disk.fails = lambda _call, _path, _number: None
        put(store, range(4, 6))
        assert units_of(store, "orders") == [None] * 4 + expected_units(range(4, 6))
        assert tagged(store, "orders", 0, "Tag1") == [1, 4]
    mark_crashed(tmp_path)
    open_extended(tmp_path, Clock()).close()
    assert units_on_disk(tmp_path, "orders") == [None] * 4 + expected_units(range(4, 6))


def test_a_bit_map_that_is_too_long_leaves_the_tags_code(tmp_path):  # noqa: F811
    config = msgspec.structs.replace(
        EXTENDED, enable_calc_filter_bit_map=True, expect_consumer_num_use_filter=2000
    )
    with open_extended(tmp_path, Clock(), config) as store:
        store.consumer_filters.register("orders", "billing", lambda _: True)
        put(store, range(2))
        put(store, range(2), topic="others")
        assert units_of(store, "orders") == [None] * 2
        assert units_of(store, "others") == expected_units(range(2))


def test_files_of_expired_units_go_with_the_queue_s(tmp_path):  # noqa: F811
    config = msgspec.structs.replace(EXTENDED, retention=True, delete_when="00")
    clock = Clock()
    with open_extended(tmp_path, clock, config) as store:
        for number in range(300):
            store.put(Message(topic="orders", body=b"x" * 200, tags=f"Tag{number % 3}"))
        store.wait_dispatched()
        clock.now_ms += 100 * 3_600_000
        store.delete_expired_files()
        retention = parts_of(store).retention
        deleted = [one.path for _ in range(9) for one in retention.run_once()]
        first = store.min_offset("orders", 0)
        assert first > 100
        assert any(DIRECTORY in path.parts for path in deleted)
        left = units_of(store, "orders")[first - store._queues.get(("orders", 0)).first_offset :]
        assert None not in left
        assert len(left) == 300 - first
        bases = [int(p.name) for p in (tmp_path / DIRECTORY / "orders" / "0").iterdir()]
        assert min(bases) == first // 25 * EXT_FILE_BYTES
        put(store, range(300, 310))
    assert units_on_disk(tmp_path, "orders")[-1] is not None


def test_a_file_with_just_enough_room_for_the_mark_of_its_end_has_it(tmp_path):  # noqa: F811
    config = msgspec.structs.replace(EXTENDED, mapped_file_size_consume_queue_ext=504)
    with open_extended(tmp_path, Clock(), config) as store:
        put(store, range(26))
    file = tmp_path / DIRECTORY / "orders" / "0" / f"{0:020d}"
    assert file.read_bytes()[500:] == b"\xff\xff\0\0"


def test_a_missing_queue_file_keeps_no_unit_and_takes_none_of_the_next_one_s(tmp_path):  # noqa: F811
    """The first address is looked for past it, where no entry before it has one."""
    count = QUEUE_FILE_BYTES // 20
    with open_extended(tmp_path, Clock(), CONFIG) as store:
        put(store, range(count))
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(count, 4 * count))
        queue = store._queues.get(("orders", 0))
        first, _, *others = queue.files.files
        queue.files.files = (first, *others)
        gone, _ = queue.extension.delete_expired(0, force_after_ms=0, now_ms=0)
        assert len(gone) == count // 25 > 0
        assert units_of(store, "orders")[count:] == expected_units(range(2 * count, 4 * count))


def test_units_without_an_entry_become_zeros(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(30))
    right = queue_files(tmp_path)
    directory = tmp_path / DIRECTORY / "orders" / "0"
    stale = encode_unit(ExtensionUnit(1, 2))
    last = directory / f"{EXT_FILE_BYTES:020d}"
    content = last.read_bytes()
    last.write_bytes(content[:100] + stale + content[120:])
    (directory / f"{2 * EXT_FILE_BYTES:020d}").write_bytes(stale.ljust(EXT_FILE_BYTES, b"\0"))
    mark_crashed(tmp_path)
    open_extended(tmp_path, Clock()).close()
    assert queue_files(tmp_path) == right


# --- who uses it --------------------------------------------------------------------------------


def test_a_message_s_bit_map_says_whose_filter_it_passes(tmp_path):  # noqa: F811
    config = msgspec.structs.replace(EXTENDED, enable_calc_filter_bit_map=True)
    clock = Clock()
    with open_extended(tmp_path, clock, config) as store:
        filters = store.consumer_filters
        filters.register("orders", "billing", lambda properties: properties["TAGS"] == "Tag1")
        clock.now_ms += 1
        put(store, range(9))
        units = units_of(store, "orders")
        matching = [
            n for n, unit in enumerate(units) if filters.may_match("orders", "billing", unit)
        ]
        assert matching == [1, 4, 7]
        assert [len(unit.bit_map) for unit in units] == [14] * 9
    before = queue_files(tmp_path)
    mark_crashed(tmp_path)
    with open_extended(tmp_path, clock, EXTENDED):
        assert queue_files(tmp_path) == before, "they stay where filters are not known any more"


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"enable_calc_filter_bit_map": False}, 0),
        ({"max_error_rate_of_bloom_filter": 1}, 39),  # 32 · log2(100) · log2(e) bits
        ({"expect_consumer_num_use_filter": 128}, 54),
    ],
)
def test_settings_say_how_long_a_bit_map_is(tmp_path, settings, size):  # noqa: F811
    bit_maps = {"enable_calc_filter_bit_map": True}
    config = msgspec.structs.replace(EXTENDED, **bit_maps | settings)
    with open_extended(tmp_path, Clock(), config) as store:
        store.consumer_filters.register("orders", "billing", lambda _: True)
        put(store, range(1))
        assert [len(unit.bit_map) for unit in units_of(store, "orders")] == [size]


def test_a_delayed_message_s_time_stands_in_its_unit(tmp_path):  # noqa: F811
    clock = Clock()
    with open_extended(tmp_path, clock) as store:
        put(store, range(3), properties={"DELAY": "2"})
        (unit, *_) = units_of(store, DELAY_TOPIC, 1)
        assert unit == ExtensionUnit(START_MS + 5_000, START_MS)
        store.delays.turn()
        clock.now_ms += 4_999
        store.delays.turn()
        store.wait_dispatched()
        assert store.max_offset("orders", 0) == 0
        clock.now_ms += 1
        store.delays.turn()
        store.wait_dispatched()
        assert store.max_offset("orders", 0) == 3


def test_a_delayed_message_whose_unit_is_lost_is_due_after_its_delay(tmp_path):  # noqa: F811
    clock = Clock()
    with open_extended(tmp_path, clock) as store:
        put(store, range(3), properties={"DELAY": "2"})
    (path,) = (tmp_path / DIRECTORY / DELAY_TOPIC / "1").iterdir()
    path.write_bytes(bytes(EXT_FILE_BYTES))
    with open_extended(tmp_path, clock) as store:
        store.delays.turn()
        clock.now_ms += 4_999
        assert store.delays.turn() == pytest.approx(0.001)
        clock.now_ms += 1
        store.delays.turn()
        store.wait_dispatched()
        assert store.max_offset("orders", 0) == 3


def test_a_listener_hears_the_tags_code_and_no_address(tmp_path):  # noqa: F811
    heard = []
    with open_extended(tmp_path, Clock()) as store:
        store.add_listener(heard.append)
        put(store, range(2))
    assert [arrival.tags_code for arrival in heard] == [tags_code("Tag0"), tags_code("Tag1")]


# --- verify, repair -----------------------------------------------------------------------------


def test_a_file_that_is_too_long_to_open_is_damage_and_cut_by_a_repair(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        for topic in ("orders", "bills", "trips"):
            put(store, range(5), topic=topic)
    path = tmp_path / DIRECTORY / "orders" / "0" / f"{0:020d}"
    with path.open("ab") as file:
        file.write(bytes(100))
    with pytest.raises(StoreDamagedError, match="wrong length"), open_extended(tmp_path, Clock()):
        pass
    verified = verify_store(tmp_path, now_ms=NOW_MS)
    assert verified.is_damaged
    assert f"has {EXT_FILE_BYTES + 100} bytes, expected {EXT_FILE_BYTES}" in str(verified.findings)
    repaired = repair_store(tmp_path, config=EXTENDED, now_ms=NOW_MS)
    assert repaired.remaining == []
    assert not verify_store(tmp_path, now_ms=NOW_MS).is_damaged
    with open_extended(tmp_path, Clock()) as store:
        for topic in ("orders", "bills", "trips"):
            assert units_of(store, topic) == expected_units(range(5))


@pytest.mark.parametrize("config", [CONFIG, EXTENDED])
@pytest.mark.parametrize("wrong", ["zeros", "another code"])
def test_a_wrong_unit_is_found_and_made_again(tmp_path, wrong, config):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(60))
    right = queue_files(tmp_path)
    path = tmp_path / DIRECTORY / "orders" / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(20) if wrong == "zeros" else content[180:200]
    path.write_bytes(content)
    found = verify_store(tmp_path, now_ms=NOW_MS).findings
    assert {one.kind for one in found} == {"queue-ext", "queue-missing", "queue-wrong"}
    repaired = repair_store(tmp_path, config=config, now_ms=NOW_MS)
    assert repaired.remaining == []
    kinds = {one.kind for one in verify_store(tmp_path, now_ms=NOW_MS).findings}
    assert kinds == {"queue-ext"}
    with open_extended(tmp_path, Clock(), config) as store:
        assert tagged(store, "orders", 0, "Tag1") == list(range(1, 60, 3))
        if config is EXTENDED:
            assert units_of(store, "orders") == expected_units(range(60))
    assert (queue_files(tmp_path) == right) is (config is EXTENDED)


def test_queues_are_rebuilt_with_their_extensions(tmp_path):  # noqa: F811
    with open_extended(tmp_path, Clock()) as store:
        put(store, range(60))
    right = queue_files(tmp_path)
    report = rebuild_store(tmp_path, EXTENDED, what="queues", now_ms=NOW_MS)
    assert report.remaining == []
    assert queue_files(tmp_path) == right
    rebuild_store(tmp_path, CONFIG, what="queues", now_ms=NOW_MS)
    assert units_on_disk(tmp_path, "orders") == [None] * 60
    assert not any(DIRECTORY in name for name in queue_files(tmp_path))


def test_spark_s_rebuild_writes_plain_codes_and_loses_no_answer(tmp_path):  # noqa: F811
    config = msgspec.structs.replace(EXTENDED, enable_calc_filter_bit_map=True)

    def paid(properties):
        return properties["TAGS"] == "Tag1"

    with open_extended(tmp_path, Clock(), config) as store:
        store.consumer_filters.register("orders", "billing", paid)
        put(store, range(60))
        put(store, range(3), properties={"DELAY": "2"})
    right = files_below(tmp_path, DIRECTORY)
    report = rebuilt_here(tmp_path, config=CONFIG)
    assert not files_below(tmp_path, DIRECTORY)
    assert files_below(tmp_path / report.kept, DIRECTORY) == right != {}
    assert verify_store(tmp_path, now_ms=NOW_MS).findings == []
    assert units_on_disk(tmp_path, "orders") == [None] * 60
    clock = Clock(START_MS + 1)
    for numbers in (range(60, 90), range(90, 120)):
        with open_extended(tmp_path, clock, config) as store:
            filters = store.consumer_filters
            filters.register("orders", "billing", paid)
            clock.now_ms += 1
            put(store, numbers)
            stop = numbers.stop
            assert tagged(store, "orders", 0, "Tag1") == list(range(1, stop, 3))
            units = units_of(store, "orders")
            assert [unit is None for unit in units] == [n < 60 for n in range(stop)]
            matching = [filters.may_match("orders", "billing", unit) for unit in units]
            asked = [n < numbers.start or n % 3 == 1 for n in range(stop)]
            assert matching == asked  # those of before it was registered are all read
            [(_, entry), *_] = store.queue_entries(DELAY_TOPIC, 1)
            assert entry.tags_code == START_MS + 5_000
        assert {one.kind for one in verify_store(tmp_path, now_ms=NOW_MS).findings} == {"queue-ext"}
        mark_crashed(tmp_path)
    rebuild_store(tmp_path, EXTENDED, what="queues", now_ms=NOW_MS)
    assert None not in units_on_disk(tmp_path, "orders")
