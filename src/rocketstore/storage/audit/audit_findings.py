"""Put what an audit saw into words: findings with their place, weight and remedy.

Law: nothing is looked at here but the audit. Lost messages and queue entries that consumers cannot
follow are damage; what a rebuild or the next opening takes away without a loss is a warning.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from rocketstore.format.file_name import parse_file_name
from rocketstore.storage.audit.findings import Finding, Severity
from rocketstore.storage.audit.index_audit import NEEDS_REBUILD
from rocketstore.storage.audit.queue_audit import UnbackedKind
from rocketstore.storage.files.pread_files import DANGLING_HINT, FileProblem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketstore.storage.audit.queue_audit import AuditedQueue, Unbacked
    from rocketstore.storage.audit.store_audit import StoreAudit
    from rocketstore.storage.files.pread_files import FileFinding

_ENTRY: Final = 20

_LOOKED_AT_BYTES: Final = 256
"""More than a header; a record's last bytes may well be zeros."""

_QUEUE_REASONS: Final = {
    UnbackedKind.LOST: (
        Severity.DAMAGE,
        "queue-hole",
        "entries of records that are lost in a damaged range of the log",
        "they keep their places; a get steps over them",
    ),
    UnbackedKind.UNWRITTEN: (
        Severity.DAMAGE,
        "queue-unwritten",
        "zeros between entries, where 4.9 takes the queue to end",
        "repair puts fillers there",
    ),
    UnbackedKind.STALE: (
        Severity.DAMAGE,
        "queue-stale",
        "entries that point at or behind the end of the log",
        "the next opening, or repair, keeps their places and gives no number again",
    ),
    UnbackedKind.BEYOND: (
        Severity.DAMAGE,
        "queue-beyond-log",
        "entries that point behind the last CommitLog file: a file of messages is gone",
        "bring the file back; else the next opening, or repair, keeps their places only",
    ),
    UnbackedKind.KEPT: (
        Severity.DAMAGE,
        "queue-kept",
        "given out to messages that were lost with the end of the log",
        "no number is given again; a get will step over them",
    ),
    UnbackedKind.WRONG: (
        Severity.DAMAGE,
        "queue-wrong",
        "entries that point at no intact record of this queue and number",
        "repair replaces them",
    ),
    UnbackedKind.FILLER: (
        Severity.NOTE,
        "queue-filler",
        "fillers, which only keep places",
        "nothing to do",
    ),
}


_FILLED_HOLE: Final = (
    Severity.DAMAGE,
    "queue-hole",
    "fillers that keep the places of lost records",
    "they keep their places; a get steps over them",
)
"""Fillers behind a message; those in front of a queue's first message are its normal beginning."""


def audit_findings(audit: StoreAudit, *, is_live: bool = False) -> list[Finding]:
    """Return everything an audit found, in the order log, queues, index."""
    return [
        *_log_file_findings(audit),
        *_log_findings(audit, is_live=is_live),
        *_queue_findings(audit, is_live=is_live),
        *_extension_findings(audit),
        *_index_findings(audit),
    ]


def below_root(audit: StoreAudit, path: object) -> str:
    """Return a path relative to the store's root where it lies there."""
    text, root = str(path), str(audit.places.layout.root)
    return text.removeprefix(root + "/")


# --- the log ------------------------------------------------------------------------------------


def place_in_log(audit: StoreAudit, physical_offset: int) -> tuple[str, int]:
    """Return file and position of a physical offset, ("", offset) where no file is."""
    for file in audit.log_files:
        if file.base <= physical_offset < file.base + file.size:
            return below_root(audit, file.path), physical_offset - file.base
    return "", physical_offset


