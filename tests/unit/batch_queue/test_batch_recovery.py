"""Batch queues after a crash, and as 5.3.1 left them: entered again as if built from nothing."""

import random
import shutil
import zlib
from pathlib import Path

import pytest

from rocketstore import GetMessageStatus, Message, MessageStore, StoreConfig, verify_store
from rocketstore.errors import StoreDamagedError
from rocketstore.format.batch_queue_entry import (
    BATCH_ENTRY_SIZE_BYTES,
    BatchEntry,
    decode_batch_entry,
    encode_batch_entry,
)
from rocketstore.format.known_ends import QueueEnds
from rocketstore.native.row import PutEntry
from rocketstore.rules.batch_entries import inner_place
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.log.commit_log import CommitLog
from rocketstore.storage.queues.batch_queues import MappedBatchQueue
from rocketstore.storage.recovery import recover
from rocketstore.storage.store import BaseStore
from rocketstore.units import MiB, QueueKey
from support.audit_runs import audited
from support.batch_stores import BATCHES, PLAIN, bodies, mark, open_batches, put
from support.clock import START_MS, Clock
from support.inside import parts_of
from support.pipeline_tables import read_table
from support.reading import pages_of
from support.rebuild_runs import rebuilt_here
from support.store_files import overwrite_file
from support.vectors import vector

ENTRY = BATCH_ENTRY_SIZE_BYTES
SMALL_INDEX = {"max_hash_slot_num": 100, "max_index_num": 400}
"""Instead of 420 MB, which a test made for its few keys."""


def everything(store: MessageStore, topic: str = BATCHES) -> list[tuple[int, str]]:
    return [one for page in pages_of(store, topic) for one in bodies(page)]


def queue_bytes(root: Path) -> bytes:
    files = sorted((root / "batchconsumequeue" / BATCHES / "0").iterdir())
    return b"".join(file.read_bytes() for file in files)


def fill(root: Path, count: int = 30, **settings: object) -> list[tuple[int, str]]:
    """Put batches of all sizes, with plain messages between; return what has to be read."""
    chance = random.Random(count)
    with open_batches(root, **settings) as store:
        for number in range(count):
            put(store, *[f"{number}.{part}" for part in range(chance.randint(1, 5))])
            put(store, "p", topic=PLAIN)
        return everything(store)


def crash(root: Path) -> None:
    (root / "abort").touch()


# --- what 5.3.1 wrote -----------------------------------------------------------------------------


def genuine(root: Path, *, with_queue: bool) -> list[tuple[int, str]]:
    """Lay down the store that 5.3.1 wrote (tests/golden/batch-queue)."""
    mark(root, BATCHES)
    log, entries = vector("batch-queue/log"), vector("batch-queue/entries")
    for path, content, size in (
        (root / "commitlog" / f"{0:020d}", log, 65536),
        (root / "batchconsumequeue" / BATCHES / "0" / f"{0:020d}", entries, 10 * ENTRY),
    ):
        if with_queue or path.parent.name == "commitlog":
            path.parent.mkdir(parents=True)
            path.write_bytes(content.ljust(size, b"\0"))
    return [(number, f"b{number}") for number in range(17)]


@pytest.mark.parametrize("with_queue", [True, False])
@pytest.mark.parametrize("crashed", [True, False])
def test_a_store_of_5_is_read_and_its_queue_built_again_is_the_same(root, with_queue, crashed):
    expected = genuine(root, with_queue=with_queue)
    if crashed:
        crash(root)
    config = StoreConfig(mapped_file_size_batch_queue=10 * ENTRY, **SMALL_INDEX)
    for _ in range(2):
        with MessageStore.open(root, config, clock=Clock(2**41), threads=False) as store:
            assert everything(store) == expected
            first = store.get(BATCHES, 0, 5).messages[0]
            assert (first.tags, first.keys, first.flag) == ("t1", ("k5",), 5)
            assert first.born_host == "10.0.0.1:1234"
            assert [one.queue_offset for one in store.find(BATCHES, "u4")] == [4]
            assert not store.problems
    assert queue_bytes(root)[: 7 * ENTRY] == vector("batch-queue/entries")
    assert not any(queue_bytes(root)[7 * ENTRY :])


