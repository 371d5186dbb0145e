"""A slave is killed, or loses power, while it sets its log aside: the next try does it."""

import pytest

from rocketstore.replication.renewal import set_log_aside
from rocketstore.storage.layout import StoreLayout
from support.clock import Clock
from support.hooked_disk import HookedDisk, KilledError, dying_disk
from support.small_store import bodies, build_store, open_store
from support.trees import copy_tree

COUNT = 30


@pytest.fixture(scope="module")
def slave(tmp_path_factory):
    """Return a store with every file that is set aside, and where its log ends."""
    root = tmp_path_factory.mktemp("slave") / "store"
    build_store(root, COUNT, Clock())
    with open_store(root, Clock()) as store:
        store.consumer_offsets.set("Topic0", "group", 0, 3)
        end = store.max_physical_offset
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (root / "config" / name).write_text('{"offsetTable":{}}')
    return root, end


def test_a_log_that_is_set_aside_is_complete_until_it_goes_and_the_next_try_goes_on(
    slave, tmp_path
):
    original, end = slave
    for calls in range(100):
        root = copy_tree(original, tmp_path / str(calls))
        layout = StoreLayout.of(root)
        try:
            set_log_aside(layout, end, dying_disk(calls))
        except KilledError:
            pass
        else:
            break
        with open_store(root, Clock()) as store:
            if store.max_physical_offset == 0:
                continue  # the log was set aside, and the kill came after it
            assert sum(len(bodies(store, topic)) for topic in store.topics()) == COUNT
        set_log_aside(layout, end)
        assert not layout.commit_log_directories[0].exists()
    assert calls > 15


def test_the_log_loses_its_name_when_all_other_names_are_on_the_disk(slave, tmp_path):
    root, calls = copy_tree(slave[0], tmp_path / "store"), []
    disk = HookedDisk(lambda *call: calls.append(call))
    set_log_aside(StoreLayout.of(root), slave[1], disk)
    at = calls.index(("replace", root / "commitlog.replaced"))
    before = [path.parent for call, path in calls[:at] if call == "replace"]
    synced = [path for call, path in calls[:at] if call == "fsync_directory"]
    assert {root, root / "config"} == {*before} <= {*synced}
    assert calls[at - 1][0] == "fsync_directory", "no rename is on its way when the log goes"
