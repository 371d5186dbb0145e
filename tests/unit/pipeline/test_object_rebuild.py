"""Queues and index made in a new place: of a store on an object store there is no other way."""

import pytest

from rocketstore import StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from support.clock import Clock
from support.golden_stores import golden_root
from support.rebuild_runs import RowsHere, rebuilt_here
from support.small_store import LOG_FILE_BYTES, build_store, copy_store, overwrite
from support.trees import tree

GOLDEN = ("basic", "batch", "delay", "ipv6")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two queues of two files each, two index files, five log files."""
    root = tmp_path_factory.mktemp("objects") / "store"
    build_store(root, 450, Clock())
    return root


def rebuilt_on_disk(store, tmp_path, **keywords):
    """Return queues and index of a copy that was rebuilt in place, and the report."""
    copy = copy_store(store, tmp_path / "disk")
    report = rebuilt_here(copy, **keywords)
    return queues_and_index(tree(copy)), report


def queues_and_index(files):
    return {
        path: content
        for path, content in files.items()
        if path.startswith(("consumequeue/", "index/"))
    }


@pytest.mark.parametrize("split", [7000, 1 << 26])
@pytest.mark.parametrize("name", GOLDEN)
def test_every_object_has_the_bytes_of_a_disk_and_the_store_stays(tmp_path, s3, name, split):
    store = golden_root(name)
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    before = s3.tree("store")
    report = rebuilt_here(s3.uri("store"), target=s3.uri("new"), max_split_bytes=split)
    assert s3.tree("new") == expected | {"_SUCCESS": b""}
    assert s3.tree("store") == before
    assert (report.target, report.kept) == (s3.uri("new"), None)
    assert report.entry_count == on_disk.entry_count
    assert report.index_item_count == on_disk.index_item_count
    assert not s3.uploads


def test_a_place_on_a_disk_is_as_good_and_leaves_the_store_alone(tmp_path, built, s3):
    expected, _ = rebuilt_on_disk(built, tmp_path)
    s3.put_tree(built, "store")
    rebuilt_here(s3.uri("store"), target=tmp_path / "from objects")
    store = copy_store(built, tmp_path / "store")
    before = tree(store)
    rebuilt_here(store, target=tmp_path / "new")
    rebuilt_here(store, target=s3.uri("new"))
    assert tree(store) == before
    assert tree(tmp_path / "new") == tree(tmp_path / "from objects") == expected
    assert queues_and_index(s3.tree("new")) == expected


def test_numbers_that_were_given_out_are_kept_as_on_a_disk(tmp_path, s3):
    store, clock = tmp_path / "store", Clock()
    offsets = build_store(store, 500, clock)
    overwrite(store, offsets[-4], bytes(LOG_FILE_BYTES - offsets[-4] % LOG_FILE_BYTES))
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    report = rebuilt_here(s3.uri("store"), target=s3.uri("new"))
    assert report.kept_places == on_disk.kept_places == {"Topic0/0": 2, "Topic1/0": 2}
    assert queues_and_index(s3.tree("new")) == expected


@pytest.mark.parametrize("places", [(5000,), (200, 17000, 40100)])
def test_after_damage_the_same_records_are_messages_as_on_a_disk(tmp_path, s3, places):
    store = tmp_path / "store"
    build_store(store, 300, Clock())
    for place in places:
        overwrite(store, place, b"\xff" * 40)
    expected, on_disk = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    s3.take()
    report = rebuilt_here(s3.uri("store"), target=s3.uri("new"), max_split_bytes=7000)
    assert queues_and_index(s3.tree("new")) == expected
    assert len(report.damage) == len(on_disk.damage) == len(places)


def test_damage_costs_no_second_read_of_the_log(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 300, Clock())
    log_bytes = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    sent = []
    for place in (None, 17_000):
        if place is not None:
            overwrite(store, place, b"\xff" * 40)
        s3.put_tree(store, "store")
        s3.take()
        rebuilt_here(s3.uri("store"), target=s3.uri(f"new{place}"))
        sent.append(sum(one.sent for one in s3.take() if "/commitlog/" in one.key))
    assert sent[1] < sent[0] + log_bytes / 2


def test_a_kill_at_any_request_leaves_no_result_and_the_store_as_it_was(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 90, Clock())
    expected, _ = rebuilt_on_disk(store, tmp_path)
    s3.put_tree(store, "store")
    before = s3.tree("store")
    s3.writes_left = 10**6
    rebuilt_here(s3.uri("store"), target=s3.uri("whole"))
    write_count = 10**6 - s3.writes_left
    assert write_count > 4
    for allowed in range(write_count):
        s3.writes_left = allowed
        with pytest.raises(StoreError):
            rebuilt_here(s3.uri("store"), target=s3.uri(f"new{allowed}"))
        assert "_SUCCESS" not in s3.tree(f"new{allowed}")
    s3.writes_left = None
    assert s3.tree("store") == before
    assert queues_and_index(s3.tree("whole")) == expected
    with pytest.raises(StoreError, match="no _SUCCESS"):
        rebuilt_here(s3.uri("store"), target=s3.uri(f"new{write_count - 1}"))


def test_an_object_that_an_upload_cut_off_or_lost_is_noticed(built, s3):
    s3.put_tree(built, "store")

    for number, change in enumerate((lambda content: content[:-1], None)):

        class CuttingOff(RowsHere):
            def write(self, *what, at=number, change=change):
                table = super().write(*what)
                key = next(key for key in s3.objects if f"new{at}/attempts" in key)
                content = s3.objects.pop(key)
                if change is not None:
                    s3.objects[key] = change(content)
                return table

        with pytest.raises(StoreError, match="expected"):
            rebuilt_here(s3.uri("store"), CuttingOff, target=s3.uri(f"new{number}"))
        assert "_SUCCESS" not in s3.tree(f"new{number}")


# --- what is refused ----------------------------------------------------------------------------


def test_nothing_is_replaced_on_an_object_store(built, s3):
    s3.put_tree(built, "store")
    before = dict(s3.objects)
    with pytest.raises(ConfigError, match="nothing can be replaced in one step"):
        rebuilt_here(s3.uri("store"))
    with pytest.raises(StoreError, match="no _SUCCESS"):
        rebuilt_here(s3.uri("store"), target=s3.uri("store"))
    with pytest.raises(NotAStoreError, match="no commitlog"):
        rebuilt_here(s3.uri("nothing"), target=s3.uri("new"))
    assert s3.objects == before


def test_a_store_without_a_log_is_refused(built, s3):
    s3.put_tree(built, "store")
    for key in [key for key in s3.objects if "/commitlog/" in key]:
        del s3.objects[key]
    s3.objects["store/commitlog/"] = b""
    s3.objects["store/commitlog/note.txt"] = b"moved"
    with pytest.raises(StoreDamagedError, match="had messages, and has no CommitLog file"):
        rebuilt_here(s3.uri("store"), target=s3.uri("new"))


def test_without_an_index_none_is_made(built, s3):
    s3.put_tree(built, "store")
    config = StoreConfig(message_index_enable=False, max_hash_slot_num=100, max_index_num=400)
    report = rebuilt_here(s3.uri("store"), target=s3.uri("new"), config=config)
    assert report.index_item_count == 0
    assert not s3.tree("new/index")
