"""What is read and what is not: selection, pruning, damage, loss."""

import json
import os
import shutil
import threading
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError, StoreError
from rocketstore.metrics.damage_map import (
    DAMAGE_MAP_FILE_NAME,
    DamagedRange,
    DamageMap,
    encode_damage_map,
)
from rocketstore.pipeline import planning
from rocketstore.pipeline.columns import check_schema
from rocketstore.pipeline.log_read import read_split
from rocketstore.pipeline.options import parse_options
from rocketstore.places import files
from rocketstore.places.log_files import SegmentState
from support.golden import golden_case
from support.golden_stores import golden_root, golden_store
from support.pipeline_tables import plan_table, planned_bytes, read_table, rows_of_plan
from support.store_files import StoreFiles, overwrite_file
from support.stream_run import places_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def basic():
    return golden_root("basic")


@pytest.fixture(scope="module")
def everything():
    return read_table(golden_root("basic"))


@pytest.fixture
def copy(tmp_path, basic):
    """A store that a test may damage."""
    return shutil.copytree(basic, tmp_path / "store")


def milliseconds(moment):
    return (moment - EPOCH) // timedelta(milliseconds=1)


def microseconds(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def flip_a_body_of_the_second_file(path):
    """Flip a bit that a checksum covers, and return the record's physical offset."""
    rows = [row for row in read_table(path) if row["physicalOffset"] > 70_000]
    offset = next(row["physicalOffset"] for row in rows if len(row["body"]) > 20)
    file = path / "commitlog" / "00000000000000065536"
    data = bytearray(file.read_bytes())
    data[offset - 65_536 + 100] ^= 1
    file.write_bytes(data)
    return offset


# --- what the options choose --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"subscribe": "TopicA"}, lambda row: row["topic"] == "TopicA"),
        ({"topic": "TopicA, TopicB"}, lambda row: row["topic"] in ("TopicA", "TopicB")),
        ({"subscribePattern": "Topic[-C].*"}, lambda row: row["topic"] == "Topic-C_1"),
        ({"subscribe": "nobody", "failOnDataLoss": False}, lambda _: False),
        (
            {"assign": '{"TopicA":[0,3]}'},
            lambda row: row["topic"] == "TopicA" and row["queueId"] in (0, 3),
        ),
        (
            {"assign": '{"TopicA":{"store":[1],"other":[2]}}'},
            lambda row: (row["topic"], row["queueId"]) == ("TopicA", 1),
        ),
        ({"subExpression": "TagA || TagB"}, lambda row: row["tags"] in ("TagA", "TagB")),
        (
            {"subExpression": "TagA", "subscribe": "TopicB"},
            lambda row: row["tags"] == "TagA" and row["topic"] == "TopicB",
        ),
        (
            {
                "subscribe": "TopicA",
                "startingOffsets": '{"TopicA":{"0":10,"1":-2}}',
                "endingOffsets": '{"TopicA":{"0":20}}',
            },
            lambda row: (
                row["topic"] == "TopicA" and (row["queueId"] != 0 or 10 <= row["queueOffset"] < 20)
            ),
        ),
        (
            {"assign": '{"TopicA":[2]}', "startingOffsets": '{"TopicA":{"store":{"2":150}}}'},
            lambda row: (
                (row["topic"], row["queueId"]) == ("TopicA", 2) and row["queueOffset"] >= 150
            ),
        ),
    ],
)
@pytest.mark.parametrize("max_split_bytes", ["1g", "20000"])
def test_options_choose_rows(basic, everything, options, wanted, max_split_bytes):
    chosen = read_table(basic, maxSplitBytes=max_split_bytes, **options)
    assert chosen == [row for row in everything if wanted(row)]


def test_times_are_from_and_before(basic):
    rows = read_table(basic)
    times = sorted({row["storeTimestamp"] for row in rows})
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    chosen = read_table(
        basic, startingTimestamp=milliseconds(low), endingTimestamp=milliseconds(high)
    )
    assert chosen == [row for row in rows if low <= row["storeTimestamp"] < high]
    assert chosen


