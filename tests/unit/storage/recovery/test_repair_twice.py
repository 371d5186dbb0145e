"""A second repair finds nothing to do, and a dry run reports what the repair does."""

from pathlib import Path

import pytest

from rocketstore import repair_store
from support.clock import TickingClock
from support.small_store import CONFIG, LOG_FILE_BYTES, build_store, crashed, log_path


def flip_body(root: Path, offset: int) -> None:
    path = log_path(root, offset)
    data = bytearray(path.read_bytes())
    data[offset % LOG_FILE_BYTES + 100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("is_crashed", [True, False])
@pytest.mark.parametrize("damaged", [[70], [204], [120], [200], [70, 200], [20, 150, 240]])
def test_a_second_compatible_repair_cuts_no_more(tmp_path, *, is_crashed, damaged):
    """After a crash 4.9 begins at one file, and at an earlier one after the next clean stop."""
    clock = TickingClock()  # a checkpoint counts only from three seconds on
    offsets = build_store(tmp_path, 260, clock)
    for number in damaged:
        flip_body(tmp_path, offsets[number])
    if is_crashed:
        crashed(tmp_path)
    at = {"now_ms": clock.now_ms + 1_000, "config": CONFIG}
    planned = repair_store(tmp_path, policy="compatible", dry_run=True, **at)
    first = repair_store(tmp_path, policy="compatible", **at)
    assert [loss for loss in first.lost_for_broker if loss.verb == "drop"] == []
    assert (planned.findings, planned.actions) == (first.findings, first.actions)
    assert planned.is_damaged == first.is_damaged
    second = repair_store(tmp_path, policy="compatible", **at)
    assert second.actions == []
    assert second.counts == first.counts
