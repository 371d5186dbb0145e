"""Commands that read messages, as a user at a terminal and as a program sees them."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore
from rocketstore.cli.application import run
from rocketstore.cli.message import new_messages
from rocketstore.cli.options import parse_time
from rocketstore.errors import ConfigError
from support.configured_store import small_config
from support.patience import PATIENCE_S

SMALL = small_config(mapped_file_size_consume_queue=20_000)
COUNT = 70
CONTROLS = "\x1b[31mred\x07"
BODIES = {
    "plain": b"plain text",
    "json": b'{\n  "n": 12345678901234567890123,\n  "t": "z\xc3\xb6"\n}',
    "binary": b"\x00\xff\x01",
    "control": CONTROLS.encode(),
    "empty": b"",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Queue orders/1 of many messages with one key, and bodies/0 of one of each kind."""
    root = tmp_path_factory.mktemp("cli") / "store"
    with MessageStore.open(root, SMALL) as opened:
        for number in range(COUNT):
            tags = "even" if number % 2 == 0 else "odd"
            body = f"order {number} ".encode() * 20
            opened.put(Message(topic="orders", body=body, tags=tags, keys=("all", f"k{number}")), 1)
        for kind, body in BODIES.items():
            opened.put(Message(topic="bodies", body=body, keys=kind), 0)
        deflated = zlib.compress(b"deflated text")
        opened.put(Message(topic="bodies", body=deflated, keys="zlib", sys_flag=1), 0)
    return root


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def get(store: Path, *options: str) -> int:
    return run(["message", "get", str(store), *options])


# --- bodies -------------------------------------------------------------------------------------


def bodies(
    store: Path, form: str | None, capsys: pytest.CaptureFixture[str]
) -> dict[str, tuple[Any, Any]]:
    options = [] if form is None else ["--body", form]
    assert get(store, "-t", "bodies", "-o", "jsonl", *options) == 0
    return {row["keys"][0]: (row["body"], row.get("bodyEncoding")) for row in rows(capsys)}


def test_json_has_stored_bytes_as_base64_unless_asked(store, capsys):
    found = bodies(store, None, capsys)
    assert {kind: base64.b64decode(found[kind][0]) for kind in BODIES} == BODIES
    assert zlib.decompress(base64.b64decode(found["zlib"][0])) == b"deflated text"
    assert {encoding for _, encoding in found.values()} == {None}


def test_bodies_are_text_where_they_are_text(store, capsys):
    found = bodies(store, "text", capsys)
    assert found["plain"] == ("plain text", "text")
    assert found["empty"] == ("", "text")
    assert found["zlib"] == ("deflated text", "text")
    assert found["json"] == (BODIES["json"].decode(), "text")
    assert found["binary"] == (base64.b64encode(BODIES["binary"]).decode(), "base64")
    assert found["control"][1] == "base64"


def test_bodies_are_json_where_they_are_json(store, capsys):
    found = bodies(store, "json", capsys)
    assert found["json"] == ({"n": 12345678901234567890123, "t": "zö"}, "json")
    assert found["plain"] == ("plain text", "text")
    assert found["binary"][1] == "base64"


def test_bodies_are_hexadecimal_or_base64_of_the_stored_bytes(store, capsys):
    as_hex, as_base64 = bodies(store, "hex", capsys), bodies(store, "base64", capsys)
    assert {kind: bytes.fromhex(as_hex[kind][0]) for kind in BODIES} == BODIES
    assert {kind: base64.b64decode(as_base64[kind][0]) for kind in BODIES} == BODIES


def test_scan_prints_bodies_as_asked(store, capsys):
    assert run(["store", "scan", str(store), "--body", "text"]) == 0
    found = {row["body"] for row in rows(capsys) if row.get("topic") == "bodies"}
    assert {"plain text", "deflated text"} <= found


def test_an_id_is_found_as_people_paste_it_and_a_unique_one_is_said_to_be_a_key(tmp_path, capsys):
    unique = "7F00000100002A9F18B4AAC24F7E0001"
    with MessageStore.open(tmp_path, SMALL) as opened:
        message_id = opened.put(Message(topic="t", body=b"x", unique_key=unique)).message_id
    assert message_id is not None
    for pasted in (f" {message_id}\n", message_id.lower(), f"{message_id[:16]} {message_id[16:]}"):
        assert run(["message", "id", str(tmp_path), pasted]) == 0
    capsys.readouterr()
    # Of clients in Java, in Go, cut when it was copied.
    for other, code in ((unique, 1), (unique.lower() + "ab", 2), (unique[:-1], 2)):
        assert run(["message", "id", str(tmp_path), other]) == code
        said = capsys.readouterr().err
        assert f"rocketstore message find STORE --topic TOPIC --key {other}" in said
    assert run(["message", "find", str(tmp_path), "-t", "t", "-k", unique, "-o", "jsonl"]) == 0


