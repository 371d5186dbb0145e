"""Delayed messages through every order of puts, deliveries, refusals, kills and moves of the clock.

The model knows what waits and for how long it has. Nothing is delivered before it has waited for
its delay, or twice. While the clock goes forth only, what is due is delivered at once and in order;
after it went back, or a restart, when a level has had its delay twice.
"""

import shutil
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rocketstore import Message, MessageStore, PutMessageStatus, PutResult
from support.clock import START_MS, Clock
from support.configured_store import small_config
from support.fault_settings import machine_example_count
from support.memory import made_in_memory
from support.reading import all_messages

TOPIC = "later"
QUEUES = 2
DELAYS_MS = {1: 1_000, 2: 3_000, 3: 60_000}
CONFIG = small_config(message_delay_level="1s 3s 1m", flush_delay_offset_interval=1_500)
TURNS = 6
"""More than are needed to find out what was delivered and to go over all levels."""


class Waiting(NamedTuple):
    """A delayed message of the model, and how far the clock had gone forth when it was put.

    `is_steady`: the clock was not behind when it was put, nor went back since.
    """

    level: int
    queue_id: int
    due_ms: int
    put_ms: int
    is_steady: bool


class DelayMachine(RuleBasedStateMachine):
    """One store without threads, and a clock that goes as it likes."""

    @initialize()
    def begin(self) -> None:
        self.root = made_in_memory()
        self.clock = Clock()
        self.put_count = 0
        self.waiting: dict[bytes, Waiting] = {}
        self.gone_ms = 0
        self.rounds: dict[int, tuple[int, int, int]] = {}
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
        is_steady = result.store_timestamp_ms == self.clock.now_ms
        self.waiting[body] = Waiting(level, queue_id, due_ms, self.gone_ms, is_steady)

    @rule(ms=st.sampled_from([1, 400, 1_000, 2_500, 3_000, 60_000, -1, -700, -10_000, -3_600_000]))
    def clock_moves(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.gone_ms += max(ms, 0)
        if ms < 0:
            self.rounds.clear()
            self.waiting = {
                body: one._replace(is_steady=False) for body, one in self.waiting.items()
            }

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
        self.rounds.clear()
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
                assert self.gone_ms - one.put_ms >= DELAYS_MS[one.level], (body, one)
                self.in_order(body, one)
            self.delivered[queue_id] = found
        if all_due:
            for level in DELAYS_MS:
                of_level = [one for one in self.waiting.values() if one.level == level]
                if all(one.is_steady for one in of_level):
                    assert not of_level or of_level[0].due_ms > now_ms, of_level
                self.not_for_ever(level, of_level)

    def not_for_ever(self, level: int, of_level: list[Waiting]) -> None:
        """One that waits by its own time may be first, and the others be seen after it only."""
        begun_ms, since_ms, count = self.rounds.get(level, (self.gone_ms, self.gone_ms, 0))
        if self.gone_ms - since_ms >= DELAYS_MS[level] + 1_000:
            since_ms, count = self.gone_ms, count + 1
        assert count < 2 or all(one.put_ms > begun_ms for one in of_level), of_level
        self.rounds[level] = begun_ms, since_ms, count
        if count == 2:  # again, for those put since
            del self.rounds[level]

    def in_order(self, body: bytes, one: Waiting) -> None:
        older = [
            other for other, waiting in self.waiting.items()
            if waiting.level == one.level and waiting.queue_id == one.queue_id
            and int(other) < int(body) and waiting.is_steady and one.is_steady
        ]  # fmt: skip
        assert not older, f"{body!r} before {older}"

    def bodies(self, queue_id: int) -> list[bytes]:
        return [message.body for message in all_messages(self.store, TOPIC, queue_id)]

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