def _log_file_findings(audit: StoreAudit) -> Iterator[Finding]:
    last = audit.log_files[-1].base if audit.log_files else 0
    for found in audit.log_findings:
        severity, action = _weight_of_log_file(
            found, is_last=(parse_file_name(found.path.name) or 0) >= last
        )
        if found.problem is FileProblem.MISSING:
            continue  # reported with its range as a hole of the log
        kind = f"log-file-{found.problem.name.lower().replace('_', '-')}"
        reason = f"expected {found.expected}, found {found.found}"
        yield Finding(severity, kind, below_root(audit, found.path), 0, 0, reason, action)
    if not audit.log_files:
        entries = sum(queue.end() - queue.first_offset for queue in audit.unbacked)
        severity = Severity.DAMAGE if entries else Severity.NOTE
        reason = f"no CommitLog file, {entries} entries in queues"
        yield Finding(severity, "log-empty", "commitlog", 0, 0, reason, "bring the files back")


def _weight_of_log_file(found: FileFinding, *, is_last: bool) -> tuple[Severity, str]:
    is_short = found.problem in {FileProblem.EMPTY, FileProblem.WRONG_SIZE}
    if is_short and is_last and not _ends_in_bytes(found.path):
        return Severity.WARNING, "the next opening, or repair, gives it its length with zeros"
    if is_short:
        return Severity.DAMAGE, "repair gives it its length; 4.9 does not start with it"
    if found.problem is FileProblem.DANGLING_LINK:
        return Severity.DAMAGE, DANGLING_HINT
    if found.problem is FileProblem.NOT_A_FILE:
        return Severity.WARNING, "move it away; 4.9 may not start with it"
    return Severity.WARNING, "repair moves it away; 4.9 may not start with it"


def _weight_of_queue_file(found: FileFinding) -> tuple[Severity, str]:
    if found.problem is FileProblem.DANGLING_LINK:
        return Severity.DAMAGE, DANGLING_HINT
    if found.problem is FileProblem.NOT_A_FILE:
        return Severity.WARNING, "move it away, then repair makes its entries anew"
    return Severity.WARNING, "repair moves it away and makes its entries anew"


