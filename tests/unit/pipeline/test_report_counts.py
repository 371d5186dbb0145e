"""What a report counts: equal to counting one by one, and the same for every cut of the work."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest

from rocketstore.pipeline.jobs.report import counts, tally
from rocketstore.pipeline.jobs.report.buckets import (
    MINUTE_MS,
    WIDTHS_MS,
    bucket_bounds,
    bucket_numbers,
)
from rocketstore.pipeline.jobs.report.distribution import Distribution
from rocketstore.pipeline.jobs.report.groups import ExactGroups, FrequentGroups, TimeGroups, pa
from support.busy_log import DELAY_TOPIC, START_MS, busy_puts, write_log
from support.golden_stores import STORES, golden_store
from support.report_run import make_report, tables_of

NOW_MS = START_MS + 3_600_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "busy"
    return directory, write_log(directory, busy_puts(3_000))


@pytest.fixture(scope="module")
def found(busy, tmp_path_factory):
    report = make_report(busy[0], tmp_path_factory.mktemp("out") / "page.html", now_ms=NOW_MS)
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
    assert {row["widthMs"] for row in rows} == {MINUTE_MS}
    totals = Counter(put.store_ms // MINUTE_MS * MINUTE_MS for put in busy[1])
    assert {
        int(row["startTimestamp"].timestamp() * 1000): row["messages"] for row in tables["minutes"]
    } == totals


def test_many_topics_widen_their_own_buckets_and_leave_the_minutes(tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "TIME_ROWS", 100)
    monkeypatch.setattr(counts, "TIME_ROWS", 100)
    monkeypatch.setattr(tally, "SECOND_ROWS", 10)
    monkeypatch.setattr(counts, "SECOND_ROWS", 10)
    store = tmp_path / "store"
    put = {"body": b"", "latency_ms": 1}
    times = [START_MS + one * MINUTE_MS // 4 for one in range(360)]
    write_log(store, [put | {"topic": f"t{ms // 1000 % 7}", "store_ms": ms} for ms in times])
    report = make_report(store, tmp_path / "page.html")
    tables = tables_of(report)
    assert report.summary["minutesWidthMs"] == MINUTE_MS
    assert report.summary["trafficWidthMs"] == 15 * MINUTE_MS
    assert len(tables["minutes"]) == 91
    for name in ("minutes", "traffic"):
        assert sum(row["messages"] for row in tables[name]) == 360
    cut = make_report(store, tmp_path / "page.html", split_bytes=5_000)
    assert tables_of(cut) == tables


def test_every_body_size_and_latency_is_in_its_bucket(busy, found):
    _, tables = found
    for put in busy[1][:200]:
        assert any(
            row["topic"] == put.topic and row["lowBytes"] <= put.body_size <= row["highBytes"]
            for row in tables["sizes"]
        )
        latency = put.store_ms - put.born_ms
        assert any(
            row["topic"] == put.topic and row["lowMs"] <= latency <= row["highMs"]
            for row in tables["latencies"]
        )
    assert sum(row["messages"] for row in tables["sizes"]) == len(busy[1])
    assert sum(row["messages"] for row in tables["latencies"]) == len(busy[1])


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
    assert exact <= summary["latency"]["p99"] <= exact * 9 / 8


def test_retries_and_dead_letters_are_counted_by_group_and_times(busy, found):
    summary, tables = found
    expected = Counter(
        (put.topic, put.reconsume_times) for put in busy[1] if put.topic.startswith("%")
    )
    assert counted(tables["retries"], "topic", "reconsumeTimes") == expected
    assert {row["consumerGroup"] for row in tables["retries"]} == {"billing"}
    assert summary["deadLetters"] == sum(1 for put in busy[1] if put.topic == "%DLQ%billing") > 0


DELAYS_MS = {1: 1_000, 3: 10_000, 5: 60_000, 18: 7_200_000}


def test_delayed_messages_wait_until_due_when_nothing_tells_of_their_delivery(busy, found):
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


def test_delayed_messages_wait_behind_the_delivered_offset_and_may_be_overdue(tmp_path):
    store = tmp_path / "store"
    puts = write_log(store, busy_puts(1_500))
    (store / "config").mkdir()
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{3:4,5:1000000}}')
    tables = tables_of(make_report(store, tmp_path / "page.html", now_ms=NOW_MS))
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
    report = make_report(busy[0], tmp_path / "page.html", split_bytes=split_bytes, now_ms=NOW_MS)
    assert report.summary == found[0]
    assert tables_of(report) == found[1]


@pytest.mark.parametrize("name", [name for name in STORES if not name.startswith("crash/")])
def test_messages_of_golden_stores_equal_the_manifest(name, tmp_path):
    store, manifest = golden_store(name)
    java = [record for record in manifest["records"] if record["type"] == "msg"]
    report = make_report(store, tmp_path / "page.html")
    tables = tables_of(report)
    assert counted(tables["queues"], "topic", "queueId") == Counter(
        (one["topic"], one["queueId"]) for one in java
    )
    assert report.summary["bytes"] == sum(one["size"] for one in java)
    tags = Counter((one["topic"], one["properties"].get("TAGS") or None) for one in java)
    assert counted(tables["tags"], "topic", "tags") == tags


# --- bounds -------------------------------------------------------------------------------------


def test_buckets_follow_each_other_without_gap_and_are_an_eighth_wide():
    reached = 0
    for number in range(400):
        low, high = bucket_bounds(number)
        assert low == reached
        assert high - low <= low / 8
        assert bucket_numbers(np.array([low, high, -low, -high])).tolist() == [
            number, number, -number, -number,
        ]  # fmt: skip
        reached = high + 1


def test_extreme_numbers_have_a_bucket():
    extremes = np.array([2**63 - 1, -(2**63), 2**53 - 1])
    numbers = bucket_numbers(extremes)
    assert numbers[0] > 0 > numbers[1]
    assert numbers[0] >= numbers[2]


def test_a_percentile_is_never_too_low_and_at_most_an_eighth_too_high():
    values = np.random.default_rng(3).lognormal(6, 2, 5_000).astype(np.int64)
    found = Distribution([(int(bucket), 1) for bucket in bucket_numbers(values)])
    for percent in (1, 50, 90, 99, 100):
        exact = int(np.sort(values)[max(0, int(np.ceil(len(values) * percent / 100)) - 1)])
        assert exact <= found.percentile(percent) <= max(exact * 9 / 8, exact + 1)


def test_each_time_width_divides_the_next():
    assert all(b % a == 0 for a, b in itertools.pairwise(WIDTHS_MS))


def test_too_many_minutes_are_kept_by_wider_buckets_whatever_the_parts():
    starts = np.arange(1_000, dtype=np.int64) * MINUTE_MS
    rows = pa.table(
        {
            "startMs": starts,
            "topic": ["t"] * 1_000,
            "messages": np.ones(1_000, dtype=np.int64),
            "bytes": np.full(1_000, 7, dtype=np.int64),
        }
    )
    whole, parts = (TimeGroups("traffic", MINUTE_MS, 90) for _ in range(2))
    whole.add(rows)
    for begin in range(0, 1_000, 137):
        parts.add(rows.slice(begin, 137))
        parts.settle()
    assert whole.settle().sort_by("startMs").equals(parts.settle().sort_by("startMs"))
    assert whole.width_ms == parts.width_ms == 15 * MINUTE_MS
    assert sum(whole.settle()["messages"].to_pylist()) == 1_000


def test_counts_of_too_many_keys_are_low_by_no_more_than_is_said():
    chance = np.random.default_rng(5)
    keys = np.minimum(chance.zipf(1.3, 40_000), 30_000)
    groups = FrequentGroups("keys", 500)
    for begin in range(0, len(keys), 3_000):
        names = pa.array([f"k{key}" for key in keys[begin : begin + 3_000]])
        ones = np.ones(len(names), dtype=np.int64)
        groups.add(pa.table({"topic": pa.repeat("t", len(names)), "key": names, "messages": ones}))
        groups.settle()
    exact = Counter(f"k{key}" for key in keys.tolist())
    rows = groups.settle().to_pylist()
    assert 0 < groups.missed_at_most <= len(keys) / 500
    assert len(rows) <= 500
    found = {row["key"]: row["messages"] for row in rows}
    for key, count in exact.items():
        assert count - groups.missed_at_most <= found.get(key, 0) <= count


def test_unique_keys_overflow_a_task_and_the_error_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "NAME_CAPACITY", 100)
    monkeypatch.setattr(tally, "BLOCK_RECORDS", 500)
    store = tmp_path / "store"
    puts = [
        {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1, "keys": f"unique-{one}"}
        for one in range(2_000)
    ]
    puts[::4] = [put | {"keys": "hot"} for put in puts[::4]]
    write_log(store, puts)
    report = make_report(store, tmp_path / "page.html")
    missed = report.summary["keysMissedAtMost"]
    assert 0 < missed <= 2_000 / 100
    top = tables_of(report)["keys"][0]
    assert top["key"] == "hot"
    assert 500 - missed <= top["messages"] <= 500


def test_names_longer_than_the_limit_are_counted_by_their_beginning(tmp_path):
    store = tmp_path / "store"
    put = {"topic": "t", "body": b"", "store_ms": START_MS, "latency_ms": 1}
    write_log(store, [put | {"keys": "k" * 9_000, "tags": "é" * 2_000}])
    report = make_report(store, tmp_path / "page.html")
    tables = tables_of(report)
    assert tables["keys"][0]["key"] == "k" * 64 + "…"
    assert tables["tags"][0]["tags"] == "é" * 64 + "…"
    assert report.summary["namesCut"] == 2


def percentile(values, percent):
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def test_percentiles_of_few_different_values_are_those_of_the_data(tmp_path):
    sizes = [random.Random(8).randrange(289, 309) for _ in range(1_000)]
    puts = [
        {"topic": "t", "body": bytes(size), "store_ms": START_MS + size, "latency_ms": size % 50}
        for size in sizes
    ]
    write_log(tmp_path / "store", puts)
    report = make_report(tmp_path / "store", tmp_path / "page.html", split_bytes=20_000)
    for figures, values in (
        (report.summary["bodySize"], sizes),
        (report.summary["latency"], [size % 50 for size in sizes]),
    ):
        assert figures["isExact"] is True
        found = [figures["least"], figures["p50"], figures["p90"], figures["p99"], figures["most"]]
        assert found == [percentile(values, percent) for percent in (0, 50, 90, 99, 100)]
    [row] = tables_of(report)["topics"]
    assert (row["bodyBytesP50"], row["bodyBytesExact"]) == (percentile(sizes, 50), True)


def test_of_too_many_different_values_only_their_own_topic_loses_its_exactness(
    tmp_path, monkeypatch
):
    for module in (tally, counts):
        monkeypatch.setattr(module, "EXACT_VALUES", 20)
    puts = [
        {"topic": topic, "body": bytes(size), "store_ms": START_MS, "latency_ms": 1}
        for number in range(200)
        for topic, size in (("few", 300 + number % 20), ("many", 300 + number % 21))
    ]
    write_log(tmp_path / "store", puts)
    reports = [
        make_report(tmp_path / "store", tmp_path / f"{split}.html", split_bytes=split)
        for split in (5_000, 1_000_000)
    ]
    for report in reports:
        rows = {row["topic"]: row for row in tables_of(report)["topics"]}
        assert (rows["few"]["bodyBytesP50"], rows["few"]["bodyBytesExact"]) == (309, True)
        assert (rows["many"]["bodyBytesP50"], rows["many"]["bodyBytesExact"]) == (319, False)
        assert report.summary["bodySize"]["isExact"] is False
        assert report.summary["latency"]["isExact"] is True
        assert "≤ 319 B" in report.page.read_text("utf-8")
        assert "≤ 309 B" not in report.page.read_text("utf-8")


def test_values_that_were_given_up_stay_so_whatever_comes_later():
    def part(*values):
        return pa.table(
            {"topic": ["t"] * len(values), "value": values, "messages": [1] * len(values)}
        )

    groups = ExactGroups("exactSizes", 2)
    groups.add(part(1, 2))
    assert groups.settle().num_rows == 2
    groups.add(part(3))
    groups.settle()
    groups.add(part(3))
    assert groups.settle().to_pylist() == [{"topic": "t", "value": None, "messages": 4}]


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
