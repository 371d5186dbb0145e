"""A proof finds every difference of queues and index, and counts the reasons that are no fault."""

import shutil
import struct

import pytest

from rocketstore.errors import StoreLockedError
from rocketstore.pipeline.jobs.audit.audit_job import REASONS, prove_rebuild
from support.audit_runs import kinds, proved
from support.clock import Clock
from support.golden_stores import STORES, golden_root
from support.small_store import build_store, open_store, overwrite
from support.store_files import overwrite_file

EXPLAINED = {
    "cqext": {"extension"},
    "multidispatch": {"multi-dispatch"},
    "expired/files_removed": {"expired"},
    "expired/files_and_cq_removed": {"filler", "K-I8"},
    "crash/cq_behind": {"K-I8"},
    "crash/garbage_tail": {"K-I8"},
}


@pytest.fixture
def store(tmp_path):
    """A store, and the physical offsets of its messages."""
    return tmp_path / "store", build_store(tmp_path / "store", 300, Clock())


@pytest.mark.parametrize("name", STORES)
def test_what_java_wrote_differs_for_reasons_that_are_known(name):
    report = proved(golden_root(name))
    assert set(report.explained) <= set(REASONS)
    assert EXPLAINED.get(name, set()) <= set(report.explained)
    assert report.is_damaged == (name == "crash/bitflip_middle_last_file")
    if not name.startswith("crash"):
        assert report.findings == []


def test_a_store_of_ours_is_the_same(store):
    report = proved(store[0], max_split_bytes=7000)
    assert (report.findings, report.explained) == ([], {})
    assert report.counts.entry_count == report.counts.message_count == 300


def test_a_time_by_other_delay_levels_is_a_reason_and_a_hash_for_a_time_a_finding(tmp_path):
    root = shutil.copytree(golden_root("delay"), tmp_path / "store")
    assert proved(root).explained == {}
    queue = min((root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*"))
    with queue.open("r+b") as file:
        entry = file.read(20)
        place, size, time_ms = struct.unpack(">qiq", entry)
        file.seek(0)
        file.write(struct.pack(">qiq", place, size, time_ms + 1_000))
    assert proved(root).explained == {"delay-levels": 1}
    overwrite_file(queue, 0, struct.pack(">qiq", place, size, 77))
    report = proved(root)
    assert report.explained == {}  # K-S1: the message would be delivered at once
    assert {"queue-wrong"} <= set(kinds(report.findings))


def test_lost_records_are_damage_and_their_places_no_finding(store):
    root, offsets = store
    overwrite(root, offsets[50] + 100, b"\0\0")
    report = proved(root)
    assert report.is_damaged
    assert kinds(report.findings)[0] == "log-damage"
    assert set(kinds(report.findings)[1:]) <= {"index-wrong"}


def test_a_store_in_use_is_refused(tmp_path):
    with open_store(tmp_path / "store", Clock()), pytest.raises(StoreLockedError, match="in use"):
        prove_rebuild(None, tmp_path / "store")
