"""A dry run says what is wrong and what the repair then does, and writes nothing."""

import functools
import random
import shutil
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from rocketstore import Message, MessageStore, repair_store
from rocketstore.config import StoreConfig
from support.clock import START_MS, Clock
from support.golden import CRASH_CASES, golden_case
from support.oracle.codecs import encode_entry
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    build_store,
    copy_store,
    crashed,
    log_path,
    overwrite,
)
from support.store_parts import INDEX_LAYOUT

Policy = Literal["salvage", "compatible"]

COUNT = 200
NOW_MS = START_MS + 3_600_000
GOLDEN_NOW_MS = 1_795_240_000_000
SEEDS = range(24)


def contents(root: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def assert_dry_run_is_true(root: Path, policy: Policy, config: StoreConfig, now_ms: int) -> None:
    """Claim that a dry run changes nothing, makes no lock, and tells what the repair then does."""
    (root / "lock").unlink(missing_ok=True)
    before = contents(root)
    said = repair_store(root, policy=policy, dry_run=True, config=config, now_ms=now_ms)
    assert contents(root) == before
    done = repair_store(root, policy=policy, config=config, now_ms=now_ms)
    assert said.dry_run
    assert said.evidence is None
    assert (said.policy, said.findings, said.actions) == (done.policy, done.findings, done.actions)
    assert said.is_damaged == done.is_damaged
    assert said.remaining == done.remaining


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    root = tmp_path_factory.mktemp("healthy") / "store"
    return root, build_store(root, COUNT, Clock())


def flip(root: Path, offsets: list[int], chance: random.Random) -> None:
    for _ in range(chance.randint(1, 4)):
        at = chance.choice(offsets) + chance.randrange(300)
        overwrite(root, min(at, offsets[-1] + 200), chance.randbytes(chance.randint(1, 40)))


def tear(root: Path, offsets: list[int], chance: random.Random) -> None:
    overwrite(root, offsets[-chance.randint(1, 20)] + chance.randrange(90), bytes(300))
    crashed(root)


def lose_log_file(root: Path, offsets: list[int], chance: random.Random) -> None:
    log_path(root, chance.choice([offsets[COUNT // 2], offsets[-1]])).unlink()


def misplace_log_bytes(root: Path, offsets: list[int], chance: random.Random) -> None:
    path = log_path(root, chance.choice(offsets))
    content = path.read_bytes()
    how = chance.randrange(3)
    if how == 0:
        path.write_bytes(content[: chance.randrange(LOG_FILE_BYTES)])
    elif how == 1:
        path.write_bytes(content + chance.randbytes(100))
    else:
        path.with_name(f"{7 + int(path.name):020d}").write_bytes(content)


def break_queues(root: Path, offsets: list[int], chance: random.Random) -> None:
    for path in chance.sample(sorted((root / "consumequeue").glob("*/*/*")), 2):
        how = chance.randrange(4)
        content = bytearray(path.read_bytes())
        at = chance.randrange(len(content) - 100)
        if how == 0:
            path.unlink()
        elif how == 1:
            path.write_bytes(content[: at + 1])
        else:
            content[at : at + 60] = chance.randbytes(60) if how == 2 else bytes(60)
            path.write_bytes(content)


def break_index(root: Path, offsets: list[int], chance: random.Random) -> None:
    path = chance.choice(sorted((root / "index").iterdir()))
    if chance.random() < 0.5:
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        at = chance.randrange(len(content) - 200)
        content[at : at + 200] = chance.randbytes(200)
        path.write_bytes(content)


def break_checkpoint(root: Path, offsets: list[int], chance: random.Random) -> None:
    (root / "checkpoint").write_bytes(chance.randbytes(chance.choice([5, 4096])))


FAULTS = (
    flip, tear, lose_log_file, misplace_log_bytes, break_queues, break_index, break_checkpoint,
)  # fmt: skip


@pytest.mark.parametrize("policy", ["salvage", "compatible"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_dry_run_reports_what_the_repair_of_a_damaged_store_does(seed, policy, healthy, tmp_path):
    chance = random.Random(seed)
    root = copy_store(healthy[0], tmp_path / "store")
    for fault in chance.sample(FAULTS, chance.randint(1, 3)):
        try:
            fault(root, healthy[1], chance)
        except FileNotFoundError:  # an earlier fault took that file
            continue
    assert_dry_run_is_true(root, policy, CONFIG, NOW_MS)


@pytest.mark.parametrize("policy", ["salvage", "compatible"])
@pytest.mark.parametrize("case", CRASH_CASES)
def test_a_dry_run_reports_what_the_repair_of_a_golden_crash_does(case, policy, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(golden_case("crash") / case / "in", root)
    config = StoreConfig(
        max_hash_slot_num=INDEX_LAYOUT.slot_count, max_index_num=INDEX_LAYOUT.item_count
    )
    assert_dry_run_is_true(root, policy, config, GOLDEN_NOW_MS)


def test_a_dry_run_names_files_of_a_log_outside_the_store_as_the_repair_does(tmp_path):
    root, log = tmp_path / "store", tmp_path / "log"
    offsets = build_store(root, COUNT, Clock())
    (root / "commitlog").rename(log)
    path = log / log_path(root, offsets[-1]).name
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 100)
    config = msgspec.structs.replace(CONFIG, store_path_commit_log=str(log))
    said = repair_store(root, dry_run=True, config=config, now_ms=NOW_MS)
    assert any(str(log) in action for action in said.actions)
    assert_dry_run_is_true(root, "salvage", config, NOW_MS)


@pytest.mark.parametrize("count", [1, 2])
def test_a_compatible_end_in_a_damaged_range_takes_that_damage_with_it(count, healthy, tmp_path):
    """4.9 believes records that do not state their own address, which are damage here."""
    root, offsets = copy_store(healthy[0], tmp_path / "store"), healthy[1]
    for number in range(COUNT - 10, COUNT - 10 + count):
        overwrite(root, offsets[number] + 28, bytes(8))
    overwrite(root, offsets[COUNT - 10 + count], b"\xff" * 8)
    said = repair_store(root, policy="compatible", dry_run=True, config=CONFIG, now_ms=NOW_MS)
    assert said.counts.max_physical_offset == offsets[COUNT - 10]
    assert not said.remaining
    assert_dry_run_is_true(root, "compatible", CONFIG, NOW_MS)


LOST = encode_entry(1 << 30, 300, 0)  # of a log file that is gone, perhaps
GARBAGE = encode_entry(1 << 30, 1 << 30, 0)  # no record is as long


@pytest.mark.parametrize(
    ("topic", "first", "entries", "left"),
    [
        ("orders", 10, GARBAGE + GARBAGE, []),
        ("orders", 12, GARBAGE, []),
        ("orders", 10, LOST, [("queue-kept", 10, 1)]),
        ("orders", 12, LOST, [("queue-kept", 10, 3)]),
        ("orders", 10, LOST + GARBAGE + LOST + GARBAGE, [("queue-kept", 10, 3)]),
        ("orders", 4, LOST + GARBAGE, []),
        ("orders", 9, LOST, []),
        ("orders", 9, GARBAGE + GARBAGE, []),
        ("orders", 20, LOST, [("queue-kept", 10, 11)]),
        ("copies", 4, LOST + GARBAGE, []),
        ("copies", 9, LOST + LOST, [("queue-kept", 10, 1)]),
        ("copies", 12, GARBAGE, []),
    ],
)
def test_a_dry_run_knows_what_becomes_of_entries_without_a_record(
    tmp_path, topic, first, entries, left
):
    """Garbage goes, numbers that may have been given out stay given, and records get entries."""
    config = msgspec.structs.replace(CONFIG, enable_multi_dispatch=True)
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False) as store:
        for _ in range(10):
            store.put(Message(topic="orders", properties={"INNER_MULTI_DISPATCH": "copies"}), 0)
    path = tmp_path / "consumequeue" / topic / "0" / f"{0:020d}"
    before = path.read_bytes()
    content = bytearray(before)
    content[first * 20 : first * 20 + len(entries)] = entries
    path.write_bytes(content)
    said = repair_store(tmp_path, config, dry_run=True, now_ms=NOW_MS)
    done = repair_store(tmp_path, config, now_ms=NOW_MS)
    assert said.actions == done.actions
    assert said.remaining == done.remaining
    assert [(one.kind, one.offset // 20, one.size // 20) for one in done.remaining] == left
    assert path.read_bytes()[:200] == before[:200]


def one_first(work, items, *, most, first):
    """Do as threads may of which one is always the first to be done."""
    first %= len(items)
    done = [work(one) for one in [*items[first:], *items[:first]]]
    return done[len(items) - first :] + done[: len(items) - first]


@pytest.mark.parametrize("first", range(5))
def test_a_dry_run_knows_the_numbers_that_other_queues_records_have_in_a_queue_that_is_gone(
    tmp_path, monkeypatch, first
):
    """Whichever file of the log is looked at first."""
    config = msgspec.structs.replace(CONFIG, enable_multi_dispatch=True)
    with MessageStore.open(tmp_path, config, clock=Clock(), threads=False) as store:
        for properties in ({}, {"INNER_MULTI_DISPATCH": "mixed"}, {}):
            topic = "orders" if properties else "mixed"
            store.put(Message(topic=topic, properties=properties), 0)
            for _ in range(12):
                store.put(Message(topic="others", body=bytes(LOG_FILE_BYTES // 10)), 0)
    shutil.rmtree(tmp_path / "consumequeue" / "mixed")
    spread = functools.partial(one_first, first=first)
    monkeypatch.setattr("rocketstore.audit.store_audit.spread", spread)
    assert_dry_run_is_true(tmp_path, "salvage", config, NOW_MS)
