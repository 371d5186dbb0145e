"""A rebuild that fails or is killed anywhere leaves whole queues and a whole index, old or new."""

import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rocketstore import verify_store
from rocketstore.errors import StoreDamagedError, StoreError, StoreLockedError, SystemRefusedError
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.recovery import replacement
from support.clock import START_MS, Clock
from support.foreign_lock import held
from support.hooked_disk import HookedDisk, ends_after
from support.killed import Killed
from support.rebuild_runs import RowsHere, rebuilt_here
from support.small_store import CONFIG, bodies, build_store, open_store
from support.trees import tree

NAMES = ("consumequeue", "index")


@pytest.fixture
def store(tmp_path):
    """Return a store whose queues and index differ from what a rebuild makes."""
    build_store(tmp_path / "store", 300, Clock())
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        path.unlink()
    return tmp_path / "store"


def rebuilt(store, rows=RowsHere, **keywords):
    return rebuilt_here(store, rows, config=CONFIG, **keywords)


def parts_of(store):
    return {name: tree(store / name) for name in NAMES if (store / name).is_dir()}


@pytest.fixture
def staged(store, monkeypatch):
    """Stop a rebuild right before its commit; return the store, its new directories whole."""

    def kill(*_args, **_keywords):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replacement, "commit", kill)
        with pytest.raises(Killed):
            rebuilt(store)
    (staging,) = (store / "rebuild").iterdir()
    assert sorted(path.name for path in staging.iterdir()) == list(NAMES)
    return store


def committed(root, allowed, monkeypatch):
    """Commit until so many calls were made; return whether it came to its end."""
    count = ends_after(allowed, Killed)

    def counted(call):
        def work(*arguments, **keywords):
            count(call.__name__, root)
            return call(*arguments, **keywords)

        return work

    (staging,) = (path for path in (root / "rebuild").iterdir() if path.is_dir())
    with monkeypatch.context() as patched:
        patched.setattr(replacement.shutil, "rmtree", counted(shutil.rmtree))
        try:
            replacement.commit(root, staging, now_ms=START_MS, disk=HookedDisk(count))
        except Killed:
            return False
    return True


def test_killed_before_any_call_everything_is_whole_and_the_next_run_ends_it(
    staged, tmp_path, monkeypatch
):
    old, count, is_over = parts_of(staged), 0, False
    rebuilt(shutil.copytree(staged, tmp_path / "expected"))
    new = parts_of(tmp_path / "expected")
    assert old["consumequeue"] != new["consumequeue"]
    seen = set()
    while not is_over:
        root = shutil.copytree(staged, tmp_path / "killed")
        is_over = committed(root, count, monkeypatch)
        found = parts_of(root)
        for name in NAMES:
            assert found[name] in (old[name], new[name])
        seen.add(tuple(found[name] == new[name] for name in NAMES))
        # The store serves as it is, whichever it has.
        copy = shutil.copytree(root, tmp_path / "copy")
        with open_store(copy, Clock(START_MS + 1000)) as opened:
            assert len(bodies(opened, "Topic0")) + len(bodies(opened, "Topic1")) == 198
        rebuilt(root)
        assert parts_of(root) == new
        assert not (root / "rebuild").exists()
        kept = [path for path in (root / "repair").rglob("*") if path.is_file()]
        assert {path.read_bytes() for path in kept} >= set(old["consumequeue"].values())
        shutil.rmtree(root)
        shutil.rmtree(copy)
        count += 1
    assert count > 20
    assert {(False, False), (True, False), (True, True)} <= seen


@pytest.mark.parametrize("by", ["the next rebuild", "an opening"])
def test_where_names_cannot_be_exchanged_a_kill_between_two_renames_is_mended(
    staged, tmp_path, monkeypatch, by
):
    def refuse(*_):
        raise OSError(errno.EINVAL, "no exchange here")

    for disk in (Disk, HookedDisk):
        monkeypatch.setattr(disk, "exchange", refuse)
    old, count, is_over, missing = parts_of(staged), 0, False, 0
    rebuilt(shutil.copytree(staged, tmp_path / "expected"))
    new = parts_of(tmp_path / "expected")
    while not is_over:
        root = shutil.copytree(staged, tmp_path / "killed")
        is_over = committed(root, count, monkeypatch)
        missing += len(parts_of(root)) < len(NAMES)
        if by == "an opening":
            open_store(root, Clock(START_MS + 1000)).close()
        else:
            with replacement.locked(root):
                replacement.finish_interrupted(root)
        found = parts_of(root)
        for name in NAMES:
            assert found[name] in (old[name], new[name])
        assert not (root / "rebuild").exists()
        shutil.rmtree(root)
        count += 1
    assert missing == len(NAMES)


