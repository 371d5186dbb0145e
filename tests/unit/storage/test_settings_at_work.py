"""Settings reach the part that they are about."""

import shutil
import threading

import pytest

from rocketstore import (
    ConfigError,
    Message,
    MessageStore,
    RecoveryPolicy,
    StoreConfig,
    repair_store,
    verify_store,
)
from rocketstore.config import load_config
from support.clock import START_MS
from support.configured_store import LOG_FILE_BYTES, open_small, small_config
from support.inside import parts_of, workers_of
from support.patience import PATIENCE_S
from support.preallocation import wait_idle
from support.synthetic_log import record_bytes

TOPIC = "TopicTest"


def test_find_returns_as_many_messages_as_the_setting_says_unless_told_otherwise(tmp_path):
    with open_small(tmp_path / "store", max_msgs_num_batch=3) as store:
        for _ in range(65):
            store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        assert len(store.find(TOPIC, "k")) == 3
        assert len(store.find(TOPIC, "k", max_messages=65)) == 65
    for config, count in ((StoreConfig(max_msgs_num_batch=2), 2), (StoreConfig(), 64)):
        with MessageStore.open(tmp_path / "store", config, read_only=True) as reader:
            assert len(reader.find(TOPIC, "k")) == count
    with open_small(tmp_path / "store") as store:
        assert len(store.find(TOPIC, "k")) == 64


def test_a_store_without_index_finds_nothing_and_makes_no_file(tmp_path):
    with open_small(tmp_path / "store", message_index_enable=False) as store:
        store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        assert store.find(TOPIC, "k") == []
        assert not store.layout.index.exists()


def test_the_next_file_of_a_warmed_log_has_all_its_pages(tmp_path):
    with open_small(tmp_path / "store", warm_mapped_file_enable=True, threads=True) as store:
        store.put(Message(topic=TOPIC, body=bytes(LOG_FILE_BYTES - 4000)))
        workers_of(store).make_ahead()
        assert wait_idle(parts_of(store).preallocator, PATIENCE_S)
        ahead = next(iter(parts_of(store).preallocator._ready.values()))
        assert ahead.is_mapped


def test_with_several_queues_on_a_message_without_properties_is_dispatched_like_any_other(tmp_path):
    with open_small(tmp_path / "store", enable_multi_dispatch=True, enable_lmq=True) as store:
        store.put(Message(topic=TOPIC, body=b"without"))
        store.put(Message(topic=TOPIC, body=b"with", keys="k"))
        store.wait_dispatched()
        assert [m.body for m in store.get(TOPIC, 0, 0).messages] == [b"without", b"with"]
    assert not store.layout.abort.exists()


def test_a_spelling_of_older_versions_is_answered_with_the_present_one():
    with pytest.raises(ConfigError, match=r"mapedFileSizeCommitLog.*mappedFileSizeCommitLog"):
        load_config(overrides=["mapedFileSizeCommitLog=1048576"])


BODY_BYTES = 909  # a record of 1,009 bytes


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 32),
        ({"max_transfer_count_on_message_in_memory": 4}, 4),
        ({"max_transfer_bytes_on_message_in_memory": 5 * 1009}, 5),
        ({"access_message_in_memory_max_ratio": 0}, 8),
        ({"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 3}, 3),
        (
            {
                "access_message_in_memory_max_ratio": 0,
                "max_transfer_bytes_on_message_in_disk": 6 * 1009,
            },
            6,
        ),
    ],
    ids=str,
)
def test_a_page_holds_as_much_as_the_settings_say_of_recent_and_of_old_messages(
    tmp_path, settings, count
):
    with open_small(tmp_path / "store", **settings) as store:
        store.put_batch([Message(topic=TOPIC, body=bytes(BODY_BYTES))] * 40)
        store.wait_dispatched()
        assert len(store.get(TOPIC, 0, 0, 100).messages) == count


@pytest.mark.parametrize(
    ("settings", "directory"),
    [
        ({}, "commitlog"),
        ({"store_path_commit_log": "{}/elsewhere"}, "elsewhere"),
        (
            {
                "store_path_commit_log": "{}/elsewhere;{}/a",
                "read_only_commit_log_store_paths": "{}/a;{}/b",
                "multi_path_splitter": ";",
            },
            "elsewhere",
        ),
    ],
)
def test_the_log_lies_where_the_settings_say(tmp_path, settings, directory):
    given = {name: text.replace("{}", str(tmp_path)) for name, text in settings.items()}
    with open_small(tmp_path / "store", **given) as store:
        result = store.put(Message(topic=TOPIC, body=b"where"))
        places = [path.relative_to(tmp_path) for path in tmp_path.rglob(f"{0:020d}")]
    assert result.is_stored
    assert [path.parent.name for path in places] == [directory]


