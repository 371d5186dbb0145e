"""What a rebuild does to the store itself: the lock, the verdict on doubtful records, the swap.

New queues and index are made below ``rebuild/<id>`` inside the store. When they are whole and
durable, each directory changes places with the new one in a single step (``RENAME_EXCHANGE``), and
the old one goes to ``repair/<time>/``. A journal says which directory is which, by inode, so that
whoever comes after a kill can tell old from new.

Law: at every moment ``consumequeue`` and ``index`` are whole, old or new; either serves the same
log. The lock is held from before the log is read until after the swap. The checkpoint is not
touched: it says up to when queues and index are on the disk, and the new ones are, to the log's
end.

How derived: decision 0010.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from rocketstore.errors import NotAStoreError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.jobs.rebuild.object_commit import kept_name
from rocketstore.pipeline.stores import REBUILD_DIRECTORY, SegmentState, list_segments
from rocketstore.storage.audit.store_audit import ReadLogFile, find_places
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.lock import StoreLock, refuse_writer
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.known_ends import forget_known_ends
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery.log_survey import survey_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.files import Files
    from rocketstore.pipeline.stores import Segment
    from rocketstore.storage.recovery.log_survey import LogBytes

_log: Final = get_logger(__name__)

JOURNAL_NAME: Final = "commit.json"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


# --- the lock -----------------------------------------------------------------------------------


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the lock of a store, as a writer does.

    Raises
    ------
    StoreLockedError
        Somebody has it open, Java or ours.
    """
    lock = StoreLock.acquire(StoreLayout.of(root).lock)
    try:
        yield
    finally:
        lock.release()


def refuse_open(root: Path) -> None:
    """Raise where a writer has the store; nothing is written, and no lock is taken."""
    refuse_writer(StoreLayout.of(root).lock, hint="stop that writer")


# --- the log ------------------------------------------------------------------------------------


class LogVerdict(NamedTuple):
    """What a whole log tells that its parts cannot.

    Attributes
    ----------
    end
        Physical offset behind the last record that is a message.
    leftovers
        Ranges whose records an earlier log left behind (decision 0004).
    files_stop
        Where the last file stops.
    """

    end: int
    leftovers: tuple[tuple[int, int], ...]
    files_stop: int

    @property
    def excluded(self) -> tuple[tuple[int, int], ...]:
        """Ranges whose records are no messages: leftovers, and all behind the end."""
        return (*self.leftovers, (self.end, max(self.end, self.files_stop)))


def judge_log(root: Path, config: StoreConfig, *, now_ms: int) -> LogVerdict:
    """Read the whole log here and say which records behind damage are messages."""
    places = find_places(root, config)
    size = places.sizes.commit_log_file_bytes
    log = PreadFiles(places.log_directories, file_size=size)
    files = [ReadLogFile(file, size) for file in log.files]
    survey = survey_log(files, now_ms=now_ms, data_stop=_data_stop)
    left = tuple((chain.start, chain.stop) for chain in survey.leftovers)
    return LogVerdict(survey.end, left, files[-1].base + size if files else 0)


def _data_stop(file: LogBytes) -> int:
    assert isinstance(file, ReadLogFile)
    return file.data_stop()


def judge_remote_log(location: str, *, now_ms: int) -> LogVerdict:
    """Do as `judge_log` for a log that is read through ``pyarrow.fs``."""
    files, _ = files_at(location)
    segments = [one for one in list_segments(location) if one.state is not SegmentState.MISSING]
    survey = survey_log([_RemoteLogFile(files, one) for one in segments], now_ms=now_ms)
    left = tuple((chain.start, chain.stop) for chain in survey.leftovers)
    last = segments[-1] if segments else None
    return LogVerdict(survey.end, left, last.base + last.file_size if last else 0)


