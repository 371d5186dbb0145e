"""The audit finds what `store verify` finds, however the log is cut, and what only it looks at."""

import functools
import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from rocketstore import Message, MessageStore, PutMessageStatus, verify_store
from rocketstore.config import StoreConfig
from rocketstore.errors import ConfigError, StoreError
from rocketstore.format.file_name import file_name
from rocketstore.pipeline.jobs.audit import audit_job, audit_plan, audit_work
from rocketstore.pipeline.planning import SplitTask
from rocketstore.places import files as place_files
from rocketstore.places import log_verdict, queue_files
from rocketstore.places.files import ArrowFiles
from rocketstore.places.store_listing import list_store
from rocketstore.rules.log_rules import Stretch
from rocketstore.storage.files import lock
from rocketstore.units import MiB
from rocketstore.verification import index_rules, queue_rules
from support.arrow_frames import Frame
from support.audit_runs import audited, keys, kinds
from support.clock import Clock
from support.configured_store import open_small
from support.golden_stores import STORES, golden_root
from support.openings import SIZES, look_beside_openings, put
from support.python_process import run_python
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    build_store,
    crashed,
    log_path,
    messages,
    open_store,
    overwrite,
    put_all,
    read_log,
)
from support.sparse_log import QUEUE_FILE_SIZE, make_sparse_log
from support.store_files import StoreFiles, made_again, overwrite_file

SPLITS = (7_000, 256 * MiB)
QUEUE = "consumequeue/Topic0/0/" + file_name(0)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("audit") / "store"
    return root, build_store(root, 240, Clock())


@pytest.fixture
def root(built, tmp_path):
    """A store of five log files, two queues of two files, closed in order."""
    return shutil.copytree(built[0], tmp_path / "store")


@pytest.fixture
def offsets(built):
    return built[1]


def index_file(root):
    (path,) = (root / "index").iterdir()
    return path


# --- beside verify ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_is_judged_as_by_verify_and_the_cut_does_not_matter(name):
    root = golden_root(name)
    reports = [audited(root, max_split_bytes=size) for size in SPLITS]
    report, verified = reports[0], verify_store(root)
    assert all(other == report for other in reports)
    assert keys(report.findings) == keys(verified.findings)
    assert report.counts == verified.counts
    assert (report.is_damaged, report.has_warnings) == (verified.is_damaged, verified.has_warnings)


def test_a_large_file_is_cut_into_splits_of_one_and_seven_mebibytes_or_not_at_all(tmp_path):
    config = StoreConfig(
        mapped_file_size_commit_log=18 * MiB,
        max_hash_slot_num=5_000,
        max_index_num=20_000,
        retention=False,
    )
    root = tmp_path / "store"
    with MessageStore.open(root, config) as writer:
        batch = messages(32, body_size=4_000)[::2]
        placed = [writer.put_batch(batch, queue_id=number % 3) for number in range(270)]
        writer.wait_dispatched()
    assert {one.status for one in placed} == {PutMessageStatus.PUT_OK}
    log = root / "commitlog" / file_name(0)
    overwrite_file(log, 5 * MiB, b"\0" * 9_000)
    overwrite_file(log, 11 * MiB, b"x")
    reports = [audited(root, max_split_bytes=size * MiB) for size in (1, 7, 256)]
    assert reports[0] == reports[1] == reports[2]
    assert kinds(reports[0].findings).count("log-damage") == 2
    assert keys(reports[0].findings) == keys(verify_store(root).findings)


def flip_body(root, offsets):
    overwrite(root, offsets[50] + 100, b"\0\0")


def flip_topic(root, offsets):
    at = offsets[50] + 88 + int.from_bytes(read_log(root, offsets[50] + 84, 4), "big") + 1
    overwrite(root, at, b"Xopic0")


def zero_records(root, offsets):
    overwrite(root, offsets[60], bytes(offsets[64] - offsets[60]))


def lose_last_file(root, offsets):
    log_path(root, offsets[-1]).unlink()


def lose_first_file(root, _offsets):
    log_path(root, 0).unlink()


def cut_log_file(root, offset, size):
    os.truncate(log_path(root, offset), size)


