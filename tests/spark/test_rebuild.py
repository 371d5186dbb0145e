"""Rebuild and proof on Spark's workers; what they do is tested without Spark in tests/unit."""

from __future__ import annotations

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from support.golden_stores import golden_store
from support.rebuild_oracle import dispatched, tree
from support.small_store import copy_store, overwrite

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("plan", ["posix", "shuffle"])
def test_workers_make_what_dispatch_makes(spark, tmp_path, plan):
    source, _ = golden_store("broker")
    store = copy_store(source, tmp_path / "store")
    seen = []
    report = pipeline.rebuild(
        spark, store, plan=plan, max_split_bytes=40_000, progress=lambda *tick: seen.append(tick)
    )
    expected = dispatched(source, tmp_path / "expected")
    assert tree(store / "consumequeue") == expected[0]
    assert list(tree(store / "index").values()) == expected[1]
    assert report.record_count == report.entry_count == 519
    assert seen


def test_the_command_rebuilds_and_proves(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    source, _ = golden_store("crash/cq_deleted")
    store = copy_store(source, tmp_path / "store")
    before = tree(store)
    assert run(["pipeline", "rebuild", str(store), "--prove"]) == 1
    assert "without a reason" in capsys.readouterr().out
    assert tree(store) == before
    assert run(["pipeline", "rebuild", str(store)]) == 0
    assert "index items" in capsys.readouterr().out
    assert run(["pipeline", "rebuild", str(store), "--prove"]) == 0
    assert "the same" in capsys.readouterr().out
    overwrite(store, 3000, b"\xff" * 400)
    assert run(["pipeline", "rebuild", str(store), "--prove", "--output", "json"]) == 4
    assert '"lost"' in capsys.readouterr().out
