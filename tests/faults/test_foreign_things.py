"""What lies among a store's files and is none of them stops no door, a repair least of all."""

import errno
import fcntl
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, StoreError, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.errors import SystemRefusedError
from rocketstore.pipeline.jobs.publishing import refuse_inside_store
from rocketstore.places.files import sync_path
from rocketstore.places.queue_files import list_queues
from rocketstore.places.store_listing import list_store
from rocketstore.storage.files.disk import Disk, no_space_error
from rocketstore.storage.results import PutMessageStatus
from support.clock import Clock
from support.failing_calls import FailingCalls, Fault
from support.small_store import CONFIG, build_store, crashed, open_store
from support.store_files import overwrite_file

COUNT = 40


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # an address has 108 bytes
        server.bind(path.name)
        os.chdir(here)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


STRANGERS = {
    "pipe": os.mkfifo,
    "socket": bind,
    "link to nothing": link_to("/nowhere/at/all"),
    "link to itself": link_to(".nfs000000000001"),
    "link to a device": link_to("/dev/null"),
    "directory": Path.mkdir,
    "file": Path.touch,
}
"""What a system, a backup or an operator leaves in a directory, by what it is."""


DOORS: list[Callable[[Path], object]] = [
    lambda root: MessageStore.open(root, CONFIG, threads=False).close(),
    lambda root: MessageStore.open(root, CONFIG, read_only=True).close(),
    lambda root: verify_store(root, CONFIG),
    lambda root: repair_store(root, CONFIG),
]


@pytest.fixture
def store(tmp_path):
    build_store(tmp_path / "store", COUNT, Clock())
    return tmp_path / "store"


def keys_found(root: Path) -> int:
    with open_store(root, Clock()) as opened:
        return sum(bool(opened.find(f"Topic{n % 2}", f"key-{n}")) for n in range(COUNT))


