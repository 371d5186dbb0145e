"""Tables ``queues``, ``topics``, ``consumers`` know the queues of batch topics as any other."""

import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from rocketstore import Message, verify_store
from rocketstore.cli.application import run
from rocketstore.errors import ConfigError, StoreError
from rocketstore.format.batch_queue_entry import BATCH_ENTRY_SIZE_BYTES
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.message import COMPRESSED_FLAG, INNER_BATCH
from rocketstore.pipeline import inner_messages
from rocketstore.pipeline.columns import TABLES
from support.audit_runs import audited
from support.batch_stores import BATCHES, PLAIN, open_batches, put
from support.clock import START_MS, Clock
from support.inside import parts_of
from support.memory import memory_directory
from support.pipeline_tables import ARROW_TYPES, read_table
from support.store_files import overwrite_file
from support.stream_run import StreamRun, flat

HOUR_MS = 3_600_000
SETTINGS = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_batch_queue": 8 * BATCH_ENTRY_SIZE_BYTES,
}
OFFSETS = {f"{BATCHES}@readers": {"0": 95, "1": 0, "7": 4}, f"{PLAIN}@readers": {"0": 4}}


@pytest.fixture(scope="module")
def root():
    """Three messages an hour in queue 0 of the batch topic, of which the oldest have expired."""
    with memory_directory() as directory:
        clock = Clock()
        with open_batches(directory, clock=clock, **SETTINGS) as store:
            for _ in range(40):
                put(store, "a", "b", "c")
                put(store, "p", topic=PLAIN)
                clock.now_ms += HOUR_MS
            store.put_batch([*map(_message, "xy")], queue_id=1)
            store.wait_dispatched()
        retention = SETTINGS | {"retention": True, "file_reserved_time": 24}
        with open_batches(directory, clock=clock, **retention) as store:
            store.delete_expired_files()
            for _ in range(5):
                parts_of(store).retention.run_once()
        (directory / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": OFFSETS}))
        yield directory


def _message(body: str) -> Message:
    return Message(topic=BATCHES, body=body.encode())


def as_the_store_says(root: Path) -> dict[tuple[str, int], tuple[object, ...]]:
    with open_batches(root, clock=Clock(START_MS + 50 * HOUR_MS), **SETTINGS) as store:
        return {
            key: (
                store.min_offset(*key),
                store.max_offset(*key),
                store.earliest_timestamp(*key),
                store.store_timestamp(*key, store.max_offset(*key) - 1),
            )
            for key in store.queues()
        }


def test_bounds_and_times_are_those_of_the_store(root):
    rows = read_table(root, table="queues")
    found = {
        (row["topic"], row["queueId"]): (
            row["minOffset"],
            row["maxOffset"],
            *(round(row[f"{end}StoreTimestamp"].timestamp() * 1000) for end in ("first", "last")),
        )
        for row in rows
    }
    assert found == as_the_store_says(root)
    first, stop = found[BATCHES, 0][:2]
    assert 0 < first < 60
    assert stop == 120
    records = [row for row in read_table(root, table="commitlog") if row["topic"] == BATCHES]
    own = [row["size"] for row in records if row["queueId"] == 0]
    assert sum(own) == next(row["bytes"] for row in rows if row["topic"] == BATCHES)
    assert len(own) == (stop - first) // 3


def test_a_topic_has_as_many_messages_as_its_batches(root):
    bounds = as_the_store_says(root)
    rows = {row["topic"]: row for row in read_table(root, table="topics")}
    assert set(rows) == {BATCHES, PLAIN}
    row = rows[BATCHES]
    assert row["queueCount"] == 2
    assert row["messageCount"] == 120 - bounds[BATCHES, 0][0] + 2
    assert [one["topic"] for one in read_table(root, table="topics", subscribe=BATCHES)] == [
        BATCHES
    ]


def test_the_lag_of_a_group_ends_at_the_last_message(root, capsys):
    rows = read_table(root, table="consumers")
    found = {(row["topic"], row["queueId"]): (row["maxOffset"], row["lag"]) for row in rows}
    assert found == {
        (BATCHES, 0): (120, 25), (BATCHES, 1): (2, 2), (BATCHES, 7): (0, -4), (PLAIN, 0): (40, 36),
    }  # fmt: skip
    assert run(["queue", "lag", str(root), "--output", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {(row["topic"], row["queueId"]): (row["maxOffset"], row["lag"]) for row in said} == found


def test_a_group_before_the_first_message_left_is_named_by_verify_and_by_the_audit(root):
    first = as_the_store_says(root)[BATCHES, 0][0]
    table = root / "config/consumerOffset.json"
    before = table.read_text()
    table.write_text(json.dumps({"offsetTable": {f"{BATCHES}@late": {"0": first - 1}}}))
    for report in (verify_store(root), audited(root)):
        (found,) = (one for one in report.findings if one.kind.startswith("consumer"))
        assert (found.kind, found.expected) == ("consumer-behind", f"{first} to 120")
    table.write_text(before)


def test_the_queues_that_are_listed_are_of_both_kinds(root, capsys):
    assert run(["queue", "list", str(root), "--output", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = read_table(root, table="queues", columns="topic,queueId,minOffset,maxOffset")
    assert said == sorted(rows, key=lambda row: (row["topic"], row["queueId"]))


# --- messages inside batches ----------------------------------------------------------------------


def records(root: Path, columns: str = ",".join(TABLES["messages"])) -> pa.RecordBatch:
    names = columns.split(",")
    schema = pa.schema([(name, ARROW_TYPES[TABLES["messages"][name]]) for name in names])
    found = read_table(root, columns=columns)
    return pa.RecordBatch.from_pylist(found, schema=schema)


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_messages_of_batches_are_the_rows_that_a_get_gives(at_once, monkeypatch):
    monkeypatch.setattr("rocketstore.pipeline.unbatching._ROWS_AT_ONCE", at_once)
    with memory_directory() as directory:
        with open_batches(directory) as store:
            for number in range(3):
                put(store, "a", "b", tags="t", keys=("k", f"{number}"), flag=7)
                put(store, "p", topic=PLAIN)
            store.put(Message(topic=BATCHES, body=b"alone", tags="u"))
            body = encode_client_batch([(1, b"x", b"UNIQ_KEY\x01u-1"), (2, b"", b"")])
            flag = INNER_BATCH | COMPRESSED_FLAG
            store.put(Message(topic=BATCHES, body=zlib.compress(body), sys_flag=flag))
            store.wait_dispatched()
            wanted = store.get(BATCHES, 0, 0).messages
        given = records(directory)
        found = pa.Table.from_batches([*inner_messages([given])], schema=given.schema).to_pylist()
    plain = [row for row in found if row["topic"] == PLAIN]
    assert plain == [row for row in given.to_pylist() if row["topic"] == PLAIN]
    found = sorted((row for row in found if row["topic"] != PLAIN), key=lambda r: r["queueOffset"])
    assert len(found) == 9
    assert [
        (row["queueOffset"], row["physicalOffset"], row["body"], row["flag"], row["sysFlag"],
         row["bodyCRC"], row["tags"], tuple(row["keys"]), row["uniqKey"], dict(row["properties"]),
         row["bornHost"], row["msgId"])
        for row in found
    ] == [
        (one.queue_offset, one.physical_offset, one.body, one.flag, one.sys_flag,
         one.body_crc, one.tags, one.keys, one.unique_key, one.properties,
         one.born_host, one.message_id)
        for one in wanted
    ]  # fmt: skip


def test_of_a_batch_that_breaks_off_there_are_the_messages_before_the_break(root):
    given = records(root)
    rows = [row for row in given.to_pylist() if row["topic"] == BATCHES][:2]
    rows[0]["body"] = rows[0]["body"][:-3]
    rows[1]["properties"] = [("INNER_NUM", "3"), ("INNER_BASE", "0")]
    torn = pa.RecordBatch.from_pylist(rows, schema=given.schema)
    found = pa.Table.from_batches([*inner_messages([torn])], schema=given.schema).to_pylist()
    assert [row["body"] for row in found] == [b"a", b"b"]


def test_what_batches_are_divided_by_has_to_be_asked_for(root):
    few = records(root, "sysFlag,queueOffset,body,properties")
    (*_, last) = inner_messages([few])
    assert last.schema == few.schema
    assert len(last) > 3
    with pytest.raises(ConfigError, match="column properties"):
        next(inner_messages([few.drop_columns("properties")]))


def test_a_query_of_topics_has_every_batch_whatever_other_queues_say():
    with memory_directory() as directory:
        with open_batches(directory) as store:
            for topic in (BATCHES, PLAIN, PLAIN, BATCHES, PLAIN):
                put(store, "a", "b", topic=topic)
        every = [row["physicalOffset"] for row in read_table(directory)]
        for choice in ({"subscribePattern": ".*"}, {"subscribe": f"{BATCHES},{PLAIN}"}):
            rows = read_table(directory, **choice)
            assert [row["physicalOffset"] for row in rows] == every
        rows = read_table(directory, subscribePattern="bat.*")
        assert [row["queueOffset"] for row in rows] == [0, 2]


def test_a_query_from_an_offset_inside_a_batch_has_that_batch(root):
    first = as_the_store_says(root)[BATCHES, 0][0]
    chosen = {"subscribe": BATCHES, "startingOffsets": f'{{"{BATCHES}":{{"0":{first + 4}}}}}'}
    rows = [row for row in read_table(root, **chosen) if row["queueId"] == 0]
    assert [row["queueOffset"] for row in rows] == list(range(first + 3, 120, 3))
    chosen["endingOffsets"] = f'{{"{BATCHES}":{{"0":{first + 7}}}}}'
    rows = [row for row in read_table(root, **chosen) if row["queueId"] == 0]
    assert [row["queueOffset"] for row in rows] == [first + 3, first + 6]
    with pytest.raises(StoreError, match="asks for 121, there are"):
        read_table(root, **chosen | {"startingOffsets": f'{{"{BATCHES}":{{"0":121}}}}'})


@pytest.mark.parametrize("choice", [{"subscribe": BATCHES}, {"subscribePattern": "b.*"}])
def test_a_stream_of_chosen_topics_refuses_a_batch_topic_and_one_of_the_log_has_it(root, choice):
    with pytest.raises(ConfigError, match=f"does not follow batch queues.*{BATCHES}.*stream all"):
        StreamRun(root, startingOffsets="earliest", **choice).drain()
    plain = flat(StreamRun(root, startingOffsets="earliest", subscribe=PLAIN).drain())
    assert {row["topic"] for row in plain} == {PLAIN}
    every = flat(StreamRun(root, startingOffsets="earliest").drain())
    assert {row["topic"] for row in every} == {BATCHES, PLAIN}


def test_an_entry_that_is_damaged_hides_no_end():
    with memory_directory() as directory:
        with open_batches(directory) as store:
            for _ in range(5):
                put(store, "a", "b")
        file = directory / "batchconsumequeue" / BATCHES / "0" / f"{0:020d}"
        overwrite_file(file, 0, b"\xff" * BATCH_ENTRY_SIZE_BYTES)
        (row,) = read_table(directory, table="queues")
        assert row["maxOffset"] == 10
