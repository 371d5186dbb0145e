"""What a report counts: equal to counting one by one, and the same for every cut of the work."""

import math
import os
import random
import sys
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketstore.pipeline.jobs.report import key_sketch, partial_groups
from rocketstore.pipeline.jobs.report.partial_groups import bucket_lows, count_task
from rocketstore.pipeline.jobs.report.report_job import plan_report
from support.busy_log import DELAY_TOPIC, START_MS, busy_puts, write_log
from support.python_process import printed
from support.report_run import make_report, tables_of

NOW_MS = START_MS + 3_600_000
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "busy"
    return directory, write_log(directory, busy_puts(3_000))


@pytest.fixture(scope="module")
def found(busy, tmp_path_factory):
    report = make_report(busy[0], tmp_path_factory.mktemp("out") / "report", now_ms=NOW_MS)
    return report.summary, tables_of(report)


def counted(rows, *names, value="messages"):
    totals = Counter()
    for row in rows:
        totals[tuple(row[name] for name in names)] += row[value]
    return totals


def test_queues_equal_a_count_one_by_one(busy, found):
    _, tables = found
    expected = Counter((put.topic, put.queue_id) for put in busy[1])
    assert counted(tables["queues"], "topic", "queueId") == expected
    sizes = defaultdict(int)
    for put in busy[1]:
        sizes[put.topic, put.queue_id] += put.size
    assert counted(tables["queues"], "topic", "queueId", value="bytes") == sizes
    for row in tables["queues"]:
        offsets = [
            put.queue_offset
            for put in busy[1]
            if (put.topic, put.queue_id) == (row["topic"], row["queueId"])
        ]
        assert (row["minQueueOffset"], row["maxQueueOffset"]) == (min(offsets), max(offsets))


def test_tags_and_keys_equal_a_count_one_by_one(busy, found):
    summary, tables = found
    assert counted(tables["tags"], "topic", "tags") == Counter(
        (put.topic, put.tags) for put in busy[1]
    )
    keys = Counter((put.topic, key) for put in busy[1] for key in (put.keys or "").split())
    assert counted(tables["keys"], "topic", "key") == dict(keys.most_common(1_000)) or all(
        keys[row["topic"], row["key"]] == row["messages"] for row in tables["keys"]
    )
    assert len(tables["keys"]) == min(1_000, len(keys))
    assert summary["keys"] == keys.total()
    assert summary["keysMissedAtMost"] == summary["tagsMissedAtMost"] == 0