@pytest.mark.parametrize("split", ["100", "1g"])
def test_spark_s_table_has_the_entries_that_5_wrote(root, split):
    genuine(root, with_queue=True)
    queues = root / "batchconsumequeue" / BATCHES
    shutil.copytree(queues / "0", queues / "1")
    raw = vector("batch-queue/entries")
    java = [decode_batch_entry(raw, at) for at in range(0, len(raw), ENTRY)]
    rows = read_table(root, table="batchqueue", maxSplitBytes=split, subscribe=BATCHES)
    assert [
        (row["topic"], row["queueId"], row["physicalOffset"], row["size"], row["tagsCode"],
         round(row["storeTimestamp"].timestamp() * 1000), row["baseOffset"], row["messageCount"])
        for row in rows
    ] == [(BATCHES, at, *one[:6]) for at in (0, 1) for one in java if one.is_written]  # fmt: skip
    assert len(rows) > 1
    assert read_table(root, table="batchqueue", subscribe="other") == []


def test_a_store_of_5_goes_on_where_it_ended(root):
    expected = genuine(root, with_queue=True)
    config = StoreConfig(**SMALL_INDEX)
    with MessageStore.open(root, config, clock=Clock(2**41), threads=False) as store:
        assert put(store, "x", "y").queue_offset == 17
    with MessageStore.open(root, config, clock=Clock(2**41), threads=False) as store:
        assert everything(store) == [*expected, (17, "x"), (18, "y")]


# --- after a crash --------------------------------------------------------------------------------


def test_a_store_that_nobody_closed_has_every_batch(root):
    store = open_batches(root)
    for number in range(5):
        put(store, f"{number}", "x")
    expected = everything(store)
    store.put_batch([Message(topic=BATCHES, body=b"undispatched")])
    store.abandon()
    with open_batches(root) as store:
        assert everything(store) == [*expected, (10, "undispatched")]
        assert put(store, "next").queue_offset == 11


HARM = {
    "cut": (20, bytes(12 * ENTRY)),
    "zeros": (0, bytes(32 * ENTRY)),
    "hole": (10, bytes(3 * ENTRY)),
    "garbage": (11, b"\x55" * ENTRY),
    "late": (30, encode_batch_entry(BatchEntry(1 << 40, 100, 0, 0, 1000, 1))),
}
LOST = {"queues": ".", "topic": BATCHES}
LEFT_BY_CRASHES = {"cut", "zeros", "late"}


@pytest.mark.parametrize("harm", [*HARM, *LOST])
@pytest.mark.parametrize("crashed", [True, False])
def test_what_a_crash_leaves_of_a_queue_is_built_again(root, harm, crashed):
    expected = fill(root, mapped_file_size_batch_queue=8 * ENTRY)
    whole = queue_bytes(root)
    top = root / "batchconsumequeue"
    if harm in HARM:
        place, wrong = HARM[harm]
        content = bytearray(whole)
        content[place * ENTRY : place * ENTRY + len(wrong)] = wrong
        for number, file in enumerate(sorted((top / BATCHES / "0").iterdir())):
            file.write_bytes(content[number * 8 * ENTRY : (number + 1) * 8 * ENTRY])
    else:
        shutil.rmtree(top / LOST[harm])
    if crashed or harm in LEFT_BY_CRASHES:
        crash(root)
    with open_batches(root) as store:
        assert everything(store) == expected
        assert put(store, "next").queue_offset == len(expected)
        assert everything(store, PLAIN) == [(number, "p") for number in range(30)]
    assert queue_bytes(root)[: 30 * ENTRY] == whole[: 30 * ENTRY]


