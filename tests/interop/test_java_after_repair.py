"""What repair says that a 4.9 broker loses is what the genuine 4.9.8 store does lose."""

import base64
import shutil
from pathlib import Path

import msgspec
import pytest

from rocketstore import repair_store
from rocketstore.config import RecoveryPolicy
from rocketstore.message_store import MessageStore
from support.clock import START_MS, Clock
from support.java_store import JavaStore, message_json
from support.small_store import (
    CONFIG,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    build_store,
    crashed,
    log_path,
    messages,
    overwrite,
)
from support.store_files import overwrite_file

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

COUNT = 200
NOW_MS = START_MS + 3_600_000
SIZES = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}


def served(root: Path) -> tuple[int, set[int]]:
    """Return where Java ends the log, and the numbers of the messages that it serves whole."""
    with JavaStore(root, SIZES) as store:
        store.wait_dispatched()
        _, end = store.positions()
        numbers = set()
        for topic in (0, 1):
            for message in store.read_queue(f"Topic{topic}"):
                number = 2 * message["queueOffset"] + topic
                wanted = messages(1, first=number)[0].body
                if message["body"] == base64.b64encode(wanted).decode("ascii"):
                    numbers.add(number)
    return end, numbers


def test_java_serves_everything_of_a_store_that_needed_no_cut(tmp_path):
    build_store(tmp_path, COUNT, Clock())
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    report = repair_store(tmp_path, config=CONFIG, now_ms=NOW_MS)
    assert report.lost_for_broker == []
    assert served(tmp_path) == (report.counts.max_physical_offset, set(range(COUNT)))


def test_java_drops_what_repair_says_that_it_drops(tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    broken = COUNT - 30
    overwrite(tmp_path, offsets[broken] + 120, b"\xff" * 8)
    crashed(tmp_path)
    (lost,) = repair_store(tmp_path, config=CONFIG, now_ms=NOW_MS).lost_for_broker
    assert (lost.verb, lost.start, lost.record_count) == ("drop", offsets[broken], 29)
    assert served(tmp_path) == (lost.start, set(range(broken)))


def test_java_serves_what_stands_after_damage_in_old_files(tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    overwrite(tmp_path, offsets[7] + 120, b"\xff" * 8)
    report = repair_store(tmp_path, config=CONFIG, now_ms=NOW_MS)
    assert report.lost_for_broker == []
    end, numbers = served(tmp_path)
    assert end == report.counts.max_physical_offset
    # Java serves the damaged record too: it checks no checksum on reads (K-D9).
    assert numbers == set(range(COUNT)) - {7}


@pytest.mark.parametrize("place", [0, 5])
def test_java_skips_what_repair_says_that_it_skips(place, tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    overwrite(tmp_path, offsets[2 * place] + 120, b"\xff" * 8)
    queue = tmp_path / "consumequeue" / "Topic0" / "0" / f"{0:020d}"
    overwrite_file(queue, 20 * place, bytes(20))
    (lost,) = repair_store(tmp_path, config=CONFIG, now_ms=NOW_MS).lost_for_broker
    assert lost.verb == "skip"
    passed = {
        number
        for number in range(2 * place + 2, COUNT, 2)
        if lost.start <= offsets[number] <= lost.stop and offsets[number] < LOG_FILE_BYTES
    }
    assert len(passed) == lost.record_count
    _, numbers = served(tmp_path)
    assert numbers == set(range(COUNT)) - {2 * place} - passed


def test_a_compatible_repair_leaves_java_nothing_to_lose(tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    overwrite(tmp_path, offsets[COUNT - 30] + 120, b"\xff" * 8)
    crashed(tmp_path)
    report = repair_store(tmp_path, policy="compatible", config=CONFIG, now_ms=NOW_MS)
    assert report.lost_for_broker == []
    assert served(tmp_path) == (offsets[COUNT - 30], set(range(COUNT - 30)))


@pytest.mark.parametrize("broken", [3, 90, COUNT - 30])
def test_java_recovers_a_damaged_store_to_what_compatible_recovery_gives(broken, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    offsets = build_store(ours, COUNT, Clock())
    overwrite(ours, offsets[broken] + 120, b"\xff" * 8)
    crashed(ours)
    shutil.copytree(ours, theirs)
    config = msgspec.structs.replace(CONFIG, recovery_policy=RecoveryPolicy.COMPATIBLE)
    with MessageStore.open(ours, config, clock=Clock(NOW_MS), threads=False) as store:
        end = store.recovery.end
        assert end == offsets[broken]
        entries = {key: store.max_offset(*key) for key in store.queues()}
    with JavaStore(theirs, SIZES) as java:
        assert java.positions() == (0, end)
        assert {key: offset[1] for key, offset in java.queues().items()} == entries


@pytest.mark.parametrize("kept", [COUNT, 1])
def test_java_finds_no_entry_in_queues_that_were_cut_to_whole_files(kept, tmp_path):
    offsets = build_store(tmp_path, COUNT + 4, Clock())
    overwrite(tmp_path, offsets[kept], b"\xff" * 8)
    crashed(tmp_path)
    clock, policy = Clock(NOW_MS), RecoveryPolicy.COMPATIBLE
    MessageStore.open(tmp_path, CONFIG, policy=policy, clock=clock, threads=False).close()
    with JavaStore(tmp_path, SIZES) as store:
        for topic in (0, 1):
            (result,) = store.put([message_json(f"Topic{topic}", b"new")])
            assert result["queueOffset"] == (kept + 1 - topic) // 2
            store.wait_dispatched()
            assert len(store.read_queue(f"Topic{topic}")) == result["queueOffset"] + 1


@pytest.mark.parametrize("how", ["repair", "open"])
def test_java_takes_kept_places_for_the_end_of_a_queue_and_goes_on(how, tmp_path):
    offsets = build_store(tmp_path, COUNT, Clock())
    last = log_path(tmp_path, offsets[-1])
    kept = {n for n, offset in enumerate(offsets) if offset < int(last.name)}
    last.unlink()
    if how == "repair":
        repair_store(tmp_path, config=CONFIG, now_ms=NOW_MS)
    else:
        MessageStore.open(tmp_path, CONFIG, clock=Clock(NOW_MS), threads=False).close()
    assert served(tmp_path)[1] == kept
    with JavaStore(tmp_path, SIZES) as store:
        (result,) = store.put([message_json("Topic0", b"new")])
        assert result["queueOffset"] == len([n for n in kept if n % 2 == 0])
        store.wait_dispatched()
        assert store.read_queue("Topic0")[-1]["body"] == base64.b64encode(b"new").decode("ascii")
