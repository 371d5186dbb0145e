"""The small files of a store: marker, checkpoint, JSON tables, each against the log and the queues.

The tables are compared with the queues as the records show them: a consumer that stands behind a
queue's end waits for messages that may never come, one in front of its beginning has lost some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import FormatError
from rocketstore.format.checkpoint import CHECKPOINT_SIZE_BYTES, decode_checkpoint
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
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
from rocketstore.pipeline.jobs.audit.entry_check import DELAY_TOPIC, passing_over_deleted
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


def read_small_files(places: StorePlaces) -> dict[str, bytes]:
    """Return the small files that are there, by their names below the store."""
    wanted = {CHECKPOINT_FILE_NAME}
    for name in _TABLES:
        wanted |= {f"{CONFIG_DIRECTORY}/{name}", f"{CONFIG_DIRECTORY}/{name}{BACKUP_SUFFIX}"}
    found = {}
    for directory in (places.root, f"{places.root}/{CONFIG_DIRECTORY}"):
        for entry in places.files.list(directory):
            name = places.below_root(entry.path)
            if name in wanted and not entry.is_directory:
                with passing_over_deleted(), opened(places.files, entry.path) as file:
                    found[name] = file.read(0, entry.size)
    return found


def small_file_findings(
    places: StorePlaces,
    small: Mapping[str, bytes],
    shape: LogShape,
    queues: Mapping[tuple[str, int], QueueState],
    now_ms: int,
) -> Iterator[Finding]:
    """Yield what is wrong with the small files.

    Parameters
    ----------
    places, shape, queues
        The store, its log and its queues.
    small
        As `read_small_files` returned them.
    now_ms
        The time.
    """
    if not places.was_closed and not places.is_live:
        reason = "the last writer did not end in order"
        action = "the next opening recovers the store"
        yield Finding(Severity.NOTE, "abort", ABORT_FILE_NAME, 0, 0, reason, action)
    latest_ms = max((chain.latest_ms for chain in shape.kept), default=0)
    # What is being written is not in the log yet that was read.
    limit_ms = now_ms if places.is_live else latest_ms
    yield from _extension_findings(places)
    yield from _checkpoint_findings(small.get(CHECKPOINT_FILE_NAME), limit_ms, now_ms)
    tables: dict[str, Any] = {}
    for name, table in _TABLES.items():
        yield from _table_findings(small, name, table, tables)
    if CONSUMER_OFFSETS_FILE in tables:
        yield from _consumer_findings(tables[CONSUMER_OFFSETS_FILE], queues)
    if DELAY_OFFSETS_FILE in tables:
        yield from _delay_findings(tables[DELAY_OFFSETS_FILE], queues)


def _extension_findings(places: StorePlaces) -> Iterator[Finding]:
    """Name what nobody looks into: the extensions of queues (spec F7)."""
    for topic in places.files.list(f"{places.root}/{CONSUME_QUEUE_EXT_DIRECTORY}"):
        for queue in places.files.list(topic.path) if topic.is_directory else []:
            entries = places.files.list(queue.path) if queue.is_directory else []
            sizes = [entry.size for entry in entries if not entry.is_directory]
            if not sizes:
                continue
            yield Finding(
                Severity.NOTE,
                "queue-ext",
                places.below_root(queue.path),
                0,
                sum(sizes),
                f"{len(sizes)} files of a queue extension: neither checked nor made anew",
                "nothing to do here: reads take tags from the records; entries that repair writes "
                "hold the hash of the tags and need no extension",
                topic=topic.name,
                queue_id=int(queue.name) if queue.name.isdecimal() else None,
            )


# --- the checkpoint -----------------------------------------------------------------------------


def _checkpoint_findings(content: bytes | None, limit_ms: int, now_ms: int) -> Iterator[Finding]:
    def finding(severity: Severity, offset: int, reason: str) -> Finding:
        action = "repair writes it anew; until then recovery goes back further"
        name = CHECKPOINT_FILE_NAME
        return Finding(severity, "checkpoint", name, offset, 0, reason, action)

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
    for number, (name, value) in enumerate(times._asdict().items()):
        if not 0 <= value <= now_ms + CLOCK_TOLERANCE_MS:
            yield finding(Severity.WARNING, 8 * number, f"{name}: {value} is no past time")
        elif name == "physic_ms" and value > limit_ms > 0:
            yield Finding(
                Severity.WARNING,
                "checkpoint-ahead",
                CHECKPOINT_FILE_NAME,
                8 * number,
                0,
                f"{name}: messages were flushed up to {value}, the log's last is of {limit_ms}",
                "the end of the log is lost, or its clock was set back: compare with a replica",
                expected=f"at most {limit_ms}",
                found=str(value),
            )


# --- the tables ---------------------------------------------------------------------------------


def _table_findings(
    small: Mapping[str, bytes], name: str, table: Any, tables: dict[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong with a table and its backup (K-D4), and keep the one that is read."""
    shown = f"{CONFIG_DIRECTORY}/{name}"
    own, own_fault = _decoded(small.get(shown), table)
    other, backup_fault = _decoded(small.get(shown + BACKUP_SUFFIX), table)
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


def _decoded(content: bytes | None, table: Any) -> tuple[Any, str | None]:
    """Return a table, or why it cannot be read."""
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