class _RemoteLogFile:
    """One CommitLog file, read piece by piece; a file cut short ends in zeros."""

    def __init__(self, files: Files, segment: Segment) -> None:
        self.base = segment.base
        self.size = segment.file_size
        self._files = files
        self._path = segment.path

    def read_into(self, position: int, view: memoryview) -> int:
        """Fill `view` with the bytes from `position` on; return how many there were."""
        with opened(self._files, self._path) as file:
            read = file.read_into(position, view)
        view[read:] = bytes(len(view) - read)
        return len(view)

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All bytes of the file, read anew each time."""
        array = np.zeros(self.size, np.uint8)
        self.read_into(0, array.data)
        return array


# --- staging ------------------------------------------------------------------------------------


class Staging(NamedTuple):
    """Where one rebuild makes its files; all on the store's file system.

    Attributes
    ----------
    directory
        ``rebuild/<id>``.
    """

    directory: Path

    @property
    def queues(self) -> Path:
        """The new ``consumequeue``."""
        return self.directory / CONSUME_QUEUE_DIRECTORY

    @property
    def index_files(self) -> Path:
        """The new ``index``."""
        return self.directory / INDEX_DIRECTORY

    @property
    def parts(self) -> Path:
        """What tasks hand to later tasks."""
        return self.directory / "parts"


def make_staging(directory: Path) -> Staging:
    """Make the directories of a rebuild."""
    staging = Staging(directory)
    for path in (staging.queues, staging.index_files, staging.parts):
        path.mkdir(parents=True)
    return staging


# --- the swap -----------------------------------------------------------------------------------


class Swap(msgspec.Struct, frozen=True):
    """One directory that is replaced; inodes tell which is which after a kill."""

    name: str
    new_inode: int
    old_inode: int | None


class Journal(msgspec.Struct, frozen=True):
    """What a commit is going to do."""

    staging: str
    kept: str
    swaps: list[Swap]


def commit(
    root: Path,
    staging: Staging,
    names: Sequence[str],
    *,
    now_ms: int,
    disk: Disk | None = None,
    step: Callable[[str], None] = lambda _name: None,
) -> str | None:
    """Put new directories in the place of the old ones; the caller holds the lock.

    Parameters
    ----------
    staging
        Whole; its files were synced by who wrote them.
    names
        ``consumequeue``, ``index``: what is replaced.
    now_ms
        The time, for the directory where the old ones are kept.
    step
        Told before each step; a test's own may end the process there.

    Returns
    -------
    str or None
        Where the old directories are, relative to the store; None when there were none.

    Raises
    ------
    StoreError
        A directory cannot be replaced: it is a link or a mount of its own.
    """
    disk = disk or Disk()
    for name in names:
        _refuse_link(root / name)
        _sync_tree(staging.directory / name, disk)
    shutil.rmtree(staging.parts, ignore_errors=True)
    swaps = [
        Swap(name, (staging.directory / name).stat().st_ino, _inode(root / name)) for name in names
    ]
    kept = _kept_directory(root, now_ms)
    journal = Journal(
        staging.directory.relative_to(root).as_posix(), kept.relative_to(root).as_posix(), swaps
    )
    step("journal")
    _write_journal(root, journal, disk)
    # It names index files that are about to go; the next opening would miss them.
    forget_known_ends(root, keep_queues=True, disk=disk)
    for swap in swaps:
        step(f"swap {swap.name}")
        _swap(root, staging.directory, swap)
        disk.fsync_directory(root)
        disk.fsync_directory(staging.directory)
    step("keep")
    is_kept = _keep_old(root, journal, disk)
    step("sweep")
    _sweep(root, disk)
    _log.info("rebuild.committed", root=str(root), kept=journal.kept if is_kept else None)
    return journal.kept if is_kept else None


def finish_interrupted(root: Path, *, disk: Disk | None = None) -> bool:
    """Bring in order what a rebuild that was killed left; the caller holds the lock.

    Directories that are in place stay, old or new: both are whole, and a writer may have gone on
    with them since. One that is missing, which only a kill between two plain renames leaves, gets
    the new one. Old ones are kept in ``repair/``; all else below ``rebuild`` is removed.

    Returns
    -------
    bool
        Whether there was anything.
    """
    disk = disk or Disk()
    top = root / REBUILD_DIRECTORY
    if not top.is_dir():
        return False
    journal = _read_journal(root)
    if journal is not None:
        staging = root / journal.staging
        for swap in journal.swaps:
            new = staging / swap.name
            if not (root / swap.name).exists() and _inode(new) == swap.new_inode:
                new.rename(root / swap.name)
        disk.fsync_directory(root)
        _keep_old(root, journal, disk)
    _sweep(root, disk)
    _log.warning("rebuild.swept", root=str(root), had_journal=journal is not None)
    return True


def _swap(root: Path, staging: Path, swap: Swap) -> None:
    current, new = root / swap.name, staging / swap.name
    if swap.old_inode is None:
        new.rename(current)
        return
    try:
        _exchange(new, current)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise StoreError(
                f"{current} cannot be replaced: {error.strerror}",
                hint="consumequeue and index have to lie on the store's own file system",
            ) from error
        # The file system cannot exchange: for a moment there is none, which the journal mends.
        current.rename(staging / f"old-{swap.name}")
        new.rename(current)


def _exchange(one: Path, other: Path) -> None:
    """Let two names change places in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, "no renameat2")
    outcome = function(
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(one)),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(other)),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    if outcome != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _keep_old(root: Path, journal: Journal, disk: Disk) -> bool:
    """Move directories that were replaced to ``repair/``; return whether there are any."""
    staging, kept = root / journal.staging, root / journal.kept
    for swap in journal.swaps:
        for candidate in (staging / swap.name, staging / f"old-{swap.name}"):
            if swap.old_inode is not None and _inode(candidate) == swap.old_inode:
                disk.make_directory(kept)
                candidate.rename(kept / swap.name)
                disk.fsync_directory(kept)
    return kept.is_dir()


def _kept_directory(root: Path, now_ms: int) -> Path:
    top = StoreLayout.of(root).repair
    taken = {path.name for path in top.iterdir()} if top.is_dir() else set()
    return top / kept_name(taken, now_ms)


def _sweep(root: Path, disk: Disk) -> None:
    """Remove everything below ``rebuild``, the journal last."""
    top = root / REBUILD_DIRECTORY
    for path in sorted(top.iterdir()):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    disk.unlink(top / JOURNAL_NAME)
    shutil.rmtree(top, ignore_errors=True)
    disk.fsync_directory(root)


# --- the journal --------------------------------------------------------------------------------


def _write_journal(root: Path, journal: Journal, disk: Disk) -> None:
    path = root / REBUILD_DIRECTORY / JOURNAL_NAME
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        disk.fdatasync(file.fileno(), temporary)
    disk.replace(temporary, path)
    disk.fsync_directory(path.parent)
    disk.fsync_directory(root)


def _read_journal(root: Path) -> Journal | None:
    path = root / REBUILD_DIRECTORY / JOURNAL_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{path} is no journal of a rebuild: {error}",
            hint=f"look at {path.parent}, and remove it when nothing in it is needed",
        ) from error


# --- directories --------------------------------------------------------------------------------


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreError(
            f"{path} is a link, which a rebuild would replace by a directory",
            hint="use: rocketstore queue rebuild, rocketstore index rebuild",
        )
    if path.exists() and not path.is_dir():
        raise NotAStoreError(f"{path} is no directory", hint="move it away")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _sync_tree(top: Path, disk: Disk) -> None:
    """Make the names of all files below `top` durable; their bytes are."""
    for directory, _, _ in os.walk(top, topdown=False):
        disk.fsync_directory(Path(directory))
