"""``config/consumerOffset.json``: where each consumer group goes on in each queue of the store.

The consumers of `rocketstore.consuming` and the checks of transactions share this one table, as
everything in a broker of 4.9 does. A broker continues where this process stopped, and the other way
round.

Law: a message that the file counts as consumed is on the disk, and so is a copy that was put for
another try: a save flushes the store first. What this version does not know in the file stays
there. If the file and its backup are broken, asking for an offset is an error, and the file is not
overwritten.

Law: an offset belongs to a queue. A memory topic's queues are gone with the process, so its offsets
are in no file, and offsets that the file has for a topic of that name belong to its queues on the
disk.

With ``enableLmq`` the file is ``lmqConsumerOffset.json``. 4.9 begins with no offset, or with old
ones, when that is switched; here every group begins with the file that was changed last.

How derived: ConsumerOffsetManager, LmqConsumerOffsetManager and ConfigManager of 4.9,
BrokerController's scheduled persist (spec F13). The table is read at the first request, and written
by a thread that starts with the first change.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rocketstore.config import BrokerRole
from rocketstore.errors import FormatError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import (
    CONSUMER_OFFSETS_FILE,
    LMQ_CONSUMER_OFFSETS_FILE,
    ConsumerOffsets,
    Members,
    dumps,
    loads,
    member_text,
    offset_tables_by_age,
    offsets_key,
    table_of,
)
from rocketstore.format.queue_entry import LMQ_PREFIX
from rocketstore.locks import Lock
from rocketstore.rules.half_messages import TRANSACTION_GROUP
from rocketstore.rules.newer import refuse_rocksdb_tables
from rocketstore.storage.attached import Service
from rocketstore.storage.files.disk import Disk, system_errors
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.files.whole_file import (
    KnownTable,
    changed_ns,
    read_with_backup,
    write_atomically,
)
from rocketstore.storage.threads import Periodic
from rocketstore.tables.positions import MARKS, agreed_end, made_again, marks_of, with_marks

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.reading.reader import Reader
    from rocketstore.storage.store import BaseStore

_TABLE: Final = "offsetTable"
_LIGHT: Final = "lmqOffsetTable"

_log: Final = get_logger(__name__)


class ConsumerOffsetTable(Service):
    """The offsets of all groups; any thread may ask and set.

    What is consumed between two saves (``flushConsumerOffsetInterval``) is consumed again after a
    kill.
    """

    name = "consumer_offsets"

    def __init__(self, store: BaseStore) -> None:
        self._store, self._kinds = store, store.kinds
        self._is_settled = False
        self._lmq = lmq = store.config.enable_lmq
        name = LMQ_CONSUMER_OFFSETS_FILE if lmq else CONSUMER_OFFSETS_FILE
        self.path = store.layout.config / name
        self._in_memory: dict[str, dict[int, int]] = {}
        self._loaded: dict[str, Any] | None = None
        self._changed: set[str] = set()
        self._new_names: deque[str] = deque()
        self._topics_of: dict[str, set[str]] = {}
        self._texts: dict[str, dict[str, str]] = {}
        self._known = KnownTable(self.path, _decoded, store.disk)
        self._saving = Lock()
        self._loading = Lock()
        interval_s = store.config.flush_consumer_offset_interval / 1000
        self._thread = Periodic("rocketstore-consumer-offsets", self.save, interval_s)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the queue offset at which a group continues, None where it has none yet.

        Raises
        ------
        FormatError
            The file and its backup are broken.
        """
        offset = self._table_of(topic).get(offsets_key(topic, group), {}).get(queue_id, -1)
        return offset if offset >= 0 else None  # 4.9 takes and keeps a -1

    def set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Let a group continue at a queue offset, which may be an earlier one than before."""
        self._store.check_held()
        name, table = offsets_key(topic, group), self._table_of(topic)
        if (queues := table.get(name)) is None:
            self._new_names.append(name)
            queues = table.setdefault(name, {})
        if queues.get(queue_id) == offset:
            return
        queues[queue_id] = offset
        if not self._kinds.is_in_memory(topic):
            self._changed.add(name)

    @system_errors("cannot save the offsets of consumers")
    def save(self) -> None:
        """Write the file if an offset changed since the last time; only those are made text again.

        Raises
        ------
        StoreError
            It is as it was; the next save tries again.
        """
        with self._saving:
            if self._loaded is None or not self._changed:
                return
            changed = set()
            for _ in range(len(self._changed)):  # others add to it meanwhile
                changed.add(self._changed.pop())
            try:
                # Copy the offsets first: what they count as consumed is in the log then, to be
                # flushed.
                tables = self._as_text(changed)
                counted = self._store.appended_physical_offset
                self._store.flush()
                marks = self._loaded.get(MARKS, ())
                # A slave has not compared them.
                if self._is_settled or (marks and agreed_end(self._store.layout, marks) is None):
                    newest = self._store.attached["log_mark"].after(counted)
                    self._loaded[MARKS] = with_marks(newest, marks)
                content = dumps({**self._loaded, **tables}).encode("utf-8")
                self._known.write(content, {})
            except BaseException:
                self._changed |= changed
                raise

    def start(self) -> None:
        """Set offsets back if the log is another one; let a thread save later changes."""
        with contextlib.suppress(FormatError):  # raised where an offset is asked for
            former = {_TABLE: self._offsets()}
            self._loaded = self._compared(self._loaded or former)
        self._thread.start()

    def stop(self) -> None:
        """Save for the last time; a failure is logged, and messages are consumed again then."""
        self._thread.stop()
        try:
            self.save()
        except StoreError as error:
            _log.error("consumer_offsets.not_saved", path=str(self.path), error=str(error))

    def _table_of(self, topic: str) -> dict[str, dict[int, int]]:
        return self._in_memory if self._kinds.is_in_memory(topic) else self._offsets()

    def _offsets(self) -> dict[str, dict[int, int]]:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    known = _read(self.path.parent) or {_TABLE: {}}
                    known.pop(_LIGHT, None)  # by now it is in the other table
                    self._new_names.extend(known[_TABLE])
                    known = ({_LIGHT: {}} if self._lmq else {}) | known
                    self._loaded = self._compared(known) if known.get(MARKS) else known
        offsets: dict[str, dict[int, int]] = self._loaded[_TABLE]
        return offsets

    def _compared(self, loaded: dict[str, Any]) -> dict[str, Any]:
        # A slave's log is still to come: it is checked once the store is a master.
        if self._is_settled or self._store.config.broker_role is BrokerRole.SLAVE:
            return loaded
        before, loaded = loaded[_TABLE], _settled(self._store, loaded, self._kinds.of("memory"))
        self._changed |= {one for one in before if before[one] != loaded[_TABLE].get(one)}
        self._is_settled = True
        return loaded

    def _as_text(self, changed: Iterable[str]) -> dict[str, Members]:
        """Return the offsets as the file has them: those of light groups have no queue id."""
        offsets, names = self._offsets(), sorted(changed)
        if not self._texts:
            self._texts = {_LIGHT: {}, _TABLE: {}} if self._lmq else {_TABLE: {}}
            names = list(offsets)
        for name in names:
            queues = _sorted(offsets[name])
            if self._lmq and 0 in queues and name.partition("@")[2].startswith(LMQ_PREFIX):
                self._texts[_LIGHT][name] = member_text(name, queues.pop(0))
            if queues:
                self._texts[_TABLE][name] = member_text(name, queues)
        return {table: Members(texts.values()) for table, texts in self._texts.items()}

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has offsets, without a look at other groups.

        Raises `FormatError` as `get`.
        """
        self._offsets()
        with self._loading:
            for _ in range(len(self._new_names)):
                topic, _, name = self._new_names[0].partition("@")
                self._topics_of.setdefault(name, set()).add(topic)
                self._new_names.popleft()  # after an interrupt before this, it is done again
            topics = sorted(self._topics_of.get(group, ()))
        return [one for one in topics if offsets_key(one, group) in self._table_of(one)]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets of a topic; raises `FormatError` as `get`."""
        names = (name.partition("@") for name in list(self._table_of(topic)))
        return [group for one, _, group in names if one == topic]

    def snapshot(self) -> dict[str, dict[int, int]]:
        """Return a copy by ``topic@group`` and queue id, while others may change the table.

        Raises `FormatError` as `get`.
        """
        in_memory, on_disk = self._kinds.is_in_memory, _copied(self._offsets()).items()
        own = {name: one for name, one in on_disk if not in_memory(name.partition("@")[0])}
        return own | _copied(self._in_memory)


def _copied(offsets: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {name: _sorted(queues) for name, queues in list(offsets.items())}


def _sorted(queues: dict[int, int]) -> dict[int, int]:
    return dict(sorted(dict(queues).items()))  # copied by one call into C: others change them


def _settled(
    reader: Reader, loaded: dict[str, Any], in_memory: Container[str] = ()
) -> dict[str, Any]:
    """Return a table whose offsets count nothing that a reader's log lacks; keep `in_memory`."""
    marks, table = loaded.get(MARKS) or [], dict(loaded[_TABLE])
    agreed = agreed_end(reader.layout, marks)
    if agreed is None and marks:
        return loaded
    end_of: Callable[[str, int], int] = reader.max_offset
    if agreed is not None:
        end_of = partial(reader.end_within, physical_limit=agreed)
    rows = ConsumerOffsets(offset_table=loaded[_TABLE]).rows()
    beyond = {key for _, key, offset in rows if agreed is None and offset > end_of(*key)}
    again = made_again(reader, (one for one in beyond if one.topic not in in_memory))
    for name, queues in loaded[_TABLE].items():
        topic, _, group = name.partition("@")
        if topic in in_memory:
            continue
        table[name] = dict(queues)
        for one, offset in queues.items():
            if offset > (end := end_of(topic, one)):
                table[name][one] = 0 if (topic, one) in again else end
        if table[name] != queues:
            _log.warning(
                "consumer_offsets.set_back", topic=topic, group=group, before=queues,
                after=table[name], agreed_physical_offset=agreed,
                reason="log or queue end before what they count, or are others from there on",
            )  # fmt: skip
    own = [name for name in table if name.endswith(f"@{TRANSACTION_GROUP}")]
    if any(agreed is not None or table[name] != loaded[_TABLE][name] for name in own):
        for name in own:
            del table[name]  # what has ended, may have ended in the other log
    return loaded | {_TABLE: table, MARKS: [one for one in marks if one[1] <= (agreed or 0)]}


