"""Queues and index made from the log alone, in parts, are byte for byte what dispatch writes."""

import os
import shutil
import stat
import threading
import time
from collections import Counter

import msgspec
import pytest

from rocketstore import Message, StoreConfig, verify_store
from rocketstore.errors import StoreDamagedError, StoreError, StoreLockedError
from rocketstore.format.file_name import file_name
from rocketstore.format.index_file import LAST_ZONE, index_file_name
from rocketstore.format.queue_entry import KEPT_PLACE_BYTES
from rocketstore.pipeline.jobs.rebuild import rebuild_job
from rocketstore.units import MiB
from support.clock import START_MS, Clock
from support.golden_stores import LOGS, golden_root
from support.patience import PATIENCE_S
from support.rebuild_oracle import dispatched, queues_and_index
from support.rebuild_runs import RowsHere
from support.rebuild_runs import rebuilt_here as rebuilt
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    bodies,
    build_store,
    copy_store,
    messages,
    open_store,
    overwrite,
    put_all,
)
from support.trees import tree

GOLDEN_SIZES = StoreConfig(
    mapped_file_size_consume_queue=2000, max_hash_slot_num=500, max_index_num=2000
)
SPLITS = (1000, 7000, 64 * MiB)


@pytest.mark.parametrize("split", SPLITS)
def test_queues_of_many_files_are_as_dispatch_wrote_them(tmp_path, split):
    build_store(tmp_path / "store", 500, Clock())
    before = queues_and_index(tmp_path / "store")
    report = rebuilt(tmp_path / "store", max_split_bytes=split)
    assert queues_and_index(tmp_path / "store") == before
    assert (report.record_count, report.entry_count, report.index_item_count) == (500, 500, 500)
    assert not (tmp_path / "store" / "rebuild").exists()


@pytest.mark.parametrize("place", [None, "made"])
def test_a_queue_costs_a_sync_of_its_file_and_its_directories_many_side_by_side(
    tmp_path, monkeypatch, place
):
    clock = Clock()
    with open_store(tmp_path / "store", clock) as store:
        put_all(store, [Message(topic=f"Topic{number}") for number in range(60)], clock)
    synced, threads, fsync, until = Counter(), set(), os.fsync, time.monotonic() + PATIENCE_S

    def note(descriptor):
        synced[stat.S_ISDIR(os.fstat(descriptor).st_mode)] += 1
        threads.add(threading.get_ident())
        while len(threads) <= 4 and synced[False] > 4 and time.monotonic() < until:
            time.sleep(0.002)  # after the first few, others come beside it, late on a busy machine
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    rebuilt(tmp_path / "store", target=place and tmp_path / place)
    files, directories = synced[False], synced[True]
    assert 60 <= files < 60 + 10
    assert 60 + 60 <= directories < 60 + 60 + 20  # of queues, and of topics
    assert len(threads) > 4


@pytest.mark.parametrize("name", LOGS)
def test_every_golden_store_is_rebuilt_as_dispatch_would_write_it(tmp_path, name):
    source = golden_root(name)
    expected = dispatched(source, tmp_path / "expected")
    is_long = len(tree(source / "commitlog")) > 5
    for split in SPLITS[is_long:]:  # a thousand tasks for what the shorter logs show
        store = copy_store(source, tmp_path / f"{split}")
        for name_of_part in ("consumequeue", "index"):
            shutil.rmtree(store / name_of_part, ignore_errors=True)
        rebuilt(store, max_split_bytes=split, config=GOLDEN_SIZES)
        assert queues_and_index(store) == expected


def java_queues(store):
    """Return Java's queue files without what it made in advance."""
    return {name: content for name, content in tree(store / "consumequeue").items() if any(content)}


@pytest.mark.parametrize("name", ["basic", "batch", "broker", "delay", "ipv6", "transactions"])
def test_queues_are_byte_for_byte_those_that_java_wrote(tmp_path, name):
    source = golden_root(name)
    store = copy_store(source, tmp_path / "store")
    expected = java_queues(store)
    rebuilt(store, max_split_bytes=7000)
    assert java_queues(store) == expected


