"""Every record of a log is a row of the archive, once, and whatever is no record is kept beside."""

import errno
import hashlib
import itertools
import os
import shutil
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import ArchiveError, ConfigError, StoreFullError
from rocketstore.pipeline.jobs.archive import archive_job
from rocketstore.pipeline.jobs.archive.archive_table import Archive
from rocketstore.pipeline.jobs.execution import map_tasks
from rocketstore.places import files
from rocketstore.places.files import LocalFile
from rocketstore.units import MiB
from support.archiving import archived, assert_covers, rows, state, written_by_another
from support.clock import Clock
from support.descriptors import open_descriptors
from support.golden_stores import LOGS, golden_root
from support.killed import Killed
from support.pipeline_tables import read_table
from support.restoring import restored
from support.small_store import (
    LOG_FILE_BYTES,
    build_store,
    crashed,
    messages,
    open_store,
    overwrite,
    put_all,
    read_log,
)
from support.sparse_log import GIB, make_sparse_log

STRETCHES = (100_000, 1 << 30)


def files_of(archive):
    return [Path(uri) for uri in Archive.open(archive).messages.file_uris()]


@pytest.mark.parametrize("name", LOGS)
def test_rows_are_those_of_the_data_source_however_the_log_is_split(name, tmp_path):
    source = golden_root(name)
    expected = sorted(
        read_table(source, damage="skip", decompressBody=False),
        key=lambda row: row["physicalOffset"],
    )
    # Logs of crashes are alike but for their ends: of them one cut shows enough.
    for stretch in STRETCHES[: 1 if name.startswith("crash/") else None]:
        target = tmp_path / str(stretch)
        archived(source, target, stretch=stretch)
        assert [{name: row[name] for name in expected[0]} for row in rows(target)] == expected
        before = state(target)
        assert archived(source, target, stretch=stretch).run is None
        assert state(target) == before


def test_windows_of_any_size_give_the_same_rows(tmp_path, monkeypatch):
    config = StoreConfig(mapped_file_size_commit_log=9 * MiB, retention=False)
    with MessageStore.open(tmp_path / "store", config) as opened:
        for number in range(150):
            body = bytes([number]) * (number * 271 % 40_000)
            opened.put(Message(topic=f"T{number % 3}", body=body), queue_id=0)
    found = []
    for window in (1 << 16, MiB, 48 * MiB):
        monkeypatch.setattr(archive_job, "WINDOW_BYTES", window)
        for stretch in (MiB, 1 << 30):
            target = tmp_path / f"{window}-{stretch}"
            archived(tmp_path / "store", target, stretch=stretch)
            found.append(rows(target))
    assert len(found[0]) == 150
    assert all(one == found[0] for one in found)


def test_zeros_after_a_blank_are_not_read_and_are_one_row(tmp_path, monkeypatch):
    make_sparse_log(tmp_path / "store", 100, queues=False)
    left = 100 * 512 * 1024
    read_into, read = LocalFile.read_into, LocalFile.read

    def counted(size):
        nonlocal left
        left -= size
        assert left > 0, "zeros are read"

    monkeypatch.setattr(
        LocalFile, "read_into", lambda *given: counted(len(given[2])) or read_into(*given)
    )
    monkeypatch.setattr(LocalFile, "read", lambda *given: counted(given[2]) or read(*given))
    begin = time.process_time()
    result = archived(tmp_path / "store", tmp_path / "a", stretch=64 * GIB)
    assert time.process_time() - begin < 20
    assert (result.records, result.end) == (300, 100 * GIB)
    blanks = Archive.open(tmp_path / "a").read_extents(["blank"], ["size", "content"])
    assert len(blanks) == 100
    assert {len(row["content"]) for row in blanks} == {8}
    assert sum(row["size"] for row in blanks) == 100 * GIB - result.record_bytes


# --- files --------------------------------------------------------------------------------------


