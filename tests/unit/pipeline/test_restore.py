"""A restored log is the archived one, byte for byte; a broken archive restores nothing."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from rocketstore import MessageStore
from rocketstore.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ConfigError,
    StoreError,
    StoreFullError,
)
from rocketstore.pipeline.jobs.restore import driver_commit
from rocketstore.pipeline.jobs.restore import task as task_module
from rocketstore.pipeline.jobs.restore.plan import lay_out
from support.archive_runs import (
    archived,
    log_bytes,
    restored,
    rows,
    run_restore_tasks,
    sent,
    tree,
    visible_files,
)
from support.golden import CRASH_CASES, golden_case
from support.golden_stores import STORES, golden_store
from support.pipeline_tables import read_table
from support.small_store import (
    START_MS,
    Clock,
    bodies,
    build_store,
    open_store,
    overwrite,
)
from support.synthetic_log import MAGIC_V2, SyntheticLog

SPLITS = (30_000, 1 << 30)


@pytest.fixture
def store(tmp_path):
    """Return a store of three files."""
    build_store(tmp_path / "store", 120, Clock())
    return tmp_path / "store"


@pytest.mark.parametrize("name", STORES)
def test_golden_logs_come_back_byte_for_byte(name, tmp_path):
    source, _ = golden_store(name)
    for split in SPLITS:
        archived(source, tmp_path / "a", split=split)
        found = restored(tmp_path / "a", tmp_path / "back")
        assert log_bytes(tmp_path / "back") == log_bytes(source)
        assert found.is_whole
        config = source / "config"
        expected = {path.name: path.read_bytes() for path in config.iterdir() if path.is_file()}
        assert {
            name: (tmp_path / "back/config" / name).read_bytes() for name in expected
        } == expected
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "back")


@pytest.mark.parametrize("case", CRASH_CASES)
def test_golden_logs_as_a_crash_left_them_come_back_byte_for_byte(case, tmp_path):
    source = golden_case("crash") / case / "in"
    archived(source, tmp_path / "a", split=30_000)
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)


# --- whatever stands in a record ----------------------------------------------------------------

ODD_RECORDS = [
    {"topic": b""},
    {"topic": b"\xff\xfe", "properties": b"\xc3\xbf\x01\xc3\xbe\x02"},
    {"topic": "日本".encode()},
    {"topic": b"a/b=c%d"},
    {"topic": b"t" * 127},
    {"topic": b"t" * 300, "magic": MAGIC_V2},
    {"magic": MAGIC_V2},
    {"sys_flag": 0x10},
    {"sys_flag": 0x20},
    {"sys_flag": 0x30, "magic": MAGIC_V2},
    {"sys_flag": 1, "body": b"no zlib stream"},
    {"sys_flag": -(2**31) & 0xFFFFFFFF},
    {"body": b""},
    {"body": bytes(range(256)) * 40},
    {"properties": b"A\x01b\x02A\x01c\x02"},
    {"properties": b"A\x01b"},
    {"properties": b"\x01\x02\x02A\x02=\x01"},
    {"properties": b"KEYS\x01  a  b \x02TAGS\x01t\x02UNIQ_KEY\x01u\x02"},
    {"properties": b"K\x01" + b"v" * 32_000 + b"\x02"},
    {"store_timestamp": -1, "born_timestamp": 0},
    {"store_timestamp": 2**63 - 1, "born_timestamp": -(2**63)},
    {"store_timestamp": -(2**63)},
    {"store_timestamp": 253_402_300_800_000},
    {"queue_id": -1, "queue_offset": -(2**63)},
    {"queue_id": 2**31 - 1, "queue_offset": 2**63 - 1},
    {"flag": -(2**31), "reconsume_times": -1, "prepared_offset": -5},
]


def written(directory: Path, *logs: SyntheticLog) -> Path:
    (directory / "commitlog").mkdir(parents=True)
    for log in logs:
        (directory / "commitlog" / f"{log.base:020d}").write_bytes(log.data)
    return directory


@pytest.mark.parametrize("split", [700, 1 << 20])
def test_records_come_back_whatever_is_in_their_fields(tmp_path, split):
    log = SyntheticLog(base=1 << 40)
    for fields in ODD_RECORDS:
        log.add(**fields)
    log.data += bytes(5000)
    source = written(tmp_path / "store", log)
    archived(source, tmp_path / "a", split=split)
    assert len(rows(tmp_path / "a")) == len(ODD_RECORDS)
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)


@pytest.mark.parametrize("seed", range(40))
def test_logs_with_any_damage_come_back_byte_for_byte(tmp_path, seed):
    random_source = random.Random(seed)
    logs = []
    for number in range(random_source.randint(1, 3)):
        log = SyntheticLog(base=number * 20_000)
        while len(log.data) < 17_000:
            log.add(**random_source.choice([one for one in ODD_RECORDS if len(str(one)) < 999]))
            if random_source.random() < 0.1:
                log.garbage(random_source.randbytes(random_source.randint(1, 300)))
            if random_source.random() < 0.05:
                log.data += bytes(random_source.randint(1, 900))
        del log.data[20_000:]
        log.data += bytes(20_000 - len(log.data))
        for _ in range(random_source.randint(0, 4)):
            log.data[random_source.randrange(20_000)] ^= 1 << random_source.randrange(8)
        logs.append(log)
    if random_source.random() < 0.3:
        del logs[-1].data[random_source.randrange(1, 20_000) :]
    if len(logs) == 3 and random_source.random() < 0.3:
        del logs[1]
    source = written(tmp_path / "store", *logs)
    archived(source, tmp_path / "a", split=random_source.choice([1500, 9000, 1 << 20]))
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)
    expected = read_table(source, damage="skip", failOnDataLoss=False, columns="physicalOffset")
    assert [row["physicalOffset"] for row in rows(tmp_path / "a")] == sorted(
        row["physicalOffset"] for row in expected
    )


# --- the store that comes back ------------------------------------------------------------------


def test_a_restored_store_opens_and_gives_the_same_messages(tmp_path, store):
    archived(store, tmp_path / "a", split=9000)
    restored(tmp_path / "a", tmp_path / "back")
    with open_store(store, Clock()) as there, open_store(tmp_path / "back", Clock()) as back:
        for topic in ("Topic0", "Topic1"):
            assert len(bodies(there, topic)) == 60
            assert bodies(back, topic) == bodies(there, topic)
        assert [one.body for one in back.find("Topic1", key="key-7")] == [
            one.body for one in there.find("Topic1", key="key-7")
        ]


def test_a_golden_store_opens_after_its_restore_and_gives_the_same_messages(tmp_path):
    source, manifest = golden_store("basic")
    archived(source, tmp_path / "a")
    restored(tmp_path / "a", tmp_path / "back")
    with MessageStore.open(tmp_path / "back") as back:
        back.wait_dispatched()
    expected = read_table(source, table="consumequeue", brokerName="b")
    found = read_table(tmp_path / "back", table="consumequeue", brokerName="b")

    def in_order(entries):
        return sorted(entries, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))

    assert in_order(found) == in_order(expected)
    assert manifest


# --- selections ---------------------------------------------------------------------------------


def kept(row):
    """Return what a selection does not change."""
    return {name: row[name] for name in row if name not in ("physicalOffset", "msgId")}


@pytest.mark.parametrize("split", [9000, 1 << 20])
def test_a_selection_by_topic_is_a_store_of_those_messages(tmp_path, store, split):
    archived(store, tmp_path / "a", split=split)
    found = restored(tmp_path / "a", tmp_path / "back", topics=("Topic1",))
    expected = [row for row in read_table(store) if row["topic"] == "Topic1"]
    rows_back = read_table(tmp_path / "back", brokerName="store")
    assert list(map(kept, rows_back)) == list(map(kept, expected))
    assert (found.records, found.is_whole) == (60, False)
    with open_store(tmp_path / "back", Clock()) as back, open_store(store, Clock()) as there:
        assert bodies(back, "Topic1") == bodies(there, "Topic1")
        assert not back.max_offset("Topic0", 0)


@pytest.mark.parametrize(("begin", "end"), [(31, 71), (None, 50), (100, None), (1, 121), (60, 61)])
def test_a_selection_by_time_is_exact_and_keeps_queue_offsets(tmp_path, store, begin, end):
    archived(store, tmp_path / "a", split=9000)
    times = [None if one is None else START_MS + one for one in (begin, end)]
    restored(tmp_path / "a", tmp_path / "back", begin_ms=times[0], end_ms=times[1])
    expected = [
        row
        for row in read_table(store)
        if (begin is None or row["storeTimestamp"].timestamp() * 1000 >= times[0] - 0.5)
        and (end is None or row["storeTimestamp"].timestamp() * 1000 < times[1] - 0.5)
    ]
    assert len(expected) == (121 if end is None else end) - (1 if begin is None else begin)
    rows_back = read_table(tmp_path / "back", brokerName="store")
    assert list(map(kept, rows_back)) == list(map(kept, expected))
    with open_store(tmp_path / "back", Clock()) as back, open_store(store, Clock()) as there:
        for topic in ("Topic0", "Topic1"):
            wanted = {row["queueOffset"] for row in expected if row["topic"] == topic}
            there_bodies = bodies(there, topic)
            assert bodies(back, topic) == {one: there_bodies[one] for one in sorted(wanted)}


def test_a_selection_of_nothing_says_what_there_is(tmp_path, store):
    archived(store, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"no message of topic Nothing; it has topics Topic0, T"):
        restored(tmp_path / "a", tmp_path / "back", topics=("Nothing",))
    with pytest.raises(ConfigError, match="no message of topic Topic; it has"):
        restored(tmp_path / "a", tmp_path / "back", topics=("Topic0", "Topic"))
    with pytest.raises(ConfigError, match=f"{START_MS + 1} to {START_MS + 120} ms"):
        restored(tmp_path / "a", tmp_path / "back", begin_ms=START_MS + 121)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("seed", range(20))
def test_a_new_log_is_laid_out_by_the_rule_of_a_broker(seed):
    import numpy as np  # noqa: PLC0415 - here alone

    random_source = random.Random(seed)
    sizes = [
        np.array(
            [random_source.randint(91, 400) for _ in range(random_source.randint(0, 30))], "<i4"
        )
        for _ in range(4)
    ]
    log = lay_out(sizes, 1000)
    found = []
    for task, stretches in zip(sizes, log.stretches, strict=True):
        for stretch, following in itertools.zip_longest(stretches, stretches[1:]):
            place = stretch.physical_offset
            for size in task[stretch.row : following.row if following else len(task)]:
                found.append((place, int(size)))
                place += int(size)
    place, expected, blanks = 0, [], []
    for size in np.concatenate(sizes).tolist():
        room = 1000 - place % 1000
        if size + 8 > room:
            blanks.append((place, room))
            place += room
        expected.append((place, size))
        place += size
    assert found == expected
    assert list(log.blanks) == blanks
    assert len(log.log_files) == -(-place // 1000)


# --- failures -----------------------------------------------------------------------------------


def test_a_target_that_holds_something_is_refused_and_left_alone(tmp_path, store):
    archived(store, tmp_path / "a")
    (tmp_path / "back").mkdir()
    restored(tmp_path / "a", tmp_path / "back")  # an empty directory is fine
    before = tree(tmp_path / "back")
    with pytest.raises(StoreError, match="is there already"):
        restored(tmp_path / "a", tmp_path / "back")
    assert tree(tmp_path / "back") == before


def test_a_directory_that_is_no_archive_is_refused(tmp_path, store):
    for place in (tmp_path / "nowhere", store):
        with pytest.raises(ArchiveError, match="is no archive"):
            restored(place, tmp_path / "back")
    with pytest.raises(ConfigError, match="object stores lack"):
        restored(tmp_path / "nowhere", "s3://bucket/store")


def test_files_that_are_missing_or_cut_restore_nothing(tmp_path, store):
    overwrite(store, 5000, bytes(40))
    archived(store, tmp_path / "a", split=9000)
    for path in [*visible_files(tmp_path / "a"), *(tmp_path / "a/extents").rglob("*.parquet")]:
        content = path.read_bytes()
        for broken in (None, content[:-1], b""):
            path.unlink()
            if broken is not None:
                path.write_bytes(broken)
            with pytest.raises(ArchiveDamagedError, match=path.name):
                restored(tmp_path / "a", tmp_path / "back")
            path.write_bytes(content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "store"]


def test_no_flipped_bit_gives_a_wrong_store(tmp_path, store):
    """A flip is refused, or it hit what nothing depends on, and the store is right."""
    overwrite(store, 5000, bytes(40))
    archived(store, tmp_path / "a")
    expected = log_bytes(store)
    random_source = random.Random(7)
    paths = [*visible_files(tmp_path / "a"), *(tmp_path / "a/extents").rglob("*.parquet")]
    refused = 0
    for _ in range(150):
        path = random_source.choice(paths)
        content = bytearray(path.read_bytes())
        kept_content = bytes(content)
        content[random_source.randrange(len(content))] ^= 1 << random_source.randrange(8)
        path.write_bytes(content)
        try:
            restored(tmp_path / "a", tmp_path / "back")
        except ArchiveDamagedError:
            refused += 1
        else:
            assert log_bytes(tmp_path / "back") == expected
            shutil.rmtree(tmp_path / "back")
        path.write_bytes(kept_content)
    assert refused > 75


class Killed(BaseException):
    """Stands for SIGKILL: no cleanup runs behind it."""


def test_a_restore_killed_at_any_step_leaves_nothing_and_the_next_is_whole(
    tmp_path, store, monkeypatch
):
    archived(store, tmp_path / "a", split=9000)
    expected = log_bytes(store)
    for number in itertools.count(1):
        counter = itertools.count(1)

        def dying(action, counter=counter, number=number):
            def step(*given):
                if next(counter) == number:
                    raise Killed
                return action(*given)

            return step

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", dying(Path.rename))
            patched.setattr(os, "pwrite", dying(os.pwrite))
            patched.setattr(os, "fsync", dying(os.fsync))
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            try:
                restored(tmp_path / "a", tmp_path / "back")
            except Killed:
                pass
            else:
                break
        if (tmp_path / "back").exists():
            assert log_bytes(tmp_path / "back") == expected
        else:
            restored(tmp_path / "a", tmp_path / "back")
            assert log_bytes(tmp_path / "back") == expected
        shutil.rmtree(tmp_path / "back")
        shutil.rmtree(tmp_path / ".back.restoring", ignore_errors=True)
    assert number > 15


def test_a_task_that_runs_twice_writes_the_same(tmp_path, store):
    archived(store, tmp_path / "a", split=9000)

    def run_twice(tasks, work, schema):
        for task in reversed(tasks):
            list(work(sent(task)))
        return run_restore_tasks(tasks, work, schema)

    restored(tmp_path / "a", tmp_path / "back", run=run_twice)
    assert log_bytes(tmp_path / "back") == log_bytes(store)


@pytest.mark.parametrize("step", ["posix_fallocate", "pwrite", "fsync"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, store, monkeypatch, step):
    archived(store, tmp_path / "a")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        with pytest.raises(StoreFullError, match="the disk is full"):
            restored(tmp_path / "a", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "store"]


def test_a_place_has_one_restore_at_a_time(tmp_path, store):
    archived(store, tmp_path / "a")
    with (
        driver_commit.staged(tmp_path / "back"),
        pytest.raises(StoreError, match="by another process"),
    ):
        restored(tmp_path / "a", tmp_path / "back")


def test_config_tables_that_changed_are_refused(tmp_path, store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text("{}")
    archived(store, tmp_path / "a")
    (tmp_path / "a/messages/run=00000001/_config/topics.json").write_text("[]")
    with pytest.raises(ArchiveDamagedError, match=r"topics\.json has 2 bytes"):
        restored(tmp_path / "a", tmp_path / "back")


def test_tables_that_changed_alone_make_a_run_and_come_back(tmp_path, store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_text("{}")
    archived(store, tmp_path / "a")
    (store / "config/consumerOffset.json").write_text('{"a": 1}')
    found = archived(store, tmp_path / "a")
    assert (found.run, found.records) == (2, 0)
    restored(tmp_path / "a", tmp_path / "back")
    assert (tmp_path / "back/config/consumerOffset.json").read_text() == '{"a": 1}'


def test_slices_do_not_change_what_is_restored(tmp_path, store, monkeypatch):
    from rocketstore.pipeline.jobs.archive import task as archive_task_module  # noqa: PLC0415

    archived(store, tmp_path / "a")
    monkeypatch.setattr(archive_task_module, "ROW_GROUP_BYTES", 700)
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    assert task_module.row_groups is archive_task_module.row_groups
