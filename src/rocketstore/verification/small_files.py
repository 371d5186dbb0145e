"""The small files of a store: checkpoint and JSON tables, each against the log and the queues.

A consumer whose offset is past a queue's end waits for messages that may never come; one whose
offset is before its beginning has lost some.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rocketstore.errors import FormatError
from rocketstore.format.checkpoint import CHECKPOINT_SIZE_BYTES, decode_checkpoint
from rocketstore.format.file_name import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    CONFIG_DIRECTORY,
    KNOWN_ENDS_FILE_NAME,
    LOG_DIRECTORIES_FILE_NAME,
)
from rocketstore.format.metadata_json import (
    BACKUP_SUFFIX,
    DELAY_OFFSETS_FILE,
    ConsumerOffsets,
    DelayOffsets,
    offset_tables_by_age,
)
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.rules.findings import Finding, Severity, finding
from rocketstore.rules.leftovers import CLOCK_TOLERANCE_MS
from rocketstore.rules.limits import MOST_QUEUES
from rocketstore.rules.table_files import MISSING, TABLES, Content, decoded, table_of
from rocketstore.units import QueueKey

_PLACES: Final = (ABORT_FILE_NAME, KNOWN_ENDS_FILE_NAME, LOG_DIRECTORIES_FILE_NAME)
"""Where an opening reads or makes a file, and nothing else may be. Nobody reads ``lock``: the
process that holds it would let go of it."""

_MOST: Final = {
    "readQueueNums": MOST_QUEUES, "writeQueueNums": MOST_QUEUES, "perm": 15,
    "retryQueueNums": MOST_QUEUES,
}  # fmt: skip
"""Numbers of topics and groups, with the largest that makes sense."""

SMALL_FILES: Final = (
    CHECKPOINT_FILE_NAME,
    *_PLACES,
    *(f"{CONFIG_DIRECTORY}/{name}{end}" for name in TABLES for end in ("", BACKUP_SUFFIX)),
)
"""Every small file, by its name below the store."""


def small_file_findings(
    content_of: Callable[[str], Content], now_ms: int, latest_ms: int, *, was_aborted: bool
) -> Iterator[Finding]:
    """Yield the faults of all of them; `was_aborted` tells how the last writer ended."""
    if was_aborted:
        yield finding("abort", ABORT_FILE_NAME, "the last writer did not end in order")
    for name in _PLACES:
        if isinstance(content := content_of(name), str):
            yield finding("small-file", name, content)
    yield from checkpoint_findings(content_of(CHECKPOINT_FILE_NAME), now_ms, latest_ms)
    yield from table_findings(content_of)


def checkpoint_findings(
    content: Content, now_ms: int, latest_ms: int | None = None
) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoint; a broken one only makes recovery go further back.

    `latest_ms` is the latest store time of the log; None or 0 is not known.
    """
    name = CHECKPOINT_FILE_NAME
    if content is None:
        reason = "the file is missing"
        action = "nothing to do: the next opening goes back further, and writes it again"
        yield finding("checkpoint", name, reason, severity=Severity.NOTE, action=action)
        return
    if isinstance(content, str):
        action = "repair moves it to repair/ and writes a file; until then no opening goes on"
        yield finding("checkpoint", name, content, severity=Severity.DAMAGE, action=action)
        return
    if len(content) != CHECKPOINT_SIZE_BYTES:
        reason = f"length: expected {CHECKPOINT_SIZE_BYTES} bytes, found {len(content)}"
        yield finding("checkpoint", name, reason)
    try:
        times = decode_checkpoint(content)
    except FormatError:  # too short for its times: the length says it
        return
    for number, (what, value) in enumerate(times._asdict().items()):
        if not 0 <= value <= now_ms + CLOCK_TOLERANCE_MS:
            reason = f"{what}: {value} is not a time in the past"
            yield finding("checkpoint", name, reason, offset=8 * number)
        elif what == "physic_ms" and latest_ms and value > latest_ms:
            reason = f"{what}: messages are flushed up to {value}, the log's last is of {latest_ms}"
            at, most, found = 8 * number, f"at most {latest_ms}", str(value)
            yield finding("checkpoint-ahead", name, reason, offset=at, expected=most, found=found)