def test_a_task_makes_one_file_per_day_whatever_the_topics(tmp_path):
    clock = Clock(1_700_000_000_000)
    with open_store(tmp_path / "store", clock) as opened:
        put_all(opened, messages(40), clock)
        clock.now_ms += 86_400_000
        put_all(opened, messages(30, first=40), clock)
    archived(tmp_path / "store", tmp_path / "a")
    paths = files_of(tmp_path / "a")
    assert sorted(path.parent.name for path in paths) == ["day=2023-11-14", "day=2023-11-15"]
    for path in paths:
        table = pq.ParquetFile(path).read(columns=["topic", "storeTimestamp"])
        days = {time.strftime("day=%Y-%m-%d") for time in table["storeTimestamp"].to_pylist()}
        assert days == {path.parent.name}
        parquet = pq.ParquetFile(path)
        for number in range(parquet.num_row_groups):
            topics = parquet.read_row_group(number, ["topic"])["topic"].to_pylist()
            assert topics == sorted(topics)
    assert {str(row["day"]) for row in rows(tmp_path / "a")} == {"2023-11-14", "2023-11-15"}


def test_a_log_that_jumps_between_days_keeps_few_files_open(tmp_path, monkeypatch):
    counts, make = [], archive_job.TableFile
    monkeypatch.setattr(
        archive_job, "TableFile",
        lambda *given: counts.append(open_descriptors(tmp_path / "a")) or make(*given),
    )  # fmt: skip
    monkeypatch.setattr(archive_job, "_OPEN_FILES", 2)
    monkeypatch.setattr(archive_job, "WINDOW_BYTES", 1)
    clock = Clock(1_700_000_000_000)
    with open_store(tmp_path / "store", clock) as opened:
        for number in range(9):
            clock.now_ms = 1_700_000_000_000 + number % 3 * 86_400_000
            put_all(opened, messages(1, first=number), clock)
    archived(tmp_path / "store", tmp_path / "a", stretch=1 << 30)
    assert (len(rows(tmp_path / "a")), max(counts)) == (9, 1)
    assert_covers(tmp_path / "a", tmp_path / "store")


def test_a_row_group_of_a_window_holds_few_topics(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_job, "ROW_GROUP_BYTES", 4000)
    config = StoreConfig.small(retention=False)
    with MessageStore.open(tmp_path / "store", config) as opened:
        for number in range(640):
            opened.put(Message(topic=f"T{number % 32:02}", body=b"x" * 100), queue_id=number % 3)
    archived(tmp_path / "store", tmp_path / "a", stretch=1 << 30)
    (path,) = files_of(tmp_path / "a")
    metadata = pq.ParquetFile(path).metadata
    column = metadata.schema.to_arrow_schema().names.index("topic")
    bounds = [
        metadata.row_group(number).column(column).statistics
        for number in range(metadata.num_row_groups)
    ]
    with_t7 = [one for one in bounds if one.min <= "T07" <= one.max]
    assert len(bounds) > 20
    assert len(with_t7) <= 3
    keys = pq.ParquetFile(path).read(columns=["topic", "queueId", "queueOffset"]).to_pylist()
    assert [tuple(key.values()) for key in keys] == sorted(tuple(key.values()) for key in keys)


def test_files_are_zstd_where_it_pays_with_statistics_for_what_queries_compare(tmp_path, store):
    archived(store, tmp_path / "a")
    metadata = pq.ParquetFile(files_of(tmp_path / "a")[0]).metadata
    group = metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert columns["recordCRC"].compression == "UNCOMPRESSED"
    for name in ("body", "rawHead", "rawTail", "properties.key_value.value", "keys.list.element"):
        assert columns[name].compression == "ZSTD", name
    for name in ("topic", "queueId", "queueOffset", "storeTimestamp", "physicalOffset", "tags"):
        assert columns[name].statistics.has_min_max, name
    assert not columns["body"].is_stats_set


