"""``rocketstore delay list``: what waits, by level and due time, beside a writer too."""

import json

import pytest

from rocketstore import Message
from rocketstore.cli.application import run
from support.clock import START_MS, Clock
from support.configured_store import open_small
from support.trees import tree


def listed(capsys, root, *options):
    assert run(["delay", "list", str(root), "--output", "jsonl", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def store(tmp_path):
    """Two messages of level 1, of which one is delivered and not yet written down; one of 18."""
    clock = Clock()
    with open_small(tmp_path, clock) as opened:
        for level, topic in ((1, "orders"), (1, "bills"), (18, "orders")):
            opened.put(Message(topic=topic, body=b"x", properties={"DELAY": str(level)}), 3)
            clock.now_ms += 100
        opened.wait_dispatched()
        opened.delays.turn()
        clock.now_ms = START_MS + 1000
        opened.delays.turn()
        opened.wait_dispatched()
        opened.flush()
        yield opened


def test_levels_are_listed_with_what_waits_in_them(capsys, store):
    rows = {row["level"]: row for row in listed(capsys, store.layout.root)}
    assert len(rows) == 18
    assert rows[1] == {
        "level": 1, "delayMs": 1000, "waiting": 1, "overdue": 1,
        "firstDueTimestamp": START_MS + 1100, "lastDueTimestamp": START_MS + 1100,
    }  # fmt: skip
    assert rows[2]["waiting"] == 0
    assert (rows[18]["waiting"], rows[18]["lastDueTimestamp"]) == (1, START_MS + 200 + 7_200_000)


def test_messages_are_listed_by_level_and_due_time(capsys, store):
    rows = listed(capsys, store.layout.root, "--messages")
    assert [(row["level"], row["topic"], row["queueId"]) for row in rows] == [
        (1, "bills", 3),
        (18, "orders", 3),
    ]
    assert [row["dueTimestamp"] for row in rows] == [START_MS + 1100, START_MS + 200 + 7_200_000]
    assert store.at_physical_offset(rows[0]["physicalOffset"]).size == rows[0]["size"]
    assert len(listed(capsys, store.layout.root, "--messages", "--level", "18")) == 1
    assert len(listed(capsys, store.layout.root, "--messages", "--max", "1")) == 1


def test_listing_changes_no_byte(capsys, tmp_path, store):
    before = tree(tmp_path)
    listed(capsys, tmp_path)
    assert tree(tmp_path) == before


def test_a_table_shows_times(capsys, store):
    assert run(["delay", "list", str(store.layout.root)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        "level", "delayMs", "waiting", "overdue", "firstDueTimestamp", "lastDueTimestamp",
    ]  # fmt: skip
    assert "2023-11-14T" in out