def test_no_byte_of_a_message_steers_the_terminal(store, tmp_path, capsys):
    with MessageStore.open(tmp_path, SMALL) as opened:
        escape = Message(topic="t", body=b"ok", tags=CONTROLS, keys=CONTROLS)
        message_id = opened.put(escape, 0).message_id
    assert message_id is not None
    for command in (
        ["message", "get", str(store), "-t", "bodies"],
        ["message", "tail", str(store), "-t", "bodies"],
        ["message", "get", str(tmp_path), "-t", "t"],
        ["message", "tail", str(tmp_path), "-t", "t"],
        ["message", "id", str(tmp_path), message_id],
        ["store", "scan", str(tmp_path), "-o", "table"],
    ):
        assert run(command) == 0
        printed = capsys.readouterr().out
        assert all(one.isprintable() or one == "\n" for one in printed), command


# --- tables -------------------------------------------------------------------------------------


def test_a_table_shows_times_of_this_zone_and_text(store, capsys, monkeypatch):
    assert get(store, "-t", "bodies", "-n", "1", "-o", "jsonl") == 0
    [row] = rows(capsys)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert get(store, "-t", "bodies", "-n", "1") == 0
        line = capsys.readouterr().out.splitlines()[2]
    finally:
        monkeypatch.undo()
        time.tzset()
    shown = line.split()[1]
    assert shown.endswith("+05:30")
    assert round(datetime.fromisoformat(shown).timestamp() * 1000) == row["storeTimestamp"]
    assert line.endswith("plain text")


def test_tables_fit_eighty_columns(store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in (
        ["message", "get", str(store), "-t", "orders", "-q", "1"],
        ["message", "find", str(store), "-t", "orders", "-k", "all"],
        ["message", "tail", str(store), "-t", "orders"],
        ["topic", "list", str(store)],
        ["queue", "list", str(store)],
        ["queue", "show", str(store), "-t", "orders", "-q", "1"],
        ["index", "list", str(store)],
        ["store", "info", str(store)],
        ["store", "scan", str(store), "-o", "table"],
        ["store", "verify", str(store)],
        ["config", "show", "--origin"],
    ):
        assert run(command) == 0, command
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) > 1
        assert max(map(len, printed)) <= 80, command


def test_in_a_pipe_keys_are_whole(store, capsys):
    key = "a-key-that-is-rather-long-" * 4
    with MessageStore.open(store.parent / "long", SMALL) as opened:
        opened.put(Message(topic="t", keys=key, body=b"x" * 200), 0)
    assert get(store.parent / "long", "-t", "t") == 0
    assert key in capsys.readouterr().out


def test_a_table_of_wide_characters_fits_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with MessageStore.open(tmp_path, SMALL) as opened:
        opened.put(Message(topic="t", body="火箭".encode() * 100), 0)
    assert get(tmp_path, "-t", "t") == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.endswith("…")
    assert len(line) + sum(one in "火箭" for one in line) <= 80


# --- what is left out ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["get", "-q", "1", "-n", "64"], f"64 of {COUNT} shown"),
        (["get", "-q", "1"], f"32 of {COUNT} shown"),
        (["get", "-q", "1", "--offset", "10"], f"32 of {COUNT - 10} shown"),
        (["get", "-q", "1", "-n", "5", "--tags", "odd"], "5 of at most 65 shown"),
        (["find", "-k", "all"], f"64 of {COUNT} shown"),
        (["find", "-k", "all", "--max", "3"], f"3 of {COUNT} shown"),
    ],
)
def test_what_max_leaves_out_is_said_on_stderr(options, said, store, capsys):
    assert run(["message", options[0], str(store), "-t", "orders", *options[1:]]) == 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["get -q 1", "find -k all", "tail"])
def test_less_than_nothing_is_wrong_usage(command, store, capsys):
    verb, *options = command.split()
    assert run(["message", verb, str(store), "-t", "orders", *options, "-n", "-1"]) == 2
    assert '"-1"' in capsys.readouterr().err


