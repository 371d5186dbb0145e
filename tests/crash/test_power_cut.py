"""The power goes at any moment: what was promised is there, nothing false is, and all agree.

A failing seed is replayed by the command that its failure shows.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstore.errors import RocketStoreError
from rocketstore.storage.checkpoint import KnownEndsWriter
from support.fault_settings import power_cut_seeds
from support.power_cut import Trial

Forgets = Callable[[str, Path], bool]


SEEDS_PER_TEST = 10
SEEDS = power_cut_seeds()
BATCHES = [SEEDS[first : first + SEEDS_PER_TEST] for first in range(0, len(SEEDS), SEEDS_PER_TEST)]


def run(
    directory: Path, seed: int, forgets: Forgets | None = None, *, pool: bool = False,
    looks: bool = False,
) -> None:  # fmt: skip
    directory.mkdir()
    trial = Trial(directory, seed, forgets=forgets, has_pool=pool, looks=looks)
    try:
        trial.run()
    except BaseException as error:
        command = f"pytest tests/crash/test_power_cut.py -k {'pool' if pool else 'promised'}"
        error.add_note(f"{trial.flush.value}, life {trial.life}: {'; '.join(trial.history)}")
        error.add_note(f"replay: ROCKETSTORE_POWER_CUT_SEEDS={seed}:{seed + 1} {command}")
        raise


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"seeds-{seeds[0]}-to-{seeds[-1]}")
def test_what_was_promised_outlives_the_power(tmp_path, seeds):
    for seed in seeds:
        run(tmp_path / str(seed), seed)


@pytest.mark.parametrize("seeds", BATCHES[-2:], ids=lambda seeds: f"from-{seeds[0]}")
def test_with_a_transient_pool_what_was_flushed_outlives_the_power(tmp_path, seeds):
    for seed in seeds:
        run(tmp_path / str(seed), seed, pool=True)


@pytest.mark.parametrize("seeds", BATCHES[:2], ids=lambda seeds: f"from-{seeds[0]}")
def test_verify_calls_damage_what_the_next_opening_does_not_mend(tmp_path, seeds):
    for seed in seeds:
        run(tmp_path / str(seed), seed, looks=True)


def below(directory: str) -> Forgets:
    return lambda call, path: call == "fdatasync" and directory in path.parts


def names_in(directory: str) -> Forgets:
    return lambda call, path: call == "fsync_directory" and path.name == directory


def queue_names(call: str, path: Path) -> bool:
    return call == "fsync_directory" and "consumequeue" in path.parts


def root_names(call: str, path: Path) -> bool:
    return call == "fsync_directory" and path.name.startswith("life-")


SYNCS = {
    "bytes-of-the-log": below("commitlog"),
    "names-of-log-files": names_in("commitlog"),
    "bytes-of-queues": below("consumequeue"),
    "names-of-queue-files": queue_names,
    "bytes-of-the-index": below("index"),
    "names-of-index-files": names_in("index"),
    "bytes-of-tables": below("config"),
    "names-of-tables": names_in("config"),
    "names-in-the-root": root_names,
}
KNOWN_SEEDS = {
    "names-of-log-files": 4, "bytes-of-queues": 9, "names-of-queue-files": 9,
    "bytes-of-the-index": 7, "names-of-index-files": 14, "bytes-of-tables": 1,
    "names-of-tables": 4, "names-in-the-root": 4,
}  # fmt: skip
"""Seeds that notice; tried first, because one that notices nothing is a whole trial.

A change of what is written moves them: find new ones where one of these tests takes a second.
"""


@pytest.mark.parametrize("sync", SYNCS)
def test_without_this_sync_some_cut_loses_something(tmp_path, sync, monkeypatch):
    if "queue" in sync or "index" in sync:  # by known-ends an opening makes them again
        monkeypatch.setattr(KnownEndsWriter, "write", lambda *_: None)
    for seed in dict.fromkeys((KNOWN_SEEDS.get(sync, 0), *range(60))):
        try:
            run(tmp_path / str(seed), seed, forgets=SYNCS[sync])
        except (AssertionError, RocketStoreError):
            return
    pytest.fail("60 seeds noticed nothing: either the sync is not needed, or the test is blind")


def test_the_checkpoint_needs_no_sync_of_its_own_because_an_older_one_is_as_true(tmp_path):
    def forgets(call: str, path: Path) -> bool:
        return call == "fdatasync" and path.name == "checkpoint"

    for seed in range(10):
        run(tmp_path / str(seed), seed, forgets=forgets)