def test_files_have_the_sizes_of_the_settings(tmp_path):
    with open_small(
        tmp_path / "store", mapped_file_size_commit_log=5000, mapped_file_size_consume_queue=90,
        max_hash_slot_num=7, max_index_num=11,
    ) as store:  # fmt: skip
        store.put(Message(topic=TOPIC, body=b"x", keys="k"))
        store.wait_dispatched()
        layout = store.layout
        (log,) = layout.commit_log_directories[0].iterdir()
        (queue,) = (layout.consume_queue / TOPIC / "0").iterdir()
        (index,) = layout.index.iterdir()
        assert [path.stat().st_size for path in (log, queue, index)] == [5000, 100, 40 + 28 + 220]


@pytest.mark.parametrize(
    ("given", "is_running"),
    [
        ({}, False), ({"scrub_bytes_per_second": 0}, False),
        ({"scrub_bytes_per_second": 1000}, True),
    ],
)  # fmt: skip
def test_old_files_are_checked_in_the_background_when_the_setting_says_so(
    tmp_path, given, is_running
):
    with open_small(tmp_path / "store", threads=True, **given):
        names = {thread.name for thread in threading.enumerate()}
    assert ("rocketstore-scrub" in names) is is_running


@pytest.mark.parametrize("policy", RecoveryPolicy, ids=lambda policy: policy.name)
@pytest.mark.parametrize("check_crc", [True, False])
def test_recovery_goes_by_its_policy_and_looks_at_checksums_unless_told_otherwise(
    tmp_path, policy, check_crc
):
    root = tmp_path / "store"
    with open_small(root) as store:
        results = [store.put(Message(topic=TOPIC, body=bytes([n]) * 50)) for n in range(1, 4)]
        path = store.layout.commit_log_directories[0] / f"{0:020d}"
    with open_small(root, recovery_policy=policy) as store:  # after a normal exit
        is_compatible = policy is RecoveryPolicy.COMPATIBLE
        assert store.recovery.start == (store.recovery.end if is_compatible else 0)
    (root / "abort").touch()
    data = bytearray(path.read_bytes())
    data[results[1].physical_offset + 90] ^= 0xFF  # inside the body
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    with open_small(root, recovery_policy=policy, check_crc_on_recover=check_crc) as store:
        intact = store.max_physical_offset
        entered = [entry.is_message for _, entry in store.queue_entries(TOPIC, 0)]
    end = results[2].physical_offset + results[2].size
    cut = results[0].size if policy is RecoveryPolicy.COMPATIBLE and check_crc else end
    assert intact == cut
    assert entered == [True, not check_crc, True][: 3 if cut == end else 1]


def java_log(root, **fields):
    """Make the log of a store that Java left in a crash: one record."""
    path = root / "commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(record_bytes(0, **fields).ljust(LOG_FILE_BYTES, b"\0"))
    (root / "abort").touch()
    return root


@pytest.mark.parametrize(
    ("settings", "delay_ms"),
    [({}, 10_000), ({"message_delay_level": "7s 9s 11s"}, 11_000)],
    ids=["by default", "by the setting"],
)
def test_delays_of_a_java_store_are_those_of_the_setting(tmp_path, settings, delay_ms):
    topic = "SCHEDULE_TOPIC_XXXX"
    root = java_log(
        tmp_path, topic=topic.encode(), queue_id=2, properties=b"DELAY\x013",
        store_timestamp_ms=START_MS,
    )  # fmt: skip
    with open_small(root, **settings) as store:
        ((_, entry),) = store.queue_entries(topic, 2)
    assert entry.tags_code == START_MS + delay_ms


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({}, [("%LMQ%a", 0), ("Other", 3)]),
        ({"enable_multi_dispatch": True}, [("%LMQ%a", 3), ("Other", 3)]),
        ({"enable_multi_dispatch": True, "enable_lmq": True}, [("%LMQ%a", 0), ("Other", 3)]),
    ],
    ids=str,
)
def test_a_record_for_several_queues_is_in_all_of_them_whatever_the_settings_say(
    tmp_path, settings, extra
):
    names = b"INNER_MULTI_DISPATCH\x01%LMQ%a,Other\x02INNER_MULTI_QUEUE_OFFSET\x010,0"
    root = java_log(tmp_path, topic=TOPIC.encode(), queue_id=3, properties=names)
    with open_small(root, **settings) as store:
        assert sorted(store.queues()) == sorted([*extra, (TOPIC, 3)])
    # Whoever verifies may have other settings; no queue tells which were in force.
    for others in ({}, {"enable_multi_dispatch": True}, {"enable_lmq": True}):
        config = small_config(**others)
        assert verify_store(root, config, now_ms=START_MS).findings == []
        assert repair_store(root, config=config, now_ms=START_MS).actions == []
    with open_small(root, **settings) as store:
        for topic, queue_id in extra:
            assert store.max_offset(topic, queue_id) == 1
