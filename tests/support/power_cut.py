"""One trial of the power cut: a store works on a shadow disk until the power goes, then is opened.

Everything is decided by the seed: what is put, when the clock moves, which flush runs when, where
the power goes (between two calls of the store, or at the n-th call of the disk, also inside
recovery), and what outlives it. A trial has several lives; a message that was promised once must be
there in all later ones.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rocketstore import MessageStore, verify_store
from rocketstore.config import FlushDiskType
from rocketstore.format.metadata_json import (
    LMQ_CONSUMER_OFFSETS_FILE,
    ConsumerOffsets,
    decode_table,
    encode_table,
)
from rocketstore.rules.findings import Severity
from rocketstore.storage.files.whole_file import write_atomically
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.results import PutMessageStatus
from rocketstore.tables.consumer_offsets import read_offsets
from rocketstore.units import ByteRange, QueueKey
from support.fault_workload import (
    INDEX_SLOTS,
    LABEL,
    LOG_FILE_BYTES,
    Label,
    check_reading,
    check_true,
    labels_of,
    places_of,
    small_files,
    step_of,
)
from support.hooked_disk import ends_after
from support.inside import parts_of, workers_of
from support.reading import all_messages
from support.shadow_disk import Hook, ShadowDisk
from support.store_oracle import EXT_FILE_BYTES, LogContent, LogRecord, check_agreement
from support.trees import copy_tree

START_MS = 1_700_000_000_000
MOST_STEPS = 70
MOST_CALLS = 260
MOST_CALLS_OF_RECOVERY = 40
LIVES = 3

TOLERATED_FINDINGS = frozenset({"log-damage", "queue-hole", "queue-filler", "log-doubtful"})
"""What may be wrong where records were lost that nobody was promised."""

TOLERATED_BEHIND_THE_FLUSH = TOLERATED_FINDINGS | {"queue-kept"}
"""With ASYNC_FLUSH queues may reach the disk before their log: the last numbers are not given again
(decision 0014). With SYNC_FLUSH dispatch follows the flush."""


COUNTED, LIGHT_COUNTED = "no-topic@all", "no-topic@%LMQ%all"
"""Keys of the tables that are rewritten: their numbers are no offsets of a queue."""


class PowerCutError(BaseException):
    """The power went."""


def cut_after(calls: int) -> Hook:
    """Return a hook by which the power goes after so many calls of the disk."""
    return ends_after(calls, PowerCutError)


class Place(NamedTuple):
    """Where a message stands."""

    physical_offset: int
    queue: QueueKey
    queue_offset: int


@dataclass
class Promises:
    """What must not be lost.

    Attributes
    ----------
    tried
        Every message that was given to the store.
    pending
        Put and acknowledged, but not yet promised to outlive a power cut.
    safe
        Promised.
    lost
        Ranges of the log in which records may have been lost.
    """

    tried: set[Label] = field(default_factory=set)
    pending: dict[Label, Place] = field(default_factory=dict)
    safe: dict[Label, Place] = field(default_factory=dict)
    lost: list[ByteRange] = field(default_factory=list)

    def promise(self, label: Label, place: Place) -> None:
        self.pending.pop(label, None)
        before = self.safe.setdefault(label, place)
        assert before == place, f"{label} moved from {before} to {place}"

    def promise_before(self, physical_offset: int) -> None:
        """Everything that ends before an offset is flushed."""
        for label, place in list(self.pending.items()):
            if place.physical_offset < physical_offset:
                self.promise(label, place)

    def check(self, found: dict[Label, LogRecord], *, also_pending: bool = False) -> None:
        """Assert that everything promised was found where it was."""
        wanted = {**self.safe, **self.pending} if also_pending else self.safe
        for label, place in wanted.items():
            record = found.get(label)
            assert record is not None, f"lost {label}, promised at {place}"
            there = Place(record.physical_offset, record.queue, record.queue_offset)
            assert there == place, f"{label} is at {there}, was at {place}"


class Trial:
    """One seed.

    Parameters
    ----------
    directory
        Empty.
    seed
        Decides everything.
    forgets
        Syncs that are only pretended, as in `ShadowDisk`.
    has_pool
        Puts go to a transient store pool, which is there with ASYNC_FLUSH only.
    looks
        After each cut, what verify says is held against what the next opening does.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        forgets: Callable[[str, Path], bool] | None = None,
        has_pool: bool = False,
        looks: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.flush = FlushDiskType.ASYNC_FLUSH if has_pool else list(FlushDiskType)[seed % 2]
        self.is_extended = seed % 3 == 0
        self.settings = {
            "max_message_size": 20_000,
            "enable_consume_queue_ext": self.is_extended,
            "mapped_file_size_consume_queue_ext": EXT_FILE_BYTES,
            "transient_store_pool_enable": has_pool,
            "transient_store_pool_size": 1 + seed % 2,
        }
        self.promises = Promises()
        self.now_ms = START_MS
        self.run_number = seed
        self.step = 0
        self.life = 0
        self.table = 0
        self.tables_possible = {0}
        self.looks = looks
        self._forgets = forgets or (lambda _call, _path: False)
        self.history: list[str] = []
        self.last_store: MessageStore | None = None

    @property
    def is_sync(self) -> bool:
        return self.flush is FlushDiskType.SYNC_FLUSH

    def run(self) -> None:
        """Live, lose power, look what is left; several times."""
        root = self.directory / "life-0"
        root.mkdir()
        try:
            for life in range(LIVES):
                self.life = life
                after = self.directory / f"life-{life + 1}"
                after.mkdir()
                self._live(root, after)
                root = after
            self._end_well(root)
        finally:  # a trial that fails leaves its last store open
            if self.last_store is not None:
                parts_of(self.last_store).lock.release()

    # --- a life ---------------------------------------------------------------------------------

    def _live(self, root: Path, after: Path) -> None:
        chance = self.chance
        disk = ShadowDisk(root, forgets=self._forgets)
        calls_left = chance.choice((
            chance.randrange(MOST_CALLS), chance.randrange(MOST_CALLS_OF_RECOVERY), 1 << 30
        ))  # fmt: skip

        def count(call: str, path: Path) -> None:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                self.history.append(f"cut before {call} {path.relative_to(root)}")
                raise PowerCutError

        disk.hook = count
        steps = chance.randrange(1, MOST_STEPS)
        store = None
        try:
            store = self._open(root, disk)
            for _ in range(steps):
                self._act(store, disk)
                action = chance.random()
                if action < 0.02:
                    store.close()
                    self.history.append("closed in order")
                    store = self._open(root, disk)
                elif action < (0.04 if store.transient_pool is None else 0.07):
                    self._forget_what_is_in_memory_only(store)
                    abandon(store)
                    self.history.append("the process died")
                    store = self._open(root, disk, after_crash=True)
            self.history.append("cut between steps")
        except PowerCutError:
            pass
        if store is not None:
            self._forget_what_is_in_memory_only(store)
            end = parts_of(store).log.max_offset
            flushed = parts_of(store).log.flushed_offset
            self.promises.promise_before(flushed)
            self.promises.lost.append(ByteRange(flushed, max(end, flushed) + LOG_FILE_BYTES))
            abandon(store)
        disk.hook = lambda _call, _path: None
        disk.cut(after, chance)
        self.promises.pending.clear()
        if self.looks:
            self._look_before_and_after(after)

    def _look_before_and_after(self, root: Path) -> None:
        """What verify leaves to the next opening is gone after it, and no other damage is."""
        if not (root / "abort").exists() or not (root / "commitlog").exists():
            return
        opened = root.with_name("opened")
        copy_tree(root, opened)
        config = small_files(self.flush, **self.settings)
        MessageStore.open(opened, config, clock=lambda: self.now_ms, threads=False).close()
        looks = [verify_store(one, config, now_ms=self.now_ms).findings for one in (root, opened)]
        before, left = ({(f.kind, f.file, f.offset): f for f in found} for found in looks)
        shutil.rmtree(opened)
        for key, found in before.items():
            is_mended = found.action == "nothing to do: the next opening writes them"
            # Places stay though their records are lost; items are not judged one by one.
            is_unclear = found.kind in {"queue-stale", "index-wrong"}
            if is_mended or (found.severity is Severity.DAMAGE and not is_unclear):
                assert is_mended == (key not in left), found

    def _forget_what_is_in_memory_only(self, store: MessageStore) -> None:
        """A death takes what a pool has not committed; nobody may ever find it."""
        files = LogBytes(store)
        for label, place in list(self.promises.pending.items()):
            if place.physical_offset >= store.max_physical_offset and not files.have(place):
                del self.promises.pending[label]
                self.promises.tried.remove(label)

    def _open(self, root: Path, disk: ShadowDisk, *, after_crash: bool = False) -> MessageStore:
        self.now_ms += self.chance.choice((0, 5, 5000, 100_000))
        self._check_table(root)
        store = MessageStore.open(
            root,
            small_files(self.flush, **self.settings),
            clock=lambda: self.now_ms,
            disk=disk,
            threads=False,
        )
        self.last_store = store
        # Pauses are counted by this clock too, or no flush of queues would be a thorough one.
        workers = workers_of(store)
        workers.flusher.monotonic = workers.queue_flusher.monotonic = lambda: self.now_ms
        workers.queue_flusher._last_thorough_ms = self.now_ms
        try:
            self._look_around(store, also_pending=after_crash)
        except BaseException:
            abandon(store)
            raise
        return store

    # --- steps ----------------------------------------------------------------------------------

    def _act(self, store: MessageStore, disk: ShadowDisk) -> None:
        chance = self.chance
        self.now_ms += chance.choice((0, 1, 300, 1500, 1500, 4000, 11_000, 61_000))
        actions = (
            (self._put if store.transient_pool is None else self._fill_buffers, 10),
            (self._consume, 2),
            (self._flush_by_the_clock, 3),
            (self._flush, 1),
            (self._write_table, 1),
        )
        act = chance.choices([a for a, _ in actions], [weight for _, weight in actions])[0]
        if act == self._write_table:
            self._write_table(store, disk)
        else:
            act(store)
        if chance.random() < 0.1:
            disk.write_back(chance)
        if store.transient_pool is not None and chance.random() < 0.2:
            store.transient_pool.take_turn()
        self.promises.promise_before(store.flushed_physical_offset)

    def _fill_buffers(self, store: MessageStore) -> None:
        for _ in range(self.chance.choice((1, 1, 1, 15))):
            self._put(store)

    def _put(self, store: MessageStore) -> None:
        self.step += 1
        step = step_of(self.run_number, self.life, self.step)
        labels = labels_of(self.run_number, self.life, self.step)
        self.promises.tried.update(labels)
        result = step.do(store)
        assert result.status is PutMessageStatus.PUT_OK, result
        for label, (offset, number) in places_of(labels, result).items():
            place = Place(offset, step.queue, number)
            self.promises.pending[label] = place
            if self.is_sync and step.waits:
                self.promises.promise(label, place)

    def _consume(self, store: MessageStore) -> None:
        if self.chance.random() < 0.5:
            while parts_of(store).dispatcher.run_once():
                pass
        self._look_around(store)

    def _look_around(self, store: MessageStore, *, also_pending: bool = False) -> None:
        """Read all queues as a consumer; in SYNC_FLUSH what it saw must stay."""
        seen: dict[Label, Place] = {}
        for queue in store.queues():
            for message in all_messages(store, *queue):
                label = Label.parse(message.properties[LABEL])
                own = QueueKey(message.topic, message.queue_id)
                seen[label] = Place(message.physical_offset, own, message.queue_offset)
        if store.transient_pool is not None:
            files = LogBytes(store)
            for label, place in seen.items():
                assert files.have(place), f"{label} was seen while it was in memory only"
        if self.is_sync:
            for label, place in seen.items():
                self.promises.promise(label, place)
        if also_pending:
            for label, place in self.promises.pending.items():
                assert seen.get(label) == place, f"{label}: {seen.get(label)}, was at {place}"

    def _flush_by_the_clock(self, store: MessageStore) -> None:
        workers = workers_of(store)
        if self.is_sync:
            workers.flusher.flush()
        else:
            workers.flusher.flush(workers.flusher.least_pages(self.now_ms))
        while self.chance.random() < 0.7 and parts_of(store).dispatcher.run_once():
            pass
        workers.queue_flusher.run_once()

    def _flush(self, store: MessageStore) -> None:
        store.flush()
        self.promises.promise_before(store.max_physical_offset)

    # --- tables ---------------------------------------------------------------------------------

    def _write_table(self, store: MessageStore, disk: ShadowDisk) -> None:
        number = self.table + 1
        self.tables_possible = {self.table, number}
        path = store.layout.config / LMQ_CONSUMER_OFFSETS_FILE
        content = encode_table(
            ConsumerOffsets(
                offset_table={COUNTED: {0: number}}, lmq_offset_table={LIGHT_COUNTED: number}
            )
        )
        write_atomically(path, content.encode(), disk=disk, decode=_decode_offsets)
        self.table = number
        self.tables_possible = {number}

    def _check_table(self, root: Path) -> None:
        found = {offset for *_, offset in read_offsets(StoreLayout.of(root)).rows()} or {0}
        assert len(found) == 1, f"tables of different times: {found}"
        [number] = found
        assert number in self.tables_possible, f"table {number}, not {self.tables_possible}"
        self.table, self.tables_possible = number, {number}

    # --- the end --------------------------------------------------------------------------------

    def _end_well(self, root: Path) -> None:
        """Open the store on a disk that works, compare everything, go on, and close."""
        disk = ShadowDisk(root)
        store = self._open(root, disk)
        found = self._compare(store)
        first_free = {key: store.next_queue_offset(*key) for key in store.queues()}
        for label, record in found.items():
            for queue, number in record.places.items():
                assert number < first_free[queue], f"{label} in {queue}"
        for _ in range(5):
            self._put(store)
        store.close()
        content = self._check_files(root)
        check_true(content.records, self.promises.tried)
        report = verify_store(root, small_files(self.flush), now_ms=self.now_ms)
        bad = [f for f in report.findings if f.severity.value != "note"]
        tolerated = TOLERATED_FINDINGS if self.is_sync else TOLERATED_BEHIND_THE_FLUSH
        assert all(f.kind in tolerated for f in bad), bad

    def _compare(self, store: MessageStore) -> dict[Label, LogRecord]:
        store.wait_dispatched()
        content = self._check_files(store.layout.root)
        found = check_true(content.records, self.promises.tried)
        self.promises.check(found)
        check_reading(store, found)
        return found

    def _check_files(self, root: Path) -> LogContent:
        content = check_agreement(
            root, log_file_bytes=LOG_FILE_BYTES, slot_count=INDEX_SLOTS, lost=self.promises.lost
        )
        for damage in content.damage:
            assert any(
                lost.start <= damage.start and damage.stop <= lost.stop
                for lost in self.promises.lost
            ), f"damage at {damage}, but losses only at {self.promises.lost}"
        return content


def _decode_offsets(content: bytes) -> ConsumerOffsets:
    return decode_table(content, ConsumerOffsets)


class LogBytes:
    """The log's files as they are now, without what only a buffer has; each is read once."""

    def __init__(self, store: MessageStore) -> None:
        (self._directory,) = store.layout.commit_log_directories
        self._read: dict[int, bytes] = {}

    def have(self, place: Place) -> bool:
        """Return whether a file has a record at a place."""
        number, position = divmod(place.physical_offset, LOG_FILE_BYTES)
        if number not in self._read:
            path = self._directory / f"{number * LOG_FILE_BYTES:020}"
            self._read[number] = path.read_bytes()
        return any(self._read[number][position : position + 4])


def abandon(store: MessageStore) -> None:
    """Drop a store as the death of its process does: nothing is written, nothing is synced."""
    parts = parts_of(store)
    for part in (parts.log.files, parts.queues, parts.index):
        part.drop()
    parts.lock.release()
