"""A directory that appears under its name as a whole: the way in which jobs publish their output.

On a disk it is written beside its place and renamed; on an object store in its place, and
``_SUCCESS`` comes last, as Spark's own writers have it.

Law: leftovers of a killed job are never taken for a result, and never deleted by another run, which
cannot tell whether their writer still lives.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import ConfigError, RocketStoreError, StoreError, StoreFullError
from rocketstore.events import get_logger
from rocketstore.format.file_name import COMMIT_LOG_DIRECTORY
from rocketstore.pipeline.columns import arrow_schema
from rocketstore.pipeline.jobs.execution import map_batches
from rocketstore.pipeline.jobs.sweeping import OWNER, claim
from rocketstore.places.files import (
    files_at,
    make_directories,
    missing_directories,
    plain_reads,
    sync_all,
    sync_path,
)
from rocketstore.places.location import is_remote, local_path
from rocketstore.places.objects import ObjectStore
from rocketstore.places.stores import SIGNS_OF_A_STORE
from rocketstore.rules.files import in_the_way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

PARTIAL: Final = ".partial"
"""What the name of a directory that is not published yet ends with; it begins with a dot."""

DELTA_LOG: Final = "_delta_log"
SUCCESS: Final = "_SUCCESS"
"""An empty object, written last."""

LOOKS: Final = 10
PAUSE_S: Final = 0.1
"""How often, and how long after one another, what tasks write late is removed again."""

_log = get_logger(__name__)


@contextmanager
def published(location: str) -> Iterator[str]:
    """Yield a place to write to, which becomes `location` when the block ends without an error.

    At `location` there is nothing yet, or an empty directory. Workers may write to the place; the
    writer of a file there also syncs it.
    """
    if is_remote(location):
        refuse_taken(location)
        try:
            yield location
            put(location, SUCCESS, b"")
        except RocketStoreError as error:
            with suppress(StoreError):
                if ObjectStore(location).sizes():
                    left = f"what it wrote to {location} is no result: delete it before another run"
                    error.hint = "; ".join(filter(None, (error.hint, left)))
            raise
        return
    place = local_path(location)
    refuse_taken(place)
    target = Path(os.path.realpath(place))  # no directory is renamed to a link
    made = missing_directories(target.parent)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
    try:
        with plain_write_errors(target):
            make_directories(partial)
            claim(partial)
            yield str(partial)
            (partial / OWNER).unlink(missing_ok=True)
            sync_all(directory for directory, _, _ in os.walk(partial))
            partial.rename(target)
            try:
                sync_path(target.parent)
            except OSError:
                target.rename(partial)  # which is removed: the error says that nothing is there
                raise
    except BaseException as error:
        # Spark may begin late what it was asked for before Ctrl-C, and makes the place again.
        with suppress(OSError):
            remove_tree(partial, may_return=isinstance(error, KeyboardInterrupt))
        remove_empty(made)
        raise


def remove_tree(directory: Path, *, may_return: bool = False) -> None:
    """Remove a directory to which tasks may still write, which Spark ends after their job."""
    for _ in range(LOOKS):
        shutil.rmtree(directory, ignore_errors=True)
        if not (may_return or directory.exists()):
            return
        time.sleep(PAUSE_S)
    shutil.rmtree(directory, ignore_errors=may_return)


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those of some directories that are there and empty."""
    for one in directories:
        with suppress(OSError):
            one.rmdir()


