"""Whether the entries of a batch queue are those that the records of the log call for.

Positions have no meaning there, so a queue is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.format.file_name import BATCH_CONSUME_QUEUE_DIRECTORY
from rocketstore.rules.batch_entries import batch_may_follow
from rocketstore.rules.findings import Finding, LastWriter, finding
from rocketstore.units import QueueKey, counted

if TYPE_CHECKING:
    from rocketstore.scan.batch_search import BatchEntryArray

UNREACHABLE: Final = "queue-impossible"
"""Kind of the finding for records that no queue can have."""


def batch_queue_findings(
    key: QueueKey,
    stored: BatchEntryArray,
    called: BatchEntryArray,
    log_min: int,
    writer: LastWriter,
) -> Iterator[Finding]:
    """Yield what is wrong with the entries of a queue, and with records that cannot have one.

    `stored` are the entries in its files, of which those of records before `log_min` have expired;
    `called` are those that its records call for, in the order of the log. Where the `writer` is
    live, one of the two may have been read before the other.
    """
    stored = stored[stored["physical_offset"] >= log_min]
    if writer.is_live and len(stored):  # retention may have been faster
        called = called[called["physical_offset"] >= stored["physical_offset"][0]]
    taken = _followed(called)
    where = f"{BATCH_CONSUME_QUEUE_DIRECTORY}/{key}"
    if len(taken) < len(called):
        lost = np.setdiff1d(called["physical_offset"], taken["physical_offset"])
        records = counted(len(called), "record")
        reason = (
            f"{len(lost)} of {records}: their queue offsets cannot come after those before them"
        )
        yield finding(UNREACHABLE, where, reason, queue=key, physical_offset=int(lost[0]))
    called = taken
    shorter = min(len(stored), len(called))
    differs = np.flatnonzero(stored[:shorter] != called[:shorter])
    same = int(differs[0]) if differs.size else shorter
    if same == max(len(stored), len(called)) or (writer.is_live and same == shorter):
        return
    kind = "queue-wrong"
    if same == len(stored):
        kind = "queue-missing"
    elif same == len(called):
        kind = "queue-beyond-log"
    entry = (stored if same == len(called) else called)[same]
    entries = counted(len(stored), "entry", "entries")
    found = finding(
        kind, where, f"{entries} of {counted(len(called), 'record')}; the first {same} agree",
        action="repair builds the queue again", queue=key, queue_offset=int(entry["base_offset"]),
        physical_offset=int(entry["physical_offset"]),
    )  # fmt: skip
    yield found if kind == "queue-beyond-log" else writer.judged(found)


def _followed(called: BatchEntryArray) -> BatchEntryArray:
    """Return the entries that dispatch accepts, each after the ones before it."""
    bases, places = (called[name].astype(np.int64) for name in ("base_offset", "physical_offset"))
    stops = bases + called["message_count"]
    follows = batch_may_follow(bases, np.append(0, stops)[:-1], places)
    if not follows.all():
        stop = 0
        for row in range(len(called)):
            follows[row] = batch_may_follow(bases[row], stop, places[row])
            stop = stops[row] if follows[row] else stop
    taken: BatchEntryArray = called[follows]
    return taken
