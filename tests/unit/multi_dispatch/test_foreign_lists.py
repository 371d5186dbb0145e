"""Lists of extra queues that another writer stored: whatever they say, nothing else is lost."""

import shutil

import pytest

from rocketstore import Message, repair_store, verify_store
from support import replicas
from support.audit_runs import audited
from support.clock import START_MS
from support.configured_store import LOG_FILE_BYTES, open_small, small_config
from support.patience import wait_until
from support.said import capture_logs
from support.synthetic_log import SyntheticLog

ON = {"enable_multi_dispatch": True, "enable_lmq": True}
NAMES, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
TOPIC = "orders"


def listed(names, numbers):
    text = f"{NAMES}\x01{names}" + ("" if numbers is None else f"\x02{NUMBERS}\x01{numbers}")
    return text.encode()


def foreign_store(root, names, numbers):
    """Return a store of four messages, the second with a list, whose queues are to be made."""
    log = SyntheticLog()
    for number in range(4):
        log.add(
            topic=TOPIC.encode(), queue_offset=number, body=b"%d" % number,
            properties=listed(names, numbers) if number == 1 else b"",
            store_timestamp_ms=START_MS + number,
        )  # fmt: skip
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log.data.ljust(LOG_FILE_BYTES, b"\0"))
    return root


@pytest.mark.parametrize(
    ("names", "numbers", "extra"),
    [
        ("%LMQ%a", "x", {}),
        ("%LMQ%a", "-1", {}),
        ("%LMQ%a", "9223372036854775808", {}),
        ("%LMQ%a", None, {}),
        ("%LMQ%a,b", "0", {}),
        ("%LMQ%a", "0,1,2", {}),
        (" ", "0", {}),
        ("../x", "0", {}),
        (TOPIC, "1", {}),
        (",copies", "0,0", {("copies", 0): 1}),
        ("copies,%LMQ%a,", "0,0", {("copies", 0): 1, ("%LMQ%a", 0): 1}),  # as Java splits it
        ("copies,copies", "0,0", {("copies", 0): 1}),
        ("copies,%LMQ%a", "x,0", {("%LMQ%a", 0): 1}),
        ("copies", "7", {("copies", 0): 8}),
    ],
)
def test_a_list_that_does_not_fit_harms_nothing_else(tmp_path, names, numbers, extra):
    root = foreign_store(tmp_path / "store", names, numbers)
    for _ in range(2):
        with open_small(root, **ON) as store:
            ends = {tuple(key): store.max_offset(*key) for key in store.queues()}
            assert ends == {(TOPIC, 0): 4, **extra}
            assert [one.body for one in store.get(TOPIC, 0, 0).messages] == [b"0", b"1", b"2", b"3"]
            for key in extra:
                assert store.get(*key, store.max_offset(*key) - 1).messages[0].body == b"1"
    config = small_config(**ON)
    found = [one.kind for one in verify_store(root, config, now_ms=START_MS + 9).findings]
    assert found == (["queue-filler"] if numbers == "7" else [])
    assert [one.kind for one in audited(root, config).findings] == found
    assert repair_store(root, config=config, now_ms=START_MS + 9).actions == []


def test_names_without_as_many_numbers_are_said(tmp_path):
    root = foreign_store(tmp_path / "store", "a,b", "0")
    with capture_logs() as said, open_small(root, **ON):
        pass
    assert [line["physical_offset"] for line in said if "no_extra" in line["event"]] != []


MISFITS = [
    ("%LMQ%a", "x"),
    ("%LMQ%a,b", "0"),
    ("../x", "0"),
    ("%LMQ%a", None),
    ("copies,b", "0,-1"),
]


def test_a_slave_takes_in_records_whose_lists_do_not_fit(tmp_path):
    log = SyntheticLog()
    for number, (names, numbers) in enumerate(MISFITS):
        log.add(topic=TOPIC.encode(), queue_offset=number, properties=listed(names, numbers))
    (tmp_path / "master" / "commitlog").mkdir(parents=True)
    content = log.data.ljust(replicas.LOG_FILE_BYTES, b"\0")
    (tmp_path / "master" / "commitlog" / f"{0:020d}").write_bytes(content)
    with (
        replicas.open_master(tmp_path / "master", **ON) as master,
        replicas.open_slave(tmp_path / "slave", replicas.address_of(master), **ON) as slave,
    ):
        told = []
        slave.add_listener(lambda arrival: told.append((arrival.topic, arrival.next_offset)))
        master.put(Message(topic=TOPIC, body=b"after"))
        replicas.wait_for_slave(master, slave)
        slave.wait_dispatched()
        own = {(TOPIC, 0): len(MISFITS) + 1, ("copies", 0): 1}
        assert {tuple(key): slave.max_offset(*key) for key in slave.queues()} == own
        last = (TOPIC, len(MISFITS) + 1)
        wait_until(lambda: told[-1:] == [last], "listeners are told after a message can be read")
        assert slave.get(TOPIC, 0, len(MISFITS)).messages[0].body == b"after"
    assert not verify_store(tmp_path / "slave").has_warnings


def queue_files(root):
    files = (path for path in (root / "consumequeue").rglob("0*") if path.is_file())
    return {path.relative_to(root): path.read_bytes() for path in files}


@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/%LMQ%a", "consumequeue/copies"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_queues_that_are_made_again_are_what_they_were(tmp_path, gone, is_clean):
    root, config = tmp_path / "store", small_config(**ON)
    with open_small(root, **ON) as store:
        for number in range(120):
            names = ("%LMQ%a", "%LMQ%b,copies", "copies")[number % 3]
            store.put(Message(topic=TOPIC, body=bytes(900), properties={NAMES: names}), 1)
        store.wait_dispatched()
    before = queue_files(root)
    assert len(before) == 5
    shutil.rmtree(root / gone)
    if not is_clean:
        (root / "abort").touch()
    with open_small(root, **ON) as store:
        assert store.next_queue_offset("%LMQ%a", 0) == 40
        assert store.next_queue_offset("copies", 1) == 80
    assert queue_files(root) == before
    assert verify_store(root, config, now_ms=START_MS).findings == []
    assert list(audited(root, config).findings) == []
