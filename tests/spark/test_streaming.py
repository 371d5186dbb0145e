"""``readStream.format("rocketstore")`` through Spark itself: triggers, checkpoints, restarts."""

import functools
import json
import urllib.parse

import pyarrow.parquet as pq
import pytest

from support.clock import Clock
from support.small_store import log_path, messages, open_store, put_all
from support.spark_session import run_to_its_end

pytestmark = [pytest.mark.spark]

MODES = {"log": {}, "queues": {"subscribePattern": "Topic.*"}}
LOG = {"log": {}}
CRASH = "the crash that was asked for"


class Query:
    """A streaming query with one checkpoint, run again and again, into Parquet files.

    It reads the store twice, as a log and by its queues: a query costs seconds, a source little.
    """

    def __init__(self, spark, directory, modes=MODES):
        self.spark = spark
        self.store = directory / "store"
        self.checkpoint = directory / "checkpoint"
        self.sink = directory / "sink"
        self.modes = modes

    def run(self, *, crash_at=None, **options):
        """Run everything there is; the task that sees a body of `crash_at` fails."""

        def fail(batches):
            for batch in batches:
                assert crash_at not in batch.column("body").to_pylist(), CRASH
                yield batch

        frame = self.frame(**options)
        if crash_at is not None:
            frame = frame.mapInArrow(fail, frame.schema)
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        run_to_its_end(lambda: query.start(str(self.sink)))

    def frame(self, **options):
        texts = {name: str(value).lower() for name, value in options.items()}
        frames = []
        for mode, choice in self.modes.items():
            reader = self.spark.readStream.format("rocketstore").options(**choice, **texts)
            frame = reader.option("columns", "physicalOffset,body").load(str(self.store))
            frames.append(frame.selectExpr(f"'{mode}' AS mode", "*"))
        return functools.reduce(lambda one, other: one.union(other), frames)

    def batches(self):
        """Return the rows of every batch that ended, as the sink's own log has them."""
        logs = sorted((self.sink / "_spark_metadata").glob("[0-9]*"), key=lambda one: int(one.name))
        return [self._rows_of(log.read_text().splitlines()[1:]) for log in logs]

    def _rows_of(self, lines):
        rows = []
        for line in lines:
            path = urllib.parse.urlsplit(json.loads(line)["path"]).path
            rows += pq.ParquetFile(path).read().to_pylist()
        return sorted((row["mode"], row["physicalOffset"], row["body"]) for row in rows)

    def rows(self, mode="log"):
        return [row[1:] for batch in self.batches() for row in batch if row[0] == mode]

    def saved(self, number):
        """Return the offset of each source as the checkpoint has it."""
        lines = (self.checkpoint / "offsets" / str(number)).read_text().splitlines()
        return [json.loads(line) for line in lines[2:]]


@pytest.fixture
def clock():
    return Clock()


def put(store, clock, first, count):
    wanted = messages(count, first=first)
    places = put_all(store, wanted, clock)
    return [(place, one.body) for place, one in zip(places, wanted, strict=True)]


def test_every_message_is_in_one_batch_over_crashes_and_restarts(rare_spark, tmp_path, clock):
    query = Query(rare_spark, tmp_path)
    with open_store(query.store, clock) as store:
        expected = put(store, clock, 0, 60)
        with pytest.raises(Exception, match=CRASH):
            query.run(crash_at=expected[-1][1], startingOffsets="earliest", maxOffsetsPerTrigger=40)
        assert query.rows() == expected[:40]
        # What is put meanwhile is not drawn into the batch that was planned.
        expected += put(store, clock, 60, 30)
        query.run(maxOffsetsPerTrigger=40)
    for mode in MODES:
        assert query.rows(mode) == expected
    assert [len(batch) for batch in query.batches()] == [80, 40, 60]
    assert [set(one) for one in query.saved(2)] == [{"version", "log"}, {"version", "queues"}]


def test_a_running_query_shows_what_was_put_and_how_much_is_left(spark, tmp_path, clock):
    query = Query(spark, tmp_path, LOG)
    with open_store(query.store, clock) as store:
        put(store, clock, 0, 10)
        running = (
            query.frame(maxOffsetsPerTrigger=2).writeStream.format("memory").queryName("live")
            .option("checkpointLocation", str(query.checkpoint)).start()
        )  # fmt: skip
        try:
            running.processAllAvailable()
            expected = []
            for first in (10, 13, 14):
                expected += put(store, clock, first, 3)
                running.processAllAvailable()
                rows = spark.table("live").collect()
                assert sorted((row[1], bytes(row[2])) for row in rows) == expected
            shown = [one["sources"][0] for one in running.recentProgress]
        finally:
            running.stop()
    logs = [json.loads(one["latestOffset"])["log"]["store"] for one in shown if one["numInputRows"]]
    ends = [json.loads(one["endOffset"])["log"]["store"] for one in shown if one["numInputRows"]]
    assert [log["lag"] for log in logs] == [
        log["offset"] - end["offset"] for log, end in zip(logs, ends, strict=True)
    ]
    assert max(log["lag"] for log in logs) > 0
    assert logs[-1]["lag"] == 0
    assert json.loads(shown[-1]["latestOffset"])["of"] == f"the whole log in {query.store}"


def test_a_query_that_waits_for_records_is_given_no_other_limit(spark, tmp_path, clock):
    query = Query(spark, tmp_path, LOG)
    with open_store(query.store, clock) as store:
        first = put(store, clock, 0, 3)
        frame = query.frame(minOffsetsPerTrigger=5, startingOffsets="earliest")
        running = (
            frame.writeStream.format("memory").queryName("waits")
            .option("checkpointLocation", str(query.checkpoint)).start()
        )  # fmt: skip
        try:
            running.processAllAvailable()
            assert spark.table("waits").count() == len(first)
            put(store, clock, 3, 3)
            running.processAllAvailable()
            assert spark.table("waits").count() == len(first)
            put(store, clock, 6, 2)
            running.processAllAvailable()
            assert spark.table("waits").count() == 8
        finally:
            running.stop()


def test_a_loss_ends_a_query_with_one_plain_sentence_unless_it_is_accepted(spark, tmp_path, clock):
    query = Query(spark, tmp_path, LOG)
    with open_store(query.store, clock) as store:
        expected = put(store, clock, 0, 50)
        query.run(startingOffsets="earliest")
        assert query.rows() == expected
        later = put(store, clock, 50, 150)
    for base in (0, 16_384):
        log_path(query.store, base).unlink()
    with pytest.raises(Exception, match="data loss") as caught:
        query.run()
    told = str(caught.value)
    (saved,) = query.saved(0)
    saved = saved["log"]["store"]
    assert f"the checkpoint has physical offset {saved['offset']}: expected" in told
    assert "found that the log begins at 32768" in told
    assert 'option("failOnDataLoss", "false")' in told
    assert "Traceback" not in told
    query.run(failOnDataLoss=False)
    assert query.rows()[50:] == [row for row in later if row[0] >= 32_768]


def test_a_stream_refuses_what_it_cannot_mean_with_one_plain_sentence(spark, tmp_path, clock):
    query = Query(spark, tmp_path, LOG)
    with open_store(query.store, clock) as store:
        put(store, clock, 0, 1)
    reader = spark.readStream.format("rocketstore").option("table", "index")
    message = "option table names one that cannot be read as a stream, found 'index'"
    with pytest.raises(Exception, match=message) as caught:
        run_to_its_end(lambda: reader.load(str(query.store)).writeStream.format("noop").start())
    assert "Traceback" not in str(caught.value)
