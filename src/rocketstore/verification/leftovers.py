"""Leftovers: whole records that an earlier, longer log left after the end of this one.

A 4.9 broker that cuts its log after a crash only moves a position back; the bytes stay. What it
writes later may be shorter, and after the new end stand old records with the right magic, length,
address and checksum. They are not messages, yet nothing in one of them says so. What gives them
away is their relation to the records in front: their queue offsets were given out again since, and
their store times are older.

The same relation can come about honestly (a topic deleted and created again restarts at queue
offset 0, a clock is set back, a bit flips in a header, which no checksum covers), so the test is
narrow:

- It is asked only of a *stretch* (an unbroken chain of records) found by resynchronising after a
  break, or after another leftover. What an unbroken chain reaches from a kept record is kept.
- Prepared and rollback records, whose queue offset is always 0, neither testify nor are judged.
- A queue offset repeats only against the queue's present life (since its numbers last restarted),
  and only records count that agree with their neighbours, so one flipped header on either side
  convicts nobody.
- The time goes back only if the stretch *ends* older than the last trusted record: a log that went
  on after a clock was set back catches up.
- A break that is *bridged* (the broken record's own header leads to where the stretch begins) says
  that the log went on there; then older times alone are a doubt, which is kept and reported.

Law: pure functions over numpy columns; no file is read here. The reasons, case by case, are in
docs/decisions/0004-leftovers.md.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from rocketstore.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]

EVIDENCE_RECORD_LIMIT: Final = 262_144
"""Records of a stretch that are asked for repeats. Repeats stand at the head of each queue's
records, because an old log numbered its messages upwards too, so more would only cost memory."""

TRUSTED_RECORD_LIMIT: Final = 8_388_608
"""Trusted records that repeats are looked up in, newest first: more than 2 GiB of small messages.
What the present log wrote over an old one stands right in front of the leftovers."""

CLOCK_TOLERANCE_MS: Final = 24 * 3600 * 1000
"""A store time later than now by more than this is a damaged header, not a clock."""

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
    """What the test looks at, one row per record in log order.

    Attributes
    ----------
    queue_number
        Equal for normal records of the same topic and queue id, and only for those.
    is_normal
        False for prepared and rollback records.
    """

    queue_number: Int64Array
    queue_offset: Int64Array
    store_timestamp_ms: Int64Array
    is_normal: BoolArray

    def __len__(self) -> int:
        return int(self.queue_number.size)

    @classmethod
    def empty(cls) -> KeyColumns:
        """Return columns without rows."""
        numbers = np.empty(0, dtype=np.int64)
        return cls(numbers, numbers, numbers, np.empty(0, dtype=np.bool_))

    @classmethod
    def joined(cls, parts: list[KeyColumns]) -> KeyColumns:
        """Return the rows of `parts` one after the other."""
        if not parts:
            return cls.empty()
        return cls(
            np.concatenate([part.queue_number for part in parts]),
            np.concatenate([part.queue_offset for part in parts]),
            np.concatenate([part.store_timestamp_ms for part in parts]),
            np.concatenate([part.is_normal for part in parts]),
        )

    def rows(self, chosen: slice | BoolArray | Int64Array) -> KeyColumns:
        """Return some of the rows."""
        return KeyColumns(
            self.queue_number[chosen],
            self.queue_offset[chosen],
            self.store_timestamp_ms[chosen],
            self.is_normal[chosen],
        )


class Stretch(NamedTuple):
    """An unbroken chain of records inside one file, as the test needs it.

    Attributes
    ----------
    start, stop
        Physical offsets.
    is_linked
        It begins exactly where the stretch before it ended, at the start of a file after a BLANK.
    is_bridged
        The bytes in front of it begin with a header that leads here (`find_bridge`).
    head
        Its first records, at most `EVIDENCE_RECORD_LIMIT`.
    tail
        Its last records, at least the last few.
    """

    start: int
    stop: int
    is_linked: bool
    is_bridged: bool
    head: KeyColumns
    tail: KeyColumns


def normal_mask(sys_flag: Int64Array) -> BoolArray:
    """Return which records have a place in a queue: no prepared and no rollback records."""
    kind = sys_flag & TRANSACTION_MASK
    mask: BoolArray = (kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)
    return mask


class LeftoverJudge:
    """Decides stretch by stretch, in physical order, what is log and what an old log left behind.

    Call `decide` for each stretch, and after a kept one `trust` with all of its records.

    Parameters
    ----------
    now_ms
        The present time, by which an impossible store time is recognised.
    """

    def __init__(self, now_ms: int) -> None:
        self._latest_ms = now_ms + CLOCK_TOLERANCE_MS
        self._given: dict[int, list[tuple[Int64Array, Int64Array]]] = {}
        """Of each queue the trusted queue offsets, in log order, and the part each is of."""
        self._counts: list[int] = []
        self._trusted_count = self._first_part = 0
        self._last_time_ms: int | None = None
        self._leftover: KeyColumns | None = None
        self._has_decided = False

    def trust(self, records: KeyColumns) -> None:
        """Take records of a kept stretch as part of the log."""
        if not len(records):
            return
        times = records.store_timestamp_ms
        believable = np.flatnonzero((times > 0) & (times <= self._latest_ms))
        if believable.size:
            self._last_time_ms = int(times[believable[-1]])
        normal = records.rows(records.is_normal)
        for queue, offsets in _by_queue(normal):
            part = np.full(offsets.size, len(self._counts))
            self._given.setdefault(queue, []).append((offsets, part))
        self._counts.append(len(normal))
        self._trusted_count += len(normal)
        while self._trusted_count - self._counts[self._first_part] >= TRUSTED_RECORD_LIMIT:
            self._trusted_count -= self._counts[self._first_part]
            self._first_part += 1

    def decide(self, stretch: Stretch) -> Judgement:
        """Say what `stretch` is, given everything decided and trusted so far."""
        behind_leftover = self._leftover
        if not self._has_decided:
            judgement = Judgement(Verdict.LOG, "the first records of the log")
        elif stretch.is_linked and behind_leftover is None:
            judgement = Judgement(Verdict.LOG, "an unbroken chain leads here")
        else:
            judgement = self._test(stretch, behind_leftover)
        self._has_decided = True
        self._remember(stretch, judgement)
        return judgement

    def _remember(self, stretch: Stretch, judgement: Judgement) -> None:
        if judgement.verdict is Verdict.LEFTOVER:
            self._leftover = stretch.tail
        else:
            self._leftover = None

    def _test(self, stretch: Stretch, behind_leftover: KeyColumns | None) -> Judgement:
        normal = stretch.head.rows(stretch.head.is_normal)
        went_back = self._time_went_back(stretch)
        repeats = self._repeated_heads(normal)
        # A leftover testifies that the log had ended: nothing bridges over it.
        is_bridged = stretch.is_bridged and behind_leftover is None
        if self._convicts(
            repeats, len(normal), went_back=went_back, is_newer=self._begins_newer(stretch)
        ):
            also = " and the store time goes back" if went_back else ""
            leads = is_bridged and not went_back
            return Judgement(
                Verdict.DOUBTFUL if leads else Verdict.LEFTOVER,
                f"{repeats} queue offsets repeat{also}"
                + (", but the broken record in front leads here" if leads else ""),
            )
        if behind_leftover is not None and not self._stands_alone(stretch, behind_leftover):
            return Judgement(Verdict.LEFTOVER, "goes on from records of an earlier log")
        if went_back:
            # Prepared and rollback records are not judged: a half message may be stored late.
            kept = "only prepared or rollback records" if not len(normal) else None
            if is_bridged:
                kept = "the broken record in front leads here"
            return Judgement(
                Verdict.DOUBTFUL if kept else Verdict.LEFTOVER,
                "the store time goes back after a break" + (f", but {kept}" if kept else ""),
            )
        if repeats:
            return Judgement(Verdict.DOUBTFUL, "one queue offset repeats, the others do not")
        return Judgement(Verdict.LOG, "nothing repeats and the store time goes on")

    @staticmethod
    def _convicts(repeats: int, normal_count: int, *, went_back: bool, is_newer: bool) -> bool:
        if not repeats:
            return False
        # While the clock goes on, a single repeat among many records is a flipped header rather
        # than an old log, which repeats record after record.
        return went_back or not is_newer or repeats > 1 or repeats == normal_count

    def _stands_alone(self, stretch: Stretch, leftover: KeyColumns) -> bool:
        """Whether records after a leftover are newer than the log and do not continue it."""
        if not self._begins_newer(stretch):
            return False
        return not (stretch.is_linked and _continues(leftover, stretch.head))

    def _time_went_back(self, stretch: Stretch) -> bool:
        if self._last_time_ms is None:
            return False
        ends_ms = _median_time(stretch.tail, from_end=True)
        return ends_ms is not None and ends_ms < self._last_time_ms

    def _begins_newer(self, stretch: Stretch) -> bool:
        if self._last_time_ms is None:
            return True
        begins_ms = _median_time(stretch.head, from_end=False)
        return begins_ms is not None and begins_ms > self._last_time_ms

    def _repeated_heads(self, normal: KeyColumns) -> int:
        """Count records at the head of their queue's part of a stretch that repeat trusted ones."""
        count = 0
        for queue, asked in _by_queue(normal):
            given = self._given_of(queue)
            if not given.size:
                continue
            firm = asked if asked.size == 1 else asked[_agrees_with_neighbours(asked)]
            repeated = np.isin(firm, present_life(given))
            count += int(repeated.size if repeated.all() else np.argmin(repeated))
        return count

    def _given_of(self, queue: int) -> Int64Array:
        """Return the trusted queue offsets of a queue, oldest first."""
        pieces = self._given.get(queue, [])
        if not pieces:
            return np.empty(0, dtype=np.int64)
        offsets = np.concatenate([offsets for offsets, _ in pieces])
        parts = np.concatenate([part for _, part in pieces])
        begin = int(np.searchsorted(parts, self._first_part))
        pieces[:] = [(offsets[begin:], parts[begin:])]
        return offsets[begin:]


