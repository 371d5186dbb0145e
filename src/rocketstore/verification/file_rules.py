"""What is wrong with the files of a log or a queue, as findings: how bad, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rocketstore.format.file_name import parse_file_name
from rocketstore.rules.files import AnyPath, FileFinding, FileProblem
from rocketstore.rules.findings import DANGLING_HINT, Finding, Severity, finding
from rocketstore.units import QueueKey, counted

_LOOKED_AT_BYTES: Final = 256
"""More than a header; a record's last bytes may well be zeros."""

_COPIED: Final = re.compile(r"\.?(\d{20})\.")
"""What rsync, scp and others name a file of which they have not all yet."""

_QUEUE_FILE_REPAIRS: Final = {
    FileProblem.EMPTY: "gives it its length",
    FileProblem.WRONG_SIZE: "gives it its length",
    FileProblem.NOT_A_FILE: "moves it away",
    FileProblem.MISSING: "makes it",
}


def log_file_findings(
    problems: Iterable[FileFinding[AnyPath]],
    last_base: int | None,
    entry_count: int,
    shown: Callable[[AnyPath], str],
    last_bytes: Callable[[AnyPath, int], bytes],
    known_end: int,
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a log.

    The last usable one has `last_base`, None where there is no file beside so many queue entries.
    By ``known-ends`` the log, of a store that once had one, went up to `known_end`.
    `shown` returns the name that a report has for a path, `last_bytes` so many bytes of a file's
    end: where they are not all zeros it was cut off inside its records.
    """
    for one in problems:
        if one.problem is FileProblem.MISSING:
            continue  # reported with its range as a hole of the log
        severity = Severity.WARNING
        action = "repair moves a file away, not a directory; 4.9 may not start with it"
        if copied := _COPIED.match(str(one.path).rpartition("/")[2]):
            action = (
                f"if {copied[1]} is lost, let the copying end, unpack the file if it is "
                f"compressed, and give it that name; {action}"
            )
        if one.problem is FileProblem.NOT_A_FILE:
            action = "repair moves it away; 4.9 may not start with it"
        elif one.problem in {FileProblem.EMPTY, FileProblem.WRONG_SIZE}:
            base = parse_file_name(str(one.path).rpartition("/")[2])
            is_last = (base or 0) >= (last_base or 0)
            if is_last and not any(last_bytes(one.path, _LOOKED_AT_BYTES)):
                action = "the next opening, or repair, gives it its length with zeros"
            else:
                severity = Severity.DAMAGE
                action = (
                    "if this is a copy of a store, copy the file again; otherwise repair gives "
                    "it its length; 4.9 does not start with it"
                )
        yield _file_finding("log", one, shown, severity, action)
    if last_base is None:
        reason = f"no CommitLog file, {counted(entry_count, 'entry', 'entries')} in queues"
        reason += f", and known-ends knows of a log up to {known_end}" if known_end else ""
        if entry_count or known_end:
            yield finding("log-empty", "commitlog", reason)
        else:
            action = "nothing to do if no message was ever put; otherwise restore the files"
            yield finding("log-empty", "commitlog", reason, severity=Severity.NOTE, action=action)


def raft_finding(directory: str) -> Finding:
    """Return the finding that a directory beside the log has one of DLedger."""
    reason = "the log of a DLedger broker, whose messages are not looked at"
    return finding("dledger", directory, reason)


def queue_file_findings(
    key: QueueKey, problems: Iterable[FileFinding[AnyPath]], shown: Callable[[AnyPath], str]
) -> Iterator[Finding]:
    """Yield what is wrong with the files of a queue; `shown` as `log_file_findings` has it."""
    for one in problems:
        does = _QUEUE_FILE_REPAIRS.get(one.problem, "moves a file away, not a directory")
        action = f"repair {does}, and makes its entries again"
        yield _file_finding("queue", one, shown, Severity.WARNING, action, **key._asdict())


def _file_finding(
    part: str, one: FileFinding[AnyPath], shown: Callable[[AnyPath], str], severity: Severity,
    action: str, **more: Any,
) -> Finding:  # fmt: skip
    if one.problem is FileProblem.DANGLING_LINK:
        severity, action = Severity.DAMAGE, DANGLING_HINT
    kind, reason = f"{part}-file-{one.problem.kind}", f"expected {one.expected}, found {one.found}"
    more |= {"expected": one.expected, "found": one.found}
    return Finding(severity, kind, shown(one.path), 0, 0, reason, action, **more)
