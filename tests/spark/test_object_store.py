"""The whole way on an object store: read, archive, ask, restore and rebuild, on Spark's
workers, which have their credentials from the environment."""

import contextlib
import io

import pytest

from rocketstore import pipeline
from rocketstore.cli.application import run
from support.archiving import log_bytes, rows
from support.golden_stores import golden_root
from support.pipeline_tables import read_table
from support.rebuild_runs import rebuilt_here
from support.s3_server import ACCESS_KEY, SECRET_KEY, running_s3
from support.small_store import copy_store

pytestmark = [pytest.mark.spark]

SPLIT_BYTES = 131_072
PLACES = ("physicalOffset", "topic", "queueId", "queueOffset")


@pytest.fixture
def s3():
    with running_s3() as server:
        server.put_tree(golden_root("basic"), "store")
        yield server


@pytest.fixture(scope="module")
def on_disk():
    return read_table(golden_root("basic"))


def test_a_store_on_s3_is_read_and_neither_plan_nor_error_shows_a_credential(spark, s3, on_disk):
    reader = spark.read.format("rocketstore").option("maxSplitBytes", SPLIT_BYTES)
    rows = reader.load(s3.uri("store"))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        rows.explain(extended=True)
    assert rows.count() == len(on_disk)
    with pytest.raises(Exception, match="is not a store") as caught:
        reader.load(s3.uri("nowhere"))
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in told.getvalue()
        assert secret not in str(caught.value)


def test_an_archive_on_s3_is_made_asked_and_restored(spark, s3, on_disk):
    archive = s3.uri("archive")
    made = pipeline.archive(spark, s3.uri("store"), archive, max_split_bytes=SPLIT_BYTES)
    assert made.records == len(on_disk)
    found = rows(archive)
    assert sorted(tuple(row[name] for name in PLACES) for row in found) == [
        tuple(row[name] for name in PLACES) for row in on_disk
    ]
    assert all(row["day"] == row["storeTimestamp"].date() for row in found)
    again = s3.uri("again")
    result = pipeline.restore(spark, archive, again)
    assert (result.is_whole, result.records) == (True, len(on_disk))
    source = golden_root("basic")
    made = {name: bytes(content) for name, content in s3.tree("again").items()}
    logs = {name.removeprefix("commitlog/"): made[name] for name in made if "commitlog/" in name}
    assert logs == log_bytes(source)
    assert made["_SUCCESS"] == b""
    entries = {"table": "consumequeue", "brokerName": "b"}
    both = [read_table(place, **entries) for place in (again, source)]
    assert sorted(both[0], key=str) == sorted(both[1], key=str)
    assert any(name.startswith("index/") for name in made)


def test_a_store_on_s3_is_rebuilt_to_the_bytes_of_a_disk(spark, s3, on_disk, tmp_path):
    copy = copy_store(golden_root("basic"), tmp_path / "copy")
    rebuilt_here(copy)
    report = pipeline.rebuild(
        spark, s3.uri("store"), target=s3.uri("new"), max_split_bytes=SPLIT_BYTES
    )
    assert report.record_count == len(on_disk)
    for name in ("consumequeue", "index"):
        assert s3.tree(f"new/{name}") == {
            path.relative_to(copy / name).as_posix(): path.read_bytes()
            for path in (copy / name).rglob("*")
            if path.is_file()
        }


def test_a_store_on_s3_is_proved_without_a_write(spark, s3, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "session", lambda *_, **__: spark)
    s3.writes_left = 0
    report = pipeline.prove_rebuild(spark, s3.uri("store"), max_split_bytes=SPLIT_BYTES)
    assert report.findings == []
    assert report.counts.message_count == report.counts.entry_count > 0
    assert report.counts.index_item_count > 0
    key = next(key for key in s3.objects if "/consumequeue/" in key)
    s3.objects[key] = b"\1" * 20 + s3.objects[key][20:]
    assert run(["pipeline", "rebuild", s3.uri("store"), "--prove"]) == 1
    assert "queue-wrong" in capsys.readouterr().out
    assert {request.method for request in s3.take()} == {"GET", "HEAD"}
