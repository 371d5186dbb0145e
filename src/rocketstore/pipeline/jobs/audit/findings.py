"""What an audit has to say, as values: findings with severity, place, expected and found.

Kinds and severities are those of ``rocketstore store verify``; docs/guide/spark-audit.md lists
what only one of the two says.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Severity(Enum):
    """How bad a finding is, worst last."""

    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """A structure that can be rebuilt, or a doubt that was decided for keeping."""
    DAMAGE = "damage"
    """Bytes that were messages or belong to the store's own files are lost or disagree."""


class Finding(NamedTuple):
    """One thing that an audit saw.

    Attributes
    ----------
    kind
        Short name for programs, of the list in docs/guide/spark-audit.md.
    file
        Path below the store, ``""`` for the store as a whole.
    offset, size
        Byte range inside `file`; a size of 0 means the place only.
    topic, queue_id, queue_offset
        The queue, and the first queue offset that is concerned; None where none is.
    physical_offset
        Place in the log; None where none is.
    expected, found
        What was found against what was expected, as far as it is one value.
    reason
        The same as a sentence.
    action
        What to do.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the form of a JSON line and of a row of the table."""
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "file": self.file,
            "offset": self.offset,
            "size": self.size,
            "topic": self.topic,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "physicalOffset": self.physical_offset,
            "expected": self.expected,
            "found": self.found,
            "reason": self.reason,
            "action": self.action,
        }


class AuditCounts(NamedTuple):
    """What an audit counted.

    Attributes
    ----------
    message_count, message_bytes
        Intact records of the log, prepared and rollback records included, and their bytes.
    unwitnessed_bytes
        Bytes of intact records that no checksum covers: all but their bodies. The format protects
        nothing else, so a change there is seen only where it breaks the format or disagrees with
        an entry of a queue or of the index.
    damaged_bytes
        Bytes of the log, before its end, that are neither record nor blank, missing files included.
    leftover_count
        Whole records that an earlier, longer log left behind; not messages.
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

    def to_dict(self) -> dict[str, int]:
        """Return the form that ``--output json`` prints."""
        return {_camel(name): value for name, value in self._asdict().items()}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
