"""``config/consumerOffset.json``: where each consumer group goes on in each queue of the store.

The consumers of `rocketstore.consuming` and the checks of transactions share this one table, as
everything in a broker of 4.9 does; a broker goes on where this process stopped, and the other way
round.

Law: what the file says was consumed is on the disk, and so is what was put to consume it again: a
save flushes the store first. What this version does not know in the file stays there. A file that
is broken, with its backup, is an error when an offset is asked for, and nobody writes over it.

With ``enableLmq`` the file is ``lmqConsumerOffset.json``. 4.9 begins with no offset, or with old
ones, when that is switched; here everybody begins with the file that was changed last.

How derived: ConsumerOffsetManager, LmqConsumerOffsetManager and ConfigManager of 4.9,
BrokerController's scheduled persist (spec F13). The table is read when somebody first asks, and
written by a thread that starts with the first change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import (
    CONSUMER_OFFSETS_FILE,
    LMQ_CONSUMER_OFFSETS_FILE,
    ConsumerOffsets,
    decode_table,
    dumps,
    loads,
    offset_tables_by_age,
    offsets_key,
)
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.storage.files.whole_file import changed_ns, read_with_backup, write_atomically
from rocketstore.storage.threads import Periodic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout

_TABLE: Final = "offsetTable"
_LIGHT: Final = "lmqOffsetTable"

_log: Final = get_logger(__name__)
_T = TypeVar("_T")


class ConsumerOffsetTable:
    """The offsets of all groups; any thread may ask and set.

    `flush` makes the store's messages durable. What is consumed between two saves
    (``flushConsumerOffsetInterval``) is consumed again after a kill.
    """

    def __init__(
        self, layout: StoreLayout, config: StoreConfig, *, flush: Callable[[], object], disk: Disk
    ) -> None:
        lmq = config.enable_lmq
        self.path = layout.config / (LMQ_CONSUMER_OFFSETS_FILE if lmq else CONSUMER_OFFSETS_FILE)
        self._lmq = lmq
        self._interval_s = config.flush_consumer_offset_interval / 1000
        self._flush = flush
        self._disk = disk
        self._loaded: dict[str, Any] | None = None
        self._is_changed = self._may_run = False
        self._saving = threading.Lock()
        self._loading = threading.Lock()
        self._thread: Periodic | None = None

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset a group goes on with, None where it has none yet.

        Raises
        ------
        FormatError
            The file and its backup are broken.
        """
        offset = self._offsets().get(offsets_key(topic, group), {}).get(queue_id, -1)
        return offset if offset >= 0 else None  # 4.9 takes and keeps a -1

    def set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Let a group go on with a queue offset, also with an earlier one than before."""
        queues = self._offsets().setdefault(offsets_key(topic, group), {})
        if queues.get(queue_id) == offset:
            return
        queues[queue_id] = offset
        self._is_changed = True
        if self._thread is None and self._may_run:
            self._run()

    def forget(self, topics: Collection[str]) -> None:
        """Drop all offsets of topics whose queues begin at 0 again."""
        offsets = self._offsets()
        for name in [name for name in offsets if name.partition("@")[0] in topics]:
            del offsets[name]
            self._is_changed = True

    def save(self) -> None:
        """Write the file if an offset changed since the last time.

        Raises
        ------
        FlushFailedError, OSError
            It is as it was; the next save tries again.
        """
        with self._saving:
            if self._loaded is None or not self._is_changed:
                return
            self._is_changed = False
            try:
                # The offsets first: what they count as consumed is there to be flushed.
                content = dumps({**self._loaded, **self._tables()}).encode("utf-8")
                self._flush()
                write_atomically(self.path, content, disk=self._disk, decode=_decoded)
            except BaseException:
                self._is_changed = True
                raise

    def start(self) -> None:
        """Let a thread save what changes from now on."""
        self._may_run = True

    def stop(self) -> None:
        """Save for the last time; what cannot be saved is said, and is consumed again."""
        self._may_run = False
        if self._thread is not None:
            self._thread.stop()
        try:
            self.save()
        except (StoreError, OSError) as error:
            _log.error("consumer_offsets.not_saved", path=str(self.path), error=str(error))

    def _run(self) -> None:
        with self._saving:
            if self._thread is None:
                thread = Periodic("rocketstore-consumer-offsets", self.save, self._interval_s)
                thread.start()
                self._thread = thread

    def _offsets(self) -> dict[str, dict[int, int]]:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    known = _read(self.path.parent, _decoded) or {_TABLE: {}}
                    known.pop(_LIGHT, None)  # by now it stands in the other table
                    self._loaded = ({_LIGHT: {}} if self._lmq else {}) | known
        offsets: dict[str, dict[int, int]] = self._loaded[_TABLE]
        return offsets

    def _tables(self) -> dict[str, Any]:
        """Return what the file has of the offsets: those of light groups without a queue id."""
        offsets = self.snapshot()
        if not self._lmq:
            return {_TABLE: offsets}
        light = {
            name: queues.pop(0)
            for name, queues in offsets.items()
            if 0 in queues and name.partition("@")[2].startswith(LMQ_PREFIX)
        }
        return {_LIGHT: light, _TABLE: {name: queues for name, queues in offsets.items() if queues}}

    def snapshot(self) -> dict[str, dict[int, int]]:
        """Return a copy by ``topic@group`` and queue id, while others may change the table.

        Each is copied by one call into C. Raises `FormatError` as `get`.
        """
        return {
            name: dict(sorted(dict(queues).items()))
            for name, queues in list(self._offsets().items())
        }


def read_offsets(layout: StoreLayout) -> ConsumerOffsets:
    """Return the offsets that a store has at the moment, for a reader.

    Raises
    ------
    FormatError
        The file and its backup are broken.
    """
    return _read(layout.config, _table) or ConsumerOffsets()


def _read(directory: Path, decode: Callable[[bytes], _T]) -> _T | None:
    """Return what the file that counts has; None without one."""
    for name in offset_tables_by_age(changed_ns(directory)):
        found = read_with_backup(directory / name, decode)
        if found is not None:
            return found
    return None


def _table(content: bytes) -> ConsumerOffsets:
    return decode_table(content, ConsumerOffsets)


def _decoded(content: bytes) -> dict[str, Any]:
    """Return everything that stands in the file; raises `FormatError`."""
    table = _table(content)  # judges the types
    # Another writer's JSON may have its queue ids quoted, as every parser but fastjson wants them.
    tables = {_TABLE: table.by_name()}
    loaded: dict[str, Any] = loads(content)
    return loaded | tables
