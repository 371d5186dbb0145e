"""``rocketstore store import``: a line, a message."""

import io
import json
import os
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.cli.application import run
from rocketstore.cli.line_import import ImportTarget, import_lines
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.threads import Periodic
from support.configured_store import small_config
from support.reading import all_messages

SMALL = ["mappedFileSizeCommitLog=65536", "mappedFileSizeConsumeQueue=2000",
         "maxHashSlotNum=500", "maxIndexNum=2000"]  # fmt: skip
SMALL_OPTIONS = [part for setting in SMALL for part in ("--set", setting)]


def import_file(store: Path, source: Path | str, *options: str) -> int:
    command = ["store", "import", str(store), str(source), "--topic", "lines"]
    return run([*command, *SMALL_OPTIONS, *options])


def stored(store: Path, queue_id: int = 0) -> list[bytes]:
    with MessageStore.open(store, read_only=True) as reader:
        return [message.body for message in all_messages(reader, "lines", queue_id)]


@pytest.fixture
def source(tmp_path):
    return tmp_path / "lines.txt"


def test_every_line_becomes_a_message_in_order(tmp_path, capsys, source):
    lines = [f"line {number}".encode() for number in range(1000)]
    source.write_bytes(b"\n".join(lines) + b"\n")
    assert import_file(tmp_path / "store", source) == 0
    assert "1,000 messages imported" in capsys.readouterr().out
    assert stored(tmp_path / "store") == lines


def test_one_of_a_thing_is_printed_in_the_singular(tmp_path, capsys, source):
    store = tmp_path / "store"
    source.write_bytes(b"only\n")
    assert import_file(store, source) == 0
    assert run(["store", "verify", str(store)]) == 0
    told = capsys.readouterr().out
    assert "1 message imported" in told
    assert "1 record, 1 entry in 1 queue, 0 index items: nothing wrong" in told


def test_line_ends_of_windows_empty_lines_and_a_last_line_without_end(tmp_path, source):
    source.write_bytes(b"one\r\n\r\ntwo")
    assert import_file(tmp_path / "store", source) == 0
    assert stored(tmp_path / "store") == [b"one", b"", b"two"]


@pytest.mark.parametrize("order", ["before", "behind", "around"])
def test_files_may_stand_before_and_after_the_options(order, tmp_path):
    store, first, second = str(tmp_path / "store"), tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\n")
    second.write_bytes(b"b\n")
    files, options = [str(first), str(second)], ["--topic", "lines", *SMALL_OPTIONS]
    commands = {
        "before": [store, *files, *options],
        "behind": [store, *options, *files],
        "around": [store, files[0], *options, files[1]],
    }
    assert run(["store", "import", *commands[order]]) == 0
    assert stored(tmp_path / "store") == [b"a", b"b"]


def test_an_import_without_a_file_is_wrong_usage(tmp_path, capsys):
    assert run(["store", "import", str(tmp_path / "store"), "--topic", "lines"]) == 2
    assert "no FILE" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_only_the_line_end_is_taken_off(tmp_path, source):
    source.write_bytes(b"a\r\r\nb\n\r\nc\r\r")
    assert import_file(tmp_path / "store", source) == 0
    assert stored(tmp_path / "store") == [b"a\r", b"b", b"", b"c\r"]


