"""Jobs as Spark's tasks: each is sent what it needs, and nothing of the others."""

import os

import pyarrow as pa
import pytest

from rocketstore.errors import ConfigError, SparkJobError, StoreDamagedError
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure, task_rows

pytestmark = [pytest.mark.spark]


class MadeOnce:
    """A task that makes a directory where it is unpickled, and fails where that is there."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_worker_unpickles_its_own_task_only(spark, tmp_path):
    def work(task):
        yield pa.record_batch({"made": [int(task is None)]})

    tasks = [MadeOnce(tmp_path / str(number)) for number in range(6)]
    assert map_tasks(spark, tasks, work, "made INT").count() == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == list("012345")


def test_every_task_is_alone_in_its_partition(spark):
    def rows(batches):
        yield pa.record_batch({"rows": [sum(len(batch) for batch in batches)]})

    found = task_rows(spark, range(30)).mapInArrow(rows, "rows BIGINT").collect()
    assert [row["rows"] for row in found] == [1] * 30


def test_what_tasks_yield_is_a_table_of_spark_that_it_groups_and_writes(spark, tmp_path):
    def work(task):
        yield pa.record_batch({"name": [f"q{task % 3}"], "bytes": pa.array([task], pa.int32())})

    facts = map_tasks(spark, range(9), work, "name STRING, bytes BIGINT")
    found = {row["name"]: row["sum(bytes)"] for row in facts.groupBy("name").sum("bytes").collect()}
    assert found == {"q0": 9, "q1": 12, "q2": 15}
    facts.write.parquet(str(tmp_path / "facts"))
    assert spark.read.parquet(str(tmp_path / "facts")).count() == 9
    assert map_tasks(spark, [], work, "name STRING, bytes BIGINT").collect() == []


def test_an_error_of_a_task_reaches_the_action_in_its_own_words(spark):
    def work(task):
        raise StoreDamagedError("one byte is wrong")
        yield

    with pytest.raises(StoreDamagedError, match=r"^one byte is wrong$"), plain_failure():
        map_tasks(spark, [1], work, "name STRING").count()


def test_an_error_of_another_package_is_told_by_its_last_line(spark):
    def work(task):
        raise pa.ArrowInvalid("a batch\nis of other types")
        yield

    with (
        pytest.raises(SparkJobError, match=r"up: pyarrow.lib.ArrowInvalid: a batch"),
        plain_failure(),
    ):
        map_tasks(spark, [1], work, "name STRING").count()


def test_a_session_without_a_limit_of_rows_is_refused_with_the_setting(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "0")
    try:
        with pytest.raises(ConfigError, match=f"{name} is 0 or less; .*set it to 10000"):
            map_tasks(spark, [1], iter, "name STRING")
    finally:
        spark.conf.unset(name)
