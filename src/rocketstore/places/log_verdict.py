"""Judge, by what tasks found of a log, which of its records an earlier log left.

Recovery judges stretch by stretch with the records at hand (decision 0004). Here the same judge
gets the queue offsets that tasks have found and the store times of chains, so that audit, rebuild
and ``store verify`` say the same. From the log itself only headers inside damage are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from rocketstore.places.files import offset_files, opened
from rocketstore.rules import runs
from rocketstore.rules.bridges import Headers
from rocketstore.rules.leftovers import KeyColumns, left_chains
from rocketstore.rules.log_rules import Chain, LogView, Stretch, log_view

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketstore.places.store_listing import StoreListing
    from rocketstore.rules.runs import Runs


WINDOW_BYTES: Final = 2**34
"""Of the log: so much evidence is held at a time, however many breaks there are."""


def judged_log(
    places: StoreListing,
    stretches: Iterable[Stretch],
    ask: Callable[[int, int], pa.Table],
    now_ms: int,
) -> tuple[LogView, Runs]:
    """Combine what tasks found of a log; return also the ranges of it that hold no messages.

    `ask` returns the queue offsets of the records in a range, as runs in the order of the log:
    target, piece (a physical offset in the records' chain), first, count; a negative one is how
    many messages a record of a batch topic has, which is a row by itself.
    """
    found, size = sorted(stretches, key=lambda one: one.start), places.sizes.commit_log_file_bytes
    gone = {one.base for one in found if one.is_gone}
    if places.is_live:
        # Retention may have taken the oldest files, and their entries, since they were read.
        listings = map(places.files.list, places.log_directories)
        there = {one.base for one in offset_files(itertools.chain.from_iterable(listings))}
        gone |= {file.base for file in places.log.files} - there
    present = [one for one in found if one.base not in gone]
    bases = [file.base for file in places.log.files if file.base not in gone]
    judge = partial(left_chains, source=_Evidence(places, ask), now_ms=now_ms)
    view = log_view(present, bases, size, judge)
    left = [(one.start, one.stop) for one in view.leftovers]
    return view, runs.joined([left, [(base, base + size) for base in gone]])


class _Evidence:
    """A `ChainSource` of the runs of queue offsets that tasks have found, and times of chains."""

    def __init__(self, places: StoreListing, ask: Callable[[int, int], pa.Table]) -> None:
        self._places, self._ask, self._window = places, ask, range(0)
        self._numbers: dict[object, int] = {}
        self._runs = np.empty((0, 4), np.int64)

    def _fetch(self, chain: Chain) -> None:
        """Fetch the records of a chain and of those after it, in place of others."""
        self._window = range(chain.start, max(chain.stop, chain.start + WINDOW_BYTES))
        table = self._ask(self._window.start, self._window.stop)
        targets = table.column("target").combine_chunks().dictionary_encode()
        known = [
            self._numbers.setdefault(target, len(self._numbers))
            for target in targets.dictionary.to_pylist()
        ]
        queues = np.array(known, np.int64)[targets.indices.to_numpy()]
        columns = [table.column(name).to_numpy() for name in ("piece", "first", "count")]
        self._runs = np.array([queues, *columns], np.int64).T

    def whole(self, chain: Chain) -> KeyColumns:
        times = [chain.last_ms] if chain.last_ms else []
        return self._keys(chain, [times, times], at_end=True)

    def head(self, chain: Chain) -> KeyColumns:
        return self._keys(chain, chain.head, at_end=False)

    def tail(self, chain: Chain) -> KeyColumns:
        return self._keys(chain, chain.tail, at_end=True)

    def is_bridged(self, start: int, stop: int) -> bool:
        file = self._places.file_at(start)
        if file is None or file != self._places.file_at(stop):
            return False
        with opened(self._places.location, file.path) as source:
            size = self._places.sizes.commit_log_file_bytes
            return Headers(source.read, file.base, size).lead(start, stop)

    def _keys(self, chain: Chain, times: list[list[int]], *, at_end: bool) -> KeyColumns:
        """Return the columns of a chain for the judge, with store times at one end of the rows.

        `times` are those of any records, which count where none has an entry, and of normal ones.
        """
        if chain.start not in self._window or chain.stop > self._window.stop:
            self._fetch(chain)
        inside = (self._runs[:, 1] >= chain.start) & (self._runs[:, 1] < chain.stop)
        queues, _, firsts, counts = self._runs[inside].T
        sizes = np.where(counts < 0, -counts, 1)
        counts = np.maximum(counts, 1)
        total = int(counts.sum())
        if not total:
            # Where no record calls for an entry, only the times count.
            stored = np.array(times[1] or times[0], np.int64)
            own = np.full(stored.size, -1 - chain.start)
            return KeyColumns(own, own, own, stored, np.full(stored.size, bool(times[1])))
        before = np.cumsum(counts) - counts
        offsets = np.repeat(firsts - before, counts) + np.arange(total)
        stored = np.zeros(total, np.int64)
        few = times[1][-total:] if at_end else times[1][:total]
        stored[total - len(few) if at_end else 0 :][: len(few)] = few
        queues, stops = np.repeat(queues, counts), offsets + np.repeat(sizes, counts)
        return KeyColumns(queues, offsets, stops, stored, np.ones(total, np.bool_))
