"""``df.write`` and ``df.writeStream`` into a store, through Spark itself."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketstore import MessageStore, StoreConfig
from support import sink_driver
from support.golden_stores import golden_root
from support.patience import PATIENCE_S, START_S
from support.reading import all_messages
from support.repository import ROOT
from support.sink_parts import check_whole
from support.spark_session import run_to_its_end

pytestmark = [pytest.mark.spark]


def write(frame, path, mode="append", **options):
    frame.write.format("rocketstore").mode(mode).options(**options).save(str(path))


def read(spark, path, **options):
    return spark.read.format("rocketstore").options(**options).load(str(path))


@pytest.fixture(scope="module")
def orders(spark):
    return spark.range(0, 600, 1, 3).selectExpr(
        "repeat('x', cast(id AS INT)) AS body",
        "if(id % 2 = 0, 'Even', 'Odd') AS topic",
        "cast(id AS STRING) AS tags",
        "timestamp_millis(1600000000000 + id) AS bornTimestamp",
        "map('number', cast(id AS STRING)) AS properties",
        "cast(id % 2 AS INT) AS queueId",
    )


def test_what_is_written_is_read_back_in_the_order_of_its_tasks(spark, orders, tmp_path):
    write(orders, tmp_path / "new", mappedFileSizeCommitLog="65536", chunkBytes="20k")
    check_whole(tmp_path / "new", None)
    columns = ("body", "topic", "tags", "bornTimestamp", "queueId")
    back = read(spark, tmp_path / "new").orderBy("physicalOffset").collect()
    assert [[row[name] for name in columns[1:]] for row in back] == [
        [row[name] for name in columns[1:]] for row in orders.collect()
    ]
    assert [len(row["body"]) for row in back] == list(range(600))
    assert back[7]["properties"] == {"number": "7", "TAGS": "7"}
    assert [row["queueOffset"] for row in back if row["topic"] == "Odd"] == list(range(300))


def test_every_thread_of_a_program_writes(spark, tmp_path):
    def work(number):
        frame = spark.range(number * 10, number * 10 + 10).selectExpr("cast(id AS STRING) AS body")
        write(frame, tmp_path / "new", topic=f"t{number}")

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    rows = read(spark, tmp_path / "new").collect()
    assert sorted(int(row["body"]) for row in rows) == list(range(30))
    assert all(row["topic"] == f"t{int(row['body']) // 10}" for row in rows)


def test_a_copy_of_a_java_store_has_the_same_messages(rare_spark, tmp_path):
    source = golden_root("basic")
    messages = read(rare_spark, source, decompressBody="false")
    write(messages, tmp_path / "copy")
    names = ("topic", "queueId", "body", "flag", "sysFlag", "bornTimestamp", "bornHost", "keys")
    copied = read(rare_spark, tmp_path / "copy", decompressBody="false")
    # A map's entries have no order in Spark.
    sorted_map = "array_sort(map_entries(properties)) AS properties"
    both = [frame.selectExpr(*names, sorted_map).collect() for frame in (messages, copied)]
    assert sorted(map(str, both[0])) == sorted(map(str, both[1]))
    assert len(both[0]) > 1400


def test_what_cannot_be_meant_is_refused_in_one_plain_sentence(orders, tmp_path):
    with pytest.raises(Exception, match="overwrite would replace the messages of") as caught:
        write(orders, tmp_path / "new", "overwrite")
    assert "Traceback" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_store_that_this_process_holds_is_refused_by_its_number(orders, tmp_path):
    with (
        MessageStore.open(tmp_path) as store,
        pytest.raises(Exception, match=f"process {os.getpid()} holds"),
    ):
        write(orders, tmp_path, lockTimeout="500ms")
    assert store.is_closed
    assert not (tmp_path / "sink").exists()


def test_a_bad_row_fails_the_write_with_its_reason_and_nothing_is_appended(orders, tmp_path):
    write(orders, tmp_path, sinkId="s", batchId="1")
    with MessageStore.open(tmp_path, read_only=True) as store:
        end = store.max_physical_offset
    bad = orders.selectExpr("body", "if(tags = '450', 'no topic', topic) AS topic")
    with pytest.raises(Exception, match="RefusedMessageError") as caught:
        write(bad, tmp_path, sinkId="s", batchId="2")
    assert "row 50 of task 2 (topic 'no topic') cannot be stored" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert store.max_physical_offset == end
    write(orders, tmp_path, sinkId="s", batchId="1")
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert store.max_physical_offset == end
    check_whole(tmp_path, None)


def test_a_used_name_with_a_new_checkpoint_ends_the_query_instead_of_dropping_batches(
    spark, tmp_path
):
    sink_driver.write_source(spark, tmp_path)
    run_to_its_end(lambda: sink_driver.start_query(spark, tmp_path))
    stored = _numbers(tmp_path / "store")
    shutil.rmtree(tmp_path / "checkpoint-numbers")
    with pytest.raises(Exception, match="of sinkId numbers up to 2, and batch 0 comes") as caught:
        run_to_its_end(lambda: sink_driver.start_query(spark, tmp_path))
    assert "give it a new sinkId" in str(caught.value)
    assert _numbers(tmp_path / "store") == stored
    check_whole(tmp_path / "store", None)


def test_two_queries_into_one_store_at_once_both_finish(spark, tmp_path):
    sink_driver.write_source(spark, tmp_path)
    queries = [
        sink_driver.start_query(spark, tmp_path, sink_id=name) for name in ("numbers", "again")
    ]
    for query in queries:
        query.awaitTermination()
    expected = sorted(2 * list(range(sink_driver.BATCHES * sink_driver.ROWS_PER_BATCH)))
    assert sorted(_numbers(tmp_path / "store")) == expected
    check_whole(tmp_path / "store", None)


def test_a_worker_that_does_not_see_the_drivers_directory_says_so(spark, tmp_path):
    staging = str(tmp_path / "store" / "sink" / "staging")

    def elsewhere(batches):
        shutil.rmtree(staging)
        yield from batches

    frame = spark.range(0, 3, 1, 1).selectExpr("'x' AS body").mapInArrow(elsewhere, "body STRING")
    with pytest.raises(Exception, match="the directory is not shared") as caught:
        write(frame, tmp_path / "store", topic="T")
    assert "Traceback" not in str(caught.value)
    assert not Path(staging).exists()


def test_a_query_whose_worker_and_driver_were_killed_goes_on_exactly_once(spark, tmp_path):
    sink_driver.write_source(spark, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, sink_driver.__file__, str(tmp_path)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while not (tmp_path / "reached").exists():
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(PATIENCE_S)
    assert (tmp_path / "retried").exists()
    assert _numbers(tmp_path / "store") == list(range(sink_driver.ROWS_PER_BATCH))
    for _ in range(2):
        run_to_its_end(lambda: sink_driver.start_query(spark, tmp_path))
        expected = list(range(sink_driver.BATCHES * sink_driver.ROWS_PER_BATCH))
        assert _numbers(tmp_path / "store") == expected
    check_whole(tmp_path / "store", None)


def _numbers(root: Path) -> list[int]:
    """Return the numbers in the order of the log."""
    with MessageStore.open(root, read_only=True) as store:
        found = [one for queue_id in range(3) for one in all_messages(store, "Numbers", queue_id)]
    return [int(one.body) for one in sorted(found, key=lambda one: one.physical_offset)]


def test_rows_of_a_batch_topic_reach_its_queue_and_those_of_a_memory_topic_are_refused(
    spark, orders, tmp_path
):
    root = tmp_path / "store"
    with MessageStore.open(root, StoreConfig.small(memory_topic_enable=True)) as store:
        store.batch_topics.create("Even")
        store.memory_topics.create("Odd")
    write(orders.where("topic = 'Even'"), root)
    with pytest.raises(Exception, match="Odd is a memory topic"):
        write(orders, root)
    with MessageStore.open(root) as store:
        assert sum(store.message_count(*key) for key in store.queues()) == 300
        assert {key.topic for key in store.queues()} == {"Even"}
    assert read(spark, root).count() == 300
    assert read(spark, root, table="batchqueue").count() == 300
    check_whole(root, None)
