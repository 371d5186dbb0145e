"""What a dispatcher has done so far, counted in its compiled loop and beside it."""

from operator import sub
from typing import Any, NamedTuple

from rocketstore.native.row import PutEntry
from rocketstore.storage.dispatch.dispatcher import Dispatcher


class DispatchCounts(NamedTuple):
    """What was dispatched since a dispatcher was made.

    Repeated are entries that stood there already, equal; refused are records without one because
    another entry stands there, or because topic, queue id or queue offset cannot be true; prepared
    and rollback records have no entry.
    """

    records: int
    entries_written: int
    entries_repeated: int
    entries_refused: int
    without_entry: int
    index_items: int


def counts_of(dispatcher: Dispatcher) -> DispatchCounts:
    """Return what a dispatcher has dispatched so far."""
    loop, decided = dispatcher._loop, dispatcher._decisions.entries
    return DispatchCounts(
        loop.records,
        loop.entries_written + decided[PutEntry.WRITTEN],
        loop.entries_repeated + decided[PutEntry.REPEATED],
        decided[PutEntry.REFUSED],
        loop.without_entry,
        loop.index_items,
    )


def dispatch_counted(dispatcher: Dispatcher, start: int, stop: int, **how: Any) -> DispatchCounts:
    """Dispatch a range for recovery, and return what was done."""
    before = counts_of(dispatcher)
    dispatcher.dispatch_range(start, stop, **how)
    return DispatchCounts._make(map(sub, counts_of(dispatcher), before))
