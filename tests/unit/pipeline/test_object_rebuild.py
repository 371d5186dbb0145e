"""A store on an object store is rebuilt to the bytes of the disk, whatever is killed on the way."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from rocketstore import Message, StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from rocketstore.pipeline.jobs.rebuild.job import rebuild_with
from rocketstore.pipeline.jobs.rebuild.object_commit import kept_name
from rocketstore.pipeline.objects import ObjectStore
from support.audit_runs import audit_here
from support.golden_stores import golden_store
from support.pipeline_tables import read_table
from support.rebuild_oracle import Here
from support.small_store import (
    LOG_FILE_BYTES,
    START_MS,
    Clock,
    build_store,
    copy_store,
    messages,
    open_store,
    overwrite,
    put_all,
)

GOLDEN = ("basic", "batch", "delay", "ipv6")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two queues of two files each, two index files, five log files."""
    root = tmp_path_factory.mktemp("objects") / "store"
    build_store(root, 450, Clock())
    return root


def rebuilt(location, **keywords):
    options = {"plan": "shuffle", "sole_writer": True} | keywords
    return rebuild_with(Here(), location, now_ms=START_MS, **options)


def rebuilt_on_disk(store, tmp_path, **keywords):
    """Return queues and index of a copy that was rebuilt in place, and the report."""
    copy = copy_store(store, tmp_path / "disk")
    report = rebuild_with(Here(), copy, plan="posix", now_ms=START_MS, **keywords)
    found = {
        path.relative_to(copy).as_posix(): path.read_bytes()
        for name in ("consumequeue", "index")
        for path in (copy / name).rglob("*")
        if path.is_file()
    }
    return found, report


def queues_and_index(server, prefix="store"):
    return {
        path: content
        for path, content in server.tree(prefix).items()
        if path.startswith(("consumequeue/", "index/"))
    }


def spoil(server):
    """Make queues and index wrong, so that a rebuild has to replace, add and remove."""
    for key in list(server.objects):
        if "/consumequeue/" in key or "/index/" in key:
            server.objects[key] = server.objects[key][::-1]
    queues = sorted(key for key in server.objects if "/consumequeue/" in key)
    del server.objects[queues[0]]
    content = bytes(2000)
    server.objects["store/consumequeue/Gone/3/00000000000000000000"] = content
    server.objects["store/index/20200101000000000"] = server.objects[
        next(key for key in server.objects if "/index/" in key)
    ]


# --- the bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [7000, 1 << 26])
@pytest.mark.parametrize("name", GOLDEN)
def test_every_object_has_the_bytes_of_the_positioned_plan_on_a_disk(tmp_path, s3, name, split):
    store, _ = golden_store(name)
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    report = rebuilt(s3.uri("store"), max_split_bytes=split)
    assert queues_and_index(s3) == expected
    assert report.entry_count == on_disk.entry_count
    assert report.index_item_count == on_disk.index_item_count
    assert not s3.tree("store/rebuild")


def test_old_objects_are_kept_and_what_is_gone_is_gone(tmp_path, built, s3):
    expected, _ = rebuilt_on_disk(built, tmp_path)
    s3.put_tree(built, "store")
    spoil(s3)
    old = queues_and_index(s3)
    others = {key: value for key, value in s3.tree("store").items() if key not in old}
    report = rebuilt(s3.uri("store"))
    assert queues_and_index(s3) == expected
    assert s3.tree(f"store/{report.kept}") == old
    assert report.gone_queues == ["Gone/3"]
    assert {key: s3.tree("store")[key] for key in others} == others
    assert not any(key.startswith("store/consumequeue/Gone") for key in s3.objects)
    assert not s3.uploads


def test_numbers_that_were_given_out_are_kept_as_on_a_disk(tmp_path, s3):
    store, clock = tmp_path / "store", Clock()
    offsets = build_store(store, 500, clock)
    overwrite(store, offsets[-4], bytes(LOG_FILE_BYTES - offsets[-4] % LOG_FILE_BYTES))
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    report = rebuilt(s3.uri("store"))
    assert report.kept_places == on_disk.kept_places == {"Topic0/0": 2, "Topic1/0": 2}
    assert queues_and_index(s3) == expected


def test_a_queue_whose_records_have_all_expired_keeps_its_last_file(tmp_path, s3):
    store, clock = tmp_path / "store", Clock()
    with open_store(store, clock) as opened:
        put_all(opened, [Message(topic="Old", body=b"x")] * 120, clock)
        put_all(opened, messages(200), clock)
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    expected, _ = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    assert rebuilt(s3.uri("store")).kept_places == {"Old/0": 20}
    assert queues_and_index(s3) == expected


@pytest.mark.parametrize("places", [(5000,), (200, 17000, 40100)])
def test_behind_damage_the_same_records_are_messages_as_on_a_disk(tmp_path, s3, places):
    store = tmp_path / "store"
    build_store(store, 300, Clock())
    for place in places:
        overwrite(store, place, b"\xff" * 40)
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    report = rebuilt(s3.uri("store"), max_split_bytes=7000)
    assert queues_and_index(s3) == expected
    assert len(report.damage) == len(on_disk.damage) == len(places)


# --- kills --------------------------------------------------------------------------------------


