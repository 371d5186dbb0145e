"""A restored log is the archived one, byte for byte; a broken archive restores nothing."""

import errno
import functools
import itertools
import json
import os
import random
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rocketstore.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ConfigError,
    StoreError,
    StoreFullError,
)
from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs import publishing
from rocketstore.pipeline.jobs.archive import archive_table
from rocketstore.pipeline.jobs.archive.archive_table import EXTENT_SCHEMA, Archive, read_rows
from rocketstore.pipeline.jobs.execution import map_tasks
from rocketstore.pipeline.jobs.rebuild import rebuild_job
from rocketstore.pipeline.jobs.restore import restore_task
from rocketstore.pipeline.jobs.restore.restore_job import lay_out
from rocketstore.pipeline.jobs.restore.restore_task import LogFileTask, Selection
from rocketstore.units import MiB
from support.archiving import archived, log_bytes, rows, sent, written_by_another
from support.clock import START_MS, Clock
from support.fault_settings import stride
from support.golden import CRASH_CASES, golden_case
from support.golden_stores import LOGS, golden_root
from support.killed import Killed
from support.memory import memory_directory
from support.pipeline_tables import read_table
from support.rebuild_runs import RowsHere
from support.restoring import restored
from support.small_store import (
    LOG_FILE_BYTES,
    bodies,
    build_store,
    messages,
    open_store,
    overwrite,
    put_all,
)
from support.sparse_log import make_sparse_log
from support.synthetic_log import MAGIC_V2, SyntheticLog

SPLITS = (100_000, 1 << 30)


@pytest.fixture(scope="module")
def archive_of(three_files):
    """Return archives of the store of three files, one for each stretch; nobody changes them."""
    with memory_directory() as directory:

        @functools.cache
        def made(stretch=MiB):
            archived(three_files, directory / str(stretch), stretch=stretch)
            return directory / str(stretch)

        yield made


@pytest.mark.parametrize("name", LOGS)
def test_golden_logs_come_back_byte_for_byte(name, tmp_path):
    source = golden_root(name)
    # Logs of crashes are alike but for their ends: of them one cut shows enough.
    for split in SPLITS[: 1 if name.startswith("crash/") else None]:
        archived(source, tmp_path / "a", stretch=split)
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


@pytest.mark.parametrize("case", [name for name in CRASH_CASES if f"crash/{name}" in LOGS])
def test_golden_logs_as_a_crash_left_them_come_back_byte_for_byte(case, tmp_path):
    source = golden_case("crash") / case / "in"
    archived(source, tmp_path / "a", stretch=SPLITS[0])
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
    {"store_timestamp_ms": -1, "born_timestamp_ms": 0},
    {"store_timestamp_ms": 2**63 - 1, "born_timestamp_ms": -(2**63)},
    {"store_timestamp_ms": -(2**63)},
    {"store_timestamp_ms": 253_402_300_800_000},
    {"queue_id": -1, "queue_offset": -(2**63)},
    {"queue_id": 2**31 - 1, "queue_offset": 2**63 - 1},
    {"flag": -(2**31), "reconsume_times": -1, "prepared_transaction_offset": -5},
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
    archived(source, tmp_path / "a", stretch=split)
    found = rows(tmp_path / "a")
    assert len(found) == len(ODD_RECORDS)
    files = pa.table(
        Archive.open(tmp_path / "a").messages.get_add_actions(flatten=True)
    ).to_pylist()
    without_time = sum(row["storeTimestamp"] is None for row in found)
    assert sum(one["null_count.storeTimestamp"] for one in files) == without_time > 1
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)


