"""A disk of the log that is not mounted: every door says so, and nothing takes its place."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.cli.log_scan import log_files_of
from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.pipeline.jobs.report.report_job import plan_report
from rocketstore.storage.read_only import ReadOnlyStore
from support.archiving import archived
from support.audit_runs import audited, kinds
from support.clock import START_MS, Clock
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.small_store import CONFIG, LOG_FILE_BYTES, crashed
from support.stream_run import StreamRun

NOW_MS = START_MS + 3_600_000
COUNT = 300
DISKS = ("disk0", "disk1", "disk2")


def paths(place: Path, *names: str) -> str:
    return ",".join(str(place / name) for name in names or DISKS)


def settings(place: Path, *names: str) -> StoreConfig:
    return msgspec.structs.replace(CONFIG, store_path_commit_log=paths(place, *names))


def opened(place: Path, *names: str) -> MessageStore:
    config = settings(place, *names)
    return MessageStore.open(place / "root", config, clock=Clock(NOW_MS), threads=False)


def reading(place: Path, *names: str) -> ReadOnlyStore:
    return MessageStore.open(place / "root", settings(place, *names), read_only=True)


def put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        message = Message(topic="T", body=b"x" * 200, keys=f"k{number}")
        assert store.put(message).is_stored
    assert store.wait_dispatched()


def found(store: MessageStore, count: int = COUNT) -> set[int]:
    return {number for number in range(count) if store.find("T", f"k{number}")}


@pytest.fixture
def place(tmp_path):
    with opened(tmp_path) as store:
        put(store, 0, COUNT)
    (tmp_path / "root" / "log-directories").unlink()  # as a broker of 4.9 leaves a store
    return tmp_path


def disk_of_file(place: Path, at: int) -> Path:
    files = sorted((file.name, file) for name in DISKS for file in (place / name).iterdir())
    written = [file for _, file in files if any(file.read_bytes())]
    return written[at].parent


def unmount(disk: Path) -> Callable[[], None]:
    disk.rename(hidden := disk.with_name("hidden"))
    disk.mkdir()

    def mount() -> None:
        shutil.rmtree(disk)
        hidden.rename(disk)

    return mount


def remove(disk: Path) -> Callable[[], None]:
    mount = unmount(disk)
    disk.rmdir()

    def back() -> None:
        disk.mkdir()
        mount()

    return back


DOORS: dict[str, Callable[[Path], object]] = {
    "open": opened,
    "verify": lambda place: verify_store(place / "root", settings(place), now_ms=NOW_MS),
    "read-only": reading,
    "repair": lambda place: repair_store(place / "root", settings(place), now_ms=NOW_MS),
    "dry run": lambda place: repair_store(
        place / "root", settings(place), dry_run=True, now_ms=NOW_MS
    ),
    "rebuild": lambda place: rebuild_store(
        place / "root", settings(place), what="index", now_ms=NOW_MS
    ),
    "spark": lambda place: rebuilt_here(place / "root", config=settings(place)),
    "audit": lambda place: audited(place / "root", config=settings(place)),
    "archive": lambda place: archived(place / "root", place / "a", config=settings(place)),
    "report": lambda place: plan_report(place / "root", place / "r", settings(place)),
    "table": lambda place: read_table(place / "root", storePathCommitLog=paths(place)),
    "stream": lambda place: StreamRun(place / "root", storePathCommitLog=paths(place)).batch(),
    "scan, scrub": lambda place: log_files_of(place / "root", settings(place)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("which", [0, 1, 2, -1])
@pytest.mark.parametrize("away", [unmount, remove])
def test_a_disk_that_is_away_is_named_and_nothing_is_made_in_its_place(place, door, which, away):
    disk = disk_of_file(place, which)
    back = away(disk)
    with pytest.raises(
        StoreDamagedError, match=rf"has no file for .* \d+ to.*expected in .*{disk}"
    ):
        DOORS[door](place)
    assert not disk.exists() or not list(disk.iterdir())
    back()
    with opened(place) as store:
        assert found(store) == set(range(COUNT))
        put(store, COUNT, 3)
        assert found(store, COUNT + 3) == set(range(COUNT + 3))
    assert verify_store(place / "root", settings(place), now_ms=NOW_MS).findings == []


@pytest.mark.parametrize("is_crashed", [False, True])
def test_the_last_disk_is_missed_though_only_the_index_knows_its_records(place, *, is_crashed):
    disk = disk_of_file(place, -1)
    back = unmount(disk)
    shutil.rmtree(place / "root" / "consumequeue")
    (place / "root" / "known-ends").unlink()
    if is_crashed:
        crashed(place / "root")
    with pytest.raises(StoreDamagedError, match="has no file for"):
        opened(place)
    back()
    with opened(place) as store:
        assert found(store) == set(range(COUNT))


@pytest.mark.parametrize("door", ["open", "read-only", "repair"])
@pytest.mark.parametrize("away", [unmount, remove])
def test_a_disk_that_had_no_message_yet_is_missed_by_its_directory(tmp_path, door, away):
    with opened(tmp_path) as store:
        put(store, 0, 3)
    back = away(tmp_path / "disk2")
    with pytest.raises(
        StoreDamagedError, match="disk2 is empty, and is not the directory in which"
    ):
        DOORS[door](tmp_path)
    back()
    with opened(tmp_path) as store:
        assert found(store, 3) == {0, 1, 2}


def test_where_it_is_right_that_a_directory_is_empty_the_record_is_removed(tmp_path):
    with opened(tmp_path) as store:
        put(store, 0, 3)
    remove(tmp_path / "disk2")
    with pytest.raises(StoreDamagedError, match="remove log-directories"):
        opened(tmp_path)
    (tmp_path / "root" / "log-directories").unlink()
    with opened(tmp_path) as store:
        assert found(store, 3) == {0, 1, 2}


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_directory_that_the_settings_forget_is_missed(place, which):
    opened(place).close()  # from now on we know how many there are
    others = [name for number, name in enumerate(DISKS) if number != which]
    with pytest.raises(StoreDamagedError, match=f"{DISKS[which]}; .*name every"):
        opened(place, *others)
    with opened(place) as store:
        assert found(store) == set(range(COUNT))


@pytest.mark.parametrize("which", [0, -1])
def test_a_disk_lost_for_good_is_taken_out_of_the_settings_and_repaired(place, which):
    disk = disk_of_file(place, which)
    shutil.rmtree(disk)
    left = [name for name in DISKS if name != disk.name]
    with pytest.raises(StoreDamagedError):
        opened(place, *left)
    repair_store(place / "root", settings(place, *left), now_ms=NOW_MS)
    with opened(place, *left) as store:
        there = found(store)
        assert 0 < len(there) < COUNT
        put(store, COUNT, 3)
    with opened(place, *DISKS) as store:  # and a new disk in its place
        assert found(store, COUNT + 3) == there | {COUNT, COUNT + 1, COUNT + 2}
        put(store, COUNT + 3, COUNT)
    with opened(place) as store:
        assert found(store, 2 * COUNT) >= set(range(COUNT, 2 * COUNT))


def test_one_file_that_is_gone_of_several_directories_is_no_news_after_a_repair(place):
    (gone,) = [file for name in DISKS for file in (place / name).glob(f"*{LOG_FILE_BYTES * 2}")]
    gone.unlink()
    with pytest.raises(StoreDamagedError, match=f"offsets {LOG_FILE_BYTES * 2} to .*lost .*repair"):
        opened(place)
    reading(place).close()
    repair_store(place / "root", settings(place), now_ms=NOW_MS)
    for _ in range(2):
        with opened(place) as store:
            assert 0 < len(found(store)) < COUNT


def test_what_a_power_cut_takes_of_the_last_file_is_no_missing_disk(place):
    files = sorted((file.name, file) for name in DISKS for file in (place / name).iterdir())
    last = files[-1][1]
    last.write_bytes(bytes(LOG_FILE_BYTES))
    crashed(place / "root")
    with opened(place) as store:
        assert {one.kind for one in store.recovery.findings} >= {"queue-kept"}
        put(store, COUNT, 3)
        assert found(store, COUNT + 3) > {COUNT, COUNT + 1}


@pytest.mark.parametrize("items", [400, 450])
def test_a_copy_of_the_store_with_an_empty_directory_opens(tmp_path, items, monkeypatch):
    """Also where only the settings tell how an index file is divided."""
    monkeypatch.setitem(globals(), "CONFIG", msgspec.structs.replace(CONFIG, max_index_num=items))
    (tmp_path / "one").mkdir()
    with opened(tmp_path / "one") as store:
        put(store, 0, 3)
    shutil.copytree(tmp_path / "one", tmp_path / "kept")
    shutil.rmtree(tmp_path / "one")
    shutil.copytree(tmp_path / "kept", tmp_path / "one")
    with opened(tmp_path / "one") as store:
        assert found(store, 3) == {0, 1, 2}


def test_new_directories_may_be_added(place):
    opened(place).close()
    with opened(place, *DISKS, "disk3") as store:
        put(store, COUNT, COUNT)
    assert list((place / "disk3").iterdir())
    with opened(place, *DISKS, "disk3") as store:
        assert found(store, 2 * COUNT) == set(range(2 * COUNT))


# --- one directory --------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["open", "repair", "rebuild"])
def test_one_directory_without_a_file_is_refused_where_there_was_a_log(tmp_path, door):
    with opened(tmp_path, "disk0") as store:
        put(store, 0, 3)
    shutil.rmtree(tmp_path / "root" / "consumequeue")  # another disk, say
    doors: dict[str, Callable[[], object]] = {
        "open": lambda: opened(tmp_path, "disk0"),
        "repair": lambda: repair_store(tmp_path / "root", settings(tmp_path, "disk0")),
        "rebuild": lambda: rebuild_store(
            tmp_path / "root", settings(tmp_path, "disk0"), what="queues", now_ms=NOW_MS
        ),
    }
    back = unmount(tmp_path / "disk0")
    with pytest.raises(StoreDamagedError, match=r"known-ends|is not the directory"):
        doors[door]()
    assert not list((tmp_path / "disk0").iterdir())
    back()
    with opened(tmp_path, "disk0") as store:
        assert found(store, 3) == {0, 1, 2}


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_store_does_not_begin_again_where_log_and_queues_are_away(tmp_path, *, is_crashed):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        put(store, 0, 3)
    for name in ("commitlog", "consumequeue"):
        (tmp_path / name).rename(tmp_path / f"{name}.hidden")
        (tmp_path / name).mkdir()
    if is_crashed:
        crashed(tmp_path)
    for door in (MessageStore.open, repair_store):
        with pytest.raises(StoreDamagedError, match="known-ends knows of a log up to"):
            door(tmp_path, CONFIG)
    assert not list((tmp_path / "commitlog").iterdir())
    (tmp_path / "known-ends").unlink()  # as the error says
    MessageStore.open(tmp_path, CONFIG, threads=False).close()


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_queues_and_index_of_a_disk_that_is_away_are_made_again(place, name):
    (place / "root" / name).rename(place / "hidden")
    (place / "root" / name).mkdir()
    with opened(place) as store:
        assert found(store) == set(range(COUNT))
        put(store, COUNT, 3)
    shutil.rmtree(place / "root" / name)
    (place / "hidden").rename(place / "root" / name)  # it is back, and older than the log
    with opened(place) as store:
        assert found(store, COUNT + 3) == set(range(COUNT + 3))
        assert store.max_offset("T", 0) == COUNT + 3


@pytest.mark.parametrize("gone", [["known-ends"], ["consumequeue", "index"]])
@pytest.mark.parametrize("left", [[], ["0" * 20]], ids=["nothing", "an emptied file"])
@pytest.mark.parametrize("door", sorted(DOORS.keys() - {"verify", "audit"}))  # which tell it
def test_a_log_without_a_file_is_refused_where_queues_or_known_ends_tell_of_one(
    tmp_path, monkeypatch, door, left, gone
):
    monkeypatch.setitem(globals(), "DISKS", ["root/commitlog"])
    with opened(tmp_path) as store:
        put(store, 0, 3)
    for name in gone:
        place = tmp_path / "root" / name
        place.rename(place.with_name(f"{name}.away")) if place.exists() else None
    back = unmount(tmp_path / "root/commitlog")
    emptied = [tmp_path / "root/commitlog" / name for name in left]
    for file in emptied:
        file.touch()
    with pytest.raises(StoreError, match="root had messages, and has no CommitLog file"):
        DOORS[door](tmp_path)
    assert [file.stat().st_size for file in emptied] == [0] * len(left)
    for file in emptied:
        file.unlink()
    back()
    assert len(read_table(tmp_path / "root")) == 3


def test_a_store_without_a_message_may_lose_its_directory(tmp_path):
    MessageStore.open(tmp_path, CONFIG).close()
    shutil.rmtree(tmp_path / "commitlog")
    MessageStore.open(tmp_path, CONFIG).close()
    with pytest.raises(StoreError):
        MessageStore.open(tmp_path / "nothing", CONFIG, read_only=True)


@pytest.mark.parametrize("size", [0, 5000, LOG_FILE_BYTES], ids=["empty", "cut", "whole"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_copy_of_a_file_in_another_directory_hides_nothing_of_it(place, at, size):
    disks = [disk_of_file(place, at), disk_of_file(place, at + 1)]
    name = sorted(file.name for disk in DISKS for file in (place / disk).iterdir())[at]
    copy = disks[1] / name
    copy.write_bytes((disks[0] / name).read_bytes()[:size])

    for look in ("verify", "audit", "dry run"):
        assert kinds(DOORS[look](place).findings) == ["log-file-duplicate"]
    for door in (reading, opened):
        with door(place) as store:
            assert found(store) == set(range(COUNT))
    report = DOORS["repair"](place)
    assert report.remaining == []
    kept = [path for path in (place / "root" / "repair").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in kept] == [size]
    with opened(place) as store:
        assert found(store) == set(range(COUNT))


def test_an_empty_store_begins_where_what_the_error_names_was_moved_away(tmp_path):
    root, config = tmp_path / "root", settings(tmp_path, "root/commitlog")
    with opened(tmp_path, "root/commitlog") as store:
        put(store, 0, 3)
    shutil.rmtree(root / "commitlog")
    with pytest.raises(StoreError, match=r"to begin an empty store, move .* away") as lost:
        opened(tmp_path, "root/commitlog")
    for path in list(root.iterdir()):
        if path.name in lost.value.hint.rpartition("move ")[2]:
            path.rename(tmp_path / path.name)
    with opened(tmp_path, "root/commitlog") as store:
        put(store, 3, 1)
    assert not verify_store(root, config, now_ms=NOW_MS).is_damaged