def test_a_kill_at_any_request_leaves_the_old_store_or_one_that_readers_refuse(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 90, Clock())
    expected, _ = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    spoil(s3)
    before = dict(s3.objects)
    old = queues_and_index(s3)
    s3.writes_left = 10**6
    rebuilt(s3.uri("store"))
    write_count = 10**6 - s3.writes_left
    assert write_count > 20
    states = set()
    for allowed in range(write_count):
        s3.objects.clear()
        s3.objects.update(before)
        s3.writes_left = allowed
        # The last two only take the claim away: the store is whole without them.
        is_whole = allowed >= write_count - 2
        with contextlib.nullcontext() if is_whole else pytest.raises(StoreError):
            rebuilt(s3.uri("store"))
        is_placing = "store/rebuild/placing.json" in s3.objects
        if is_placing:
            for read in (read_table, audit_here):
                with pytest.raises(StoreError, match="half rebuilt"):
                    read(s3.uri("store"))
            states.add("placing")
        else:
            found = queues_and_index(s3)
            assert found in (old, expected)
            states.add("old" if found == old else "new")
        s3.writes_left = None
        report = rebuilt(s3.uri("store"))
        assert queues_and_index(s3) == expected
        assert not s3.tree("store/rebuild")
        assert len(read_table(s3.uri("store"))) == report.record_count == 90
        kept = {key.split("/")[1] for key in s3.tree("store") if key.startswith("repair/")}
        assert any(s3.tree(f"store/repair/{name}") == old for name in kept)
    assert states == {"old", "placing", "new"}


def test_a_store_whose_placing_was_killed_is_finished_before_its_log_is_read(built, s3):
    s3.put_tree(built, "store")
    spoil(s3)

    def stop(name):
        if name == "remove consumequeue":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuilt(s3.uri("store"), step=stop)
    assert "store/rebuild/placing.json" in s3.objects
    rebuilt(s3.uri("store"))
    assert not s3.tree("store/rebuild")
    s3.objects["store/rebuild/placing.json"] = b"{"
    with pytest.raises(StoreError, match="does not say"):
        rebuilt(s3.uri("store"))


def test_old_objects_stay_when_the_new_ones_were_lost_amid_the_placing(built, s3):
    s3.put_tree(built, "store")

    def stop(name):
        if name == "place consumequeue":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuilt(s3.uri("store"), step=stop)
    before = queues_and_index(s3)
    for key in [key for key in s3.objects if "/rebuild/" in key and "/consumequeue/" in key]:
        del s3.objects[key]
    with pytest.raises(StoreError, match="holds 0 new objects: expected"):
        rebuilt(s3.uri("store"))
    assert queues_and_index(s3) == before


def test_an_object_that_an_upload_cut_off_stops_the_rebuild_before_anything_is_replaced(built, s3):
    s3.put_tree(built, "store")
    before = queues_and_index(s3)

    class CuttingOff(Here):
        def exchange(self, *what):
            table = super().exchange(*what)
            key = next(key for key in s3.objects if "/rebuild/" in key and "/index/" in key)
            s3.objects[key] = s3.objects[key][:-1]
            return table

    with pytest.raises(StoreError, match="expected"):
        rebuild_with(
            CuttingOff(), s3.uri("store"), plan="shuffle", sole_writer=True, now_ms=START_MS
        )
    assert queues_and_index(s3) == before
    assert not s3.tree("store/rebuild")
    assert not s3.tree("store/repair")


# --- what is refused ----------------------------------------------------------------------------


def test_nobody_rebuilds_on_an_object_store_by_accident(built, s3):
    s3.put_tree(built, "store")
    before = dict(s3.objects)
    with pytest.raises(ConfigError, match="no lock"):
        rebuilt(s3.uri("store"), sole_writer=False)
    with pytest.raises(ConfigError, match="no file is written in place"):
        rebuilt(s3.uri("store"), plan="posix")
    with pytest.raises(NotAStoreError, match="no commitlog"):
        rebuilt(s3.uri("nothing"))
    assert s3.objects == before


def test_a_store_without_a_log_keeps_its_queues(built, s3):
    s3.put_tree(built, "store")
    for key in [key for key in s3.objects if "/commitlog/" in key]:
        del s3.objects[key]
    s3.objects["store/commitlog/"] = b""
    s3.objects["store/commitlog/note.txt"] = b"moved"
    before = queues_and_index(s3)
    with pytest.raises(StoreDamagedError, match="queues have entries"):
        rebuilt(s3.uri("store"))
    assert queues_and_index(s3) == before


def test_without_an_index_the_index_stays_as_it_is(built, s3):
    s3.put_tree(built, "store")
    before = s3.tree("store/index")
    config = StoreConfig(message_index_enable=False, max_hash_slot_num=100, max_index_num=400)
    assert rebuilt(s3.uri("store"), config=config).index_item_count == 0
    assert s3.tree("store/index") == before


def test_where_a_file_system_cannot_copy_objects_are_read_and_written(s3, monkeypatch):
    s3.objects["place/one"] = bytes(range(256)) * 100
    objects = ObjectStore(s3.uri("place"))

    class WithoutCopy:
        def copy_file(self, *_):
            raise NotImplementedError

        open_input_stream = objects.files.system.open_input_stream
        open_output_stream = objects.files.system.open_output_stream

    monkeypatch.setattr(objects, "_system", WithoutCopy())
    objects.copy_all([(f"{objects.root}/one", f"{objects.root}/below/two")])
    assert s3.tree("place") == {
        "below/two": s3.objects["place/one"],
        "one": s3.objects["place/one"],
    }


def test_names_of_what_is_kept_are_new():
    first = kept_name(set(), START_MS)
    assert first == "20231114T221320000Z"
    taken = set(itertools.islice((first, f"{first}.2"), 2))
    assert kept_name(taken, START_MS) == f"{first}.3"
