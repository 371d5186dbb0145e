"""``rocketstore transaction list``: what is open, read without changing a byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message
from rocketstore.cli.application import run
from support.clock import START_MS
from support.golden_stores import golden_root
from support.transaction_stores import TransactionStores


def rows_of(capsys: pytest.CaptureFixture[str], root: Path) -> list[dict[str, Any]]:
    assert run(["transaction", "list", str(root), "--output", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_open_transactions_are_shown_beside_their_writer(tmp_path, capsys):
    stores = TransactionStores(tmp_path)
    store = stores.store
    message = Message(topic="orders", body=b"x", born_timestamp_ms=START_MS)
    halves = [store.begin(message, number, producer_group="billing") for number in range(4)]
    store.commit(halves[0])
    store.rollback(halves[1])
    stores.clock.now_ms += 60_000
    store.wait_dispatched()
    store.check_transactions(lambda _: None)
    assert store.transaction_checks.turn(stores.clock.now_ms) == 2
    store.wait_dispatched()
    shown = rows_of(capsys, tmp_path)
    assert [(row["queueId"], row["checks"], row["halfOffset"]) for row in shown] == [
        ("2", 1, 4),
        ("3", 1, 5),
    ]
    assert {(row["topic"], row["producerGroup"]) for row in shown} == {("orders", "billing")}
    assert [row["uniqKey"] for row in shown] == [half.transaction_id for half in halves[2:]]
    assert all(row["age"] > 0 for row in shown)
    with stores.killed_at_put():
        store.commit(halves[2])
    store.wait_dispatched()
    assert [row["queueId"] for row in rows_of(capsys, tmp_path)] == ["3"]
    store.abandon()


def test_a_broker_left_nothing_open(capsys):
    root = golden_root("broker")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert rows_of(capsys, root) == []
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
