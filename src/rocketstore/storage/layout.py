"""Where everything lies below the root of a store, and which directory gets the next log file.

Law: this module makes no directory and opens no file; it only says where things are.

How derived: StorePathConfigHelper, MultiPathMappedFileQueue of 4.9 (spec F1, F1.1). Two faults are
not repeated: several CommitLog paths are never taken for one directory named ``a,b`` (#3901), and
the CommitLog path follows the root when it is not set (K-F2).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from rocketstore.config import StoreConfig, commit_log_directories
from rocketstore.errors import ArgumentError, ConfigError, SystemRefusedError
from rocketstore.format import file_name as names


class StoreLayout:
    """Paths of one store.

    CommitLog files are made in one directory, unless ``storePathCommitLog`` names several; those of
    ``readOnlyCommitLogStorePaths`` are read, never written or deleted. The directory for copies of
    bytes that recovery and repair cut is unknown to 4.9.
    """

    def __init__(
        self, root: Path, writable: tuple[Path, ...], read_only: tuple[Path, ...] = ()
    ) -> None:
        try:  # a program may go elsewhere while the store is open
            self.root = root = root.absolute()
            self.commit_log_directories = tuple(path.absolute() for path in writable)
            self.read_only_directories = tuple(path.absolute() for path in read_only)
        except OSError as error:  # the directory that it is in was removed
            what = f"cannot tell where {root} lies: {error.strerror}"
            hint = "go to a directory that is there, or give the whole path"
            raise SystemRefusedError(what, code=error.errno, hint=hint) from error
        self.consume_queue = root / names.CONSUME_QUEUE_DIRECTORY
        self.consume_queue_ext = root / names.CONSUME_QUEUE_EXT_DIRECTORY
        self.batch_consume_queue = root / names.BATCH_CONSUME_QUEUE_DIRECTORY
        self.index = root / names.INDEX_DIRECTORY
        self.checkpoint = root / names.CHECKPOINT_FILE_NAME
        self.abort = root / names.ABORT_FILE_NAME
        self.lock = root / names.LOCK_FILE_NAME
        self.repair = root / "repair"
        self.config = root / names.CONFIG_DIRECTORY

    def repair_at(self, now_ms: int) -> Path:
        """Return the directory below ``repair`` that is named after a time."""
        try:
            moment = datetime.fromtimestamp(now_ms // 1000, UTC)
        except (OverflowError, ValueError) as error:
            raise ArgumentError("now_ms", expected="a year up to 9999", found=now_ms) from error
        return self.repair / f"{moment:%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"

    @property
    def log_directories(self) -> tuple[Path, ...]:
        """Every directory with CommitLog files."""
        return self.commit_log_directories + self.read_only_directories

    @property
    def written_directories(self) -> tuple[Path, ...]:
        """Every directory that a writer has files in; some may not be there yet."""
        queues = (self.consume_queue, self.consume_queue_ext, self.batch_consume_queue)
        return (self.root, *self.commit_log_directories, *queues, self.index, self.config)

    @classmethod
    def of(cls, root: str | Path, config: StoreConfig | None = None) -> StoreLayout:
        """Return the layout of the store at `root`.

        Raises `ConfigError` where that is empty, `config` none, or no path of the log is writable.
        """
        root, config = root_of(root), StoreConfig.of(config)
        writable, read_only = commit_log_directories(config, root)
        if not writable:
            raise ConfigError(
                f"every CommitLog path is read-only: {config.store_path_commit_log}",
                key="readOnlyCommitLogStorePaths",
                value=config.read_only_commit_log_store_paths,
                hint="leave at least one path of storePathCommitLog writable",
            )
        return cls(root, writable, read_only)

    def directories_for(self, file_number: int, full: Collection[Path]) -> list[Path]:
        """Return where the CommitLog file of a number, from 0 on, is made, and where otherwise.

        Directories that are too full (above 0.85 of their partition by default) are passed over as
        long as another is left. Source: MultiPathMappedFileQueue.tryCreateMappedFile (spec F1.1).
        """
        directories = sorted(self.commit_log_directories, key=str)
        wanted = [path for path in directories if path not in full] or directories
        at = file_number % len(wanted)
        return [*wanted[at:], *wanted[:at], *(path for path in directories if path not in wanted)]


def root_of(path: str | Path) -> Path:
    """Return the directory of a store; `ConfigError` for a path that no file can have."""
    if path == "":  # a variable without a value, which would be the current directory
        raise ConfigError("the path of the store is empty", hint="name a directory")
    try:
        is_path = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ConfigError(
            f"the path of the store cannot be that of a file: {path!r:.60}",
            hint="name a directory without U+0000 and without half of a surrogate pair",
        )
    return Path(path)