def test_index_files_are_named_after_the_first_store_time(tmp_path):
    clock = Clock()
    build_store(tmp_path / "store", 500, clock)
    rebuilt(tmp_path / "store")
    names = sorted(path.name for path in (tmp_path / "store" / "index").iterdir())
    assert names == [index_file_name(START_MS + first, LAST_ZONE) for first in (1, 400)]


def test_extra_queues_are_made_where_multi_dispatch_is_on(tmp_path):
    source = golden_root("multidispatch")
    config = StoreConfig(enable_multi_dispatch=True, enable_lmq=True)
    expected = dispatched(source, tmp_path / "expected", config=config)
    assert any(name.startswith("%LMQ%") for name in expected[0])
    store = copy_store(source, tmp_path / "store")
    java = java_queues(store)
    rebuilt(store, config=config, max_split_bytes=1000)
    assert queues_and_index(store) == expected
    assert java_queues(store) == java


def test_delay_levels_come_from_the_settings(tmp_path):
    source = golden_root("delay")
    config = StoreConfig(message_delay_level="7s 9s")
    expected = dispatched(source, tmp_path / "expected", config=config)
    store = copy_store(source, tmp_path / "store")
    rebuilt(store, config=config)
    assert queues_and_index(store) == expected
    assert expected != dispatched(source, tmp_path / "usual")


def test_without_an_index_the_index_stays_as_it_is(tmp_path):
    build_store(tmp_path / "store", 50, Clock())
    (tmp_path / "store" / "index" / "20200101000000000").write_bytes(b"mine")
    before = tree(tmp_path / "store" / "index")
    config = StoreConfig(message_index_enable=False, max_hash_slot_num=100, max_index_num=400)
    report = rebuilt(tmp_path / "store", config=config)
    assert tree(tmp_path / "store" / "index") == before
    assert report.index_item_count == 0


def test_a_store_whose_front_has_expired_keeps_its_queue_offsets(tmp_path):
    store = tmp_path / "store"
    build_store(store, 500, Clock())
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()
    expected = dispatched(store, tmp_path / "expected")
    rebuilt(store, max_split_bytes=7000)
    assert queues_and_index(store) == expected
    with open_store(store, Clock(START_MS + 1000)) as opened:
        found = bodies(opened, "Topic0")
        assert opened.max_offset("Topic0", 0) == 250
        assert min(found) == opened.min_offset("Topic0", 0) > 0
        assert all(int(body[:6]) == 2 * offset for offset, body in found.items())


def test_numbers_that_were_given_out_are_not_given_again(tmp_path):
    store, clock = tmp_path / "store", Clock()
    offsets = build_store(store, 500, clock)
    overwrite(store, offsets[-4], bytes(LOG_FILE_BYTES - offsets[-4] % LOG_FILE_BYTES))
    report = rebuilt(store)
    assert report.kept_places == {"Topic0/0": 2, "Topic1/0": 2}
    path = store / "consumequeue" / "Topic0" / "0" / "00000000000000004000"
    assert path.read_bytes()[960:1000] == 2 * KEPT_PLACE_BYTES
    with open_store(store, clock) as opened:
        put_all(opened, messages(1, first=500), clock)
        assert max(bodies(opened, "Topic0")) == 250
    assert rebuilt(store).kept_places == {"Topic1/0": 2}


class Seen(RowsHere):
    """Rows whose targets are noted."""

    targets: set[bytes]

    def change(self, blocks):
        type(self).targets = {row["target"] for row in blocks}
        return blocks


def remove_front(store, offsets):
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()


def lose_end(store, offsets):
    overwrite(store, offsets[-4], bytes(LOG_FILE_BYTES - offsets[-4] % LOG_FILE_BYTES))


