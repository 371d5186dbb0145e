"""One behaviour for every table that is broken, at every door (decision 0036)."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocketstore import Message, MessageStore, Severity, StoreConfig, verify_store
from rocketstore.cli.application import run
from rocketstore.errors import FormatError, StoreError
from support.memory import memory_directory
from support.pipeline_tables import read_table
from support.said import capture_logs

TOPICS, GROUPS, FILTERS = "topics.json", "subscriptionGroup.json", "consumerFilter.json"
OFFSETS, LIGHT, DELAYS = "consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json"

GOOD: dict[str, dict[str, Any]] = {
    TOPICS: {"topicConfigTable": {"t": {"topicName": "t", "memory": False}}},
    GROUPS: {"subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 3}}},
    FILTERS: {"filterDataByTopic": {}},
    OFFSETS: {"offsetTable": {"t@g": {"0": 2}}},
    LIGHT: {"lmqOffsetTable": {}, "offsetTable": {"t@g": {"0": 2}}},
    DELAYS: {"offsetTable": {"1": 0}},
}


def other_kind(name: str) -> bytes:
    return json.dumps(GOOD[OFFSETS if name in {TOPICS, GROUPS, FILTERS} else TOPICS]).encode()


def too_large(name: str) -> bytes:
    """Fields of these types are in every table: fastjson refuses such a number, too."""
    content = json.loads(json.dumps(GOOD[name]))
    row = next(one for one in content.values() if one or name == FILTERS)
    if name in {OFFSETS, LIGHT}:
        row["t@g"]["0"] = 1 << 63
    elif name == FILTERS:
        row["t"] = {
            "groupFilterData": {"g": {"consumerGroup": "g", "topic": "t", "deadTime": -(1 << 64)}}
        }
    elif name == DELAYS:
        row[str(1 << 31)] = 0
    else:
        next(iter(row.values()))["readQueueNums" if name == TOPICS else "retryMaxTimes"] = 1 << 31
    return json.dumps(content).encode()


DAMAGE: dict[str, Callable[[str], bytes | Callable[[Path], None]]] = {
    "empty": lambda _name: b"",
    "blank": lambda _name: b" \r\n",
    "zeros": lambda _name: bytes(4096),
    "cut": lambda name: json.dumps(GOOD[name]).encode()[:-2],
    "cut to a byte": lambda _name: b"{",
    "a mark and nothing": lambda _name: b"\xef\xbb\xbf",
    "another encoding": lambda name: json.dumps(GOOD[name]).encode("utf-16"),
    "a list": lambda _name: b"[]",
    "nothing in it": lambda _name: b"{}",
    "another kind": other_kind,
    "garbage": lambda _name: b"\x00\x01\xff" * 50,
    "a number that Java cannot hold": too_large,
    "a directory": lambda _name: Path.mkdir,
    "a pipe": lambda _name: os.mkfifo,
    "a link to itself": lambda _name: lambda path: path.symlink_to(path),
    "a link to nothing": lambda _name: lambda path: path.symlink_to("/nowhere/at/all"),
}


def config_of(**settings: Any) -> StoreConfig:
    return StoreConfig.small(memory_topic_enable=True, **settings)


def opened(root: Path, **settings: Any) -> None:
    MessageStore.open(root, config_of(**settings), threads=False).close()


def asked(root: Path, **settings: Any) -> int | None:
    with MessageStore.open(root, config_of(**settings), threads=False) as store:
        return store.consumer_offsets.get("t", "g", 0)


def acknowledged(root: Path, **settings: Any) -> None:
    with (
        MessageStore.open(root, config_of(**settings), threads=False) as store,
        store.consume("t", "g", start="first", idle_timeout_s=0.01) as group,
    ):
        for message in group:
            message.ack()


def limited(root: Path) -> int:
    with MessageStore.open(root, config_of(), threads=False) as store:
        return store.consume("T", "g")._group.subscription.max_reconsume_times


def batch_topic(root: Path) -> None:
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        store.batch_topics.create("new")


def lag(root: Path) -> None:
    code = run(["queue", "lag", str(root)])
    if code:
        raise FormatError(str(code))


class Door(NamedTuple):
    """What needs a table, and what it answers by a good one."""

    table: str
    use: Callable[[Path], object]
    answer: object = None


DOORS = {
    "open with memory topics": Door(TOPICS, opened),
    "make a batch topic": Door(TOPICS, batch_topic),
    "the table topics": Door(TOPICS, lambda root: len(read_table(root, table="topics")), 1),
    "ask for an offset": Door(OFFSETS, asked, 2),
    "consume": Door(OFFSETS, acknowledged),
    "consume with light queues": Door(LIGHT, lambda root: asked(root, enable_lmq=True), 2),
    "the table consumers": Door(
        OFFSETS, lambda root: [row["offset"] for row in read_table(root, table="consumers")], [2]
    ),
    "the table delays": Door(DELAYS, lambda root: read_table(root, table="delays"), []),
    "the tries of a group": Door(GROUPS, limited, 3),
}


@pytest.fixture
def root():
    with memory_directory() as directory:
        with MessageStore.open(directory, StoreConfig.small(), threads=False) as store:
            for number in range(5):
                store.put(Message(topic="t", body=b"%d" % number)).raise_for_status()
            store.wait_dispatched()
        shutil.rmtree(directory / "config", ignore_errors=True)
        (directory / "config").mkdir()
        yield directory


def write(path: Path, content: bytes | Callable[[Path], None]) -> None:
    path.write_bytes(content) if isinstance(content, bytes) else content(path)


def good(name: str) -> bytes:
    return json.dumps(GOOD[name]).encode()


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("door", DOORS)
def test_without_a_usable_table_or_backup_what_needs_it_is_refused_and_both_are_named(
    root, door, damage
):
    table, use, _ = DOORS[door]
    path = root / "config" / table
    backup = path.with_name(f"{table}.bak")
    write(path, DAMAGE[damage](table))
    with pytest.raises(FormatError, match=f"{path}: .*bring the table back from a copy"):
        use(root)
    write(backup, DAMAGE[damage](table))
    with pytest.raises(FormatError) as caught:
        use(root)
    assert f"{path}: " in str(caught.value)
    assert f"{backup}: " in str(caught.value)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FormatError, match=f"{backup}: "):
        use(root)
    assert not path.exists(), "nobody writes over what cannot be read"


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("door", DOORS)
def test_a_backup_takes_the_place_of_a_broken_table_and_that_is_said(root, door, damage):
    table, use, answer = DOORS[door]
    path = root / "config" / table
    write(path, DAMAGE[damage](table))
    path.with_name(f"{table}.bak").write_bytes(good(table))
    if callable(DAMAGE[damage](table)) and door in {"make a batch topic", "consume"}:
        with pytest.raises(StoreError, match=str(path)):
            use(root)  # what is in the way of a table that has to be written is named
        return
    with capture_logs() as said:
        assert use(root) == answer
    assert any(
        line["event"] == "table.broken"
        and line["reason"].startswith(f"{path}: ")
        and line["read_instead"] == f"{path}.bak"
        for line in said
    )


@pytest.mark.parametrize("door", DOORS)
def test_a_good_table_with_the_mark_of_an_editor_or_only_a_backup_is_read(root, door):
    table, use, answer = DOORS[door]
    path = root / "config" / table
    path.write_bytes(b"\xef\xbb\xbf" + good(table))
    assert use(root) == answer
    for one in (root / "config").iterdir():
        one.unlink()
    path.with_name(f"{table}.bak").write_bytes(good(table))
    assert use(root) == answer


def test_the_command_names_the_table(root, capsys):
    (root / "config" / OFFSETS).write_bytes(b"")
    assert run(["queue", "lag", str(root)]) == 4
    assert f"{root}/config/{OFFSETS}: " in "".join(capsys.readouterr().err.split("\n"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_where_offsets_of_delays_are_lost_the_log_says_them(root, damage):
    """The one table that holds nothing but what the log has too."""
    path = root / "config" / DELAYS
    write(path, DAMAGE[damage](DELAYS))
    with capture_logs() as said:
        with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
            assert store.delays is not None
            store.delays.turn()
            assert store.delays.delivery is not None
        assert run(["delay", "list", str(root)]) == 0
    assert [one["path"] for one in said if one["event"] == "delay.offsets_lost"] == [str(path)] * 2


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("table", GOOD)
def test_verify_names_every_broken_table(root, table, damage):
    path = root / "config" / table
    write(path, DAMAGE[damage](table))
    (found,) = [one for one in verify_store(root).findings if one.kind == "table"]
    assert (found.file, found.severity) == (f"config/{table}", Severity.DAMAGE)
    path.with_name(f"{table}.bak").write_bytes(good(table))
    (found,) = [one for one in verify_store(root).findings if one.kind == "table"]
    assert (found.file, found.severity) == (f"config/{table}", Severity.WARNING)


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        (TOPICS, "readQueueNums", -1),
        (TOPICS, "writeQueueNums", 1 << 20),
        (TOPICS, "perm", 99),
        (GROUPS, "retryQueueNums", -1),
        (OFFSETS, "0", 10**12),
        (OFFSETS, "0", -2),
        (DELAYS, "1", 10**12),
        (DELAYS, "1", -2),
    ],
)
def test_verify_names_a_number_that_cannot_be(root, table, field, value):
    content = json.loads(json.dumps(GOOD[table]))
    rows = next(iter(content.values()))
    (rows if table == DELAYS else next(iter(rows.values())))[field] = value
    (root / "config" / table).write_text(json.dumps(content))
    found = [one for one in verify_store(root).findings if one.file == f"config/{table}"]
    assert str(value) in found[0].reason


def test_a_store_that_needs_no_table_opens_with_broken_ones(root):
    """As a genuine broker's directory after a power cut."""
    for table in GOOD:
        (root / "config" / table).write_bytes(b"")
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        store.put(Message(topic="t", body=b"5")).raise_for_status()
        assert store.get("t", 0, 0).messages[0].body == b"0"


def test_a_batch_topic_without_a_message_is_not_forgotten_with_its_table(root):
    batch_topic(root)
    for path in (root / "config").iterdir():
        path.write_bytes(b"")
    with pytest.raises(FormatError, match=f"{root}/config/{TOPICS}: "):
        opened(root)


def test_half_a_character_in_a_table_is_read_as_java_stores_it(root):
    """Arrow and UTF-8 have no such text, and Java writes a ? for it."""
    (root / "config" / OFFSETS).write_text('{"offsetTable":{"\\ud800@g":{0:1}}}')
    (row,) = read_table(root, table="consumers")
    assert (row["group"], row["topic"], row["offset"]) == ("g", "?", 1)
    with MessageStore.open(root, StoreConfig.small(), threads=False) as store:
        assert store.consumer_offsets.get("?", "g", 0) == 1
