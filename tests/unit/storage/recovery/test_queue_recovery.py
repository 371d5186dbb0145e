"""Where the entries begin that recovery has to look at."""

from __future__ import annotations

import pytest

from rocketstore.format.queue_entry import QueueEntry
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from rocketstore.storage.recovery.queue_recovery import _first_entry_from
from rocketstore.units import QueueKey


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("count", range(13))
def test_the_first_entry_from_an_offset_is_found(tmp_path, first, count):
    table = ConsumeQueueTable(tmp_path, 100, disk=Disk(), log_min_offset=lambda: 0)
    queue = table.get_or_create(QueueKey("T", 0))
    for number in range(first, first + count):
        queue.put(number, QueueEntry(100 * number, 100, 0))
    begin = queue.first_offset if count else 0
    places = range(begin, queue.max_offset)  # a queue that begins late begins with fillers
    for limit in range(0, 100 * (first + count) + 101, 50):
        earlier = [number for number in places if queue.entry(number).physical_offset < limit]
        assert _first_entry_from(queue, limit) == begin + len(earlier)
