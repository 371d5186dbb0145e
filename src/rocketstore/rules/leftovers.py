"""Leftovers: whole records that an earlier, longer log left after the end of this one.

A 4.9 broker that cuts its log after a crash only moves a position back; the bytes stay. What it
writes later may be shorter, and after the new end stand old records with the right magic, length,
address and checksum. They are not messages, yet no field in them says so. They are recognised by
their relation to the records in front: their queue offsets were given out again since, and
their store times are older.

The same relation can have an innocent cause (a topic deleted and created again restarts at queue
offset 0, a clock is set back, a bit flips in a header, which no checksum covers), so the test is
narrow:

- It is asked only of a *stretch* (an unbroken chain of records) found by resynchronising after a
  break, or after another leftover. What an unbroken chain reaches from a kept record is kept.
- Prepared and rollback records, whose queue offset is always 0, neither testify nor are judged.
- A queue offset repeats only against the queue's present life (since its numbers last restarted),
  and only records count that agree with their neighbours, so a single flipped header on either side
  decides nothing.
- The time goes back only if the stretch *ends* older than the last trusted record: a log that went
  on after a clock was set back catches up.
- A break that is *bridged* (the broken record's own header leads to where the stretch begins) shows
  that the log went on there; then older times alone are not enough: the stretch is kept, and
  reported.

Law: pure functions over numpy columns; no file is read here. The reasons, case by case, are in
docs/decisions/0004-leftovers.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from rocketstore.rules import runs
from rocketstore.rules.log_rules import Chain, LeftChain, links

if TYPE_CHECKING:
    from rocketstore.native.row import BoolArray, Int64Array
    from rocketstore.rules.runs import Runs


EVIDENCE_RECORD_LIMIT: Final = 262_144
"""Records of a stretch that are checked for repeats. Repeats stand at the head of each queue's
records, because an old log numbered its messages upwards too, so more would only cost memory."""

TRUSTED_RECORD_LIMIT: Final = 8_388_608
"""Trusted records that repeats are looked up in, newest first: more than 2 GiB of small messages.
What the present log wrote over an old one stands right in front of the leftovers."""

CLOCK_TOLERANCE_MS: Final = 24 * 3600 * 1000
"""A store time later than now by more than this is a damaged header, not a wrong clock."""

TAIL_RECORD_COUNT: Final = 4096
"""Records at the end of a stretch from which its time and the ends of its queues are taken."""

TIME_WITNESS_COUNT: Final = 3
"""Records whose median is taken as the time at which a stretch begins or ends."""


class Verdict(Enum):
    """What a stretch of records is."""

    LOG = "log"
    DOUBTFUL = "doubtful"
    """Kept as part of the log, and reported."""
    LEFTOVER = "leftover"

    @property
    def is_kept(self) -> bool:
        """Whether the records count as messages."""
        return self is not Verdict.LEFTOVER


class Judgement(NamedTuple):
    """A verdict and the sentence that says why."""

    verdict: Verdict
    reason: str


class KeyColumns(NamedTuple):
    """The columns that the test looks at, one row per record in log order.

    `queue_number` is equal for normal records of the same topic and queue id, and only for those;
    `queue_stop` is the queue offset after a record, which may hold a batch; `is_normal` is false
    for prepared and rollback records.
    """

    queue_number: Int64Array
    queue_offset: Int64Array
    queue_stop: Int64Array
    store_timestamp_ms: Int64Array
    is_normal: BoolArray

    @property
    def record_count(self) -> int:
        """How many records these are."""
        return int(self.queue_number.size)

    @classmethod
    def joined(cls, parts: Sequence[KeyColumns]) -> KeyColumns:
        """Return the rows of `parts` one after the other."""
        none = np.empty(0, np.int64)
        empty = cls(none, none, none, none, none.astype(np.bool_))
        return cls._make(map(np.concatenate, zip(empty, *parts, strict=True)))

    def rows(self, chosen: slice | BoolArray) -> KeyColumns:
        """Return some of the rows."""
        return KeyColumns._make(column[chosen] for column in self)


class LeftoverJudge:
    """Decides stretch by stretch, in physical order, which are the log's and which an old log left.

    Call `decide` for each stretch, and after a kept one `trust` with all of its records. By
    `now_ms` an impossible store time is recognised.
    """

    def __init__(self, now_ms: int) -> None:
        self._latest_ms = now_ms + CLOCK_TOLERANCE_MS
        self._given: dict[int, list[tuple[Runs, Int64Array]]] = {}
        """Of each queue the trusted queue offsets, in log order, and the part each is of."""
        self._counts: list[int] = []
        self._trusted_count = self._first_part = 0
        self._last_time_ms: int | None = None
        self._leftover: KeyColumns | None = None
        self._has_decided = False

    def trust(self, records: KeyColumns) -> None:
        """Take records of a kept stretch as part of the log."""
        times = records.store_timestamp_ms
        believable = np.flatnonzero((times > 0) & (times <= self._latest_ms))
        if believable.size:
            self._last_time_ms = int(times[believable[-1]])
        normal = records.rows(records.is_normal)
        for queue, offsets in _by_queue(normal):
            part = np.full(len(offsets), len(self._counts))
            self._given.setdefault(queue, []).append((offsets, part))
        self._counts.append(normal.record_count)
        self._trusted_count += normal.record_count
        while self._trusted_count - self._counts[self._first_part] >= TRUSTED_RECORD_LIMIT:
            self._trusted_count -= self._counts[self._first_part]
            self._first_part += 1

    def decide(
        self, head: KeyColumns, tail: KeyColumns, *, is_linked: bool, is_bridged: bool
    ) -> Judgement:
        """Say what a stretch is, given everything decided and trusted so far.

        `head` and `tail` are its first records, at most `EVIDENCE_RECORD_LIMIT`, and its last few.
        It `is_linked` where it begins exactly where the one before it ended, at the start of a file
        after a BLANK; `is_bridged` where the bytes in front of it begin with a header that leads
        here (`bridges.Headers.lead`).
        """
        if not self._has_decided:
            judgement = Judgement(Verdict.LOG, "the first records of the log")
        elif is_linked and self._leftover is None:
            judgement = Judgement(Verdict.LOG, "an unbroken chain leads here")
        else:
            judgement = self._test(head, tail, is_linked=is_linked, is_bridged=is_bridged)
        self._has_decided = True
        self._leftover = None if judgement.verdict.is_kept else tail
        return judgement

    def _test(
        self, head: KeyColumns, tail: KeyColumns, *, is_linked: bool, is_bridged: bool
    ) -> Judgement:
        last_ms, leftover = self._last_time_ms, self._leftover
        begins_ms, ends_ms = _median_time(head, from_end=False), _median_time(tail, from_end=True)
        is_newer = last_ms is None or (begins_ms is not None and begins_ms > last_ms)
        went_back = last_ms is not None and ends_ms is not None and ends_ms < last_ms
        normal = head.rows(head.is_normal)
        repeats = self._repeated_heads(normal)
        # A leftover shows that the log had ended: no bridge leads over it.
        is_bridged = is_bridged and leftover is None
        # While the clock goes on, a single repeat among many records is a flipped header rather
        # than an old log, which repeats record after record.
        if repeats and (went_back or not is_newer or repeats > 1 or repeats == normal.record_count):
            also = " and the store time goes back" if went_back else ""
            leads = is_bridged and not went_back
            return Judgement(
                Verdict.DOUBTFUL if leads else Verdict.LEFTOVER,
                f"{repeats} queue offsets repeat{also}"
                + (", but the broken record in front leads here" if leads else ""),
            )
        goes_on = is_linked and leftover is not None and _continues(leftover, head)
        if leftover is not None and (goes_on or not is_newer):
            return Judgement(Verdict.LEFTOVER, "goes on from records of an earlier log")
        if went_back:
            # Prepared and rollback records are not judged: a half message may be stored late.
            kept = None if normal.record_count else "only prepared or rollback records"
            if is_bridged:
                kept = "the broken record in front leads here"
            return Judgement(
                Verdict.DOUBTFUL if kept else Verdict.LEFTOVER,
                "the store time goes back after a break" + (f", but {kept}" if kept else ""),
            )
        if repeats:
            return Judgement(Verdict.DOUBTFUL, "one queue offset repeats, the others do not")
        return Judgement(Verdict.LOG, "nothing repeats and the store time goes on")

    def _repeated_heads(self, normal: KeyColumns) -> int:
        """Count the records that repeat trusted ones at the head of each queue's part."""
        count = 0
        for queue, asked in _by_queue(normal):
            given = self._given_of(queue)
            if not len(given):
                continue
            firm = asked if len(asked) == 1 else asked[_agrees_with_neighbours(asked)]
            taken = runs.joined([present_life(given)])
            at = np.searchsorted(taken[:, 0], firm[:, 0], side="right") - 1
            repeated = (at >= 0) & (firm[:, 0] < np.append(taken[:, 1], 0)[at])
            count += int(repeated.size if repeated.all() else np.argmin(repeated))
        return count

    def _given_of(self, queue: int) -> Runs:
        """Return the trusted queue offsets of a queue, oldest first."""
        if not (pieces := self._given.get(queue, [])):
            return runs.no_runs()
        offsets = np.concatenate([offsets for offsets, _ in pieces])
        parts = np.concatenate([part for _, part in pieces])
        begin = int(np.searchsorted(parts, self._first_part))
        pieces[:] = [(offsets[begin:], parts[begin:])]
        return offsets[begin:]