def test_traffic_equals_a_count_by_minute(busy, found):
    _, tables = found
    by_minute = Counter((put.store_ms // MINUTE_MS * MINUTE_MS, put.topic) for put in busy[1])
    rows = [
        row | {"startMs": int(row["startTimestamp"].timestamp() * 1000)}
        for row in tables["traffic"]
    ]
    assert counted(rows, "startMs", "topic") == by_minute


def test_times_are_counted_by_the_second_only_where_the_first_records_are_near(tmp_path):
    put = {"body": b"x" * 500, "latency_ms": 1, "topic": "t"}
    for name, step_ms in (("short", 400), ("long", 1_500)):
        write_log(
            tmp_path / name, [put | {"store_ms": START_MS + one * step_ms} for one in range(900)]
        )
    widths = {
        name: plan_report(tmp_path / name, tmp_path / "out").common.width_ms
        for name in ("short", "long")
    }
    assert widths == {"short": 1_000, "long": MINUTE_MS}
    for name in widths:
        tables = tables_of(make_report(tmp_path / name, tmp_path / f"{name}-report"))
        assert len(tables["traffic"]) == (7 if name == "short" else 23)
        assert sum(row["messages"] for row in tables["traffic"]) == 900


def test_every_body_size_and_latency_is_in_its_bucket(busy, found):
    _, tables = found
    for name, low, least, most, value_of in (
        ("sizes", "bucketBytes", "leastBytes", "mostBytes", lambda put: put.body_size),
        ("latencies", "bucketMs", "leastMs", "mostMs", lambda put: put.store_ms - put.born_ms),
    ):
        values = defaultdict(list)
        for put in busy[1]:
            low_of = int(bucket_lows(np.array([value_of(put)]))[0])
            values[put.topic, low_of].append(value_of(put))
        assert counted(tables[name], "topic", low) == {
            key: len(all_) for key, all_ in values.items()
        }
        for row in tables[name]:
            mine = values[row["topic"], row[low]]
            assert min(mine) <= row[least] <= row[most] <= max(mine)


def test_latency_of_direct_messages_leaves_out_delays_retries_and_transactions(busy, found):
    summary, tables = found

    def way(put):
        if put.reconsume_times:
            return "retried"
        if put.delay_level and put.topic != DELAY_TOPIC:
            return "delayed"
        return "committed" if put.sys_flag == 8 else "direct"

    assert counted(tables["latencies"], "way") == Counter((way(put),) for put in busy[1])
    direct = sorted(put.store_ms - put.born_ms for put in busy[1] if way(put) == "direct")
    assert summary["latency"]["least"] == direct[0] < 0
    assert summary["latency"]["most"] == direct[-1]
    assert summary["latency"]["negative"] == sum(1 for one in direct if one < 0)
    exact = direct[-(-len(direct) * 99 // 100) - 1]
    assert exact <= summary["latency"]["p99"] <= exact * 33 / 32


def test_retries_and_dead_letters_are_counted_by_group_and_times(busy, found):
    summary, tables = found
    expected = Counter(
        (put.topic, put.reconsume_times) for put in busy[1] if put.topic.startswith("%")
    )
    assert counted(tables["retries"], "topic", "reconsumeTimes") == expected
    assert {row["consumerGroup"] for row in tables["retries"]} == {"billing"}
    assert summary["deadLetters"] == sum(1 for put in busy[1] if put.topic == "%DLQ%billing") > 0


DELAYS_MS = {1: 1_000, 3: 10_000, 5: 60_000, 18: 7_200_000}


def test_delayed_messages_wait_until_due_when_nothing_says_that_they_were_delivered(busy, found):
    _, tables = found
    waiting = Counter()
    for put in busy[1]:
        if put.topic == DELAY_TOPIC and put.store_ms + DELAYS_MS[put.delay_level] > NOW_MS:
            waiting[put.delay_level,] += 1
    assert counted(tables["delays"], "level", value="waiting") == +waiting | Counter(
        dict.fromkeys([(level,) for level in DELAYS_MS], 0)
    )
    assert sum(waiting.values()) > 0
    assert all(row["overdue"] == 0 for row in tables["delays"])
    assert {row["level"]: row["delayMs"] for row in tables["delays"]} == DELAYS_MS


def test_delayed_messages_wait_after_the_delivered_offset_and_may_be_overdue(tmp_path):
    store = tmp_path / "store"
    puts = write_log(store, busy_puts(1_500))
    (store / "config").mkdir()
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{3:4,5:1000000}}')
    tables = tables_of(make_report(store, tmp_path / "report", now_ms=NOW_MS))
    rows = {row["level"]: row for row in tables["delays"]}
    third = [put for put in puts if put.topic == DELAY_TOPIC and put.queue_id == 2]
    assert rows[3]["waiting"] == len(third) - 4
    due = [put.store_ms + 10_000 for put in third[4:]]
    assert rows[3]["overdue"] == sum(1 for one in due if one <= NOW_MS)
    assert rows[3]["firstDueTimestamp"].timestamp() * 1000 == min(due)
    assert rows[5]["waiting"] == 0
    assert rows[5]["firstDueTimestamp"] is None


@pytest.mark.parametrize("split_bytes", [30_000, 100_000, 1_000_000])
def test_splits_of_any_size_give_the_same_report(busy, found, tmp_path, split_bytes):
    report = make_report(busy[0], tmp_path / "report", split_bytes=split_bytes, now_ms=NOW_MS)
    assert report.summary == found[0]
    assert tables_of(report) == found[1]
    for row in pq.read_table(report.tables / "files.parquet").to_pylist():
        assert row["bytesRead"] >= row["messageBytes"]
        assert (row["resyncs"] > 0) == (split_bytes < row["dataEnd"])


# --- bounds -------------------------------------------------------------------------------------


def test_a_bucket_is_less_than_a_thirty_second_wide_and_follows_the_one_before():
    values = np.arange(100_000)
    lows = bucket_lows(values)
    assert (lows[:64] == values[:64]).all()
    assert (np.diff(lows) >= 0).all()
    assert (lows <= values).all()
    assert ((values - lows) * 32 < np.maximum(values, 1)).all()
    assert (bucket_lows(lows) == lows).all()
    assert (bucket_lows(-values) == -lows).all()


def test_extreme_numbers_have_a_bucket():
    lows = bucket_lows(np.array([2**63 - 1, -(2**63), 2**53 - 1]))
    assert lows.tolist() == [2**52, -(2**52), 2**52]


def test_counts_of_too_many_keys_are_low_by_no_more_than_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_groups, "NAME_CAPACITY", 100)
    monkeypatch.setattr(partial_groups, "BLOCK_BYTES", 50_000)
    keys = np.minimum(np.random.default_rng(5).zipf(1.3, 6_000), 5_000).tolist()
    put = {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1}
    write_log(tmp_path / "store", [put | {"keys": f"k{key}"} for key in keys])
    report = make_report(tmp_path / "store", tmp_path / "report", split_bytes=100_000)
    missed = report.summary["keysMissedAtMost"]
    assert 0 < missed < 200
    exact = Counter(f"k{key}" for key in keys)
    found = {row["key"]: row["messages"] for row in tables_of(report)["keys"]}
    for key, count in exact.items():
        assert count - missed <= found.get(key, 0) <= count


def test_a_task_yields_the_groups_of_a_block_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_groups, "BLOCK_BYTES", 5_000)
    expected = make_report_of_many_queues(tmp_path, "whole")
    plan = plan_report(tmp_path / "store", tmp_path / "out")
    batches = [batch for task in plan.tasks for batch in count_task(task)]
    names = pa.Table.from_batches(batches)["name"].to_pylist()
    assert names.count("withoutStoreTime") > len(plan.tasks)
    monkeypatch.undo()
    assert tables_of(make_report_of_many_queues(tmp_path, "again")) == tables_of(expected)


def make_report_of_many_queues(directory, name):
    if not (directory / "store").exists():
        puts = [
            {"topic": f"t{one % 40}", "queue_id": one % 7, "body": b"x" * one, "keys": f"k{one}",
             "store_ms": START_MS + one * 60_000, "latency_ms": one}
            for one in range(1_000)
        ]  # fmt: skip
        write_log(directory / "store", puts)
    return make_report(directory / "store", directory / name, now_ms=START_MS)


def test_unique_keys_overflow_a_task_and_the_error_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(partial_groups, "NAME_CAPACITY", 100)
    monkeypatch.setattr(partial_groups, "BLOCK_BYTES", 50_000)
    store = tmp_path / "store"
    puts = [
        {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1, "keys": f"unique-{one}"}
        for one in range(2_000)
    ]
    puts[::4] = [put | {"keys": "hot"} for put in puts[::4]]
    write_log(store, puts)
    report = make_report(store, tmp_path / "report")
    missed = report.summary["keysMissedAtMost"]
    assert 0 < missed <= 2_000 / 500
    top = tables_of(report)["keys"][0]
    assert top["key"] == "hot"
    assert 500 - missed <= top["messages"] <= 500


def test_names_longer_than_the_limit_are_counted_by_their_beginning(tmp_path):
    store = tmp_path / "store"
    put = {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1}
    write_log(store, [put | {"keys": "k" * 9_000, "tags": "é" * 2_000}])
    report = make_report(store, tmp_path / "report")
    tables = tables_of(report)
    assert tables["keys"][0]["key"] == "k" * 64 + "…"
    assert tables["tags"][0]["tags"] == "é" * 64 + "…"
    assert report.summary["namesCut"] == 2


def percentile(values, percent):
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def test_percentiles_where_all_of_a_bucket_are_equal_are_those_of_the_data(tmp_path):
    sizes = [random.Random(8).randrange(20, 64) for _ in range(1_000)]
    puts = [
        {"topic": "t", "body": bytes(size), "store_ms": START_MS + size, "latency_ms": size % 50}
        for size in sizes
    ]
    write_log(tmp_path / "store", puts)
    report = make_report(tmp_path / "store", tmp_path / "report", split_bytes=20_000)
    for figures, values in (
        (report.summary["bodySize"], sizes),
        (report.summary["latency"], [size % 50 for size in sizes]),
    ):
        found = [figures["least"], figures["p50"], figures["p90"], figures["p99"], figures["most"]]
        assert found == [percentile(values, percent) for percent in (0, 50, 90, 99, 100)]
    [row] = tables_of(report)["topics"]
    assert row["bodyBytesP50"] == percentile(sizes, 50)


def test_other_percentiles_are_never_too_low_and_a_thirty_second_too_high_at_most(tmp_path):
    values = np.random.default_rng(3).lognormal(6, 2, 3_000).astype(np.int64)
    puts = [
        {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": int(value)}
        for value in values
    ]
    write_log(tmp_path / "store", puts)
    report = make_report(tmp_path / "store", tmp_path / "report")
    found = report.summary["latency"]
    for percent in (50, 90, 99):
        exact = percentile(values.tolist(), percent)
        assert exact <= found[f"p{percent}"] <= exact * 33 / 32
    tile = f'<dt>Latency, median ≤</dt><dd class="figure">{found["p50"]} ms</dd>'
    assert tile in report.page.read_text("utf-8")


def test_tags_and_keys_are_counted_over_all_topics_too(busy, found):
    _, tables = found
    tags, topics = Counter(), defaultdict(set)
    for put in busy[1]:
        tags[put.tags] += 1
        topics[put.tags].add(put.topic)
    assert {row["tags"]: row["messages"] for row in tables["allTags"]} == tags
    assert {row["tags"]: row["topics"] for row in tables["allTags"]} == {
        tag: len(names) for tag, names in topics.items()
    }
    assert sum(row["bytes"] for row in tables["allTags"]) == sum(put.size for put in busy[1])
    keys = Counter(key for put in busy[1] for key in (put.keys or "").split())
    listed = [row["messages"] for row in tables["allKeys"]]
    assert listed == sorted(keys.values(), reverse=True)[:1_000]
    assert all(keys[row["key"]] == row["messages"] for row in tables["allKeys"])


MEASURED = """
import resource, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from rocketstore.pipeline.jobs.report import key_sketch
from rocketstore.pipeline.jobs.report.partial_groups import ROWS, count_task
from rocketstore.pipeline.jobs.report.report_job import plan_report, write_report
from support.report_run import make_report

store, place = map(Path, sys.argv[1:])
make_report(store, place / "first")  # libraries are loaded
plan = plan_report(store, place / "many")
(place / "many" / "groups").mkdir(parents=True)
with pq.ParquetWriter(place / "many" / "groups" / "1.parquet", ROWS) as file:
    for rows in (rows for task in plan.tasks for rows in count_task(task)):
        file.write_batch(rows)
    for block in range(100):
        sketch = key_sketch.new_sketch()
        for number in range(8_192):
            sketch.update(f"order-{block}-{number}-{'x' * 100}")
        sketch.update("hot", 50)
        if block >= 50:  # what was left out before counts for the most that it may have
            sketch.update("late", 60)
        row = {"part": "keys", "sketch": sketch.serialize()}
        file.write_batch(pa.RecordBatch.from_pylist([row], schema=ROWS))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = write_report(plan, place / "many")
held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
keys = pq.read_table(report.tables / "allKeys.parquet").slice(0, 2).to_pylist()
found = {row["key"]: row["messages"] for row in keys}
print(held, report.summary["keysMissedAtMost"], found["hot"], found["late"])
"""


def test_the_driver_holds_little_of_however_many_keys(busy, tmp_path):
    path = os.pathsep.join(sys.path)
    told = printed(MEASURED, busy[0], tmp_path, PYTHONPATH=path).split()
    held_kib, missed, hot, late = map(int, told)
    assert held_kib < 60 * 1024
    assert 0 < missed <= 100 * 8_300 * 3.5 / 2**key_sketch.LG_SLOTS
    assert 5_000 - missed <= hot <= 5_000
    assert 3_000 - missed <= late <= 3_000


def test_tasks_without_keys_send_no_sketch(tmp_path):
    put = {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1}
    write_log(tmp_path / "store", [put])
    [task] = plan_report(tmp_path / "store", tmp_path / "out").tasks
    assert [rows["sketch"].null_count for rows in count_task(task)].count(0) == 0
    sketch = key_sketch.new_sketch()
    assert key_sketch.most_frequent(sketch) == ([], 0)
    rows = pa.RecordBatch.from_pylist([{"sketch": sketch.serialize()}], schema=partial_groups.ROWS)
    assert [len(one) for one in partial_groups.join_sketches([rows, rows])] == [0, 0]
