"""Commands that look at a store: their rows, their exit codes, and that they change nothing."""

import base64
import json
import os
import shutil
from typing import Any

import pytest

from rocketstore import Message
from rocketstore.cli.application import run
from rocketstore.cli.log_scan import LogScan
from rocketstore.config import StoreConfig
from rocketstore.message_store import MessageStore
from rocketstore.metrics.damage_map import (
    DAMAGE_MAP_FILE_NAME,
    DamagedRange,
    DamageMap,
    encode_damage_map,
)
from support.configured_store import open_small
from support.golden import golden_case, manifest
from support.openings import At
from support.trees import tree_with_times


@pytest.fixture
def basic():
    return golden_case("basic") / "store"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_scan_prints_every_record_and_blank_of_the_manifest(basic, capsys):
    assert run(["store", "scan", str(basic), "--output", "jsonl"]) == 0
    records = manifest(basic.parent)["records"]
    for row, record in zip(lines(capsys), records, strict=True):
        assert row["physicalOffset"] == record["phy"]
        if record["type"] != "msg":
            assert row["kind"] == "blank"
            continue
        assert row["kind"] == "message"
        same = ("topic", "queueId", "queueOffset", "size", "sysFlag", "flag", "bornTimestamp",
                "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes", "bodyCRC",
                "preparedTransactionOffset")  # fmt: skip
        assert {name: row[name] for name in same} == {name: record[name] for name in same}
        assert row["bodySize"] == record["bodyLen"] == len(base64.b64decode(row["body"]))


def test_scan_between_offsets_prints_only_what_starts_there(basic, capsys):
    assert run(["store", "scan", str(basic), "--begin-offset", "192", "--end-offset", "520"]) == 0
    assert [row["physicalOffset"] for row in lines(capsys)] == [192, 351]


def test_scan_of_a_flipped_bit_reports_one_damaged_record_and_exits_4(capsys):
    store = golden_case("crash") / "bitflip_middle_last_file" / "in"
    assert run(["store", "scan", str(store), "--damage-only"]) == 4
    [damage] = lines(capsys)
    assert damage["kind"] == "damage"
    assert damage["physicalOffset"] == 526666
    assert damage["file"].endswith("00000000000000524288")
    assert "crc" in damage["reason"]


@pytest.mark.parametrize(
    ("loss", "size", "reason"),
    [
        ("missing", 65_536, "missing file: no file for physical offsets [458752, 524288)"),
        ("empty", 65_536, "missing file: expected 65536 bytes, found 0"),
        ("zeros", 65_536, "unwritten hole: zeros up to the file's end"),
        ("half zeros", 32_768, "unwritten hole: zeros up to the file's end"),
    ],
)
def test_scan_reports_a_file_that_the_log_lost(basic, loss, size, reason, tmp_path, capsys):
    store = shutil.copytree(basic, tmp_path / "store")
    path = store / "commitlog" / f"{458752:020d}"
    whole = path.read_bytes()
    path.unlink()
    if loss != "missing":
        kept = {"empty": b"", "zeros": bytes(65_536), "half zeros": whole[:32_768] + bytes(32_768)}
        path.write_bytes(kept[loss])
    assert run(["store", "scan", str(store), "--damage-only"]) == 4
    damage = lines(capsys)[-1]
    assert damage["kind"] == "damage"
    assert damage["file"] == str(path)
    assert damage["reason"].startswith(reason)
    assert damage["physicalOffset"] + damage["size"] == 524_288
    assert damage["size"] == pytest.approx(size, abs=20_000)
    assert run(["store", "scan", str(store), "--damage-only", "--end-offset", "458752"]) == 0
    assert run(["store", "scan", str(store), "--damage-only", "--end-offset", "524288"]) == 4
    assert run(["store", "scan", str(store), "--damage-only", "--begin-offset", "524288"]) == 0


def test_scan_finds_no_damage_where_nothing_was_written_yet(basic, tmp_path, capsys):
    store = shutil.copytree(basic, tmp_path / "store")
    for number in (19, 20, 30):  # made ahead, the last one by somebody else
        (store / "commitlog" / f"{number * 65_536:020d}").write_bytes(bytes(65_536))
    assert run(["store", "scan", str(store), "--damage-only"]) == 0
    assert lines(capsys) == []


def test_scan_goes_on_where_a_writer_deletes_the_oldest_file_meanwhile(basic, tmp_path):
    store = shutil.copytree(basic, tmp_path / "store")
    scan = LogScan(store, StoreConfig(), None, None)
    (store / "commitlog" / f"{0:020d}").unlink()
    rows = list(scan.rows())
    assert rows[0]["physicalOffset"] == 65_536
    assert {row["kind"] for row in rows} == {"message", "blank"}