@pytest.mark.parametrize("seed", range(20))
def test_logs_with_any_damage_come_back_byte_for_byte(tmp_path, seed):
    random_source = random.Random(seed)
    logs, size = [], 5_000
    for number in range(random_source.randint(1, 3)):
        log = SyntheticLog(base=number * size)
        while len(log.data) < size - 1_200:
            log.add(**random_source.choice([one for one in ODD_RECORDS if len(str(one)) < 999]))
            if random_source.random() < 0.1:
                log.garbage(random_source.randbytes(random_source.randint(1, 300)))
            if random_source.random() < 0.05:
                log.data += bytes(random_source.randint(1, 900))
        del log.data[size:]
        log.data += bytes(size - len(log.data))
        for _ in range(random_source.randint(0, 4)):
            log.data[random_source.randrange(size)] ^= 1 << random_source.randrange(8)
        logs.append(log)
    if random_source.random() < 0.3:
        del logs[-1].data[random_source.randrange(1, size) :]
    if len(logs) == 3 and random_source.random() < 0.3:
        del logs[1]
    source = written(tmp_path / "store", *logs)
    archived(source, tmp_path / "a", stretch=random_source.choice([1500, 2800, 1 << 20]))
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(source)
    expected = read_table(source, damage="skip", failOnDataLoss=False, columns="physicalOffset")
    found = rows(tmp_path / "a", ["physicalOffset"])
    assert found == sorted(expected, key=lambda row: row["physicalOffset"])


# --- the store that comes back ------------------------------------------------------------------


@pytest.mark.parametrize("split", [MiB, 1 << 30])
def test_zeros_that_are_left_out_come_back_wherever_bytes_stand_between_them(tmp_path, split):
    """After a BLANK, in damage, after the size of a file and in the tail."""
    store, size = tmp_path / "store", 18 * MiB
    make_sparse_log(store, 5, file_size=size, queues=False)
    written = {
        1: {5 * MiB: b"x", 12 * MiB: b"x"},
        2: {0: b"x" * 900, 4 * MiB: b"x", 13 * MiB: b"x"},
        3: {18 * MiB: b"x", 23 * MiB: b"x", 25 * MiB: b"\0"},
        4: {0: bytes(900), 9 * MiB: b"x"},
    }
    for number, pieces in written.items():
        with (store / "commitlog" / file_name(number * size)).open("r+b") as file:
            for place, piece in pieces.items():
                file.seek(place)
                file.write(piece)
    archived(store, tmp_path / "a", stretch=split)
    assert restored(tmp_path / "a", tmp_path / "b").is_whole
    assert log_bytes(tmp_path / "b") == log_bytes(store)


def test_a_restored_store_opens_and_gives_the_same_messages(tmp_path, store, archive_of):
    restored(archive_of(9000), tmp_path / "back")
    with open_store(store, Clock()) as there, open_store(tmp_path / "back", Clock()) as back:
        for topic in ("Topic0", "Topic1"):
            assert len(bodies(there, topic)) == 60
            assert bodies(back, topic) == bodies(there, topic)
        assert [one.body for one in back.find("Topic1", key="key-7")] == [
            one.body for one in there.find("Topic1", key="key-7")
        ]


# --- selections ---------------------------------------------------------------------------------


def kept(row):
    """Return what a selection does not change."""
    return {name: row[name] for name in row if name not in ("physicalOffset", "msgId")}


@pytest.mark.parametrize("split", [9000, 1 << 20])
def test_a_selection_by_topic_is_a_store_of_those_messages(tmp_path, store, archive_of, split):
    found = restored(archive_of(split), tmp_path / "back", topics=("Topic1",))
    expected = [row for row in read_table(store) if row["topic"] == "Topic1"]
    rows_back = read_table(tmp_path / "back", brokerName="store")
    assert list(map(kept, rows_back)) == list(map(kept, expected))
    assert (found.records, found.is_whole) == (60, False)
    with open_store(tmp_path / "back", Clock()) as back, open_store(store, Clock()) as there:
        assert bodies(back, "Topic1") == bodies(there, "Topic1")
        assert not back.max_offset("Topic0", 0)


@pytest.mark.parametrize(("begin", "end"), [(31, 71), (None, 50), (100, None), (1, 121), (60, 61)])
def test_a_selection_by_time_is_exact_and_keeps_queue_offsets(
    tmp_path, store, archive_of, begin, end
):
    times = [None if one is None else START_MS + one for one in (begin, end)]
    restored(archive_of(9000), tmp_path / "back", begin_ms=times[0], end_ms=times[1])
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


