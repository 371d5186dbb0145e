"""Queue offsets that cannot be: a header has no checksum, so one flipped bit forges them."""

import shutil
import struct
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, StoreConfig, repair_store, verify_store
from rocketstore.rules.findings import Finding, Severity
from support.reading import all_messages
from support.store_files import overwrite_file

MESSAGES = 250
QUEUE_OFFSET_AT = 20
CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000,
                     max_hash_slot_num=100, max_index_num=400)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with MessageStore.open(tmp_path / "store", CONFIG) as opened:
        for number in range(MESSAGES):
            opened.put(Message(topic="orders", body=b"%d" % number), queue_id=0)
    return tmp_path / "store"


def forge(store: Path, row: int, number: int) -> None:
    with MessageStore.open(store, read_only=True) as opened:
        [record] = opened.get("orders", 0, row, 1).messages
    forge_at(store / "commitlog" / f"{0:020d}", record.physical_offset, number)


def forge_at(path: Path, position: int, number: int) -> None:
    overwrite_file(path, position + QUEUE_OFFSET_AT, struct.pack(">q", number))


def impossible(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.kind == "queue-impossible"]


def served(store: Path) -> list[int]:
    with MessageStore.open(store, read_only=True) as opened:
        found = [(one.queue_offset, int(one.body)) for one in all_messages(opened, "orders")]
    assert all(offset == number for offset, number in found)
    return [number for _, number in found]


@pytest.mark.parametrize("mode", ["rehearsed", "done"])
@pytest.mark.parametrize("number", [(1 << 41) + 40, 1_000_000, (1 << 50) + 40])
def test_a_number_that_cannot_be_gets_no_entry(store, number, mode):
    forge(store, 40, number)
    [found] = impossible(verify_store(store).findings)
    assert found.severity is Severity.DAMAGE
    assert str(number) in found.reason
    report = repair_store(store, dry_run=mode == "rehearsed", now_ms=1)
    assert len(impossible(report.remaining)) == 1
    if mode == "done":
        assert served(store) == [n for n in range(MESSAGES) if n != 40]
        assert not repair_store(store, now_ms=2).actions
    assert len(list((store / "consumequeue" / "orders" / "0").iterdir())) == 3


@pytest.mark.parametrize("row", [0, 1, 100, MESSAGES - 1])
def test_queues_that_are_built_again_do_not_begin_or_go_on_at_such_a_number(store, row):
    forge(store, row, 1 << 41)
    shutil.rmtree(store / "consumequeue")
    report = repair_store(store, now_ms=1)
    assert len(impossible(report.remaining)) == 1
    assert served(store) == [n for n in range(MESSAGES) if n != row]


@pytest.mark.parametrize("forged", [True, False])
def test_a_queue_s_first_record_alone_in_its_file_is_judged_by_the_next(tmp_path, *, forged):
    store = tmp_path / "store"
    small = StoreConfig(mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=2000,
                        max_hash_slot_num=100, max_index_num=400)  # fmt: skip
    with MessageStore.open(store, small) as opened:
        for number in range(20):
            opened.put(Message(topic="orders", body=b"%04d" % number * 500), queue_id=0)
    [*_, size] = [path.stat().st_size for path in (store / "commitlog").iterdir()]
    for number in [0] if forged else range(20):
        forge_at(store / "commitlog" / f"{number * size:020d}", 0, 7_000_000_000 + number)
    shutil.rmtree(store / "consumequeue")
    report = repair_store(store, now_ms=1)
    assert len(impossible(report.remaining)) == forged
    with MessageStore.open(store, read_only=True) as opened:
        first = 1 if forged else 7_000_000_000
        assert opened.min_offset("orders", 0) == first
        assert opened.max_offset("orders", 0) == (20 if forged else first + 20)
        [message] = opened.get("orders", 0, first, 1).messages
    assert message.body[:4] == b"%04d" % forged


def test_the_only_record_of_a_queue_is_believed(store):
    with MessageStore.open(store) as opened:
        single = opened.put(Message(topic="single", body=b"x"), queue_id=0)
    at = single.physical_offset
    forge_at(store / "commitlog" / f"{0:020d}", at, 7_000_000_000)
    shutil.rmtree(store / "consumequeue")
    report = repair_store(store, now_ms=1)
    assert impossible(report.remaining) == []
    with MessageStore.open(store, read_only=True) as opened:
        assert len(opened.get("single", 0, 7_000_000_000).messages) == 1


@pytest.mark.parametrize(
    "numbers", [(7 << 30, 9 << 30), (7 << 30, (7 << 30) + 1), (9 << 30, 3), (-5, 9 << 30)]
)
def test_verify_believes_the_beginnings_that_dispatch_believes(store, numbers):
    with MessageStore.open(store) as opened:
        for number in numbers:
            result = opened.put(Message(topic="few", body=b"x"), queue_id=0)
            opened.wait_dispatched()
            forge_at(store / "commitlog" / f"{0:020d}", result.physical_offset, number)
    shutil.rmtree(store / "consumequeue")
    foretold = {found.reason for found in impossible(verify_store(store).findings)}
    with MessageStore.open(store):
        pass
    assert {found.reason for found in impossible(verify_store(store).findings)} == foretold


@pytest.mark.parametrize("row", [0, 1, 100, MESSAGES - 1])
def test_an_opening_that_dispatches_again_serves_every_other_message(store, row):
    forge(store, row, 1 << 41)
    shutil.rmtree(store / "consumequeue")
    following = MESSAGES  # also after the last one: ``known-ends`` knows that its number was given
    with MessageStore.open(store) as opened:
        result = opened.put(Message(topic="orders", body=b"%d" % following), queue_id=0)
    assert result.queue_offset == following
    assert served(store)[: MESSAGES - 1] == [n for n in range(MESSAGES) if n != row]


def test_a_queue_file_of_another_place_is_taken_away_however_far_it_is(store):
    queue = store / "consumequeue" / "orders" / "0"
    shutil.copy(queue / f"{2000:020d}", queue / f"{20_000_000_000_000:020d}")
    assert verify_store(store).is_damaged
    report = repair_store(store, now_ms=1)
    assert not report.is_damaged
    assert served(store) == list(range(MESSAGES))
    assert len(list(queue.iterdir())) == 3


def test_a_queue_whose_old_files_are_gone_may_begin_at_any_number(store):
    log = store / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    with MessageStore.open(store, read_only=True) as opened:
        rows = [m.physical_offset for at in range(0, MESSAGES, 10)
                for m in opened.get("orders", 0, at, 10).messages]  # fmt: skip
    for row, at in enumerate(dict.fromkeys(rows)):
        struct.pack_into(">q", content, at + QUEUE_OFFSET_AT, 5_000_000_000 + row)
    log.write_bytes(content)
    shutil.rmtree(store / "consumequeue")
    report = repair_store(store, now_ms=1)
    assert impossible(report.remaining) == []
    with MessageStore.open(store, read_only=True) as opened:
        assert opened.max_offset("orders", 0) == 5_000_000_000 + MESSAGES
        assert len(opened.get("orders", 0, 5_000_000_000, 10).messages) == 10
