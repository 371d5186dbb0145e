"""A proof of a store on an object store says what one on a disk says, and asks for no write."""

from __future__ import annotations

import struct
import tracemalloc
from collections import Counter

import pytest

from rocketstore import Message, StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from rocketstore.pipeline.jobs.rebuild import index_proof, item_turns
from rocketstore.pipeline.jobs.rebuild.proving import prove_with
from support.golden_stores import STORES, golden_store
from support.rebuild_oracle import Here
from support.s3_server import running_s3
from support.small_store import (
    START_MS,
    Clock,
    build_store,
    copy_store,
    open_store,
    overwrite,
    put_all,
)


def proved(store, **keywords):
    return prove_with(Here(), store, now_ms=START_MS, **keywords)


def told(report):
    """Return all that a report says but where and how long."""
    return [value for name, value in report._asdict().items() if name not in {"store", "seconds"}]


def without_paths(report):
    """Return what is told, damage without the path of its file.

    An item's time is told to the second on a disk, where it is read from an index file.
    """
    *others, differences, damage = told(report)
    plain = [one._replace(detail="") if one.area == "index" else one for one in differences]
    return [*others, sorted(plain), [(one.start, one.stop, one.reason) for one in damage]]


@pytest.fixture
def store(tmp_path):
    """Two queues of three files each, two index files, ten log files."""
    build_store(tmp_path / "store", 500, Clock())
    return tmp_path / "store"


def proved_there(s3, store, **keywords):
    """Prove a copy on the object store; it takes no write meanwhile."""
    s3.objects.clear()
    s3.put_tree(store, "store")
    before = dict(s3.objects)
    s3.writes_left = 0
    report = proved(s3.uri("store"), **keywords)
    assert s3.objects == before
    assert {request.method for request in s3.take()} <= {"GET", "HEAD"}
    return report


@pytest.fixture(scope="module")
def golden_s3():
    with running_s3() as server:
        yield server


@pytest.mark.parametrize("name", STORES)
def test_what_java_wrote_differs_as_on_a_disk_and_nothing_is_written(golden_s3, name):
    store, _ = golden_store(name)
    expected = proved(store, max_split_bytes=9000)
    found = proved_there(golden_s3, store, max_split_bytes=9000)
    assert without_paths(found) == without_paths(expected)