def test_offsets_leave_out_what_has_no_place_in_a_queue():
    store = golden_root("transactions")
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    rows = read_table(store)
    assert any(row["sysFlag"] & 0xC == 0xC for row in rows)
    topics = ",".join(sorted({row["topic"] for row in rows}))
    chosen = read_table(store, subscribe=topics, startingOffsets=json.dumps({half: {"0": 0}}))
    assert chosen == [row for row in rows if row["sysFlag"] & 0xC in (0, 8)]


def test_a_choice_of_topics_has_the_records_that_are_in_no_queue(tmp_path):
    """An entry that was never written shows that the queue lacks some."""
    store = StoreFiles(tmp_path / "store")
    put = [store.put("TopicA", dispatch=number % 3 == 0) for number in range(30)]
    store.put("TopicB")
    for choice in ({"subscribe": "TopicA"}, {"assign": '{"TopicA": [0]}'}):
        assert places_of(read_table(tmp_path / "store", **choice)) == put
        assert planned_bytes(tmp_path / "store", **choice) == planned_bytes(tmp_path / "store")


def test_an_empty_range_is_no_row_and_no_error(basic):
    same = '{"TopicA":{"0":10,"1":10,"2":10,"3":10}}'
    assert read_table(basic, subscribe="TopicA", startingOffsets=same, endingOffsets=same) == []
    assert plan_table(basic, subscribe="TopicA", startingOffsets=same, endingOffsets=same) == []
    assert read_table(basic, startingTimestamp=5, endingTimestamp=5) == []
    nothing = {"assign": '{"TopicA":[0]}', "endingOffsets": '{"TopicA":{"0":0}}'}
    assert read_table(basic, table="consumequeue", **nothing) == []


# --- what is not read ---------------------------------------------------------------------------


def test_files_outside_the_asked_time_are_not_read(tmp_path):
    store = widely_spaced_store(tmp_path)
    rows = read_table(store)
    low, high = rows[25]["storeTimestamp"], rows[29]["storeTimestamp"]
    window = {"startingTimestamp": milliseconds(low), "endingTimestamp": milliseconds(high)}
    # The third file of five, and the second because a clock may have been set back a little.
    assert planned_bytes(store, **window) == 2 * 4096
    assert read_table(store, **window) == [
        row for row in rows if low <= row["storeTimestamp"] < high
    ]


