"""An archive gets every byte once, whatever happens on the way, and readers see whole runs only."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ConfigError,
    NotAStoreError,
    StoreFullError,
)
from rocketstore.pipeline.jobs.archive import commit
from rocketstore.pipeline.jobs.archive import task as task_module
from rocketstore.pipeline.jobs.archive.layout import escaped_topic, partition
from rocketstore.pipeline.jobs.archive.manifest import read_manifests
from rocketstore.pipeline.jobs.archive.place import archive_place
from rocketstore.units import MiB
from support.archive_runs import (
    archived,
    log_bytes,
    restored,
    rows,
    run_archive_tasks,
    sent,
    tree,
    visible_files,
)
from support.golden_stores import STORES, golden_store
from support.pipeline_tables import read_table
from support.small_store import (
    LOG_FILE_BYTES,
    Clock,
    build_store,
    crashed,
    messages,
    open_store,
    overwrite,
    put_all,
    read_log,
)

SPLITS = (30_000, 1 << 30)


@pytest.fixture
def store(tmp_path):
    """Return a store of three files."""
    build_store(tmp_path / "store", 120, Clock())
    return tmp_path / "store"


@pytest.mark.parametrize("name", STORES)
def test_rows_are_those_of_the_data_source_however_the_log_is_split(name, tmp_path):
    source, _ = golden_store(name)
    expected = sorted(
        read_table(source, damage="skip", decompressBody=False),
        key=lambda row: row["physicalOffset"],
    )
    for split in SPLITS:
        archived(source, tmp_path / str(split), split=split)
        found = rows(tmp_path / str(split))
        assert [{name: row[name] for name in expected[0]} for row in found] == expected
        shutil.rmtree(tmp_path / str(split))


def test_splits_of_1_mib_and_7_mib_and_whole_files_give_the_same_archive(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=9 * MiB, retention=False)
    with MessageStore.open(tmp_path / "store", config) as opened:
        for number in range(900):
            body = bytes([number % 256]) * (number * 37 % 40_000)
            opened.put(Message(topic=f"T{number % 3}", body=body), queue_id=0)
    found = []
    for split in (MiB, 7 * MiB, 1 << 30):
        archived(tmp_path / "store", tmp_path / "a", split=split)
        restored(tmp_path / "a", tmp_path / "back")
        assert log_bytes(tmp_path / "back") == log_bytes(tmp_path / "store")
        found.append(rows(tmp_path / "a"))
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "back")
    assert len(found[0]) == 900
    assert found[0] == found[1] == found[2]


def test_topic_and_day_are_in_the_names_of_directories(tmp_path):
    source, _ = golden_store("broker")
    archived(source, tmp_path / "a")
    for manifest in read_manifests(archive_place(tmp_path / "a")):
        for file in manifest.files:
            table = pq.ParquetFile(tmp_path / "a/messages/run=00000001" / file.path).read()
            days = {time.strftime("%Y-%m-%d") for time in table["storeTimestamp"].to_pylist()}
            assert file.path.startswith(f"topic={escaped_topic(file.topic_bytes)}/")
            assert days == {file.path.split("day=")[1][:10]}


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        (b"orders", "orders"),
        (b"%RETRY%group", "%25RETRY%25group"),
        (b"a/b=c", "a%2Fb%3Dc"),
        ("日本".encode(), "日本"),
        (b"", "__HIVE_DEFAULT_PARTITION__"),
        (b"..", ".."),
    ],
)
def test_topics_are_escaped_as_spark_does(topic, name):
    assert escaped_topic(topic) == name


def test_a_topic_too_long_for_a_file_system_is_cut_and_told_by_a_hash(tmp_path):
    one, other = (partition(b"t" * 500 + end, 20_000) for end in (b"1", b"2"))
    assert one != other
    (tmp_path / one).mkdir(parents=True)
    assert "/" not in escaped_topic(b"\xff/" * 200)


def test_rows_of_a_file_are_sorted_by_queue_and_offset(tmp_path):
    source, _ = golden_store("basic")
    archived(source, tmp_path / "a")
    for path in visible_files(tmp_path / "a"):
        table = pq.ParquetFile(path).read(columns=["queueId", "queueOffset"])
        keys = list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
        assert keys == sorted(keys)


def test_files_are_zstd_with_statistics_for_what_queries_compare(tmp_path, store):
    archived(store, tmp_path / "a")
    metadata = pq.ParquetFile(visible_files(tmp_path / "a")[0]).metadata
    columns = {
        metadata.row_group(0).column(n).path_in_schema: metadata.row_group(0).column(n)
        for n in range(metadata.num_columns)
    }
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for name in ("queueId", "queueOffset", "storeTimestamp", "physicalOffset", "tags"):
        assert columns[name].statistics.has_min_max, name
    assert not columns["body"].is_stats_set


def test_row_groups_end_at_their_size(tmp_path, store, monkeypatch):
    monkeypatch.setattr(task_module, "ROW_GROUP_BYTES", 2000)
    archived(store, tmp_path / "a")
    for path in visible_files(tmp_path / "a"):
        metadata = pq.ParquetFile(path).metadata
        sizes = pq.ParquetFile(path).read(columns=["size"])["size"].to_pylist()
        assert metadata.num_row_groups >= sum(sizes) / 2000
    assert len(rows(tmp_path / "a")) == 120


# --- incremental --------------------------------------------------------------------------------


def grown_to(source: Path, target: Path, stop: int) -> Path:
    """Return a copy of a store whose log ends at a physical offset, zeros behind."""
    target.mkdir(exist_ok=True)
    (target / "commitlog").mkdir(exist_ok=True)
    for path in sorted((source / "commitlog").iterdir()):
        base, content = int(path.name), path.read_bytes()
        kept = max(0, min(stop - base, len(content)))
        if kept or base == 0:
            (target / "commitlog" / path.name).write_bytes(
                content[:kept].ljust(len(content), b"\0")
            )
    return target


def test_runs_at_any_boundary_give_the_archive_of_one_run(tmp_path, store):
    archived(store, tmp_path / "whole")
    expected = rows(tmp_path / "whole")
    stops = [row["physicalOffset"] for row in expected[1::7]]
    # Also in the middle of a record, of a BLANK, and behind the last record.
    stops = sorted({*stops, *(stop + 50 for stop in stops), 16_380, 16_384, 1 << 20})
    for stop in stops:
        grown = grown_to(store, tmp_path / "grown", stop)
        archived(grown, tmp_path / "a", split=5000)
        restored(tmp_path / "a", tmp_path / "back")
        assert log_bytes(tmp_path / "back") == log_bytes(grown), stop
        shutil.rmtree(tmp_path / "back")
    assert [row | {"brokerName": "store"} for row in rows(tmp_path / "a")] == expected
    assert sum(len(pq.ParquetFile(path).read()) for path in visible_files(tmp_path / "a")) == 120
    assert len(read_manifests(archive_place(tmp_path / "a"))) > 20


def test_nothing_new_makes_no_run(tmp_path, store):
    first = archived(store, tmp_path / "a")
    before = tree(tmp_path / "a")
    second = archived(store, tmp_path / "a")
    assert (first.run, second.run, second.is_compared) == (1, None, True)
    assert second.end == first.end
    assert tree(tmp_path / "a") == before


def test_an_empty_store_is_archived_and_goes_on(tmp_path):
    clock = Clock()
    with open_store(tmp_path / "store", clock):
        pass
    assert archived(tmp_path / "store", tmp_path / "a").records == 0
    with open_store(tmp_path / "store", clock) as opened:
        put_all(opened, messages(3), clock)
    assert archived(tmp_path / "store", tmp_path / "a").records == 3


def test_a_store_is_archived_while_it_is_written(tmp_path):
    clock = Clock()
    with open_store(tmp_path / "store", clock) as opened:
        for first in range(0, 200, 40):
            put_all(opened, messages(40, first=first), clock)
            assert archived(tmp_path / "store", tmp_path / "a", split=9000).records == 40
    archived(tmp_path / "store", tmp_path / "a")
    assert len(rows(tmp_path / "a")) == 200
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(tmp_path / "store")


def test_half_a_record_at_the_end_waits_for_the_run_that_finds_it_whole(tmp_path, store):
    last = rows_of(store)[-1]
    place, size = last["physicalOffset"], last["size"]
    whole = read_log(store, place, size)
    crashed(store)
    for written in (3, 40, size // 2, size - 40):
        overwrite(store, place, whole[:written].ljust(size, b"\0"))
        archived(store, tmp_path / "a")
        assert len(rows(tmp_path / "a")) == 119
        restored(tmp_path / "a", tmp_path / f"back{written}")
        assert log_bytes(tmp_path / f"back{written}") == log_bytes(store)
    overwrite(store, place, whole)
    assert archived(store, tmp_path / "a").records == 1


def rows_of(store):
    found = read_table(store, damage="skip", columns="physicalOffset,size")
    return sorted(found, key=lambda row: row["physicalOffset"])


def test_what_was_torn_and_is_followed_by_records_is_damage_of_the_next_run(tmp_path, store):
    places = rows_of(store)
    torn = places[100]["physicalOffset"]
    grown = grown_to(store, tmp_path / "grown", torn + 30)
    archived(grown, tmp_path / "a")
    shutil.rmtree(grown)
    shutil.copytree(store, grown)
    overwrite(grown, torn + 30, bytes(60))
    found = archived(grown, tmp_path / "a")
    assert (found.records, found.damaged_bytes) == (19, places[100]["size"])
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(grown)


# --- is it the same log? ------------------------------------------------------------------------


def test_a_log_that_was_cut_and_rewritten_is_refused_with_both_hashes(tmp_path, store):
    archived(store, tmp_path / "a")
    before = tree(tmp_path / "a")
    last = rows_of(store)[-1]
    old = read_log(store, last["physicalOffset"], last["size"])
    overwrite(store, last["physicalOffset"] + 56, b"\x01")  # a byte of its store time
    new = read_log(store, last["physicalOffset"], last["size"])
    with pytest.raises(ArchiveError) as refused:
        archived(store, tmp_path / "a")
    for content in (old, new):
        assert hashlib.sha256(content).hexdigest() in str(refused.value)
    assert tree(tmp_path / "a") == before


def test_a_log_that_was_cut_is_refused(tmp_path, store):
    archived(store, tmp_path / "a")
    cut = grown_to(store, tmp_path / "cut", rows_of(store)[60]["physicalOffset"])
    with pytest.raises(ArchiveError, match="the log ends at physical offset"):
        archived(cut, tmp_path / "a")


def test_another_store_is_refused(tmp_path, store):
    archived(store, tmp_path / "a")
    build_store(tmp_path / "other", 200, Clock(1_800_000_000_000))
    with pytest.raises(ArchiveError, match=r"expected SHA-256 .*, found"):
        archived(tmp_path / "other", tmp_path / "a")


def test_files_deleted_since_are_no_obstacle_while_the_log_goes_on_where_the_archive_ends(
    tmp_path, store
):
    files = sorted((store / "commitlog").iterdir())
    archived(grown_to(store, tmp_path / "grown", LOG_FILE_BYTES), tmp_path / "a")
    expected = log_bytes(store)
    files[0].unlink()
    found = archived(store, tmp_path / "a")
    assert found.gap is None
    assert not found.is_compared
    assert len(rows(tmp_path / "a")) == 120
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == expected


def test_what_was_deleted_before_it_was_archived_is_a_gap_that_is_told(tmp_path, store):
    archived(grown_to(store, tmp_path / "grown", 8000), tmp_path / "a")
    end = read_manifests(archive_place(tmp_path / "a"))[-1].end
    min((store / "commitlog").iterdir()).unlink()
    found = archived(store, tmp_path / "a")
    assert found.gap == (end, LOG_FILE_BYTES)
    assert read_manifests(archive_place(tmp_path / "a"))[-1].gap == (end, LOG_FILE_BYTES)
    restored(tmp_path / "a", tmp_path / "back")
    back = log_bytes(tmp_path / "back")
    assert {name: back[name] for name in log_bytes(store)} == log_bytes(store)


# --- failures -----------------------------------------------------------------------------------


def test_what_attempts_that_failed_or_came_second_have_written_does_not_count(tmp_path, store):
    def run_twice(tasks):
        task_module.archive_task(sent(tasks[0])).__next__()
        return run_archive_tasks(tasks)

    archived(store, tmp_path / "a", split=9000, run=run_twice)
    archived(store, tmp_path / "b", split=9000)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert ds.dataset(tmp_path / "a/messages", partitioning="hive").count_rows() == 120


def test_what_a_killed_run_left_is_swept_and_never_seen(tmp_path, store):
    archived(grown_to(store, tmp_path / "grown", 9000), tmp_path / "a")
    count = len(visible_files(tmp_path / "a"))
    for left in ("_staging/tasks/00000-x", "_staging/messages/y", "extents/run=00000002/z"):
        (tmp_path / "a" / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / left).write_bytes(b"half a file")
    assert len(visible_files(tmp_path / "a")) == count
    archived(store, tmp_path / "a")
    assert not list((tmp_path / "a").rglob("[xyz]"))
    assert not (tmp_path / "a/_staging").exists()
    assert len(rows(tmp_path / "a")) == 120


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours handles it, and no cleanup runs behind it."""