def test_a_directory_that_a_writer_went_on_with_is_never_replaced_by_what_a_kill_left(
    staged, tmp_path, monkeypatch
):
    count = 0
    while True:
        root = shutil.copytree(staged, tmp_path / str(count))
        is_over = committed(root, count, monkeypatch)
        clock = Clock(START_MS + 10_000)
        with open_store(root, clock) as opened:
            put_later(opened)
        before = parts_of(root)
        with replacement.locked(root):
            replacement.finish_interrupted(root)
        assert parts_of(root) == before
        if is_over:
            break
        count += 5
    assert_nothing_is_wrong(root, clock)


def put_later(opened):
    from rocketstore import Message  # noqa: PLC0415 - of this one helper

    opened.put(Message(topic="Topic0", body=b"later", keys=("later",)), queue_id=0)
    assert opened.wait_dispatched()


def assert_nothing_is_wrong(store, clock):
    """Fillers of deleted records' entries are noted, and nothing else is found."""
    report = verify_store(store, now_ms=clock.now_ms, config=CONFIG)
    assert {finding.kind for finding in report.findings} <= {"queue-filler"}


def test_an_opening_takes_the_new_index_for_whole(tmp_path):
    store, clock = tmp_path / "store", Clock()
    build_store(store, 500, clock)
    clock.now_ms += 60_000
    rebuilt(store)
    index = tree(store / "index")
    with open_store(store, clock) as opened:
        assert opened.recovery.findings == []
        assert tree(store / "index") == index


# --- what goes wrong on the way -----------------------------------------------------------------


def lose_a_block(blocks):
    return blocks[:-1]


def lose_items(blocks):
    return [one for one in blocks if one["target"] != b"i0"]


def spoil_a_block(blocks):
    last = blocks[-1]
    return [*blocks[:-1], {**last, "data": last["data"][:-1] + b"\x99"}]


def cut_a_block(blocks):
    last = blocks[-1]
    return [*blocks[:-1], {**last, "data": last["data"][:-20]}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lose_a_block, "entries and .* index items to the writers: expected 198 and 198"),
        (lose_items, "198 entries and 0 index items to the writers: expected 198 and 198"),
        (spoil_a_block, "another checksum"),
        (cut_a_block, "another checksum"),
    ],
)
def test_what_the_shuffle_loses_or_spoils_is_noticed(store, change, says):
    before = tree(store)

    class Lossy(RowsHere):
        pass

    Lossy.change = staticmethod(change)
    with pytest.raises(StoreDamagedError, match=says):
        rebuilt(store, Lossy)
    assert tree(store) == before


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (cut, "of 2000 bytes, found . files, 1 of"),
        (os.unlink, "of 2000 bytes, found . files, 0 of"),
    ],
)
def test_a_staged_file_that_was_cut_off_or_lost_is_noticed(store, spoil, says):
    before = tree(store)

    class CuttingOff(RowsHere):
        def write(self, *arguments):
            table = super().write(*arguments)
            files = (store / "rebuild").rglob("attempts/*/00000000000000002000")
            spoil(next(files))
            return table

    with pytest.raises(StoreError, match=says):
        rebuilt(store, CuttingOff)
    assert tree(store) == before


@pytest.mark.parametrize("error", [StoreError("a worker is gone"), KeyboardInterrupt()])
def test_a_task_that_fails_or_is_interrupted_changes_nothing(store, error):
    before = tree(store)

    class Failing(RowsHere):
        def write(self, *arguments):
            super().write(*arguments)
            raise error

    with pytest.raises(type(error)):
        rebuilt(store, Failing)
    assert tree(store) == before


def written_by(write, writing):
    return SimpleNamespace(write=write, sizes=writing.sizes, part_entries=writing.part_entries)


