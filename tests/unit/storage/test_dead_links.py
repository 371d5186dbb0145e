"""A directory that cannot be made, since a link to nothing or a file has its name, is named."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.errors import StoreError
from rocketstore.pipeline.sink.sink_writer import new_job, parse_sink_options
from rocketstore.places.files import LocalFiles
from support.audit_runs import audited
from support.pipeline_tables import read_table
from support.trees import tree

CONFIG = StoreConfig.small(enable_consume_queue_ext=True)


def open_at(place: Path) -> None:
    MessageStore.open(place, CONFIG).close()


def log_at(place: Path) -> None:
    config = StoreConfig.small(store_path_commit_log=str(place))
    MessageStore.open(place.parent / "store", config).close()


def sink_at(place: Path) -> None:
    new_job(parse_sink_options({"path": str(place)}, streaming=False))


DOORS = [open_at, log_at, sink_at]


@pytest.mark.parametrize("below", ["", "further/store"])
@pytest.mark.parametrize("door", DOORS)
def test_a_link_to_nothing_is_named_with_what_it_points_to(tmp_path, door, below):
    link = tmp_path / "link"
    link.symlink_to("absent")
    message = f"{link} is a link to absent, which is not there.*; make, or mount, what it points to"
    with pytest.raises(StoreError, match=message):
        door(link / below)
    assert not (tmp_path / "absent").exists()
    (tmp_path / "absent").mkdir()
    door(link / below)


def test_a_file_in_the_place_of_a_log_directory_is_named(tmp_path):
    (tmp_path / "log").write_text("a file")
    with pytest.raises(StoreError, match=r"log: something that is no directory has its name; move"):
        log_at(tmp_path / "log")


def ask_at(place: Path) -> None:
    with MessageStore.open(place, read_only=True) as store:
        assert store.get("orders", 0, 0).messages
        assert store.queues() == [("orders", 0)]
        assert store.find("orders", "k")


OF_PARTS: dict[str, Callable[[Path], object]] = {
    "open": open_at,
    "read only": ask_at,
    "verify": verify_store,
    "repair": repair_store,
    "rebuild": lambda place: rebuild_store(place, CONFIG, what="queues", now_ms=1),
    "audit": audited,
    "table": lambda place: read_table(place, table="queues"),
}
OF_QUEUES = ["consumequeue/orders", "consumequeue/orders/0"]
OF_EXTENSIONS = ["consumequeue_ext", "consumequeue_ext/orders", "consumequeue_ext/orders/0"]


@pytest.mark.parametrize(
    ("part", "door"),
    [
        *product(["config", "consumequeue", "index"], list(OF_PARTS)[:4]),
        *product(OF_QUEUES, OF_PARTS),
        *product([*OF_EXTENSIONS, "index/2*"], ["open", "verify", "repair", "rebuild", "audit"]),
    ],
)
def test_parts_on_a_disk_that_is_not_mounted_are_not_taken_for_new_ones(tmp_path, part, door):
    store, disk = tmp_path / "store", tmp_path / "disk"
    with MessageStore.open(store, CONFIG) as opened:
        opened.put(Message(topic="orders", body=b"one", keys="k"))
        with opened.consume("orders", group="billing", start="first") as consumer:
            next(iter(consumer)).ack()
    (part,) = (str(one.relative_to(store)) for one in store.glob(part))
    (store / part).rename(disk)
    (store / part).symlink_to(disk)
    OF_PARTS[door](store)
    disk.rename(tmp_path / "away")
    before = tree(store)
    with pytest.raises(StoreError, match=f"{store}/{part} is a link to .* not there"):
        OF_PARTS[door](store)
    with pytest.raises(StoreError, match=f"{store}/{part} is a link"):
        LocalFiles().list(f"{store}/{part}")  # as jobs on Spark do
    assert tree(store) == before
    (store / part).unlink()  # as the error says
    repair_store(store, CONFIG)
    ask_at(store)