def test_a_selection_of_nothing_says_what_there_is(tmp_path, archive_of):
    archive = archive_of()
    with pytest.raises(ConfigError, match=r"no message of topic Nothing; it has topics Topic0, T"):
        restored(archive, tmp_path / "back", topics=("Nothing",))
    with pytest.raises(ConfigError, match="no message of topic Topic; it has"):
        restored(archive, tmp_path / "back", topics=("Topic0", "Topic"))
    with pytest.raises(ConfigError, match=f"{START_MS + 1} to {START_MS + 120} ms"):
        restored(archive, tmp_path / "back", begin_ms=START_MS + 121)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("seed", range(20))
def test_a_new_log_is_laid_out_by_the_rule_of_a_broker(seed):
    random_source = random.Random(seed)
    sizes = [random_source.randint(91, 400) for _ in range(random_source.randint(1, 100))]
    old = np.arange(len(sizes)) * 1000
    steps = pa.table({"min(place)": old, "sum(bytes)": sizes})
    counting = LogFileTask("a", "b", Selection(), size=1000, end=1000 * len(sizes))
    tasks = lay_out(counting, lambda begin, end: (f"{begin}-{end}",), steps)
    assert [task.messages for task in tasks] == [(f"{task.begin}-{task.end}",) for task in tasks]
    found = [(task.base, task.begin, task.end, task.blank) for task in tasks]
    first, expected = 0, []
    for number, size in enumerate([*sizes, None]):
        used = sum(sizes[first:number])
        if size is None or used + size + 8 > 1000:
            is_last = size is None
            base = len(expected) * 1000
            until = len(sizes) * 1000 if is_last else number * 1000
            expected.append((base, first * 1000, until, not is_last))
            first = number
    assert found == expected


def test_records_of_a_selection_stand_where_a_broker_would_put_them(tmp_path, archive_of):
    restored(archive_of(), tmp_path / "back", topics=("Topic1",))
    place = 0
    for row in read_table(tmp_path / "back"):
        if row["size"] + 8 > LOG_FILE_BYTES - place % LOG_FILE_BYTES:
            place += LOG_FILE_BYTES - place % LOG_FILE_BYTES
        assert row["physicalOffset"] == place
        place += row["size"]
    assert place > LOG_FILE_BYTES
    assert not read_table(tmp_path / "back", table="damage")


# --- versions and brokers -----------------------------------------------------------------------


def test_any_version_comes_back_by_its_number_or_a_time(tmp_path, store):
    logs, moments = [], []
    for number in range(3):
        with open_store(store, Clock(START_MS + 1000 * (number + 1))) as writer:
            put_all(writer, messages(10, first=200 + 10 * number), Clock())
        archived(store, tmp_path / "a")
        logs.append(log_bytes(store))
        time.sleep(0.01)
        moments.append(datetime.now(UTC).isoformat())
    for number, log in enumerate(logs):
        for as_of in (number + 1, moments[number]):
            found = restored(tmp_path / "a", tmp_path / "back", as_of=as_of)
            assert log_bytes(tmp_path / "back") == log
            assert found.version == number + 1
            shutil.rmtree(tmp_path / "back")
    for as_of in (9, 1 << 65, -1, "noon"):
        with pytest.raises(ArchiveError, match=f"as of {as_of} cannot be opened"):
            restored(tmp_path / "a", tmp_path / "back", as_of=as_of)
    # In UTC, as in the source's options, and of the first version where there was none yet.
    earlier = {"2100-01-01": 3, moments[0].removesuffix("+00:00"): 1, "1971-01-01": 0}
    for as_of, number in earlier.items():
        assert Archive.open(tmp_path / "a", as_of).messages.version() == number
    with pytest.raises(ArchiveError, match="has nothing in version 0: no run had been arch"):
        restored(tmp_path / "a", tmp_path / "back", as_of=0)
    assert not (tmp_path / "back").exists()


def test_of_several_brokers_one_is_named(tmp_path, store):
    build_store(tmp_path / "other", 30, Clock())
    archived(store, tmp_path / "a")
    archived(tmp_path / "other", tmp_path / "a")
    Archive.open(tmp_path / "a").messages.optimize.compact()
    Archive.open(tmp_path / "a").extents.optimize.compact()
    with pytest.raises(ArchiveError, match=r"2 brokers: other, store; say which"):
        restored(tmp_path / "a", tmp_path / "back")
    with pytest.raises(ArchiveError, match=r"has no broker third; it has other, store"):
        restored(tmp_path / "a", tmp_path / "back", broker="third")
    for name in ("store", "other"):
        restored(tmp_path / "a", tmp_path / f"{name} back", broker=name)
        assert log_bytes(tmp_path / f"{name} back") == log_bytes(tmp_path / name)
    restored(tmp_path / "a", tmp_path / "some", broker="other", topics=("Topic1",))
    assert len(read_table(tmp_path / "some")) == 15


