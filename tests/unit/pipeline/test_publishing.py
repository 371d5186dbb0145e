"""A directory is published as a whole or not at all."""

import errno
import itertools
import os
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline import audit, rebuild, report, restore
from rocketstore.pipeline.jobs import publishing
from rocketstore.pipeline.jobs.archive.archive_table import Archive
from rocketstore.pipeline.jobs.publishing import published, put, refuse_taken, write_parquet
from rocketstore.pipeline.sink.sink_writer import new_job
from rocketstore.places import files
from rocketstore.places.files import files_at
from support.archiving import archived
from support.arrow_frames import Frame
from support.golden import golden_case
from support.rebuild_runs import rebuilt_here
from support.restoring import restored
from support.sink_parts import sink_options

TARGET_OF = {audit: "out", rebuild: "target", report: "out", restore: "target"}


def test_what_was_written_appears_when_the_block_ends(tmp_path):
    with published(str(tmp_path / "made")) as partial:
        (Path(partial) / "inner").mkdir()
        (Path(partial) / "inner" / "file").write_text("x")
        assert not (tmp_path / "made").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (tmp_path / "made" / "inner" / "file").read_text() == "x"


@pytest.mark.parametrize("makes", ["output", "store of a write", "archive"])
def test_the_names_of_new_directories_above_are_on_the_disk(tmp_path, monkeypatch, makes):
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_path", synced.append)
    place = tmp_path / "new" / "deep" / "out"
    if makes == "output":
        with published(str(place)):
            pass
    elif makes == "archive":
        Archive.open(place, or_create=True)
    else:
        new_job(sink_options(place))
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "deep"} <= {*synced}


def test_a_block_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "PAUSE_S", 0)

    def make():
        with published(str(tmp_path / "made")) as partial:
            (Path(partial) / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()
    assert list(tmp_path.iterdir()) == []


def test_a_result_whose_name_cannot_be_brought_to_the_disk_is_not_there(tmp_path, monkeypatch):
    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publishing, "sync_path", refuse)
    with pytest.raises(StoreError, match="Input/output error"), published(str(tmp_path / "made")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_spark_begins_after_an_interrupt_is_removed_too(tmp_path):
    late = threading.Event()

    def make():
        with published(str(tmp_path / "made")) as partial:

            def begin():
                late.wait()
                with suppress(FileNotFoundError):  # removed between the two directories
                    Path(partial, "groups").mkdir(parents=True)

            thread = threading.Thread(target=begin)
            thread.start()
            threading.Timer(0.3, late.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()
    assert late.is_set()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def lost_task(monkeypatch):
    """A task that lost to another attempt writes once more, before a directory is removed."""
    real, late = os.rmdir, []

    def rmdir(path, *, dir_fd=None):
        if "attempts" in str(path) and not late:
            late.append(os.open(f"{path}/late", os.O_CREAT, dir_fd=dir_fd))
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    yield
    for one in late:
        os.close(one)
    assert late


def test_a_job_that_fails_leaves_nothing_though_a_task_still_writes(lost_task, tmp_path):
    def make():
        with published(str(tmp_path / "attempts")):
            raise StoreError("another task failed")

    with pytest.raises(StoreError, match="another task failed"):
        make()
    assert list(tmp_path.iterdir()) == []


def restored_here(store):
    archived(store, store.with_name("archive"))
    restored(store.with_name("archive"), store.with_name("back"))


@pytest.mark.parametrize("work", [rebuilt_here, restored_here])
def test_a_job_is_done_though_a_task_still_writes(lost_task, tmp_path, work):
    store = tmp_path / "store"
    shutil.copytree(golden_case("basic") / "store", store)
    work(store)
    assert not [path for path in tmp_path.rglob("*") if "attempts" in path.name]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("file", "is there already"),
        ("full", "is there already"),
        ("link", "is a link to something"),
    ],
)
def test_nothing_that_is_there_is_replaced(tmp_path, kind, why):
    target = tmp_path / "made"
    if kind == "file":
        target.write_text("mine")
    elif kind == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        (target / "mine").mkdir(parents=True)
    with pytest.raises(StoreError, match=why), published(str(target)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_came_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "made"

    def make():
        with published(str(target)):
            target.mkdir()
            (target / "theirs").write_text("x")

    with pytest.raises(StoreError, match="cannot be written"):
        make()
    assert (target / "theirs").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("is_linked", [False, True])
def test_an_empty_directory_may_be_there(tmp_path, is_linked):
    (tmp_path / "made").mkdir()
    (tmp_path / "link").symlink_to("made")
    with published(f"file://{tmp_path}/{'link' if is_linked else 'made'}") as partial:
        (Path(partial) / "file").write_text("x")
    assert (tmp_path / "made" / "file").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "made"]


def test_a_place_where_a_disk_is_mounted_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    store = shutil.copytree(golden_case("basic") / "store", tmp_path / "store")
    for name, job in itertools.product(("disk", "link"), (audit, rebuild, report, restore)):
        with pytest.raises(StoreError, match=f"{name} is where a disk is mounted"):
            job(None, store, **{TARGET_OF[job]: tmp_path / name})  # where there is no Spark
    refuse_taken(str(tmp_path / "disk" / "new"))


def test_what_a_killed_run_left_is_named_and_kept(tmp_path, caplog):
    left = tmp_path / ".made.0123456789ab.partial"
    left.mkdir()
    with published(str(tmp_path / "made")):
        pass
    assert left.is_dir()
    assert str(left) in caplog.text


def test_on_an_object_store_the_mark_comes_last(s3):
    location = s3.uri("made")
    with published(location) as place:
        assert place == location
        assert files_at(location)[0].list(files_at(location)[1]) == []
    files, path = files_at(location)
    assert [entry.name for entry in files.list(path)] == ["_SUCCESS"]
    with pytest.raises(StoreError, match="is there already"), published(location):
        pass


def test_an_error_says_that_a_run_left_objects(s3):
    location = s3.uri("made")

    def fail(*written):
        with published(location) as place:
            for name in written:
                put(place, name, b"x")
            raise StoreError("it broke", hint="mend it")

    with pytest.raises(StoreError, match=r"mend it$"):
        fail()
    left = f"mend it; what it wrote to {location} is no result: delete it before another run"
    with pytest.raises(StoreError, match=re.escape(left)):
        fail("file")


def test_of_a_task_that_ran_twice_one_file_stays(tmp_path):
    directory = tmp_path / "rows"

    def work(batches):
        (directory / ".of an attempt that was killed").write_bytes(b"half a file")
        yield from batches

    write_parquet(Frame(pa.table({"id": [3, 1, 2]})), work, "id BIGINT", directory)
    assert [one.name for one in directory.iterdir()] == ["part-0.parquet"]
    assert parquet.read_table(directory).to_pydict() == {"id": [3, 1, 2]}


@pytest.mark.parametrize("job", [audit, report])
def test_what_workers_write_is_on_a_disk(tmp_path, job):
    with pytest.raises(ConfigError, match=r"^s3://bucket/made is not on a disk"):
        job(None, golden_case("broker") / "store", out="s3://bucket/made")