def test_the_table_knows_what_each_file_holds(tmp_path, store):
    archived(store, tmp_path / "a", stretch=9000)
    actions = Archive.open(tmp_path / "a").messages.get_add_actions(flatten=True)
    found = sorted(pa.table(actions).to_pylist(), key=lambda row: row["min.physicalOffset"])
    assert sum(row["num_records"] for row in found) == 120
    stored = rows(tmp_path / "a")
    for row in found:
        part = [
            one
            for one in stored
            if row["min.physicalOffset"] <= one["physicalOffset"] <= row["max.physicalOffset"]
        ]
        assert len(part) == row["num_records"]
        for name in ("topic", "queueOffset", "storeTimestamp", "brokerName"):
            values = [one[name] for one in part]
            assert (row[f"min.{name}"], row[f"max.{name}"]) == (min(values), max(values)), name


# --- runs ---------------------------------------------------------------------------------------


def grown_to(source: Path, target: Path, stop: int) -> Path:
    """Return a copy of a store whose log ends at a physical offset, zeros after it."""
    (target / "commitlog").mkdir(exist_ok=True, parents=True)
    for path in sorted((source / "commitlog").iterdir()):
        base, content = int(path.name), path.read_bytes()
        kept = max(0, min(stop - base, len(content)))
        if kept or base == 0:
            (target / "commitlog" / path.name).write_bytes(
                content[:kept].ljust(len(content), b"\0")
            )
    return target


def without_broker(found):
    return [row | {"brokerName": ""} for row in found]


def test_runs_at_any_boundary_give_the_rows_of_one_run(tmp_path, store):
    archived(store, tmp_path / "whole")
    expected = rows(tmp_path / "whole")
    stops = [row["physicalOffset"] for row in expected[1::30]]
    # Also in the middle of a record, of a BLANK, and after the last record.
    stops = sorted({*stops, *(stop + 50 for stop in stops), 16_380, 16_384, 1 << 20})
    for stop in stops:
        grown = grown_to(store, tmp_path / "grown", stop)
        archived(grown, tmp_path / "a", stretch=5000)
        assert_covers(tmp_path / "a", grown)
    assert without_broker(rows(tmp_path / "a")) == without_broker(expected)
    assert len(Archive.open(tmp_path / "a").runs("grown")) > 4


def test_the_tables_say_how_far_a_broker_is_archived(tmp_path, store):
    result = archived(store, tmp_path / "a")
    table = DeltaTable(tmp_path / "a/messages")
    assert table.transaction_version("store") == result.end


