"""Whatever a queue's files lose: every message is reached, and no number is given again.

Each store here has a queue that went idle early: no record of it lies where recovery would look by
itself. Every loss is tried after a clean stop and after a crash, under both policies, with what the
last writer remembered (``known-ends``) and, where the files alone can tell, without.
"""

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, repair_store, verify_store
from rocketstore.cli.application import run
from rocketstore.config import RecoveryPolicy
from rocketstore.errors import StoreDamagedError
from rocketstore.format.file_name import file_name
from rocketstore.storage.checkpoint import read_known_ends
from rocketstore.storage.read_only import ReadOnlyStore
from support.clock import Clock
from support.configured_store import TINY, small_config
from support.small_store import bodies
from support.store_files import cut, garble, zero
from support.trees import copy_tree

FILE_BYTES = 400
PER_FILE = 20
CONFIG = small_config(**TINY, mapped_file_size_consume_queue=FILE_BYTES)
IDLE, FULL, BUSY = "Idle", "Full", "Busy"
COUNTS = {IDLE: 5 * PER_FILE + 7, FULL: 4 * PER_FILE, BUSY: 150}
"""Messages of each topic; the files of `FULL` end with a full one."""

BOTH_POLICIES = list(RecoveryPolicy)
BOTH_ENDS = [True, False]