def state_other_number(store, offsets):
    overwrite(store, offsets[101] + 20, (77).to_bytes(8))  # of Topic1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (None, {b"Topic0": [0, 1, 2], b"Topic1": [0, 1, 2]}),
        (remove_front, {b"Topic0": [0, 1, 2], b"Topic1": [0, 1, 2]}),
        (lose_end, {b"Topic0": [0, 1, 2], b"Topic1": [0, 1, 2]}),
        (state_other_number, {b"Topic0": [0, 1, 2], b"Topic1": []}),
    ],
)
def test_several_tasks_write_a_long_queue(tmp_path, monkeypatch, s3, change, parts):
    store = tmp_path / "store"
    offsets = build_store(store, 500, Clock())
    if change is not None:
        change(store, offsets)
    shutil.copytree(store, tmp_path / "other")
    expected = rebuilt(tmp_path / "other", max_split_bytes=7000)
    monkeypatch.setattr(rebuild_job, "PART_ENTRIES", 199)  # of files of 100
    report = rebuilt(store, Seen, max_split_bytes=7000, target=tmp_path / "made")
    assert queues_and_index(tmp_path / "made") == queues_and_index(tmp_path / "other")
    for topic, numbers in parts.items():
        names = [b"q%b/0\0%d\0" % (topic, number) for number in numbers]
        names = [*names[:-1], names[-1] + b"last"] if names else [b"q%b/0" % topic]
        assert {one for one in Seen.targets if one.startswith(b"q" + topic)} == {*names}
    known = {"target": "", "seconds": 0, "kept": None, "store": report.store}
    assert msgspec.structs.replace(report, **known) == msgspec.structs.replace(expected, **known)
    rebuilt(store, max_split_bytes=7000, target=s3.uri("made"))
    made = s3.tree("made")
    assert {path: made[path] for path in made if path.startswith("consumequeue/")} == {
        f"consumequeue/{path}": content
        for path, content in queues_and_index(tmp_path / "made")[0].items()
    }


def test_a_queue_whose_records_have_all_expired_goes_on_with_its_numbers(tmp_path):
    store, clock = tmp_path / "store", Clock()
    with open_store(store, clock) as opened:
        put_all(opened, [Message(topic="Old", body=b"x")] * 120, clock)
        put_all(opened, messages(200), clock)
    old = tree(store / "consumequeue" / "Old")
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    report = rebuilt(store)
    assert report.kept_places == {"Old/0": 20}
    name = "0/00000000000000002000"
    assert tree(store / "consumequeue" / "Old") == {name: old[name]}
    with open_store(store, clock) as opened:
        assert opened.max_offset("Old", 0) == 120
        put_all(opened, [Message(topic="Old", body=b"y")], clock)
        assert bodies(opened, "Old") == {120: b"y"}


def test_a_queue_without_a_record_in_the_log_is_named(tmp_path):
    store = tmp_path / "store"
    build_store(store, 500, Clock())
    gone = store / "consumequeue" / "Gone" / "3"
    gone.mkdir(parents=True)
    (gone / "00000000000000000000").write_bytes(bytes(2000))
    report = rebuilt(store)
    assert report.gone_queues == ["Gone/3"]
    assert (store / report.kept / "consumequeue" / "Gone" / "3").is_dir()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("places", [(5000,), (200, 17000, 40100), tuple(range(100, 160000, 9000))])
def test_after_damage_it_goes_on_as_dispatch_does(tmp_path, split, places):
    store = tmp_path / "store"
    build_store(store, 500, Clock())
    for place in places:
        overwrite(store, place, b"\xff" * 40)
    expected = dispatched(store, tmp_path / "expected")
    report = rebuilt(store, max_split_bytes=split)
    assert queues_and_index(store) == expected
    assert len(report.damage) == len(places)


@pytest.mark.parametrize("split", SPLITS)
def test_a_missing_file_of_the_log_is_counted_as_lost(tmp_path, split):
    store, clock = tmp_path / "store", Clock()
    offsets = build_store(store, 500, clock)
    start, stop = 2 * LOG_FILE_BYTES, 3 * LOG_FILE_BYTES
    (store / "commitlog" / file_name(start)).unlink()
    lost = sum(start <= offset < stop for offset in offsets)
    report = rebuilt(store, max_split_bytes=split)
    assert [(one.start, one.stop, one.reason) for one in report.damage] == [
        (start, stop, "missing file")
    ]
    assert report.record_count == report.entry_count == 500 - lost
    verified = verify_store(store, CONFIG, now_ms=clock.now_ms)
    assert {one.kind for one in verified.findings} == {"log-hole", "queue-hole"}
    assert verified.counts.hole_count == lost  # their places are kept, by fillers
    assert verified.counts.message_count == 500 - lost