def test_no_blank_of_a_wrapped_body_is_lost(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    body = "a  b   c " * 30
    with MessageStore.open(tmp_path, SMALL) as opened:
        message_id = opened.put(Message(topic="t", body=body.encode()), 0).message_id
    assert message_id is not None
    assert run(["message", "id", str(tmp_path), message_id]) == 0
    printed = capsys.readouterr().out.split("\nbody ")[1].split("\nproperties")[0]
    assert (
        "".join(line[27 if number else 22 :] for number, line in enumerate(printed.split("\n")))
        == body
    )


@pytest.mark.parametrize("command", ["get -q 1 -n 70", "find -k all -n 70", "find -k k7"])
def test_nothing_is_said_where_all_is_shown(command, store, capsys):
    verb, *options = command.split()
    assert run(["message", verb, str(store), "-t", "orders", *options]) == 0
    assert capsys.readouterr().err == ""


def test_entries_left_out_are_counted(store, capsys):
    show = ["queue", "show", str(store), "-t", "orders", "-q", "1"]
    assert run([*show, "--offset", "60", "-n", "4"]) == 0
    assert "4 of 10 shown" in capsys.readouterr().err
    assert run(show) == 0
    assert capsys.readouterr().err == ""


# --- what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["message", "get", "-t", "nobody"], "no topic nobody; it has bodies, orders"),
        (["message", "get", "-t", "orders"], "has no queue 0; it has 1"),
        (["message", "find", "-t", "nobody", "-k", "x"], "no topic nobody"),
        (["message", "tail", "-t", "nobody"], "no topic nobody"),
        (["message", "tail", "-t", "orders", "-q", "7"], "no queue 7"),
        (["queue", "show", "-t", "nobody"], "no topic nobody"),
        (["queue", "show", "-t", "orders", "-q", "3"], "no queue 3"),
        (["message", "id", "7F00000100002A9F00000000001FFFFF"], "no message 7F0000"),
    ],
)
def test_what_the_store_does_not_have_is_a_sentence_and_exits_1(
    command, sentence, output, store, capsys
):
    assert run([*command[:2], str(store), *command[2:], "-o", output]) == 1
    captured = capsys.readouterr()
    assert captured.out == ("[]\n" if output == "json" else "")
    assert sentence in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["store", "info"],
        ["store", "scan"],
        ["store", "verify"],
        ["store", "scrub"],
        ["store", "repair"],
        ["topic", "list"],
        ["queue", "list"],
        ["queue", "rebuild"],
        ["index", "list"],
        ["index", "rebuild"],
        ["message", "get", "-t", "T"],
        ["bench", "scan"],
        ["pipeline", "audit"],
        ["pipeline", "report"],
        ["pipeline", "rebuild"],
        ["pipeline", "archive", "out"],
        ["pipeline", "restore", "out"],
    ],
)
def test_a_path_that_is_not_there_exits_3_with_one_line(command, tmp_path, capsys):
    missing = tmp_path / "missing"
    assert run([*command[:2], str(missing), *command[2:]]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rocketstore: {missing}: ")
    assert len(captured.err.splitlines()) == 1
    assert not missing.exists()


def test_a_broker_conf_that_is_not_there_exits_3(store, capsys):
    assert run(["store", "info", str(store), "--config", "missing.conf"]) == 3
    where = Path.cwd() / "missing.conf"
    assert capsys.readouterr().err == f"rocketstore: {where}: there is no such file\n"


# --- times --------------------------------------------------------------------------------------


def test_begin_and_end_mean_store_times_everywhere(store, capsys):
    assert get(store, "-t", "orders", "-q", "1", "-n", "70", "-o", "jsonl") == 0
    times = [row["storeTimestamp"] for row in rows(capsys)]
    middle = times[COUNT // 2]
    after = sum(one >= middle for one in times)
    for command in (["get", "-q", "1", "-n", "70"], ["find", "-k", "all", "-n", "70"]):
        question = ["message", command[0], str(store), "-t", "orders", *command[1:], "-o", "jsonl"]
        for begin, end, count in (
            (str(middle), "2100-01-01", after),
            ("0", str(middle), COUNT - after),
            ("-1h", str(times[-1] + 1), COUNT),
            ("1970-01-02", "-1h", 0),
        ):
            assert run([*question, "--begin", begin, "--end", end]) == 0
            assert len(rows(capsys)) == count, (command, begin, end)
    scan = ["store", "scan", str(store), "--begin", str(middle), "--end", "2100-01-01"]
    assert run(scan) == 0
    found = [row for row in rows(capsys) if row.get("topic") == "orders"]
    assert len(found) == after


def test_times_of_iso_8601_and_ago():
    now = 1_700_000_000_000
    assert parse_time("-90s", now) == now - 90_000
    assert parse_time("-2h", now) == now - 7_200_000
    assert parse_time("-7d", now) == now - 604_800_000
    assert parse_time("1700000000123") == 1_700_000_000_123
    assert parse_time("2023-11-14T22:13:20.5Z") == now + 500
    assert parse_time("2023-11-14T23:13:20+01:00") == now
    local = datetime(2023, 11, 14, 22, 13, 20).astimezone()
    assert parse_time("2023-11-14T22:13:20") == round(local.timestamp() * 1000)
    assert parse_time("20231114") == parse_time("2023-11-14")


@pytest.mark.parametrize("text", ["", "noon", "192", "1700000000", "-2y", "2023-13-01", "-", "²"])
def test_what_is_no_time_is_refused(text, store):
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text)
    assert run(["store", "scan", str(store), f"--begin={text}"]) == 2


# --- following ----------------------------------------------------------------------------------


def test_tail_prints_the_last_messages_of_all_queues(store, capsys):
    tail = ["message", "tail", str(store), "-t", "orders", "-o", "jsonl"]
    assert run([*tail, "-n", "3"]) == 0
    assert [row["queueOffset"] for row in rows(capsys)] == [COUNT - 3, COUNT - 2, COUNT - 1]
    assert run([*tail, "-n", "4", "--tags", "odd"]) == 0
    assert [row["queueOffset"] for row in rows(capsys)] == [COUNT - 3, COUNT - 1]
    assert run([*tail, "-n", "0"]) == 0
    assert rows(capsys) == []
    assert run([*tail[:-1], "json", "--follow"]) == 2


def test_tail_follows_the_writer_to_queues_that_are_new(tmp_path):
    with MessageStore.open(tmp_path, SMALL) as opened:
        opened.put(Message(topic="t", body=b"before"), 0)
        opened.wait_dispatched()
        tail = subprocess.Popen(
            [sys.executable, "-m", "rocketstore.cli", "message", "tail", str(tmp_path),
             "--topic", "t", "--follow", "--output", "jsonl", "--body", "text"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        try:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["body"] == "before"
            opened.put(Message(topic="t", body=b"after"), 0)
            assert json.loads(tail.stdout.readline())["body"] == "after"
            opened.put(Message(topic="t", body=b"elsewhere"), 5)
            row = json.loads(tail.stdout.readline())
            assert (row["body"], row["queueId"]) == ("elsewhere", 5)
            tail.send_signal(signal.SIGINT)
            out, err = tail.communicate(timeout=PATIENCE_S)
        finally:
            tail.kill()
    assert (tail.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("tags", [[], ["--tags", "of-no-message"]])
def test_tail_ends_when_its_reader_has_left_though_no_message_comes(store, tags):
    with subprocess.Popen(
        [sys.executable, "-m", "rocketstore.cli", "message", "tail", str(store),
         "--topic", "orders", "--follow", *tags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as tail:  # fmt: skip
        try:
            assert tail.stdout is not None
            assert tags or tail.stdout.readline()
            tail.stdout.close()
            assert tail.wait(PATIENCE_S) == 0
            assert tail.stderr is not None
            assert tail.stderr.read() == b""
        finally:
            tail.kill()


def test_topics_are_listed_with_their_counts(store, capsys):
    assert run(["topic", "list", str(store), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "bodies", "queues": 1, "messages": len(BODIES) + 1},
        {"topic": "orders", "queues": 1, "messages": COUNT},
    ]


def test_an_empty_range_of_times_is_not_said_to_be_the_end_of_the_queue(store, capsys):
    question = ["message", "get", str(store), "-t", "orders", "-q", "1"]

    assert run([*question, "--begin", "1971-01-02", "--end", "1971-01-01"]) == 0

    said = capsys.readouterr().err
    assert "on that was stored before --end" in said
    assert "ends at queue offset" not in said


def test_a_topic_is_followed_without_a_look_at_the_others(tmp_path, monkeypatch):
    topics = ["orders", *(f"other-{number}" for number in range(20))]
    listed: list[str] = []
    scandir = os.scandir

    def noted(path: Any) -> Any:
        listed.append(Path(path).name)
        return scandir(path)

    with MessageStore.open(tmp_path, SMALL, threads=False) as store:
        for topic in topics:
            store.put(Message(topic=topic, body=b"1"))
        store.wait_dispatched()
        with MessageStore.open(tmp_path, read_only=True) as reader:
            reader.get("orders", 0, 0)  # where the log ends, all queues say, once for each file
            monkeypatch.setattr(os, "scandir", noted)
            for following in (new_messages(reader, "orders", None, {}, None) for _ in range(3)):
                assert next(following).body == b"1"
            assert store.queues("orders") == reader.queues("orders") == [("orders", 0)]
            monkeypatch.undo()
    assert "orders" in listed
    assert not {*listed} & {*topics[1:]}
