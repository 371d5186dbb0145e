"""What an audit's tasks are to read, and what its driver reads at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from rocketstore.config import parse_delay_levels
from rocketstore.format.index_file import is_index_file_name
from rocketstore.format.markers import CONFIG_DIRECTORY
from rocketstore.pipeline.files import opened
from rocketstore.pipeline.jobs.audit.audit_places import data_stop
from rocketstore.pipeline.jobs.audit.audit_work import (
    AuditedFile,
    AuditTask,
    Cut,
    passing_over_deleted,
)
from rocketstore.scan.split import SegmentFile, plan_splits
from rocketstore.verification.findings import Finding, finding
from rocketstore.verification.small_files import SMALL_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.jobs.audit.audit_places import StorePlaces

_QUEUE_FILES: Final = 2_000
"""Queue files that one task names."""


def common_task(places: StorePlaces, config: StoreConfig) -> AuditTask:
    """Return what all tasks share."""
    levels = parse_delay_levels(config.message_delay_level)
    return AuditTask(
        places.location,
        places.sizes.commit_log_file_bytes,
        places.sizes.consume_queue_file_bytes,
        places.index_layout,
        config.message_index_enable,
        places.is_live,
        places.log.first,
        tuple(levels.get(level, 0) for level in range(max(levels, default=0) + 1)),
    )


def cuts_of(places: StorePlaces, max_split_bytes: int) -> Iterator[Cut]:
    """Yield the ranges of the log that hold something."""
    size = places.sizes.commit_log_file_bytes
    for file in places.log.files:
        stop = data_stop(places, file)
        # Cut where the whole file would be cut, however much of it is written.
        for cut in plan_splits([SegmentFile(file.path, file.base, size)], max_split_bytes):
            if cut.start < stop:
                known = None if places.is_live else stop
                yield Cut(file.path, file.base, cut.start, min(cut.stop, stop), file.size, known)


def log_tasks(common: AuditTask, cuts: Iterable[Cut], limit: int) -> Iterator[AuditTask]:
    """Put small neighbours into one task."""
    group: list[Cut] = []
    size = 0
    for cut in cuts:
        if group and size + cut.stop - cut.start > limit:
            yield common._replace(cuts=tuple(group))
            group, size = [], 0
        group.append(cut)
        size += cut.stop - cut.start
    if group:
        yield common._replace(cuts=tuple(group))


def queue_file_tasks(common: AuditTask, places: StorePlaces) -> Iterator[AuditTask]:
    """Yield tasks that name the files of queues."""
    files = (
        AuditedFile(
            *key,
            file.base,
            file.size,
            file.path,
            bool(places.extensions.get((key[0], str(key[1])))),
        )
        for key, row in places.queues.items()
        for file in row.files
    )
    while group := tuple(itertools.islice(files, _QUEUE_FILES)):
        yield common._replace(queue_files=group)


def small_contents(places: StorePlaces) -> dict[str, bytes]:
    """Return the small files that are there, by their names below the store."""
    found = {}
    for directory in (places.root, f"{places.root}/{CONFIG_DIRECTORY}"):
        for entry in places.files.list(directory):
            name = places.below_root(entry.path)
            if name in SMALL_FILES and not entry.is_directory:
                with passing_over_deleted(), opened(places.files, entry.path) as file:
                    found[name] = file.read(0, entry.size)
    return found


def index_files_of(places: StorePlaces) -> tuple[list[Finding], list[tuple[str, str]]]:
    """Return what is wrong with index files as they are listed, and the others."""
    wrong: list[Finding] = []
    found: list[tuple[str, str]] = []
    expected = places.index_layout.size_bytes
    for entry in places.index_entries:
        name = places.below_root(entry.path)
        if entry.is_directory or not is_index_file_name(entry.name):
            reason = "no index file's name; it is passed over"
            wrong.append(finding("index-extra", name, reason))
        elif entry.size != expected:
            reason = f"length: expected {expected} bytes, found {entry.size}"
            wrong.append(finding("index-length", name, reason))
        else:
            found.append((entry.path, name))
    return wrong, found
