"""The files of a store: where its log lies, and how long files are.

A size is what is set, else what the files of an existing store show, else what 4.9 would take.

Law: a set size that differs from the files is an error and never a guess; 4.9.3 refuses to start
then, older versions silently dropped the file and every later one (known bug K-R11).
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import msgspec

from rocketstore.config.store_options import LEAST_LOG_FILE_BYTES, SMALL_SIZES
from rocketstore.errors import ConfigError, FormatError
from rocketstore.format.index_file import (
    DEFAULT_ITEM_COUNT,
    DEFAULT_SLOT_COUNT,
    FIRST_ITEM,
    INDEX_HEADER_SIZE,
    ITEM_SIZE_BYTES,
    ITEM_STRUCT,
    SLOT_SIZE_BYTES,
    SLOT_STRUCT,
    IndexLayout,
    decode_header,
    layout_of,
)
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.rules.files import usual_size
from rocketstore.units import GiB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketstore.config.store_config import StoreConfig

DEFAULT_COMMIT_LOG_FILE_BYTES: Final = GiB
DEFAULT_CONSUME_QUEUE_FILE_BYTES: Final = 6_000_000
_IF_DAMAGED: Final = "if the setting is right, and the file damaged, run rocketstore store repair"


def commit_log_directories(
    config: StoreConfig, root: Path
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the directories of the CommitLog of the store at `root`: writable, and read-only ones.

    A directory below ``storePathRootDir`` is taken below `root` instead where the two differ: a
    copied store opens with the ``broker.conf`` of its origin and never touches the original.
    """
    origin = config.store_path_root_dir

    def moved(path: Path) -> Path:
        if origin is None or not path.is_relative_to(origin):
            return path
        return root / path.relative_to(origin)

    def directories(text: str | None) -> tuple[Path, ...]:
        parts = map(str.strip, text.split(config.multi_path_splitter) if text else ())
        return tuple(dict.fromkeys(moved(Path(part)) for part in parts if part))

    read_only = directories(config.read_only_commit_log_store_paths)
    writable = directories(config.store_path_commit_log) or (root / "commitlog",)
    # 4.9 lists a read-only directory in both options to drain it; it is written no more.
    return tuple(path for path in writable if path not in read_only), read_only


class FileObservation(NamedTuple):
    """A file of a store and its length."""

    path: Path
    size: int

    @property
    def base(self) -> int:
        """The offset in the name of a file of the log."""
        return int(self.path.name)


class ObservedSizes(NamedTuple):
    """One typical file of each family that the store has; None where there is none."""

    commit_log: FileObservation | None = None
    consume_queue: FileObservation | None = None
    index_file: FileObservation | None = None


LOOKED_AT_QUEUES: Final = 64
"""Queues whose files are looked at to learn the length of all: a listing of each takes 15 µs."""


def commonest(files: Iterable[tuple[Path, int]], multiple_of: int = 1) -> FileObservation | None:
    """Return a file of the length that most have, the longer one in doubt.

    A file without bytes was cut off; so was one whose length is no multiple: another one counts.
    """
    sizes = {path: size for path, size in files if size}
    counted = Counter(sizes.values())
    most = max(counted, key=lambda n: (n % multiple_of == 0, counted[n], n), default=0)
    return next((FileObservation(path, most) for path in sizes if sizes[path] == most), None)


def usual_log_file(files: Iterable[tuple[Path, int]]) -> FileObservation | None:
    """Return a file of the log with the length that names and lengths tell, which all may lack."""
    found = [FileObservation(path, size) for path, size in files if size]
    usual = usual_size(sorted(found, key=lambda one: one.base))
    whole = (one for one in found if one.size == usual)
    return next(whole, found[0]._replace(size=usual)) if found else None