@pytest.mark.parametrize("place", ["commitlog", "consumequeue/Topic0/0", "index"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_repair_goes_to_its_end_whatever_else_lies_among_the_files(store, stranger, place):
    shutil.rmtree(store / "index")
    (store / "index").mkdir()
    STRANGERS[stranger](store / place / ".nfs000000000001")
    repaired = repair_store(store, CONFIG)
    assert "index: build it again" in repaired.actions[-1]
    assert not (store / "abort").exists()
    assert keys_found(store) == COUNT


def test_a_repair_syncs_every_file_and_directory_of_the_store_through_links_too(store, tmp_path):
    topic = store / "consumequeue" / "Topic0"
    topic.rename(tmp_path / "elsewhere")
    topic.symlink_to(tmp_path / "elsewhere")
    crashed(store)
    synced = set[Path]()

    class Noting(Disk):
        def fdatasync(self, descriptor: int, path: Path) -> None:
            synced.add(path)
            super().fdatasync(descriptor, path)

        def fsync_directory(self, directory: Path) -> None:
            synced.add(directory)
            super().fsync_directory(directory)

    repair_store(store, CONFIG, disk=Noting())
    parts = [store / name for name in ("commitlog", "consumequeue", "index")]
    queues = [store / "consumequeue" / f"Topic{number}" / "0" for number in (0, 1)]
    files = [path for place in (*parts, *queues) for path in place.iterdir() if path.is_file()]
    assert {store, *parts, *queues, *(queue.parent for queue in queues), *files} <= synced
    assert len(files) == 4


@pytest.fixture
def refusing(monkeypatch):
    """Return what lets nobody list a directory, as a user other than root finds it."""
    real, closed = os.scandir, set[str]()

    def scandir(path: str | Path = ".") -> object:
        if str(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    return lambda path: closed.add(str(path))


@pytest.mark.parametrize(
    ("place", "named"), [("consumequeue", []), ("commitlog", ["commitlog/lost+found"])]
)
def test_what_a_mounted_disk_has_in_its_root_is_no_topic(store, refusing, place, named):
    """It is a disk of its own: mkfs made ``lost+found``, for root only."""
    lost = store / place / "lost+found"
    lost.mkdir()
    refusing(lost)
    assert [one.file for one in verify_store(store, CONFIG).findings] == named
    assert {key.topic for key in list_queues(str(store))} == {"Topic0", "Topic1"}  # Spark's
    assert {key.topic for key in list_store(str(store), CONFIG).queues} == {"Topic0", "Topic1"}
    assert not repair_store(store, CONFIG).is_changed
    assert not rebuild_store(store, CONFIG, what="queues").is_damaged
    with MessageStore.open(store, CONFIG, read_only=True) as reader:
        assert {key.topic for key in reader.queues()} == {"Topic0", "Topic1"}
    assert keys_found(store) == COUNT


def test_a_topic_that_may_not_be_listed_is_an_error_and_not_an_absent_one(store, refusing):
    refusing(store / "consumequeue" / "Topic0")
    with pytest.raises(StoreError, match="Topic0 cannot be read: Permission denied"):
        list_queues(str(store))
    for door in DOORS:
        with pytest.raises(StoreError, match=r"Topic0\): Permission denied; let the user of this"):
            door(store)


@pytest.mark.parametrize("name", ["checkpoint", "known-ends"])
def test_a_small_file_that_may_not_be_read_is_not_called_damage(store, monkeypatch, name):
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for door in (verify_store, repair_store):
        with pytest.raises(StoreError, match=f"cannot read .*{name} .*: Permission denied; let"):
            door(store, CONFIG)
    assert not (store / "repair").exists()


@pytest.mark.parametrize("kept", ["commitlog", "consumequeue/Topic0/0", "index"])
@pytest.mark.parametrize("what", ["queues", "index", None])
def test_what_may_not_be_written_or_moved_ends_a_repair_before_it_changes_anything(
    store, monkeypatch, kept, what
):
    """The log is another user's, say: its queues would be gone before recovery opens it."""
    overwrite_file(store / "consumequeue" / "Topic1" / "0" / f"{0:020d}", 200, b"\x55" * 200)
    (store / "index" / "19700101000000000").write_bytes(b"no index")

    class Refusing(Disk):
        def open_file(self, path: Path, *, writable: bool) -> int:
            if writable and path.parent == store / kept:
                raise PermissionError(13, "Permission denied", str(path))
            return super().open_file(path, writable=writable)

    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != store / kept and real(path, mode))
    before = {path: path.is_file() and path.read_bytes() for path in store.rglob("*")}
    doors = {
        None: lambda: repair_store(store, CONFIG, disk=Refusing()),
        "queues": lambda: rebuild_store(store, CONFIG, what="queues", disk=Refusing()),
        "index": lambda: rebuild_store(store, CONFIG, what="index", disk=Refusing()),
    }
    with pytest.raises(SystemRefusedError, match=rf"store \({store / kept}.*: Permis") as met:
        doors[what]()
    assert "run it again" not in str(met.value)  # nothing is half done
    assert {path: path.is_file() and path.read_bytes() for path in store.rglob("*")} == before


def test_a_copy_for_which_the_disk_has_no_room_leaves_nothing(store):
    """A repair that is tried again and again on a full disk would take what room there is."""
    queue = store / "consumequeue" / "Topic0" / "0" / f"{0:020d}"
    overwrite_file(queue, 200, b"\x55" * 200)

    class Full(Disk):
        def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
            super().write_at(descriptor, path, position, data[:100])
            if path.is_relative_to(store / "repair"):
                raise no_space_error(path, len(data))

    for _ in range(3):
        with pytest.raises(StoreError, match=r"no room for .*@0-2000\S* .*; run it again to comp"):
            repair_store(store, CONFIG, disk=Full())
    assert not [path for path in (store / "repair").rglob("*") if path.is_file()]
    repair_store(store, CONFIG)
    assert keys_found(store) == COUNT


def test_a_file_system_that_cannot_sync_directories_has_whole_stores(tmp_path, monkeypatch):
    """SMB and some file systems of FUSE answer EINVAL; 4.9 never asks."""
    asked = 0

    def fsync(descriptor: int) -> None:
        nonlocal asked
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            asked += 1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "store"
    build_store(root, 200, Clock())
    crashed(root)
    shutil.rmtree(root / "index")
    assert not repair_store(root, CONFIG).is_damaged
    with open_store(root, Clock()) as opened:
        assert sum(opened.message_count(f"Topic{number}", 0) for number in (0, 1)) == 200
    sync_path(root)  # as jobs on Spark do
    assert asked > 10


PARTS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config", "batchconsumequeue")


@pytest.mark.parametrize("part", [".", *PARTS, "repair", "checkpoint", "known-ends"])
def test_a_link_to_itself_in_the_place_of_a_part_is_named_by_every_door(store, tmp_path, part):
    place = store / part
    if place.exists():
        place.rename(tmp_path / "moved")
    place.symlink_to(place)
    said = []
    for door in (*DOORS, lambda root: refuse_inside_store(str(root), "target")):
        try:
            door(store)
        except StoreError as error:
            said.append(str(error))
    fewer = {"checkpoint": 1, "known-ends": 1, "config": 2, "repair": 0, "consumequeue_ext": 2}
    assert len(said) == fewer.get(part, 4), "where it is needed"
    assert all(str(place) in one for one in said)
    assert all(re.search("Too many levels|is a link to|no file", one) for one in said)
    moved = (store / "repair").rglob(part) if part == "checkpoint" else ()
    assert place.is_symlink() or any(one.is_symlink() for one in moved)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(store, monkeypatch, code):
    def lockf(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    for door in (lambda: open_store(store, Clock()), lambda: repair_store(store, CONFIG)):
        with pytest.raises(SystemRefusedError, match="the file system has no locks: mount it"):
            door()
    with MessageStore.open(store, CONFIG, read_only=True) as reader:
        assert reader.queues()


def test_a_file_system_that_cannot_map_files_is_named_by_the_put(tmp_path):
    """FUSE with ``direct_io``, as of some network drives."""
    with FailingCalls(tmp_path, Fault("mmap", 0, errno.ENODEV, lasting=True)):
        with MessageStore.open(tmp_path / "store", CONFIG, threads=False) as store:
            result = store.put(Message(topic="orders", body=b"x"))
        assert result.status is not PutMessageStatus.PUT_OK
        assert "the file system cannot map files" in str(result.detail)


@pytest.mark.parametrize("stranger", ["pipe", "socket", "link to a device", "directory"])
def test_a_lock_that_is_no_file_is_said_to_be_none(store, stranger):
    (store / "lock").unlink()
    STRANGERS[stranger](store / "lock")
    for door in (open_store, lambda root, _clock: repair_store(root, CONFIG)):
        with pytest.raises(StoreError, match="/lock: it is not a regular file; move it out of"):
            door(store, Clock())
