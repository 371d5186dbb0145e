"""The small files of a store: marker, checkpoint, JSON tables, each against the log and the queues.

The tables are compared with the queues as the records show them: a consumer that stands behind a
queue's end waits for messages that may never come, one in front of its beginning has lost some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import FormatError, StoreError
from rocketstore.format.checkpoint import CHECKPOINT_SIZE_BYTES, decode_checkpoint
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    CONFIG_DIRECTORY,
)
from rocketstore.format.metadata_json import (
    BACKUP_SUFFIX,
    CONSUMER_FILTERS_FILE,
    CONSUMER_OFFSETS_FILE,
    DELAY_OFFSETS_FILE,
    SUBSCRIPTION_GROUPS_FILE,
    TOPICS_FILE,
    ConsumerFilterTable,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroupTable,
    TopicTable,
    decode_table,
)
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.jobs.audit.entry_check import DELAY_TOPIC
from rocketstore.pipeline.jobs.audit.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocketstore.pipeline.jobs.audit.conclusions import QueueState
    from rocketstore.pipeline.jobs.audit.log_shape import LogShape
    from rocketstore.pipeline.jobs.audit.places import StorePlaces

_TABLES: Final[dict[str, Any]] = {
    TOPICS_FILE: TopicTable,
    CONSUMER_OFFSETS_FILE: ConsumerOffsets,
    DELAY_OFFSETS_FILE: DelayOffsets,
    SUBSCRIPTION_GROUPS_FILE: SubscriptionGroupTable,
    CONSUMER_FILTERS_FILE: ConsumerFilterTable,
}

CLOCK_TOLERANCE_MS: Final = 86_400_000
"""A store time may be that far ahead: a day, for clocks of several machines."""

_MISSING: Final = "missing"


def read_small(places: StorePlaces, name: str) -> bytes | None:
    """Return a small file below the store, None when it is not there."""
    path = f"{places.root}/{name}"
    directory, _, last = path.rpartition("/")
    entry = next((one for one in places.files.list(directory) if one.name == last), None)
    if entry is None or entry.is_directory:
        return None
    try:
        with opened(places.files, path) as file:
            return file.read(0, entry.size)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def small_file_findings(
    places: StorePlaces,
    shape: LogShape,
    queues: Mapping[tuple[str, int], QueueState],
    now_ms: int,
) -> Iterator[Finding]:
    """Yield what is wrong with the small files."""
    if not places.was_closed and not places.is_live:
        reason = "the last writer did not end in order"
        action = "the next opening recovers the store"
        yield Finding(Severity.NOTE, "abort", ABORT_FILE_NAME, 0, 0, reason, action)
    yield from _checkpoint_findings(places, shape, now_ms)
    tables: dict[str, Any] = {}
    for name, table in _TABLES.items():
        yield from _table_findings(places, name, table, tables)
    if CONSUMER_OFFSETS_FILE in tables:
        yield from _consumer_findings(tables[CONSUMER_OFFSETS_FILE], queues)
    if DELAY_OFFSETS_FILE in tables:
        yield from _delay_findings(tables[DELAY_OFFSETS_FILE], queues)


# --- the checkpoint -----------------------------------------------------------------------------


def _checkpoint_findings(places: StorePlaces, shape: LogShape, now_ms: int) -> Iterator[Finding]:
    def finding(
        severity: Severity, offset: int, reason: str, found: tuple[str, str] | None = None
    ) -> Finding:
        action = "repair writes it anew; until then recovery goes back further"
        expected, seen = found or (None, None)
        return Finding(
            severity,
            "checkpoint",
            CHECKPOINT_FILE_NAME,
            offset,
            0,
            reason,
            action,
            expected=expected,
            found=seen,
        )

    content = read_small(places, CHECKPOINT_FILE_NAME)
    if content is None:
        yield finding(Severity.NOTE, 0, "there is none")
        return
    if len(content) != CHECKPOINT_SIZE_BYTES:
        reason = f"length: expected {CHECKPOINT_SIZE_BYTES} bytes, found {len(content)}"
        yield finding(Severity.WARNING, 0, reason)
    try:
        times = decode_checkpoint(content)
    except FormatError as error:
        yield finding(Severity.WARNING, 0, str(error))
        return
    latest = max((chain.latest_ms for chain in shape.kept), default=0)
    for number, (name, value) in enumerate(times._asdict().items()):
        if not 0 <= value <= now_ms + CLOCK_TOLERANCE_MS:
            yield finding(Severity.WARNING, 8 * number, f"{name}: {value} is no past time")
        elif name == "physic_ms" and value > latest and latest and not places.is_live:
            yield Finding(
                Severity.WARNING,
                "checkpoint-ahead",
                CHECKPOINT_FILE_NAME,
                8 * number,
                0,
                f"{name}: messages were flushed up to {value}, the log's last is of {latest}",
                "the end of the log is lost, or its clock was set back: compare with a replica",
                expected=f"at most {latest}",
                found=str(value),
            )


# --- the tables ---------------------------------------------------------------------------------


def _table_findings(
    places: StorePlaces, name: str, table: Any, tables: dict[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong with a table and its backup (K-D4), and keep the one that is read."""
    shown = f"{CONFIG_DIRECTORY}/{name}"
    own, own_fault = _decoded(places, shown, table)
    other, backup_fault = _decoded(places, shown + BACKUP_SUFFIX, table)
    if own is not None or other is not None:
        tables[name] = other if own is None else own
    if own_fault is None:
        if backup_fault not in {None, _MISSING}:
            action = "nothing to do: the table itself is good"
            yield _table_finding(Severity.WARNING, shown + BACKUP_SUFFIX, str(backup_fault), action)
    elif backup_fault is None:
        yield _table_finding(Severity.WARNING, shown, own_fault, "the backup is read instead")
    elif {own_fault, backup_fault} != {_MISSING}:
        reason = f"{own_fault}; backup: {backup_fault}"
        action = "bring the table back; the broker starts without it"
        yield _table_finding(Severity.DAMAGE, shown, reason, action)