# --- what other tools do to the tables ----------------------------------------------------------


def test_rewritten_tables_give_the_same_log(tmp_path, store):
    overwrite(store, 5000, bytes(40))
    for stretch in (5000, 9000):
        archived(store, tmp_path / "a", stretch=stretch)
        with open_store(store, Clock(START_MS + 5000)) as writer:
            put_all(writer, messages(10, first=300), Clock())
    archived(store, tmp_path / "a")
    for table in (Archive.open(tmp_path / "a").messages, Archive.open(tmp_path / "a").extents):
        table.optimize.compact()
    Archive.open(tmp_path / "a").messages.optimize.z_order(["queueId", "uniqKey"])
    opened = Archive.open(tmp_path / "a")
    for table in (opened.messages, opened.extents):
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    restored(tmp_path / "a", tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    with pytest.raises(ArchiveDamagedError, match="is missing: VACUUM"):
        restored(tmp_path / "a", tmp_path / "old", as_of=1)


def days_store(directory: Path) -> Path:
    """Return a store of three files, each of a day of its own."""
    logs = []
    for number in range(3):
        log = SyntheticLog(base=number * 8192)
        while len(log.data) < 7000:
            time_ms = START_MS + number * 86_400_000
            log.add(store_timestamp_ms=time_ms, topic=b"T%d" % number)
        log.blank(8192)
        logs.append(log)
    return written(directory, *logs)


def test_days_that_were_deleted_are_named_and_may_be_left_out(tmp_path):
    source = days_store(tmp_path / "store")
    archived(source, tmp_path / "a")
    day = datetime.fromtimestamp(START_MS / 1000, UTC).date()
    Archive.open(tmp_path / "a").messages.delete(f"day = '{day}'")
    log = log_bytes(source)
    first = min(log)
    size = len(log[first].rstrip(bytes(1)))
    with pytest.raises(
        ArchiveDamagedError, match=r"bytes of the log of broker store in 1 stretches, .* 0 to \d+;"
    ):
        restored(tmp_path / "a", tmp_path / "back")
    found = restored(tmp_path / "a", tmp_path / "back", allow_gaps=True)
    assert log_bytes(tmp_path / "back") == {name: log[name] for name in log if name != first}
    assert not found.is_whole
    assert found.missing_stretches == 1
    assert 0 < found.missing_bytes < size
    found = restored(tmp_path / "a", tmp_path / "was", as_of=1)
    assert log_bytes(tmp_path / "was") == log
    # What is there still makes a whole new log.
    some = restored(tmp_path / "a", tmp_path / "some", begin_ms=START_MS + 86_400_000)
    assert some.records == found.records * 2 // 3
    with pytest.raises(ConfigError, match="no message of topic T0; it has topics T1, T2"):
        restored(tmp_path / "a", tmp_path / "none", topics=("T0", "T1"))


def test_rows_that_were_deleted_become_zeros_when_they_may(tmp_path, store, archive_of):
    shutil.copytree(archive_of(), tmp_path / "a")
    gone = rows(tmp_path / "a")[20:23]
    places = ", ".join(str(row["physicalOffset"]) for row in gone)
    Archive.open(tmp_path / "a").messages.delete(f"physicalOffset in ({places})")
    first, last = gone[0]["physicalOffset"], gone[-1]["physicalOffset"] + gone[-1]["size"]
    with pytest.raises(ArchiveDamagedError, match=f"physical offset {first} to {last};"):
        restored(tmp_path / "a", tmp_path / "back")
    found = restored(tmp_path / "a", tmp_path / "back", allow_gaps=True)
    assert (found.missing_stretches, found.missing_bytes) == (1, last - first)
    overwrite(store, first, bytes(last - first))
    assert log_bytes(tmp_path / "back") == log_bytes(store)


def test_rows_that_a_vector_says_are_deleted_are_not_restored(tmp_path, archive_of):
    shutil.copytree(archive_of(), tmp_path / "a")
    log = (tmp_path / "a/messages/_delta_log").glob("*.json")
    actions = [json.loads(line) for one in sorted(log) for line in one.read_text().splitlines()]
    (added,) = [one["add"] for one in actions if "add" in one]
    # As a DELETE of Spark writes it: rows 1, 2 and 3, in base 85.
    text = "^Bg9^0rr910000000000iXQKl0rr91000625c8Xg0rrf30@@r3"
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 38, "cardinality": 3}
    gone = {"remove": {"path": added["path"], "dataChange": True}}
    here = {"add": added | {"deletionVector": vector}}
    written_by_another(tmp_path / "a/messages", "deletionVectors", gone, here)
    with pytest.raises(ArchiveError, match=r"messages has deletion vectors.*APPLY \(PURGE\)"):
        restored(tmp_path / "a", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert restored(tmp_path / "a", tmp_path / "back", as_of=1).is_whole


def test_rows_that_are_there_twice_are_refused(tmp_path, archive_of):
    shutil.copytree(archive_of(), tmp_path / "a")
    table = Archive.open(tmp_path / "a").messages
    write_deltalake(table, table.to_pyarrow_table().slice(40, 1), mode="append")
    for selection in ({}, {"topics": ("Topic0", "Topic1")}):
        with pytest.raises(ArchiveDamagedError, match="or is there twice"):
            restored(tmp_path / "a", tmp_path / "back", **selection)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rawHead", b"KEYS\x01other\x02", "has CRC|bytes of records"),
        ("rawTail", b"", "has CRC"),
        ("body", b"x", "has CRC"),
        ("recordCRC", 7, "expected 7"),
        ("size", 99, "is there twice|lacks .* bytes"),
        ("physicalOffset", 77, "is there twice"),
    ],
)
def test_a_row_that_was_changed_is_refused(tmp_path, archive_of, column, value, message):
    shutil.copytree(archive_of(), tmp_path / "a")
    table = Archive.open(tmp_path / "a").messages
    content = table.to_pyarrow_table()
    values = content.column(column).to_pylist()
    values[40] = value
    at = content.schema.get_field_index(column)
    changed = content.set_column(
        at, content.schema.field(at), pa.array(values, content.schema.field(at).type)
    )
    write_deltalake(table, changed, mode="overwrite")
    with pytest.raises(ArchiveDamagedError, match=message):
        restored(tmp_path / "a", tmp_path / "back")


