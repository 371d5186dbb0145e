"""What is wrong with the entries of a queue, as `queue_rules` found them: a finding for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from rocketstore.format.file_name import CONSUME_QUEUE_EXT_DIRECTORY, is_directory_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.rules import runs
from rocketstore.rules.findings import Finding, LastWriter, Severity, finding, mended, offsets_text
from rocketstore.rules.unbacked import Unbacked, UnbackedKind
from rocketstore.units import QueueKey, counted

if TYPE_CHECKING:
    from rocketstore.verification.queue_rules import QueueView


def queue_findings(queue: QueueView, writer: LastWriter) -> Iterator[Finding]:
    """Yield what is wrong with a queue; what a live writer has yet to dispatch is no fault."""
    if not is_directory_name(queue.topic):
        if queue.record_count:
            records = counted(queue.record_count, "record")
            reason = f"{records} of a topic that cannot be a directory: {queue.key}"
            yield finding(
                "queue-impossible",
                "consumequeue",
                reason,
                severity=Severity.WARNING,
                action="nothing to do",
                queue=queue.key,
            )
        return
    backed_stop, made_again = runs.stop_of(queue.backed), []
    for start, stop in runs.pairs(queue.truly_missing):
        if not (writer.is_live and start >= backed_stop):
            at, reason = queue.missing_at.get(start), "records without their entry"
            # Recovery goes back to where entries were durable, not to before a queue's first one.
            action = "repair writes them" if stop <= queue.first_offset else None
            found = _found(
                queue, "queue-missing", (start, stop), reason, physical_offset=at, action=action
            )
            found = writer.judged(found)
            if found.severity is Severity.WARNING:
                made_again.append((start, stop))
            yield found
    if queue.shadowed_count:
        reason = f"{counted(queue.shadowed_count, 'record')} with a number that another one has"
        yield _found(queue, "queue-conflict", (0, 0), reason)
    if queue.replaced_count:
        records = counted(queue.replaced_count, "record")
        reason = (
            f"{records} of a topic that was deleted and made again: later ones have lower numbers"
        )
        yield _found(queue, "queue-conflict", (0, 0), reason)
    for run in queue.unbacked:
        is_in_motion = run.is_tail or run.kind is UnbackedKind.STALE
        if run.kind is not UnbackedKind.EXPIRED and not (writer.is_live and is_in_motion):
            found = _run_finding(queue, run)
            rest = runs.without(runs.joined([[(run.start, run.stop)]]), runs.joined([made_again]))
            yield found if len(rest) else mended(found)
    yield from _numbers_findings(queue)


def _numbers_findings(queue: QueueView) -> Iterator[Finding]:
    """Yield what is wrong with the queue offsets that records state."""
    if queue.is_own:
        shown = runs.joined([[(run.start, run.stop)] for run in queue.unbacked])
        for start, stop in runs.pairs(runs.without(queue.skipped, shown)):
            reason = "no record states it, and no entry stands there"
            yield _found(queue, "queue-gap", (start, stop), reason)
    if queue.impossible:
        number, at = queue.impossible[0]
        records = counted(len(queue.impossible), "record")
        reason = (
            f"{records} with an impossible queue offset, the first {number} at physical offset "
            f"{at}: no {number} messages fit before it"
        )
        yield _found(queue, "queue-impossible", (0, 0), reason, physical_offset=at)


_REASONS: Final = {
    UnbackedKind.LOST: "entries of records that are lost in a damaged range of the log",
    UnbackedKind.WRONG: "entries that point at no intact record of this queue and number",
    UnbackedKind.FILLER: "fillers, which only keep places",
    UnbackedKind.UNWRITTEN: "zeros between entries, where 4.9 takes the queue to end",
    UnbackedKind.KEPT: "places given out to messages that were lost with the end of the log",
    UnbackedKind.STALE: "entries that point at or past the end of the log: their records are lost",
    UnbackedKind.BEYOND: "entries that point past the last log file: a file, or its end, is gone",
}


def _run_finding(queue: QueueView, run: Unbacked) -> Finding:
    kind, reason = f"queue-{run.kind.value}", _REASONS[run.kind]
    # Those before a queue's first message are its normal beginning.
    if run.kind is UnbackedKind.FILLER and runs.holds(queue.backed, run.start - 1):
        kind, reason = "queue-hole", "fillers that keep the places of lost records"
    is_mild = run.kind is UnbackedKind.WRONG and run.is_tail
    severity = Severity.WARNING if is_mild else None
    return _found(queue, kind, (run.start, run.stop), reason, severity=severity)


def _found(queue: QueueView, kind: str, span: tuple[int, int], reason: str, **more: Any) -> Finding:
    start, stop = span
    return finding(
        kind, queue.directory, f"{offsets_text(start, stop)}: {reason}" if start < stop else reason,
        offset=start * ENTRY_SIZE_BYTES, size=(stop - start) * ENTRY_SIZE_BYTES, queue=queue.key,
        queue_offset=start if start < stop else None, **more,
    )  # fmt: skip


def extension_findings(sizes_of: Mapping[QueueKey, Sequence[int]]) -> Iterator[Finding]:
    """Name the extensions of queues (spec F7), with the lengths of their files.

    Their faults are reported as those of entries, but for a file that is too long to be opened.
    """
    usual = usual_extension_size(sizes_of.values())
    for key, sizes in sorted(sizes_of.items()):
        files = counted(len(sizes), "file")
        reason = f"{files} of a queue extension: entries that refer there were compared with it"
        severity = action = None
        if max(sizes) > usual:
            reason = f"a file of a queue extension has {max(sizes)} bytes, expected {usual}"
            severity, action = Severity.DAMAGE, "no writer opens the store; repair cuts the file"
        name, size = f"{CONSUME_QUEUE_EXT_DIRECTORY}/{key}", sum(sizes)
        yield finding(
            "queue-ext", name, reason, size=size, severity=severity, action=action, queue=key
        )


def usual_extension_size(sizes: Iterable[Sequence[int]]) -> int:
    """Return the length that most files of queue extensions have, 0 without any."""
    counts = Counter(filter(None, chain.from_iterable(sizes)))
    return max(counts, key=lambda size: (counts[size], size), default=0)
