"""Spark's own examples for Kafka, run with another format and another address and nothing else.

They are those of its Structured Streaming + Kafka Integration Guide, and the windowed count of its
Structured Streaming guide over the first one's stream. One more word is needed: a batch write says
``mode("append")``, since Spark lets no Python source do without.
"""

from datetime import datetime

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.spark]

BATCH = """
df = spark \\
  .read \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribe", "topic1,topic2") \\
  .option("startingOffsets", '{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}') \\
  .option("endingOffsets", '{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}') \\
  .load()
found = df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
"""

STREAM = """
df = spark \\
  .readStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("subscribe", "topic1") \\
  .option("includeHeaders", "true") \\
  .load()
lines = df.selectExpr("CAST(value AS STRING)", "headers", "timestamp")
words = lines.select(explode(split(lines.value, " ")).alias("word"), lines.timestamp)
windowedCounts = words.groupBy(
    window(words.timestamp, "10 minutes", "5 minutes"),
    words.word
).count()
query = windowedCounts.writeStream.outputMode("complete").format("memory").queryName("counts")
query = query.start()
"""

WRITE = """
df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .write \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("topic", "topic1") \\
  .mode("append") \\
  .save()
df.selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .write \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .mode("append") \\
  .save()
"""

WRITE_STREAM = """
ds = df \\
  .selectExpr("topic", "CAST(key AS STRING)", "CAST(value AS STRING)") \\
  .writeStream \\
  .format("kafka") \\
  .option("kafka.bootstrap.servers", "host1:port1,host2:port2") \\
  .option("checkpointLocation", checkpoint) \\
  .start()
"""


def run(example, address, **names):
    """Run an example with the two changes, and return its names."""
    from pyspark.sql.functions import explode, split, window  # noqa: PLC0415 - heavy

    text = example.replace('"kafka"', '"rocketstore"')
    text = text.replace("host1:port1,host2:port2", str(address))
    assert text.count('"rocketstore"') == example.count("kafka.bootstrap.servers")
    names |= {"explode": explode, "split": split, "window": window}
    exec(text, names)  # noqa: S102 - the text above
    return names


def put(store, topic, queue_id, numbers, words=""):
    for number in numbers:
        message = Message(
            topic=topic, body=f"{words}{number}".encode(), keys=f"k{number}", tags="t"
        )
        assert store.put(message, queue_id).is_stored


@pytest.fixture
def root(tmp_path):
    with MessageStore.open(tmp_path / "store", StoreConfig.small()) as store:
        put(store, "topic1", 0, range(60))
        put(store, "topic1", 1, range(100, 110))
        put(store, "topic2", 0, range(200, 205))
    return tmp_path / "store"


def test_a_batch_reads_from_one_offset_to_another(spark, root):
    found = run(BATCH, root, spark=spark)["found"].collect()
    numbers = [*range(23, 50), *range(100, 110), *range(200, 205)]
    assert sorted((row.value, row.key) for row in found) == sorted(
        (str(number), f"k{number}") for number in numbers
    )


def test_the_columns_are_those_of_spark_s_kafka_source(spark, root):
    frame = spark.read.format("rocketstore").option("columnNames", "kafka")
    frame = frame.option("includeHeaders", "true").option("subscribe", "topic2").load(str(root))
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert [field.nullable for field in frame.schema.fields] == [True] * 8
    row = frame.orderBy("offset").collect()[3]
    assert row[:5] == (b"k203", b"203", "topic2", 0, 3)
    assert row.timestamp > datetime(2026, 1, 1)  # noqa: DTZ001 - as Spark gives it
    assert row.timestampType == 1
    assert row.headers == [("TAGS", b"t")]


def test_a_stream_counts_words_in_windows_of_what_comes_after_it_began(spark, root, tmp_path):
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        query = run(STREAM, root, spark=spark)["query"]
        try:
            query.processAllAvailable()
            with MessageStore.open(root, StoreConfig.small()) as store:
                put(store, "topic1", 0, [1, 2], words="a b ")
                put(store, "topic2", 0, [1, 2], words="a b ")
            query.processAllAvailable()
        finally:
            query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    counts = spark.sql("SELECT word, window.start, count FROM counts").collect()
    by_word = {(row.word, row.start): row["count"] for row in counts}
    assert {word for word, _ in by_word} == {"a", "b", "1", "2"}
    # Each time is in two windows of ten minutes that begin every five; the puts may be in two.
    assert sum(count for (word, _), count in by_word.items() if word == "a") == 4
    assert sum(by_word.values()) == 12


def test_a_batch_is_written_to_the_topic_of_the_option_or_the_column(spark, root, tmp_path):
    df = run(BATCH, root, spark=spark)["df"]
    run(WRITE, tmp_path / "other", df=df)
    frame = spark.read.format("rocketstore").option("columnNames", "kafka")
    written = frame.load(str(tmp_path / "other"))
    found = sorted((row.topic, bytes(row.key), bytes(row.value)) for row in written.collect())
    rows = [(row.topic, bytes(row.key), bytes(row.value)) for row in df.collect()]
    assert found == sorted([*rows, *(("topic1", *row[1:]) for row in rows)])


def test_a_stream_is_written_once_however_often_it_is_started(rare_spark, root, tmp_path):
    first = STREAM.partition("lines")[0].replace(
        '"includeHeaders", "true"', '"startingOffsets", "earliest"'
    )
    checkpoint = str(tmp_path / "checkpoint")

    def written():
        df = run(first, root, spark=rare_spark)["df"]
        query = run(WRITE_STREAM, tmp_path / "other", df=df, checkpoint=checkpoint)["ds"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()
            query.awaitTermination(PATIENCE_S)
        with MessageStore.open(tmp_path / "other", read_only=True) as store:
            return sum(store.message_count(*key) for key in store.queues())

    assert written() == 70
    with MessageStore.open(root, StoreConfig.small()) as store:
        put(store, "topic1", 0, range(60, 65))
    assert written() == 75
    # The batch that a killed driver had not noted as done comes again.
    max((tmp_path / "checkpoint" / "commits").glob("[0-9]")).unlink()
    assert written() == 75
    assert list((tmp_path / "other" / "sink" / "staging").iterdir()) == []