def observed_in(
    config: StoreConfig,
    log: Iterable[tuple[Path, int]],
    queues: Iterable[tuple[Path, int]],
    index: Iterable[tuple[Path, int]],
) -> ObservedSizes:
    """Return what the files of a store, with their lengths, show of what is not set.

    What is set is not compared with them: to an audit a file of another length is a finding.
    `ConfigError` where all files of the log are of another length.
    """
    refuse_other_size(config, log := dict(log).items())
    has_layout = config.max_hash_slot_num is not None and config.max_index_num is not None
    queue_size = config.mapped_file_size_consume_queue
    return ObservedSizes(
        commit_log=None if config.mapped_file_size_commit_log else usual_log_file(log),
        consume_queue=None if queue_size else commonest(queues, ENTRY_SIZE_BYTES),
        index_file=None if has_layout else commonest(index),
    )


def refuse_other_size(config: StoreConfig, log: Iterable[tuple[Path, int]]) -> None:
    """Raise `ConfigError` where the files of the log, by name and length, have another size.

    Then it is the setting that is wrong: by it whole files would be moved away, or cut.
    """
    wanted, lengths = config.mapped_file_size_commit_log, dict(log)
    seen = commonest(lengths.items())
    if wanted is None or seen is None:
        return
    ends = {int(path.name) + size for path, size in lengths.items() if size == seen.size}
    if any(int(path.name) in ends for path in lengths):
        resolve_size("mappedFileSizeCommitLog", wanted, seen, wanted)


class StoreSizes(NamedTuple):
    """Sizes that a store works with."""

    commit_log_file_bytes: int = DEFAULT_COMMIT_LOG_FILE_BYTES
    consume_queue_file_bytes: int = DEFAULT_CONSUME_QUEUE_FILE_BYTES
    hash_slot_count: int = DEFAULT_SLOT_COUNT
    index_item_count: int = DEFAULT_ITEM_COUNT

    @property
    def index_layout(self) -> IndexLayout:
        """Slots and items of each index file."""
        return IndexLayout(self.hash_slot_count, self.index_item_count)

    @property
    def entries_per_file(self) -> int:
        """Entries of a ConsumeQueue file."""
        return self.consume_queue_file_bytes // ENTRY_SIZE_BYTES

    def fill_in(self, config: StoreConfig) -> StoreConfig:
        """Return the settings of a store with these sizes: nothing is left to be learnt."""
        sizes = dict(zip(SMALL_SIZES, self, strict=True))
        is_full = all(getattr(config, name) == size for name, size in sizes.items())
        return config if is_full else msgspec.structs.replace(config, **sizes)


SMALL: Final = StoreSizes(*SMALL_SIZES.values())
"""Those of `StoreConfig.small`."""


