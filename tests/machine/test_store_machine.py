"""A store against a model that is a list, through every order of calls and of accidents.

The rules put, also for several queues at once, with a transient store pool or without, read, close,
reopen, kill the process (its memory is dropped, its files stay), flip bits in records, tear the end
of the log off, delete queues, delete the index, let old files expire, and repair, each time after a
dry run that must have said what the repair then does. After each opening every message that no
accident hit is where it was, none is there that was not put, and a message that was hit is a place
that a get steps over.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from rocketstore import (
    Message,
    MessageStore,
    PutMessageStatus,
    QueueKey,
    StoreConfig,
    repair_store,
    verify_store,
)
from rocketstore.config import RecoveryPolicy
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.file_name import file_name
from rocketstore.format.properties import INNER_MULTI_DISPATCH
from rocketstore.rules.extra_queues import offset_in
from support.fault_settings import machine_example_count
from support.inside import parts_of
from support.memory import made_in_memory
from support.power_cut import abandon
from support.reading import all_messages

LOG_FILE_BYTES = 4096
CONFIG = StoreConfig(
    mapped_file_size_commit_log=LOG_FILE_BYTES,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=64,
    retention=False,
    enable_multi_dispatch=True,
    enable_lmq=True,
)
POOLED = structs.replace(CONFIG, transient_store_pool_enable=True, transient_store_pool_size=2)
LISTS = ("copies", "%LMQ%a", "%LMQ%a,copies")
QUEUES = (QueueKey("orders", 0), QueueKey("orders", 1), QueueKey("%RETRY%g", 0))
EXTRA_QUEUES = (QueueKey("copies", 0), QueueKey("copies", 1), QueueKey("%LMQ%a", 0))
ALL_QUEUES = (*QUEUES, *EXTRA_QUEUES)
BORN_MS = 1_700_000_000_000
BODY_CRC_AT = 8
PHYSICAL_OFFSET_AT = 28
TOPIC_SIZE_AT = 88
"""In a record without a body: where the length of the topic stands."""

"""No accident here takes away what was not synced, so syncs need not reach a disk."""

queues = st.sampled_from(ALL_QUEUES)
bodies = st.binary(max_size=300)
tags = st.sampled_from([None, "a", "b"])


@dataclass
class Put:
    """A message of the model."""

    body: bytes
    key: str
    tags: str | None
    physical_offset: int
    size: int
    is_hit: bool = False
    is_expired: bool = False

    @property
    def is_there(self) -> bool:
        return not (self.is_hit or self.is_expired)


class StoreMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize(has_pool=st.booleans())
    def begin(self, *, has_pool: bool) -> None:
        self.config = POOLED if has_pool else CONFIG
        self.root = made_in_memory()
        self.now_ms = BORN_MS
        self.number = 0
        self.model: dict[QueueKey, list[Put]] = {queue: [] for queue in ALL_QUEUES}
        self.forgetful: set[QueueKey] = set()
        self.is_in_order = True
        self.store: MessageStore | None = None
        self.open()

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def clock(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def message(self, queue: QueueKey, body: bytes, tag: str | None) -> Message:
        self.number += 1
        return Message(topic=queue.topic, body=body, tags=tag, keys=f"k{self.number}")

    # --- what a program does --------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule(queue=queues, body=bodies, tag=tags)
    def put(self, queue: QueueKey, body: bytes, tag: str | None) -> None:
        message = self.message(queue, body, tag)
        result = self.store.put(message, queue.queue_id)
        self.note(queue, [message], result.status, result.queue_offset, result.physical_offset)

    @precondition(lambda self: self.store is not None)
    @rule(queue=queues, some=st.lists(bodies, min_size=1, max_size=5))
    def put_batch(self, queue: QueueKey, some: list[bytes]) -> None:
        messages = [self.message(queue, body, "a") for body in some]
        result = self.store.put_batch(messages, queue.queue_id)
        self.note(queue, messages, result.status, result.queue_offset, result.physical_offset)

    @precondition(lambda self: self.store is not None)
    @rule(queue=queues, some=st.lists(bodies, min_size=1, max_size=5))
    def put_client_batch(self, queue: QueueKey, some: list[bytes]) -> None:
        messages = [self.message(queue, body, None) for body in some]
        batch = encode_client_batch(
            (0, message.body, b"KEYS\x01" + str(message.keys).encode()) for message in messages
        )
        result = self.store.put_client_batch(queue.topic, queue.queue_id, batch)
        self.note(queue, messages, result.status, result.queue_offset, result.physical_offset)

    @precondition(lambda self: self.store is not None)
    @rule(queue_id=st.sampled_from([0, 1]), names=st.sampled_from(LISTS), body=bodies)
    def put_to_several(self, queue_id: int, names: str, body: bytes) -> None:
        own = QueueKey("orders", queue_id)
        message = self.message(own, body, "a")
        message = structs.replace(message, properties={INNER_MULTI_DISPATCH: names})
        result = self.store.put(message, queue_id)
        self.note(own, [message], result.status, result.queue_offset, result.physical_offset)
        put = self.model[own][-1]
        stored = self.store.at_physical_offset(result.physical_offset)
        for name in names.split(","):
            queue = QueueKey(name, 0 if name == "%LMQ%a" else queue_id)
            number = offset_in(stored, queue)
            self.note_number(queue, number)
            [(_, entry)] = self.store.queue_entries(*queue, number, 1)
            assert (entry.physical_offset, entry.record_size) == (put.physical_offset, put.size)
            self.model[queue].append(put)

    def note(
        self,
        queue: QueueKey,
        messages: list[Message],
        status: PutMessageStatus,
        queue_offset: int,
        physical_offset: int,
    ) -> None:
        assert status is PutMessageStatus.PUT_OK
        self.note_number(queue, queue_offset)
        self.store.wait_dispatched()
        for number, message in enumerate(messages):
            [(_, entry)] = self.store.queue_entries(*queue, queue_offset + number, 1)
            assert number or entry.physical_offset == physical_offset
            place = (entry.physical_offset, entry.record_size)
            self.model[queue].append(Put(message.body, str(message.keys), message.tags, *place))

    def note_number(self, queue: QueueKey, queue_offset: int) -> None:
        given = self.model[queue]
        if queue in self.forgetful:
            # Nobody knows any more that numbers of lost messages were given out.
            assert not any(put.is_there for put in given[queue_offset:])
            del given[queue_offset:]
        assert queue_offset == len(given)
        self.forgetful.discard(queue)

    @precondition(lambda self: self.store is not None)
    @rule()
    def close(self) -> None:
        self.store.close()
        self.store = None
        self.is_in_order = True

    @precondition(lambda self: self.store is not None)
    @rule()
    def let_the_oldest_file_expire(self) -> None:
        parts, now_ms = parts_of(self.store), self.clock()
        if len(parts.log.files.files) < 2:
            return
        assert parts.log.files.remove_first(force_after_ms=0, now_ms=now_ms)
        first = parts.log.min_offset
        for queue in parts.queues.all():
            queue.delete_expired(first, force_after_ms=0, now_ms=now_ms)
        parts.index.delete_expired(first, now_ms=now_ms)
        for put in self.unhit():
            put.is_expired = put.physical_offset < first

    @precondition(lambda self: self.store is None and self.is_in_order and not self.hit_any())
    @rule()
    def open_as_java_does(self) -> None:
        self.open(RecoveryPolicy.COMPATIBLE)

    @precondition(lambda self: self.store is None)
    @rule(policy=st.none())
    def open(self, policy: RecoveryPolicy | None = None) -> None:
        self.store = MessageStore.open(
            self.root, self.config, clock=self.clock, threads=False, policy=policy
        )
        self.store.wait_dispatched()
        self.is_in_order = False
        for queue, puts in self.model.items():
            # Numbers of lost last messages stay given, but only the next message shows it.
            end = self.store.max_offset(*queue)
            assert end <= len(puts)
            assert not any(put.is_there for put in puts[end:]), f"{queue} lost its last message"

    # --- accidents ------------------------------------------------------------------------------

    @precondition(lambda self: self.store is not None)
    @rule()
    def kill(self) -> None:
        abandon(self.store)
        self.store = None

    @precondition(lambda self: self.store is not None)
    @rule(queue=queues, body=bodies)
    def kill_right_after_a_put(self, queue: QueueKey, body: bytes) -> None:
        message = self.message(queue, body, None)
        result = self.store.put(message, queue.queue_id)
        path, position = self.log_file(result.physical_offset)
        if any(path.read_bytes()[position : position + 4]):
            self.note_number(queue, result.queue_offset)
            place = (result.physical_offset, result.size)
            self.model[queue].append(Put(body, str(message.keys), None, *place))
            self.forgetful.add(queue)  # its entry may have died, and the record may be hit
        else:  # a transient store pool had it
            assert self.store.transient_pool is not None
        self.kill()

    def unhit(self) -> list[Put]:
        return [put for puts in self.model.values() for put in puts if put.is_there]

    def log_file(self, physical_offset: int) -> tuple[Path, int]:
        base = physical_offset - physical_offset % LOG_FILE_BYTES
        return self.root / "commitlog" / file_name(base), physical_offset - base

    @precondition(lambda self: self.store is None and self.unhit())
    @rule(data=st.data())
    def flip_a_bit(self, data: st.DataObject) -> None:
        put = data.draw(st.sampled_from(self.unhit()))
        # Bytes that something vouches for: length, magic, checksum, address, body.
        places = [*range(BODY_CRC_AT + 4), *range(PHYSICAL_OFFSET_AT, PHYSICAL_OFFSET_AT + 8)]
        if put.body:
            places += range(88, 88 + len(put.body))
        else:
            places = [place for place in places if not BODY_CRC_AT <= place < BODY_CRC_AT + 4]
        place = data.draw(st.sampled_from(places))
        # The highest bit of a checksum is not stored, so it must be 0 and is compared as such.
        bit = data.draw(st.integers(0, 7))
        path, position = self.log_file(put.physical_offset)
        with path.open("r+b") as file:
            file.seek(position + place)
            [byte] = file.read(1)
            file.seek(position + place)
            file.write(bytes([byte ^ (1 << bit)]))
        put.is_hit = True

    @precondition(lambda self: self.store is None and self.unhit())
    @rule(share=st.floats(0, 0.99))
    def tear_the_last_record(self, share: float) -> None:
        self.is_in_order = False
        # Of those that are there: a longer one may stand where lost ones stood.
        last = max(self.unhit(), key=lambda put: put.physical_offset)
        path, position = self.log_file(last.physical_offset)
        # Behind the body nothing vouches for a byte: a record torn there is a message still.
        kept = min(int(last.size * share), TOPIC_SIZE_AT + len(last.body))
        with path.open("r+b") as file:
            file.seek(position + kept)
            torn = file.read(last.size - kept)
            if not any(torn):
                return
            file.seek(position + kept)
            file.write(bytes(last.size - kept))
        last.is_hit = True
        (self.root / "abort").touch()

    @precondition(lambda self: self.store is None)
    @rule(queue=queues)
    def delete_a_queue(self, queue: QueueKey) -> None:
        shutil.rmtree(
            self.root / "consumequeue" / queue.topic / str(queue.queue_id), ignore_errors=True
        )
        (self.root / "abort").touch()
        self.forgetful.add(queue)
        self.is_in_order = False

    @precondition(lambda self: self.store is None)
    @rule()
    def delete_the_index(self) -> None:
        shutil.rmtree(self.root / "index", ignore_errors=True)
        self.repair()

    @precondition(lambda self: self.store is None)
    @rule()
    def leave_an_old_abort_file(self) -> None:
        (self.root / "abort").touch()
        self.is_in_order = False

    @precondition(lambda self: self.store is None and any((self.root / "commitlog").glob("*")))
    @rule()
    def repair(self) -> None:
        if not any((self.root / "commitlog").glob("*")):
            return
        now_ms = self.clock()
        said = repair_store(self.root, now_ms=now_ms, config=CONFIG, dry_run=True)
        done = repair_store(self.root, now_ms=now_ms, config=CONFIG)
        assert (said.findings, said.actions) == (done.findings, done.actions)
        assert said.is_damaged == done.is_damaged
        again = repair_store(self.root, now_ms=self.clock(), config=CONFIG)
        assert again.actions == []

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def every_message_that_was_not_hit_is_read_and_nothing_else(self) -> None:
        if self.store is None:
            return
        for queue, puts in self.model.items():
            messages = all_messages(self.store, *queue)
            found = {offset_in(message, queue): message.body for message in messages}
            expected = {n: put.body for n, put in enumerate(puts) if put.is_there}
            assert found == expected, queue

    @precondition(lambda self: self.store is not None and self.unhit())
    @rule(data=st.data())
    def find_a_message_by_key_and_by_id(self, data: st.DataObject) -> None:
        put = data.draw(st.sampled_from(self.unhit()))
        queue = next(queue for queue, puts in self.model.items() if put in puts)
        found = self.store.find(queue.topic, put.key)
        assert [message.physical_offset for message in found] == [put.physical_offset]
        by_id = self.store.by_id(found[0].message_id)
        assert by_id is not None
        assert (by_id.body, by_id.tags) == (put.body, put.tags)

    @precondition(lambda self: self.store is None and not self.hit_any())
    @rule()
    def verify_finds_nothing_wrong_after_a_repair(self) -> None:
        if not any((self.root / "commitlog").glob("*")):
            return
        self.repair()
        report = verify_store(self.root, CONFIG)
        assert not report.has_warnings, report.findings

    def hit_any(self) -> bool:
        return any(put.is_hit for puts in self.model.values() for put in puts)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=machine_example_count(),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
