"""Where everything lies below the root of a store, and which directory gets the next log file.

Law: this module makes no directory and opens no file; it only says where things are.

How derived: StorePathConfigHelper, MultiPathMappedFileQueue of 4.9 (spec F1, F1.1). Two faults are
not repeated: several CommitLog paths are never taken for one directory named ``a,b`` (#3901), and
the CommitLog path follows the root when it is not set (K-F2).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstore.config import StoreConfig, commit_log_directories
from rocketstore.errors import ConfigError
from rocketstore.format.file_name import file_name
from rocketstore.format.markers import (
    ABORT_FILE_NAME,
    CHECKPOINT_FILE_NAME,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    LOCK_FILE_NAME,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rocketstore.units import QueueKey

REPAIR_DIRECTORY: Final = "repair"
"""Where copies of what recovery and repair cut are kept; 4.9 knows no such directory."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths of one store.

    Attributes
    ----------
    root
        ``storePathRootDir``.
    commit_log_directories
        Where CommitLog files are made; one, unless ``storePathCommitLog`` names several.
    read_only_directories
        ``readOnlyCommitLogStorePaths``: CommitLog files there are read, never written or deleted.
    """

    root: Path
    commit_log_directories: tuple[Path, ...]
    read_only_directories: tuple[Path, ...] = ()

    @classmethod
    def of(cls, root: str | Path, config: StoreConfig | None = None) -> StoreLayout:
        """Return the layout of the store at `root`.

        Raises
        ------
        ConfigError
            All CommitLog paths are read-only, so no file could ever be made.
        """
        root = Path(root)
        config = StoreConfig() if config is None else config
        directories = commit_log_directories(config, root)
        if not directories.writable:
            raise ConfigError(
                f"every CommitLog path is read-only: {config.store_path_commit_log}",
                key="readOnlyCommitLogStorePaths",
                value=config.read_only_commit_log_store_paths,
                hint="leave at least one path of storePathCommitLog writable",
            )
        return cls(root, directories.writable, directories.read_only)

    @property
    def consume_queue(self) -> Path:
        """Directory of topics, each a directory of queues."""
        return self.root / CONSUME_QUEUE_DIRECTORY

    @property
    def consume_queue_ext(self) -> Path:
        """Directory of queue extensions, when they are enabled."""
        return self.root / CONSUME_QUEUE_EXT_DIRECTORY

    @property
    def index(self) -> Path:
        """Directory of index files."""
        return self.root / INDEX_DIRECTORY

    @property
    def config(self) -> Path:
        """Directory of the JSON tables."""
        return self.root / CONFIG_DIRECTORY

    @property
    def checkpoint(self) -> Path:
        """The file of three times."""
        return self.root / CHECKPOINT_FILE_NAME

    @property
    def abort(self) -> Path:
        """The marker of a writer that has not ended in order."""
        return self.root / ABORT_FILE_NAME

    @property
    def lock(self) -> Path:
        """The file whose first byte the writer locks."""
        return self.root / LOCK_FILE_NAME

    @property
    def repair(self) -> Path:
        """Where copies of what recovery and repair cut are kept."""
        return self.root / REPAIR_DIRECTORY

    def queue_directory(self, key: QueueKey) -> Path:
        """Return the directory of one queue; its put checked the topic's name."""
        return self.consume_queue / key.topic / str(key.queue_id)


def log_file_placement(
    layout: StoreLayout, file_size: int, full_directories: Callable[[], Collection[Path]]
) -> Callable[[int], Path]:
    """Return the rule that says in which directory the CommitLog file of an offset is made.

    Parameters
    ----------
    layout
        Names the candidates.
    file_size
        Bytes of one CommitLog file.
    full_directories
        Asked at each file: the directories whose partition is too full (above 0.85 by default).
        They are passed over as long as another is left.

    Notes
    -----
    Source: MultiPathMappedFileQueue.tryCreateMappedFile (spec F1.1).
    """
    directories = layout.commit_log_directories

    def place(base: int) -> Path:
        full = full_directories() if len(directories) > 1 else ()
        candidates = [path for path in directories if path not in full] or list(directories)
        return sorted(candidates, key=str)[base // file_size % len(candidates)]

    return place


def log_file_path(place: Callable[[int], Path], base: int) -> Path:
    """Return the path of the CommitLog file that begins at `base`."""
    return place(base) / file_name(base)
