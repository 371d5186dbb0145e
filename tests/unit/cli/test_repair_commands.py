"""What ``store verify``, ``store repair`` and the rebuild commands say and do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketstore import Message, MessageStore
from rocketstore.cli.application import run
from rocketstore.storage.recovery.replacement import commit, locked, staged
from support.clock import Clock
from support.golden import golden_case
from support.patience import PATIENCE_S
from support.small_store import build_store, flip_body
from support.trees import tree

USER = 4242
"""A user, who need not exist."""


@pytest.fixture
def basic(tmp_path):
    return Path(shutil.copytree(golden_case("basic") / "store", tmp_path / "store"))


@pytest.fixture
def flipped(tmp_path):
    source = golden_case("crash") / "bitflip_middle_last_file" / "in"
    return Path(shutil.copytree(source, tmp_path / "store"))


def run_json(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, dict[str, Any]]:
    code = run([*command, "--output", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_of_a_healthy_store_exits_0(basic, capsys):
    code, report = run_json(capsys, "store", "verify", str(basic))
    assert code == 0
    assert report["counts"]["messageCount"] == 1489
    assert [f for f in report["findings"] if f["severity"] != "note"] == []


def test_verify_of_a_flipped_bit_exits_4_and_names_the_place(flipped, capsys):
    code, report = run_json(capsys, "store", "verify", str(flipped))
    assert code == 4
    [damage] = [f for f in report["findings"] if f["kind"] == "log-damage"]
    assert damage["file"].endswith("00000000000000524288")
    assert damage["offset"] == 526666 - 524288


def test_each_command_says_which_step_is_next(flipped, capsys):
    for command, last in (("verify", "a repair would do"), ("repair", "can do no more about it")):
        assert run(["store", command, str(flipped)]) == 4
        text = " ".join(capsys.readouterr().out.split())
        assert last in text
        assert (f"rocketstore store repair {flipped} --dry-run" in text) == (command == "verify")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for another user")
@pytest.mark.parametrize("is_link", [False, True])
def test_what_root_makes_in_a_store_of_another_user_is_that_user_s(flipped, capsys, is_link):
    (flipped / "lock").unlink(missing_ok=True)
    of_root = flipped.with_name("of-root")
    of_root.write_bytes(b"lock")
    if is_link:
        (flipped / "lock").symlink_to(of_root)
    for path in [flipped, *flipped.rglob("*")]:
        os.lchown(path, USER, USER + 1)
    before = tree(flipped)
    run(["store", "repair", str(flipped)])
    run(["queue", "rebuild", str(flipped)])
    run(["index", "rebuild", str(flipped)])
    with locked(flipped), staged(flipped) as staging:
        (staging / "consumequeue" / "orders" / "0").mkdir(parents=True)
        commit(flipped, staging, now_ms=1)
    with MessageStore.open(flipped) as store:
        store.put(Message(topic="new", body=b""))
        store.consumer_offsets.set("new", "billing", 0, 1)
    assert len(tree(flipped)) > len(before) + 10
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in flipped.rglob("*")}
    assert owners == {(USER, USER + 1)}
    assert of_root.stat().st_uid == 0


def test_repair_exits_1_for_what_it_finds_and_leaves(basic, capsys):
    (basic / "config").mkdir(exist_ok=True)
    (basic / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (basic / "config" / "topics.json.bak").write_text("{")
    verified, _ = run_json(capsys, "store", "verify", str(basic))
    repaired, report = run_json(capsys, "store", "repair", str(basic))
    assert [finding["kind"] for finding in report["remaining"]] == ["table"]
    assert (verified, repaired) == (1, 1)


def test_a_dry_run_says_what_it_would_do_and_changes_nothing(flipped, capsys):
    before = tree(flipped)
    _, report = run_json(capsys, "store", "repair", str(flipped), "--dry-run")
    assert report["dryRun"] is True
    assert report["actions"]
    assert tree(flipped) == before


def test_salvage_keeps_every_record_around_a_flipped_bit_and_says_what_a_broker_loses(
    flipped, capsys
):
    code, report = run_json(capsys, "store", "repair", str(flipped))
    assert code == 4  # the damage in the middle stays, and is in the store now
    assert report["counts"]["messageCount"] == 1099
    assert sum(lost["recordCount"] for lost in report["lostForBroker"]) > 0
    code, again = run_json(capsys, "store", "repair", str(flipped))
    assert (code, again["actions"]) == (4, [])


def test_compatible_ends_where_the_java_store_ends(flipped, capsys):
    code, report = run_json(capsys, "store", "repair", str(flipped), "--policy", "compatible")
    assert code == 1
    assert report["counts"]["maxPhysicalOffset"] == 526666
    assert (flipped / report["evidence"]).is_dir()
    assert report["lostForBroker"] == []


@pytest.mark.parametrize(("noun", "directory"), [("queue", "consumequeue"), ("index", "index")])
def test_rebuild_gives_what_was_there_and_keeps_the_old_files(noun, directory, basic, capsys):
    before = tree(basic / directory)
    code, report = run_json(capsys, noun, "rebuild", str(basic))
    assert code == 1
    assert {one["severity"] for one in report["findings"]} <= {"note"}  # nothing was wrong before
    assert tree(basic / report["evidence"] / directory) == before
    after = tree(basic / directory)
    # Index files are named by the time they were made; everything else is the same bytes.
    assert after == before if noun == "queue" else len(after) == len(before)
    assert run(["store", "verify", str(basic)]) == 0


def test_rebuild_brings_back_queues_that_were_lost(basic, capsys):
    before = tree(basic / "consumequeue")
    shutil.rmtree(basic / "consumequeue")
    # No queue file is left to learn the size from.
    size = ["--set", "mappedFileSizeConsumeQueue=2000"]
    assert run(["queue", "rebuild", str(basic), *size]) == 1
    assert tree(basic / "consumequeue") == before
    capsys.readouterr()


@pytest.mark.parametrize(
    "command", ["scan --damage-only", "verify", "scrub --rate 0", "repair --dry-run", "repair"]
)
def test_a_verdict_is_the_same_where_no_one_reads_what_was_found(flipped, command):
    """As of ``rocketstore store verify STORE | head``."""
    assert exit_code_of([*command.split(), str(flipped)], read_bytes=0) == 4


def exit_code_of(words: list[str], *, read_bytes: int) -> int:
    command = [sys.executable, "-m", "rocketstore", "store", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(read_bytes)
        process.stdout.close()
        return process.wait(PATIENCE_S)


@pytest.mark.parametrize(("damaged", "expected"), [(0, 4), (-1, 0)])
def test_a_scan_whose_reader_leaves_ends_with_the_verdict_on_what_it_met(
    tmp_path, damaged, expected
):
    """As of ``rocketstore store scan STORE | head``, which reads no terabyte to its end."""
    offsets = build_store(tmp_path, 2000, Clock())  # more lines than a pipe takes
    flip_body(tmp_path, offsets[damaged])
    assert exit_code_of(["scan", str(tmp_path)], read_bytes=100) == expected


def test_repair_refuses_a_store_with_a_writer(basic, capsys):
    with MessageStore.open(basic):
        for command in (
            ["store", "repair", str(basic)],
            ["store", "repair", str(basic), "--dry-run"],
            ["queue", "rebuild", str(basic)],
        ):
            assert run(command) == 5
    assert capsys.readouterr().err.count("in use") == 3
