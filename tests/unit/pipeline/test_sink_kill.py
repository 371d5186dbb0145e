"""A driver that is killed anywhere in a commit: the batch is there once, whatever comes next."""

import itertools
import os
import random
import shutil

import pytest

from rocketstore import Message, MessageStore
from rocketstore.errors import StoreDamagedError, StoreError
from rocketstore.format.java_hash import string_hash
from rocketstore.pipeline.sink.sink_commit import check_target, commit_batch, read_intent, sweep_job
from rocketstore.pipeline.sink.sink_writer import new_job, staging_root
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.store import BaseStore
from support.clock import Clock
from support.fault_settings import stride
from support.hooked_disk import HookedDisk, ends_after
from support.memory import memory_directory
from support.shadow_disk import ShadowDisk
from support.sink_parts import (
    CONFIG,
    check_whole,
    commit,
    copied_at_points,
    killed_at,
    numbers_of,
    rows,
    sink_options,
    stage,
    staged,
    stored_messages,
    stored_numbers,
)

TASKS = (rows(45), rows(3, 45), [], rows(52, 48))
"""Several chunks and CommitLog files."""

BEFORE = rows(10, 900)
RANDOM_SEEDS = range(int(os.environ.get("ROCKETSTORE_SINK_RANDOM_SEEDS", "4")))
POWER_SEEDS = range(int(os.environ.get("ROCKETSTORE_SINK_POWER_SEEDS", "25")))
CALLS_OF_A_COMMIT = 76
"""Calls of the disk; a cut at a later one would come too late."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def kills():
    """Stores by the point at which the commit of batch 1 was killed; None: it came to its end."""
    with memory_directory() as directory:
        commit(directory / "store", [BEFORE], 0)
        root = shutil.copytree(directory / "store", directory / "staged")
        given = staged(root, TASKS)
        count = copied_at_points(root, lambda disk: commit_batch(*given, 1, disk=disk))
        yield lambda point: directory / str(point) if point < count else None


@pytest.fixture
def root(kills, tmp_path):
    """A store with a first batch."""
    return shutil.copytree(kills(0).parent / "store", tmp_path / "store")


EXPECTED = numbers_of(BEFORE, *TASKS)
LABELS = sorted((int(row["body"][:6]), row["tags"]) for task in (BEFORE, *TASKS) for row in task)


def trial(kills, target, point):
    """Kill the commit of batch 1 at a point; False when it came to its end before."""
    root = kills(point)
    if root is not None:
        shutil.copytree(root, target)
    return root is not None


def test_a_repeated_batch_is_there_once_wherever_its_first_commit_was_killed(kills, tmp_path):
    found = set()
    point = 0
    while trial(kills, target := tmp_path / str(point), point):
        intent = read_intent(target)
        found.add(None if intent is None else len(stored_numbers(target)) - len(BEFORE))
        outcome = commit(target, TASKS, 1)
        assert stored_numbers(target) == EXPECTED, f"killed at point {point}, then {outcome}"
        check_whole(target)
        shutil.rmtree(target)
        point += stride(2)
    assert point > 60
    # The kills left no intent, one of nothing, of parts, and of the whole batch.
    assert {None, 0, 100} < found
    assert len(found) > 8


def test_a_start_up_alone_leaves_all_of_a_killed_batch_or_nothing(kills, tmp_path):
    point, wholes = 0, 0
    while trial(kills, target := tmp_path / str(point), point):
        check_target(sink_options(target))
        assert not (target / "sink" / "intent.json").exists()
        found = stored_numbers(target)
        assert found in (numbers_of(BEFORE), EXPECTED), f"killed at point {point}"
        wholes += found == EXPECTED
        shutil.rmtree(target)
        point += 4
    assert 0 < wholes < point / 4


def test_a_settling_that_is_killed_too_is_settled_by_the_next(kills, tmp_path):
    chance = random.Random(4)
    for number in range(15):
        target = tmp_path / str(number)
        assert trial(kills, target, chance.randrange(60))
        for _ in range(3):
            given = staged(target, TASKS)
            point = chance.randrange(70)
            killed_at(point, lambda disk, given=given: commit_batch(*given, 1, disk=disk))
        commit(target, TASKS, 1)
        assert sorted(stored_numbers(target)) == sorted(EXPECTED)
        check_whole(target)
        shutil.rmtree(target)


def test_messages_that_others_put_meanwhile_stay_and_the_batch_is_finished_after_them(
    kills, tmp_path
):
    finished = 0
    for point in range(20, 60, 3):
        target = tmp_path / str(point)
        assert trial(kills, target, point)
        with MessageStore.open(target, CONFIG, threads=False) as store:
            for number in range(700, 703):
                store.put(Message(topic="Topic1", body=b"%06d" % number), 1)
        before = stored_numbers(target)
        commit(target, TASKS, 1)
        found = stored_numbers(target)
        assert found[: len(before)] == before
        assert sorted(found) == sorted([*EXPECTED, 700, 701, 702])
        finished += len(before) not in (13, 113)
        check_whole(target)
        shutil.rmtree(target)
    assert finished > 3, "some kills were in the middle of the batch"


def test_a_message_of_another_that_equals_the_next_row_is_not_taken_for_it(root):
    given = staged(root, TASKS)
    clock = Clock()
    with MessageStore.open(root, CONFIG, threads=False) as store:
        clock.now_ms = store.last_store_timestamp_ms + 1000

    def put_five_and_stop(store, *arguments):
        if next(puts) == 5:
            raise KeyboardInterrupt
        return put(store, *arguments)

    put = BaseStore.put_prepared
    puts = iter(range(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseStore, "put_prepared", put_five_and_stop)
        patch.setattr(BaseStore, "put_rows", lambda *_: 0)
        with pytest.raises(KeyboardInterrupt):
            commit_batch(*given, 1, clock=clock)
    row = TASKS[0][5]
    assert (row["queueId"], row["keys"]) == (None, ["key-5"])
    clock.now_ms += 1
    with MessageStore.open(root, CONFIG, threads=False, clock=clock) as store:
        queue_id = abs(string_hash("key-5")) % 4
        store.put(
            Message(
                topic=row["topic"], body=row["body"], tags=row["tags"], keys="key-5",
                born_timestamp_ms=row["bornTimestamp"],
            ),
            queue_id,
        )  # fmt: skip
    commit(root, TASKS, 1)
    assert sorted(stored_numbers(root)) == sorted([*EXPECTED, 5])
    check_whole(root)


class Sink:
    """One of several sinks of a store: repeats its batch, cut into tasks again, until it is in."""

    def __init__(self, root, name, chance, *, streaming):
        self.root, self.chance, self.streaming = root, chance, streaming
        self.given = {"sinkId": name} | ({} if streaming else {"batchId": "0"})
        self.batch_id = -1
        self.rows = []

    def staged(self):
        options = sink_options(self.root, streaming=self.streaming, **self.given)
        if self.chance.random() < 0.5:
            check_target(options)
        job = new_job(options)
        cuts = sorted(self.chance.choices(range(len(self.rows) + 1), k=2))
        stage(options, job, [self.rows[: self.chance.randrange(9)]])  # an attempt that failed
        edges = [0, *cuts, len(self.rows)]
        tasks = [self.rows[first:stop] for first, stop in itertools.pairwise(edges)]
        return options, job, stage(options, job, tasks)

    def trouble(self):
        """Abort a job, or kill its commit somewhere."""
        options, job, files = self.staged()
        if self.chance.random() < 0.85:
            point = self.chance.randrange(90)
            killed_at(
                point, lambda disk: commit_batch(options, job, files, self.batch_id, disk=disk)
            )
        if self.chance.random() < 0.4:
            sweep_job(options, job)

    def finish(self):
        options, job, files = self.staged()
        commit_batch(options, job, files, self.batch_id)
        self.rows = []


@pytest.mark.parametrize("seed", RANDOM_SEEDS)
def test_several_sinks_killed_aborted_and_repeated_at_random_lose_and_repeat_nothing(
    tmp_path, seed
):
    chance = random.Random(seed)
    root = tmp_path / "store"
    sinks = [
        Sink(root, name, chance, streaming=name != "write") for name in ("left", "right", "write")
    ]
    count = 0
    for _ in range(8):
        sink = chance.choice(sinks)
        if not sink.rows:
            sink.batch_id += 1
            sink.rows = rows(chance.choice([1, 3, 40, 90]), count)
            count += len(sink.rows)
        for _ in range(chance.randrange(3)):
            sink.trouble()
        if chance.random() < 0.6:
            sink.finish()
        if chance.random() < 0.3:
            with MessageStore.open(root, CONFIG, threads=False) as store:
                store.put(Message(topic="Topic1", body=b"%06d" % count), 1)
            count += 1
    for sink in sinks:
        if sink.rows:
            sink.finish()
    assert sorted(stored_numbers(root)) == list(range(count))
    for left in (root / "sink" / "staging").glob("*"):
        shutil.rmtree(left)
    check_whole(root)


class PowerCutError(Exception):
    """The power is gone."""


class CutDisk(ShadowDisk):
    """Loses power at a call; what would be left of it is made at `target`."""

    def arm(self, call, target, chance):
        self.calls_left, self.target, self.chance = call, target, chance
        self.hook = self.count

    def count(self, _call, _path):
        self.calls_left -= 1
        if self.calls_left == 0:
            self.cut(self.target, self.chance)
        if self.calls_left <= 0:
            raise PowerCutError


@pytest.mark.parametrize("seed", POWER_SEEDS)
def test_a_power_cut_in_a_commit_loses_and_repeats_nothing(root, tmp_path, seed):
    chance = random.Random(seed)
    given = staged(root, TASKS)
    target = tmp_path / "after"
    target.mkdir()
    disk = CutDisk(root)
    disk.arm(chance.randrange(8, CALLS_OF_A_COMMIT), target, chance)
    with pytest.raises(PowerCutError):
        commit_batch(*given, 1, disk=disk)
    commit(target, TASKS, 1)
    found = stored_messages(target, has_gaps=True)
    labels = sorted((int(message.body[:6]), message.tags) for message in found)
    assert labels == LABELS, f"seed {seed}"
    commit(target, TASKS, 1)
    assert stored_messages(target, has_gaps=True) == found


def interrupted_disk(syncs):
    """Return a disk of which every sync from one on is interrupted."""
    end = ends_after(syncs, KeyboardInterrupt)
    return HookedDisk(lambda call, path: end(call, path) if call == "fdatasync" else None)


def test_a_commit_whose_close_is_interrupted_too_leaves_the_lock_to_the_next(root, tmp_path):
    kept = []
    for syncs in range(100):
        target = shutil.copytree(root, tmp_path / str(syncs))
        try:
            commit(target, TASKS, 1, disk=interrupted_disk(syncs))
        except KeyboardInterrupt as error:
            kept.append(error)  # and with it what a notebook keeps of a failure
        else:
            break
        commit(target, TASKS, 1)
        assert stored_numbers(target) == EXPECTED, f"interrupted at sync {syncs}"
        check_whole(target)
    assert len(kept) > 10


def interrupted(kills, tmp_path, least=10):
    """Return a store whose commit was killed with a part of the batch in the log."""
    for point in range(30, 80):
        target = tmp_path / f"half-{point}"
        trial(kills, target, point)
        if read_intent(target) and least < len(stored_numbers(target)) < 110:
            return target
        shutil.rmtree(target)
    raise AssertionError


def test_a_part_of_a_batch_whose_staged_files_are_gone_stops_every_commit(kills, tmp_path):
    target = interrupted(kills, tmp_path)
    intent = read_intent(target)
    before = stored_numbers(target)
    (staging_root(target) / intent.job / intent.files[0].name).unlink()
    with pytest.raises(StoreDamagedError, match=r"staged file .* cannot be read"):
        commit(target, TASKS, 2)
    assert stored_numbers(target) == before


def test_an_intent_that_cannot_be_trusted_stops_every_commit(kills, tmp_path):
    target = interrupted(kills, tmp_path)
    path = target / "sink" / "intent.json"
    path.write_bytes(path.read_bytes().replace(b'"start":', b'"start":1'))
    before = stored_numbers(target)
    with pytest.raises(StoreDamagedError, match=r"intent\.json cannot be trusted: checksum"):
        commit(target, TASKS, 1)
    assert stored_numbers(target) == before


def test_a_batch_whose_beginning_was_deleted_meanwhile_stops_every_commit(kills, tmp_path):
    target = interrupted(kills, tmp_path, least=70)
    (target / "commitlog" / f"{0:020}").unlink()
    with pytest.raises(StoreError, match=r"and the log begins at 16384 by now") as caught:
        commit(target, TASKS, 1)
    assert "intent.json away" in str(caught.value)


class Watched(Disk):
    """Notes what is synced and replaced."""

    def __init__(self):
        self.noted = []

    def fdatasync(self, descriptor, path):
        self.noted.append(path.parent.name)
        super().fdatasync(descriptor, path)

    def replace(self, source, target):
        self.noted.append(target.name)
        super().replace(source, target)


def test_rows_are_called_present_only_when_they_are_on_the_disk(kills, tmp_path):
    # The same kill again: looking at what it left has put that on the disk.
    _, _, point = interrupted(kills, tmp_path).name.partition("-")
    target = tmp_path / "again"
    assert trial(kills, target, int(point))
    disk = Watched()
    commit(target, TASKS, 1, disk=disk)
    assert "commitlog" in disk.noted[: disk.noted.index("intent.json")]