def _by_queue(normal: KeyColumns) -> Iterator[tuple[int, Int64Array]]:
    """Yield the queue offsets of each queue, in log order."""
    order = np.argsort(normal.queue_number, kind="stable")
    queues, firsts = np.unique(normal.queue_number[order], return_index=True)
    for queue, rows in zip(queues.tolist(), np.split(order, firsts[1:]), strict=False):
        yield queue, normal.queue_offset[rows]


def present_life(queue_offsets: Int64Array) -> Int64Array:
    """Return the firm queue offsets of one queue since its numbers last restarted.

    A queue restarts when its topic is deleted and created again. A restart is believed when the
    next record goes on from it; a lone number that goes back is a flipped header. Numbers that
    agree with neither neighbour are left out for the same reason.
    """
    if queue_offsets.size < 2:
        return queue_offsets
    steps = np.diff(queue_offsets)
    restarts = np.flatnonzero((steps[:-1] <= 0) & (steps[1:] == 1)) + 1
    since = queue_offsets[int(restarts[-1]) :] if restarts.size else queue_offsets
    return since if since.size < 2 else since[_agrees_with_neighbours(since)]


def _agrees_with_neighbours(queue_offsets: Int64Array) -> BoolArray:
    agrees = np.zeros(queue_offsets.size, dtype=np.bool_)
    goes_on = np.diff(queue_offsets) == 1
    agrees[1:] |= goes_on
    agrees[:-1] |= goes_on
    return agrees


