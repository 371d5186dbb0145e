"""A disk that loses power: files as they are, and a shadow of what a power cut would leave of them.

What the shadow holds is what is promised: the bytes of a file at its last `fdatasync`, the names of
a directory at its last `fsync_directory`. What was written since may survive or not: page by page
(or, torn, sector by sector), name by name. A cut may also come in the middle of something: `hook`
is called before each call of the disk.

The model is stricter than ext4 or xfs are: syncing a file does not make its name durable, and no
page waits for another. Only a rename is one step, as every journal makes it.

Not simulated: bytes that change by themselves, a disk that lies about a sync. The other tests of
tests/faults and tests/machine do that.
"""

# ruff: noqa: PTH102, PTH113, PTH120, PTH208 - texts: paths took a fifth of a trial

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocketstore.storage.files.disk import Disk
from rocketstore.units import OS_PAGE_SIZE_BYTES

Hook = Callable[[str, Path], None]
"""Told the name of a call and the path it is about."""


SECTOR_SIZE_BYTES = 512

NO_HOOK: Hook = lambda _call, _path: None  # noqa: E731 - a default, not a function of its own


@dataclass(eq=False)
class ShadowFile:
    """One file, whatever its name is.

    Attributes
    ----------
    durable
        Its bytes at the last sync.
    last
        Its bytes when it lost its name; None while it has one.
    """

    durable: bytes = b""
    last: bytes | None = None