def test_a_store_that_has_no_message_yet_scans_as_empty(tmp_path, capsys):
    MessageStore.open(tmp_path).close()
    assert run(["store", "scan", str(tmp_path)]) == 0
    assert lines(capsys) == []


@pytest.mark.parametrize("is_dispatched", [True, False])
@pytest.mark.parametrize(
    "command",
    ["store scan", "store scrub", "store verify", "message tail -t orders",
     "queue show -t orders -q 0", "queue lag", "delay list", "transaction list"],
)  # fmt: skip
def test_a_first_message_that_comes_beside_a_command_is_nothing_wrong(
    tmp_path, monkeypatch, capsys,
    command, *, is_dispatched,
):  # fmt: skip
    """Neither where a directory was listed before it and another one after it."""
    words = command.split()

    def at(number: int) -> int:
        root = tmp_path / str(number)
        with open_small(root) as writer:

            def come() -> None:
                writer.put(Message(topic="orders", body=b"first"))
                if is_dispatched:
                    writer.wait_dispatched()

            calls = At(number, come)
            with monkeypatch.context() as patch:
                for name in ("open", "scandir", "listdir", "stat"):
                    patch.setattr(os, name, calls.wrapped(getattr(os, name)))
                code = run([*words[:2], str(root), *words[2:]])
            said = capsys.readouterr().err
            assert code in {0, 1}, said
            assert said in {"", f"rocketstore: {root} has no topic orders; it has no message yet\n"}
        return calls.count

    for number in range(1, at(-1) + 1):
        at(number)


def test_queue_list_prints_offsets_of_every_queue(basic, capsys):
    assert run(["queue", "list", str(basic), "--output", "jsonl"]) == 0
    printed = {
        (row["topic"], str(row["queueId"])): (row["minOffset"], row["maxOffset"])
        for row in lines(capsys)
    }
    expected = {
        (topic, queue_id): (queue["minOffset"], queue["maxOffset"])
        for topic, queues in manifest(basic.parent)["consumeQueues"].items()
        for queue_id, queue in queues.items()
        if queue["entries"]
    }
    assert printed == expected