def _ends_in_bytes(path: Path) -> bool:
    """Whether a file's last bytes are not zeros: then it was cut off inside its records."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOOKED_AT_BYTES))
        return any(file.read())


def _log_findings(audit: StoreAudit, *, is_live: bool) -> Iterator[Finding]:
    survey, end = audit.survey, audit.log_end
    for file in survey.files:
        for damage in file.damage:
            name, offset = place_in_log(audit, damage.range.start)
            reason = f"{damage.reason.value}: {damage.evidence}"
            if damage.range.start < end:
                action = "it stays as it is; entries of lost records keep their places"
                severity, kind = Severity.DAMAGE, "log-damage"
            elif is_live:
                continue  # a record that is being written
            else:
                severity, kind = Severity.WARNING, "log-tail"
                action = "the next opening, or repair, keeps a copy and zeroes it"
            yield Finding(severity, kind, name, offset, damage.range.size, reason, action)
    for hole in survey.holes:
        if hole.start < end:
            reason = f"no file for physical offsets {hole}"
            action = "bring the file back; a 4.9 broker that dispatches across it anew hangs there"
            yield Finding(
                Severity.DAMAGE, "log-hole", "commitlog", hole.start, hole.size, reason, action
            )
    for chain in survey.leftovers + survey.doubtful:
        assert chain.judgement is not None
        name, offset = place_in_log(audit, chain.start)
        kind = f"log-{chain.judgement.verdict.value}"
        reason = f"{chain.record_count} records: {chain.judgement.reason}"
        action = "kept as messages" if chain.is_kept else "repair keeps a copy and zeroes them"
        size = chain.stop - chain.start
        yield Finding(Severity.WARNING, kind, name, offset, size, reason, action)


# --- queues -------------------------------------------------------------------------------------


def _queue_findings(audit: StoreAudit, *, is_live: bool) -> Iterator[Finding]:
    for queue, runs in audit.unbacked.items():
        directory = f"consumequeue/{queue.key.topic}/{queue.key.queue_id}"
        for found in queue.files.findings:
            kind = f"queue-file-{found.problem.name.lower().replace('_', '-')}"
            reason = f"expected {found.expected}, found {found.found}"
            name = below_root(audit, found.path)
            severity, action = _weight_of_queue_file(found)
            yield Finding(severity, kind, name, 0, 0, reason, action)
        yield from _missing_findings(queue, directory, is_live=is_live)
        for run in runs:
            if run.kind in _QUEUE_REASONS and not (is_live and _is_in_motion(run)):
                severity, kind, reason, action = _QUEUE_REASONS[run.kind]
                if run.kind is UnbackedKind.FILLER and run.start - 1 in queue.backed:
                    severity, kind, reason, action = _FILLED_HOLE
                if run.is_tail and run.kind is UnbackedKind.WRONG:
                    severity = Severity.WARNING
                count = run.stop - run.start
                yield Finding(
                    severity,
                    kind,
                    directory,
                    run.start * _ENTRY,
                    count * _ENTRY,
                    f"queue offsets {run.start} to {run.stop - 1}: {reason}",
                    action,
                )
    for key, count in audit.queues.without_queue.items():
        reason = f"{count} records of a topic that cannot be a directory: {key}"
        yield Finding(
            Severity.WARNING, "queue-impossible", "consumequeue", 0, 0, reason, "nothing to do"
        )
    for key, queue in audit.queues.queues.items():
        if not queue.impossible:
            continue
        number, at = queue.impossible[0]
        reason = (
            f"{len(queue.impossible)} records state a queue offset that cannot be, the first "
            f"{number} at physical offset {at}: no {number} messages fit before it"
        )
        action = "they get no entry; store scan shows them, and their bodies are intact"
        yield Finding(
            Severity.DAMAGE,
            "queue-impossible",
            f"consumequeue/{key.topic}/{key.queue_id}",
            0,
            0,
            reason,
            action,
        )


def _is_in_motion(run: Unbacked) -> bool:
    return run.is_tail or run.kind is UnbackedKind.STALE


def _missing_findings(queue: AuditedQueue, directory: str, *, is_live: bool) -> Iterator[Finding]:
    for start, stop in queue.truly_missing():
        if is_live and start >= queue.backed.stop:
            continue  # not dispatched yet
        reason = f"queue offsets {start} to {stop - 1}: records without their entry"
        yield Finding(
            Severity.DAMAGE,
            "queue-missing",
            directory,
            start * _ENTRY,
            (stop - start) * _ENTRY,
            reason,
            "the next opening after a crash, or repair, writes them",
        )
    shadowed = sum(
        min(stop, backed_stop) - max(start, backed_start)
        for start, stop in queue.missing
        for backed_start, backed_stop in queue.backed
        if backed_start < stop and start < backed_stop
    )
    if shadowed:
        reason = f"{shadowed} records claim a queue offset that another record has"
        yield Finding(
            Severity.WARNING, "queue-conflict", directory, 0, 0, reason, "the entries stay"
        )


def _extension_findings(audit: StoreAudit) -> Iterator[Finding]:
    """Name what nobody looks into: the extensions of queues (spec F7)."""
    top = audit.places.layout.consume_queue_ext
    for directory in sorted(top.glob("*/*")):
        sizes = [path.stat().st_size for path in directory.iterdir() if path.is_file()]
        if sizes:
            yield Finding(
                Severity.NOTE,
                "queue-ext",
                f"{top.name}/{directory.parent.name}/{directory.name}",
                0,
                sum(sizes),
                f"{len(sizes)} files of a queue extension: neither checked nor made anew",
                "nothing to do here: reads take tags from the records; entries that repair writes "
                "hold the hash of the tags and need no extension",
            )


# --- the index ----------------------------------------------------------------------------------


def _index_findings(audit: StoreAudit) -> Iterator[Finding]:
    for trouble in audit.index_troubles:
        is_fault = trouble.kind in NEEDS_REBUILD and trouble.kind not in _HARMLESS
        severity = Severity.DAMAGE if is_fault else Severity.WARNING
        action = "repair makes the index anew" if trouble.kind in NEEDS_REBUILD else "move it away"
        yield Finding(
            severity, trouble.kind, trouble.file, trouble.offset, 0, trouble.reason, action
        )


_HARMLESS: Final = frozenset({"index-missing", "index-stale"})
"""Keys that are not found, or lead to nothing: a lookup verifies every hit."""
