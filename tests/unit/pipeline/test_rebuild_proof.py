"""A proof changes nothing, finds every difference, and knows the reasons that are no fault."""

from __future__ import annotations

import struct

import pytest

from rocketstore import StoreConfig
from rocketstore.errors import StoreLockedError
from rocketstore.format.queue_entry import KEPT_PLACE_BYTES, encode_entry
from rocketstore.pipeline.jobs.rebuild.proving import prove_with
from support.golden_stores import STORES, golden_store
from support.rebuild_oracle import Here, tree
from support.small_store import START_MS, Clock, build_store, copy_store, open_store, overwrite


def proved(store, **keywords):
    return prove_with(Here(), store, now_ms=START_MS, **keywords)


def kinds(report):
    return {one.kind for one in report.differences}


def queue_file(store, topic="Topic0", base=0):
    return store / "consumequeue" / topic / "0" / f"{base:020d}"


def put_bytes(path, position, content):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


@pytest.fixture
def store(tmp_path):
    build_store(tmp_path / "store", 500, Clock())
    return tmp_path / "store"


def test_a_store_of_ours_is_the_same_and_no_byte_of_it_changes(store):
    before = tree(store)
    report = proved(store, max_split_bytes=7000)
    assert report.differences == []
    assert tree(store) == before


EXPECTED = {
    "cqext": {"extension"},
    "multidispatch": {"multi-dispatch"},
    "expired/files_removed": {"expired"},
    "expired/files_and_cq_removed": {"expired", "K-I8"},
    "expired/deleted_by_store": {"expired"},
    # What 4.9.3 leaves after a crash: keys that it forgets (K-I1), queues that it does not make
    # anew, entries behind the end of the log.
    "crash/bitflip_middle_last_file": {"K-I8", "missing", "lost"},
    "crash/cq_behind": {"K-I8"},
    "crash/cq_deleted": {"K-I8", "missing"},
    "crash/garbage_tail": {"K-I8"},
    "crash/index_deleted": {"missing"},
    "crash/noabort_torn": {"stale"},
    "crash/plain": {"K-I8"},
    "crash/torn_body_crc": {"K-I8", "stale"},
    "crash/torn_half_zero": {"K-I8", "stale"},
}


@pytest.mark.parametrize("name", STORES)
def test_what_java_wrote_differs_only_for_reasons_that_are_known(name):
    report = proved(golden_store(name)[0], max_split_bytes=9000)
    assert kinds(report) == EXPECTED.get(name, set())
    assert report.is_damaged == (name == "crash/bitflip_middle_last_file")


def test_with_multi_dispatch_on_its_queues_are_the_same():
    config = StoreConfig(enable_multi_dispatch=True, enable_lmq=True)
    assert proved(golden_store("multidispatch")[0], config=config).differences == []


def test_other_delay_levels_and_tag_hashes_are_told_apart(tmp_path):
    store = copy_store(golden_store("delay")[0], tmp_path / "store")
    config = StoreConfig(message_delay_level="7s 9s")
    assert kinds(proved(store, config=config)) == {"delay-levels"}
    path = next((store / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*"))
    put_bytes(path, 12, struct.pack(">q", 12345))
    assert kinds(proved(store)) == {"K-S1"}
    assert proved(store).findings == []


def test_an_entry_that_says_something_else_is_a_finding(store):
    put_bytes(queue_file(store), 40, encode_entry(1268, 317, 7))
    [found] = proved(store).findings
    assert (found.kind, found.place, found.first, found.row_count) == ("unknown", "Topic0/0", 2, 1)
    assert found.detail.startswith("found (1268, 317, 7), expected (1268, 317, ")


def test_entries_that_are_missing_are_counted_over_files(store):
    queue_file(store, base=2000).unlink()
    put_bytes(queue_file(store, base=4000), 0, bytes(100))
    [found] = proved(store).findings
    assert (found.kind, found.first, found.row_count) == ("missing", 100, 105)


def test_entries_behind_the_log_are_stale(store):
    put_bytes(queue_file(store, base=4000), 1000, encode_entry(500_000, 317, 7))
    assert [one.kind for one in proved(store).findings] == ["stale"]


def test_a_kept_place_is_no_finding(store):
    put_bytes(queue_file(store, base=4000), 1000, KEPT_PLACE_BYTES)
    report = proved(store)
    assert (kinds(report), report.findings) == ({"kept-place"}, [])


def test_records_lost_in_damage_are_told_and_are_damage(store):
    overwrite(store, 634 + 150, b"\xff" * 8)
    report = proved(store)
    assert kinds(report) == {"lost"}
    assert (report.findings, report.is_damaged) == ([], True)


def test_a_queue_file_of_another_length_is_a_finding(store):
    with queue_file(store).open("r+b") as file:
        file.truncate(1000)
    assert {one.kind for one in proved(store).findings} == {"file-size", "missing"}


def index_file(store, number=0):
    return sorted((store / "index").iterdir())[number]


ITEMS_AT = 40 + 100 * 4


@pytest.mark.parametrize(
    ("position", "content", "kind"),
    [
        (ITEMS_AT + 20 * 3, struct.pack(">i", 5), "missing"),
        (ITEMS_AT + 20 * 3 + 12, struct.pack(">i", 500), "time"),
        (ITEMS_AT + 20 * 300 + 16, struct.pack(">i", 0), "chain"),
        (36, struct.pack(">i", 200), "missing"),
        (40, bytes(400), "chain"),
    ],
)
def test_what_is_wrong_in_an_index_file_is_found(store, position, content, kind):
    put_bytes(index_file(store), position, content)
    assert kind in {one.kind for one in proved(store).findings}


def test_the_time_of_a_files_first_item_may_be_javas(store):
    put_bytes(index_file(store, 1), ITEMS_AT + 20 + 12, struct.pack(">i", 77))
    report = proved(store)
    assert (kinds(report), report.findings) == ({"K-I5"}, [])


def test_a_missing_index_is_a_finding(store):
    for path in (store / "index").iterdir():
        path.unlink()
    config = StoreConfig(max_hash_slot_num=100, max_index_num=400)
    [found] = proved(store, config=config).findings
    assert (found.area, found.kind, found.row_count) == ("index", "missing", 500)


def test_a_store_in_use_is_refused(store):
    with open_store(store, Clock(START_MS + 1000)), pytest.raises(StoreLockedError):
        proved(store)