def test_tables_of_a_running_broker_are_no_news_and_those_of_a_stopped_one_are(tmp_path, store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_bytes(b"{}")
    (store / "abort").touch()
    archived(store, tmp_path / "a")
    (store / "config/consumerOffset.json").write_bytes(b'{"offsetTable": {}}')
    assert archived(store, tmp_path / "a").run is None
    (store / "abort").unlink()
    assert archived(store, tmp_path / "a").run == 2
    assert archived(store, tmp_path / "a").run is None
    (store / "config/consumerOffset.json").write_bytes(b'{"offsetTable": {"a": {}}}')
    assert archived(store, tmp_path / "a").run == 3
    found = Archive.open(tmp_path / "a").read_extents(["config"], ["name", "content"])
    assert {(row["run"], row["content"]) for row in found} >= {
        (1, b"{}"),
        (3, b'{"offsetTable": {"a": {}}}'),
    }


def test_an_empty_store_is_archived_and_goes_on(tmp_path):
    clock = Clock()
    with open_store(tmp_path / "store", clock):
        pass
    assert archived(tmp_path / "store", tmp_path / "a").records == 0
    assert restored(tmp_path / "a", tmp_path / "back", log_only=False).queues == 0
    assert read_table(tmp_path / "back") == []
    with open_store(tmp_path / "store", clock) as opened:
        put_all(opened, messages(3), clock)
    assert archived(tmp_path / "store", tmp_path / "a").records == 3


def test_a_store_is_archived_while_it_is_written(tmp_path):
    clock = Clock()
    with open_store(tmp_path / "store", clock) as opened:
        for first in range(0, 200, 40):
            put_all(opened, messages(40, first=first), clock)
            assert archived(tmp_path / "store", tmp_path / "a", stretch=9000).records == 40
            assert archived(tmp_path / "store", tmp_path / "a").run is None
    archived(tmp_path / "store", tmp_path / "a")
    assert len(rows(tmp_path / "a")) == 200
    assert_covers(tmp_path / "a", tmp_path / "store")


def test_half_a_record_at_the_end_waits_for_the_run_that_finds_it_whole(tmp_path, store):
    last = rows_of(store)[-1]
    place, size = last["physicalOffset"], last["size"]
    whole = read_log(store, place, size)
    crashed(store)
    for number, written in enumerate((3, 40, size // 2, size - 40), 1):
        overwrite(store, place, whole[:written].ljust(size, b"\0"))
        assert archived(store, tmp_path / "a").run == number
        assert len(rows(tmp_path / "a")) == 119
        tails = Archive.open(tmp_path / "a").read_extents(["tail"], ["content"])
        assert [one["content"] for one in tails if one["run"] == number] == [
            whole[:written].rstrip(b"\0")
        ]
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
    assert_covers(tmp_path / "a", grown)


# --- is it the same log? ------------------------------------------------------------------------


def test_a_log_that_was_cut_and_rewritten_is_refused_with_both_hashes(tmp_path, store):
    archived(store, tmp_path / "a")
    before = state(tmp_path / "a")
    last = rows_of(store)[-1]
    old = read_log(store, last["physicalOffset"], last["size"])
    overwrite(store, last["physicalOffset"] + 56, b"\x01")  # a byte of its store time
    new = read_log(store, last["physicalOffset"], last["size"])
    with pytest.raises(ArchiveError) as refused:
        archived(store, tmp_path / "a")
    for content in (old, new):
        assert hashlib.sha256(content).hexdigest() in str(refused.value)
    assert state(tmp_path / "a") == before


def test_a_log_that_was_cut_is_refused(tmp_path, store):
    grown = grown_to(store, tmp_path / "grown", 1 << 20)
    archived(grown, tmp_path / "a")
    shutil.rmtree(grown)
    grown_to(store, grown, rows_of(store)[60]["physicalOffset"])
    with pytest.raises(ArchiveError, match="the log ends at physical offset"):
        archived(grown, tmp_path / "a")


def test_another_store_of_the_same_broker_is_refused_and_other_brokers_share(tmp_path, store):
    archived(store, tmp_path / "a")
    build_store(tmp_path / "x/store", 200, Clock(1_800_000_000_000))
    with pytest.raises(ArchiveError, match=r"expected SHA-256 .*, found"):
        archived(tmp_path / "x/store", tmp_path / "a")
    shutil.move(tmp_path / "x/store", tmp_path / "x/other")
    assert archived(tmp_path / "x/other", tmp_path / "a").records == 200
    assert Archive.open(tmp_path / "a").brokers() == ["other", "store"]
    assert archived(store, tmp_path / "a").run is None


def test_files_deleted_since_are_no_obstacle_while_the_log_goes_on_where_the_archive_ends(
    tmp_path, store
):
    grown = grown_to(store, tmp_path / "grown", LOG_FILE_BYTES)
    archived(grown, tmp_path / "a")
    shutil.rmtree(grown)
    shutil.copytree(store, grown)
    min((grown / "commitlog").iterdir()).unlink()
    found = archived(grown, tmp_path / "a")
    assert found.gap is None
    assert not found.is_compared
    assert_covers(tmp_path / "a", store)
    assert len(rows(tmp_path / "a")) == 120


def test_what_was_deleted_before_it_was_archived_is_a_gap_that_is_reported(tmp_path, store):
    grown = grown_to(store, tmp_path / "grown", 8000)
    end = archived(grown, tmp_path / "a").end
    shutil.rmtree(grown)
    shutil.copytree(store, grown)
    min((grown / "commitlog").iterdir()).unlink()
    assert archived(grown, tmp_path / "a").gap == (end, LOG_FILE_BYTES)
    assert_covers(tmp_path / "a", store)


# --- failures -----------------------------------------------------------------------------------


def test_what_attempts_that_failed_or_came_second_have_written_does_not_count(tmp_path, store):
    def run_twice(spark, tasks, *given):
        for task in tasks[:2]:
            list(archive_job.archive_task(task))
        return map_tasks(spark, tasks, *given)

    archived(store, tmp_path / "a", stretch=9000, run=run_twice)
    archived(store, tmp_path / "b", stretch=9000)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    left = set((tmp_path / "a/messages").rglob("part-*")) - set(files_of(tmp_path / "a"))
    assert len(left) == 2
    table = Archive.open(tmp_path / "a").messages
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert set((tmp_path / "a/messages").rglob("part-*")) == set(files_of(tmp_path / "a"))
    assert_covers(tmp_path / "a", store)


@pytest.mark.parametrize("number", range(1, 5))
def test_a_driver_killed_around_its_commits_leaves_all_or_nothing(
    tmp_path, store, monkeypatch, number
):
    archived(grown_to(store, tmp_path / "grown", 9000), tmp_path / "a")
    shutil.rmtree(tmp_path / "grown")
    shutil.copytree(store, tmp_path / "grown")
    before = len(rows(tmp_path / "a"))
    counter = itertools.count(1)

    def dying(action):
        def step(*given):
            if next(counter) == number:
                raise Killed
            action(*given)
            if next(counter) == number:
                raise Killed

        return step

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "commit", dying(Archive.commit))
        with pytest.raises(Killed):
            archived(tmp_path / "grown", tmp_path / "a")
    assert len(rows(tmp_path / "a")) == (120 if number == 4 else before)
    again = archived(tmp_path / "grown", tmp_path / "a")
    assert again.run == {1: 2, 2: 3, 3: 3, 4: None}[number]
    assert_covers(tmp_path / "a", store)
    assert archived(tmp_path / "grown", tmp_path / "a").run is None


def test_a_run_whose_messages_never_came_is_passed_over_when_the_log_has_grown(
    tmp_path, store, monkeypatch
):
    """Its extents say other things of the same bytes, and of bytes after them."""
    torn = rows_of(store)[50]["physicalOffset"]
    grown = grown_to(store, tmp_path / "grown", 1 << 20)
    overwrite(grown, torn + 60, b"\xff" * 8)

    commit = Archive.commit

    def die(tables, name, *given):
        if name == "messages":
            raise Killed
        commit(tables, name, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "commit", die)
        with pytest.raises(Killed):
            archived(grown, tmp_path / "a")
    overwrite(grown, torn, read_log(store, torn, 100))
    found = archived(grown, tmp_path / "a")
    assert (found.run, found.damaged_bytes, found.records) == (2, 0, 120)
    assert [run.number for run in Archive.open(tmp_path / "a").runs("grown")] == [2]
    assert_covers(tmp_path / "a", store)


def test_what_is_committed_is_on_the_disk_files_first(tmp_path, store, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_path", lambda path: synced.append(Path(path)))
    archived(store, tmp_path / "a")
    names = [os.path.relpath(path, tmp_path / "a") for path in synced]
    order = [name for name in names if name.endswith(("parquet", "01.json"))]
    assert order[-2:] == [f"{name}/_delta_log/{1:020}.json" for name in ("extents", "messages")]
    assert {tmp_path / "a" / name for name in order[:-2]} == set((tmp_path / "a").rglob("part-*"))
    assert {"messages/_delta_log", "extents/_delta_log", "messages/day=2023-11-14"} <= set(names)
    made = names[: names.index(order[0])]
    assert {f"{name}/_delta_log/{0:020}.json" for name in ("extents", "messages")} <= set(made)
    DeltaTable(tmp_path / "a" / "messages").create_checkpoint()  # as every hundredth commit does
    Archive.open(tmp_path / "a").commit("messages", "another", {"another": 1}, [])
    assert f"{1:020}.checkpoint.parquet" in {path.name for path in synced}


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_is_reported_and_leaves_the_archive_as_it_was(
    tmp_path, store, monkeypatch, step
):
    grown = grown_to(store, tmp_path / "grown", 9000)
    archived(grown, tmp_path / "a")
    shutil.rmtree(grown)
    shutil.copytree(store, grown)
    before = sorted((tmp_path / "a").rglob("*"))

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr(pq.ParquetWriter, "write_batch", full)
        else:
            patched.setattr(os, "fsync", full)
        with pytest.raises(StoreFullError, match="No space left on device; nothing of this run"):
            archived(grown, tmp_path / "a")
    assert sorted((tmp_path / "a").rglob("*")) == before
    assert archived(grown, tmp_path / "a").run == 2


def test_a_commit_that_fails_is_told_in_one_line_with_what_to_do(tmp_path, store, monkeypatch):
    def full(*_args, **_kwargs):
        raise DeltaError("local error\n  \x1b[31m↳\x1b[0m No space left on device\n\n")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", full)
        told = "committed to: local error No space left on device; see that there is room.*VACUUM"
        with pytest.raises(ArchiveError, match=told):
            archived(store, tmp_path / "a")
    assert archived(store, tmp_path / "a").run == 1
    written_by_another(tmp_path / "a/messages", "rowTracking")
    grown(store, 10)
    told = r"cannot be committed to: Unsupported table features.*DROP FEATURE"
    with pytest.raises(ArchiveError, match=told):
        archived(store, tmp_path / "a")


def test_a_worker_that_does_not_see_the_archive_fails_and_makes_nothing(tmp_path, store):
    def elsewhere(spark, tasks, *given):
        moved = [task._replace(target=str(tmp_path / "elsewhere")) for task in tasks]
        return map_tasks(spark, moved, *given)

    with pytest.raises(ArchiveError, match="elsewhere cannot be written"):
        archived(store, tmp_path / "a", run=elsewhere)
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_that_changes_meanwhile_is_not_archived(tmp_path, store):
    def cut_first(*given):
        last = rows_of(store)[-1]
        overwrite(store, last["physicalOffset"], bytes(last["size"]))
        return map_tasks(*given)

    with pytest.raises(ArchiveError, match="changed while it was archived"):
        archived(store, tmp_path / "a", run=cut_first)
    assert not (tmp_path / "a").exists()


def test_of_two_archivers_of_a_broker_one_fails_and_nothing_is_there_twice(tmp_path, store):
    def second_is_quicker(*given):
        assert archived(store, tmp_path / "a", stretch=9000).records == 120
        return map_tasks(*given)

    with pytest.raises(ArchiveError, match=r"archived by another process.*VACUUM removes"):
        archived(store, tmp_path / "a", stretch=9000, run=second_is_quicker)
    assert_covers(tmp_path / "a", store)
    assert archived(store, tmp_path / "a").run is None


def test_an_archiver_that_comes_between_the_commits_of_another_one_wins_or_fails(
    tmp_path, store, monkeypatch
):
    plain = Archive.commit

    def come_between(tables, name, *given):
        if name == "messages":
            monkeypatch.setattr(Archive, "commit", plain)
            assert archived(store, tmp_path / "a").records == 120
        plain(tables, name, *given)

    monkeypatch.setattr(Archive, "commit", come_between)
    with pytest.raises(ArchiveError, match="archived by another process"):
        archived(store, tmp_path / "a", stretch=9000)
    assert_covers(tmp_path / "a", store)


def test_brokers_are_archived_at_the_same_time(tmp_path, store):
    shutil.copytree(store, tmp_path / "other")

    def other_is_quicker(*given):
        assert archived(tmp_path / "other", tmp_path / "a", stretch=9000).records == 120
        return map_tasks(*given)

    assert archived(store, tmp_path / "a", stretch=9000, run=other_is_quicker).records == 120
    opened = Archive.open(tmp_path / "a")
    assert opened.brokers() == ["other", "store"]
    assert opened.messages.to_pyarrow_table().num_rows == 240


def test_what_is_no_place_for_an_archive_is_refused(tmp_path, store):
    shutil.copytree(store, tmp_path / "two/one")
    shutil.copytree(store, tmp_path / "two/other")
    with pytest.raises(ConfigError, match="holds 2 stores"):
        archived(tmp_path / "two", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigError, match="is a store"):
        archived(store, store)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="cannot be opened or made"):
        archived(store, tmp_path / "file")
    with pytest.raises(ArchiveError, match="is not an archive"):
        Archive.open(tmp_path / "nowhere")


# --- what others do to the tables ---------------------------------------------------------------


def grown(store, count, days=1):
    clock = Clock(1_700_000_000_000 + days * 86_400_000)
    with open_store(store, clock) as opened:
        put_all(opened, messages(count, first=1000 * days), clock)


def test_optimize_and_vacuum_change_no_row_and_archiving_goes_on(tmp_path, store):
    archived(store, tmp_path / "a", stretch=5000)
    grown(store, 30)
    archived(store, tmp_path / "a", stretch=5000)
    before = rows(tmp_path / "a")
    opened = Archive.open(tmp_path / "a")
    for table in (opened.messages, opened.extents):
        assert table.optimize.compact()["numFilesRemoved"] > 1
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        table.create_checkpoint()
        table.cleanup_metadata()
    assert len(files_of(tmp_path / "a")) == 2
    assert rows(tmp_path / "a") == before
    assert_covers(tmp_path / "a", store)
    assert archived(store, tmp_path / "a").run is None
    grown(store, 20, days=2)
    assert archived(store, tmp_path / "a").records == 20
    assert_covers(tmp_path / "a", store)


def test_old_days_are_deleted_and_archiving_goes_on(tmp_path, store):
    archived(store, tmp_path / "a")
    grown(store, 30)
    archived(store, tmp_path / "a")
    DeltaTable(tmp_path / "a/messages").delete("day < '2023-11-15'")
    assert len(rows(tmp_path / "a")) == 30
    assert archived(store, tmp_path / "a").run is None
    grown(store, 20, days=2)
    assert archived(store, tmp_path / "a").records == 20
    assert len(rows(tmp_path / "a")) == 50


def test_an_earlier_version_is_read_with_its_own_runs(tmp_path, store):
    archived(store, tmp_path / "a")
    version = Archive.open(tmp_path / "a").messages.version()
    grown(store, 30)
    archived(store, tmp_path / "a")
    old = Archive.open(tmp_path / "a", version)
    assert [run.number for run in old.runs("store")] == [1]
    assert old.messages.to_pyarrow_table().num_rows == 120
    assert [run.number for run in Archive.open(tmp_path / "a").runs("store")] == [1, 2]
    with pytest.raises(ArchiveError, match="as of 99"):
        Archive.open(tmp_path / "a", 99)


def test_others_read_the_archive_without_this_package(tmp_path, store):
    import polars as pl  # noqa: PLC0415 - heavy: all workers collect, one of them runs this

    archived(store, tmp_path / "a", stretch=9000)
    location = str(tmp_path / "a/messages")
    expected = sorted(
        (row["topic"], row["queueOffset"], row["body"], dict(row["properties"])["KEYS"])
        for row in rows(tmp_path / "a")
    )
    lazy = pl.scan_delta(location).filter(pl.col("topic") == "Topic1")
    assert lazy.collect().height == sum(one[0] == "Topic1" for one in expected)
    frame = DeltaTable(location).to_pandas()
    assert sorted(zip(frame.topic, frame.queueOffset, frame.body, strict=True)) == [
        one[:3] for one in expected
    ]
    files = DeltaTable(location).file_uris()
    found = duckdb.read_parquet(files, hive_partitioning=True).filter("day = DATE '2023-11-14'")
    read = found.project("topic, queueOffset, body, properties['KEYS']").fetchall()
    assert sorted(read) == expected