def test_a_driver_killed_at_any_step_of_the_commit_leaves_all_or_nothing(
    tmp_path, store, monkeypatch
):
    archived(store, tmp_path / "expected", split=9000)
    expected = tree(tmp_path / "expected")
    for number in itertools.count(1):
        target = tmp_path / f"a{number}"
        counter = itertools.count(1)

        def dying(action, counter=counter, number=number):
            def step(*given):
                if next(counter) == number:
                    raise Killed
                return action(*given)

            return step

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", dying(Path.rename))
            patched.setattr(commit, "sync_path", dying(commit.sync_path))
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # the dead clean nothing up
            try:
                archived(store, target, split=9000)
            except Killed:
                pass
            else:
                break
        assert len(visible_files(target)) in (0, len(visible_files(tmp_path / "expected")))
        archived(store, target, split=9000)
        assert tree(target) == expected, number
        shutil.rmtree(target)
    assert number > 20


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_is_told_and_leaves_the_archive_as_it_was(tmp_path, store, monkeypatch, step):
    archived(grown_to(store, tmp_path / "grown", 9000), tmp_path / "a")
    before = tree(tmp_path / "a")

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr(pq.ParquetWriter, "write_batch", full)
        else:
            patched.setattr(os, "fsync", full)
        with pytest.raises(StoreFullError, match="the disk is full"):
            archived(store, tmp_path / "a")
    assert tree(tmp_path / "a") == before
    assert archived(store, tmp_path / "a").run == 2


