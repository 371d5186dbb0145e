"""Paths are taken as they are by Spark's own writers too, and nothing is shown that is no error."""

from pathlib import Path

import pytest
from pyarrow import parquet

from rocketstore import pipeline
from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.jobs.execution import plain_failure
from rocketstore.pipeline.jobs.publishing import published, write_parquet
from support.clock import Clock
from support.small_store import build_store

pytestmark = [pytest.mark.spark]

NAME = "a%20b c,[d]{e}#?+ 库"
"""What one program or another takes for something else."""


@pytest.fixture
def store(tmp_path):
    build_store(tmp_path / NAME / "store", 60, Clock())
    return tmp_path / NAME / "store"


def test_tables_of_an_audit_and_of_a_report_are_where_they_were_asked_for(spark, store, tmp_path):
    home = tmp_path / NAME
    pipeline.audit(spark, store, home / "audit")
    assert parquet.read_table(home / "audit/queues").num_rows > 0
    assert pipeline.report(spark, store, home / "report").summary["messages"] == 60
    assert sorted(one.name for one in home.iterdir()) == ["audit", "report", "store"]
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_a_place_that_duckdb_would_take_for_another_one_is_refused(spark, store, tmp_path):
    for job in (pipeline.audit, pipeline.report):
        with pytest.raises(ConfigError, match="has a backslash in it"):
            job(spark, store, tmp_path / "back\\slash")
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_a_worker_that_does_not_see_where_it_is_to_write_says_so(spark, tmp_path):
    """It would write to its own disk, of which the driver sees nothing."""
    made = []

    def elsewhere(batches):
        Path(*made).rmdir()
        yield from batches

    there = pytest.raises(StoreError, match="must see the place under one path")
    with there, published(str(tmp_path / "out")) as place, plain_failure():
        made.append(Path(place, "rows"))
        gone = spark.range(0, 3, 1, 1).mapInArrow(elsewhere, "id BIGINT").repartition(1)
        write_parquet(gone, iter, "id BIGINT", *made)
    assert list(tmp_path.iterdir()) == []


def test_archive_restore_sink_and_stream_keep_to_it(spark, store):
    home = store.parent
    assert pipeline.archive(spark, store, home / "archive").records == 60
    assert pipeline.restore(spark, home / "archive", home / "again").records == 60
    reader = spark.read.format("rocketstore")
    assert reader.load([str(home / "again")]).count() == 60
    rows = reader.load(str(store)).select("topic", "queueId", "body")
    sizes = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    sizes |= {"maxHashSlotNum": "16", "maxIndexNum": "64", "maxMessageSize": "20000"}
    rows.write.format("rocketstore").mode("append").options(**sizes).save(str(home / "sunk"))
    stream = spark.readStream.format("rocketstore").option("startingOffsets", "earliest")
    query = (
        stream.load(str(home / "sunk"))
        .select("topic")
        .writeStream.format("memory")
        .queryName("places")
        .option("checkpointLocation", str(home.parent / "checkpoint 1"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("places").count() == 60
    assert sorted(one.name for one in home.iterdir()) == ["again", "archive", "store", "sunk"]


def test_a_limit_shows_no_broken_pipe(spark, store, capfd):
    reader = spark.read.format("rocketstore").option("maxSplitBytes", "16k")
    for table in ("messages", "commitlog", "consumequeue"):
        for count in (1, 3):
            assert reader.option("table", table).load(str(store)).limit(count).count() == count
            assert len(reader.option("table", table).load(str(store)).take(count)) == count
    assert "Traceback" not in capfd.readouterr().err