def say_which_log(layout: StoreLayout, end: int, disk: Disk) -> None:
    """Write into the table which log it belongs to, before that log is replaced; `end` is its end.

    A table of a broker does not say so. How far the group of the transactions is, the log itself
    says.
    """
    for name in (CONSUMER_OFFSETS_FILE, LMQ_CONSUMER_OFFSETS_FILE):
        path = layout.config / name
        loaded = read_with_backup(path, _decoded)
        if loaded is not None:
            rows = loaded[_TABLE].items()
            rows = {key: one for key, one in rows if not key.endswith(f"@{TRANSACTION_GROUP}")}
            log = PreadFiles(layout.log_directories)
            marks = loaded.get(MARKS) or (marks_of(log, end) if log.find(end - 1) else [])
            content = dumps(loaded | {_TABLE: rows, MARKS: marks})
            write_atomically(path, content.encode("utf-8"), disk=disk, decode=_decoded)


def read_offsets(layout: StoreLayout, reader: Reader | None = None) -> ConsumerOffsets:
    """Return the offsets that a store has at the moment; those for the log of `reader`, if given.

    Raises `FormatError` as `ConsumerOffsetTable.get`.
    """
    found = _read(layout.config) or {_TABLE: {}}
    settled = found if reader is None else _settled(reader, found)
    return ConsumerOffsets(offset_table=settled[_TABLE])


def _read(directory: Path) -> dict[str, Any] | None:
    """Return the content of the file that counts; None without one."""
    changed = changed_ns(directory)
    refuse_rocksdb_tables(directory, changed)
    paths = (directory / name for name in offset_tables_by_age(changed))
    return next(filter(None, (read_with_backup(path, _decoded) for path in paths)), None)


def _decoded(content: bytes) -> dict[str, Any]:
    """Return the whole content of the file; raises `FormatError`."""
    loaded: dict[str, Any] = loads(content)
    table = table_of(loaded, ConsumerOffsets)  # judges the types
    # Other writers quote the queue ids in JSON, as every parser except fastjson wants them.
    return loaded | {_TABLE: table.by_name()}