def strange_files(root, _offsets):
    (root / "commitlog" / "notes.txt").write_text("x")
    (root / "commitlog" / file_name(LOG_FILE_BYTES * 50 + 1)).write_bytes(bytes(LOG_FILE_BYTES))
    (root / "index" / "backup").write_text("x")


def change_queue(root, at, *numbers, code="qiq", base=0):
    """Write numbers at a byte of a file of the first queue."""
    path = root / "consumequeue/Topic0/0" / file_name(base)
    overwrite_file(path, at, struct.pack(f">{code}", *numbers))


def zero_entry(root, _offsets):
    change_queue(root, 20 * 7, 0, 0, 0)


def wrong_entry(root, offsets):
    change_queue(root, 20 * 7, offsets[1], 300, 5)


def top_bit_of_tags(root, _offsets):
    path = root / QUEUE
    content = bytearray(path.read_bytes())
    content[3 * 20 + 12] ^= 0x80
    path.write_bytes(content)


def lose_queue(root, _offsets):
    shutil.rmtree(root / "consumequeue/Topic0")


def misname_queue_file(root, _offsets):
    """Its places go on where the name says: every entry of it stands at another one."""
    (root / QUEUE).rename(root / "consumequeue/Topic0/0" / file_name(40))


def directory_for_queue_file(root, _offsets):
    (root / QUEUE).unlink()
    (root / QUEUE).mkdir()


def change_index(root, at, number, code="i"):
    """Write a number at a byte of the index file."""
    overwrite_file(index_file(root), at, struct.pack(f">{code}", number))


def wrong_hash(root, _offsets):
    change_index(root, 440 + 20 * 30, 77)


def broken_table(root, _offsets):
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("{")


def directories_for_small_files(root, _offsets):
    (root / "checkpoint").unlink()
    for name in ("abort", "checkpoint", "config/topics.json", "config/consumerOffset.json"):
        (root / name).mkdir(parents=True)


def not_dispatched(root, offsets):
    crashed(root)
    entry = struct.pack(">q", offsets[-1])
    for path in (root / "consumequeue").glob("*/*/*"):
        if (at := path.read_bytes().rfind(entry)) >= 0:
            overwrite_file(path, at, bytes(20))


def lose_queue_besides_a_kill(root, offsets):
    crashed(root)
    lose_queue(root, offsets)


SECOND = LOG_FILE_BYTES
"""Where the second log file begins."""


def topic_made_again(root, _):
    shutil.rmtree(root)
    made_again(StoreFiles(root))