# --- failures -----------------------------------------------------------------------------------


def parquet_files(archive: Path) -> list[Path]:
    return sorted(archive.rglob("*.parquet"))


def test_a_target_that_holds_something_is_refused_and_left_alone(tmp_path, archive_of):
    archive = archive_of()
    (tmp_path / "back").mkdir()
    restored(archive, tmp_path / "back")  # an empty directory is fine
    before = log_bytes(tmp_path / "back")
    with pytest.raises(StoreError, match="is there already"):
        restored(archive, tmp_path / "back")
    assert log_bytes(tmp_path / "back") == before


@pytest.mark.parametrize("table", ["messages", "extents"])
def test_a_target_inside_a_table_is_refused_and_makes_nothing(tmp_path, archive_of, table):
    archive = archive_of()
    before = sorted(archive.rglob("*"))
    with pytest.raises(ConfigError, match=f"lies inside the table {archive}/{table};"):
        restored(archive, archive / table / "day=2026-11-28" / "back")
    assert sorted(archive.rglob("*")) == before


def test_a_directory_that_is_no_archive_is_refused(tmp_path, store):
    for place in (tmp_path / "nowhere", store):
        with pytest.raises(ArchiveError, match="is not an archive"):
            restored(place, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_files_that_are_missing_or_cut_restore_nothing(tmp_path, store):
    overwrite(store, 5000, bytes(40))
    archived(store, tmp_path / "a", stretch=9000)
    for path in parquet_files(tmp_path / "a"):
        content = path.read_bytes()
        for broken in (None, content[:-1], b""):
            path.unlink()
            if broken is not None:
                path.write_bytes(broken)
            with pytest.raises(ArchiveError, match=path.name):
                restored(tmp_path / "a", tmp_path / "back")
            path.write_bytes(content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "store"]


def test_no_flipped_bit_gives_a_wrong_store(tmp_path):
    """A flip is refused, or it hit what nothing depends on, and the store is right."""
    store = tmp_path / "store"
    build_store(store, 60, Clock())
    overwrite(store, 5000, bytes(40))
    archived(store, tmp_path / "a")
    expected = log_bytes(store)
    random_source = random.Random(7)
    refused = 0
    for _ in range(75):
        path = random_source.choice(parquet_files(tmp_path / "a"))
        content = bytearray(path.read_bytes())
        kept_content = bytes(content)
        content[random_source.randrange(len(content))] ^= 1 << random_source.randrange(8)
        path.write_bytes(content)
        try:
            restored(tmp_path / "a", tmp_path / "back")
        except ArchiveError:
            refused += 1
        else:
            assert log_bytes(tmp_path / "back") == expected
            shutil.rmtree(tmp_path / "back")
        path.write_bytes(kept_content)
    assert refused > 25


def test_a_footer_that_counts_wrong_takes_no_rows_away(tmp_path, archive_of):
    source = max(archive_of().glob("extents/*.parquet"), key=lambda path: path.stat().st_size)
    content, path = source.read_bytes(), tmp_path / "flipped.parquet"

    def found(place):
        batches = read_rows(place, EXTENT_SCHEMA, [("brokerName", "=", "store")], ["content"])
        return [row for batch in batches for row in batch.column("content").to_pylist()]

    whole = found(str(source))
    assert len(whole) > 3
    refused = 0
    begin = content.rindex(b"\x07content\x15")
    for at, bit in itertools.product(range(begin, begin + 40), range(8)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            assert found(str(path)) == whole, (at, bit)
        except ArchiveDamagedError:
            refused += 1
    assert refused > 100


def test_a_task_that_finds_fewer_extents_than_were_planned_writes_nothing(tmp_path, archive_of):
    def fewer(spark, tasks, work, schema):
        spoilt = [task._replace(extents=task.extents[1:]) for task in tasks]
        return map_tasks(spark, spoilt, work, schema)

    with pytest.raises(ArchiveDamagedError, match=r"rows of extents .* expected \d"):
        restored(archive_of(), tmp_path / "back", run=fewer)
    assert not any(tmp_path.iterdir())


def test_a_restore_killed_at_any_step_leaves_nothing_and_the_next_is_whole(
    tmp_path, store, archive_of, monkeypatch
):
    archive = archive_of(9000)
    expected = log_bytes(store)
    for number in itertools.count(1, stride(2)):
        counter = itertools.count(1)

        def dying(action, counter=counter, number=number):
            def step(*given, **options):
                if next(counter) == number:
                    raise Killed
                return action(*given, **options)

            return step

        with monkeypatch.context() as patched:
            for owner, name in (
                (Path, "rename"), (Path, "mkdir"), (os, "pwrite"), (os, "fsync"),
                (os, "ftruncate"),
            ):  # fmt: skip
                patched.setattr(owner, name, dying(getattr(owner, name)))
            patched.setattr(Path, "unlink", lambda *_, **__: None)
            patched.setattr(shutil, "rmtree", dying(lambda *_, **__: None))
            patched.setattr(publishing, "PAUSE_S", 0)
            try:
                restored(archive, tmp_path / "back")
            except Killed:
                pass
            else:
                break
        if (tmp_path / "back").exists():
            assert log_bytes(tmp_path / "back") == expected
        else:
            restored(archive, tmp_path / "back")
            assert log_bytes(tmp_path / "back") == expected
        shutil.rmtree(tmp_path / "back")
        for left in tmp_path.glob(".back.*"):
            shutil.rmtree(left)
    assert number > 15


def test_a_task_that_runs_twice_writes_the_same_and_a_late_one_nothing(tmp_path, store, archive_of):
    late = []

    def twice(spark, tasks, work, schema):
        for task in reversed(tasks):
            late.append((work, sent(task)))
            list(work(sent(task)))
        return map_tasks(spark, tasks, work, schema)

    restored(archive_of(9000), tmp_path / "back", run=twice)
    for work, task in late:
        if work is restore_task.write_task:
            with pytest.raises(StoreError, match="driver and workers must see the place"):
                list(work(task))
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["commitlog"]


def test_an_attempt_that_dies_leaves_what_no_store_has(tmp_path, store, archive_of, monkeypatch):

    def dying(spark, tasks, work, schema):
        if work is restore_task.write_task:
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", lambda _: 1 / 0)
                patched.setattr(Path, "unlink", lambda *_, **__: None)
                with pytest.raises(ZeroDivisionError):
                    list(work(sent(tasks[0])))
        return map_tasks(spark, tasks, work, schema)

    restored(archive_of(9000), tmp_path / "back", run=dying)
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["commitlog"]


@pytest.mark.parametrize(
    ("step", "is_late", "what"),
    [
        *((step, False, "was restored") for step in ("ftruncate", "pwrite", "fsync")),
        ("posix_fallocate", False, "of this run counts"),  # of its queues' files
        ("fsync", True, "of this run counts"),  # of its name
    ],
)
def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path, archive_of, monkeypatch, step, is_late, what
):
    archive, genuine = archive_of(), getattr(os, step)

    def full(descriptor, *rest):
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if place != tmp_path if is_late else place.is_dir():
            return genuine(descriptor, *rest)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rebuild_job, "LogRows", RowsHere)
    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        said = f"No space left on device; nothing {what}; make room and run it again"
        with pytest.raises(StoreFullError, match=said):
            restored(archive, tmp_path / "back", log_only=step != "posix_fallocate")
    assert not any(tmp_path.iterdir())