def test_a_clock_that_went_back_loses_no_row(tmp_path):
    store = widely_spaced_store(tmp_path, order=(0, 3, 1, 2, 4))
    rows = read_table(store)
    for row in rows[:: len(rows) // 7]:
        at = row["storeTimestamp"]
        found = read_table(
            store, startingTimestamp=milliseconds(at), endingTimestamp=milliseconds(at) + 1
        )
        assert found == [one for one in rows if one["storeTimestamp"] == at]


def widely_spaced_store(tmp_path, order=(0, 1, 2, 3, 4)):
    """A log of five files, each an hour after the one before, in any order of hours."""
    from support.synthetic_log import SyntheticLog  # noqa: PLC0415 - only two tests need it

    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    for number, hour in enumerate(order):
        log = SyntheticLog(number * 4096)
        for record in range(10):
            log.add(store_timestamp_ms=1_700_000_000_000 + hour * 3_600_000 + record * 1000)
        log.blank(4096 - len(log.data))
        (directory / f"{number * 4096:020d}").write_bytes(log.data)
    return tmp_path / "store"


@pytest.mark.parametrize("choice", [{}, {"subscribe": "t"}, {"table": "commitlog"}])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_plan_reads_what_there_was_when_it_was_made(tmp_path, choice, is_open):
    root, empty = tmp_path / "store", Message(topic="t", body=bytes(8))
    with MessageStore.open(root, StoreConfig.small()) as store:
        for _ in range(10):
            store.put(empty, 0).raise_for_status()
        store.wait_dispatched()
        store.flush()
        plan = plan_table(root, **choice) if is_open else None
    plan = plan or plan_table(root, **choice)
    with MessageStore.open(root, StoreConfig.small()) as store:
        for _ in range(500):
            store.put(empty, 0).raise_for_status()
    assert len(rows_of_plan(plan, root, **choice)) == 10
    assert len(read_table(root, **choice)) == 510


def test_only_files_with_records_of_the_asked_queues_are_read(basic):
    entries = read_table(basic, table="consumequeue", assign='{"Topic-C_1":[0]}')
    assert len(entries) > 2
    middle = entries[len(entries) // 2]
    given = json.dumps({"Topic-C_1": {"0": middle["queueOffset"]}})
    behind = json.dumps({"Topic-C_1": {"0": middle["queueOffset"] + 1}})
    options = {"assign": '{"Topic-C_1":[0]}', "startingOffsets": given, "endingOffsets": behind}
    assert places_of(read_table(basic, maxSplitBytes="4096", **options)) == [
        middle["physicalOffset"]
    ]
    assert planned_bytes(basic, maxSplitBytes="4096", **options) <= 4096


def test_one_line_tells_what_a_read_of_several_stores_leaves_out(basic, copy, caplog):
    both = json.dumps([str(basic), str(copy)])
    with caplog.at_level("INFO"):
        reads = planned_bytes(basic, paths=both, subscribe="TopicA")
    (said,) = [one for one in caplog.messages if one.startswith("plan.reads")]
    assert all(str(one) in said for one in (basic, copy))
    assert f"bytes={reads} " in said


def test_queue_entries_that_lie_lose_no_row(copy):
    options = {"subscribe": "TopicA", "startingOffsets": '{"TopicA":{"0":40}}'}
    wanted = read_table(copy, **options)
    queue = copy / "consumequeue" / "TopicA" / "0"
    for file in queue.iterdir():
        file.write_bytes(bytes(20) * (file.stat().st_size // 20))
    assert read_table(copy, failOnDataLoss=False, **options) == wanted
    shutil.rmtree(queue)
    assert read_table(copy, failOnDataLoss=False, **options) == wanted


def test_small_files_share_a_task_and_more_tasks_can_be_asked_for(basic):
    assert len(plan_table(basic)) == 1
    # The end of a file that was never written weighs next to nothing, where the disk knows of it.
    assert len(plan_table(basic, maxSplitBytes="128k")) in (9, 10)
    for wanted in (2, 5, 40):
        tasks = plan_table(basic, minPartitions=wanted)
        assert wanted <= len(tasks) <= wanted + 20
        assert read_table(basic, minPartitions=wanted) == read_table(basic)


# --- damage -------------------------------------------------------------------------------------


def test_damage_fails_the_read_with_its_place_and_the_way_on(copy):
    offset = flip_a_body_of_the_second_file(copy)
    with pytest.raises(StoreDamagedError) as caught:
        read_table(copy)
    message = str(caught.value)
    assert f"bad crc in {copy}/commitlog/00000000000000065536" in message
    assert f"position {offset - 65_536} (physical offset {offset})" in message
    assert 'option("damage", "skip")' in message


@pytest.mark.parametrize("policy", ["skip", "report"])
def test_damage_is_skipped_and_counted(copy, caplog, policy):
    everything = places_of(read_table(copy))
    lost = flip_a_body_of_the_second_file(copy)
    kept = places_of(read_table(copy, damage=policy))
    assert set(everything) - set(kept) == {lost}
    assert "log.damage_skipped ranges=1" in caplog.text
    assert (f"physical offset {lost}" in caplog.text) == (policy == "report")
    (row,) = read_table(copy, table="damage")
    assert row["physicalOffset"] == lost
    assert row["physicalOffset"] + row["size"] == everything[everything.index(lost) + 1]


def test_damage_says_when_the_store_s_own_check_first_saw_it(copy):
    lost = flip_a_body_of_the_second_file(copy)
    (row,) = read_table(copy, table="damage")
    assert row["foundTimestamp"] is None
    since = DamagedRange(lost, row["size"], "bad crc", "", "", found_timestamp=1_500)
    path = copy / DAMAGE_MAP_FILE_NAME
    path.write_bytes(encode_damage_map(DamageMap(passes=1, damage=(since,))))
    (row,) = read_table(copy, table="damage")
    assert row["foundTimestamp"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    path.write_bytes(b"broken")
    (row,) = read_table(copy, table="damage")
    assert row["foundTimestamp"] is None


def test_damage_is_listed_once_however_the_files_are_cut(copy):
    file = copy / "commitlog" / "00000000000000131072"
    data = bytearray(file.read_bytes())
    data[5000:25_000] = os.urandom(20_000)
    data[40_000] ^= 1
    data[60_000:] = bytes(5536)
    file.write_bytes(data)
    rows, kept = read_table(copy, table="damage"), read_table(copy, damage="skip")
    for size in ("700", "9000", "1g"):
        assert read_table(copy, table="damage", maxSplitBytes=size) == rows
        assert read_table(copy, damage="skip", maxSplitBytes=size) == kept
    # The random bytes, the flipped one, the record that the zeros cut, and the zeros.
    assert len(rows) == 4
    assert rows[-1]["physicalOffset"] + rows[-1]["size"] == 131_072 + 65_536


def test_zeros_at_the_end_of_a_file_that_another_follows_are_damage(copy):
    file = copy / "commitlog" / "00000000000000131072"
    records = [row["physicalOffset"] for row in read_table(copy)]
    cut = next(offset for offset in records if offset > 131_072 + 40_000)
    overwrite_file(file, cut - 131_072, bytes(131_072 + 65_536 - cut))
    with pytest.raises(StoreDamagedError, match="the log goes on in the next file"):
        read_table(copy)
    (row,) = read_table(copy, table="damage", maxSplitBytes="10k")
    assert (row["physicalOffset"], row["size"]) == (cut, 131_072 + 65_536 - cut)


def test_a_torn_end_is_the_end_of_a_store_that_is_open_and_damage_of_a_closed_one(copy):
    last = copy / "commitlog" / "00000000000001179648"
    overwrite_file(last, 194, b"\0\0\0\x99\xda\xa3\x20\xa7" + b"\1" * 52)
    with pytest.raises(StoreDamagedError):
        read_table(copy)
    (copy / "abort").touch()
    assert len(read_table(copy)) == 1489
    (row,) = read_table(copy, table="damage")
    assert row["physicalOffset"] == 1_179_842


def test_a_truncated_file_is_damage_and_listed_with_what_it_lacks(copy):
    file = copy / "commitlog" / "00000000000000131072"
    os.truncate(file, 30_000)
    with pytest.raises(StoreDamagedError):
        read_table(copy)
    rows = read_table(copy, table="damage", maxSplitBytes="8k")
    assert rows == read_table(copy, table="damage")
    assert rows[-1]["physicalOffset"] + rows[-1]["size"] == 131_072 + 65_536
    assert sum(row["size"] for row in rows) >= 65_536 - 30_000
    (state,) = [row["state"] for row in read_table(copy, table="segments")
                if row["physicalOffset"] == 131_072]  # fmt: skip
    assert state == "truncated"


def test_a_missing_file_is_loss_and_listed(copy):
    everything = read_table(copy)
    (copy / "commitlog" / "00000000000000131072").unlink()
    with pytest.raises(StoreDamagedError, match="00000000000000131072 is missing"):
        read_table(copy)
    (row,) = read_table(copy, table="damage")
    assert (row["physicalOffset"], row["size"], row["reason"]) == (131_072, 65_536, "missing file")
    kept = read_table(copy, failOnDataLoss=False)
    assert kept == [row for row in everything if row["physicalOffset"] // 65_536 != 2]
    states = [row["state"] for row in read_table(copy, table="segments")]
    assert states[2] == "missing"
    assert set(states) == {"missing", "whole"}


def test_a_file_made_in_advance_is_no_damage(copy):
    (copy / "commitlog" / "00000000000001245184").write_bytes(bytes(65_536))
    assert len(read_table(copy)) == 1489
    assert read_table(copy, table="damage") == []
    assert [row["state"] for row in read_table(copy, table="segments")][-1] == "unwritten"


def test_a_file_that_retention_deleted_after_planning_is_loss(copy, monkeypatch):
    real = files.LocalFiles.open

    def vanished(self, path):
        if path.endswith("00000000000000065536"):
            with files.plain_reads(path):
                raise FileNotFoundError(2, "No such file or directory")
        return real(self, path)

    everything = read_table(copy)
    monkeypatch.setattr(files.LocalFiles, "open", vanished)
    with pytest.raises(StoreError, match="retention may have deleted it"):
        read_table(copy)
    kept = read_table(copy, failOnDataLoss=False)
    assert kept == [row for row in everything if row["physicalOffset"] // 65_536 != 1]


# --- loss of offsets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"TopicA":{"0":5000}}'}, "asks for 5000, there are 0 to"),
        ({"endingOffsets": '{"TopicA":{"0":5000}}'}, "asks for 5000, there are 0 to"),
        ({"endingOffsets": '{"TopicA":{"77":1}}'}, "no queue TopicA/77"),
    ],
)
def test_offsets_that_are_not_there_are_loss(basic, options, message):
    with pytest.raises(StoreError, match=message):
        read_table(basic, subscribe="TopicA", **options)
    rows = read_table(basic, subscribe="TopicA", failOnDataLoss=False, **options)
    starts_behind = "startingOffsets" in options
    assert rows == [
        row for row in read_table(basic, subscribe="TopicA")
        if not (starts_behind and row["queueId"] == 0)
    ]  # fmt: skip


def test_expired_offsets_are_loss():
    store, manifest = golden_store("expired/deleted_by_store")
    topic, queues = next(iter(manifest["consumeQueues"].items()))
    queue_id, queue = next((n, q) for n, q in queues.items() if q["minOffset"] > 0)
    given = {topic: {queue_id: queue["minOffset"] - 1}}
    there = f"there are {queue['minOffset']} to {queue['maxOffset']}"
    for side in ("startingOffsets", "endingOffsets"):
        with pytest.raises(StoreError, match=f"{side} asks for {queue['minOffset'] - 1}, {there}"):
            read_table(store, subscribe=topic, **{side: json.dumps(given)})
    given = {topic: {queue_id: queue["minOffset"]}}
    rows = read_table(store, subscribe=topic, startingOffsets=json.dumps(given))
    found = [row["queueOffset"] for row in rows if row["queueId"] == int(queue_id)]
    assert found == list(range(queue["minOffset"], queue["maxOffset"]))
    up_to = read_table(store, subscribe=topic, endingOffsets=json.dumps(given))
    assert [row for row in up_to if row["queueId"] == int(queue_id)] == []


# --- places that are no store -------------------------------------------------------------------


def test_a_log_directory_alone_is_no_store(tmp_path):
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(NotAStoreError):
        read_table(tmp_path)


@pytest.mark.parametrize("table", ["messages", "consumequeue", "index", "segments", "damage"])
def test_a_store_that_holds_nothing_yet_has_no_rows(tmp_path, table):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "lock").write_bytes(b"lock")
    assert read_table(tmp_path, table=table) == []


def test_a_directory_that_may_not_be_read_is_named(basic, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(files.os, "scandir", denied)
    with pytest.raises(StoreError, match=r"Permission denied; let the user"):
        read_table(basic)


def test_names_must_be_one_per_store(basic):
    with pytest.raises(ConfigError, match="2 names for 1 stores"):
        read_table(basic, brokerName="a,b")


def test_a_store_is_read_alike_through_pyarrow_s_file_systems(basic, monkeypatch):
    from pyarrow import fs  # noqa: PLC0415 - only this test needs it

    here = {
        table: read_table(basic, table=table) for table in ("messages", "consumequeue", "index")
    }
    monkeypatch.setattr(files, "LocalFiles", lambda: files.ArrowFiles(fs.LocalFileSystem()))
    for table, rows in here.items():
        assert read_table(basic, table=table, maxSplitBytes="100k") == rows
    offsets = {"subscribe": "TopicA", "startingOffsets": '{"TopicA":{"0":40}}'}
    assert read_table(basic, **offsets)


def test_a_file_uri_is_a_path(basic, monkeypatch):
    assert len(read_table(basic.as_uri())) == 1489
    with pytest.raises(StoreError, match="cannot be reached"):
        read_table("nowhere://bucket/store")
    monkeypatch.setattr(files, "_client", Mock(side_effect=NotImplementedError("no S3 in here")))
    with pytest.raises(StoreError, match="cannot be reached: no S3 in here"):
        read_table("s3://bucket/store")


def test_golden_expired_stores_begin_where_retention_left_them():
    directory = golden_case("expired")
    rows = read_table(directory / "files_removed", table="segments")
    assert rows[0]["physicalOffset"] > 0
    assert {row["state"] for row in rows} == {"whole"}


# --- a store that is being written --------------------------------------------------------------


def test_a_store_is_read_while_it_is_written(tmp_path):
    config = StoreConfig.small(mapped_file_size_commit_log=64 * 1024)
    with MessageStore.open(tmp_path / "store", config) as store:
        done = threading.Event()

        def put(number):
            store.put(Message(topic="live", body=b"%d" % number * 50, keys=f"k{number}"))

        def write():
            for number in range(1, 1500):
                put(number)
            done.set()

        put(0)  # a store without a file is none yet

        writer = threading.Thread(target=write)
        writer.start()
        seen = []
        while True:
            is_done = done.is_set()
            rows = read_table(tmp_path / "store", columns="queueOffset,physicalOffset,size")
            seen.append(len(rows))
            assert [row["queueOffset"] for row in rows] == list(range(len(rows)))
            if is_done:
                break
        writer.join()
        assert seen == sorted(seen)
        assert seen[-1] == 1500
    rows = read_table(tmp_path / "store", brokerName="b")
    assert [row["body"] for row in rows] == [b"%d" % number * 50 for number in range(1500)]
    assert read_table(tmp_path / "store", table="damage") == []


def test_a_file_that_one_listing_missed_is_no_hole(tmp_path, monkeypatch):
    config = StoreConfig(mapped_file_size_commit_log=64 * 1024)
    with MessageStore.open(tmp_path / "store", config) as store:
        for _ in range(8):
            store.put(Message(topic="t", body=bytes(30_000)))
    listings = []
    list_all = files.LocalFiles.list

    def list_some(self, path):
        entries = list_all(self, path)
        if path.endswith("commitlog"):
            listings.append(path)
            if len(listings) == 1:
                del entries[1]
        return entries

    monkeypatch.setattr(files.LocalFiles, "list", list_some)
    assert len(read_table(tmp_path / "store", columns="size")) == 8
    assert len(listings) > 1
    (tmp_path / "store" / "commitlog" / f"{64 * 1024:020d}").unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        read_table(tmp_path / "store", columns="size")


def test_a_file_that_was_begun_after_planning_is_left_for_the_next_read(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=64 * 1024)
    with MessageStore.open(tmp_path / "store", config) as store:
        store.put(Message(topic="t", body=bytes(30_000)))
        ahead = tmp_path / "store" / "commitlog" / f"{64 * 1024:020d}"
        ahead.touch()
        os.truncate(ahead, 64 * 1024)
        (tasks,) = plan_table(tmp_path / "store", maxSplitBytes="1g")
        assert {part.segment.base for part in tasks} == {0}
        (part,) = (one for one in tasks if one.segment.is_last)
        begun = part._replace(
            segment=part.segment._replace(state=SegmentState.UNWRITTEN), start=0, stop=part.stop
        )
        assert list(read_split(begun)) == []


def test_pages_that_were_written_ahead_are_not_data(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000 + bytes(900_000))
    with files.opened(str(path), str(path)) as file:
        assert 100_000 <= file.data_stop(1_000_000) < 100_000 + 64 * 1024
    path.write_bytes(bytes(500_000))
    with files.opened(str(path), str(path)) as file:
        assert file.data_stop(500_000) == 0


# --- an index that cannot be read ---------------------------------------------------------------


def test_an_index_file_of_an_unknown_layout_asks_for_it(copy):
    file = min((copy / "index").iterdir())
    os.truncate(file, 42_000)
    with pytest.raises(ConfigError, match="give the options maxHashSlotNum and maxIndexNum"):
        read_table(copy, table="index")
    rows = read_table(copy, table="index", maxHashSlotNum=500, maxIndexNum=2000)
    assert len(rows) == 3269 - 2
    os.truncate(file, 10)
    with pytest.raises(StoreError, match="is not an index file: it has 10 bytes"):
        read_table(copy, table="index", maxHashSlotNum=500, maxIndexNum=2000)


def test_an_index_file_longer_than_its_layout_is_refused(basic):
    with pytest.raises(ConfigError, match="has 42040 bytes: a file of 100 slots and 2000 items"):
        read_table(basic, table="index", maxHashSlotNum=100, maxIndexNum=2000)


# --- what cannot be meant -----------------------------------------------------------------------


@pytest.mark.parametrize("table", ["messages", "consumequeue"])
@pytest.mark.parametrize(
    "options",
    [
        {"assign": '{"TopicA":{"brokr":[0]}}'},
        {"subscribe": "TopicA", "startingOffsets": '{"TopicA":{"brokr":{"0":5}}}'},
        {"subscribe": "TopicA", "endingOffsets": '{"TopicA":{"brokr":{"0":5}}}'},
    ],
)
def test_queues_of_a_store_that_is_not_read_are_refused(basic, table, options):
    with pytest.raises(ConfigError, match="names store 'brokr'; the stores are broker-a"):
        read_table(basic, table=table, brokerName="broker-a", **options)


def test_offsets_of_queues_without_a_log_are_loss(copy):
    for path in (copy / "commitlog").iterdir():
        path.unlink()
    asked = {"table": "consumequeue", "subscribe": "TopicA"}
    with pytest.raises(StoreError, match="startingOffsets asks for 1, there are"):
        read_table(copy, startingOffsets='{"TopicA":{"0":1}}', **asked)


@pytest.mark.parametrize("table", ["messages", "index"])
@pytest.mark.parametrize("options", [{"maxSplitBytes": 1}, {"minPartitions": 10**9}])
def test_more_tasks_than_spark_survives_are_not_made(basic, table, options, monkeypatch):
    monkeypatch.setattr(planning, "MOST_TASKS", 100)
    assert 25 <= len(plan_table(basic, table=table, **options)) <= 101
    assert read_table(basic, table=table, **options) == read_table(basic, table=table)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("topic STRING, topic STRING", {}, "stands in the schema twice"),
        ("tags STRING NOT NULL", {}, "may be null, the schema says that it is not"),
        ("topic STRING", {"columns": "tags"}, "the options leave it out"),
        ("body BINARY", {"includeBody": "false"}, "the options leave it out"),
        ("topic INTEGER", {}, "is string, the schema asks for int"),
    ],
)
def test_a_schema_that_rows_would_not_fit_is_refused(schema, options, message):
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType  # noqa: PLC0415 - only this test needs it

    fields = StructType()
    for field in schema.split(", "):
        name, kind, *rest = field.split()
        fields.add(name, kind.lower(), not rest)
    given = parse_options({"path": "store", **options})
    with pytest.raises(ConfigError, match=message):
        check_schema(given.table, given.columns, fields)