@pytest.mark.parametrize("bit", [8 * byte + byte % 8 for byte in range(38)])
def test_a_bit_that_flips_in_the_last_entry_gives_no_number_twice_and_none_that_cannot_be(
    root, bit
):
    """Tags and times are no part of it: nothing is numbered, or found, by them."""
    expected = fill(root, count=4)
    whole = queue_bytes(root)
    (file,) = (root / "batchconsumequeue" / BATCHES / "0").iterdir()
    content = bytearray(whole)
    content[3 * ENTRY + bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    with open_batches(root) as store:
        assert everything(store) == expected
        assert put(store, "next").queue_offset == len(expected)
        store.wait_dispatched()
        assert everything(store) == [*expected, (len(expected), "next")]


def test_an_entry_of_an_earlier_log_amid_the_others_is_written_again_after_a_crash(root):
    expected, whole = fill(root, count=4), queue_bytes(root)
    (file,) = (root / "batchconsumequeue" / BATCHES / "0").iterdir()
    second = decode_batch_entry(whole, ENTRY)
    overwrite_file(file, ENTRY, encode_batch_entry(second._replace(message_count=1)))
    crash(root)
    with open_batches(root) as store:
        assert everything(store) == expected
    assert queue_bytes(root) == whole


def test_an_empty_last_file_is_filled_again(root):
    expected = fill(root, mapped_file_size_batch_queue=8 * ENTRY)
    max((root / "batchconsumequeue" / BATCHES / "0").iterdir()).write_bytes(b"")
    crash(root)
    with open_batches(root) as store:
        assert everything(store) == expected


def test_a_queue_ends_with_the_log(root):
    expected = fill(root)
    log = root / "commitlog" / f"{0:020d}"
    with open_batches(root) as store:
        cut = store.get(BATCHES, 0, 40).messages[0]
    content = bytearray(log.read_bytes())
    content[cut.physical_offset :] = bytes(len(content) - cut.physical_offset)
    log.write_bytes(content)
    crash(root)
    with open_batches(root) as store:
        assert everything(store) == expected[: cut.queue_offset]
        assert put(store, "x", "y").queue_offset == cut.queue_offset  # given again, as by 5.x
    with open_batches(root) as store:
        assert everything(store)[cut.queue_offset :] == [
            (cut.queue_offset, "x"), (cut.queue_offset + 1, "y"),
        ]  # fmt: skip


def leave_an_old_log(root: Path, *, later_ms: int) -> list[tuple[int, str]]:
    """Let the log go on from its sixth record, in front of the rest of an earlier one (4.9)."""
    with open_batches(root) as store:
        for number in range(20):
            put(store, f"{number}", "b", "c")
        cut = store.get(BATCHES, 0, 15).messages[0].physical_offset
    log = root / "commitlog" / f"{0:020d}"
    earlier = log.read_bytes()
    log.write_bytes(earlier[:cut].ljust(len(earlier), b"\0"))
    crash(root)
    with open_batches(root, clock=Clock(START_MS + later_ms)) as store:
        put(store, *"more messages")
        put(store, "new")
        expected = everything(store)
        end = store.max_physical_offset
    log.write_bytes(log.read_bytes()[:end] + earlier[end:])
    crash(root)
    return expected


@pytest.mark.parametrize("later_ms", [0, 1000])
def test_batches_that_an_earlier_log_left_are_no_messages(root, later_ms):
    expected = leave_an_old_log(root, later_ms=later_ms)
    now_ms = START_MS + 5000
    found = verify_store(root, now_ms=now_ms).findings
    (verified,) = (one for one in found if one.kind.startswith("log-l"))
    assert verified.kind == "log-leftover"
    assert not any(one.kind.startswith("queue") for one in found)
    report = audited(root, now_ms=now_ms)
    assert verified in report.findings
    assert not any(one.kind.startswith("queue") for one in report.findings)
    for size in (500, MiB):
        rebuilt = rebuilt_here(root, max_split_bytes=size, target=root.with_name(f"made-{size}"))
        assert rebuilt.record_count == report.counts.message_count
    with open_batches(root, clock=Clock(now_ms)) as store:
        assert everything(store) == expected
        assert put(store, "next").queue_offset == len(expected)
    with open_batches(root, clock=Clock(now_ms)) as store:
        assert everything(store) == [*expected, (len(expected), "next")]


def test_batch_queues_are_recovered_before_recovery_reports_whatever_class_opens_the_store(root):
    expected = fill(root, 3)
    shutil.rmtree(root / "batchconsumequeue")
    crash(root)
    with BaseStore.open(root, StoreConfig.small(), clock=Clock(), threads=False) as store:
        assert store.recovery.queue_offsets[QueueKey(BATCHES, 0)] == len(expected)
        assert everything(store) == expected
        assert {path.name for path in (root / "consumequeue").iterdir()} == {PLAIN}


def test_a_file_of_a_wrong_length_is_an_error_that_names_it(root):
    fill(root, mapped_file_size_batch_queue=8 * ENTRY)
    file = min((root / "batchconsumequeue" / BATCHES / "0").iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreDamagedError, match=str(file)):
        open_batches(root)


# --- damage ---------------------------------------------------------------------------------------


def test_a_body_that_breaks_off_gives_the_messages_before_it(root):
    with open_batches(root) as store:
        put(store, *"abcd")
        put(store, *"ef")
        page = store.get(BATCHES, 0, 0)
        record = store.at_physical_offset(0)
        at = store.get_raw(BATCHES, 0, 0).records.find(record.raw_body)
        size = len(record.raw_body)
        assert page.skipped_entries == 0
    log = root / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    third = at + 2 * size // 4
    content[third + 16 : third + 20] = b"\x7f\xff\xff\xff"  # the length of a body
    content[8:12] = (zlib.crc32(content[at : at + size]) & 0x7FFFFFFF).to_bytes(4, "big")
    log.write_bytes(content)
    for _ in range(2):
        with open_batches(root) as store:
            page = store.get(BATCHES, 0, 0)
            assert bodies(page) == [(0, "a"), (1, "b"), (4, "e"), (5, "f")]
            assert (page.skipped_entries, page.next_offset) == (2, 6)
            assert bodies(store.get(BATCHES, 0, 3)) == [(4, "e"), (5, "f")]
        crash(root)


def test_a_record_that_is_lost_hides_no_other(root):
    with open_batches(root) as store:
        put(store, *"ab")
        second = put(store, *"cde")
        store.wait_dispatched()
        overwrite_file(root / "commitlog" / f"{0:020d}", second.physical_offset + 100, b"\xff")
        page = store.get(BATCHES, 0, 2)
        assert (page.status, page.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 5)
        put(store, "f")
    with open_batches(root) as store:
        page = store.get(BATCHES, 0, 0)
        assert bodies(page) == [(0, "a"), (1, "b"), (5, "f")]
        assert page.skipped_entries == 3
        page = store.get(BATCHES, 0, 2, max_messages=1)
        assert (bodies(page), page.next_offset) == ([(5, "f")], 6)
        assert store.get_raw(BATCHES, 0, 0).message_count == 2
    shutil.rmtree(root / "batchconsumequeue")  # without an entry its numbers are a gap
    with open_batches(root) as store:
        assert bodies(store.get(BATCHES, 0, 3)) == [(5, "f")]
        assert put(store, "g").queue_offset == 6


@pytest.mark.parametrize("number", range(40))
def test_any_bytes_in_a_queue_file_hang_and_crash_nothing(root, number):
    expected = dict(fill(root, 12))
    chance = random.Random(number)
    file = root / "batchconsumequeue" / BATCHES / "0" / f"{0:020d}"
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        at, size = chance.randrange(12 * ENTRY), chance.choice((1, 8, ENTRY))
        content[at : at + size] = chance.choice(
            (bytes(size), chance.randbytes(size), b"\xff" * size)
        )
    file.write_bytes(content[: 1024 * ENTRY])
    with open_batches(root) as store:
        at, stop = 0, min(store.max_offset(BATCHES, 0), 10**6)
        for at in range(min(stop, 60)):
            for message in store.get(BATCHES, 0, at).messages:
                assert expected[message.queue_offset] == message.body.decode()
        store.offset_at(BATCHES, 0, 5)
        list(store.queue_entries(BATCHES, 0, 1))
    crash(root)
    shutil.rmtree(root / "batchconsumequeue" / BATCHES)
    with open_batches(root) as store:
        assert dict(everything(store)) == expected


# --- where recovery begins late -------------------------------------------------------------------


LONG = {"mapped_file_size_commit_log": 4096}


def fill_long(root: Path, **settings: object) -> list[tuple[int, str]]:
    """Put batches into several files of the log over many hours; the checkpoint knows them all."""
    clock = Clock()
    sizes = LONG | {"mapped_file_size_batch_queue": 8 * ENTRY}
    with open_batches(root, clock=clock, **(sizes | settings)) as store:
        for number in range(60):
            put(store, f"{number}", "x")
            clock.now_ms += 3_600_000
        store.flush()
        return everything(store)


@pytest.mark.parametrize(
    ("harm", "is_known"),
    [
        *[(harm, True) for harm in ("no last entries", "no last file", "no first file")],
        *[(harm, True) for harm in ("no queue", "no topic")],
        *[(harm, False) for harm in ("no last file", "no first file", "no topic")],
    ],
)
def test_a_batch_queue_that_lost_a_part_long_ago_is_made_again(root, harm, is_known, monkeypatch):
    """`known-ends` tells, or the files: no recovery after a clean stop reads so far back."""
    monkeypatch.setattr(recover, "CLEAN_TAIL_BYTES", 4096)
    expected = fill_long(root)
    with open_batches(root, **LONG) as store:
        for _ in range(100):
            store.put(Message(topic=PLAIN, body=bytes(200)))
    whole = queue_bytes(root)
    queue = root / "batchconsumequeue" / BATCHES / "0"
    last = max(queue.iterdir())
    if harm == "no last entries":
        last.write_bytes(last.read_bytes()[: 2 * ENTRY].ljust(8 * ENTRY, b"\0"))
    elif harm == "no last file":
        last.unlink()
    elif harm == "no first file":
        min(queue.iterdir()).unlink()
    else:
        shutil.rmtree(queue if harm == "no queue" else queue.parent)
    if not is_known:
        (root / "known-ends").unlink()
    with open_batches(root, **LONG) as store:
        assert everything(store) == expected
        assert put(store, "next").queue_offset == len(expected)
    assert queue_bytes(root)[: 60 * ENTRY] == whole[: 60 * ENTRY]


@pytest.mark.parametrize("harm", ["hole", "no queues", "other entries", "no file"])
def test_what_was_lost_before_recovery_begins_is_built_again(root, harm):
    expected = fill_long(root)
    whole = queue_bytes(root)
    crash(root)
    files = sorted((root / "batchconsumequeue" / BATCHES / "0").iterdir())
    if harm == "no queues":
        shutil.rmtree(root / "batchconsumequeue")
    elif harm == "no file":
        files[3].unlink()
    elif harm == "hole":
        files[5].write_bytes(files[5].read_bytes()[: 3 * ENTRY].ljust(8 * ENTRY, b"\0"))
    else:
        files[5].write_bytes(files[4].read_bytes())
    with open_batches(root, clock=Clock(2**41), **LONG) as store:
        assert store.recovery.start > 5000
        assert everything(store) == expected
    assert queue_bytes(root)[: 60 * ENTRY] == whole[: 60 * ENTRY]


def test_retention_follows_the_log(root):
    # No file of the queue begins where one of the log does.
    sizes = {"mapped_file_size_batch_queue": 7 * ENTRY}
    expected = fill_long(root, retention=True, file_reserved_time=24, **sizes)
    clock = Clock(START_MS + 60 * 3_600_000)
    settings = {**LONG, "retention": True, "file_reserved_time": 24}
    with open_batches(root, clock=clock, **settings) as store:
        store.delete_expired_files()
        for _ in range(5):
            parts_of(store).retention.run_once()
        first = store.min_offset(BATCHES, 0)
        assert 30 < first < 100
        assert everything(store) == expected[first:]
        assert store.get(BATCHES, 0, 0).next_offset == first
        left = sorted((root / "batchconsumequeue" / BATCHES / "0").iterdir())
        assert 0 < int(left[0].name) <= first // 2 * ENTRY
        assert put(store, "next").queue_offset == len(expected)
    with open_batches(root, clock=clock, **LONG) as store:
        assert everything(store) == [*expected[first:], (len(expected), "next")]


# --- one queue ------------------------------------------------------------------------------------


def test_an_entry_that_cannot_follow_is_refused_and_one_that_is_there_is_not_doubled(root):
    queue = MappedBatchQueue(root / "q", 4 * ENTRY, int, disk=Disk())
    first = BatchEntry(0, 100, 0, 5, 0, 3)
    assert queue.put(first) is PutEntry.WRITTEN
    assert queue.put(first) is PutEntry.REPEATED
    assert queue.put(BatchEntry(200, 100, 0, 5, 2, 3)) is PutEntry.REFUSED  # a number that is taken
    assert queue.put(BatchEntry(200, 100, 0, 5, 1 << 40, 3)) is PutEntry.REFUSED
    assert queue.put(BatchEntry(200, 100, 0, 5, 7, 3)) is PutEntry.WRITTEN
    assert (queue.stop_place, queue.max_offset, queue.entry(4).physical_offset) == (2, 10, 200)
    (file,) = queue.files.files
    assert file.flushed_position == 0
    assert queue.flush()
    assert file.flushed_position == 2 * ENTRY
    queue.drop()


@pytest.mark.parametrize(
    ("log_min", "known", "resume"),
    [
        (150, QueueEnds(6, 9), None),
        (150, QueueEnds(0, 9), 0),
        (150, None, 0),
        (300, QueueEnds(0, 9), None),
        (300, None, None),
        (150, QueueEnds(6, 10), 400),
    ],
)
def test_only_retention_takes_a_first_file_before_a_record_that_is_not_the_log_s_first(
    root, log_min, known, resume
):
    written = MappedBatchQueue(root / "q", 2 * ENTRY, int, disk=Disk())
    for number, at in enumerate((0, 100, 300)):
        written.put(BatchEntry(at, 100, 0, 5, 3 * number, 3))
    min((root / "q").iterdir()).unlink()
    written.drop()
    queue = MappedBatchQueue(root / "q", 2 * ENTRY, lambda: log_min, disk=Disk())
    queue.load(after_crash=False)
    assert queue.settle(1000, lambda _: False, known) == resume
    assert queue.max_offset == (9 if resume != 0 else 0)
    queue.drop()


def test_a_flush_of_the_store_is_one_of_its_batch_queues(root):
    with open_batches(root) as store:
        put(store, "a", "b")
        (queue,) = store.kinds[BATCHES].files()
        assert queue.files.files[0].flushed_position == 0
        store.flush()
        assert queue.files.files[0].flushed_position == ENTRY


@pytest.mark.parametrize(
    ("sys_flag", "properties", "place"),
    [
        (0, {}, (7, 1)),
        (0, {"INNER_NUM": "3", "INNER_BASE": "7"}, (7, 1)),
        (0x80, {"INNER_NUM": "3", "INNER_BASE": "7"}, (7, 3)),
        (0x80, {"INNER_NUM": "3", "INNER_BASE": "8"}, (-1, 0)),
        (0x80, {"INNER_NUM": "0", "INNER_BASE": "7"}, (-1, 0)),
        (0x80, {"INNER_NUM": "32768", "INNER_BASE": "7"}, (-1, 0)),
        (0x80, {"INNER_NUM": "-3", "INNER_BASE": "7"}, (-1, 0)),
        (0x80, {"INNER_BASE": "7"}, (-1, 0)),
        (0x80, {"INNER_NUM": "3", "INNER_BASE": "x"}, (-1, 0)),
    ],
)
def test_a_record_says_which_messages_it_holds_or_none(sys_flag, properties, place):
    assert inner_place(sys_flag, 7, properties) == place


def test_a_record_for_several_queues_makes_none_of_a_batch_topic(root):
    with open_batches(root, enable_multi_dispatch=True) as store:
        put(store, "a", "b")
        properties = {"INNER_MULTI_DISPATCH": f"{BATCHES},other"}
        kind = store.kinds.pop(BATCHES)  # as a store that knows no kinds
        store.put(Message(topic=PLAIN, body=b"p", properties=properties))
        store.kinds[BATCHES] = kind
        store.wait_dispatched()
        assert bodies(store.get("other", 0, 0)) == [(0, "p")]
        assert everything(store) == [(0, "a"), (1, "b")]
        assert not (root / "consumequeue" / BATCHES).exists()


def test_a_batch_whose_place_another_thread_took_gets_the_next_one(root, monkeypatch):
    with open_batches(root) as store:
        put(store, "a")
        append = CommitLog.append

        def late(*arguments: object) -> object:
            monkeypatch.undo()
            put(store, "faster")
            return append(*arguments)

        monkeypatch.setattr(CommitLog, "append", late)
        assert put(store, "b", "c").queue_offset == 2
        assert everything(store) == [(0, "a"), (1, "faster"), (2, "b"), (3, "c")]
