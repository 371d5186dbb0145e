"""The power goes while delayed messages are put, delivered and counted: each is delivered once."""

from collections import Counter
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore
from support.inside import workers_of
from support.power_cut_trial import BATCHES, Trial, batch_name, run_trials
from support.shadow_disk import ShadowDisk

TOPIC = "power"
WAITING = "SCHEDULE_TOPIC_XXXX"


class Deliveries(Trial):
    """Messages wait, are delivered, and are counted."""

    most_calls = 120

    def __init__(self, seed: int) -> None:
        super().__init__(seed, message_delay_level="1s 2s", flush_delay_offset_interval=1500)
        self.ends: dict[str, int] = {}
        self.safe: set[str] = set()

    def act(self, store: MessageStore, disk: ShadowDisk) -> None:
        delays = store.delays
        assert delays is not None
        self.now_ms += self.chance.choice((0, 1, 300, 900))
        action = self.chance.random()
        if action < 0.4:
            label = str(self.count)
            self.count += 1
            properties = {"DELAY": str(self.chance.choice((1, 2)))}
            result = store.put(Message(topic=TOPIC, body=label.encode(), properties=properties))
            self.ends[label] = result.physical_offset + result.size
        elif action < 0.8:
            delays.turn()
        elif action < 0.9:
            workers_of(store).flusher.flush()
        else:
            disk.write_back(self.chance)
        self.note_safe(store)

    def note_safe(self, store: MessageStore) -> None:
        flushed = store.flushed_physical_offset
        self.safe |= {label for label, end in self.ends.items() if end <= flushed}

    def forget_unsafe(self) -> None:
        self.ends.clear()

    def check_end(self, root: Path) -> None:
        """Deliver all that waits, and count."""
        with self.open(root) as store:
            assert store.delays is not None
            self.now_ms += 10_000
            for _ in range(5):
                store.delays.turn()
                store.wait_dispatched()
            copies = _bodies(store, TOPIC, 0)
            sources = _bodies(store, WAITING, 0) + _bodies(store, WAITING, 1)
            assert not [label for label, count in copies.items() if count > 1], "twice"
            assert not sources.keys() - copies.keys(), "not delivered"
            assert not self.safe - copies.keys(), "lost"


def _bodies(store: MessageStore, topic: str, queue_id: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for _, entry in store.queue_entries(topic, queue_id):
        message = store.at_physical_offset(entry.physical_offset) if entry.is_message else None
        if message is not None:
            found[message.body.decode()] += 1
    return found


@pytest.mark.parametrize("seeds", BATCHES, ids=batch_name)
def test_each_message_that_outlives_the_power_is_delivered_once(seeds):
    run_trials(Deliveries, seeds)
