"""Rebuild a store on an object store: whole objects from a shuffle, then `object_commit`."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import numpy as np

from rocketstore.errors import ConfigError, NotAStoreError, StoreError
from rocketstore.format.file_name import file_name
from rocketstore.format.markers import (
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.files import files_at, last_name
from rocketstore.pipeline.jobs.rebuild import driver_commit
from rocketstore.pipeline.jobs.rebuild.claims import claimed
from rocketstore.pipeline.jobs.rebuild.construction import (
    Making,
    build_with,
    counts_of,
    index_file_names,
    keep_numbers,
    shuffle_rows,
)
from rocketstore.pipeline.jobs.rebuild.given_numbers import QueueTops
from rocketstore.pipeline.jobs.rebuild.object_commit import (
    StagedQueues,
    commit_objects,
    finish_interrupted_objects,
    sweep_unplaced,
)
from rocketstore.pipeline.jobs.rebuild.object_writing import ObjectWriting
from rocketstore.pipeline.jobs.rebuild.report import report_of
from rocketstore.pipeline.objects import ObjectStore, check_sole_writer
from rocketstore.pipeline.stores import (
    REBUILD_DIRECTORY,
    StorePlace,
    configured_log,
    store_with_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rocketstore.pipeline.jobs.rebuild.construction import BuildOptions
    from rocketstore.pipeline.jobs.rebuild.parts import PartManifest
    from rocketstore.pipeline.jobs.rebuild.report import RebuildReport
    from rocketstore.pipeline.jobs.rebuild.runner import Runner
    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.jobs.rebuild.tasks import LogTask


def rebuild_objects(
    runner: Runner,
    location: str,
    options: BuildOptions,
    *,
    sole_writer: bool,
    take_over: bool = False,
    step: Callable[[str], None] = lambda _name: None,
) -> RebuildReport:
    """Rebuild the store of a URI; `step` is told before each step of the commit.

    Raises
    ------
    As `rebuild`.
    """
    began = time.perf_counter()
    check_sole_writer(location, sole_writer=sole_writer)
    check_remote(location, options)
    objects = ObjectStore(location)
    with claimed(objects, take_over=take_over, now_ms=options.now_ms) as claim:
        finish_interrupted_objects(objects)

        def checked_step(name: str) -> None:
            step(name)
            if name == "intent":
                claim.check()

        try:
            return _rebuild_claimed(runner, objects, options, began, checked_step)
        except Exception:
            with contextlib.suppress(StoreError):
                claim.check()  # what is there may be another's now
                sweep_unplaced(objects)
            raise


def _rebuild_claimed(
    runner: Runner,
    objects: ObjectStore,
    options: BuildOptions,
    began: float,
    step: Callable[[str], None],
) -> RebuildReport:
    location = objects.location
    place = StorePlace(location, last_name(location), is_open=False)
    staged = StagedQueues(objects, f"{REBUILD_DIRECTORY}/{uuid.uuid4().hex}")
    index_names: dict[str, str] = {}

    def write(
        runner: Runner,
        tasks: Sequence[LogTask],
        manifests: Sequence[PartManifest],
        settings: RebuildSettings,
    ) -> tuple[int, int, int]:
        writing = ObjectWriting(location, staged.directory, settings)
        table = shuffle_rows(runner, tasks, manifests, writing.write)
        index_names.update(index_file_names(table))
        return counts_of(table)

    def judge() -> driver_commit.LogVerdict:
        return driver_commit.judge_remote_log(location, now_ms=options.now_ms)

    built = build_with(runner, place, Making(judge, write), options)
    tops = QueueTops(objects.files, f"{objects.root}/{CONSUME_QUEUE_DIRECTORY}", staged.queues)
    writer = ObjectQueues(objects, staged.queues, built.settings.queue_file_bytes)
    kept_places = keep_numbers(place, tops, writer, built)
    queues = (_queue_names(objects.sizes(tops.old)), _queue_names(objects.sizes(tops.new)))
    names = [CONSUME_QUEUE_DIRECTORY, *([INDEX_DIRECTORY] if built.settings.has_index else [])]
    placing = staged.checked(built.settings, tuple(names), index_names)
    step("built")
    kept = commit_objects(staged, placing, now_ms=options.now_ms, step=step)
    return report_of(location, options, built, queues, kept_places, kept, began)


def check_remote(location: str, options: BuildOptions) -> None:
    """Refuse a URI without a store, or settings that an object store cannot follow.

    Raises
    ------
    ConfigError, NotAStoreError
        It is so.
    """
    directories = configured_log(location, options.config)
    if directories:
        store_with_log(location, directories)
    if options.plan != "shuffle":
        raise ConfigError(
            f"{location} lies on an object store, where no file is written in place",
            key="plan",
            value=options.plan,
            hint='plan="shuffle", --plan shuffle',
        )
    files, root = files_at(location)
    if not files.list(f"{root}/{COMMIT_LOG_DIRECTORY}"):
        raise no_store(location)


def no_store(location: str) -> NotAStoreError:
    """Return the error that says that no store is there."""
    return NotAStoreError(
        f"{location} is no store: it has no commitlog directory",
        hint="give the directory that holds commitlog, consumequeue and index; for a log that lies "
        "elsewhere set storePathCommitLog",
    )


def _queue_names(paths: Iterable[str]) -> set[str]:
    return {"/".join(path.split("/")[:2]) for path in paths if path.count("/") > 1}


class ObjectQueues:
    """Writes entries into queue files that are objects: each is read, changed and written anew."""

    def __init__(self, objects: ObjectStore, top: str, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self._objects = objects
        self._top = top

    def write(self, directory: str, queue_offset: int, entries: bytes) -> None:
        """Write entries from a queue offset on into the queue of a directory."""
        at = queue_offset * ENTRY_SIZE_BYTES
        view = memoryview(entries)
        while view:
            base = at - at % self.file_bytes
            path = f"{self._top}/{directory}/{file_name(base)}"
            content = np.zeros(self.file_bytes, np.uint8)
            found = np.frombuffer(self._objects.content(path) or b"", np.uint8)
            content[: len(found)] = found
            piece = view[: base + self.file_bytes - at]
            content[at - base : at - base + len(piece)] = piece
            self._objects.put(path, content.tobytes())
            view = view[len(piece) :]
            at += len(piece)

    def close(self) -> None:
        """Do nothing: an object is durable when it is written."""
