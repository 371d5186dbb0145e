"""``rocketstore pipeline rebuild``: make queues and index again from the CommitLog, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.cli.findings import EXIT_FINE, print_verification
from rocketstore.cli.options import (
    Output,
    OutputOption,
    SparkOption,
    SplitOption,
    StoreLocation,
    StoreSettings,
)
from rocketstore.cli.output import print_object
from rocketstore.cli.wording import print_on_stderr
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketstore.pipeline.jobs.audit.audit_job import AuditReport
    from rocketstore.pipeline.jobs.rebuild.rebuild_job import RebuildReport
    from rocketstore.rules.log_rules import Damaged


def rebuild(
    store: StoreLocation,
    /,
    *,
    prove: bool = False,
    to: str | None = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Make queues and index again from the CommitLog of a store that no process has open.

    The old ones are kept in repair/ inside the store.

    Parameters
    ----------
    store
        Directory of the store, or its URI on an object store.
    prove
        Change nothing: report where queues and index differ from what would be made, and why.
    to
        Make them in this new place, and leave the store as it is; a path or a URI. Needed for a
        store on an object store.
    """
    from rocketstore import pipeline

    config = (settings or StoreSettings()).load(store)
    spark = pipeline.session(master, quiet=True)
    options: dict[str, Any] = {"config": config, "max_split_bytes": split_mib * MiB}
    if prove:
        return _print_proof(pipeline.prove_rebuild(spark, store, **options), output)
    _print_report(pipeline.rebuild(spark, store, target=to, **options), output)
    return EXIT_FINE


def _print_report(report: RebuildReport, output: Output) -> None:
    if output != "table":
        print_object(report.to_dict(), output)
        return
    print(
        f"{report.record_count:,} records: {report.entry_count:,} entries in "
        f"{report.queue_count:,} queues, {report.index_item_count:,} index items"
    )
    if report.target != report.store:
        print(f"They were made in {report.target}; the store is unchanged")
    if report.kept is not None:
        print(f"The old ones are kept in {report.kept}")
    if report.refused_count:
        print(f"{report.refused_count:,} records have no entry: their place is taken or impossible")
    for queue, count in report.kept_places.items():
        print_on_stderr(
            f"{queue}: {count:,} places at its end are kept: their records are lost, and their "
            "numbers are not given again"
        )
    for queue in report.gone_queues:
        print_on_stderr(f"No record of {queue} is left: the queue was removed")
    _print_damage(report.damage)


def _print_proof(report: AuditReport, output: Output) -> int:
    from rocketstore.pipeline.jobs.audit.audit_job import REASONS

    code = print_verification(report, output)
    if output == "table":
        for reason, count in report.explained.items():
            print(f"{count:,} explained ({reason}): {REASONS[reason]}")
    return code


def _print_damage(damage: Sequence[Damaged]) -> None:
    for one in damage:
        print_on_stderr(f"Damage from {one.start} to {one.stop}: {one.reason}: {one.evidence}")
