"""The power goes while delayed messages are put, delivered and counted: each is delivered once."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from rocketstore import Message, MessageStore
from rocketstore.config import FlushDiskType
from support.configured_store import small_config
from support.fault_settings import power_cut_seeds
from support.memory import memory_directory
from support.power_cut import PowerCutError, abandon
from support.shadow_disk import ShadowDisk

if TYPE_CHECKING:
    from pathlib import Path

LIVES = 3
MOST_CALLS = 120
TOPIC = "power"
WAITING = "SCHEDULE_TOPIC_XXXX"
SEEDS_PER_TEST = 25
SEEDS = power_cut_seeds()
BATCHES = [SEEDS[first : first + SEEDS_PER_TEST] for first in range(0, len(SEEDS), SEEDS_PER_TEST)]


class Trial:
    """One seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.config = small_config(
            message_delay_level="1s 2s",
            flush_delay_offset_interval=1500,
            flush_disk_type=list(FlushDiskType)[seed % 2],
        )
        self.now_ms = 1_700_000_000_000
        self.count = 0
        self.ends: dict[str, int] = {}
        self.safe: set[str] = set()

    def open(self, root: Path, disk: ShadowDisk | None = None) -> MessageStore:
        return MessageStore.open(
            root, self.config, clock=lambda: self.now_ms, disk=disk, threads=False
        )

    def live(self, root: Path, after: Path) -> None:
        """Work on a shadow disk until the power goes; `after` is what it leaves."""
        chance = self.chance
        disk, calls_left = ShadowDisk(root), chance.randrange(MOST_CALLS)

        def count(_call: str, _path: Path) -> None:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                raise PowerCutError

        disk.hook = count
        store = None
        try:
            store = self.open(root, disk)
            for _ in range(chance.randrange(5, 60)):
                self.act(store, disk)
        except PowerCutError:
            pass
        if store is not None:
            self.note_safe(store)
            abandon(store)
        disk.hook = lambda _call, _path: None
        disk.cut(after, chance)
        self.ends.clear()

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
            store._services.flusher.flush()
        else:
            disk.write_back(self.chance)
        self.note_safe(store)

    def note_safe(self, store: MessageStore) -> None:
        flushed = store.flushed_physical_offset
        self.safe |= {label for label, end in self.ends.items() if end <= flushed}

    def check(self, root: Path) -> None:
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


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"seeds-{seeds[0]}-to-{seeds[-1]}")
def test_each_message_that_outlives_the_power_is_delivered_once(seeds: range) -> None:
    for seed in seeds:
        with memory_directory() as directory:
            trial = Trial(seed)
            root = directory / "life-0"
            root.mkdir()
            try:
                for life in range(LIVES):
                    after = directory / f"life-{life + 1}"
                    after.mkdir()
                    trial.live(root, after)
                    root = after
                trial.check(root)
            except BaseException as error:
                error.add_note(f"replay: ROCKETSTORE_POWER_CUT_SEEDS={seed}:{seed + 1}")
                raise
