"""``rocketstore pipeline audit``: a whole store checked on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocketstore.cli.findings import print_verification
from rocketstore.cli.options import (
    OutputOption,
    SparkOption,
    SplitOption,
    StoreLocation,
    StoreSettings,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.pipeline.jobs.audit.audit_job import AuditReport


def audit(
    store: StoreLocation,
    /,
    *,
    out: Path | None = None,
    master: SparkOption = "local[*]",
    split_mib: SplitOption = 256,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Check every record, queue entry and index item against each other; writes nothing to a store.

    Exits 0 when nothing is wrong, 1 for findings, 4 for damage. Works beside a writer.

    Parameters
    ----------
    out
        Directory to be made: findings and queues as Parquet, a summary as JSON.
    """
    from rocketstore import pipeline
    from rocketstore.pipeline.jobs.audit.audit_plan import find_places
    from rocketstore.pipeline.jobs.publishing import refuse_taken

    config = (settings or StoreSettings()).load(store)
    if out is not None:
        refuse_taken(str(out))
    # A wrong place is reported before Spark is started, which takes seconds.
    find_places(store, config)
    spark = pipeline.session(master, quiet=True)
    report: AuditReport = pipeline.audit(
        spark, store, out, config=config, max_split_bytes=split_mib * MiB
    )
    return print_verification(report, output)
