"""A service of a store works on a shadow disk until the power goes, several lives long.

One seed decides everything: what is done, when the clock moves, and where the power goes. A test
says what the service does (`act`), what is safe on the disk by then (`note_safe`), and what a cut
makes uncertain (`forget_unsafe`).
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rocketstore import MessageStore
from rocketstore.config import FlushDiskType
from support.configured_store import small_config
from support.fault_settings import power_cut_seeds
from support.memory import memory_directory
from support.power_cut import PowerCutError, abandon, cut_after
from support.shadow_disk import ShadowDisk

LIVES = 3
SEEDS_PER_TEST = 25
_SEEDS = power_cut_seeds()
BATCHES = [
    _SEEDS[first : first + SEEDS_PER_TEST] for first in range(0, len(_SEEDS), SEEDS_PER_TEST)
]


def batch_name(seeds: range) -> str:
    """Name a batch of seeds in a test's name."""
    return f"seeds-{seeds[0]}-to-{seeds[-1]}"


class Trial(ABC):
    """The lives of one seed."""

    most_calls: int
    """Most calls of the disk in a life."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.chance = random.Random(seed)
        self.config = small_config(
            flush_disk_type=list(FlushDiskType)[seed % 2],
            transient_store_pool_enable=seed % 3 == 0,  # which SYNC_FLUSH does not have
            **settings,
        )
        self.now_ms = 1_700_000_000_000
        self.count = 0

    @abstractmethod
    def act(self, store: MessageStore, disk: ShadowDisk) -> None:
        """Do one thing."""

    @abstractmethod
    def note_safe(self, store: MessageStore) -> None:
        """Note what is on the disk for good."""

    @abstractmethod
    def forget_unsafe(self) -> None:
        """Forget what may be gone."""

    @abstractmethod
    def check_end(self, root: Path) -> None:
        """See what outlived all of it."""

    def open(self, root: Path, disk: ShadowDisk | None = None) -> MessageStore:
        return MessageStore.open(
            root, self.config, clock=lambda: self.now_ms, disk=disk, threads=False
        )

    def live(self, root: Path, after: Path) -> None:
        """Work on a shadow disk until the power goes; `after` is what it leaves."""
        chance = self.chance
        disk = ShadowDisk(root, hook=cut_after(chance.randrange(self.most_calls)))
        store = None
        try:
            store = self.open(root, disk)
            for _ in range(chance.randrange(5, 60)):
                self.act(store, disk)
                if store.transient_pool is not None and chance.random() < 0.3:
                    store.transient_pool.take_turn()
        except PowerCutError:
            pass
        if store is not None:
            self.note_safe(store)
            abandon(store)
        disk.hook = lambda _call, _path: None
        disk.cut(after, chance)
        self.forget_unsafe()


def run_trials(kind: type[Trial], seeds: Iterable[int]) -> None:
    """Run the trial of each seed; a failure says how to run it again."""
    for seed in seeds:
        with memory_directory() as directory:
            trial = kind(seed)
            root = directory / "life-0"
            root.mkdir()
            try:
                for life in range(LIVES):
                    after = directory / f"life-{life + 1}"
                    after.mkdir()
                    trial.live(root, after)
                    root = after
                trial.check_end(root)
            except BaseException as error:
                error.add_note(f"replay: ROCKETSTORE_POWER_CUT_SEEDS={seed}:{seed + 1}")
                raise
