"""Jobs as Spark's tasks: each is sent what it needs, and nothing of the others."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from rocketstore.errors import StoreDamagedError
from rocketstore.pipeline.jobs.execution import map_tasks, plain_failure, run_tasks, task_rows

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


class MadeOnce:
    """A task that makes a directory where it is unpickled, and fails where that is there."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_worker_unpickles_its_own_task_only(spark, tmp_path):
    def work(task):
        yield pa.record_batch({"is_made": [task is None]})

    tasks = [MadeOnce(tmp_path / str(number)) for number in range(6)]
    assert run_tasks(spark, tasks, work, "is_made BOOLEAN").num_rows == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == list("012345")


def test_every_task_is_alone_in_its_partition_and_what_all_share_is_not_in_it(spark):
    def sizes(batches):
        rows = [len(task.as_py()) for batch in batches for task in batch.column("task")]
        yield pa.record_batch({"rows": [len(rows)], "most": [max(rows)]})

    def work(task):
        yield pa.record_batch({"number": [task[0]], "last": [task[1][-1]]})

    index = tuple(range(20_000))
    tasks = [(number, index) for number in range(30)]
    found = task_rows(spark, tasks, [index]).mapInArrow(sizes, "rows BIGINT, most BIGINT").collect()
    assert [row["rows"] for row in found] == [1] * 30
    assert max(row["most"] for row in found) < 100
    told = run_tasks(spark, tasks, work, "number BIGINT, last BIGINT", shared=[index])
    assert sorted(told.column("number").to_pylist()) == list(range(30))
    assert set(told.column("last").to_pylist()) == {19_999}


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