def test_settings_tell_as_on_a_disk(golden_s3, tmp_path):
    config = StoreConfig(enable_multi_dispatch=True, enable_lmq=True)
    store, _ = golden_store("multidispatch")
    assert proved_there(golden_s3, store, config=config).differences == []
    delayed = copy_store(golden_store("delay")[0], tmp_path / "delay")
    config = StoreConfig(message_delay_level="7s 9s")
    found = proved_there(golden_s3, delayed, config=config)
    assert {one.kind for one in found.differences} == {"delay-levels"}
    path = next((delayed / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*"))
    put_bytes(path, 12, struct.pack(">q", 12345))
    assert {one.kind for one in proved_there(golden_s3, delayed).differences} == {"K-S1"}


def put_bytes(path, position, content):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def index_file(store, number=0):
    return sorted((store / "index").iterdir())[number]


ITEMS_AT = 40 + 100 * 4
FAULTS = {
    "an entry": lambda store: put_bytes(store / "consumequeue/Topic0/0" / f"{0:020d}", 45, b"xyz"),
    "a queue file": lambda store: (store / "consumequeue/Topic0/0" / f"{2000:020d}").unlink(),
    "a short queue file": lambda store: cut(store / "consumequeue/Topic1/0" / f"{0:020d}", 1015),
    "a hash": lambda store: put_bytes(index_file(store), ITEMS_AT + 60, struct.pack(">i", 5)),
    "a time": lambda store: put_bytes(index_file(store), ITEMS_AT + 72, struct.pack(">i", 500)),
    "a first time": lambda store: put_bytes(
        index_file(store, 1), ITEMS_AT + 32, struct.pack(">i", 77)
    ),
    "a link": lambda store: put_bytes(index_file(store), ITEMS_AT + 6016, struct.pack(">i", 0)),
    "a count": lambda store: put_bytes(index_file(store), 36, struct.pack(">i", 200)),
    "slots": lambda store: put_bytes(index_file(store), 40, bytes(400)),
    "a negative hash": lambda store: put_bytes(
        index_file(store), ITEMS_AT + 60, struct.pack(">i", -5)
    ),
    "a short index file": lambda store: cut(index_file(store, 1), 3000),
    "a header's end": lambda store: put_bytes(index_file(store), 24, struct.pack(">q", 2**62)),
    "a header's earlier end": lambda store: put_bytes(index_file(store), 24, bytes(8)),
    "the index": lambda store: [path.unlink() for path in (store / "index").iterdir()],
    "a record": lambda store: overwrite(store, 634 + 150, b"\xff" * 8),
    "the log's front": lambda store: [
        path.unlink() for path in sorted((store / "commitlog").iterdir())[:4]
    ],
    "a log file": lambda store: sorted((store / "commitlog").iterdir())[4].unlink(),
}


def cut(path, size):
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_as_on_a_disk(s3, store, fault):
    FAULTS[fault](store)
    config = StoreConfig(max_hash_slot_num=100, max_index_num=400)
    expected = proved(store, config=config, max_split_bytes=7000)
    found = proved_there(s3, store, config=config, max_split_bytes=7000)
    # Where an index file ends is no difference: it only says what is compared together.
    assert expected.differences or fault.startswith("a header")
    if fault == "a count":
        # What a file lost is told there, by its header's end, and not in the next one.
        assert totals(found) == totals(expected)
    else:
        assert without_paths(found) == without_paths(expected)


def totals(report):
    counts = Counter()
    for one in report.differences:
        counts[one.kind] += one.row_count
    return counts


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_pieces_of_any_size_tell_the_same(s3, store, monkeypatch, rows):
    for fault in ("a time", "a first time", "a log file"):
        FAULTS[fault](store)
    expected = proved(store)
    monkeypatch.setattr(item_turns, "TURN_ROWS", rows)
    monkeypatch.setattr(item_turns, "PIECE_ITEMS", 3 * rows)
    monkeypatch.setattr(index_proof, "PIECE_ITEMS", 3 * rows)
    found = proved_there(s3, store)
    assert [one for one in found.differences if one.area == "queue"] == [
        one for one in expected.differences if one.area == "queue"
    ]
    items = [(one.place, one.kind) for one in found.differences if one.area == "index"]
    # The log's hole is told by both; times beside it only by the one that looks at less at a time.
    assert set(items) >= {
        (one.place, one.kind) for one in expected.differences if one.area == "index"
    }
    assert any(kind == "time" for _, kind in items)


def test_queues_without_a_record_are_compared_too(s3, tmp_path):
    store, clock = tmp_path / "store", Clock()
    with open_store(store, clock) as opened:
        put_all(opened, [Message(topic="Old", body=b"x")] * 120, clock)
        put_all(opened, [Message(topic="New", body=b"x" * 300)] * 100, clock)
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    report = proved_there(s3, store)
    assert ("Old/0", "expired", 120) in {
        (one.place, one.kind, one.row_count) for one in report.differences
    }
    assert without_paths(report) == without_paths(proved(store))


@pytest.mark.parametrize("key", ["commitlog", "consumequeue/Topic0/0", "index"])
def test_a_store_that_changes_meanwhile_is_no_store_to_prove(s3, store, key):
    s3.put_tree(store, "store")

    class Changing(Here):
        def exchange(self, *what):
            table = super().exchange(*what)
            s3.objects[f"store/{key}/{50_000_000:020d}"] = b"another"
            return table

    with pytest.raises(StoreError, match="changed while the store was compared"):
        prove_with(Changing(), s3.uri("store"), now_ms=START_MS)


def test_what_cannot_be_proved_is_refused(s3, store):
    s3.put_tree(store, "store")
    with pytest.raises(ConfigError, match="no file is written in place"):
        proved(s3.uri("store"), plan="posix")
    with pytest.raises(NotAStoreError, match="no commitlog"):
        proved(s3.uri("nothing"))
    s3.objects["store/rebuild/placing.json"] = b"{}"
    with pytest.raises(StoreError, match="half rebuilt"):
        proved(s3.uri("store"))
    for key in [key for key in s3.objects if key.startswith("store/commitlog/")]:
        s3.objects[key[: key.rindex("/")] + "/no-offset"] = s3.objects.pop(key)
    del s3.objects["store/rebuild/placing.json"]
    with pytest.raises(StoreDamagedError, match="its queues have entries"):
        proved(s3.uri("store"))


def test_a_turn_is_compared_in_pieces_and_not_as_a_whole(monkeypatch):
    import numpy as np  # noqa: PLC0415 - beside its only use

    monkeypatch.setattr(item_turns, "TURN_ROWS", 10_000)
    log = item_turns_log()
    turns = item_turns.Turns(("a",), (1,))

    def pieces(count):
        for at in range(count):
            physical = np.repeat(np.arange(at * 1000, at * 1000 + 1000), 2)
            number = np.tile(np.array([0, 5]), 1000)
            yield physical, physical * 7, number, physical * 1000

    peaks = []
    for count in (20, 400):
        tracemalloc.start()
        assert item_turns.compare_turn(log, turns, 1, pieces(count)) == ([], count * 1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def item_turns_log():
    from rocketstore.pipeline.jobs.rebuild.proof import LogFacts  # noqa: PLC0415 - as above

    return LogFacts("/nowhere", (), 0, 2**60, ())
