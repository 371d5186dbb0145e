"""Plan a report: which byte ranges tasks count, and what is known before anything is counted."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import BACKUP_SUFFIX, DELAY_OFFSETS_FILE, DelayOffsets
from rocketstore.format.metadata_json import decode_table as decode_json_table
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.report.partial_groups import (
    MINUTE_MS,
    SECOND_MS,
    DelayFacts,
    ReportTask,
    group_rows,
)
from rocketstore.pipeline.options import DEFAULT_SPLIT_BYTES, parse_options
from rocketstore.pipeline.planning import plan_log
from rocketstore.pipeline.stores import (
    SegmentState,
    configured_log,
    find_stores,
    first_store_timestamp_ms,
    list_segments,
    log_option,
)
from rocketstore.units import MiB

if TYPE_CHECKING:
    from rocketstore.pipeline.stores import Segment, StorePlace

METADATA_MAX_BYTES: Final = 64 * MiB
"""A ``delayOffset.json`` is some hundred bytes long; a longer file is not one."""

SHORT_MS: Final = 10 * MINUTE_MS
"""A store of a shorter time is counted, and drawn, by the second."""


class ReportPlan(NamedTuple):
    """What will be counted.

    Attributes
    ----------
    stores
        Each with its CommitLog files, missing ones included.
    """

    stores: list[tuple[StorePlace, list[Segment]]]
    tasks: list[ReportTask]
    delays: dict[str, DelayFacts]
    now_ms: int
    width_ms: int

    def known_groups(self) -> Any:
        """Return groups of what needs no counting: every file, and the damage of missing ones."""
        import pyarrow as pa  # noqa: PLC0415 - an import of this package loads no Arrow

        files = [(place.broker_name, one) for place, segments in self.stores for one in segments]
        lost = [one for one in files if one[1].state is SegmentState.MISSING]
        size = {"damagedBytes": [one.size for _, one in lost]}
        state = {"detail": [one.state.value for _, one in files]}
        reason = {
            "topic": ["missing file"] * len(lost),
            "detail": ["its neighbours are there, it is not"] * len(lost),
            "least": [0] * len(lost),
        }
        sizes = {"least": [one.size for _, one in files]}
        return pa.concat_tables(
            [
                group_rows("files", _named(files) | state | sizes),
                group_rows("files", _named(lost) | size | {"damagedRanges": [1] * len(lost)}),
                group_rows("damage", _named(lost) | size | reason),
            ]
        )


def _named(files: list[tuple[str, Segment]]) -> dict[str, list[Any]]:
    return {
        "brokerName": [broker_name for broker_name, _ in files],
        "name": [one.path for _, one in files],
        "number": [one.base for _, one in files],
    }


def plan_report(
    store: str,
    config: StoreConfig | None = None,
    *,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    now_ms: int | None = None,
) -> ReportPlan:
    """Return what a report of a store, or of a directory of stores, has to read.

    Parameters
    ----------
    store
        Path or URI.
    config
        For the delay levels, and where the log lies when not in ``commitlog``.
    max_split_bytes
        Most bytes of one task.
    now_ms
        The time that "overdue" is judged by; default: the clock's.

    Raises
    ------
    NotAStoreError
        There is no store.
    StoreError
        A directory or file cannot be read.
    """
    options = parse_options(
        {
            "paths": json.dumps([store]),
            "table": "damage",  # the one whose plan leaves nothing out and minds no missing file
            "maxSplitBytes": str(max_split_bytes),
        }
        | log_option(configured_log(store, config))
    )
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    places = find_stores(options)
    delays_ms = parse_delay_levels((config or StoreConfig()).message_delay_level)
    delays = {place.broker_name: _delay_facts(place, delays_ms, now_ms) for place in places}
    stores = [(place, list_segments(place)) for place in places]
    width_ms = _width_ms(stores)
    tasks = [
        ReportTask(
            splits,
            {split.store.broker_name: delays[split.store.broker_name] for split in splits},
            width_ms,
        )
        for splits in plan_log(options)
    ]
    return ReportPlan(stores, tasks, delays, now_ms, width_ms)


def _width_ms(stores: list[tuple[StorePlace, list[Segment]]]) -> int:
    """Return the width of the buckets of time, by the first records of the outermost files."""
    known = []
    for place, segments in stores:
        present = [one for one in segments if one.state is not SegmentState.MISSING]
        for segment in (*present[:1], *present[-1:]):
            at = first_store_timestamp_ms(place.location, segment)
            known += [] if at is None else [at]
    return SECOND_MS if not known or max(known) - min(known) <= SHORT_MS else MINUTE_MS


def _delay_facts(place: StorePlace, delays_ms: dict[int, int], now_ms: int) -> DelayFacts:
    """Read which delayed messages were delivered; as in 4.9, a backup stands in for a torn file."""
    files, root = files_at(place.location)
    path = f"{root}/config/{DELAY_OFFSETS_FILE}"
    present = {entry.path: entry.size for entry in files.list(f"{root}/config")}
    for candidate in (path, path + BACKUP_SUFFIX):
        if not 0 < present.get(candidate, 0) <= METADATA_MAX_BYTES:
            continue
        with opened(files, candidate) as file:
            content = file.read(0, METADATA_MAX_BYTES)
        try:
            table = decode_json_table(content, DelayOffsets)
        except FormatError:
            continue
        return DelayFacts(delays_ms, table.offset_table, has_offsets=True, now_ms=now_ms)
    return DelayFacts(delays_ms, {}, has_offsets=False, now_ms=now_ms)
