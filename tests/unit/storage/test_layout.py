"""Where everything lies, and in which directory the next log file goes."""

import re
import time
from pathlib import Path

import pytest

from rocketstore import Message
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError
from rocketstore.storage.layout import StoreLayout
from support.configured_store import open_small


def test_everything_lies_where_4_9_puts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert StoreLayout.of("data/store").repair == tmp_path / "data/store/repair"
    with open_small("data/store", enable_consume_queue_ext=True) as store:
        store.consumer_filters.register("orders", "billing", lambda _: True)
        for queue_id in (0, 12):
            store.put(Message(topic="orders", body=b"x", keys="k"), queue_id)
        store.flush()
        found = [path for path in Path("data/store").rglob("*") if path.is_file()]
    queues = [f"{kind}/orders/{n}/{0:020}" for kind in ("", "_ext") for n in (0, 12)]
    files = {f"commitlog/{0:020}", *(f"consumequeue{name}" for name in queues)}
    files |= {"index/[0-9]+", "checkpoint", "abort", "lock", "known-ends"}
    names = {str(path.relative_to("data/store")) for path in found}
    assert {re.sub(r"(?<=^index/)\d{17}$", "[0-9]+", name) for name in names} == files


def test_what_was_cut_is_kept_below_a_directory_named_by_the_time_of_utc(monkeypatch):
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        kept = StoreLayout.of("s").repair_at(1_700_000_000_045)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert kept == Path("s/repair/20231114T221320045Z").absolute()


def test_several_log_paths_are_several_directories_not_one_named_after_all():
    layout = StoreLayout.of("s", StoreConfig(store_path_commit_log="/a, /b"))
    assert layout.commit_log_directories == (Path("/a"), Path("/b"))


def test_read_only_log_paths_are_never_written():
    config = StoreConfig(store_path_commit_log="/a,/b", read_only_commit_log_store_paths="/b")
    layout = StoreLayout.of("s", config)
    assert layout.commit_log_directories == (Path("/a"),)
    assert layout.read_only_directories == (Path("/b"),)


def test_a_log_without_a_writable_path_is_refused():
    config = StoreConfig(store_path_commit_log="/a", read_only_commit_log_store_paths="/a")
    with pytest.raises(ConfigError, match="read-only"):
        StoreLayout.of("s", config)


@pytest.mark.parametrize(
    ("directories", "full", "places"),
    [("/b,/a", "", "/a /b /a"), ("/a,/b,/c", "/b", "/a /c /a"), ("/a,/b", "/a /b", "/a /b")],
    ids=["round and round by name", "passing over a full one", "on all when all are full"],
)
def test_files_go_round_the_directories(directories, full, places):
    layout = StoreLayout.of("s", StoreConfig(store_path_commit_log=directories))
    of_files = [
        layout.directories_for(number, {*map(Path, full.split())})[0]
        for number in range(len(places.split()))
    ]
    assert of_files == [*map(Path, places.split())]
