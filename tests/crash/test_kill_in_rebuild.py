"""`queue rebuild` and `index rebuild` are killed before each call of the disk; an opening ends it.

What a kill leaves is what was written so far, all of it: the page cache outlives the process. Power
cuts are the subject of `test_power_cut_in_repair`.
"""

import shutil
from pathlib import Path
from typing import Literal

import pytest

from rocketstore import Message, MessageStore, verify_store
from rocketstore.audit.repair import rebuild_store
from rocketstore.config import RecoveryPolicy
from support.clock import Clock
from support.configured_store import TINY, small_config
from support.fault_settings import stride
from support.power_cut import PowerCutError, cut_after
from support.shadow_disk import ShadowDisk
from support.small_store import bodies
from support.trees import copy_tree

CONFIG = small_config(**TINY, mapped_file_size_consume_queue=400)
TOPICS = ("A", "B")
COUNT = 45


def body(topic: str, number: int) -> bytes:
    return f"{topic}{number} ".encode() * 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root, clock = tmp_path_factory.mktemp("whole") / "store", Clock()
    with MessageStore.open(root, CONFIG, clock=clock, threads=False) as store:
        for topic in TOPICS:
            for number in range(COUNT):
                clock.now_ms += 10
                key = f"{topic}{number}"
                store.put(Message(topic=topic, body=body(topic, number), keys=(key,)), queue_id=0)
            clock.now_ms += 20_000
    assert len(list((root / "commitlog").iterdir())) >= 2
    return root, clock.now_ms


def killed(root: Path, what: Literal["queues", "index"], number: int, now_ms: int) -> bool:
    """Rebuild until call `number`; return whether there was one."""
    try:
        disk = ShadowDisk(root, hook=cut_after(number))
        rebuild_store(root, CONFIG, what=what, now_ms=now_ms, disk=disk)
    except PowerCutError:
        return True
    return False


@pytest.mark.parametrize("policy", list(RecoveryPolicy))
@pytest.mark.parametrize("what", ["queues", "index"])
def test_a_killed_rebuild_is_ended_by_the_next_opening(whole, tmp_path, what, policy):
    number, is_over, clock = 0, False, Clock(whole[1])
    while not is_over:
        root = copy_tree(whole[0], tmp_path / "store")
        is_over = not killed(root, what, number, clock.now_ms)
        try:
            check_whole(root, clock, policy)
        except BaseException as error:
            error.add_note(f"killed before call {number} of the rebuild")
            raise
        shutil.rmtree(root)
        number += stride(2 if policy is RecoveryPolicy.SALVAGE else 5)
    assert number > 30


def check_whole(root: Path, clock: Clock, policy: RecoveryPolicy) -> None:
    with MessageStore.open(root, CONFIG, clock=clock, threads=False, policy=policy) as store:
        for topic in TOPICS:
            assert bodies(store, topic) == {n: body(topic, n) for n in range(COUNT)}
            assert store.next_queue_offset(topic, 0) == COUNT
            for number in range(0, COUNT, 3):
                (found,) = store.find(topic, key=f"{topic}{number}")
                assert found.queue_offset == number
    report = verify_store(root, CONFIG, now_ms=clock())
    assert [finding for finding in report.findings if finding.severity.value != "note"] == []
