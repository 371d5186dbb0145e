"""A rebuild whose shuffle files are lost or cut off between two stages.

Files that are cut off where they are staged: tests/unit/pipeline/test_replacement.py; workers
and executors that are killed: test_cluster.py.
"""

import contextlib
import os
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


SPOILS = {"lost": os.unlink, "cut off": lambda path: os.truncate(path, path.stat().st_size // 2)}


@pytest.mark.parametrize("how", SPOILS)
def test_a_shuffle_file_that_is_gone_is_made_again_and_one_that_is_cut_off_is_noticed(
    spark, store, tmp_path, monkeypatch, how
):
    expected = queues_and_index(store)
    spoil, spoiled = SPOILS[how], tmp_path / "spoiled"
    top, files = Path(spark.sparkContext.getConf().get("spark.local.dir")), "*/*/shuffle_*.data"
    before, until = set(), time.monotonic() + PATIENCE_S

    def spoil_another(batches):
        """Spoil the file of another task before this one ends, and with it the stage."""
        yield from batches
        while TaskContext.get().partitionId() == 0 and not spoiled.exists():
            assert time.monotonic() < until, "no other task has a file"
            for path in list(set(top.glob(files)) - before)[:1]:
                spoil(path)
                spoiled.touch()

    class Losing(rebuild_job.LogRows):
        def write(self, *what):
            rows = self._rows
            before.update(top.glob(files))
            self._rows = rows.mapInArrow(spoil_another, rows.schema)
            try:
                return super().write(*what)
            finally:
                self._rows = rows

    monkeypatch.setattr(rebuild_job, "LogRows", Losing)
    # Spark takes a file that ends early for a shorter one, where no compressed block is torn.
    with contextlib.nullcontext() if how == "lost" else contextlib.suppress(StoreDamagedError):
        assert pipeline.rebuild(spark, store, max_split_bytes=SPLIT_BYTES).entry_count == 500
    assert spoiled.exists()
    assert queues_and_index(store) == expected
    assert not (store / "rebuild").exists()
    if how == "lost":
        assert retried_stages(spark)


def retried_stages(spark):
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(None)
        for stage in tracker.getJobInfo(job).stageIds
    ]
    return [one for one in stages if one is not None and one.currentAttemptId > 0]
