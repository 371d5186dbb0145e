"""A rebuild whose shuffle files are lost or cut off between two stages.

Files that are cut off where they are staged: tests/unit/pipeline/test_replacement.py; workers
and executors that are killed: test_cluster.py.
"""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from pyspark import TaskContext

from rocketstore import pipeline
from rocketstore.errors import StoreDamagedError
from rocketstore.pipeline.jobs.rebuild import rebuild_job
from support.clock import Clock
from support.patience import PATIENCE_S
from support.rebuild_oracle import queues_and_index
from support.small_store import build_store

pytestmark = [pytest.mark.spark]

SPLIT_BYTES = 20_000


@pytest.fixture
def store(tmp_path):
    build_store(tmp_path / "store", 500, Clock())
    return tmp_path / "store"


def lose(path):
    path.unlink()


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("spoil", [lose, cut_off])
def test_a_shuffle_file_that_is_gone_is_made_again_and_one_that_is_cut_off_is_noticed(
    spark, store, tmp_path, monkeypatch, spoil
):
    expected = queues_and_index(store)
    spoiled, mark = [], tmp_path / "spoiled"

    def wait(batches):
        """Let one task end, and with it the stage, only when the file of another is spoiled."""
        yield from batches
        until = time.monotonic() + PATIENCE_S
        while TaskContext.get().partitionId() == 0 and not mark.exists():
            assert time.monotonic() < until, "nothing is spoiled"
            time.sleep(0.01)

    class Losing(rebuild_job.LogRows):
        def write(self, *what):
            before, is_over, rows = shuffle_files(spark), threading.Event(), self._rows
            self._rows = rows.mapInArrow(wait, rows.schema)

            def spoil_the_first():
                while not spoiled and not is_over.wait(0.001):
                    for path in shuffle_files(spark) - before:
                        spoil(path)
                        spoiled.append(path)
                        mark.touch()
                        break

            thread = threading.Thread(target=spoil_the_first)
            thread.start()
            try:
                return super().write(*what)
            finally:
                self._rows = rows
                is_over.set()
                thread.join()

    monkeypatch.setattr(rebuild_job, "LogRows", Losing)
    # Spark takes a file that ends early for a shorter one, where no compressed block is torn.
    with contextlib.nullcontext() if spoil is lose else contextlib.suppress(StoreDamagedError):
        assert pipeline.rebuild(spark, store, max_split_bytes=SPLIT_BYTES).entry_count == 500
    assert spoiled
    assert queues_and_index(store) == expected
    assert not (store / "rebuild").exists()
    if spoil is lose:
        assert retried_stages(spark)


def retried_stages(spark):
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(None)
        for stage in tracker.getJobInfo(job).stageIds
    ]
    return [one for one in stages if one is not None and one.currentAttemptId > 0]


def shuffle_files(spark):
    top = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    return set(top.glob("blockmgr-*/*/shuffle_*.data"))
