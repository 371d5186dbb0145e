"""Commands that write a store do that alone: no service of an open store runs in them."""

import socket

import pytest

from rocketstore import Message, MessageStore
from rocketstore.cli.application import run
from rocketstore.storage.threads import ServiceThread
from support.cli_commands import commands
from support.clock import Clock
from support.configured_store import open_small

OF_STORAGE = {
    "rocketstore-dispatch", "rocketstore-flush", "rocketstore-preallocate",
    "rocketstore-queue-flush", "rocketstore-statistics", "rocketstore-touch",
}  # fmt: skip
"""Threads without which a store cannot be written."""

WRITING = {
    "store import": ["STORE", "LINES", "--topic", "lines"],
    "store repair": ["STORE"],
    "queue rebuild": ["STORE"],
    "index rebuild": ["STORE"],
    "bench put": ["--messages", "10", "--dir", "DIRECTORY"],
    "bench get": ["--messages", "10", "--dir", "DIRECTORY"],
}
"""Commands that write, and how a test calls them."""

SERVING = {"serve broker", "serve master", "serve namesrv", "serve slave", "demo"}
"""Commands that run services: that is what they are for."""

READING = {
    "bench scan", "config show", "delay list", "index list", "message find", "message get",
    "message id", "message tail", "queue lag", "queue list", "queue show", "replica status",
    "store info", "store scan", "store scrub", "store verify", "topic list", "transaction list",
}  # fmt: skip

ON_SPARK = {
    f"pipeline {job}" for job in ("archive", "audit", "rebuild", "report", "restore", "sweep")
}
"""Their commits open a `BaseStore`, or none."""


def test_every_command_is_known_to_write_to_serve_or_to_read():
    known = {*WRITING, *SERVING, *READING, *ON_SPARK}
    assert {" ".join(words) for words, _ in commands()} == known


@pytest.fixture
def store(tmp_path):
    """A store with a message that is overdue for years."""
    with open_small(tmp_path / "store", Clock()) as opened:
        opened.put(Message(topic="orders", body=b"late", properties={"DELAY": "1"}))
    return tmp_path / "store"


@pytest.mark.parametrize("command", WRITING)
def test_a_writing_command_runs_no_service(command, store, tmp_path, monkeypatch):
    started: set[str] = set()
    start = ServiceThread.start

    def noted(thread: ServiceThread) -> None:
        started.add(thread.name)
        start(thread)

    monkeypatch.setattr(ServiceThread, "start", noted)

    def refused(*_: object) -> None:
        raise AssertionError(f"{command} listens")

    monkeypatch.setattr(socket.socket, "listen", refused)
    (tmp_path / "lines.txt").write_bytes(b"a\n")
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerRole=SYNC_MASTER\nhaListenPort=0\nmetricsPort=5557\nscrubBytesPerSecond=1000000\n"
        "retention=true\nmemoryTopicEnable=true\n"
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=500\nmaxIndexNum=2000\n"
    )
    places = {"STORE": store, "LINES": tmp_path / "lines.txt", "DIRECTORY": tmp_path}
    arguments = [str(places.get(each, each)) for each in WRITING[command]]
    assert run([*command.split(), *arguments, "--config", str(conf)]) in (0, 1)
    assert started <= OF_STORAGE
    with MessageStore.open(store, read_only=True) as reader:
        assert reader.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1
        assert reader.max_offset("orders", 0) == 0
    assert not (store / "config" / "delayOffset.json").exists()


def test_nothing_is_imported_into_a_memory_topic(tmp_path, capsys):
    root, lines = tmp_path / "store", tmp_path / "lines.txt"
    with open_small(root, memory_topic_enable=True) as opened:
        opened.memory_topics.create("ticks")
    lines.write_bytes(b"a\n")
    command = ["store", "import", str(root), str(lines), "--topic", "ticks"]
    for setting in ([], ["--set", "memoryTopicEnable=true"], ["--set", "memoryTopicEnable=false"]):
        assert run([*command, *setting]) == 1  # the program that keeps it has its own setting
        assert "ticks is a memory topic" in capsys.readouterr().err