def test_queue_show_prints_entries_as_stored(basic, capsys):
    assert run(["queue", "show", str(basic), "--topic", "TopicA", "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    expected = manifest(basic.parent)["consumeQueues"]["TopicA"]["0"]["entries"]
    assert [[r["physicalOffset"], r["size"], r["tagsCode"]] for r in rows] == expected
    assert [row["queueOffset"] for row in rows] == list(range(len(expected)))


def test_queue_show_prints_what_entries_refer_to(capsys):
    store = golden_case("cqext") / "store"
    command = ["queue", "show", str(store), "--topic", "ExtTopic", "--queue", "1"]
    assert run([*command, "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    shown = [[r["extTagsCode"], r["extStoreTimestamp"], r["extBitMap"]] for r in rows]
    expected = manifest(store.parent)["consumeQueues"]["ExtTopic"]["1"]["ext"]
    assert shown == [unit[2:] for unit in expected]
    assert run(command) == 0
    assert expected[1][4] in capsys.readouterr().out


def test_message_get_reads_over_several_pages(basic, capsys):
    command = ["message", "get", str(basic), "--topic", "TopicA", "--max", "100"]
    assert run([*command, "--output", "jsonl"]) == 0
    assert [row["queueOffset"] for row in lines(capsys)] == list(range(100))


def test_an_answer_without_messages_is_an_answer(basic, capsys):
    for command in (
        ["message", "get", str(basic), "--topic", "TopicA", "--offset", "100000"],
        ["message", "find", str(basic), "--topic", "TopicA", "--key", "nobody"],
    ):
        assert run([*command, "--output", "json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out) == []
        assert len(captured.err.splitlines()) == 1


def test_message_find_prints_the_offsets_of_the_manifest(basic, capsys):
    command = ["message", "find", str(basic), "--topic", "TopicB", "--key", "shared2"]
    assert run([*command, "--output", "jsonl"]) == 0
    printed = [row["physicalOffset"] for row in lines(capsys)]
    assert sorted(printed) == sorted(manifest(basic.parent)["index"]["TopicB#shared2"])


def test_message_id_prints_the_message(basic, capsys):
    message_id = "7F00000100002A9F0000000000120000"
    assert run(["message", "id", str(basic), message_id, "--output", "jsonl"]) == 0
    [row] = lines(capsys)
    assert (row["physicalOffset"], row["msgId"]) == (1179648, message_id)


def test_invalid_message_id_is_a_usage_error(basic, capsys):
    assert run(["message", "id", str(basic), "7F0"]) == 2
    assert "32 or 56" in capsys.readouterr().err


def test_index_list_prints_the_headers_of_the_manifest(basic, capsys):
    sizes = ["--set", "maxHashSlotNum=500", "--set", "maxIndexNum=2000"]
    assert run(["index", "list", str(basic), *sizes, "--output", "jsonl"]) == 0
    printed = [(row["file"], row["indexCount"], row["hashSlotCount"]) for row in lines(capsys)]
    headers = manifest(basic.parent)["indexFiles"]
    assert printed == [(h["file"], h["indexCount"], h["hashSlotCount"]) for h in headers]


def test_info_counts_what_the_store_holds(basic, capsys):
    assert run(["store", "info", str(basic), "--output", "json"]) == 0
    info = json.loads(capsys.readouterr().out)
    facts = manifest(basic.parent)
    assert info["commitLogFiles"] == 19
    assert info["maxPhysicalOffset"] == facts["maxPhyOffset"]
    assert info["checkpointIndexMsgTimestamp"] == facts["checkpoint"]["indexMsgTimestamp"]
    assert info["writerPid"] is None
    assert info["findings"] == []


@pytest.mark.parametrize("content", [b"", bytes(10)])
def test_info_of_a_store_whose_checkpoint_was_cut_off_tells_the_rest(
    basic, content, tmp_path, capsys
):
    store = shutil.copytree(basic, tmp_path / "store")
    (store / "checkpoint").write_bytes(content)
    assert run(["store", "info", str(store), "--output", "json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["commitLogFiles"], info["checkpointPhysicMsgTimestamp"]) == (19, None)
    [finding] = info["findings"]
    assert str(store / "checkpoint") in finding
    assert f"found {len(content)} bytes" in finding


def test_info_of_a_store_whose_index_files_were_cut_off_tells_the_rest(basic, tmp_path, capsys):
    store = shutil.copytree(basic, tmp_path / "store")
    for path in (store / "index").iterdir():
        os.truncate(path, 9999)
    assert run(["store", "info", str(store), "--output", "json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["commitLogFiles"], info["indexFiles"], info["indexItems"]) == (19, None, None)
    assert "cannot be learnt from its 9999 bytes" in info["findings"][-1]


def test_reading_commands_change_no_byte_and_no_time(basic, tmp_path, capsys):
    store = shutil.copytree(basic, tmp_path / "store")
    before = tree_with_times(store)
    names = sorted(path.name for path in store.rglob("*"))
    for command in (
        ["store", "info", str(store)],
        ["store", "scan", str(store)],
        ["store", "verify", str(store)],
        ["queue", "list", str(store)],
        ["queue", "show", str(store), "--topic", "TopicA"],
        ["index", "list", str(store)],
        ["message", "get", str(store), "--topic", "TopicA"],
        ["message", "find", str(store), "--topic", "TopicB", "--key", "shared2"],
    ):
        assert run(command) == 0, command
    capsys.readouterr()
    assert tree_with_times(store) == before
    assert sorted(path.name for path in store.rglob("*")) == names


@pytest.mark.parametrize(
    "command",
    [
        ["store", "info"],
        ["store", "scan"],
        ["store", "verify"],
        ["store", "scrub"],
        ["queue", "list"],
        ["index", "list"],
        ["message", "get", "--topic", "T"],
    ],
)
def test_a_directory_that_is_no_store_exits_4_with_one_line(command, tmp_path, capsys):
    assert run([*command[:2], str(tmp_path), *command[2:]]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(tmp_path) in captured.err
    assert len(captured.err.splitlines()) == 1


def test_info_says_what_the_store_s_own_check_knows(basic, tmp_path, capsys):
    store = shutil.copytree(basic, tmp_path / "store")
    run(["store", "info", str(store), "--output", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lastScrubTimestamp"], shown["scrubDamagedRanges"]) == (None, 0)
    lost = DamagedRange(7, 9, "bad crc", "", "", found_timestamp=1)
    known = DamageMap(passes=2, last_pass_timestamp=5, damage=(lost,))
    (store / DAMAGE_MAP_FILE_NAME).write_bytes(encode_damage_map(known))
    run(["store", "info", str(store), "--output", "json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lastScrubTimestamp"], shown["scrubDamagedRanges"]) == (5, 1)