@dataclass(eq=False)
class _Change:
    """A change of names that is not durable: a file or (None) a directory comes, or a name goes."""

    gone: str | None = None
    come: str | None = None
    file: ShadowFile | None = None

    def touches(self, directory: str) -> bool:
        return any(os.path.dirname(path) == directory for path in (self.gone, self.come) if path)

    def apply(self, names: dict[str, ShadowFile | None]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.come is not None:
            names[self.come] = self.file


@dataclass
class Survival:
    """How much of what was not synced outlives a cut.

    Attributes
    ----------
    pages, names
        Share of the pages and of the changes of names that do.
    in_order
        Names survive up to some change and not after it, as a journal does it.
    torn
        A page may survive in part.
    """

    pages: float
    names: float
    in_order: bool
    torn: bool

    @classmethod
    def drawn(cls, chance: random.Random) -> Survival:
        """Draw one; all and nothing are as likely as anything between."""
        shares = (0.0, 1.0, chance.random(), chance.random())
        return cls(
            chance.choice(shares),
            chance.choice(shares),
            chance.random() < 0.5,
            chance.random() < 0.3,
        )


@dataclass
class ShadowDisk(Disk):
    """The files below `root`, and their shadow; all that is there at the start is durable.

    Attributes
    ----------
    hook
        Called before each call that changes or syncs something.
    forgets
        Whether a sync of this kind and path is only pretended: to show that it is needed.
    """

    root: Path
    hook: Hook = NO_HOOK
    forgets: Callable[[str, Path], bool] = lambda _call, _path: False
    _names: dict[str, ShadowFile | None] = field(default_factory=dict)
    _unnamed: dict[str, ShadowFile] = field(default_factory=dict)
    _durable_names: dict[str, ShadowFile | None] = field(default_factory=dict)
    _pending: list[_Change] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        names: dict[str, ShadowFile | None] = {}
        for directory, below, files in os.walk(self.root):
            names |= dict.fromkeys(f"{directory}/{name}" for name in below)
            names |= {(at := f"{directory}/{name}"): ShadowFile(_bytes_of(at)) for name in files}
        self._names = dict(sorted(names.items()))
        self._durable_names = dict(self._names)

    # --- the disk's calls -----------------------------------------------------------------------

    def create_file(self, path: Path) -> int:
        with self._call("create_file", path):
            descriptor = super().create_file(path)
            self._change(come=path, file=ShadowFile())
            return descriptor

    def create_unnamed(self, path: Path) -> int | None:
        with self._call("create_file", path):
            descriptor = super().create_unnamed(path)
            if descriptor is not None:
                self._unnamed[str(path)] = ShadowFile()
            return descriptor

    def give_name(self, descriptor: int, path: Path) -> None:
        with self._call("give_name", path):
            super().give_name(descriptor, path)
            self._change(come=path, file=self._unnamed.pop(str(path)))

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        with self._call("allocate", path):
            return super().allocate(descriptor, path, size)

    def write_at(self, descriptor: int, path: Path, position: int, data: bytes) -> None:
        with self._call("write_at", path):
            super().write_at(descriptor, path, position, data)

    def zero_range(self, descriptor: int, path: Path, start: int, stop: int) -> None:
        with self._call("zero_range", path):
            super().zero_range(descriptor, path, start, stop)

    def fdatasync(self, descriptor: int, path: Path) -> None:
        with self._call("fdatasync", path):
            name = str(path)
            if name not in self._names and name not in self._unnamed:
                self._take_in_strangers(path.parent)
            file = self._unnamed.get(name) or self._names.get(name)
            if file is not None and not self.forgets("fdatasync", path):
                file.durable = _content(descriptor)

    def fsync_directory(self, directory: Path) -> None:
        with self._call("fsync_directory", directory):
            self._take_in_strangers(directory)
            if not self.forgets("fsync_directory", directory):
                name, pending = str(directory), self._pending
                self._pending = []
                for change in pending:
                    if change.touches(name):
                        change.apply(self._durable_names)
                    else:
                        self._pending.append(change)

    def make_directory(self, directory: Path, *, sync: bool = True) -> None:
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            with self._call("make_directory", path):
                path.mkdir(exist_ok=True)
                self._change(come=path)
            if not sync:
                continue
            try:
                self.fsync_directory(path.parent)
            except OSError:
                self.remove_directory(path)
                raise

    def replace(self, source: Path, target: Path) -> None:
        with self._call("replace", source):
            self._take_in_strangers(source.parent)
            self._note_last(target)
            super().replace(source, target)
            self._change(gone=source, come=target, file=self._names[str(source)])

    def unlink(self, path: Path) -> None:
        with self._call("unlink", path):
            if path.exists():
                self._take_in_strangers(path.parent)
                self._note_last(path)
                super().unlink(path)
                self._change(gone=path)

    def remove_directory(self, directory: Path) -> None:
        with self._call("remove_directory", directory):
            super().remove_directory(directory)
            if not directory.exists():
                self._change(gone=directory)

    # --- what happens by itself -----------------------------------------------------------------

    def write_back(self, chance: random.Random) -> None:
        """Let the system write some dirty pages, as it does at any time: they are durable then."""
        with self._lock:
            for path, file in self._names.items():
                if file is not None and os.path.isfile(path):
                    now = _bytes_of(path)
                    file.durable = _mixed(file.durable, now, chance, 0.5, torn=False)

    def cut(self, target: Path, chance: random.Random, survival: Survival | None = None) -> None:
        """Make at `target`, an empty directory, what a machine finds after the power came back."""
        how = survival or Survival.drawn(chance)
        with self._lock:
            for directory, _, _ in os.walk(self.root):
                self._take_in_strangers(Path(directory))
            current = {file: path for path, file in self._names.items() if file is not None}
            for path, file in self._surviving_names(chance, how):
                here = f"{target}{path.removeprefix(str(self.root))}"
                if file is None:
                    os.mkdir(here)
                    continue
                now = _bytes_of(current[file]) if file.last is None else file.last
                content = _mixed(file.durable, now, chance, how.pages, torn=how.torn)
                _write_sparse(here, content)

    def _surviving_names(
        self, chance: random.Random, how: Survival
    ) -> Iterator[tuple[str, ShadowFile | None]]:
        names = dict(self._durable_names)
        kept = round(how.names * len(self._pending))
        for number, change in enumerate(self._pending):
            if number < kept if how.in_order else chance.random() < how.names:
                change.apply(names)
        directories = {str(self.root)}
        for path in sorted(names):
            if os.path.dirname(path) in directories:
                if names[path] is None:
                    directories.add(path)
                yield path, names[path]

    # --- names ----------------------------------------------------------------------------------

    def _call(self, call: str, path: Path) -> threading.RLock:
        self.hook(call, path)
        return self._lock

    def _change(
        self, *, gone: Path | None = None, come: Path | None = None, file: ShadowFile | None = None
    ) -> None:
        change = _Change(gone and str(gone), come and str(come), file)
        change.apply(self._names)
        self._pending.append(change)

    def _note_last(self, path: Path) -> None:
        file = self._names.get(str(path))
        if file is not None:
            file.last = path.read_bytes()

    def _take_in_strangers(self, directory: Path) -> None:
        """Note files and directories that were made without this disk, like the lock."""
        for name in sorted(os.listdir(directory)):
            if f"{directory}/{name}" not in self._names:
                path = directory / name
                self._change(come=path, file=None if path.is_dir() else ShadowFile())


def _mixed(
    durable: bytes, current: bytes, chance: random.Random, share: float, *, torn: bool
) -> bytes:
    """Return `durable` with a share of the pages that differ taken from `current`."""
    if durable == current:
        return durable
    size = len(durable)
    if len(current) > size:
        # The length is metadata: the old one, the new one, or that after some block between.
        block = chance.randrange(size, len(current) + 1) // OS_PAGE_SIZE_BYTES * OS_PAGE_SIZE_BYTES
        longer = chance.choice((len(current), len(current), max(size, block)))
        size = longer if chance.random() < share else size
    mixed = bytearray(durable[:size].ljust(size, b"\0"))
    step = SECTOR_SIZE_BYTES if torn else OS_PAGE_SIZE_BYTES
    for at in range(0, size, step):
        piece = current[at : min(at + step, size)]
        if mixed[at : at + len(piece)] != piece and chance.random() < share:
            mixed[at : at + len(piece)] = piece
    return bytes(mixed)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _bytes_of(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _content(descriptor)
    finally:
        os.close(descriptor)


def _write_sparse(path: str, content: bytes) -> None:
    """Write a file with holes where it is zero."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, len(content))
        for at in range(0, len(content), OS_PAGE_SIZE_BYTES):
            piece = content[at : at + OS_PAGE_SIZE_BYTES]
            if piece.count(0) != len(piece):
                os.pwrite(descriptor, piece, at)
    finally:
        os.close(descriptor)
