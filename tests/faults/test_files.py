"""Files that are cut short, empty, too long, missing or too many: named, and never waited on."""

import functools
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rocketstore import (
    ConfigError,
    MessageStore,
    RocketStoreError,
    StoreConfig,
    StoreDamagedError,
    StoreError,
    repair_store,
    verify_store,
)
from rocketstore.rules.findings import Finding, Severity
from support.audit_runs import audited
from support.fault_workload import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    LABEL,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    Label,
    check_true,
    small_files,
    step_of,
    take_steps,
    tried_by,
)
from support.pipeline_tables import read_table
from support.reading import all_messages
from support.rebuild_runs import rebuilt_here
from support.store_oracle import read_log
from support.trees import copy_tree

NOW_MS = 1_700_000_000_000
STEPS = 150
CONFIG = small_files("ASYNC_FLUSH", max_msgs_num_batch=1000)
LONG_QUEUE = ("payments", 2)
"""A queue of two files."""


class Built(NamedTuple):
    """A healthy store and what is in it."""

    root: Path
    labels: dict[Label, int]
    """Physical offset of each message."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    root = tmp_path_factory.mktemp("healthy") / "store"
    take_steps(root, CONFIG, STEPS, NOW_MS - 1_000_000)
    found = check_true(read_log(root / "commitlog", LOG_FILE_BYTES).records, tried_by(STEPS))
    assert len(list((root / "commitlog").iterdir())) > 5
    assert len(list((root / "index").iterdir())) >= 3
    assert len(list((root / "consumequeue").joinpath(*map(str, LONG_QUEUE)).iterdir())) == 2
    return Built(root, {label: record.physical_offset for label, record in found.items()})


@pytest.fixture
def store(healthy, tmp_path):
    return copy_tree(healthy.root, tmp_path / "store")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


@pytest.mark.parametrize("make", [Path.mkdir, _pipe, _loop, _link_to_nothing])
@pytest.mark.parametrize(
    "name", ["abort", "checkpoint", "known-ends", "lock", "log-directories", "config/topics.json"]
)
def test_what_is_not_a_file_is_reported_by_every_door_and_waited_for_by_none(store, name, make):
    (store / "config").mkdir(exist_ok=True)
    (store / name).unlink(missing_ok=True)
    make(store / name)
    try:
        found = [(one.file, one.severity) for one in verify(store)]
    except StoreError as refused:
        assert f"{store / name}" in str(refused)  # noqa: PT017 - the directories of the log
    else:
        assert name == "lock" or (name, Severity.DAMAGE) in found  # which nobody may read
    try:
        with MessageStore.open(store, CONFIG, threads=False):
            assert name in {"abort", "lock"}  # one only has to be there, the other is made
    except RocketStoreError as refused:
        assert f"{store / name}" in str(refused)  # noqa: PT017 - either will do


def verify(root: Path) -> list[Finding]:
    report = verify_store(root, CONFIG, now_ms=NOW_MS)
    return [finding for finding in report.findings if finding.severity.value != "note"]


def opened(root: Path, config: StoreConfig = CONFIG) -> MessageStore:
    return MessageStore.open(root, config, clock=lambda: NOW_MS, threads=False)


def labels_in(store: MessageStore) -> set[Label]:
    """Return every message that a consumer gets."""
    return {
        Label.parse(message.properties[LABEL])
        for queue in store.queues()
        for message in all_messages(store, *queue)
    }


def assert_whole(store: Path, healthy: Built) -> None:
    """Open; claim that nothing is lost, and that verify finds nothing wrong afterwards."""
    with opened(store) as it:
        assert labels_in(it) == set(healthy.labels)
    assert verify(store) == []


def nth_file(directory: Path, number: int) -> Path:
    return sorted(directory.iterdir())[number]


def log_file(root: Path, number: int) -> Path:
    return nth_file(root / "commitlog", number)


def queue_file(root: Path, number: int) -> Path:
    return nth_file((root / "consumequeue").joinpath(*map(str, LONG_QUEUE)), number)


def index_file(root: Path, number: int) -> Path:
    return nth_file(root / "index", number)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 100)


WRONG_SIZES = (cut_short, empty, make_longer)


# --- the CommitLog ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 4, -1])
@pytest.mark.parametrize("fault", WRONG_SIZES)
def test_verify_names_a_log_file_of_a_wrong_size(store, fault, number):
    path = log_file(store, number)
    fault(path)
    kinds = {"log-file-empty", "log-file-wrong-size"}
    named = [finding for finding in verify(store) if finding.kind in kinds]
    assert [finding.file for finding in named] == [f"commitlog/{path.name}"]


@pytest.mark.parametrize("number", [0, 4, -1])
@pytest.mark.parametrize("fault", WRONG_SIZES)
@pytest.mark.parametrize("config", [CONFIG, StoreConfig(retention=False)])
def test_open_names_a_log_file_of_a_wrong_size(store, fault, number, config):
    path = log_file(store, number)
    fault(path)
    if number == -1 and fault is not make_longer:
        with opened(store, config) as it:
            assert [problem.path for problem in it.problems] == [path]
        # It got its length, unless nothing was left in it.
        assert not path.exists() or path.stat().st_size == LOG_FILE_BYTES
        return
    with pytest.raises(StoreDamagedError, match=f"{path.name} .*run rocketstore store repair"):
        opened(store, config)
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    with opened(store, config) as it:
        assert labels_in(it)


def test_a_missing_log_file_in_the_middle_is_a_hole_that_nobody_waits_for(store, healthy):
    path = log_file(store, 4)
    base = int(path.name)
    path.unlink()
    (hole,) = [finding for finding in verify(store) if finding.kind == "log-hole"]
    assert (hole.file, hole.offset, hole.size) == ("commitlog", base, LOG_FILE_BYTES)
    with opened(store) as it:
        (problem,) = it.problems
        assert (problem.path.name, problem.found) == (f"{base:020d}", "none")
        gone = {
            label
            for label, offset in healthy.labels.items()
            if base <= offset < base + LOG_FILE_BYTES
        }
        assert gone
        assert labels_in(it) == set(healthy.labels) - gone
        result = step_of(9, 0, 1).do(it)
        assert result.is_stored
        assert it.wait_dispatched()


def test_missing_first_log_files_are_as_if_retention_had_taken_them(store, healthy):
    log_file(store, 0).unlink()
    log_file(store, 0).unlink()
    assert verify(store) == []
    with opened(store) as it:
        assert it.min_physical_offset == 2 * LOG_FILE_BYTES
        expected = {
            label for label, offset in healthy.labels.items() if offset >= 2 * LOG_FILE_BYTES
        }
        assert labels_in(it) == expected


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_missing_last_log_file_is_shown_by_what_knew_its_records(store, healthy, *, is_crashed):
    path = log_file(store, -1)
    path.unlink()
    if is_crashed:
        (store / "abort").touch()
    found = {finding.kind for finding in verify(store)}
    assert found == {"queue-beyond-log", "index-stale", "checkpoint-ahead"}
    with opened(store) as it:
        kinds = {finding.kind for finding in it.recovery.findings}
        assert "log-end-lost" in kinds
        last = {
            label: offset for label, offset in healthy.labels.items() if offset < int(path.name)
        }
        assert labels_in(it) == set(last)
    assert {finding.kind for finding in verify(store)} - {"checkpoint-ahead"} == {"queue-kept"}


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_log_without_any_file_is_refused_while_queues_know_messages(store, *, is_crashed):
    for path in (store / "commitlog").iterdir():
        path.unlink()
    if is_crashed:
        (store / "abort").touch()
    before = sorted(path.name for path in (store / "consumequeue").rglob("*"))
    assert "log-empty" in {finding.kind for finding in verify(store)}
    with pytest.raises(StoreDamagedError, match="no CommitLog file"):
        opened(store)
    assert sorted(path.name for path in (store / "consumequeue").rglob("*")) == before


def note(directory: Path) -> Path:
    path = directory / "notes.txt"
    path.write_text("not ours")
    return path


def misplaced(directory: Path) -> Path:
    first = nth_file(directory, 0)
    return shutil.copy(first, directory / f"{int(first.name) + 17:020}")


def subdirectory(directory: Path) -> Path:
    path = directory / f"{1 << 40:020}"
    path.mkdir()
    return path


@pytest.mark.parametrize("extra", [note, misplaced, subdirectory])
@pytest.mark.parametrize("place", ["commitlog", "consumequeue"])
def test_a_file_that_does_not_belong_is_named_and_left_alone(store, healthy, extra, place):
    directory = store / place
    if place == "consumequeue":
        directory = directory.joinpath(*map(str, LONG_QUEUE))
    path = extra(directory)
    (named,) = verify(store)
    assert named.file == path.relative_to(store).as_posix()
    rows = read_table(store)
    assert {row["physicalOffset"] for row in rows} == set(healthy.labels.values())
    with opened(store) as it:
        assert [problem.path for problem in it.problems] == [path]
        assert labels_in(it) == set(healthy.labels)
    assert path.exists()


def test_a_stray_file_before_those_that_did_not_expire_hides_none_of_them(store, healthy):
    log_file(store, 0).unlink()
    left = {label: at for label, at in healthy.labels.items() if at >= LOG_FILE_BYTES}
    (store / "commitlog" / f"{17:020}").write_bytes(b"stray")
    assert {row["physicalOffset"] for row in read_table(store)} == set(left.values())
    for config in (CONFIG, StoreConfig()):
        with MessageStore.open(store, config, read_only=True) as it:
            assert it.min_physical_offset == LOG_FILE_BYTES
            assert labels_in(it) == set(left)
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    with opened(store) as it:
        assert labels_in(it) == set(left)


def test_a_copy_of_a_log_file_after_the_end_is_cut_once_a_copy_was_kept(store, healthy):
    last = log_file(store, -1)
    extra = shutil.copy(last, last.with_name(f"{int(last.name) + LOG_FILE_BYTES:020}"))
    content = extra.read_bytes()
    (named,) = verify(store)
    assert (named.kind, named.file) == ("log-tail", f"commitlog/{extra.name}")
    with opened(store) as it:
        assert [finding.kind for finding in it.recovery.findings] == ["log-cut"]
        assert labels_in(it) == set(healthy.labels)
    (kept,) = (store / "repair").rglob(extra.name)
    assert kept.read_bytes() == content


# --- queues -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_crashed", [False, True])
@pytest.mark.parametrize("fault", [cut_short, empty])
def test_the_last_queue_file_cut_short_is_named_and_filled_from_the_log(
    store, healthy, fault, *, is_crashed
):
    path = queue_file(store, -1)
    fault(path)
    if is_crashed:
        (store / "abort").touch()
    assert any(finding.file == path.relative_to(store).as_posix() for finding in verify(store))
    with opened(store) as it:
        assert [problem.path for problem in it.problems] == [path]
        assert labels_in(it) == set(healthy.labels)
    assert path.stat().st_size == QUEUE_FILE_BYTES
    assert verify(store) == []


def test_every_queue_file_empty_is_filled_from_the_log(store, healthy):
    for path in (store / "consumequeue").glob("*/*/*"):
        if path.name == "0" * 20 and len(list(path.parent.iterdir())) == 1:
            empty(path)
    assert_whole(store, healthy)


@pytest.mark.parametrize(
    ("fault", "number"), [(cut_short, 0), (empty, 0), (make_longer, 0), (make_longer, -1)]
)
def test_a_queue_file_of_a_length_that_no_offset_survives_is_refused_by_name_and_repaired(
    store, healthy, fault, number
):
    path = queue_file(store, number)
    fault(path)
    [named] = [one for one in verify(store) if one.file == path.relative_to(store).as_posix()]
    assert named.action == "repair gives it its length, and makes its entries again"
    with pytest.raises(StoreDamagedError, match=f"{path.parent.name}/{path.name} .*store repair"):
        opened(store)
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    assert path.stat().st_size == QUEUE_FILE_BYTES
    assert_whole(store, healthy)


@pytest.mark.parametrize("number", [0, -1])
def test_a_missing_queue_file_is_named_by_its_queue_and_created_again_by_a_repair(
    store, healthy, number
):
    path = queue_file(store, number)
    path.unlink()
    directory = path.parent.relative_to(store).as_posix()
    assert any(
        finding.kind == "queue-missing" and finding.file == directory for finding in verify(store)
    )
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    assert_whole(store, healthy)


# --- index --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("fault", WRONG_SIZES)
def test_an_index_file_of_a_wrong_size_is_named_and_created_again_by_a_repair(store, fault, number):
    path = index_file(store, number)
    fault(path)
    assert f"index/{path.name}" in {finding.file for finding in verify(store)}
    with opened(store) as it:
        assert path in {problem.path for problem in it.problems}
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    assert verify(store) == []


@pytest.mark.parametrize("fault", [cut_short, make_longer])
def test_the_error_about_the_only_index_file_of_a_wrong_size_names_its_repair(
    store, healthy, fault
):
    first, *others = sorted((store / "index").iterdir())
    for path in others:
        path.unlink()
    fault(first)
    for read_only in (True, False):
        with pytest.raises(ConfigError, match=r"set neither; .* run rocketstore store repair"):
            MessageStore.open(store, CONFIG, read_only=read_only)
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    assert_whole(store, healthy)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_missing_index_file_is_a_warning_and_created_again_by_a_repair(store, number):
    index_file(store, number).unlink()
    assert {finding.kind for finding in verify(store)} == {"index-missing"}
    with opened(store):
        pass
    repair_store(store, now_ms=NOW_MS, config=CONFIG)
    assert verify(store) == []


@pytest.mark.parametrize("extra", [note, subdirectory])
def test_a_strange_file_beside_the_index_is_named(store, healthy, extra):
    path = extra(store / "index")
    (named,) = verify(store)
    assert named.file == f"index/{path.name}"
    with opened(store) as it:
        assert path in {problem.path for problem in it.problems}
        assert labels_in(it) == set(healthy.labels)


# --- checkpoint, abort, sizes -------------------------------------------------------------------


@pytest.mark.parametrize("is_crashed", [False, True])
@pytest.mark.parametrize("fault", [*WRONG_SIZES, Path.unlink])
def test_a_broken_checkpoint_is_named_and_loses_nothing(store, healthy, fault, *, is_crashed):
    path = store / "checkpoint"
    fault(path)
    if is_crashed:
        (store / "abort").touch()
    report = verify_store(store, CONFIG, now_ms=NOW_MS)
    assert "checkpoint" in {finding.file for finding in report.findings}
    with opened(store) as it:
        assert labels_in(it) == set(healthy.labels)


@pytest.mark.parametrize("content", [b"", b"12345", b"\xff" * 400])
def test_a_stale_abort_of_any_content_only_costs_a_recovery(store, healthy, content):
    (store / "abort").write_bytes(content)
    with opened(store) as it:
        assert not it.recovery.was_clean
        assert labels_in(it) == set(healthy.labels)
    assert not (store / "abort").exists()


@pytest.mark.parametrize("content", [b"", b"lock", b"\0" * 500])
def test_a_stale_lock_file_is_no_lock(store, healthy, content):
    (store / "lock").write_bytes(content)
    with opened(store) as it:
        assert labels_in(it) == set(healthy.labels)


@pytest.mark.parametrize("length", [0, 4096, 12288])
def test_a_first_log_file_that_was_being_made_when_the_power_went_is_made_whole(tmp_path, length):
    (tmp_path / "commitlog").mkdir()
    path = tmp_path / "commitlog" / ("0" * 20)
    path.write_bytes(bytes(length))
    (tmp_path / "abort").touch()
    with opened(tmp_path) as it:
        assert step_of(9, 0, 1).do(it).is_stored
    assert path.stat().st_size == LOG_FILE_BYTES


@pytest.mark.parametrize("length", [0, 4096])
def test_a_log_file_that_was_being_made_after_one_made_ahead_is_no_damage(store, healthy, length):
    """Two files may be made at once: one by the put that needs it, one ahead of it."""
    last = int(log_file(store, -1).name)
    for number, size in ((1, length), (2, LOG_FILE_BYTES)):
        path = store / "commitlog" / f"{last + number * LOG_FILE_BYTES:020}"
        path.write_bytes(bytes(size))
    (store / "abort").touch()
    assert_whole(store, healthy)


def test_a_queue_file_that_lost_its_length_in_a_power_cut_is_written_again(store, healthy):
    empty(queue_file(store, 0))
    (store / "abort").touch()
    assert_whole(store, healthy)


def test_a_first_index_file_that_was_being_made_when_the_power_went_is_made_whole(store):
    for path in (store / "index").iterdir():
        path.unlink()
    path = store / "index" / "20231114221320000"
    path.write_bytes(bytes(1024))
    (store / "abort").touch()
    (store / "checkpoint").unlink()
    with opened(store):
        pass
    sizes = {path.stat().st_size for path in (store / "index").iterdir()}
    assert sizes == {40 + 4 * INDEX_SLOTS + 20 * INDEX_ITEMS}
    assert verify(store) == []


# --- what is no file, or no directory -------------------------------------------------------------


def _text(path):
    path.write_text("by hand")


def _full_directory(path):
    path.mkdir()
    (path / "notes").write_text("by hand")


def _device(path):
    path.symlink_to("/dev/null")


def _nothing(_path):
    """Leave it away."""


PARTS = {
    "consumequeue": False,
    "consumequeue/payments": False,
    "consumequeue/payments/2": False,
    "consumequeue/payments/2/00000000000000000000": True,
    "index": False,
    "abort": True,
}
"""Parts of a store, and whether each is a file."""


STANDS = [
    (part, make)
    for part, is_file in PARTS.items()
    for make in (_nothing, _text, _pipe, _full_directory, _device)
    if is_file or make is not _full_directory
]


@pytest.mark.parametrize(("part", "make"), STANDS)
def test_what_stands_in_the_place_of_a_part_is_moved_by_a_repair_as_its_dry_run_says(
    store, healthy, part, make
):
    place = store / part
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    make(place)
    was_there = os.path.lexists(place)
    if was_there and part != "abort":
        with pytest.raises(StoreError, match=re.escape(str(place))):
            opened(store)
    elif make is _full_directory:
        with opened(store) as again:
            assert not again.recovery.was_clean
    told = repair_store(store, CONFIG, now_ms=NOW_MS, dry_run=True)
    done = repair_store(store, CONFIG, now_ms=NOW_MS)
    assert (told.actions, told.remaining) == (done.actions, done.remaining)
    assert verify(store) == []
    if not (part == "abort" and make is _text):  # which is what a killed writer leaves
        assert any(store.glob(f"repair/*/{part}*")) == was_there
    with opened(store) as again:
        assert labels_in(again) == set(healthy.labels)


@pytest.mark.parametrize("size", [LOG_FILE_BYTES // 2, LOG_FILE_BYTES * 2, 1 << 30])
def test_a_setting_that_is_wrong_for_a_whole_log_is_refused_and_no_file_is(store, size):
    """A repair by it would move away, or cut, most of a log that has no fault."""
    config = msgspec.structs.replace(CONFIG, mapped_file_size_commit_log=size)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    dry_run = functools.partial(repair_store, dry_run=True)
    reading = functools.partial(MessageStore.open, read_only=True)
    doors = (verify_store, repair_store, dry_run, opened, reading, audited, rebuilt_here)
    for judge in doors:
        with pytest.raises(ConfigError, match=f"mappedFileSizeCommitLog is {size}, but .* unset"):
            judge(store, config=config)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_setting_mends_files_that_were_all_cut(store, healthy):
    for path in (store / "commitlog").iterdir():
        os.truncate(path, LOG_FILE_BYTES // 2)
    repair_store(store, CONFIG, now_ms=NOW_MS)
    assert {path.stat().st_size for path in (store / "commitlog").iterdir()} == {LOG_FILE_BYTES}