DAMAGES = {
    "flip_body": ("log-damage", flip_body),
    "flip_queue_offset": (
        "queue-impossible",
        lambda root, at: overwrite(root, at[50] + 20, struct.pack(">q", 25 + (1 << 20))),
    ),
    "flip_topic": ("queue-missing", flip_topic),
    "zero_records": ("queue-hole", zero_records),
    "break_file": ("log-damage", lambda root, _: overwrite(root, SECOND, os.urandom(SECOND))),
    "garbage_tail": ("log-tail", lambda root, at: overwrite(root, at[-1] + 500, b"no record")),
    "cut_last_record": ("log-tail", lambda root, at: overwrite(root, at[-1] + 60, bytes(300))),
    "lose_file": ("log-hole", lambda root, _: log_path(root, SECOND).unlink()),
    "lose_last_file": ("queue-beyond-log", lose_last_file),
    "lose_first_file": (None, lose_first_file),
    "shorten_file": ("log-file-wrong-size", lambda root, _: cut_log_file(root, SECOND, 5_000)),
    "shorten_last_file": (
        "log-file-wrong-size",
        lambda root, at: cut_log_file(root, at[-1], at[-1] % LOG_FILE_BYTES + 40),
    ),
    "lengthen_file": ("log-file-wrong-size", lambda root, _: cut_log_file(root, 0, SECOND + 4096)),
    "empty_file": ("log-file-empty", lambda root, at: cut_log_file(root, at[-1], 0)),
    "strange_files": ("log-file-wrong-name", strange_files),
    "zero_entry": ("queue-unwritten", zero_entry),
    "wrong_entry": ("queue-wrong", wrong_entry),
    "wrong_size_of_entry": (
        "queue-wrong",
        lambda root, _: change_queue(root, 20 * 7 + 8, 17, code="i"),
    ),
    "wrong_tags": ("queue-wrong", lambda root, _: change_queue(root, 20 * 7 + 12, 17, code="q")),
    "top_bit_of_tags": ("queue-wrong", top_bit_of_tags),
    "entry_after_the_log": (
        "queue-stale",
        lambda root, at: change_queue(root, 400, at[-1] + 4_000, 300, 5, base=QUEUE_FILE_BYTES),
    ),
    "entry_after_the_files": (
        "queue-beyond-log",
        lambda root, _: change_queue(root, 400, 1 << 40, 300, 5, base=QUEUE_FILE_BYTES),
    ),
    "lose_queue": ("queue-missing", lose_queue),
    "lose_queue_file": ("queue-missing", lambda root, _: (root / QUEUE).unlink()),
    "shorten_queue_file": ("queue-file-wrong-size", lambda root, _: os.truncate(root / QUEUE, 33)),
    "misname_queue_file": ("queue-file-misplaced", misname_queue_file),
    "directory_for_queue_file": ("queue-file-not-a-file", directory_for_queue_file),
    "wrong_hash": ("index-wrong", wrong_hash),
    "wrong_link": ("index-chain 5040", lambda root, _: change_index(root, 5040 + 16, 229)),
    "wrong_slot": ("index-slot 52", lambda root, _: change_index(root, 52, 1)),
    "negative_hash": ("index-item 1040", lambda root, _: change_index(root, 1040, -77)),
    "item_out_of_order": (
        "index-order 1060",
        lambda root, at: change_index(root, 1040 + 4, at[200], "q"),
    ),
    "fewer_items": ("index-missing", lambda root, _: change_index(root, 36, 100)),
    "more_items_than_there_are": (
        "index-header 36",
        lambda root, _: change_index(root, 36, 2**31 - 1),
    ),
    "lose_index": ("index-missing", lambda root, _: index_file(root).unlink()),
    "broken_checkpoint": (
        "checkpoint",
        lambda root, _: (root / "checkpoint").write_bytes(b"short"),
    ),
    "broken_table": ("table", broken_table),
    "directories_for_small_files": ("table", directories_for_small_files),
    "not_closed": ("abort", lambda root, _: crashed(root)),
    "not_dispatched": ("queue-missing", not_dispatched),
    "lose_queue_besides_a_kill": ("queue-missing", lose_queue_besides_a_kill),
    "topic_made_again": ("queue-conflict", topic_made_again),
}
"""What is broken, and a kind of finding that it has, maybe with its offset."""