def test_tables_of_the_newest_run_come_back_or_are_refused(tmp_path, store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_text("{}")
    (store / "config/empty.json").write_text("")
    archived(store, tmp_path / "a")
    (store / "config/consumerOffset.json").write_text('{"a": 1}')
    found = archived(store, tmp_path / "a")
    assert (found.run, found.records) == (2, 0)
    restored(tmp_path / "a", tmp_path / "back")
    assert (tmp_path / "back/config/consumerOffset.json").read_text() == '{"a": 1}'
    assert (tmp_path / "back/config/empty.json").read_text() == ""
    restored(tmp_path / "a", tmp_path / "old", as_of=1)
    assert (tmp_path / "old/config/consumerOffset.json").read_text() == "{}"


def test_sizes_of_batches_do_not_change_what_is_restored(tmp_path, store, archive_of, monkeypatch):
    archive = archive_of()
    monkeypatch.setattr(archive_table, "BATCH_BYTES", 700)
    monkeypatch.setattr(restore_task, "SLICE_BYTES", 3000)
    restored(archive, tmp_path / "back")
    assert log_bytes(tmp_path / "back") == log_bytes(store)
    found = restored(archive, tmp_path / "some", topics=("Topic1",))
    assert found.records == 60


def test_a_store_comes_back_on_an_object_store(tmp_path, store, s3):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text("{}")
    archived(store, tmp_path / "a", stretch=9000)
    found = restored(tmp_path / "a", s3.uri("back"))
    there = {name: bytes(content) for name, content in s3.objects.items()}
    log = {f"back/commitlog/{name}": content for name, content in log_bytes(store).items()}
    assert there == log | {"back/config/topics.json": b"{}", "back/_SUCCESS": b""}
    assert found.is_whole
    with pytest.raises(StoreError, match="is there already"):
        restored(tmp_path / "a", s3.uri("back"))
    restored(tmp_path / "a", s3.uri("some"), topics=("Topic1",))
    assert len(read_table(s3.uri("some"))) == 60


def test_what_a_killed_restore_left_on_an_object_store_is_refused_by_the_next(
    tmp_path, archive_of, s3
):
    archive = archive_of(9000)
    s3.writes_left = 4
    with pytest.raises(StoreError):
        restored(archive, s3.uri("back"))
    s3.writes_left = None
    assert "back/_SUCCESS" not in s3.objects
    with pytest.raises(StoreError, match=r"no _SUCCESS: .* a run that did not end"):
        restored(archive, s3.uri("back"))