def _by_queue(normal: KeyColumns) -> Iterator[tuple[int, Runs]]:
    """Yield the queue offsets of each queue, in log order: of each record its first, and its stop.

    They are pairs as of `runs`, but neither sorted nor disjoint.
    """
    offsets = np.stack((normal.queue_offset, normal.queue_stop), axis=1)
    order = np.argsort(normal.queue_number, kind="stable")
    queues, firsts = np.unique(normal.queue_number[order], return_index=True)
    for queue, rows in zip(queues.tolist(), np.split(order, firsts[1:]), strict=False):
        yield queue, offsets[rows]


def present_life(queue_offsets: Runs) -> Runs:
    """Return the firm queue offsets of one queue since its numbers last restarted.

    A queue restarts when its topic is deleted and created again. A restart counts when the next
    record continues it; a single number that goes back is a flipped header. Numbers that
    agree with neither neighbour are left out for the same reason.
    """
    if len(queue_offsets) < 2:
        return queue_offsets
    goes_back = np.diff(queue_offsets[:, 0]) <= 0
    restarts = np.flatnonzero(goes_back[:-1] & _goes_on(queue_offsets)[1:]) + 1
    since = queue_offsets[int(restarts[-1]) :] if restarts.size else queue_offsets
    return since if len(since) < 2 else since[_agrees_with_neighbours(since)]


