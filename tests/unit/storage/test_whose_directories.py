"""Two stores never write to one directory, and no store goes on with another one's log."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.errors import ConfigError, NotAStoreError, StoreError, StoreLockedError
from rocketstore.storage.files.lock import StoreLock
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery import replacement
from support.clock import START_MS, Clock
from support.python_process import printed
from support.small_store import CONFIG

NOW_MS = START_MS + 3_600_000


def with_log(*directories: Path) -> StoreConfig:
    paths = ",".join(map(str, directories))
    return msgspec.structs.replace(CONFIG, store_path_commit_log=paths)


def opened(root: Path, config: StoreConfig = CONFIG) -> MessageStore:
    return MessageStore.open(root, config, clock=Clock(), threads=False)


def put(store: MessageStore, *texts: str, topic: str = "T") -> None:
    for text in texts:
        assert store.put(Message(topic=topic, body=text.encode(), keys=text)).is_stored
    assert store.wait_dispatched()


def filled(root: Path, config: StoreConfig = CONFIG, *texts: str) -> Path:
    with opened(root, config) as store:
        put(store, *(texts or ("one", "two")))
    return root


def texts_in(store: MessageStore) -> list[str]:
    return [one.body.decode() for one in store.get("T", 0, store.min_offset("T", 0)).messages]


def locked_by_rebuild(root: Path, config: StoreConfig) -> None:
    with replacement.locked(root, config):
        pass


DOORS: dict[str, Callable[[Path, StoreConfig], object]] = {
    "open": opened,
    "repair": lambda root, config: repair_store(root, config=config, now_ms=NOW_MS),
    "rebuild": lambda root, config: rebuild_store(root, config, what="queues", now_ms=NOW_MS),
    "spark": locked_by_rebuild,
}


# --- at work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_a_log_that_another_store_writes_is_locked_by_every_door(tmp_path, door):
    config = with_log(tmp_path / "log")
    filled(tmp_path / "other", with_log(tmp_path / "old"))
    with opened(tmp_path / "one", config) as one:
        put(one, "a")
        with pytest.raises(StoreLockedError, match="log is in use: this process") as caught:
            DOORS[door](tmp_path / "other", config)
        assert caught.value.owner_pid == os.getpid()
        assert "storePathCommitLog" in str(caught.value.hint)
        put(one, "b")
        assert texts_in(one) == ["a", "b"]


SECOND_STORE = """
import sys
from rocketstore import MessageStore, StoreConfig
from rocketstore.errors import StoreLockedError
for root, log in (sys.argv[1:3], sys.argv[3:]):
    try:
        MessageStore.open(root, StoreConfig.small(store_path_commit_log=log)).close()
        print("open")
    except StoreLockedError as error:
        print(error.owner_pid)