def _continues(leftover: KeyColumns, head: KeyColumns) -> bool:
    """Whether most queues that both have go on where the leftover's records stopped."""
    last = _offset_by_queue(leftover, newest=True)
    first = _offset_by_queue(head, newest=False)
    shared = [first[queue] == last[queue] + 1 for queue in first if queue in last]
    return 2 * sum(shared) > len(shared)


def _offset_by_queue(records: KeyColumns, *, newest: bool) -> dict[int, int]:
    normal = records.rows(records.is_normal)
    numbers = normal.queue_number.tolist()
    pairs = zip(numbers, normal.queue_offset.tolist(), strict=True)
    return dict(pairs) if newest else dict(reversed(list(pairs)))


def _median_time(records: KeyColumns, *, from_end: bool) -> int | None:
    is_normal = records.is_normal
    times = records.store_timestamp_ms[is_normal] if is_normal.any() else records.store_timestamp_ms
    if not times.size:
        return None
    few = times[-TIME_WITNESS_COUNT:] if from_end else times[:TIME_WITNESS_COUNT]
    return int(np.sort(few)[few.size // 2])


# --- bridges ------------------------------------------------------------------------------------

RECORD_MAGICS: Final = frozenset({b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"})
BRIDGE_HEADER_BYTES: Final = 88
"""Bytes of a record up to and including the body's length, with IPv4 hosts."""


def find_bridge(view: memoryview, *, base: int, start: int, stop: int) -> bool:
    """Whether the broken bytes from `start` on testify that the log went on at `stop`.

    The record that should stand at `start` is damaged, but its header may still lead on: by its
    length, or by the lengths inside it, to `stop` or to another damaged record's header, and so
    on. A record torn by a crash leads nowhere: what stands at its end was not written after it.

    Parameters
    ----------
    view
        Bytes of one CommitLog file.
    base
        Physical offset of ``view[0]``.
    start, stop
        Physical offsets of the break, both inside the file.
    """
    position = start
    while position < stop:
        reached = next(
            (
                end
                for end in _ends_of_record(view, base, position)
                if position < end <= stop and (end == stop or _has_header(view, base, end))
            ),
            None,
        )
        if reached is None:
            return False
        position = reached
    return position == stop


def _has_header(view: memoryview, base: int, offset: int) -> bool:
    at = offset - base
    return (
        bytes(view[at + 4 : at + 8]) in RECORD_MAGICS
        and int.from_bytes(view[at + 28 : at + 36], "big") == offset
    )


def _ends_of_record(view: memoryview, base: int, offset: int) -> list[int]:
    """Where the record at `offset` says that it ends, if magic or address vouch for its header."""
    at = offset - base
    if at + BRIDGE_HEADER_BYTES > len(view):
        return []
    has_magic = bytes(view[at + 4 : at + 8]) in RECORD_MAGICS
    has_address = int.from_bytes(view[at + 28 : at + 36], "big") == offset
    if not (has_magic or has_address):
        return []
    ends = [offset + int.from_bytes(view[at : at + 4], "big")]
    inner = _inner_size(view, at)
    if inner is not None:
        ends.append(offset + inner)
    return ends


def _inner_size(view: memoryview, at: int) -> int | None:
    """Add up the lengths inside a record (magic V1), None where they leave the view."""
    flags = int.from_bytes(view[at + 36 : at + 40], "big")
    hosts = (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
    body_size_at = at + 68 + hosts
    topic_size_at = body_size_at + 4 + int.from_bytes(view[body_size_at : body_size_at + 4], "big")
    if topic_size_at >= len(view):
        return None
    properties_size_at = topic_size_at + 1 + view[topic_size_at]
    if properties_size_at + 2 > len(view):
        return None
    properties_size = int.from_bytes(view[properties_size_at : properties_size_at + 2], "big")
    return properties_size_at + 2 + properties_size - at