def table_findings(content_of: Callable[[str], Content]) -> Iterator[Finding]:
    """Yield what is wrong with the JSON tables and their backups (K-D4)."""
    for name in TABLES:
        shown = f"{CONFIG_DIRECTORY}/{name}"
        table, own = decoded(content_of(shown), name)
        _, backup = decoded(content_of(shown + BACKUP_SUFFIX), name)
        if own is None:
            if backup not in {None, MISSING}:
                action = "nothing to do: the table itself is good"
                yield finding("table", shown + BACKUP_SUFFIX, str(backup), action=action)
            for reason in _impossible(table):
                action = "correct it (`mqadmin updateTopic`, `updateSubGroup`): brokers believe it"
                yield finding("table", shown, reason, action=action)
        elif backup is None:
            yield finding("table", shown, own, action="the backup is read instead")
        elif {own, backup} != {MISSING}:
            action = "bring the table back, or move it and its backup (.bak) away to go on without "
            action += "it: what needs it is refused until then; 4.9 starts without it"
            reason = f"{own}; backup: {backup}"
            yield finding("table", shown, reason, severity=Severity.DAMAGE, action=action)


def _impossible(table: Any) -> Iterator[str]:
    """Yield the numbers of a table's topics, or groups, that no broker can have meant."""
    for rows in ("topic_config_table", "subscription_group_table"):
        for name, row in getattr(table, rows, {}).items():
            fields = msgspec.to_builtins(row)
            for field, most in _MOST.items():
                if not 0 <= fields.get(field, 0) <= most:
                    yield f"{name}: {field} is {fields[field]}, which is not 0 to {most}"


class Position(NamedTuple):
    """Where a consumer, or a delay level, continues in a queue."""

    file: str
    who: str
    queue: QueueKey
    offset: int


def position_tables(
    content_of: Callable[[str], Content], changed: Mapping[str, int]
) -> Iterator[tuple[str, ConsumerOffsets | DelayOffsets]]:
    """Yield the tables of positions, each with its name, or else their backups.

    `changed` as `offset_tables_by_age` has it.
    """
    for name in (offset_tables_by_age(changed)[0], DELAY_OFFSETS_FILE):
        if (table := table_of(content_of, name)) is not None:
            yield f"{CONFIG_DIRECTORY}/{name}", table


def positions(
    content_of: Callable[[str], Content], changed: Mapping[str, int]
) -> Iterator[Position]:
    """Yield where every consumer and delay level is; as `position_tables`."""
    for shown, table in position_tables(content_of, changed):
        if isinstance(table, ConsumerOffsets):
            for group, key, offset in table.rows():
                yield Position(shown, f"group {group}", key, offset)
        else:
            for level, offset in sorted(table.offset_table.items()):
                key = QueueKey(DELAY_TOPIC, level - 1)
                yield Position(shown, f"delay level {level}", key, offset)


def standing_findings(
    standing: Iterable[Position], bounds: Mapping[QueueKey, tuple[int, int]]
) -> Iterator[Finding]:
    """Compare positions with the first and end of each queue (`position_findings`)."""
    topics = {DELAY_TOPIC, *(key.topic for key in bounds)}
    for one in standing:
        if one.queue.topic in topics:  # otherwise it was deleted, or has had no message yet
            yield from position_findings(one, bounds.get(one.queue, (0, 0)))


def position_findings(position: Position, bounds: tuple[int, int]) -> Iterator[Finding]:
    """Compare a consumer's next offset with first and end of its queue; (0, 0) without one."""
    (first, end), action = bounds, None
    at = f"{position.who}: next is queue offset {position.offset}, and the queue"
    if position.offset > end:
        kind, reason = "consumer-ahead", f"{at} ends before {end}"
        if position.queue.topic == DELAY_TOPIC:
            action = "nothing to do: the log itself says what was delivered"
    elif position.offset < first:
        kind, reason = "consumer-behind", f"{at} begins at {first}"
    else:
        return
    yield finding(
        kind, position.file, reason, action=action, queue=position.queue,
        queue_offset=position.offset, expected=f"{first} to {end}", found=str(position.offset),
    )  # fmt: skip
