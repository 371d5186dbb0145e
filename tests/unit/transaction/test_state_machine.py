"""Whatever is begun, ended, checked, killed and opened again: each transaction ends once.

The model knows what each call said. A call that a kill or an interrupt cut off may have had its
effect or not, so the model allows both, and pins it down by what is seen next.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis.strategies as st
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketstore import CheckAnswer, EndResult, EndStatus, HalfMessage, Message, StoredMessage
from rocketstore.transaction import ledger, transactions
from rocketstore.transaction.ledger import open_transactions
from rocketstore.units import QueueKey
from support.killed import Killed
from support.memory import made_in_memory
from support.transaction_stores import TransactionStores, all_of, ended

ORDERS = QueueKey("orders", 0)
KILLS = st.none() | st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.booleans(), st.booleans())
"""The put that is the last one, whether it is still done, and whether the process ends with it."""


class Begun:
    """What the model knows of one transaction."""

    def __init__(self, half: HalfMessage, body: bytes) -> None:
        self.half = half
        self.body = body
        self.possible = {"open"}
        self.places = [(half.queue_offset, half.physical_offset)]


class Transactions(RuleBasedStateMachine):
    """One store and all that happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = made_in_memory()
        self.stores = TransactionStores(self.root)
        self.begun: list[Begun] = []
        self.has_interrupts = False

    def teardown(self) -> None:
        self.stores.store.abandon()
        shutil.rmtree(self.root)

    # --- what happens ---------------------------------------------------------------------------

    @rule(same=st.booleans())
    def begin(self, *, same: bool) -> None:
        body = f"{len(self.begun)}".encode()
        # Messages that differ in nothing a check compares but the time: a producer sent it again.
        key = "same" if same else body.decode()
        self.stores.clock.now_ms += 1
        message = Message(topic="orders", body=body, unique_key=key)
        half = self.stores.store.begin(message)
        assert half.put.is_stored
        self.begun.append(Begun(half, body))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), commits=st.booleans(), kill=KILLS)
    def end(
        self, data: st.DataObject, kill: tuple[int, bool, bool] | None, *, commits: bool
    ) -> None:
        one = data.draw(st.sampled_from(self.begun))
        place = data.draw(st.sampled_from(one.places))
        wanted = "committed" if commits else "rolled back"
        result: EndResult | None = None
        with self.cut_off(kill):
            result = self.stores.store.end_transaction("DEFAULT_PRODUCER", *place, commits=commits)
        if result is None:
            if "open" in one.possible:
                one.possible |= {wanted}
        elif result.status is EndStatus.ENDED_ALREADY:
            one.possible.discard("open")
            assert one.possible
        else:
            name = EndStatus.COMMITTED if commits else EndStatus.ROLLED_BACK
            assert result.status is name
            assert "open" in one.possible
            one.possible = {wanted}

    @rule(answer=st.sampled_from(CheckAnswer), kill=KILLS, seconds=st.sampled_from([1, 60]))
    def check(self, answer: CheckAnswer, kill: tuple[int, bool, bool] | None, seconds: int) -> None:
        self.stores.clock.now_ms += seconds * 1000
        self.stores.store.wait_dispatched()
        by_body = {one.body: one for one in self.begun}

        def on_check(half: StoredMessage) -> CheckAnswer:
            one = by_body[half.body]
            assert "open" in one.possible, "asked about what has ended"
            one.places.append((half.queue_offset, half.physical_offset))
            if answer is CheckAnswer.UNKNOWN:
                one.possible = {"open"}  # it would not have been asked about
            else:
                wanted = "committed" if answer is CheckAnswer.COMMIT else "rolled back"
                one.possible = {wanted} if kill is None else {"open", wanted}
            return answer

        with self.cut_off(kill):
            self.stores.store.check_transactions(on_check)
            self.stores.store.transaction_checks.turn(self.stores.clock.now_ms)

    @rule(killed=st.booleans())
    def reopen(self, *, killed: bool) -> None:
        self.stores.reopen(killed=killed)

    @contextmanager
    def cut_off(self, kill: tuple[int, bool, bool] | None) -> Iterator[None]:
        if kill is None:
            yield
            return
        number, after, reopens = kill
        self.has_interrupts |= not reopens
        try:
            with self.stores.kill_at_put(number, after=after):
                yield
        except Killed:
            if reopens:
                self.stores.reopen(killed=True)

    # --- what is always true --------------------------------------------------------------------

    @invariant()
    def each_is_delivered_as_its_end_says(self) -> None:
        delivered = [message.body for message in all_of(self.stores.store, ORDERS)]
        assert len(delivered) == len(set(delivered)), "delivered twice"
        for one in self.begun:
            if one.body in delivered:
                assert "committed" in one.possible, "delivered although it was not committed"
                one.possible = {"committed"}
            else:
                one.possible.discard("committed")
                assert one.possible, "committed and not delivered"

    @invariant()
    def what_is_listed_as_open_is_open(self) -> None:
        listed = {one.body for one in open_transactions(self.stores.store)}
        for one in self.begun:
            if one.possible == {"open"}:
                assert one.body in listed, "lost"
            elif "open" not in one.possible:
                # Discarded after 15 checks does not occur in so few steps.
                is_listed = one.body in listed and one.possible == {"rolled back"}
                assert not is_listed, "open again after its end"
        # A put that was interrupted after its work is done again: that of an op message, which
        # may say twice what it says, like Java's.
        numbers = ended(self.stores.store)
        assert len(numbers) == len(set(numbers)) or self.has_interrupts, "ended twice"


class TestTransactions(Transactions.TestCase):  # type: ignore[misc, name-defined]
    """With half messages that are moved, where others after them have ended, all the time."""

    def setUp(self) -> None:
        super().setUp()
        for module, name, number in ((transactions, "SETTLE_EVERY", 2), (ledger, "LONGEST", 3)):
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, number)


TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    # Without the phase that explains, which follows every line and takes minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
