"""Which store owns the directories of a log, and whether all of them are there (decision 0033).

4.9 records neither. The root's file ``log-directories`` says which ones a store had when it was
opened last; an attribute of each says which root that was, for 4.9 does not start with a file of
ours in there.

Law: what is unclear is allowed: a missing attribute, a missing file, a copy (which has other
inodes) or a root that no longer exists refuses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rocketstore.errors import ConfigError, NotAStoreError, StoreDamagedError
from rocketstore.events import get_logger
from rocketstore.format import file_name as names
from rocketstore.rules.files import dledger_log
from rocketstore.storage.files.disk import Disk, read_at, read_whole, real_path, system_errors
from rocketstore.storage.files.pread_files import listed_files
from rocketstore.storage.files.whole_file import replace_whole

if TYPE_CHECKING:
    from rocketstore.storage.layout import StoreLayout

_log: Final = get_logger(__name__)

_CLAIM: Final = "user.rocketstore.store"
"""Of a log directory: its inode, which a copy has not, and the root of its store."""

_SIGNS: Final = (names.KNOWN_ENDS_FILE_NAME, names.CHECKPOINT_FILE_NAME)
"""In a root that has one of these files, `STORE_DIRECTORIES` are the store's."""

_HINT: Final = (
    "mount its disk, and name every directory of the log in storePathCommitLog; where they are "
    "lost for good, name those with files only and run rocketstore store repair; where it is right "
    "that one is empty, remove log-directories from the root"
)


class _Record(msgspec.Struct, frozen=True):
    """What the file says: inodes of the root and of each log directory."""

    root: int = 0
    directories: dict[str, int] = {}


def _read(root: Path) -> _Record:
    with suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return msgspec.json.decode(read_whole(root / names.LOG_DIRECTORIES_FILE_NAME), type=_Record)
    return _Record()


