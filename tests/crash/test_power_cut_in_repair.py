"""The power goes in the middle of a repair: the next repair, or the next opening, ends it."""

import random
import shutil
from pathlib import Path

import pytest

from rocketstore import MessageStore, repair_store, verify_store
from rocketstore.format.file_name import file_name
from rocketstore.units import ByteRange
from support.fault_settings import base_seed
from support.fault_workload import (
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    check_reading,
    check_true,
    small_files,
    step_of,
    take_steps,
    tried_by,
)
from support.power_cut import PowerCutError, abandon, cut_after
from support.shadow_disk import ShadowDisk, Survival
from support.store_files import overwrite_file
from support.store_oracle import check_agreement, read_log
from support.trees import copy_tree

NOW_MS = 1_700_000_000_000
STEPS = 60
CUTS = 8
"""Moments per fault at which the power goes."""

NOWHERE = 0x1234
"""Where a broken queue entry points: no record begins there."""

CONFIG = small_files("ASYNC_FLUSH", max_msgs_num_batch=1000)
TRIED = tried_by(STEPS)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A store of several files of each kind, closed in order."""
    root = tmp_path_factory.mktemp("healthy") / "store"
    take_steps(root, CONFIG, STEPS, NOW_MS - 1_000_000)
    return root


def flip_in_log(root: Path) -> None:
    """Damage bodies in the middle, and the head of a record."""
    records = read_log(root / "commitlog", LOG_FILE_BYTES).records
    with_body = [record for record in records if len(record.body) > 20]
    for record in with_body[10:40:7]:
        overwrite_log(root, record.physical_offset + 100, b"\xff\x00\xff")
    overwrite_log(root, records[len(records) // 2].physical_offset + 4, b"\0")


def overwrite_log(root: Path, physical_offset: int, content: bytes) -> None:
    base = physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES
    overwrite_file(root / "commitlog" / file_name(base), physical_offset - base, content)


def garbage_tail(root: Path) -> None:
    end = read_log(root / "commitlog", LOG_FILE_BYTES).end
    overwrite_log(root, end + 50, b"garbage" * 30)


def wrong_queue_entries(root: Path) -> None:
    for path in sorted((root / "consumequeue").glob("*/*/*"))[::2]:
        overwrite_file(path, 5 * 20, NOWHERE.to_bytes(8, "big") + b"\x01" * 12)
        overwrite_file(path, 9 * 20, bytes(40))


def no_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders" / "1")


def broken_index(root: Path) -> None:
    path = min((root / "index").iterdir())
    overwrite_file(path, 300, b"\xff" * 2000)


def no_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def short_files(root: Path) -> None:
    for path in (
        max((root / "commitlog").iterdir()),
        min((root / "consumequeue" / "orders" / "0").iterdir()),
    ):
        path.write_bytes(path.read_bytes()[:777])


def everything(root: Path) -> None:
    for fault in (flip_in_log, garbage_tail, wrong_queue_entries, no_queue, broken_index):
        fault(root)


FAULTS = (
    flip_in_log, garbage_tail, wrong_queue_entries, no_queue, broken_index, no_index, short_files,
    everything,
)  # fmt: skip


def count_calls(root: Path) -> int:
    """Return how many calls of the disk a whole repair makes."""
    calls = 0

    def count(_call: str, _path: Path) -> None:
        nonlocal calls
        calls += 1

    repair_store(root, now_ms=NOW_MS, config=CONFIG, disk=ShadowDisk(root, hook=count))
    return calls


def cut_in_repair(root: Path, after: Path, number: int, chance: random.Random) -> None:
    """Repair `root` until the power goes before a call; leave what survives at `after`."""
    disk = ShadowDisk(root, hook=cut_after(number))
    with pytest.raises(PowerCutError):
        repair_store(root, now_ms=NOW_MS, config=CONFIG, disk=disk)
    disk.hook = lambda _call, _path: None
    after.mkdir()
    disk.cut(after, chance)


def contents(root: Path) -> dict[str, bytes]:
    """Return every byte of log, queues and index."""
    parts = ("commitlog", "consumequeue", "index")
    paths = [path for part in parts for path in (root / part).rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def check_repaired(root: Path, intact: set[int], lost: list[ByteRange]) -> None:
    """Open the store and assert that every intact record is there, and everything agrees."""
    with MessageStore.open(root, CONFIG, clock=lambda: NOW_MS + 10_000, threads=False) as store:
        content = check_agreement(
            root, log_file_bytes=LOG_FILE_BYTES, slot_count=INDEX_SLOTS, lost=lost
        )
        assert {record.physical_offset for record in content.records} == intact
        check_reading(store, check_true(content.records, TRIED))
    report = verify_store(root, CONFIG, now_ms=NOW_MS + 20_000)
    kinds = {finding.kind for finding in report.findings if finding.severity.value != "note"}
    allowed = {"log-damage", "queue-hole", "queue-kept"}
    if any(place.start == NOWHERE for place in lost):
        allowed.add("queue-wrong")
    assert kinds <= allowed, report.findings


@pytest.mark.parametrize("fault", FAULTS)
def test_a_repair_cut_short_is_ended_by_the_next_repair_or_opening(healthy, tmp_path, fault):
    damaged = tmp_path / "damaged"
    copy_tree(healthy, damaged)
    fault(damaged)
    content = read_log(damaged / "commitlog", LOG_FILE_BYTES)
    intact = {record.physical_offset for record in content.records}
    before = contents(damaged)
    calls = count_calls(copy_tree(damaged, tmp_path / "whole"))
    chance = random.Random(f"{fault.__name__} {base_seed()}")
    for number in sorted(chance.sample(range(calls), min(calls, CUTS))):
        root = copy_tree(damaged, tmp_path / "root")
        opened = tmp_path / "opened"
        cut_in_repair(root, opened, number, chance)
        repaired = copy_tree(opened, tmp_path / "repaired")
        try:
            repair_store(repaired, now_ms=NOW_MS + 5000, config=CONFIG)
            check_repaired(repaired, intact, content.damage)
            if contents(opened) != before:
                # An opening leaves it to a repair to clear the places of lost records.
                nowhere = ByteRange(NOWHERE, NOWHERE + 1)
                check_repaired(opened, intact, [*content.damage, nowhere])
        except BaseException as error:
            error.add_note(f"the power went before call {number} of {calls} of the repair")
            raise
        for store in (root, opened, repaired):
            shutil.rmtree(store)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_what_a_repair_calls_clean_is_on_the_disk(tmp_path, fault):
    root, after = tmp_path / "root", tmp_path / "after"
    root.mkdir()
    disk = ShadowDisk(root)
    store = MessageStore.open(root, CONFIG, clock=lambda: NOW_MS, disk=disk, threads=False)
    for step in range(1, STEPS + 1):
        step_of(10, 0, step).do(store)
        store.wait_dispatched()
    abandon(store)
    if fault is not None:
        fault(root)
    content = read_log(root / "commitlog", LOG_FILE_BYTES)
    intact = {record.physical_offset for record in content.records}
    repair_store(root, now_ms=NOW_MS, config=CONFIG, disk=disk)
    assert not (root / "abort").exists()
    after.mkdir()
    nothing = Survival(pages=0.0, names=0.0, in_order=True, torn=False)
    disk.cut(after, random.Random(0), nothing)
    check_repaired(after, intact, content.damage)
