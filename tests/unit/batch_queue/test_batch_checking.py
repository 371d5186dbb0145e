"""What verify finds in batch queues, and a repair builds again."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from rocketstore import Message, Severity, StoreConfig, repair_store, verify_store
from rocketstore.batch_queue.checking import check_batch_queues, repair_batch_queues
from rocketstore.cli.application import run
from rocketstore.format.batch_queue_entry import (
    BATCH_ENTRY_SIZE_BYTES,
    BatchEntry,
    encode_batch_entry,
)
from rocketstore.storage.audit.repair import rebuild_store
from support.audit_runs import audited, proved
from support.batch_stores import BATCHES, PLAIN, bodies, open_batches, put
from support.memory import memory_directory
from support.rebuild_runs import rebuilt_here
from support.small_store import START_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY = BATCH_ENTRY_SIZE_BYTES
CONFIG = StoreConfig()


@pytest.fixture
def root() -> Iterator[Path]:
    with memory_directory() as directory:
        with open_batches(directory, mapped_file_size_batch_queue=8 * ENTRY) as store:
            for number in range(20):
                put(store, f"{number}", "x")
                put(store, "p", topic=PLAIN)
        yield directory


def kinds(root: Path) -> list[tuple[str, int]]:
    return [
        (one.kind, one.queue_offset) for one in check_batch_queues(root, CONFIG, now_ms=START_MS)
    ]


def files(root: Path) -> list[Path]:
    return sorted((root / "batchconsumequeue" / BATCHES / "0").iterdir())


def change(file: Path, at: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)


def check_whole(root: Path) -> None:
    assert check_batch_queues(root, CONFIG, now_ms=START_MS) == []
    assert not verify_store(root, now_ms=START_MS).has_warnings
    with open_batches(root) as store:
        found, at = [], 0
        while at < store.max_offset(BATCHES, 0):
            page = store.get(BATCHES, 0, at)
            found += bodies(page)
            at = page.next_offset
    assert found == [(n, "x" if n % 2 else str(n // 2)) for n in range(40)]


def test_a_store_that_is_whole_has_no_finding(root):
    check_whole(root)
    assert repair_batch_queues(root, CONFIG, now_ms=START_MS) == ([], [])


LATE = encode_batch_entry(BatchEntry(1 << 40, 100, 0, 0, 77, 1))
HARMS = {
    "wrong": ("queue-wrong", 20, lambda root: change(files(root)[1], 2 * ENTRY + 8, b"\0\0\0\1")),
    "hole": ("queue-wrong", 16, lambda root: change(files(root)[1], 0, bytes(2 * ENTRY))),
    "cut": ("queue-missing", 32, lambda root: files(root)[-1].unlink()),
    "late": ("queue-beyond-log", 77, lambda root: change(files(root)[-1], 4 * ENTRY, LATE)),
    "no queue": ("queue-missing", 0, lambda root: shutil.rmtree(root / "batchconsumequeue")),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("split", [500, 1 << 20])
def test_the_audit_on_spark_finds_the_same_in_the_same_words(root, harm, split):
    assert not audited(root, now_ms=START_MS).has_warnings
    HARMS[harm][2](root)
    (found,) = check_batch_queues(root, CONFIG, now_ms=START_MS)
    report = audited(root, now_ms=START_MS, max_split_bytes=split)
    assert [one for one in report.findings if one.severity is Severity.DAMAGE] == [found]
    assert report.exit_code == 4
    assert not proved(root).has_warnings  # a rebuild on Spark makes no batch queue


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_wrong_is_found_and_built_again(root, harm, capsys):
    kind, offset, do = HARMS[harm]
    do(root)
    assert kinds(root) == [(kind, offset)]
    assert run(["store", "verify", str(root)]) == 4
    assert kind in capsys.readouterr().out
    findings, actions = repair_batch_queues(root, CONFIG, now_ms=START_MS, dry_run=True)
    assert (len(findings), len(actions)) == (1, 1)
    assert kinds(root) == [(kind, offset)]
    assert run(["store", "repair", str(root)]) == 1
    assert BATCHES in capsys.readouterr().out
    if harm != "no queue":
        assert list((root / "repair").rglob("batchconsumequeue*"))
    check_whole(root)
    assert run(["store", "repair", str(root)]) == 0


def test_python_is_told_what_the_command_says_and_repairs_as_it_does(root, capsys):
    HARMS["wrong"][2](root)
    report = verify_store(root)
    assert [one.kind for one in report.findings] == ["queue-wrong"]
    run(["store", "verify", str(root), "--output", "json"])
    assert json.loads(capsys.readouterr().out) == report.to_dict()
    said = repair_store(root, dry_run=True)
    assert not (root / "repair").exists()
    done = repair_store(root)
    assert (said.findings, said.actions) == (done.findings, done.actions)
    assert len(done.actions) == 1
    check_whole(root)


def test_groups_that_stand_outside_a_batch_queue_are_named_by_verify_and_by_the_audit(root):
    places = {"ahead": 41, "inside": 7, "at the end": 40}
    table = {f"{BATCHES}@{group}": {"0": offset} for group, offset in places.items()}
    table[f"{BATCHES}@elsewhere"] = {"9": 1}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    wrong = {("consumer-ahead", 0, 41), ("consumer-ahead", 9, 1)}

    def found(report):
        return {(one.kind, one.queue_id, one.queue_offset) for one in report.findings}

    assert found(verify_store(root)) == wrong
    assert set(verify_store(root, now_ms=START_MS).findings) == set(
        audited(root, now_ms=START_MS).findings
    )
    assert repair_batch_queues(root, CONFIG, now_ms=START_MS) == ([], [])


def test_a_file_of_a_wrong_length_is_found_and_built_again(root):
    content = files(root)[0].read_bytes()
    files(root)[0].write_bytes(content[:100])
    found = check_batch_queues(root, CONFIG, now_ms=START_MS)
    assert {"queue-file-wrong-size", "queue-wrong"} == {one.kind for one in found}
    assert set(found) <= set(audited(root, now_ms=START_MS).findings)
    repair_batch_queues(root, CONFIG, now_ms=START_MS)
    check_whole(root)
    assert files(root)[0].read_bytes() == content


def test_what_repairs_the_rest_of_a_store_leaves_batch_queues_right(root):
    (root / "abort").touch()
    report = repair_store(root, now_ms=START_MS)
    assert report.remaining == []
    assert not [one for one in report.actions if "batch" in one]
    check_whole(root)
    rebuild_store(root, what="queues", now_ms=START_MS)
    assert not (root / "consumequeue" / BATCHES).exists()
    check_whole(root)


def test_what_a_live_writer_has_not_dispatched_is_no_fault(root):
    with open_batches(root) as store:
        store.put_batch([Message(topic=BATCHES, body=b"not yet")])
        assert check_batch_queues(root, CONFIG, now_ms=START_MS) == []
    assert check_batch_queues(root, CONFIG, now_ms=START_MS) == []


def test_jobs_of_spark_miss_no_entry_of_a_batch_and_make_none(root, tmp_path):
    assert not audited(root).has_warnings
    assert not proved(root).has_warnings
    report = rebuilt_here(root, target=tmp_path / "made")
    assert report.refused_count == 0
    made = {path.name for path in (tmp_path / "made" / "consumequeue").iterdir()}
    assert made == {PLAIN}