"""


def test_another_process_learns_who_has_the_log(tmp_path):
    with opened(tmp_path / "one", with_log(tmp_path / "log")):
        places = [str(tmp_path / name) for name in ("other", "log", "third", "empty")]
        assert printed(SECOND_STORE, *places).split() == [str(os.getpid()), "open"]


def link(at: Path, to: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


@pytest.mark.parametrize("name", ["consumequeue", "index", "config", "commitlog"])
def test_a_directory_that_two_roots_share_by_a_link_has_one_writer(tmp_path, name):
    one = filled(tmp_path / "one")
    (one / "config").mkdir(exist_ok=True)
    link(tmp_path / "other" / name, one / name)
    with opened(one), pytest.raises(StoreLockedError, match="one is in use"):
        opened(tmp_path / "other")


@pytest.mark.parametrize("place", ["commitlog", "consumequeue", "."])
def test_nobody_writes_a_log_into_a_store_that_is_at_work(tmp_path, place):
    one = filled(tmp_path / "one")
    with opened(one) as store:
        with pytest.raises(StoreLockedError):
            opened(tmp_path / "other", with_log(one / place))
        put(store, "three")
        assert texts_in(store) == ["one", "two", "three"]


def test_a_directory_in_the_store_of_a_broker_that_runs_is_refused(tmp_path):
    (tmp_path / "broker" / "commitlog").mkdir(parents=True)
    with (  # a broker locks no directory
        StoreLock(tmp_path / "broker" / "lock"),
        pytest.raises(StoreLockedError, match="broker is in use"),
    ):
        opened(tmp_path / "one", with_log(tmp_path / "broker" / "commitlog"))


def linked_log(root: Path, to: Path) -> None:
    shutil.copytree(to / "commitlog", root / "commitlog", copy_function=os.link)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("count", "has_more"), [(2, False), (2, True), (200, False)])
def test_a_log_of_hard_links_has_one_writer(tmp_path, door, count, *, has_more):
    texts = [f"{number:04}" for number in range(count)]  # some roll the log while it is open
    with opened(tmp_path / "one") as one:
        put(one, *texts)
        linked_log(tmp_path / "other", tmp_path / "one")
        if has_more:  # a file that was made ahead, and is the copy's own
            end = max((tmp_path / "other" / "commitlog").iterdir())
            size = end.stat().st_size
            end.with_name(f"{int(end.name) + size:020d}").write_bytes(bytes(size))
        with pytest.raises(StoreLockedError, match=r"commitlog/\d{20} is in use: this") as caught:
            DOORS[door](tmp_path / "other", CONFIG)
        assert "not links" in str(caught.value.hint)
        put(one, "last")
    with opened(tmp_path / "other") as other:  # its files are those of the other one, at rest
        assert other.max_offset("T", 0) == count + 1
    with opened(tmp_path / "one") as one:
        assert one.max_offset("T", 0) == count + 1


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_only_files_at_the_log_s_end_stay_locked(tmp_path):
    with opened(tmp_path / "one") as one:
        put(one, *map(str, range(1_000)))
        files = sorted((tmp_path / "one" / "commitlog").iterdir())
        assert [*map(is_locked, files[-4:])] == [False, True, True, True]


def test_a_log_that_is_only_read_may_have_a_writer(tmp_path):
    filled(tmp_path / "one", with_log(tmp_path / "log"))
    shared = msgspec.structs.replace(
        with_log(tmp_path / "own"), read_only_commit_log_store_paths=str(tmp_path / "log")
    )
    with (
        opened(tmp_path / "one", with_log(tmp_path / "log")),
        opened(tmp_path / "other", shared) as other,
    ):
        assert texts_in(other) == ["one", "two"]


PARENT = """
import os, sys
from rocketstore import MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], StoreConfig.small(store_path_commit_log=sys.argv[2]))
if os.fork() == 0:
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_a_child_keeps_no_directory_locked_when_its_parent_is_killed(tmp_path):
    config = StoreConfig.small(store_path_commit_log=str(tmp_path / "log"))
    command = [sys.executable, "-c", PARENT, str(tmp_path / "one"), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        with pytest.raises(StoreLockedError):
            MessageStore.open(tmp_path / "one", config)
        parent.kill()
        parent.wait()
        MessageStore.open(tmp_path / "one", config).close()  # the child is there yet
        parent.stdin.close()


def test_what_is_refused_leaves_nothing_locked(tmp_path):
    with opened(tmp_path / "one", with_log(tmp_path / "log")):
        both = with_log(tmp_path / "free", tmp_path / "log")
        with pytest.raises(StoreLockedError):
            opened(tmp_path / "other", both)
        filled(tmp_path / "third", with_log(tmp_path / "free"))


def test_a_log_directory_holds_nothing_but_its_files(tmp_path):
    filled(tmp_path / "one", with_log(tmp_path / "log", tmp_path / "more"))
    names = [path.name for name in ("log", "more") for path in (tmp_path / name).iterdir()]
    assert names
    assert all(len(name) == 20 and name.isdigit() for name in names)


# --- closed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_a_store_does_not_go_on_with_the_log_of_another_one(tmp_path, door):
    filled(tmp_path / "one", with_log(tmp_path / "log"))
    filled(tmp_path / "other", with_log(tmp_path / "own"), "mine")
    before = (tmp_path / "log" / ("0" * 20)).read_bytes()
    with pytest.raises(ConfigError, match=rf"log directory of the store {tmp_path}/one") as caught:
        DOORS[door](tmp_path / "other", with_log(tmp_path / "log"))
    assert caught.value.key == "storePathCommitLog"
    assert (tmp_path / "log" / ("0" * 20)).read_bytes() == before
    with opened(tmp_path / "other", with_log(tmp_path / "own")) as other:
        assert texts_in(other) == ["mine"]


def test_a_new_root_takes_a_log_over_and_the_former_one_does_not_go_on(tmp_path):
    config = with_log(tmp_path / "log")
    filled(tmp_path / "one", config)
    with opened(tmp_path / "new", config) as new:
        assert texts_in(new) == ["one", "two"]
        put(new, "three")
    with pytest.raises(ConfigError, match=rf"of the store {tmp_path}/new"):
        opened(tmp_path / "one", config)
    (tmp_path / "new" / "log-directories").unlink()  # as the error says
    with opened(tmp_path / "one", config) as one:
        assert texts_in(one) == ["one", "two", "three"]


def test_a_root_in_the_log_directory_of_another_store_is_refused(tmp_path):
    filled(tmp_path / "one", with_log(tmp_path / "log"))
    (tmp_path / "log" / "consumequeue").mkdir()
    with pytest.raises(ConfigError, match="log is a log directory of the store"):
        opened(tmp_path / "log")


@pytest.mark.parametrize("has_ends", [True, False], ids=["ours", "4.9"])
@pytest.mark.parametrize(
    "part", ["commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index", "config"]
)
def test_a_root_inside_another_store_s_files_is_refused_and_nothing_written(
    tmp_path, part, *, has_ends
):
    one = filled(tmp_path / "one")
    (one / "config").mkdir(exist_ok=True)
    if not has_ends:
        (one / "known-ends").unlink()
    before = sorted(one.rglob("*"))
    for root in (one / part, one / part / "new"):
        with pytest.raises(NotAStoreError, match=f"{part}.* belongs to the store {one}"):
            opened(root)
    if part != "commitlog":
        with pytest.raises(NotAStoreError, match=f"{part} belongs to the store {one}"):
            opened(tmp_path / "other", with_log(one / part))
    assert sorted(one.rglob("*")) == before


def test_a_store_below_another_one_s_root_is_a_store_of_its_own(tmp_path):
    one = filled(tmp_path / "one")
    filled(one / "inner", CONFIG, "a")
    with opened(one / "inner") as inner, opened(one) as outer:
        assert (texts_in(inner), texts_in(outer)) == (["a"], ["one", "two"])


def make_file(path: Path) -> None:
    path.write_text("x")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("part", ["consumequeue", "consumequeue/T", "index"])
@pytest.mark.parametrize(
    ("door", "make"), [("open", make_file), ("open", make_loop), ("repair", make_loop)]
)
def test_what_is_no_directory_is_named(tmp_path, part, door, make):
    """A repair moves a file out of the way instead (faults/test_files.py)."""
    one = filled(tmp_path / "one")
    shutil.rmtree(one / part)
    make(one / part)
    with pytest.raises(StoreError, match=f"{one / part}"):
        DOORS[door](one, CONFIG)
    (one / part).unlink()
    with opened(one) as store:
        assert texts_in(store) == ["one", "two"]


def move_all(place: Path) -> tuple[Path, StoreConfig]:
    place.rename(moved := place.with_name("moved"))
    return moved / "root", with_log(moved / "log")


def copy_all(place: Path) -> tuple[Path, StoreConfig]:
    shutil.copytree(place, moved := place.with_name("copied"))
    return moved / "root", with_log(moved / "log")


def restore_all(place: Path) -> tuple[Path, StoreConfig]:
    """Bring back a copy to where the original was."""
    shutil.copytree(place, kept := place.with_name("kept"))
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    return place / "root", with_log(place / "log")


def mount_elsewhere(place: Path) -> tuple[Path, StoreConfig]:
    (place / "log").rename(moved := place.with_name("disk"))
    return place / "root", with_log(moved)


def move_root(place: Path) -> tuple[Path, StoreConfig]:
    (place / "root").rename(moved := place.with_name("root"))
    return moved, with_log(place / "log")


def move_root_to_another_disk(place: Path) -> tuple[Path, StoreConfig]:
    shutil.copytree(place / "root", moved := place.with_name("root"))
    shutil.rmtree(place / "root")
    return moved, with_log(place / "log")


def lose_root(place: Path) -> tuple[Path, StoreConfig]:
    shutil.rmtree(place / "root")
    return place / "root", with_log(place / "log")


def copy_log_into_a_root(place: Path) -> tuple[Path, StoreConfig]:
    shutil.copytree(place / "log", place.with_name("alone") / "commitlog")
    return place.with_name("alone"), CONFIG


def lose_attributes(place: Path) -> tuple[Path, StoreConfig]:
    os.removexattr(place / "log", "user.rocketstore.store")
    (place / "root" / "log-directories").write_bytes(b"{")
    return place / "root", with_log(place / "log")


@pytest.mark.parametrize(
    "happens",
    [
        move_all, copy_all, restore_all, mount_elsewhere, move_root, move_root_to_another_disk,
        lose_root, copy_log_into_a_root, lose_attributes,
    ],
)  # fmt: skip
def test_a_store_goes_on_after(tmp_path, happens):
    place = tmp_path / "place"
    place.mkdir()
    filled(place / "root", with_log(place / "log"))
    root, config = happens(place)
    with opened(root, config) as store:
        assert texts_in(store) == ["one", "two"]
        put(store, "three")
    with opened(root, config) as store:
        assert texts_in(store) == ["one", "two", "three"]


def test_a_file_system_without_attributes_and_locks_opens_as_before(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("os.setxattr", "os.getxattr", "fcntl.flock"):
        monkeypatch.setattr(name, refuse)
    filled(tmp_path / "one", with_log(tmp_path / "log"))
    with opened(tmp_path / "one", with_log(tmp_path / "log")) as store:
        assert texts_in(store) == ["one", "two"]


# --- a log in the root, a log of DLedger ----------------------------------------------------------


def test_written_directories_are_all_that_a_store_writes_to(tmp_path):
    root = filled(tmp_path / "one", with_log(tmp_path / "log"))
    made = {path for path in root.iterdir() if path.is_dir()}
    assert made < {*StoreLayout.of(root, with_log(tmp_path / "log")).written_directories}


def log_of_raft(path: Path) -> None:
    """Make a file as DLedger has it: a head of 48 bytes, then the message."""
    message = (1).to_bytes(4, "big") + bytes(24) + (48).to_bytes(8, "big")
    head = (1).to_bytes(4, "big") + bytes(20) + bytes(8) + bytes(16)
    path.parent.mkdir(parents=True)
    path.write_bytes((head + message).ljust(16_384, b"\0"))


@pytest.mark.parametrize("door", [*DOORS, "read-only"])
@pytest.mark.parametrize("place", ["dledger-n0/data", "commitlog"])
def test_a_log_of_dledger_is_refused_by_its_name(tmp_path, door, place):
    log_of_raft(tmp_path / place / ("0" * 20))
    doors = DOORS | {"read-only": lambda root, _: MessageStore.open(root, read_only=True)}
    with pytest.raises(NotAStoreError, match=f"{tmp_path}/{place.partition('/')[0]}.* DLedger"):
        doors[door](tmp_path, CONFIG)


def test_a_log_that_goes_on_in_one_of_dledger_is_read_and_not_written(tmp_path):
    root = filled(tmp_path / "one")
    log_of_raft(root / "dledger-n0" / "data" / f"{16_384:020}")
    before = sorted(root.rglob("*"))
    for door in ("open", "repair", "rebuild"):
        with pytest.raises(NotAStoreError, match="dledger-n0"):
            DOORS[door](root, CONFIG)
    with MessageStore.open(root, CONFIG, read_only=True) as reader:
        assert len(reader.get("T", 0, 0).messages) == 2
    assert sorted(root.rglob("*")) == before
    shutil.rmtree(root / "dledger-n0" / "data")
    filled(root)  # without a file it is no log