def write_parquet(frame: DataFrame, work: Any, schema: str, directory: Path) -> None:
    """Write what `work` makes of each partition (`map_batches`) to a directory, a file each.

    Law: a worker that does not see the directory raises; of attempts of a task one file is read.
    """
    directory.mkdir()

    def written(batches: Iterator[Any]) -> Iterator[Any]:
        from pyarrow import parquet  # noqa: PLC0415 - workers of these jobs only
        from pyspark import TaskContext  # noqa: PLC0415 - as above

        task, columns = TaskContext.get(), arrow_schema(schema)
        path = directory / f".{uuid.uuid4().hex}"  # which readers pass over
        with plain_write_errors(directory.parent):
            with path.open("xb") as file, parquet.ParquetWriter(file, columns) as writer:
                for rows in work(batches):
                    writer.write_batch(rows.cast(columns))
            sync_path(path)
            path.replace(directory / f"part-{task.partitionId() if task else 0}.parquet")
        return iter(())

    map_batches(frame, written, schema).toArrow()
    for left in directory.glob(".*"):
        left.unlink(missing_ok=True)


def put(place: str, name: str, content: bytes) -> None:
    """Write a small file, or object, below a place that is not published yet."""
    if is_remote(place):
        ObjectStore(place).put(name, content)
        return
    path = Path(place, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    sync_path(path)


def refuse_inside_store(location: str, key: str) -> None:
    """Raise where a place lies inside a store on a disk, or a Delta table, which a VACUUM empties.

    Stricter than an opening, which has to go on with a store that exists below another's root.
    """
    for root in () if is_remote(location) else Path(os.path.realpath(local_path(location))).parents:
        signs = (root / name for name in SIGNS_OF_A_STORE)
        with plain_reads(str(root)):
            is_store = (root / COMMIT_LOG_DIRECTORY).is_dir() and any(one.exists() for one in signs)
            is_table = (root / DELTA_LOG).is_dir()
        if is_store or is_table:
            what = f"{location} lies inside the {'store' if is_store else 'table'} {root}"
            raise ConfigError(what, key=key, value=location, hint="name a directory elsewhere")


def local_place(out: str) -> Path:
    """Return the directory that a job is to make: on a disk, its name plain."""
    problem = "is not on a disk" if is_remote(out) else "has a backslash in it" * ("\\" in out)
    if problem:
        raise ConfigError(f"{out} {problem}", key="out", value=out, hint="name another directory")
    return Path(local_path(out))


def refuse_taken(location: str) -> None:
    """Raise where something is at `location` that a job would have to replace, or in a store."""
    refuse_inside_store(location, "out")
    files, path = files_at(location)
    found, is_local = files.list(path), not is_remote(location)
    if not is_local and found and SUCCESS not in {entry.name for entry in found}:
        raise StoreError(
            f"{location} has objects, but no {SUCCESS}: something else, or the leftovers of a run "
            "that did not end",
            hint="delete them if no process writes there, or name a new place",
        )
    if found or (is_local and os.path.lexists(path) and not Path(path).is_dir()):
        raise StoreError(
            f"{location} is there already: expected nothing, or an empty directory",
            hint="name a directory that does not exist yet",
        )
    target = Path(os.path.realpath(path) if is_local else path)
    if is_local and target.is_mount():
        raise StoreError(
            f"{location} is where a disk is mounted: nothing can be renamed to it",
            hint="name a directory below it, which need not be there",
        )
    pattern = f".{escape(target.name)}.*{PARTIAL}"
    for left in sorted(target.parent.glob(pattern) if is_local else ()):
        hint = "another run's; if that was killed: rocketstore pipeline sweep"
        _log.warning("job.left", path=left, hint=hint)


@contextmanager
def plain_write_errors(
    place: Path | str,
    outcome: str = "nothing of this run counts",
    kind: type[RocketStoreError] = StoreError,
) -> Iterator[None]:
    """Raise one sentence where a place cannot be written: as `kind`, or as a full disk."""
    try:
        yield
    except OSError as error:
        why = str(error.strerror or error)
        hint = "Spark's driver and workers must see the place under one path, and may write there"
        if isinstance(error, FileExistsError):
            why, hint = in_the_way(Path(error.filename))
        what = f"{place} cannot be written: {why}; {outcome}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(what, hint="make room and run it again") from error
        raise kind(what, hint=hint) from error
