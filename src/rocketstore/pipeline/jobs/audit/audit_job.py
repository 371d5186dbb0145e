"""The audit: plan byte ranges, let tasks read them, let Spark bring together what belongs together.

What is read goes over the network once, as blocks (`audit_work`); what comparing says of it is
small, is kept by Spark, and is asked three times: for the shape of the log, for the witnesses of
records after a break, and for the findings (decision 0009).
"""

from __future__ import annotations

import bisect
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.config import StoreConfig
from rocketstore.format.markers import (
    CHECKPOINT_FILE_NAME,
    CONSUME_QUEUE_EXT_DIRECTORY,
)
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.jobs.audit import audit_work
from rocketstore.pipeline.jobs.audit.audit_compare import compare_targets
from rocketstore.pipeline.jobs.audit.audit_judgement import Judgement, finding_of, judge_targets
from rocketstore.pipeline.jobs.audit.audit_places import StorePlaces, find_places
from rocketstore.pipeline.jobs.audit.audit_plan import (
    common_task,
    cuts_of,
    index_files_of,
    log_tasks,
    queue_file_tasks,
    small_contents,
)
from rocketstore.pipeline.jobs.audit.audit_report import AuditReport, QueueRow, write_report
from rocketstore.pipeline.jobs.audit.audit_work import (
    FACTS,
    Row,
    passing_over_deleted,
    queue_target,
)
from rocketstore.pipeline.jobs.publishing import refuse_taken
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES
from rocketstore.units import GiB
from rocketstore.verification.findings import Finding, StoreCounts, file_finding
from rocketstore.verification.index_rules import IndexFacts, Lacking, StrayCount, index_findings
from rocketstore.verification.log_rules import (
    Evidence,
    LogView,
    Stretch,
    empty_log_finding,
    first_break,
    joined_chains,
    log_findings,
    log_view,
)
from rocketstore.verification.queue_rules import extension_finding
from rocketstore.verification.small_files import (
    abort_finding,
    checkpoint_findings,
    positions,
    table_findings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MOST_COLLECTED: Final = 100_000
"""Findings of queues, and queues, that are collected: the worst first. `out` holds all."""

_GROUP_BYTES: Final = 2 * GiB
"""Of the log, whose blocks are one partition: some 100 MB."""

_MOST_GROUPS: Final = 4_000
_LOOKED_AT_BYTES: Final = 256
"""More than a header; a record's last bytes may well be zeros."""

_BORN_HOST_V6: Final = 0x10
_RECORD_TIME_AT: Final = (56, 68)
"""Where a record has its store time: without and with a born host of version 6."""


def audit(
    spark: SparkSession | None,
    store: str | Path,
    out: str | Path | None = None,
    *,
    config: StoreConfig | None = None,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> AuditReport:
    """Check every record, queue entry and index item of a store against each other, on Spark.

    Parameters
    ----------
    spark
        The session, classic or Connect; None starts one on this machine.
    store
        Path or URI. It may be in use: what a writer has not finished is not reported.
    out
        Directory to be made, with findings and queues as Parquet and a summary as JSON.
    config
        Settings that the files do not say; sizes left unset are learnt.
    max_split_bytes
        Most bytes of the log that one task reads.
    now_ms
        The time, by which impossible times are recognised; None asks the system.

    Returns
    -------
    AuditReport
        Findings and counts. Damage is a finding, not an error.

    Raises
    ------
    NotAStoreError
        There is no CommitLog directory.
    ConfigError
        Sizes cannot be learnt.
    StoreError
        Something may not be read, or `out` cannot be written.
    """
    config = config or StoreConfig()
    if out is not None:
        refuse_taken(str(out))
    # What is wrong with the place is said before anything slow is begun.
    places = find_places(str(store), config)
    if spark is None:
        from rocketstore.pipeline.environment import session  # noqa: PLC0415 - needs PySpark

        spark = session()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return _Audit(spark, places, config, max_split_bytes, now_ms).run(out)


class _Audit:
    """One audit: its plan, the facts that Spark keeps, what follows from them."""

    def __init__(
        self,
        spark: SparkSession,
        places: StorePlaces,
        config: StoreConfig,
        max_split_bytes: int,
        now_ms: int,
    ) -> None:
        self._spark, self._places, self._now_ms = spark, places, now_ms
        self._has_index = config.message_index_enable
        # Read first: what consumers had by then, the queues have when they are looked at.
        self._small = small_contents(places)
        self._index_findings, index_files = index_files_of(places) if self._has_index else ([], [])
        self._common = common_task(places, config)
        self._cuts = list(cuts_of(places, max_split_bytes))
        self._tasks = [
            *log_tasks(self._common, self._cuts, max_split_bytes),
            *(self._common._replace(index_file=file) for file in index_files),
            *queue_file_tasks(self._common, places),
        ]

    def run(self, out: str | Path | None) -> AuditReport:
        from rocketstore.pipeline.jobs.execution import plain_failure  # noqa: PLC0415 - PySpark

        facts = self._facts()
        judged = None
        try:
            with plain_failure():
                facts.persist()
                view, excluded = self._shape(facts)
                judged = self._judged(facts, view, excluded).persist()
                report, own = self._report(facts, judged, view)
                if out is not None:
                    write_report(report, own, judged, str(out))
                return report
        finally:
            for frame in (facts, judged):
                if frame is not None:
                    frame.unpersist()

    def _facts(self) -> DataFrame:
        """Return what tasks read, compared where it came together."""
        from rocketstore.pipeline.jobs.execution import map_tasks  # noqa: PLC0415 - needs PySpark

        read = map_tasks(self._spark, self._tasks, audit_work.read_parts, FACTS)
        total = sum(cut.stop - cut.start for cut in self._cuts)
        groups = min(_MOST_GROUPS, max(2, -(-total // _GROUP_BYTES)))
        together = read.repartition(groups, "target").sortWithinPartitions("target", "place")
        return _mapped(together, compare_targets, self._common)

    def _shape(self, facts: DataFrame) -> tuple[LogView, tuple[tuple[int, int], ...]]:
        """Return the log, and the ranges of it that hold no messages."""
        places, size = self._places, self._places.sizes.commit_log_file_bytes
        stretches = [
            msgspec.msgpack.decode(content, type=Stretch)
            for content in _contents(facts.filter("kind = 'stretch'"))
        ]
        stretches.sort(key=lambda one: one.start)
        gone = {one.base for one in stretches if one.is_gone}
        if places.is_live:
            # Retention may have taken the oldest files, and their entries, since they were read.
            there = {file.base for file in places.listed_again().files}
            gone |= {file.base for file in places.log.files} - there
        bases = [file.base for file in places.log.files if file.base not in gone]
        present = [one for one in stretches if one.base not in gone]
        evidence = self._evidence(facts, present)
        view = log_view(present, bases, size, evidence)
        excluded = [(one.start, one.stop) for one in view.leftovers]
        excluded += [(base, base + size) for base in gone]
        return view, tuple(sorted(excluded))

    def _evidence(self, facts: DataFrame, stretches: Sequence[Stretch]) -> dict[int, Evidence]:
        """Return what the queues say of records from the first break on, by their chain."""
        chains = joined_chains(stretches)
        begin = first_break(chains)
        if begin is None:
            return {}
        starts = tuple(chain.start for chain in chains if chain.start >= begin)
        parts = facts.filter(f"kind = 'part' AND a > 0 AND place >= {begin}")
        sums = _mapped(parts, _by_chain, starts).groupBy("place").agg(_SUMS)
        found = _rows(sums, "place", "sum(a)", "sum(b)", "sum(c)")
        return {place: Evidence(*numbers) for place, *numbers in found}

    def _judged(
        self, facts: DataFrame, view: LogView, excluded: tuple[tuple[int, int], ...]
    ) -> DataFrame:
        places = self._places
        judgement = Judgement(
            view.bounds(),
            excluded,
            self._common.places,
            frozenset(key.topic for key in places.queues),
            places.is_live,
        )
        known = [Row(queue_target(*key), -1, "listed") for key in places.queues]
        known += [
            Row(queue_target(one.topic, one.queue_id), -1, "position", msgspec.msgpack.encode(one))
            for one in positions(self._small.get)
        ]
        about = facts.filter("kind IN ('part', 'cell', 'stray', 'lacking', 'explained')")
        if known:
            import pyarrow as pa  # noqa: PLC0415 - only where jobs run

            table = pa.Table.from_batches(audit_work.as_batches(known))
            about = about.unionByName(self._spark.createDataFrame(table))
        groups = min(200, max(2, len(places.queues) // 50))
        together = about.repartition(groups, "target").sortWithinPartitions("target", "place")
        return _mapped(together, judge_targets, judgement)

    # --- what is said ---------------------------------------------------------------------------

    def _report(
        self, facts: DataFrame, judged: DataFrame, view: LogView
    ) -> tuple[AuditReport, list[Finding]]:
        """Return what is reported, and which findings are not rows of `judged`."""
        index = [
            msgspec.msgpack.decode(content, type=IndexFacts)
            for content in _contents(facts.filter("kind = 'index'"))
        ]
        index.sort(key=lambda one: one.file)
        sums = judged.filter("kind = 'queue'").groupBy("kind").agg({**_SUMS, "*": "count"})
        numbers = _rows(sums, "count(1)", "sum(a)", "sum(b)", "sum(c)") or [(0, 0, 0, 0)]
        queue_count, entries, holes, used = numbers[0]
        worst_first = judged.filter("kind = 'finding'").orderBy("a", ascending=False)
        found = [finding_of(one) for one in _contents(worst_first.limit(MOST_COLLECTED))]
        found.sort(key=lambda one: (one.topic or "", one.queue_id or 0, one.kind, one.offset))
        queues = [
            QueueRow(*msgspec.msgpack.decode(content))
            for content in _contents(judged.filter("kind = 'queue'").limit(MOST_COLLECTED))
        ]
        reasons = judged.filter("kind = 'explained'").groupBy("target").agg({"a": "sum"})
        explained = _rows(reasons, "target", "sum(a)")
        log = [*self._log_findings(view, used), *self._queue_file_findings()]
        rest = [*self._item_findings(judged, index, view), *self._small_findings(view)]
        report = AuditReport(
            self._places.location,
            [
                *log,
                *(one for one in found if one.kind.startswith("queue")),
                *rest,
                *(one for one in found if not one.kind.startswith("queue")),
            ],
            StoreCounts(
                message_count=sum(chain.record_count for chain in view.kept),
                message_bytes=sum(chain.record_bytes for chain in view.kept),
                unwitnessed_bytes=sum(one.record_bytes - one.body_bytes for one in view.kept),
                damaged_bytes=view.damaged_bytes,
                leftover_count=sum(chain.record_count for chain in view.leftovers),
                queue_count=queue_count,
                entry_count=entries,
                hole_count=holes,
                index_item_count=sum(one.item_count for one in index),
                min_physical_offset=view.start,
                max_physical_offset=view.end,
            ),
            sorted(queues, key=lambda one: (one.topic, one.queue_id)),
            {reason: count for reason, count in sorted(explained) if count},
        )
        return report, [*log, *rest]

    def _log_findings(self, view: LogView, entry_count: int) -> Iterator[Finding]:
        places = self._places
        last = places.log.files[-1].base if places.log.files else 0
        for one in places.log.problems:
            if one.problem == "missing":
                continue  # reported with its range as a hole of the log
            is_last = one.base >= last
            is_short = one.problem in {"empty", "wrong-size"}
            yield file_finding(
                "log",
                one.problem,
                places.below_root(one.path),
                one.expected,
                one.found,
                is_last=is_last,
                ends_in_bytes=is_short and is_last and _ends_in_bytes(places, one.path),
            )
        if not places.log.files:
            yield empty_log_finding(entry_count)
        yield from log_findings(view, places.place_in_log, is_live=places.is_live)

    def _queue_file_findings(self) -> Iterator[Finding]:
        places = self._places
        for key, row in places.queues.items():
            for one in row.problems:
                name = places.below_root(one.path)
                found = file_finding("queue", one.problem, name, one.expected, one.found)
                yield found._replace(topic=key.topic, queue_id=key.queue_id)
        for (topic, queue), sizes in sorted(places.extensions.items()):
            if sizes:
                directory = f"{CONSUME_QUEUE_EXT_DIRECTORY}/{topic}/{queue}"
                yield extension_finding(directory, topic, queue, sizes)

    def _item_findings(
        self, judged: DataFrame, index: list[IndexFacts], view: LogView
    ) -> list[Finding]:
        if not self._has_index:
            return []
        sums = judged.filter("kind = 'stray'").groupBy("target", "place")
        stray = [
            StrayCount(target.partition("/")[2], bool(place), count, first)
            for target, place, count, first in _rows(
                sums.agg({"a": "sum", "b": "min"}), "target", "place", "sum(a)", "min(b)"
            )
        ]
        keys = judged.filter("kind = 'lacking'").groupBy("kind").agg({"a": "sum", "b": "min"})
        lacking = _rows(keys, "sum(a)", "min(b)") or [(0, -1)]
        return self._index_findings + index_findings(
            index,
            self._places.index_layout,
            Lacking(*lacking[0]),
            stray,
            lambda offset: _store_time(self._places, view, offset),
            is_live=self._places.is_live,
        )

    def _small_findings(self, view: LogView) -> Iterator[Finding]:
        places = self._places
        if not places.was_closed and not places.is_live:
            yield abort_finding()
        latest_ms = max((chain.latest_ms for chain in view.kept), default=0)
        # What is being written is not in the log yet that was read.
        limit_ms = self._now_ms if places.is_live else latest_ms
        content = self._small.get(CHECKPOINT_FILE_NAME)
        yield from checkpoint_findings(content, self._now_ms, limit_ms)
        yield from table_findings(self._small.get)


# --- single bytes -------------------------------------------------------------------------------


def _ends_in_bytes(places: StorePlaces, path: str) -> bool:
    """Whether a file's last bytes are not zeros: then it was cut off inside its records."""
    directory, _, name = path.rpartition("/")
    size = next((one.size for one in places.files.list(directory) if one.name == name), 0)
    with opened(places.files, path) as file:
        begin = max(0, size - _LOOKED_AT_BYTES)
        return any(file.read(begin, size - begin)) if size else False


def _store_time(places: StorePlaces, view: LogView, offset: int) -> int | None:
    """Return when a record of the log was stored, None where none is at that place."""
    if not any(chain.start <= offset < chain.stop for chain in view.kept):
        return None
    for file in places.log.files:
        if file.base <= offset < file.stop:
            with passing_over_deleted(), opened(places.files, file.path) as source:
                head = source.read(offset - file.base, 80)
                if int.from_bytes(head[28:36], "big") != offset:
                    return None
                at = _RECORD_TIME_AT[bool(int.from_bytes(head[36:40], "big") & _BORN_HOST_V6)]
                return int.from_bytes(head[at : at + 8], "big", signed=True)
    return None


# --- Spark --------------------------------------------------------------------------------------

_SUMS: Final = {"a": "sum", "b": "sum", "c": "sum"}


def _mapped(
    frame: DataFrame, work: Callable[[Any, Iterator[Row]], Iterator[Row]], context: Any
) -> DataFrame:
    """Return what `work` makes of the rows of each partition, in their order."""
    from rocketstore.pipeline.source import plain_errors  # noqa: PLC0415 - needs PySpark

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            yield from audit_work.as_batches(work(context, audit_work.rows_of(batches)))

    mapped: DataFrame = frame.mapInArrow(apply, FACTS)
    return mapped


def _by_chain(starts: Sequence[int], rows: Iterable[Row]) -> Iterator[Row]:
    """Put the start of its chain as the place of each row."""
    for row in rows:
        yield row._replace(place=starts[bisect.bisect_right(starts, row.place) - 1], facts=b"")


def _contents(frame: DataFrame) -> list[bytes]:
    return [row[0] for row in _rows(frame, "facts")]


def _rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    table = frame.toArrow()
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
