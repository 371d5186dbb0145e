"""What a proof asks of a store on a disk: its lock, the verdict on doubtful records, staging."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.pipeline.files import files_at, opened
from rocketstore.pipeline.stores import SegmentState, list_segments
from rocketstore.storage.audit.store_audit import ReadLogFile, find_places
from rocketstore.storage.files.lock import refuse_writer
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.recovery.log_survey import survey_log

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rocketstore.config import StoreConfig
    from rocketstore.pipeline.files import Files
    from rocketstore.pipeline.stores import Segment
    from rocketstore.storage.recovery.log_survey import LogBytes


# --- the lock -----------------------------------------------------------------------------------


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