def body(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode() * 12


def open_store(root: Path, clock: Clock, policy: RecoveryPolicy | None = None) -> MessageStore:
    return MessageStore.open(root, CONFIG, clock=clock, threads=False, policy=policy)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was closed in order, and the time at its end."""
    root, clock = tmp_path_factory.mktemp("lost") / "store", Clock()
    with open_store(root, clock) as store:
        for topic, count in COUNTS.items():
            for number in range(count):
                clock.now_ms += 10
                message = Message(
                    topic=topic, body=body(topic, number), keys=(f"{topic}-{number}",)
                )
                assert store.put(message, queue_id=0).queue_offset == number
            clock.now_ms += 20_000
            store.wait_dispatched()
            store.flush()
    assert len(list((root / "commitlog").iterdir())) >= 5
    return root, clock.now_ms


def queue_file(root: Path, topic: str, number: int) -> Path:
    return root / "consumequeue" / topic / "0" / file_name(number * FILE_BYTES)


def check_whole(root: Path, clock: Clock, policy: RecoveryPolicy) -> None:
    """Open, or repair and open; assert that nothing is lost and that numbers go on."""
    try:
        store = open_store(root, clock, policy)
    except StoreDamagedError as error:
        assert "repair" in f"{error} {error.hint}"  # noqa: PT017 - only some are refused
        repair_store(root, now_ms=clock(), policy=policy.value, config=CONFIG)
        store = open_store(root, clock, policy)
    with store:
        for topic, count in COUNTS.items():
            assert store.next_queue_offset(topic, 0) == count
            assert bodies(store, topic) == {n: body(topic, n) for n in range(count)}
            for number in range(count):
                (found,) = store.find(topic, key=f"{topic}-{number}")
                assert found.queue_offset == number
        for topic, count in COUNTS.items():
            clock.now_ms += 10
            assert store.put(Message(topic=topic, body=b"next"), queue_id=0).queue_offset == count
        store.wait_dispatched()
        assert bodies(store, IDLE)[COUNTS[IDLE]] == b"next"
    report = verify_store(root, CONFIG, now_ms=clock())
    assert [finding for finding in report.findings if finding.severity.value != "note"] == []


def damaged(
    whole: tuple[Path, int], tmp_path: Path, *, clean: bool, remembered: bool = True
) -> tuple[Path, Clock]:
    """Return a copy to be damaged."""
    root = copy_tree(whole[0], tmp_path / "store")
    if not clean:
        # The last writer died after it had opened the store, and put a message.
        store = open_store(root, Clock(whole[1]))
        store.put(Message(topic="Last", body=b"x"))
        store.abandon()
        assert (root / "abort").exists()
    if not remembered:
        (root / "known-ends").unlink()
    return root, Clock(whole[1])


def last_entries(root: Path) -> None:
    path = queue_file(root, IDLE, COUNTS[IDLE] // PER_FILE)
    path.write_bytes(path.read_bytes()[: 4 * 20].ljust(FILE_BYTES, b"\0"))


def first_of_two_files(root: Path) -> None:
    """The file after a missing one holds nothing: ``no file for position`` it was once."""
    queue_file(root, IDLE, 4).unlink()
    zero(queue_file(root, IDLE, 5))


def directory(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / IDLE)


def everything(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def harm_file(harm: Callable[[Path], None], topic: str, number: int, root: Path) -> None:
    harm(queue_file(root, topic, number))


FILE_LOSSES = {
    f"{harm.__name__}-{topic}-{number}": partial(harm_file, harm, topic, number)
    for harm in (Path.unlink, zero, garble, cut)
    for topic in (IDLE, FULL)
    for number in (0, 2, -(-COUNTS[topic] // PER_FILE) - 1)
}
OF_SEVERAL = (last_entries, first_of_two_files, directory, everything)
ALL_LOSSES = FILE_LOSSES | {loss.__name__: loss for loss in OF_SEVERAL}


@pytest.mark.parametrize("clean", BOTH_ENDS)
@pytest.mark.parametrize("policy", BOTH_POLICIES)
@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_a_lost_queue_file_is_made_again(whole, tmp_path, loss, policy, clean):
    root, clock = damaged(whole, tmp_path, clean=clean)
    ALL_LOSSES[loss](root)
    check_whole(root, clock, policy)


@pytest.mark.parametrize("clean", BOTH_ENDS)
@pytest.mark.parametrize("loss", FILE_LOSSES)
def test_what_the_files_alone_tell_is_found_without_memory(whole, tmp_path, loss, clean):
    root, clock = damaged(whole, tmp_path, clean=clean, remembered=False)
    ALL_LOSSES[loss](root)
    check_whole(root, clock, RecoveryPolicy.SALVAGE)


@pytest.mark.parametrize("policy", BOTH_POLICIES)
@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_a_repair_makes_it_again(whole, tmp_path, loss, policy):
    root, clock = damaged(whole, tmp_path, clean=True, remembered=False)
    shutil.rmtree(root / "index")  # made again from the log, beside queues that are not whole
    ALL_LOSSES[loss](root)
    report = repair_store(root, now_ms=clock(), policy=policy.value, config=CONFIG)
    kinds = {finding.kind for finding in report.remaining}
    if kinds == {"queue-kept"}:
        # Garbage after a queue's last entry counts as numbers that were given out: none is reused.
        assert loss == f"garble-{IDLE}-{COUNTS[IDLE] // PER_FILE}"
        return
    assert not kinds
    check_whole(root, clock, policy)


@pytest.mark.parametrize("clean", BOTH_ENDS)
def test_what_somebody_else_wrote_since_makes_the_memory_count_as_none(whole, tmp_path, clean):
    root, clock = damaged(whole, tmp_path, clean=clean)
    memory = (root / "known-ends").read_bytes()
    # What a broker of 4.9 leaves that deleted a topic and stored three messages in it again.
    (root / "known-ends").unlink()
    directory(root)
    with open_store(root, clock) as store:
        for number in range(3):
            clock.now_ms += 10
            result = store.put(Message(topic=IDLE, body=b"again %d" % number), queue_id=0)
            assert result.queue_offset == number
    (root / "known-ends").write_bytes(memory)
    if not clean:
        (root / "abort").touch()
    with ReadOnlyStore.open(root) as reader:
        assert list(reader.cut_short()) == []
    with open_store(root, clock) as store:
        assert store.next_queue_offset(IDLE, 0) == 3
        assert bodies(store, IDLE) == {number: b"again %d" % number for number in range(3)}


@pytest.mark.parametrize("remembered", [False, True])
def test_an_opening_remembers_what_it_found_and_that_the_store_is_in_use(
    whole, tmp_path, remembered
):
    root, clock = damaged(whole, tmp_path, clean=True, remembered=remembered)
    closed = read_known_ends(whole[0])
    with open_store(root, clock):  # which may be killed before its first flush
        known = read_known_ends(root)
    assert closed.is_closed
    assert not known.is_closed
    assert (known.log_end, sorted(known.queues)) == (closed.log_end, sorted(closed.queues))


def test_a_damaged_memory_counts_as_none(whole, tmp_path):
    root, clock = damaged(whole, tmp_path, clean=True)
    path = root / "known-ends"
    content = bytearray(path.read_bytes())
    assert b"[0,107]" in content
    path.write_bytes(content.replace(b"[0,107]", b"[0,907]"))
    check_whole(root, clock, RecoveryPolicy.SALVAGE)


def test_numbers_go_on_though_log_and_queue_are_lost(whole, tmp_path):
    root, clock = damaged(whole, tmp_path, clean=True)
    for path in sorted((root / "commitlog").iterdir())[2:]:
        path.unlink()
    shutil.rmtree(root / "consumequeue" / BUSY)
    with open_store(root, clock) as store:
        assert store.next_queue_offset(BUSY, 0) == COUNTS[BUSY]
        assert "queue-kept" in {finding.kind for finding in store.recovery.findings}
    with open_store(root, clock) as store:
        assert store.put(Message(topic=BUSY, body=b"next"), queue_id=0).queue_offset == 150
        store.wait_dispatched()
        assert store.get(BUSY, 0, 150).messages[0].body == b"next"


LOSSES: dict[str, Callable[[Path], object]] = {
    "a topic": lambda root: shutil.rmtree(root / "consumequeue" / IDLE),
    "a queue's only files": lambda root: [
        path.unlink() for path in (root / "consumequeue" / IDLE / "0").iterdir()
    ],
    "the last file": lambda root: queue_file(root, IDLE, 5).unlink(),
    "the bytes of the last file": lambda root: zero(queue_file(root, IDLE, 5)),
    "the first file": lambda root: queue_file(root, IDLE, 0).unlink(),
    "all queues": lambda root: shutil.rmtree(root / "consumequeue"),
}


def said_of_losses(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what commands that only read say on stderr, of the idle topic and of all."""
    said = []
    for words in (
        ["message", "get", str(root), "-t", IDLE],
        ["message", "tail", str(root), "-t", IDLE],
        ["queue", "list", str(root)],
        ["topic", "list", str(root)],
    ):
        run(words)
        said.append(capsys.readouterr().err)
    return said


@pytest.mark.parametrize("loss", LOSSES)
def test_who_only_reads_is_told_that_a_queue_has_lost_entries(whole, tmp_path, capsys, loss):
    root = copy_tree(whole[0], tmp_path / "store")
    assert not any("lost entries" in one for one in said_of_losses(root, capsys))
    LOSSES[loss](root)
    for said in said_of_losses(root, capsys):
        side, whole_is = ("begins", 0) if loss == "the first file" else ("ends", COUNTS[IDLE])
        assert re.search(rf"{IDLE}/0 {side} at queue offset \d+ instead of {whole_is}\b", said)
        assert "it has no message yet" not in said
    with MessageStore.open(root, CONFIG, read_only=True) as reader:
        expected = f"entries from 0 up to {COUNTS[IDLE]}"
        lost = [one.path.parent.name for one in reader.findings if one.expected == expected]
        assert lost == [IDLE]


def test_nothing_is_said_of_losses_in_a_store_in_use_or_of_another_log(whole, tmp_path, capsys):
    root = copy_tree(whole[0], tmp_path / "store")
    with open_store(root, Clock(whole[1])):
        shutil.rmtree(root / "consumequeue" / IDLE)
        assert not any("lost entries" in one for one in said_of_losses(root, capsys))
    (root / "known-ends").unlink()
    (root / "known-ends").mkdir()
    assert not any("cannot read" in one or "no file" in one for one in said_of_losses(root, capsys))
    other = tmp_path / "other"
    with open_store(other, Clock()) as store:
        store.put(Message(topic=IDLE, body=b"x"), queue_id=0)
    shutil.copy(whole[0] / "known-ends", other)
    assert not any("lost entries" in one for one in said_of_losses(other, capsys))
