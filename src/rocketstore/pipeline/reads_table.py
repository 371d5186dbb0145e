"""Table ``reads``: what a query of the log with the same options reads, and what it leaves out.

A row for each byte range: for those that are read, what was found there by reading them, and for
the others how long they are. The rows of a file are its bytes as far as they were written; with
``endOffset``, those between the two places in the log that a batch of a stream is of.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from rocketstore.errors import ConfigError
from rocketstore.pipeline import planning
from rocketstore.pipeline.log_read import Losses, chosen_records
from rocketstore.pipeline.option_table import refused
from rocketstore.pipeline.planning import SplitTask
from rocketstore.pipeline.projection import rows_batch
from rocketstore.pipeline.queues import choosing, chosen_stores
from rocketstore.places.files import stored_stop
from rocketstore.places.log_files import list_segments
from rocketstore.places.queue_files import QueueFiles
from rocketstore.units import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyarrow import RecordBatch, Schema

    from rocketstore.pipeline.options import ReadOptions

    ReadTask = tuple[bool, tuple[SplitTask, ...]]  # whether these ranges are read

_COUNTED: Final = ("bytesRead", "records", "rows", "resyncs", "damagedRanges", "damagedBytes")


def plan_reads(options: ReadOptions) -> list[ReadTask]:
    """Return the tasks of a query, and one with all that the plan leaves out."""
    bounds: dict[str, ByteRange] = {}
    tasks = _of_batch(options, bounds) if options.end_offset else planning.plan_log(options)
    kept = defaultdict(list)
    for part in (part for task in tasks for part in task):
        kept[part.store.location, part.segment.base].append(part)
    left = []
    for store in chosen_stores(options):
        for segment in (one for one in list_segments(store) if not one.is_missing):
            at, stop = 0, stored_stop(store.location, segment.path, segment.size)
            if options.end_offset:
                batch = bounds.get(store.broker_name, ByteRange(0, 0))
                at, stop = max(at, batch.start - segment.base), min(stop, batch.stop - segment.base)
            else:
                stop = min(stop, planning.whole_file(store, segment, {}).stop)
            end = SplitTask(store, segment, stop, stop)
            for part in [*kept[store.location, segment.base], end]:
                if part.start > at:
                    left.append(end._replace(start=at, stop=part.start))
                at = max(at, part.stop)
    return [*((True, task) for task in tasks), *([(False, tuple(left))] if left else [])]


def _of_batch(options: ReadOptions, bounds: dict[str, ByteRange]) -> list[tuple[SplitTask, ...]]:
    """Return the tasks of a stream's batch; `bounds` get the part of each store's log in it."""
    from rocketstore.pipeline.streaming import live_log, live_queues, stream_options  # noqa: PLC0415 - rare

    follow = live_queues.LiveQueues if options.has_topic_choice else live_log.LiveLog
    kind = stream_options.QUEUES if options.has_topic_choice else stream_options.LOG
    try:
        places = stream_options.from_json(json.loads(options.end_offset), kind)
    except (ValueError, TypeError, ConfigError) as error:
        what = "is not of a batch of a stream with these options"
        hint = "take it from a source in the query's progress, with the options of the stream"
        raise refused("endOffset", options.end_offset, what, hint) from error
    parts: list[SplitTask] = []
    for store in chosen_stores(options):
        place = places.get(store.broker_name)
        if place is not None and place.since is not None:
            bounds[store.broker_name] = ByteRange(place.since, place.offset)
            begin, losses = stream_options.Place(place.since), Losses(options)
            parts += follow(store, choosing(options, place.choices)).tasks(begin, place, losses)
    return planning.plan_ranges(parts, options)


def reads(task: ReadTask, options: ReadOptions, schema: Schema) -> Iterator[RecordBatch]:
    """Yield a row for each byte range of a task."""
    is_read, parts = task
    options, queue_of, rows = replace(options, damage="skip"), cache(QueueFiles), []
    for part in parts:
        seen: Counter[str] = Counter()
        chosen = choosing(options, part.choices)
        for columns in chosen_records(part, chosen, queue_of, seen) if is_read else ():
            seen["rows"] += len(columns)
        way = "pruned" if not is_read else "scanned" if seen["scans"] else "by entries"
        place = part.segment.path, part.segment.base + part.start, part.byte_count, way
        rows.append((*place, *(seen[name] for name in _COUNTED), part.store.broker_name))
    yield rows_batch("reads", rows, schema)
