"""The store on Spark: a data source, a sink, and jobs over whole stores.

Nothing is needed but a session::

    spark = rocketstore.pipeline.session()
    spark.read.format("rocketstore").load("data/store").groupBy("topic").count().show()

Law: importing this package loads neither PySpark, of the extra ``pipeline``, nor pyarrow.

What jobs take alike: `spark`, a session, classic or Connect, whose workers see each path as the
caller does; `store`, a path or URI; `config`, settings that the files do not say, such as delay
levels, sizes, or where the log lies (``storePathCommitLog``); `max_split_bytes`, the most bytes of
the log that one task reads; `now_ms`, the time that others are compared with, by default that of
this machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketstore.pipeline.environment import session
    from rocketstore.pipeline.jobs.archive.archive_job import ArchiveResult, archive
    from rocketstore.pipeline.jobs.audit.audit_job import AuditReport, audit, prove_rebuild
    from rocketstore.pipeline.jobs.rebuild.rebuild_job import RebuildReport, rebuild
    from rocketstore.pipeline.jobs.report.report_job import Report, report
    from rocketstore.pipeline.jobs.restore.restore_job import RestoreResult, restore
    from rocketstore.pipeline.unbatching import inner_messages

__all__ = [
    "ArchiveResult",
    "AuditReport",
    "RebuildReport",
    "Report",
    "RestoreResult",
    "archive",
    "audit",
    "inner_messages",
    "prove_rebuild",
    "rebuild",
    "register",
    "report",
    "restore",
    "session",
]

_LATER: Final = {  # by the module, loaded when first asked for: a session, jobs and their answers
    "environment": ("session",),
    "unbatching": ("inner_messages",),
    "jobs.archive.archive_job": ("ArchiveResult", "archive"),
    "jobs.audit.audit_job": ("AuditReport", "audit", "prove_rebuild"),
    "jobs.rebuild.rebuild_job": ("RebuildReport", "rebuild"),
    "jobs.report.report_job": ("Report", "report"),
    "jobs.restore.restore_job": ("RestoreResult", "restore"),
}

_AT_WORK: Final = {  # packages that a job's module loads only as it works
    "jobs.archive.archive_job": ("deltalake",),
    "jobs.report.report_job": ("pygal",),
    "jobs.restore.restore_job": ("deltalake",),
}


def register(spark: SparkSession) -> None:
    """Make ``format("rocketstore")`` known to a session, unless Spark found it by itself.

    From then on queries of the session read only the columns that they use, and every thread can
    write: Spark finds no Python source to write to in a thread that has no session.

    Raises
    ------
    UnsupportedEnvironmentError
        A package is missing, or a PySpark that cannot work is there.
    """
    from rocketstore.pipeline import environment  # noqa: PLC0415 - for those who need no help

    environment.check_versions()
    environment.warn_of_untested_versions()
    with environment.needed():
        from rocketstore.pipeline import java_parts  # noqa: PLC0415 - PySpark's, as below
        from rocketstore.pipeline.source import NAME, StoreDataSource  # noqa: PLC0415 - PySpark's

    # Spark warns of a source that replaces one that it found, once more for each stream.
    jvm: Any = getattr(spark, "_jvm", None)  # there is none on Spark Connect
    found = jvm and spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - Python has no name for it
    if not (found and found.dataSourceExists(NAME)):
        spark.dataSource.register(StoreDataSource)
    if jvm:
        java_parts.prune_columns(spark)
        java_parts.give_threads_a_session(spark)


def __getattr__(name: str) -> Any:
    """Load what is asked for; raises `UnsupportedEnvironmentError` where a package is missing."""
    for module, names in _LATER.items():
        if name in names:
            from rocketstore.pipeline import environment  # noqa: PLC0415 - as above

            with environment.needed(*_AT_WORK.get(module, ())):
                return getattr(importlib.import_module(f"rocketstore.pipeline.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
