"""The power goes while transactions begin, end and are checked: each ends once, or is open."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketstore import CheckAnswer, EndStatus, Message, MessageStore, StoredMessage
from rocketstore.transaction import ledger, transactions
from rocketstore.transaction.ledger import open_transactions
from rocketstore.units import QueueKey
from support.inside import workers_of
from support.power_cut_trial import BATCHES, Trial, batch_name, run_trials
from support.shadow_disk import ShadowDisk
from support.transaction_stores import all_of

ORDERS = QueueKey("orders", 0)
GROUP = "billing"
COMMITTED, ROLLED_BACK = "committed", "rolled back"


@dataclass
class Begun:
    """A transaction: its offsets, what was wanted of it, and where each record of it ends."""

    place: tuple[int, int]
    log_end: int
    is_safe: bool = False
    wanted: set[str] = field(default_factory=set)
    ended: tuple[str, int] | None = None
    safe_end: str | None = None


class Endings(Trial):
    """Transactions begin, are asked about, and end."""

    most_calls = 150

    def __init__(self, seed: int) -> None:
        super().__init__(seed, transaction_time_out=0, transaction_check_max=1_000)
        self.begun: dict[str, Begun] = {}

    def act(self, store: MessageStore, disk: ShadowDisk) -> None:
        self.now_ms += self.chance.choice((0, 1, 300, 900))
        action = self.chance.random()
        if action < 0.4:
            self.begin(store)
        elif action < 0.65:
            self.end(store)
        elif action < 0.75:
            self.check(store)
        elif action < 0.85:
            store.consumer_offsets.save()
        elif action < 0.9:
            workers_of(store).flusher.flush()
        else:
            disk.write_back(self.chance)
        self.note_safe(store)

    def begin(self, store: MessageStore) -> None:
        label = str(self.count)
        self.count += 1
        half = store.begin(Message(topic="orders", body=label.encode()), producer_group=GROUP)
        assert half.put.is_stored
        place = half.queue_offset, half.physical_offset
        self.begun[label] = Begun(place, store.appended_physical_offset)

    def end(self, store: MessageStore) -> None:
        waiting = [one for one in self.begun.values() if one.ended is None]
        if not waiting:
            return
        one = self.chance.choice(waiting[-3:])
        end = self.chance.choice((COMMITTED, ROLLED_BACK))
        before = set(one.wanted)
        one.wanted.add(end)
        result = store.end_transaction(GROUP, *one.place, commits=end == COMMITTED)
        if result.status is EndStatus.ENDED_ALREADY:
            assert before, "ended by nobody"
        else:
            assert result.put is not None, result
            one.ended = end, store.appended_physical_offset

    def check(self, store: MessageStore) -> None:
        def on_check(half: StoredMessage) -> CheckAnswer:
            answer = self.chance.choice(list(CheckAnswer))
            one = self.begun.get(half.body.decode())
            if one is not None:
                assert one.ended is None, "asked about what has ended"
                if answer is not CheckAnswer.UNKNOWN:
                    end = COMMITTED if answer is CheckAnswer.COMMIT else ROLLED_BACK
                    one.wanted.add(end)
                    answers.append((one, end))
            return answer

        answers: list[tuple[Begun, str]] = []
        store.wait_dispatched()
        store.check_transactions(on_check)
        store.transaction_checks.turn(self.now_ms + 1)
        for one, end in answers:
            one.ended = end, store.appended_physical_offset

    def note_safe(self, store: MessageStore) -> None:
        flushed = store.flushed_physical_offset
        for one in self.begun.values():
            one.is_safe |= one.log_end <= flushed
            if one.ended is not None and one.ended[1] <= flushed:
                one.safe_end = one.ended[0]

    def forget_unsafe(self) -> None:
        for label in [label for label, one in self.begun.items() if not one.is_safe]:
            del self.begun[label]  # it may be gone, and its offsets may be another's
        for one in self.begun.values():
            one.ended = None if one.safe_end is None else one.ended

    def check_end(self, root: Path) -> None:
        """Count what was delivered, and end what is open."""
        with self.open(root) as store:
            delivered = Counter(one.body.decode() for one in all_of(store, ORDERS))
            assert not [label for label, count in delivered.items() if count > 1], "twice"
            opened = {one.body.decode() for one in open_transactions(store)}
            assert not opened & delivered.keys(), "open and committed"
            for label, one in self.begun.items():
                if one.safe_end is not None:
                    assert label not in opened, f"{label}: open after its end was flushed"
                    assert (label in delivered) == (one.safe_end == COMMITTED), label
                elif label not in opened:
                    end = COMMITTED if label in delivered else ROLLED_BACK
                    assert end in one.wanted, f"{label}: {end}, which nobody wanted"
                result = store.end_transaction(GROUP, *one.place, commits=True)
                is_open = result.status is EndStatus.COMMITTED
                assert is_open == (label in opened), (label, result)


@pytest.fixture(autouse=True)
def _moves_all_the_time(monkeypatch):
    monkeypatch.setattr(transactions, "SETTLE_EVERY", 2)
    monkeypatch.setattr(ledger, "LONGEST", 3)


@pytest.mark.parametrize("seeds", BATCHES, ids=batch_name)
def test_each_transaction_that_outlives_the_power_ends_once(seeds):
    run_trials(Endings, seeds)