def _table_finding(severity: Severity, file: str, reason: str, action: str) -> Finding:
    return Finding(severity, "table", file, 0, 0, reason, action)


def _decoded(places: StorePlaces, name: str, table: Any) -> tuple[Any, str | None]:
    """Return a table, or why it cannot be read."""
    content = read_small(places, name)
    if content is None:
        return None, _MISSING
    if not content.strip():
        return None, "empty"
    try:
        return decode_table(content, table), None
    except FormatError as error:
        return None, str(error)


# --- against the queues -------------------------------------------------------------------------


def _consumer_findings(
    table: ConsumerOffsets, queues: Mapping[tuple[str, int], QueueState]
) -> Iterator[Finding]:
    for name, offsets in sorted(table.offset_table.items()):
        topic, _, group = name.partition("@")
        known = [queue for (other, _), queue in queues.items() if other == topic]
        if not known:
            continue  # a topic that was deleted, or that has had no message yet
        for queue_id, offset in sorted(offsets.items()):
            queue = queues.get((topic, queue_id))
            yield from _position_findings(
                f"config/{CONSUMER_OFFSETS_FILE}",
                f"group {group}",
                (topic, queue_id),
                queue,
                offset,
            )


def _delay_findings(
    table: DelayOffsets, queues: Mapping[tuple[str, int], QueueState]
) -> Iterator[Finding]:
    topic = DELAY_TOPIC.decode()
    for level, offset in sorted(table.offset_table.items()):
        queue = queues.get((topic, level - 1))
        yield from _position_findings(
            f"config/{DELAY_OFFSETS_FILE}",
            f"delay level {level}",
            (topic, level - 1),
            queue,
            offset,
        )


def _position_findings(
    file: str, who: str, place: tuple[str, int], queue: QueueState | None, offset: int
) -> Iterator[Finding]:
    """Compare a consumer's next offset with what the queue has."""
    topic, queue_id = place
    first, end = (0, 0) if queue is None else (_first_record(queue), _end(queue))
    if offset > end:
        kind, severity = "consumer-ahead", Severity.WARNING
        reason = f"{who}: next is queue offset {offset}, and the queue ends before {end}"
        action = "messages were lost, or the offset is wrong: reset it, or the group waits"
    elif offset < first and queue is not None:
        kind, severity = "consumer-behind", Severity.NOTE
        reason = f"{who}: next is queue offset {offset}, and the queue begins at {first}"
        action = "nothing to do; messages before expired unread by this group"
    else:
        return
    yield Finding(
        severity,
        kind,
        file,
        0,
        0,
        reason,
        action,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        expected=f"{first} to {end}",
        found=str(offset),
    )


def _first_record(queue: QueueState) -> int:
    backed = queue.summary.backed
    return int(backed[0, 0]) if len(backed) else queue.first_offset


def _end(queue: QueueState) -> int:
    return max(queue.last_used, queue.summary.last + 1)