@pytest.mark.parametrize("name", [file_name(7), file_name(3 * LOG_FILE_BYTES + 1)])
def test_a_file_that_does_not_belong_to_the_log_is_refused_by_name(tmp_path, name):
    store = tmp_path / "store"
    build_store(store, 500, Clock())
    before = tree(store / "consumequeue")
    shutil.copyfile(store / "commitlog" / file_name(0), store / "commitlog" / name)
    with pytest.raises(StoreDamagedError, match=f"{name} is misplaced: expected a multiple of"):
        rebuilt(store)
    assert tree(store / "consumequeue") == before
    assert not (store / "rebuild").exists()


def test_records_that_an_earlier_log_left_are_not_entered(tmp_path):
    store, clock = tmp_path / "store", Clock()
    build_store(store, 300, clock)
    # A later log, cut behind record 100 and written on with shorter records, up to the middle.
    offsets = build_store(tmp_path / "other", 100, Clock())
    other = tmp_path / "other"
    with open_store(other, Clock(clock.now_ms + 10)) as opened:
        offsets += put_all(opened, messages(20, first=100, body_size=70), Clock(clock.now_ms + 10))
        end = offsets[-1] + 187
    for path in sorted((other / "commitlog").iterdir()):
        old = store / "commitlog" / path.name
        content, stop = bytearray(old.read_bytes()), end - int(path.name)
        if stop > 0:
            content[:stop] = path.read_bytes()[:stop]
            old.write_bytes(content)
    report = rebuilt(store, max_split_bytes=1000)
    expected = dispatched(store, tmp_path / "expected", stop=report.log_end)
    assert report.record_count == 120
    assert queues_and_index(store) == expected


def test_afterwards_verify_is_clean_and_every_answer_is_the_same(tmp_path):
    store, clock = tmp_path / "store", Clock()
    build_store(store, 500, clock)
    with open_store(store, clock) as opened:
        before = {topic: bodies(opened, topic) for topic in ("Topic0", "Topic1")}
        keys = [opened.find("Topic1", key=f"key-{n}")[0].body for n in range(1, 500, 50)]
    checkpoint = (store / "checkpoint").read_bytes()
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    rebuilt(store, config=CONFIG)
    assert (store / "checkpoint").read_bytes() == checkpoint
    assert verify_store(store, now_ms=clock.now_ms, config=CONFIG).findings == []
    with open_store(store, clock) as opened:
        assert {topic: bodies(opened, topic) for topic in before} == before
        assert [opened.find("Topic1", key=f"key-{n}")[0].body for n in range(1, 500, 50)] == keys
        put_all(opened, messages(10, first=500), clock)
        assert opened.max_offset("Topic0", 0) == 255
    assert verify_store(store, now_ms=clock.now_ms, config=CONFIG).findings == []


def test_a_store_in_use_is_refused_with_the_writers_pid(tmp_path):
    clock = Clock()
    build_store(tmp_path / "store", 10, clock)
    before = tree(tmp_path / "store")
    with open_store(tmp_path / "store", clock), pytest.raises(StoreLockedError) as caught:
        rebuilt(tmp_path / "store")
    assert caught.value.owner_pid == os.getpid()
    assert tree(tmp_path / "store").keys() == before.keys()


def test_a_lost_log_does_not_cost_the_queues(tmp_path):
    build_store(tmp_path / "store", 100, Clock())
    for path in (tmp_path / "store" / "commitlog").iterdir():
        path.unlink()
    before = tree(tmp_path / "store" / "consumequeue")
    with pytest.raises(StoreDamagedError, match="no CommitLog file"):
        rebuilt(tmp_path / "store")
    assert tree(tmp_path / "store" / "consumequeue") == before
    assert not (tmp_path / "store" / "rebuild").exists()


def test_an_empty_store_has_neither_queues_nor_index(tmp_path):
    with open_store(tmp_path / "store", Clock()):
        pass
    report = rebuilt(tmp_path / "store")
    assert (report.record_count, report.queue_count) == (0, 0)
    assert queues_and_index(tmp_path / "store") == ({}, [])


def test_a_link_is_not_replaced_by_a_directory(tmp_path):
    store = tmp_path / "store"
    build_store(store, 10, Clock())
    (store / "consumequeue").rename(tmp_path / "elsewhere")
    (store / "consumequeue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link"):
        rebuilt(store)
    assert (store / "consumequeue").is_symlink()
    assert not (store / "rebuild").exists()
