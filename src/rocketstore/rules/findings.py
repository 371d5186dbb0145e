"""Faults of a store: every kind with its severity and remedy, declared once.

Law: a finding says what, where (file and offset), how bad, and what to do next.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from rocketstore.units import QueueKey, counted


class Severity(Enum):
    """How bad a finding is, worst last."""

    NOTE = "note"
    """Worth knowing; nothing is wrong (a filler entry, a file that an earlier process made)."""

    WARNING = "warning"
    """A structure that can be rebuilt, or records of unclear origin that were kept."""

    DAMAGE = "damage"
    """Bytes that were messages or belong to the store's own files are lost or disagree."""


_N, _W, _D = Severity


class Kind(NamedTuple):
    """A kind of finding: its severity, and what to do or what repair does, by default."""

    severity: Severity
    action: str


DANGLING_HINT: Final = "bring back what the link points to, or remove the link and repair the store"
"""Remedy for a link to a file that is not there, for example on a disk that is not mounted."""

_KEEPS: Final = "they keep their places; a get steps over them"
_AGAIN: Final = "repair makes the index again"
_NOTHING: Final = "nothing to do"

KINDS: Final = {
    "log-damage": Kind(
        _D,
        "it stays as it is, and entries of lost records keep their places; another copy of the "
        "store may have the messages",
    ),
    "log-hole": Kind(
        _D,
        "bring the file back; a 4.9 broker that dispatches across it again hangs there. If "
        "it lies on another disk: --set storePathCommitLog=…",
    ),
    "log-tail": Kind(_W, "the next opening, or repair, keeps a copy and zeroes it"),
    "log-leftover": Kind(_W, "repair keeps a copy and zeroes them"),
    "log-doubtful": Kind(_W, "kept as messages"),
    "log-empty": Kind(_D, "bring the files back"),
    "dledger": Kind(
        _W, "the store is not opened for writing beside it; move it away to go on without it"
    ),
    "queue-missing": Kind(_D, "the next opening after a crash, or repair, writes them"),
    "queue-wrong": Kind(_D, "repair replaces them"),
    "queue-unwritten": Kind(_D, "repair puts fillers there"),
    "queue-beyond-log": Kind(
        _D, "bring it back; else the next opening, or repair under salvage, keeps their places only"
    ),
    "queue-hole": Kind(_D, _KEEPS),
    "queue-stale": Kind(
        _D,
        "the next opening, or repair under salvage, keeps their places and gives no number again",
    ),
    "queue-kept": Kind(_D, "no number is given again; a get will step over them"),
    "queue-conflict": Kind(_W, "the entries stay; store scan shows the other records"),
    "queue-gap": Kind(_W, "repair puts fillers there"),
    "queue-kind": Kind(
        _D,
        "the next opening, or repair, moves the directory to repair/ and builds its batch queues",
    ),
    "topic-kind": Kind(
        _D,
        "bring back the table that says so, or say it there: the store does not open until then, "
        "and repair leaves these queues as they are. If the topic has no batches, move them out of "
        "the store",
    ),
    "queue-impossible": Kind(
        _D, "they get no entry; store scan shows them, and their bodies are intact"
    ),
    "queue-ext": Kind(
        _N,
        "nothing to do here; entries that repair writes get units where enableConsumeQueueExt is "
        "set, else they hold the hash of the tags",
    ),
    "queue-filler": Kind(_N, _NOTHING),
    "index-header": Kind(_D, _AGAIN),
    "index-length": Kind(_D, _AGAIN),
    "index-item": Kind(_D, _AGAIN),
    "index-chain": Kind(_D, _AGAIN),
    "index-slot": Kind(_D, _AGAIN),
    "index-order": Kind(_D, _AGAIN),
    "index-wrong": Kind(_D, _AGAIN),
    "index-stale": Kind(_W, _AGAIN),
    "index-missing": Kind(_W, "repair makes them; the next opening after a crash the newest"),
    "index-extra": Kind(_W, "move it away"),
    "checkpoint": Kind(_W, "repair writes it again; until then recovery goes back further"),
    "checkpoint-ahead": Kind(
        _W, "the end of the log is lost, or its clock was set back: compare with a replica"
    ),
    "table": Kind(_W, ""),
    "small-file": Kind(_D, "move it out of the store"),
    "consumer-ahead": Kind(
        _W,
        "messages were lost, the topic was deleted and made again, or the offset is wrong. The "
        "group goes on at the queue's end, or at the beginning of one made again: start it before "
        "new messages are put, or it may pass over those",
    ),
    "position-log": Kind(
        _W,
        "nothing to do: when a master opens the store, its positions go back to where both logs "
        "agree, and some messages may be delivered again",
    ),
    "consumer-behind": Kind(_N, "nothing to do; messages before expired unread by this group"),
    "newer": Kind(_N, ""),
    "abort": Kind(_N, "the next opening recovers the store"),
}
"""Every kind that verify and audit report; docs/guide/repair.md says what each means. Files of the
log or a queue have kinds of their own, see `file_rules`."""

INDEX_REBUILT: Final = frozenset(
    kind for kind, one in KINDS.items() if kind.startswith("index-") and one.action == _AGAIN
) | {"index-missing"}
"""Kinds of findings that are gone when the index is made again."""