def _goes_on(queue_offsets: Runs) -> BoolArray:
    goes_on: BoolArray = queue_offsets[1:, 0] == queue_offsets[:-1, 1]
    return goes_on


def _agrees_with_neighbours(queue_offsets: Runs) -> BoolArray:
    agrees = np.zeros(len(queue_offsets), dtype=np.bool_)
    goes_on = _goes_on(queue_offsets)
    agrees[1:] |= goes_on
    agrees[:-1] |= goes_on
    return agrees


def _continues(leftover: KeyColumns, head: KeyColumns) -> bool:
    """Whether most queues that both have go on where the leftover's records stopped."""
    last, first = (dict(_by_queue(one.rows(one.is_normal))) for one in (leftover, head))
    shared = [bool(first[one][0, 0] == last[one][-1, 1]) for one in first if one in last]
    return 2 * sum(shared) > len(shared)


def _median_time(records: KeyColumns, *, from_end: bool) -> int | None:
    is_normal = records.is_normal
    times = records.store_timestamp_ms[is_normal] if is_normal.any() else records.store_timestamp_ms
    if not times.size:
        return None
    few = times[-TIME_WITNESS_COUNT:] if from_end else times[:TIME_WITNESS_COUNT]
    return int(np.sort(few)[few.size // 2])


# --- the chains of a log ------------------------------------------------------------------------


class ChainSource(Protocol):
    """What is known about a log's chains."""

    def whole(self, chain: Chain) -> KeyColumns:
        """Return all records of a chain; only the last store time need be right."""
        ...

    def head(self, chain: Chain) -> KeyColumns:
        """Return its first records, at least, with the store times of the first few."""
        ...

    def tail(self, chain: Chain) -> KeyColumns:
        """Return its last records, at least, with the store times of the last few."""
        ...

    def is_bridged(self, start: int, stop: int) -> bool:
        """Whether a break is one inside a file, over which `bridges.Headers.lead`s."""
        ...


def left_chains(chains: Sequence[Chain], source: ChainSource, now_ms: int) -> list[LeftChain]:
    """Return the chains that an earlier log left, and those that are kept although unclear.

    A log without a break needs no judgement.
    """
    records, linked = links(chains)
    if all(linked):
        return []
    judge, none = LeftoverJudge(now_ms), KeyColumns.joined([])
    # For each chain, the first stretch whose records decide about it.
    counts = np.cumsum([0, *(one.record_count for one in records)])
    witnesses = np.searchsorted(counts, counts[:-1] - TRUSTED_RECORD_LIMIT, side="right") - 1
    firsts = np.maximum(witnesses, 0).tolist()
    left: list[LeftChain] = []
    trusted: list[int] = []
    kept_stop: int | None = None
    is_after_leftover = False
    for number, (chain, is_linked) in enumerate(zip(records, linked, strict=True)):
        head = tail = none
        is_bridged = False
        if not is_linked or is_after_leftover:
            for before in trusted:
                if before >= firsts[number]:
                    judge.trust(source.whole(records[before]))
            trusted = []
            head = source.head(chain).rows(slice(EVIDENCE_RECORD_LIMIT))
            tail = source.tail(chain).rows(slice(-TAIL_RECORD_COUNT, None))
            is_bridged = kept_stop is not None and source.is_bridged(kept_stop, chain.start)
        verdict, why = judge.decide(head, tail, is_linked=is_linked, is_bridged=is_bridged)
        is_after_leftover = not verdict.is_kept
        if verdict.is_kept:
            trusted.append(number)
            kept_stop = chain.stop
        if verdict is not Verdict.LOG:
            kind = f"log-{verdict.value}"
            left.append(LeftChain(chain.start, chain.stop, chain.record_count, why, kind))
    return left