def test_pipes_and_devices_are_files_of_lines(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert import_file(tmp_path / "store", pipe) == 0
    writer.join()
    assert stored(tmp_path / "store") == [b"a", b"b"]
    assert import_file(tmp_path / "store", "/dev/null") == 0


def test_a_directory_is_called_one(tmp_path, capsys):
    assert import_file(tmp_path / "store", tmp_path) == 3
    assert f"{tmp_path} is a directory" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_long_lines_are_not_held_by_the_hundred(tmp_path):
    held: list[int] = []

    class Store:
        def put_batch(self, messages: list[Message], queue_id: int) -> PutResult:
            held.append(sum(len(message.body) for message in messages))
            return PutResult(PutMessageStatus.PUT_OK)

    lines = (bytes(1_000_000) + b"\n" for _ in range(20))
    target = ImportTarget("lines", 0, None, None)
    store = cast("MessageStore", Store())
    assert import_lines(store, lines, target, lambda _: None, name="a") == 20
    assert max(held) <= 2_000_000


def test_a_line_whose_key_cannot_be_stored_is_named_with_its_file(tmp_path, capsys):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_bytes(b"a\n")
    bad.write_bytes(b"b\nc\nd\2e\n")
    options = ["--topic", "lines", "--key-pattern", r"\S+", *SMALL_OPTIONS]
    assert run(["store", "import", str(tmp_path / "store"), str(good), str(bad), *options]) == 1
    said = capsys.readouterr().err
    assert f"line 3 of {bad} was not stored: a value of a property" in said
    assert said.endswith("; the 2 lines before it are\n")
    assert stored(tmp_path / "store") == [b"a", b"b", b"c"]


def test_groups_of_the_key_pattern_become_keys(tmp_path, capsys):
    source = tmp_path / "access.log"
    source.write_text("GET /orders/17 user=ann\nGET /orders/18 user=bob\n")
    pattern = r"/orders/(\d+) user=(\w+)"
    options = ["--key-pattern", pattern, "--tags", "GET", "--queue", "3"]
    assert import_file(tmp_path / "store", source, *options) == 0
    capsys.readouterr()
    command = ["message", "find", str(tmp_path / "store"), "--topic", "lines", "--key", "bob"]
    assert run([*command, "--output", "jsonl"]) == 0
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (row["keys"], row["tags"], row["queueId"]) == (["18", "bob"], "GET", 3)


def test_standard_input_is_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert import_file(tmp_path / "store", "-") == 0
    assert stored(tmp_path / "store") == [b"a", b"b"]


def test_a_second_import_goes_on_after_the_first(tmp_path, source):
    source.write_bytes(b"a\nb\n")
    assert import_file(tmp_path / "store", source) == 0
    assert import_file(tmp_path / "store", source) == 0
    assert stored(tmp_path / "store") == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("setting", ["retention=true", "fileReservedTime=1"])
def test_no_import_deletes_expired_files(setting, tmp_path, monkeypatch, source):
    started: list[str] = []
    monkeypatch.setattr(Periodic, "start", lambda thread: started.append(thread.name))
    source.write_bytes(b"a\n")
    assert import_file(tmp_path / "store", source, "--set", setting) == 0
    assert "rocketstore-retention" not in started
    with MessageStore.open(tmp_path / "store", StoreConfig(retention=True)):
        assert "rocketstore-retention" in started


def test_a_missing_file_makes_no_store(tmp_path, capsys):
    assert import_file(tmp_path / "store", tmp_path / "nothing.txt") == 3
    assert "nothing.txt" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 128, "ü", "a\0b"])
def test_a_topic_that_is_no_name_is_refused_before_any_path_is_made(
    topic, tmp_path, capsys, source
):
    source.write_bytes(b"a\n")
    command = ["store", "import", str(tmp_path / "store"), str(source), "--topic", topic]
    assert run([*command, *SMALL_OPTIONS]) == 2
    assert "topic" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_line_over_the_limit_is_named_and_the_lines_before_are_stored(tmp_path, capsys, source):
    source.write_bytes(b"".join(b"%d\n" % number for number in range(300)) + b"x" * 2000 + b"\n")
    assert import_file(tmp_path / "store", source, "--set", "maxMessageSize=1000") == 1
    error = capsys.readouterr().err
    assert f"line 301 of {source} " in error
    assert "1000" in error
    assert stored(tmp_path / "store") == [b"%d" % number for number in range(300)]


def test_a_store_with_a_writer_exits_5_with_its_pid(tmp_path, capsys, source):
    source.write_bytes(b"a\n")
    with MessageStore.open(tmp_path / "store", small_config()):
        assert import_file(tmp_path / "store", source) == 5
    assert "this process" in capsys.readouterr().err
