"""The numbers that a message gets in its extra queues, under the append lock (spec F8).

Law: numbers have no gap and are given once, whoever puts into the same queue meanwhile, by its name
or as an extra one (K-L4): there is one counter for each queue, which recovery sets to the queue's
end (K-L2), and an append advances it only when its record is in the log.

How derived: MultiDispatch.wrapMultiDispatch and updateMultiQueueOffset of 4.9.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.format.properties import decode_properties
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.verification.extra_queues import (
    asked_queues,
    goes_on,
    with_numbers,
    without_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.config import StoreConfig
    from rocketstore.native.log_end import QueueCounter, Record
    from rocketstore.storage.log.commit_log import CommitLog
    from rocketstore.units import QueueKey


class ExtraQueues:
    """Gives records of `log` their numbers in extra queues; `light` are the light ones."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log, self._config = log, config
        self.light = self._light_of(log.counters)

    def _light_of(self, keys: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        return {key for key in keys if self._config.enable_lmq and key[0].startswith(LMQ_PREFIX)}

    def of(self, record: Record, own: QueueKey, *, refuses: bool) -> tuple[Record, list[QueueKey]]:
        """Return a record without numbers, and the extra queues that it goes to with `own`."""
        properties = decode_properties(record.properties)
        queues = asked_queues(properties, own, self._config, refuses=refuses)
        if not self._config.enable_multi_dispatch:
            return record, []
        is_on_its_way = goes_on(own.topic) and record.places > 0
        return _described(record, without_numbers(record.properties)), queues * is_on_its_way

    def numbered(
        self, record: Record, queues: list[QueueKey], limit: int | None
    ) -> tuple[Record, list[QueueCounter]] | None:
        """Return a record with its next number in each queue, and the counters; see `append`.

        None where that makes more light queues than the limit (K-L1).
        """
        fresh = self._light_of(queues) - self.light
        if fresh and limit is not None and len(self.light) + len(fresh) > limit:
            return None
        self.light |= fresh
        counters = [self._log.counter(key) for key in queues]
        numbers = [counter.next_offset for counter in counters]
        return _described(record, with_numbers(record.properties, queues, numbers)), counters


def _described(record: Record, properties: bytes) -> Record:
    copy = record.with_body(record.body)
    copy.describe(properties, None if record.is_born_now else record.born)
    return copy