def _inode(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_ino
    return 0


def _name(path: Path) -> str:
    return str(real_path(path)).encode("utf-8", "backslashreplace").decode()


def _claim_of(path: Path) -> str:
    with suppress(OSError):  # also: a file system without attributes
        return os.getxattr(path, _CLAIM).decode("utf-8", "replace")
    return ""


def _claimed_by(path: Path) -> Path | None:
    """Return the root of the store that has recorded a directory as one of its log."""
    inode, _, owner = _claim_of(path).partition(" ")
    if inode == str(_inode(path)) and _inode(path) in _read(Path(owner)).directories.values():
        return Path(owner)
    return None


def _owner_of(path: Path) -> Path | None:
    """Return the root of the store that has a log directory, None where it is not recorded."""
    above = real_path(path).parent
    return _claimed_by(path) or (above if (above / names.KNOWN_ENDS_FILE_NAME).exists() else None)


def refuse_part(layout: StoreLayout) -> None:
    """Raise where a root is a directory in which another store keeps its files."""
    owner = _claimed_by(layout.root)
    if owner is not None and _inode(owner) != _inode(layout.root):
        raise _foreign(layout.root, owner, layout.root)
    _refuse_inside(layout.root, names.STORE_DIRECTORIES)


def _refuse_inside(path: Path, parts: tuple[str, ...]) -> None:
    """Raise where a path lies in one of these directories of another store.

    Elsewhere below its root a store may be (jobs write their output nowhere below one).
    """
    place = real_path(path)
    for above, part in zip(place.parents, reversed(place.parts), strict=False):
        if part in parts and any((above / sign).is_file() for sign in _SIGNS):
            raise NotAStoreError(
                f"{path} belongs to the store {above}",
                hint="give the directory that holds commitlog, consumequeue and index, or a new "
                "one outside of these",
            )


def _foreign(path: Path, owner: Path, root: Path) -> ConfigError:
    return ConfigError(
        f"{path} is a log directory of the store {owner}, not of {root}",
        key="storePathCommitLog",
        value=str(path),
        hint="name a directory of this store; if the other one is to lose it, remove its "
        f"{names.LOG_DIRECTORIES_FILE_NAME} and {names.KNOWN_ENDS_FILE_NAME} first",
    )


def claim(layout: StoreLayout, disk: Disk) -> None:
    """Record which store owns the directories; one directory inside the root needs no record."""
    root, directories = real_path(layout.root), layout.log_directories
    place, is_one = root / names.LOG_DIRECTORIES_FILE_NAME, len(directories) == 1
    if is_one and real_path(directories[0]).is_relative_to(root) and not place.exists():
        return
    record = _Record(_inode(root), {_name(path): _inode(path) for path in directories})
    if record != _read(root):
        replace_whole(place, msgspec.json.encode(record), disk, sync_name=False)
    for path in layout.commit_log_directories:
        value = f"{_inode(path)} {_name(root)}"
        if _claim_of(path) != value:
            with suppress(OSError):
                os.setxattr(path, _CLAIM, value.encode())


def refuse_foreign(layout: StoreLayout, *, takes_over: bool = False) -> None:
    """Raise where another store or broker owns a log directory, running or not.

    With `takes_over` a root without files gets it: the other store is refused from then on.
    """
    recorded = layout.root / names.LOG_DIRECTORIES_FILE_NAME
    signs = (layout.checkpoint, layout.consume_queue, recorded)
    takes_over &= not any(sign.exists() for sign in signs)
    for path in layout.commit_log_directories:
        _refuse_inside(path, names.STORE_DIRECTORIES[1:])  # all but a log
        owner = _owner_of(path)
        if owner is None or _inode(owner) == _inode(layout.root):
            continue
        if takes_over:
            _log.warning("log.taken_over", directory=str(path), of=str(owner))
            continue
        raise _foreign(path, owner, layout.root)
    refuse_dledger(layout, writes=True)


def dledger_directories(root: Path) -> list[Path]:
    """Return the directories below a root in which a DLedger broker has a log."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        # Path.glob would compile a pattern at each opening, which takes ten times as long.
        found = sorted(name for name in os.listdir(root) if name.startswith("dledger-"))  # noqa: PTH208
        return [root / name for name in found if any(listed_files([root / name / "data"], []))]
    return []


@system_errors("cannot list the files of the store")
def refuse_dledger(layout: StoreLayout, *, writes: bool = False) -> None:
    """Raise where the log is one of DLedger, or, for a writer, goes on in one beside it."""
    logs = dledger_directories(layout.root)
    is_log = not any(path.is_dir() for path in layout.log_directories)
    for base, _, path, _ in sorted(listed_files(layout.log_directories, [])):
        with suppress(FileNotFoundError):  # expired since it was listed: the next one tells
            with Disk().opened(path, writable=False) as descriptor:
                head = read_at(descriptor, path, 0, names.DLEDGER_HEAD_BYTES)
                if names.is_dledger_head(head, base):
                    logs, is_log = [path], True
            break
    if logs and (is_log or writes):
        raise dledger_log(logs[0])


def refuse_absent(
    layout: StoreLayout, files: Sequence[Any], size: int, stop: Callable[[], int], *,
    writes: bool = False,
) -> None:  # fmt: skip
    """Raise where a directory of the log seems not to be mounted; `stop` ends the last record.

    Without a record of them, any directory without files may be the one, or, if this process
    `writes`, any that lacks some.
    """
    record = _read(layout.root)
    known = record.directories if record.root == _inode(layout.root) else {}
    if not known and len(layout.log_directories) == 1:
        return  # as of most stores: there is no other place for a file
    there = {_name(path): _inode(path) for path in layout.log_directories}
    empty = there.keys() - {_name(file.path.parent) for file in files}
    others = {name for name, inode in there.items() if known.get(name, inode) != inode}
    doubtful = others | (known.keys() - there if writes else set())
    if not known:
        doubtful = set(there) if writes else empty
    if doubtful and len({*there, *known}) > 1 and (missing := _missing(files, size, stop())):
        raise StoreDamagedError(
            f"the log has no file for physical offsets {missing}: expected in "
            f"{', '.join(sorted(doubtful))}",
            hint=_HINT,
        )
    for name in empty & others:
        what = f"{name} is empty, and is not the directory in which the log was"
        raise StoreDamagedError(what, hint=_HINT)


def _missing(files: Sequence[Any], size: int, stop: int) -> str:
    """Describe the ranges before `stop` that no file holds."""
    begins = [file.base + size for file in files] or [0]
    pairs = zip(begins, [*(file.base for file in files[1:]), stop], strict=True)
    return ", ".join(f"{begin} to {end - 1}" for begin, end in pairs if begin < end)
