"""How the command line shows what verify and repair found, and which exit code that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.cli import exit_codes
from rocketstore.cli.output import before_a_verdict, print_object, print_rows, print_text
from rocketstore.rules.findings import Finding, VerifyReport, state_of
from rocketstore.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.audit.repair_plan import LostForBroker, RepairReport
    from rocketstore.cli.options import Output


_LOST_COLUMNS: Final = ("verb", "start", "stop", "recordCount")


def print_verification(report: VerifyReport, output: Output, *, advice: str = "") -> int:
    """Print what verify found, and `advice` if that is not nothing; return the exit code."""
    with before_a_verdict():
        if output == "json":
            print_object(report.to_dict(), output)
        elif output == "jsonl":
            print_rows((finding.to_dict() for finding in report.findings), output, columns=())
        else:
            print_findings(report.findings)
            print_text(verification_summary(report))
            if report.counts.unwitnessed_bytes:
                print_text(checksum_note(report))
            if advice and report.exit_code:
                print_text(advice)
    return report.exit_code


def verification_summary(report: VerifyReport) -> str:
    """Return in one line what was checked and what is wrong."""
    counts = report.counts
    return (
        f"{counted(counts.message_count, 'record')}, "
        f"{counted(counts.entry_count, 'entry', 'entries')} in "
        f"{counted(counts.queue_count, 'queue')}, "
        f"{counted(counts.index_item_count, 'index item')}: {state_of(report.findings)}"
    )


def checksum_note(report: VerifyReport) -> str:
    """Return how much the records' checksums cover, so that no reader takes all for proved."""
    counts = report.counts
    return (
        "RocketMQ keeps checksums of bodies only: of "
        f"{counts.message_bytes:,} bytes of records, {counts.unwitnessed_bytes:,} (headers, "
        "topics, properties) have none, and a change there is seen only if it breaks the format."
    )


def print_repair(report: RepairReport, output: Output) -> int:
    """Print what repair did; return 0, 1 for changes or warnings that stay, 4 for damage left."""
    with before_a_verdict():
        if output != "table":
            print_object(report.to_dict(), output)
        else:
            print_findings(report.findings)
            _print_actions(report)
            _print_lost(report.lost_for_broker)
            if report.remaining:
                print("Left in the store, as repair can do no more about it:")
                print_findings(report.remaining)
    if report.is_damaged:
        return exit_codes.DAMAGED
    return exit_codes.FOUND if report.is_changed or report.remaining else exit_codes.FINE


def print_findings(findings: Sequence[Finding]) -> None:
    """Print findings as a table, and an empty line below; nothing where there is no finding."""
    if findings:
        print_rows(
            (finding.to_dict() for finding in findings),
            "table",
            columns=("severity", "kind", "offset", "size"),
            notes=("file", "reason", "action"),
        )
        print()


def _print_actions(report: RepairReport) -> None:
    if not report.actions:
        print(f"Nothing to repair under the policy {report.policy}.")
        return
    print("Would do:" if report.dry_run else "Done:")
    for action in report.actions:
        print(f"  {action}")
    if report.evidence is not None:
        print(f"What was cut, replaced or moved is kept in {report.evidence}")


def _print_lost(lost: Sequence[LostForBroker]) -> None:
    if not lost:
        print("A 4.9 broker that opens this store serves every record of it.")
        return
    print("A 4.9 broker that opens this store would lose:")
    print_rows(
        (entry.to_dict() for entry in lost), "table", columns=_LOST_COLUMNS, notes=("reason",)
    )