class Reported(msgspec.Struct, frozen=True, rename="camel"):
    """The base of a report and its parts, which have the names of their fields in JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the form that ``--output json`` prints."""
        form: dict[str, Any] = msgspec.to_builtins(self)
        return form


class Finding(Reported, frozen=True):
    """One thing that a check saw.

    Attributes
    ----------
    kind
        Short name for programs, of the list in docs/guide/repair.md.
    file
        Path below the store's root, ``""`` for the store as a whole.
    offset, size
        Byte range inside `file`; a size of 0 means the place only.
    reason
        What was found against what was expected.
    action
        What to do, or what repair would do or did.
    topic, queue_id, queue_offset
        The queue and the first queue offset concerned; None without.
    physical_offset
        Place in the log; None without.
    expected, found
        The two values, if the finding is about a single value.
    """

    severity: Severity
    kind: str
    file: str
    offset: int
    size: int
    reason: str
    action: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    expected: str | None = None
    found: str | None = None


def finding(  # noqa: PLR0913 - what, where, why; the rest have defaults
    kind: str, file: str, reason: str, *, offset: int = 0, size: int = 0,
    severity: Severity | None = None, action: str | None = None, queue: QueueKey | None = None,
    **more: Any,
) -> Finding:  # fmt: skip
    """Return a finding with the severity and the remedy of its kind, unless others are given."""
    usual = KINDS[kind]
    severity, action = severity or usual.severity, usual.action if action is None else action
    more |= queue._asdict() if queue else {}
    return Finding(severity, kind, file, offset, size, reason, action, **more)


class LastWriter(NamedTuple):
    """What is known about the writer of a store: entries that it has not written yet are no loss.

    It `is_live`, at work; or it ended out of order, None where not, and the next opening enters
    every record past the physical offset `dispatched_to`, or replaces its entry, and puts the items
    of the index from `indexed_from` on again.
    """

    is_live: bool = False
    dispatched_to: int | None = None
    indexed_from: int = 0

    def judged(self, found: Finding) -> Finding:
        """Return a finding of missing entries, as a warning where they are only not made yet."""
        reached, at = self.dispatched_to, found.physical_offset
        return found if reached is None or at is None or at <= reached else mended(found)

    def of_index(self, found: list[Finding], full_to: int = 1 << 63) -> list[Finding]:
        """Return damage of an index file by itself, as a warning where the next opening mends it.

        That is one that may have been written lately: it is not full, or its last item is of a
        record, at `full_to`, which is indexed again.
        """
        is_mended = self.dispatched_to is not None and full_to >= self.indexed_from
        return list(map(mended, found)) if is_mended else found


def mended(found: Finding) -> Finding:
    """Return a finding of what the next opening puts right, as a warning."""
    action = "nothing to do: the next opening writes them"
    return msgspec.structs.replace(found, severity=Severity.WARNING, action=action)


class StoreCounts(Reported, frozen=True):
    """What a full pass over a store counted.

    Attributes
    ----------
    message_count
        Intact records of the log, prepared and rollback records included.
    message_bytes
        Their bytes.
    unwitnessed_bytes
        Bytes of intact records that no checksum covers: all but their bodies. 4.9 protects
        nothing else, so a change there is seen only where it breaks the format or disagrees with
        an entry of a queue or of the index.
    damaged_bytes
        Bytes of the log, before its end, that are neither record nor blank, missing files included.
    leftover_count
        Whole records left by an earlier, longer log; not messages.
    entry_count
        Queue entries that point at an intact record.
    hole_count
        Queue entries that keep the place of a lost record, fillers included.
    index_item_count
        Items of the index.
    """

    message_count: int = 0
    message_bytes: int = 0
    unwitnessed_bytes: int = 0
    damaged_bytes: int = 0
    leftover_count: int = 0
    queue_count: int = 0
    entry_count: int = 0
    hole_count: int = 0
    index_item_count: int = 0
    min_physical_offset: int = 0
    max_physical_offset: int = 0


class VerifyReport(Reported, frozen=True):
    """Outcome of a check of a whole store."""

    findings: list[Finding]
    counts: StoreCounts

    @property
    def is_damaged(self) -> bool:
        """Whether damage is in the store now."""
        return any(one.severity is Severity.DAMAGE for one in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Whether something more than a note was found."""
        return any(one.severity is not Severity.NOTE for one in self.findings)

    @property
    def exit_code(self) -> int:
        """0 nothing wrong, 1 findings, 4 damage."""
        return 4 if self.is_damaged else int(self.has_warnings)


def state_of(findings: Sequence[Finding]) -> str:
    """Return a summary of findings in a few words, for the last line of a check."""
    found = counted(len(findings), "finding")
    if any(one.severity is Severity.DAMAGE for one in findings):
        return f"DAMAGED: {found}"
    if any(one.kind == "abort" for one in findings):
        return f"{found}, no damage; the next opening completes the store"
    return f"{found}, no damage" if findings else "nothing wrong"


def offsets_text(start: int, stop: int) -> str:
    """Return a range of queue offsets in words.

    >>> offsets_text(3, 4), offsets_text(3, 9)
    ('queue offset 3', 'queue offsets 3 to 8')
    """
    return f"queue offset {start}" if stop - start == 1 else f"queue offsets {start} to {stop - 1}"
