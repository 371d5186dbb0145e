"""Delayed messages through every order of puts, deliveries, refusals, kills and moves of the clock.

The model knows what waits and since when it is due. Nothing is delivered before its time, twice or
out of the order of its level, and what is due is delivered as soon as the store takes it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rocketstore import Message, MessageStore, PutMessageStatus, PutResult
from support.configured_store import START_MS, Clock, small_config
from support.fault_settings import machine_example_count
from support.memory import MEMORY

if TYPE_CHECKING:
    from typing import Any

TOPIC = "later"
QUEUES = 2
DELAYS_MS = {1: 1_000, 2: 3_000, 3: 60_000}
CONFIG = small_config(message_delay_level="1s 3s 1m", flush_delay_offset_interval=1_500)
TURNS = 6
"""More than are needed to find out what was delivered and to go over all levels."""


class Waiting(NamedTuple):
    """A delayed message of the model."""

    level: int
    queue_id: int
    due_ms: int

    def is_to_go(self, now_ms: int) -> bool:
        """Whether it is due, or would wait longer than its level, as the clock went back."""
        return not now_ms < self.due_ms <= now_ms + DELAYS_MS[self.level]


class DelayMachine(RuleBasedStateMachine):
    """One store without threads, and a clock that goes as it likes."""

    @initialize()
    def begin(self) -> None:
        where = MEMORY if MEMORY.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="rocketstore-test-", dir=where))
        self.clock = Clock()
        self.put_count = 0
        self.waiting: dict[bytes, Waiting] = {}
        self.delivered: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.root, CONFIG, clock=self.clock, threads=False)

    def teardown(self) -> None:
        self.store.abandon()
        shutil.rmtree(self.root)

    # --- what happens ---------------------------------------------------------------------------

    @rule(level=st.integers(-1, 5), queue_id=st.integers(0, QUEUES - 1), same=st.booleans())
    def put(self, level: int, queue_id: int, *, same: bool) -> None:
        """Some messages differ in nothing but their body, some by their born time too."""
        body = b"%d" % self.put_count
        self.put_count += 1
        born_ms = START_MS if same else self.clock.now_ms
        properties = {"DELAY": str(level)}
        message = Message(topic=TOPIC, body=body, properties=properties, born_timestamp_ms=born_ms)
        result = self.store.put(message, queue_id)
        assert result.is_stored
        if level < 1:
            self.delivered[queue_id].append(body)
            return
        level = min(level, len(DELAYS_MS))
        due_ms = result.store_timestamp_ms + DELAYS_MS[level]
        self.waiting[body] = Waiting(level, queue_id, due_ms)

    @rule(ms=st.sampled_from([1, 400, 1_000, 2_500, 3_000, 60_000, -1, -700, -10_000]))
    def clock_moves(self, ms: int) -> None:
        self.clock.now_ms += ms

    @rule(refused=st.none() | st.integers(0, 2), raises=st.booleans())
    def deliver(self, refused: int | None, *, raises: bool) -> None:
        """Let the thread have its turns; of a number on, the store takes no copy."""
        self.store.wait_dispatched()
        real = self.store.put_record
        if refused is not None:
            self.store.put_record = _refuses(real, refused, raises=raises)  # type: ignore[method-assign]
        assert self.store.delays is not None
        for _ in range(TURNS):
            try:
                self.store.delays.turn()
            except OSError:
                assert raises
        self.store.put_record = real  # type: ignore[method-assign]
        self.look(all_due=refused is None)

    @rule(killed=st.booleans())
    def reopen(self, *, killed: bool) -> None:
        if killed:
            self.store.abandon()
        else:
            self.store.close()
        self.open()

    # --- what is always true --------------------------------------------------------------------

    def look(self, *, all_due: bool) -> None:
        now_ms = self.clock.now_ms
        self.store.wait_dispatched()
        for queue_id, known in enumerate(self.delivered):
            found = self.bodies(queue_id)
            assert found[: len(known)] == known
            for body in found[len(known) :]:
                one = self.waiting.pop(body)
                assert one.queue_id == queue_id
                assert one.is_to_go(now_ms), (body, one, now_ms)
                self.in_order(body, one)
            self.delivered[queue_id] = found
        if all_due:
            # A level waits for its first message, whatever the clock was when the next ones came.
            for level in DELAYS_MS:
                of_level = [one for one in self.waiting.values() if one.level == level]
                assert not of_level or not of_level[0].is_to_go(now_ms), of_level

    def in_order(self, body: bytes, one: Waiting) -> None:
        older = [
            other for other, waiting in self.waiting.items()
            if waiting.level == one.level and waiting.queue_id == one.queue_id
            and int(other) < int(body)
        ]  # fmt: skip
        assert not older, f"{body!r} before {older}"

    def bodies(self, queue_id: int) -> list[bytes]:
        found: list[bytes] = []
        while messages := self.store.get(TOPIC, queue_id, len(found)).messages:
            found += [message.body for message in messages]
        return found

    @invariant()
    def nothing_is_delivered_but_by_a_turn(self) -> None:
        self.store.wait_dispatched()
        for queue_id, known in enumerate(self.delivered):
            assert self.bodies(queue_id) == known


def _refuses(real: Any, left: int, *, raises: bool) -> Any:
    def put_record(*args: Any, **named: Any) -> PutResult:
        nonlocal left
        left -= 1
        if left >= 0:
            result: PutResult = real(*args, **named)
            return result
        if raises:
            raise OSError("no disk")
        return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    return put_record


DelayMachine.TestCase.settings = settings(
    max_examples=machine_example_count(),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDelays = DelayMachine.TestCase