def test_an_archive_has_one_writer(tmp_path, store):
    with commit.locked(tmp_path / "a"), pytest.raises(ArchiveError, match="another process"):
        archived(store, tmp_path / "a")


def test_a_log_that_changes_meanwhile_is_not_archived(tmp_path, store):
    def cut_first(tasks):
        last = rows_of(store)[-1]
        overwrite(store, last["physicalOffset"], bytes(last["size"]))
        return run_archive_tasks(tasks)

    with pytest.raises(ArchiveError, match="changed while it was archived"):
        archived(store, tmp_path / "a", run=cut_first)
    assert not visible_files(tmp_path / "a")


def test_an_archive_with_a_run_missing_is_not_continued(tmp_path, store):
    for stop in (5000, 9000, 1 << 20):
        archived(grown_to(store, tmp_path / "grown", stop), tmp_path / "a")
    shutil.rmtree(tmp_path / "a/messages/run=00000002")
    with pytest.raises(ArchiveDamagedError, match="run=00000002 is missing"):
        archived(store, tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": 1}', b"\xff"])
def test_a_broken_manifest_is_told_with_its_path(tmp_path, store, content):
    archived(store, tmp_path / "a")
    (tmp_path / "a/messages/run=00000001/_manifest.json").write_bytes(content)
    with pytest.raises(ArchiveDamagedError, match="is no manifest"):
        archived(store, tmp_path / "a")


def test_an_archive_of_a_later_version_is_refused(tmp_path, store):
    archived(store, tmp_path / "a")
    path = tmp_path / "a/messages/run=00000001/_manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(ArchiveError, match="expected format 1, found 2"):
        archived(store, tmp_path / "a")


def test_a_directory_of_several_stores_is_refused(tmp_path, store):
    shutil.copytree(store, tmp_path / "two/one")
    shutil.copytree(store, tmp_path / "two/other")
    with pytest.raises(ConfigError, match="holds 2 stores"):
        archived(tmp_path / "two", tmp_path / "a")
    with pytest.raises(NotAStoreError):
        archived(tmp_path / "nowhere", tmp_path / "a")
    with pytest.raises(ConfigError, match="has no lock"):
        archived(store, "s3://bucket/archive")
    with pytest.raises(ConfigError, match="is a store"):
        archived(store, store)
