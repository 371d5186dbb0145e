"""Rebuild on Spark's workers; what tasks do is tested without Spark in tests/unit."""

import re
import shutil

import pytest

from rocketstore import StoreConfig, pipeline
from rocketstore.cli.application import run
from rocketstore.pipeline.jobs.rebuild import rebuild_job, rebuilt_files
from support.clock import Clock
from support.golden_stores import golden_root
from support.rebuild_oracle import dispatched, queues_and_index
from support.rebuild_runs import rebuilt_here
from support.small_store import build_store, copy_store, overwrite
from support.trees import tree

pytestmark = [pytest.mark.spark]


def test_workers_make_what_dispatch_makes(spark, tmp_path):
    source = golden_root("broker")
    store = copy_store(source, tmp_path / "store")
    report = pipeline.rebuild(spark, store, max_split_bytes=40_000)
    assert queues_and_index(store) == dispatched(source, tmp_path / "expected")
    assert report.record_count == report.entry_count == 519


def test_after_damage_and_leftovers_spark_answers_as_the_table_of_other_tests(spark, tmp_path):
    store = tmp_path / "store"
    build_store(store, 900, Clock())
    for place in (200, 17_000, 40_100, 200_000):
        overwrite(store, place, b"\xff" * 40)
    shutil.copytree(store, tmp_path / "here")
    config = StoreConfig(max_hash_slot_num=10, max_index_num=101)
    expected = rebuilt_here(tmp_path / "here", config=config, max_split_bytes=9000)
    report = pipeline.rebuild(spark, store, config=config, max_split_bytes=9000)
    assert queues_and_index(store) == queues_and_index(tmp_path / "here")
    assert sorted(tree(store / "index")) == sorted(tree(tmp_path / "here" / "index"))
    assert len(tree(store / "index")) == 9
    for field in ("record_count", "entry_count", "refused_count", "log_end"):
        assert getattr(report, field) == getattr(expected, field)
    assert [one.start for one in report.damage] == [one.start for one in expected.damage]


def test_workers_share_a_long_queue_that_has_no_jump(rare_spark, tmp_path, monkeypatch):
    store = tmp_path / "store"
    offsets = build_store(store, 500, Clock())
    overwrite(store, offsets[101] + 20, (77).to_bytes(8))  # of Topic1, twice there now
    expected = dispatched(store, tmp_path / "expected")
    made = []
    real = rebuilt_files.take_over

    def take_over(directory, written, sizes):
        made.extend(row["target"] for row in written)
        real(directory, written, sizes)

    monkeypatch.setattr(rebuilt_files, "take_over", take_over)
    monkeypatch.setattr(rebuild_job, "PART_ENTRIES", 100)
    plans = []
    map_batches = rebuild_job.map_batches

    def mapped(frame, *how):
        plans.append(frame._jdf.queryExecution().optimizedPlan().toString())
        return map_batches(frame, *how)

    monkeypatch.setattr(rebuild_job, "map_batches", mapped)
    monkeypatch.setattr(rebuild_job, "_PARTITION_BYTES", 1)
    monkeypatch.setattr(rebuild_job, "MOST_TASKS", 9)
    report = pipeline.rebuild(rare_spark, store, max_split_bytes=9000)
    # As many tasks as there is to write, but no more than a job may have.
    assert re.search(r"RepartitionByExpression \[target#\d+\], 9$", plans[0], re.MULTILINE)
    assert queues_and_index(store) == expected
    assert sorted(one for one in made if one.startswith(b"q")) == [
        *(b"qTopic0/0\0" + part for part in (b"0\0", b"1\0", b"2\0last")),
        b"qTopic1/0",
    ]
    assert (report.entry_count, report.refused_count) == (499, 1)


def test_an_empty_store_has_neither_queues_nor_index(spark, tmp_path):
    store = tmp_path / "store"
    build_store(store, 0, Clock())
    assert pipeline.rebuild(spark, store).queue_count == 0
    assert queues_and_index(store) == ({}, [])


def test_the_command_rebuilds(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    source = golden_root("crash/cq_deleted")
    store = copy_store(source, tmp_path / "store")
    before = tree(store)
    assert run(["pipeline", "rebuild", str(store), "--to", str(tmp_path / "new")]) == 0
    assert f"They were made in {tmp_path / 'new'}" in capsys.readouterr().out
    assert tree(store).keys() - {"lock"} == before.keys() - {"lock"}
    assert run(["pipeline", "rebuild", str(store)]) == 0
    assert "index items" in capsys.readouterr().out
    for name in ("consumequeue", "index"):
        assert tree(store / name) == tree(tmp_path / "new" / name)
