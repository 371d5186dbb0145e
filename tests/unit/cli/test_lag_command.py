"""``rocketstore queue lag``: how far groups are behind, read without changing a byte."""

import json
import shutil

import pytest

from rocketstore import MessageStore
from rocketstore.cli.application import run
from rocketstore.tables.lags import lag_metrics
from support.golden_stores import golden_root, golden_store
from support.pipeline_tables import read_table


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, int | str]]:
    assert run(["queue", "lag", *arguments, "--output", "json"]) == 0
    rows: list[dict[str, int | str]] = json.loads(capsys.readouterr().out)
    return rows


def test_a_broker_s_groups_are_shown_with_their_lag(capsys):
    root, manifest = golden_store("broker")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    rows = rows_of(capsys, str(root))
    assert {row["group"] for row in rows} == {
        "golden_group", "golden_orderly", "CID_RMQ_SYS_TRANS",
    }  # fmt: skip
    for row in rows:
        queue = manifest["consumeQueues"].get(row["topic"], {}).get(str(row["queueId"]))
        assert row["maxOffset"] == (0 if queue is None else queue["maxOffset"])
        assert row["lag"] == int(row["maxOffset"]) - int(row["offset"])
    assert all(row["lag"] == 0 for row in rows if row["topic"] == "GoldenTopic")
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_groups_and_topics_are_chosen(capsys, tmp_path):
    golden = golden_root("broker")
    root = shutil.copytree(golden, tmp_path / "store")
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"GoldenTopic@billing":{3:100,0:150},"Other@billing":{0:7}}}')
    assert rows_of(capsys, str(root), "--group", "billing", "--topic", "GoldenTopic") == [
        {"group": "billing", "topic": "GoldenTopic", "queueId": 0, "offset": 150,
         "maxOffset": 102, "lag": -48},
        {"group": "billing", "topic": "GoldenTopic", "queueId": 3, "offset": 100,
         "maxOffset": 102, "lag": 2},
    ]  # fmt: skip
    assert rows_of(capsys, str(root), "-t", "Other")[0]["lag"] == -7


def test_an_offset_below_0_has_no_lag_and_is_said(capsys, tmp_path):
    root = shutil.copytree(golden_root("broker"), tmp_path / "store")
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"GoldenTopic@billing":{0:-7,1:-1,3:100}}}')
    assert run(["queue", "lag", str(root), "-o", "json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["lag"] for row in rows] == [None, None, 2]
    assert "offsets below 0: 2; a group begins there as one without an offset" in said.err
    assert [row["lag"] for row in read_table(root, table="consumers")] == [None, None, 2]
    with MessageStore.open(root, threads=False) as store:
        (metric, _) = lag_metrics(store)
    behind = sum(row["maxOffset"] for row in rows) - 100  # as consumerProgress of 4.9 counts it
    assert metric.values["GoldenTopic", "billing"] == behind


def test_an_unknown_topic_is_said_with_those_there_are(capsys):
    root = golden_root("broker")
    for chosen in ([], ["--group", "golden_group"]):
        assert run(["queue", "lag", str(root), "--topic", "nothing", *chosen]) == 1
        said = capsys.readouterr()
        assert not said.out
        assert "has no offsets of a topic nothing; it has those of:" in said.err
        assert "GoldenTopic" in said.err


def test_an_unknown_group_is_said_with_those_there_are(capsys):
    root = golden_root("broker")
    assert run(["queue", "lag", str(root), "--group", "nobody"]) == 1
    assert "golden_group" in capsys.readouterr().err
    root = golden_root("basic")
    assert rows_of(capsys, str(root)) == []