def resolve_sizes(config: StoreConfig, observed: ObservedSizes | None = None) -> StoreSizes:
    """Decide every size: as set, else as learnt from the store's files, else 4.9's default.

    Log files as long as those of `StoreConfig.small` tell of the profile: the sizes of files that
    are not there yet are its own, too.
    Raises `ConfigError` where a set size differs from a file (both sizes and the file are named), a
    file has a length that no store has, or slots and items cannot be learnt from an index file.
    """
    seen = observed or ObservedSizes()
    default = StoreSizes()
    if seen.commit_log is not None and seen.commit_log.size == SMALL.commit_log_file_bytes:
        default = SMALL  # what was not there to be seen yet is as small as the rest
    set_queue = config.mapped_file_size_consume_queue
    queue = resolve_size(
        "mappedFileSizeConsumeQueue",
        # Rounded up to whole entries (MessageStoreConfig.getMappedFileSizeConsumeQueue).
        None if set_queue is None else -(-set_queue // ENTRY_SIZE_BYTES) * ENTRY_SIZE_BYTES,
        seen.consume_queue,
        default.consume_queue_file_bytes,
    )
    if queue % ENTRY_SIZE_BYTES and seen.consume_queue is not None:
        why = f"which are not whole entries of {ENTRY_SIZE_BYTES} bytes"
        raise _tells_nothing(seen.consume_queue, "mappedFileSizeConsumeQueue", why)
    log = resolve_size(
        "mappedFileSizeCommitLog",
        config.mapped_file_size_commit_log,
        seen.commit_log,
        default.commit_log_file_bytes,
    )
    if seen.commit_log is not None and log < LEAST_LOG_FILE_BYTES:
        why = "fewer than a file of the log: it was cut off"
        raise _tells_nothing(seen.commit_log, "mappedFileSizeCommitLog", why)
    return StoreSizes(log, queue, *_resolve_index(config, seen.index_file, default))


def _tells_nothing(seen: FileObservation, key: str, why: str) -> ConfigError:
    what, hint = f"{seen.path} has {seen.size} bytes, {why}", f"set the size with --set {key}=…"
    return ConfigError(what, key=key, value=seen.size, hint=f"{hint} and repair the store")


def resolve_size(key: str, wanted: int | None, seen: FileObservation | None, default: int) -> int:
    """Decide a size: set, else that of a file, else `default`; `ConfigError` where they differ."""
    if seen is None:
        return default if wanted is None else wanted
    if wanted is not None and wanted != seen.size:
        raise ConfigError(
            f"{key} is {wanted}, but {seen.path} has {seen.size} bytes",
            key=key,
            value=wanted,
            hint=f"leave {key} unset (StoreConfig.small() sets it) to take the size of the files; "
            f"{_IF_DAMAGED}",
        )
    return seen.size


def _resolve_index(
    config: StoreConfig, seen: FileObservation | None, default: StoreSizes
) -> tuple[int, int]:
    slots, items = config.max_hash_slot_num, config.max_index_num
    if seen is None:
        return slots or default.hash_slot_count, items or default.index_item_count
    if slots is None and items is None:
        try:
            return layout_of(seen.size)
        except FormatError as error:
            raise ConfigError(
                f"slots and items of {seen.path} cannot be learnt from its {seen.size} "
                "bytes, because they are not 1 : 4",
                key="maxHashSlotNum",
                hint=f"{error.hint}; if it was cut, move it out of index/: repair makes it again",
            ) from error
    set_keys = {"maxHashSlotNum": slots, "maxIndexNum": items}
    given = {key: value for key, value in set_keys.items() if value is not None}
    # With one of the two set, the length of the file gives the other exactly.
    rest = seen.size - INDEX_HEADER_SIZE
    if slots is None:
        slots = (rest - given["maxIndexNum"] * ITEM_SIZE_BYTES) // SLOT_SIZE_BYTES
    items = (rest - slots * SLOT_SIZE_BYTES) // ITEM_SIZE_BYTES if items is None else items
    layout = IndexLayout(slots, items)
    is_possible = slots >= 1 and items >= 1 and layout.size_bytes == seen.size
    if not is_possible or _is_divided_as_usual(seen, layout):
        key, value = next(iter(given.items()))
        said = " and ".join(f"{key}={value}" for key, value in given.items())
        raise ConfigError(
            f"{said} cannot be right for {seen.path}, which has {seen.size} bytes",
            key=key,
            value=value,
            hint=f"set both to what the writer of the files had, or set neither; {_IF_DAMAGED}",
        )
    return layout


def _is_divided_as_usual(seen: FileObservation, wanted: IndexLayout) -> bool:
    """Whether an index file has the ratio of Java's defaults, and not the layout that is `wanted`.

    A length fits many layouts; the newest item tells which it is, as its slot names it.
    """
    try:
        usual = layout_of(seen.size)
        with seen.path.open("rb") as file:
            return not _names_newest(file, wanted) and _names_newest(file, usual)
    except (FormatError, OSError, struct.error):
        return False  # of another ratio, damaged, or in an object store


def _names_newest(file: BinaryIO, layout: IndexLayout) -> bool:
    file.seek(0)
    newest = decode_header(file.read(INDEX_HEADER_SIZE)).index_count - 1
    if not FIRST_ITEM <= newest < layout.item_count:
        return False
    file.seek(layout.item_position(newest))
    key_hash = ITEM_STRUCT.unpack(file.read(ITEM_SIZE_BYTES))[0]
    file.seek(layout.slot_position(key_hash % layout.slot_count))
    return SLOT_STRUCT.unpack(file.read(SLOT_SIZE_BYTES)) == (newest,)