@pytest.mark.parametrize(("kind", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_is_judged_as_by_verify(kind, damage, root, offsets):
    damage(root, offsets)
    reports = [audited(root, max_split_bytes=size) for size in (2_500, MiB)]
    assert reports[0] == reports[1]
    report, verified = reports[0], verify_store(root)
    assert keys(report.findings) == keys(verified.findings)
    assert report.counts == verified.counts
    found = {f"{one.kind} {one.offset}" for one in report.findings}
    assert kind is None or kind in found.union(kinds(report.findings))


def test_no_task_of_the_log_lists_a_directory_or_sends_what_agrees(monkeypatch, root):
    tasks, listed = tasks_of(root, 9_000), []
    monkeypatch.setattr(place_files.LocalFiles, "list", lambda _, path: listed.append(path))
    rows = [
        row for task in tasks for batch in audit_work.read_task(task) for row in batch.to_pylist()
    ]
    assert listed == []
    assert {row["kind"] for row in rows} == {"log", "index", "parts", "backed"}
    parts = [
        part for row in rows if row["kind"] == "parts" for part in audit_work.FactRow(**row).parts
    ]
    assert sum(part.record_count for part in parts) == 240
    assert all(len(part.backed) == 1 and not len(part.missing) for part in parts)


def tasks_of(root, split_bytes):
    places = list_store(str(root), StoreConfig())
    _, tasks, _ = audit_plan.plan_tasks(places, StoreConfig(), frozenset(), split_bytes, 0)
    return tasks


def rows_of_parts(root, block_records, monkeypatch):
    """Return what tasks say of queues of a log that is compared so many records at a time."""
    scanned = functools.partialmethod(SplitTask.scanned, batch_records=block_records)
    monkeypatch.setattr(SplitTask, "scanned", scanned)
    monkeypatch.setattr(audit_work, "BLOCK_RECORDS", block_records)
    tasks = tasks_of(root, 256 * MiB)
    rows = audit_work.rows_of(batch for task in tasks for batch in audit_work.read_task(task))
    return [row for row in rows if row.kind == "parts"]


def test_a_task_sends_a_row_for_a_queue_however_often_it_compares(monkeypatch, root, offsets):
    files = 5
    assert [len([*row.parts]) for row in rows_of_parts(root, 7, monkeypatch)] == [files, files]
    overwrite(root, offsets[20] + 100, b"\0\0")  # in the middle of a stretch of agreement
    rows = rows_of_parts(root, 7, monkeypatch)
    assert rows == rows_of_parts(root, 10**6, monkeypatch)
    parts = [part for row in rows for part in row.parts]
    assert len(parts) == 2 * (files + 1)
    assert {part.start for part in parts} >= {offsets[0], offsets[21]}
    assert all(len(part.stated) == 1 for part in parts)


def test_entries_of_several_batches_that_agree_are_looked_at_no_further(monkeypatch, root):
    monkeypatch.setattr(queue_rules, "is_due_time", None)  # that of the further look
    assert (
        sum(part.record_count for row in rows_of_parts(root, 7, monkeypatch) for part in row.parts)
        == 240
    )


class Chains(list):
    """Chains of a stretch that count how often they are gone through."""

    looks = 0

    def __iter__(self):
        Chains.looks += 1
        return super().__iter__()


def test_a_task_of_many_files_goes_through_each_a_few_times(tmp_path, monkeypatch):
    make_sparse_log(tmp_path, 100, file_size=MiB, records_per_file=1)
    places = list_store(str(tmp_path), StoreConfig())
    _, (task,), _ = audit_plan.plan_tasks(places, StoreConfig(), frozenset(), 256 * MiB, 0)
    monkeypatch.setattr(
        audit_work, "Stretch", lambda *where, is_gone: Stretch(*where, Chains(), is_gone=is_gone)
    )
    monkeypatch.setattr(Chains, "looks", 0)
    rows = sum(len(batch) for batch in audit_work.read_task(task))
    assert (len(task.cuts), rows) == (100, 4)  # of three queues, and of the log
    assert len(task.cuts) <= Chains.looks < 5 * len(task.cuts)


def test_messages_of_many_queues_open_no_file_each(tmp_path, monkeypatch):
    root = tmp_path / "store"
    with open_store(root, Clock()) as writer:
        for number in range(320):
            writer.put(Message(topic=f"Topic{number % 40}", body=b"x"), queue_id=number % 2)
        writer.wait_dispatched()
    reads = []
    real = queue_files.read_part
    monkeypatch.setattr(
        queue_files, "read_part", lambda *place: reads.append(place[1]) or real(*place)
    )
    rows = rows_of_parts(root, 10, monkeypatch)
    assert sum(part.record_count for row in rows for part in row.parts) == 320
    assert len(reads) < 320 / 4
    assert keys(audited(root).findings) == keys(verify_store(root).findings)


def test_the_zeros_after_the_entries_of_a_queue_are_not_read(tmp_path, monkeypatch):
    make_sparse_log(tmp_path, 2, file_size=MiB)
    sizes = []
    real = queue_files.read_part
    monkeypatch.setattr(
        queue_files, "read_part", lambda *part: sizes.append(part[3]) or real(*part)
    )
    report = audited(tmp_path)
    assert report.counts.entry_count == 6
    assert report.exit_code == 0
    assert sum(sizes) < MiB < QUEUE_FILE_SIZE


def test_a_queue_whose_entries_jump_keeps_its_runs_apart(monkeypatch, root, offsets):
    for number in (30, 34):
        overwrite(root, offsets[number] + 20, struct.pack(">q", 1_000 + number))
    rows = rows_of_parts(root, 7, monkeypatch)
    assert rows == rows_of_parts(root, 10**6, monkeypatch)
    assert keys(audited(root).findings) == keys(verify_store(root).findings)
    assert max(len(part.stated) for row in rows for part in row.parts) == 5


def test_a_task_of_many_queues_sends_parts_before_its_end(monkeypatch, root, offsets):
    flip_body(root, offsets)
    expected = audited(root)
    monkeypatch.setattr(audit_work, "MOST_PARTS", 1)
    assert len(rows_of_parts(root, 7, monkeypatch)) > 10
    assert audited(root) == expected


def test_a_log_of_many_queues_is_cut_into_fewer_tasks(monkeypatch, root):

    def task_count():
        return sum(bool(task.cuts) for task in tasks_of(root, 2_500))

    many = task_count()
    monkeypatch.setattr(audit_plan, "_LEAST_TASKS", 1)
    monkeypatch.setattr(audit_plan, "_ROWS", 4)  # of two queues
    assert task_count() == 3 < many


def test_the_second_pass_has_tasks_by_its_rows(monkeypatch, root):
    asked = []
    real = Frame.repartition
    monkeypatch.setattr(
        Frame, "repartition", lambda self, *how: asked.append(how[0]) or real(self, *how)
    )
    monkeypatch.setattr(audit_job, "_ROWS_PER_TASK", 4)
    audited(root)
    assert max(one for one in asked if isinstance(one, int)) > 3


def test_evidence_of_many_breaks_is_held_a_window_at_a_time(monkeypatch, root, offsets):
    for number in range(10, 230, 10):
        overwrite(root, offsets[number] + 100, b"\0\0")
    expected = keys(verify_store(root).findings)
    asked = []
    real = audit_job._Audit._stated

    def stated(self, facts, start, stop):
        asked.append(stop - start)
        return real(self, facts, start, stop)

    monkeypatch.setattr(audit_job._Audit, "_stated", stated)
    assert keys(audited(root).findings) == expected
    assert asked == [log_verdict.WINDOW_BYTES]
    asked.clear()
    monkeypatch.setattr(log_verdict, "WINDOW_BYTES", LOG_FILE_BYTES)
    assert keys(audited(root).findings) == expected
    assert len(asked) > 2
    assert max(asked) == LOG_FILE_BYTES


def test_two_attempts_of_a_task_side_by_side_find_the_same_and_write_nothing(root, offsets):
    """As speculation has it: rows are all that a task makes, and Spark takes those of one."""
    flip_body(root, offsets)
    tasks = tasks_of(root, 9_000)
    before = {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
    for task in tasks:
        both = zip(audit_work.read_task(task), audit_work.read_task(task), strict=True)
        assert all(one == other for one, other in both)
    assert {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))} == before


def test_blocks_and_chunks_of_other_sizes_find_the_same(monkeypatch, root, offsets):
    for damage in (flip_body, zero_entry, wrong_hash, lose_first_file):
        damage(root, offsets)
    expected = audited(root)
    monkeypatch.setattr(audit_work, "BLOCK_RECORDS", 7)
    monkeypatch.setattr(index_rules, "CHUNK_ITEMS", 5)
    assert expected.findings
    assert audited(root, max_split_bytes=20_000) == expected


def test_a_store_read_through_pyarrow_is_judged_alike(monkeypatch, root, offsets):
    """Of such files nothing is known of where their data ends."""
    for damage in (flip_body, wrong_entry, wrong_hash, lose_first_file):
        damage(root, offsets)
    expected = audited(root)
    elsewhere = ArrowFiles(LocalFileSystem())
    monkeypatch.setattr(place_files, "LocalFiles", lambda: elsewhere)
    assert audited(root, max_split_bytes=20_000) == expected


@pytest.mark.parametrize("seed", range(12))
def test_a_store_of_random_damage_is_judged_as_by_verify(seed, root):
    dice = random.Random(seed)
    paths = sorted(path for path in root.rglob("*") if path.name.isdigit() and path.is_file())
    for _ in range(dice.randint(1, 5)):
        path = dice.choice([one for one in paths if one.exists()])
        at, size = dice.randrange(path.stat().st_size or 1), dice.choice((1, 8, 40, 900))
        match dice.randrange(8):
            case 0:
                path.unlink()
            case 1:
                os.truncate(path, at)
            case 2 | 3:
                overwrite_file(path, at, bytes(size))
            case _:
                overwrite_file(path, at, dice.randbytes(size))
    report, verified = audited(root, CONFIG, max_split_bytes=9_999), verify_store(root, CONFIG)
    assert keys(report.findings) == keys(verified.findings)
    assert report.counts == verified.counts


# --- places and numbers -------------------------------------------------------------------------


def test_a_finding_names_its_place(root, offsets):
    flip_body(root, offsets)
    (damage,) = (f for f in audited(root).findings if f.kind == "log-damage")
    path = root / damage.file
    assert int(path.name) + damage.offset == damage.physical_offset == offsets[50]
    assert damage.expected != damage.found
    assert {damage.expected, damage.found} <= set(damage.reason.replace(",", "").split())
    (hole,) = (f for f in audited(root).findings if f.kind == "queue-hole")
    assert (hole.topic, hole.queue_id, hole.queue_offset) == ("Topic0", 0, 25)


def test_queue_offsets_that_nobody_states_are_counted(root, offsets):
    zero_records(root, offsets)
    shutil.rmtree(root / "consumequeue")
    report = audited(root)
    gaps = [f for f in report.findings if f.kind == "queue-gap"]
    assert [(f.topic, f.queue_offset, f.size // 20) for f in gaps] == [
        ("Topic0", 30, 2),
        ("Topic1", 30, 2),
    ]
    assert [row.gap_count for row in report.queues] == [2, 2]
    assert [(row.record_count, row.first_offset, row.last_offset) for row in report.queues] == [
        (118, 0, 119),
        (118, 0, 119),
    ]


def test_unwitnessed_bytes_are_those_outside_bodies(built):
    root, offsets = built
    counts = audited(root).counts
    assert counts.message_count == len(offsets)
    assert counts.message_bytes - counts.unwitnessed_bytes == 200 * len(offsets)


# --- consumers and checkpoint -------------------------------------------------------------------


def put_offsets(root, name, table):
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(json.dumps({"offsetTable": table}))


def test_a_consumer_in_front_of_a_queues_end_is_found(root):
    put_offsets(root, "consumerOffset.json", {"Topic0@readers": {"0": 121}, "Topic1@r": {"0": 120}})
    (found,) = audited(root).findings
    assert (found.kind, found.severity.value) == ("consumer-ahead", "warning")
    assert (found.topic, found.queue_id, found.queue_offset) == ("Topic0", 0, 121)
    assert (found.expected, found.found) == ("0 to 120", "121")
    assert "The group goes on at the queue's end" in found.action


def test_a_consumer_whose_messages_expired_is_a_note(root, offsets):
    lose_first_file(root, offsets)
    put_offsets(root, "consumerOffset.json", {"Topic0@readers": {"0": 3}, "Gone@readers": {"0": 9}})
    report = audited(root)
    assert kinds(report.findings) == ["consumer-behind"]
    assert report.exit_code == 0


def test_a_queue_that_does_not_exist_has_no_offset(root):
    put_offsets(root, "consumerOffset.json", {"Topic0@readers": {"7": 1, "0": 0}})
    assert kinds(audited(root).findings) == ["consumer-ahead"]
    shutil.rmtree(root / "consumequeue")  # the records still say that there is such a topic
    found = audited(root).findings
    assert keys(found) == keys(verify_store(root).findings)
    assert "consumer-ahead" in kinds(found)


def test_a_delay_level_in_front_of_its_queue_is_found(root):
    put_offsets(root, "delayOffset.json", {"3": 5})
    (found,) = audited(root).findings
    assert (found.kind, found.topic, found.queue_id) == ("consumer-ahead", "SCHEDULE_TOPIC_XXXX", 2)
    assert found.action.startswith("nothing to do")


def test_a_checkpoint_of_messages_that_are_gone_is_found(root, offsets):
    lose_last_file(root, offsets)
    report = audited(root)
    assert "checkpoint-ahead" in kinds(report.findings)
    assert report.exit_code == 4


# --- a store in use -----------------------------------------------------------------------------


def test_what_a_writer_has_not_finished_is_no_finding(tmp_path):
    root, clock = tmp_path / "store", Clock()
    with open_store(root, clock) as writer:
        put_all(writer, messages(100), clock)
        for message in messages(5, first=100):
            clock.now_ms += 1
            writer.put(message, queue_id=0)  # not dispatched
        assert (root / "abort").exists()
        report = audited(root)
        assert {finding.severity.value for finding in report.findings} <= {"note"}
        assert report.counts.message_count == 105
        assert is_locked(root)
    assert audited(root).findings == []


def before_reading(monkeypatch, happens):
    """Let something happen before a range of the log is read."""
    real = audit_work.scanned

    def scanned(cut):
        happens(cut)
        return real(cut)

    monkeypatch.setattr(audit_work, "scanned", scanned)


def is_locked(root):
    """Whether another process finds the store locked: closing a descriptor would drop the lock."""
    question = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
    )
    asked = run_python("-c", question, root / "lock")
    return asked.returncode != 0


def test_a_file_that_retention_takes_meanwhile_is_no_finding(monkeypatch, root):

    def vanish(cut):
        if cut.segment.base == 0:
            Path(cut.segment.path).unlink(missing_ok=True)

    before_reading(monkeypatch, vanish)
    report = audited(root)
    assert report.findings == []
    assert report.counts.min_physical_offset == LOG_FILE_BYTES


def test_queue_and_index_files_that_retention_takes_meanwhile_are_no_finding(tmp_path, monkeypatch):
    root = tmp_path / "store"
    offsets = build_store(root, 600, Clock())
    gone = 8 * LOG_FILE_BYTES
    assert offsets[400] < gone  # all of the first two queue files and of the first index file

    def retention(cut):
        if cut.segment.base == gone:  # the others have been read
            for base in range(0, gone, LOG_FILE_BYTES):
                (root / "commitlog" / file_name(base)).unlink()
            for topic in ("Topic0", "Topic1"):
                for base in (0, QUEUE_FILE_BYTES):
                    (root / "consumequeue" / topic / "0" / file_name(base)).unlink()
            min((root / "index").iterdir()).unlink()

    before_reading(monkeypatch, retention)
    monkeypatch.setattr(lock, "may_have_writer", lambda _: True)
    report = audited(root)
    assert report.findings == []
    assert report.counts.min_physical_offset == gone


def test_what_consumers_read_meanwhile_is_not_in_front_of_the_queue(monkeypatch, root):
    put_offsets(root, "consumerOffset.json", {"Topic0@readers": {"0": 120}})

    def read_on(_):
        put_offsets(root, "consumerOffset.json", {"Topic0@readers": {"0": 150}})

    before_reading(monkeypatch, read_on)
    assert audited(root).findings == []


# --- what an earlier log left -------------------------------------------------------------------


def test_records_of_an_earlier_log_are_no_messages(root, offsets):
    """The log was cut behind 200 records; behind zeros stand old ones that no queue knows."""
    overwrite(root, offsets[200], bytes(offsets[201] - offsets[200]))
    for number in range(200, 240):
        queue_offset = number // 2
        path = root / f"consumequeue/Topic{number % 2}/0" / file_name(0)
        path = path.with_name(file_name(queue_offset * 20 // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES))
        overwrite_file(path, queue_offset * 20 % QUEUE_FILE_BYTES, bytes(20))
    for number in range(201, 240):
        overwrite(root, offsets[number] + 56, struct.pack(">q", 1_600_000_000_000))
    reports = [audited(root, max_split_bytes=size) for size in SPLITS]
    assert reports.count(reports[0]) == len(SPLITS)
    assert set(kinds(reports[0].findings)) >= {"log-leftover", "log-tail"}
    assert reports[0].counts.leftover_count == 39
    assert reports[0].counts.message_count == 200
    assert reports[0].counts.leftover_count == verify_store(root).counts.leftover_count


# --- bad input ----------------------------------------------------------------------------------


def test_a_place_that_cannot_be_made_ends_an_audit_before_its_work(root, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    work = []
    monkeypatch.setattr(audit_job, "map_tasks", lambda *given: work.append(given))
    with pytest.raises(StoreError, match="file/out cannot be written: Not a directory"):
        audited(root, out=tmp_path / "file" / "out")
    assert not work


def test_a_store_without_log_files_is_a_finding(root):
    for path in (root / "commitlog").iterdir():
        path.unlink()
    for left in (root / "consumequeue", None):  # and then only known-ends says that there was one
        report = audited(root)
        (found,) = (one for one in report.findings if one.kind == "log-empty")
        assert "known-ends knows of a log up to" in found.reason
        assert report.exit_code == 4
        assert keys(report.findings) == keys(verify_store(root).findings)
        if left:
            shutil.rmtree(left)


def test_a_file_that_may_not_be_read_is_named(monkeypatch, root, offsets):
    forbidden = str(log_path(root, offsets[-1]))
    real = os.open

    def refuse(path, *arguments, **options):
        if str(path) == forbidden:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(place_files.os, "open", refuse)
    with pytest.raises(StoreError, match="cannot be read: Permission denied; let the user"):
        audited(root)


def test_an_index_of_a_length_that_no_store_has_is_said(root):
    os.truncate(index_file(root), 4_321)
    with pytest.raises(ConfigError, match="cannot be learnt"):
        audited(root)
    told = StoreConfig(max_hash_slot_num=100, max_index_num=400)
    assert "index-length" in kinds(audited(root, told).findings)


# --- what waits ---------------------------------------------------------------------------------

DELAY_QUEUE = "consumequeue/SCHEDULE_TOPIC_XXXX/17/" + file_name(0)
HALF_QUEUE = "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/" + file_name(0)


@pytest.mark.parametrize("name", ["delay", "transactions", "broker"])
def test_what_waits_in_a_store_of_java_is_no_finding(name):
    report = audited(golden_root(name))
    assert report.findings == []
    assert report.counts.entry_count > 0


@pytest.mark.parametrize("bit", [0, 3, 9, 20, 31, 40, 62])
def test_a_bit_of_a_due_time_that_flipped_is_found_by_audit_and_verify(tmp_path, bit):
    root = shutil.copytree(golden_root("delay"), tmp_path / "store")
    with (root / DELAY_QUEUE).open("r+b") as file:
        file.seek(20 * 4 + 12)
        [due_ms] = struct.unpack(">q", file.read(8))
        file.seek(20 * 4 + 12)
        file.write(struct.pack(">q", due_ms ^ (1 << bit)))
    report = audited(root)
    assert set(kinds(report.findings)) == {"queue-missing", "queue-wrong"}
    assert {found.queue_offset for found in report.findings} == {4}
    if bit % 20 == 0:
        assert keys(report.findings) == keys(verify_store(root).findings)


def test_half_messages_without_their_entry_are_found(tmp_path):
    root = shutil.copytree(golden_root("broker"), tmp_path / "store")
    overwrite_file(root / HALF_QUEUE, 20 * 5, struct.pack(">q", 7))
    report = audited(root)
    assert {(one.kind, one.topic, one.queue_offset) for one in report.findings} == {
        (kind, "RMQ_SYS_TRANS_HALF_TOPIC", 5) for kind in ("queue-missing", "queue-wrong")
    }


def test_offsets_of_transactions_in_front_of_their_queues_are_found(tmp_path):
    root = shutil.copytree(golden_root("broker"), tmp_path / "store")
    topic = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    put_offsets(root, "consumerOffset.json", {f"{topic}@CID_RMQ_SYS_TRANS": {"0": 13}})
    (found,) = audited(root).findings
    assert (found.kind, found.topic, found.queue_offset) == ("consumer-ahead", topic, 13)


@pytest.mark.parametrize("end", ["close", "abandon", None])
def test_a_writer_that_comes_while_a_store_is_audited_is_no_damage(tmp_path, monkeypatch, end):
    """Whether or not it has gone again before the audit ends."""

    def look(root, now_ms):
        return audited(root, now_ms=now_ms).findings

    look_beside_openings(tmp_path, end, look, monkeypatch, every=4)


def test_offsets_of_groups_are_not_ahead_of_queues_that_a_writer_fills_meanwhile(
    tmp_path, monkeypatch
):
    clock = Clock()
    with open_small(tmp_path, clock, **SIZES) as store:
        put(store, clock, 2)
        contents = audit_job.small_contents

        def after_more(places):
            put(store, clock, 20)
            return contents(places)

        monkeypatch.setattr(audit_job, "small_contents", after_more)
        assert audited(tmp_path, now_ms=clock.now_ms + 100_000).exit_code == 0