def test_attempts_that_run_twice_or_end_late_change_nothing(store):
    expected = shutil.copytree(store, store.parent / "expected")
    rebuilt(expected)
    late = []

    class Twice(RowsHere):
        def write(self, verdict, old, writing):
            def twice(batches):
                batches = list(batches)
                late.append((writing.write, batches))
                first = writing.write(iter(batches))
                next(first)  # and killed, its directory left behind
                self.left = first
                return writing.write(iter(batches))

            return super().write(verdict, old, written_by(twice, writing))

    rebuilt(store, Twice, max_split_bytes=5000)
    assert parts_of(store) == parts_of(expected)
    assert len(late) == 2
    before = tree(store)
    for write, batches in late:
        # The rebuild is over: an attempt that comes too late finds no directory to write into.
        with pytest.raises(StoreError, match="attempts"):
            list(write(iter(batches)))
    assert tree(store) == before


@pytest.mark.parametrize("believed", [0, 1])
def test_two_attempts_of_a_writer_side_by_side_do_not_disturb_each_other(store, believed):
    """As speculation has it: both write to their end at once, and the driver believes one."""
    expected = shutil.copytree(store, store.parent / "expected")
    rebuilt(expected)
    places = []

    class Racing(RowsHere):
        def write(self, pieces, old, writing):
            def race(batches):
                batches, start = list(batches), threading.Barrier(2)

                def attempt(_):
                    rows, written = [], writing.write(iter(batches))
                    start.wait()
                    for row in written:
                        rows.append(row)
                        time.sleep(0)  # the other one's turn
                    return rows

                with ThreadPoolExecutor(2) as pool:
                    both = list(pool.map(attempt, range(2)))
                places.extend({row["place"][0].as_py() for row in rows} for rows in both)
                return both[believed]

            return super().write(pieces, old, written_by(race, writing))

    rebuilt(store, Racing, max_split_bytes=5000)
    assert len(places) == 4  # two tasks, two attempts of each
    assert len(set.union(*places)) == sum(map(len, places))  # no directory is shared
    assert parts_of(store) == parts_of(expected)
    assert not (store / "rebuild").exists()


def test_a_store_that_crashed_keeps_its_mark_and_is_recovered_when_it_is_opened(store):
    (store / "abort").touch()
    rebuilt(store)
    assert (store / "abort").exists()
    clock = Clock(START_MS + 10_000)
    with open_store(store, clock) as opened:
        assert opened.max_offset("Topic0", 0) == 150
    assert_nothing_is_wrong(store, clock)


@pytest.fixture
def refuse_writing(store, monkeypatch):
    """Return what mounts the store read-only, as far as its lock shows it, or gives it to root."""
    real = os.open

    def refuse_by(code):
        def refuse(path, flags, *given, **named):
            if str(path) == str(store / "lock") and flags & os.O_RDWR:
                raise OSError(code, os.strerror(code), str(path))
            return real(path, flags, *given, **named)

        monkeypatch.setattr(os, "open", refuse)

    return refuse_by


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_new_place_for_them_needs_no_store_that_may_be_written(
    store, tmp_path, refuse_writing, code
):
    before = tree(store)
    rebuilt(store, target=tmp_path / "locked")
    refuse_writing(code)
    rebuilt(store, target=tmp_path / "new")
    assert tree(tmp_path / "new") == tree(tmp_path / "locked")
    assert tree(store) == before
    with pytest.raises(SystemRefusedError, match="lock for writing"):
        rebuilt(store)


def test_old_ones_that_could_not_be_kept_are_not_replaced(store, monkeypatch):
    (store / "repair").mkdir()
    before, real = tree(store), os.access
    kept = store / "repair"
    monkeypatch.setattr(os, "access", lambda path, mode: path != kept and real(path, mode))
    with pytest.raises(SystemRefusedError, match=r"cannot rebuild .*/repair\): Permission denied"):
        rebuilt(store)
    assert tree(store) == before


@pytest.mark.parametrize("code", [0, errno.EROFS])
def test_a_lock_that_somebody_unknown_holds_is_respected(store, tmp_path, refuse_writing, code):
    before = parts_of(store)
    with held(store):
        if code:
            refuse_writing(code)
        for target in (None, tmp_path / "new")[bool(code) :]:
            with pytest.raises(StoreLockedError, match="in another container or on another host"):
                rebuilt(store, target=target)
    assert parts_of(store) == before
    assert not (tmp_path / "new").exists()
