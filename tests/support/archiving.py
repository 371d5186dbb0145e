"""Archive without Spark: each task pickled as Spark does, one after the other."""

import json
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

from rocketstore.config import StoreConfig
from rocketstore.format.record import body_crc
from rocketstore.pipeline.jobs.archive import archive_job
from rocketstore.pipeline.jobs.archive.archive_job import ArchiveResult
from rocketstore.pipeline.jobs.archive.archive_table import EXTENT_SCHEMA, LOG_KINDS, Archive
from rocketstore.pipeline.jobs.execution import map_tasks
from rocketstore.units import MiB
from support.arrow_frames import Frames
from support.small_store import read_log


def sent(task: Any) -> Any:
    """Return a task as a worker gets it."""
    return pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes


def archived(
    store: Path | str,
    target: Path | str,
    *,
    stretch: int = MiB,
    run: Any = None,
    config: StoreConfig | None = None,
) -> ArchiveResult:
    """Archive; `run` takes the place of `map_tasks`."""
    with mock.patch.object(archive_job, "map_tasks", run or map_tasks):
        return archive_job.archive(Frames(), store, target, config=config, max_split_bytes=stretch)


def rows(archive: Path | str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the archived records in the order of the log."""
    return _rows(Archive.open(archive), columns)


def _rows(archive: Archive, columns: list[str] | None = None) -> list[dict[str, Any]]:
    table = archive.messages.to_pyarrow_table(columns=columns)
    return sorted(table.to_pylist(), key=lambda row: row["physicalOffset"])


def written_by_another(table: Path, feature: str, *actions: dict[str, Any]) -> None:
    """Commit what `deltalake` cannot write, with a feature that readers have to know if it acts."""
    log, named = table / "_delta_log", {"writerFeatures": [feature]}
    if actions:
        named["readerFeatures"] = [feature]
    protocol = {"minReaderVersion": 3 if actions else 1, "minWriterVersion": 7, **named}
    lines = map(json.dumps, ({"protocol": protocol}, *actions))
    (log / f"{len([*log.glob('*.json')]):020}.json").write_text("\n".join(lines))


def log_bytes(store: Path) -> dict[str, bytes]:
    """Return the CommitLog files of a store."""
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


def state(archive: Path | str) -> tuple[int, int]:
    """Return the versions of the tables: they change when something is committed."""
    opened = Archive.open(archive)
    return opened.messages.version(), opened.extents.version()


def assert_covers(archive: Path | str, store: Path) -> list[dict[str, Any]]:
    """Check that rows say every byte of the log once, with the log's own checksums and bytes.

    They are what `rows` returns.
    """
    opened = Archive.open(archive)
    (broker,) = opened.brokers()
    runs = opened.runs(broker)
    records = _rows(opened)
    found = {row["physicalOffset"]: (row["size"], row["recordCRC"]) for row in records}
    assert len(found) == len(records)
    numbers = {run.number for run in runs}
    for row in opened.read_extents(LOG_KINDS, EXTENT_SCHEMA.names[3:]):
        if row["run"] in numbers:
            assert row["physicalOffset"] not in found
            assert row["contentCRC"] == body_crc(row["content"])
            whole = row["content"].ljust(row["size"], b"\0")
            found[row["physicalOffset"]] = (
                row["size"],
                None if row["kind"] == "gap" else body_crc(whole),
            )
    position = runs[0].begin
    for offset, (size, crc) in sorted(found.items()):
        assert offset == position
        assert crc in (None, body_crc(read_log(store, offset, size)))
        position += size
    assert position == runs[-1].end
    return records
