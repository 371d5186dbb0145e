"""A store put together from backups of itself and of another one: no message is hidden.

What ties ``known-ends`` to a log is tried by files of another store, and by older ones of its own:
where the log shows that the file is not its own, queues that an old backup brought back are made
whole from the log.
"""

import shutil
import zlib
from pathlib import Path

import msgspec
import pytest

from rocketstore import Message, MessageStore, repair_store, verify_store
from rocketstore.storage.checkpoint import read_known_ends
from rocketstore.storage.recovery import recover
from support.clock import START_MS, Clock
from support.made_once import made_once
from support.small_store import CONFIG, bodies, crashed

NOW_MS = START_MS + 3_600_000
TOPICS = ("a", "b", "c")
LATER = [("a", 30), ("b", 30), ("c", 30)]
"""What is put after the oldest backup; `c` last, so that the others lie before the log's tail."""


def opened(root: Path, now_ms: int = NOW_MS) -> MessageStore:
    return MessageStore.open(root, CONFIG, clock=Clock(now_ms), threads=False)


def put(store: MessageStore, topic: str, count: int, name: str = "ours") -> None:
    for _ in range(count):
        number = store.next_queue_offset(topic, 0)
        body = f"{name}-{topic}-{number:05d}".encode()
        assert store.put(Message(topic=topic, body=body, keys=body.decode()), queue_id=0).is_stored
    assert store.wait_dispatched()


def expected(counts: dict[str, int]) -> dict[str, dict[int, bytes]]:
    return {
        topic: {number: f"ours-{topic}-{number:05d}".encode() for number in range(count)}
        for topic, count in counts.items()
    }


@pytest.fixture(autouse=True)
def _long_log(monkeypatch):
    """Let little of a log be its tail, as in one of more than 8 MiB."""
    monkeypatch.setattr(recover, "CLEAN_TAIL_BYTES", 1_500)


@made_once
def made(root: Path, name: str, more: int = 0) -> None:
    """Make a store, with backups of three times beside it."""
    for number, step in enumerate([[("a", 10), ("b", 10), ("c", 10)], LATER, [("c", 20 + more)]]):
        with opened(root, NOW_MS - 1_000_000 + number) as store:
            for topic, count in step:
                put(store, topic, count, name)
        shutil.copytree(root, root.with_name(f"{root.name}-{number}"))


COUNTS = {"a": 40, "b": 40, "c": 60}
MORE = {"shorter": -19, "equal": 0, "longer": 40, "files longer": 300}
QUEUES = {"current": (), "one old": ("a",), "both old": ("a", "b")}


def take(source: Path, root: Path, *names: str) -> None:
    for name in names:
        if (source / name).is_dir():
            shutil.rmtree(root / name)
            shutil.copytree(source / name, root / name)
        else:
            shutil.copy(source / name, root / name)


def check(root: Path) -> None:
    """Open twice with a few puts; assert that each message is there once."""
    counts = dict(COUNTS)
    for _ in range(2):
        with opened(root) as store:
            got = {topic: bodies(store, topic) for topic in TOPICS}
            assert got == expected(counts)
            for topic in TOPICS:
                for number in (0, 25, counts[topic] - 1):
                    (found,) = store.find(topic, key=f"ours-{topic}-{number:05d}")
                    assert found.queue_offset == number
                put(store, topic, 2)
                counts[topic] += 2
    report = verify_store(root, CONFIG, now_ms=NOW_MS)
    assert [one for one in report.findings if one.severity.value != "note"] == []


@pytest.mark.parametrize("log", MORE)
@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("checkpoint", ["own", "foreign", "absent"])
@pytest.mark.parametrize("index", ["own", "old", "foreign"])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_another_store_s_known_ends_hide_nothing(
    tmp_path, log, queues, checkpoint, index, *, is_crashed
):
    root, theirs = made(tmp_path / "ours", "ours"), made(tmp_path / "theirs", "them", MORE[log])
    take(tmp_path / "ours-0", root, *(f"consumequeue/{topic}" for topic in QUEUES[queues]))
    take(theirs, root, "known-ends")
    if checkpoint == "foreign":
        take(theirs, root, "checkpoint")
    elif checkpoint == "absent":
        (root / "checkpoint").unlink()
    if index != "own":
        take({"old": tmp_path / "ours-0", "foreign": theirs}[index], root, "index")
    if is_crashed:
        crashed(root)
    check(root)


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("ends", [0, 1, 2])
@pytest.mark.parametrize("is_crashed", [False, True])
def test_older_known_ends_of_its_own_hide_nothing(tmp_path, queues, ends, *, is_crashed):
    root = made(tmp_path / "ours", "ours")
    take(tmp_path / "ours-0", root, *(f"consumequeue/{topic}" for topic in QUEUES[queues]))
    take(tmp_path / f"ours-{ends}", root, "known-ends")
    if is_crashed:
        crashed(root)
    check(root)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_file_without_ties_or_a_damaged_one_costs_one_walk(tmp_path, *, is_closed, is_whole):
    root = made(tmp_path / "ours", "ours")
    known = read_known_ends(root)
    assert known is not None
    assert known.is_closed
    assert len(known.ties) >= 2
    content = msgspec.json.encode(msgspec.structs.astuple(known)[:-2])
    encoded = msgspec.json.encode((zlib.crc32(content), msgspec.Raw(content)))
    (root / "known-ends").write_bytes(encoded if is_whole else encoded[:-1])
    read = read_known_ends(root)
    assert read is not None and not read.ties if is_whole else read is None
    take(tmp_path / "ours-0", root, "consumequeue/a")
    if not is_closed:
        crashed(root)
    with opened(root) as store:
        assert store.recovery.start == 0
        assert any("known-ends" in one.reason for one in store.recovery.findings)
    with opened(root) as store:
        assert store.recovery.start > 0
        assert store.recovery.findings == []
    check(root)


def test_a_queue_that_was_deleted_and_created_again_since_stays_as_it_is(tmp_path):
    """As by a broker of 4.9, which leaves ``known-ends`` alone."""
    root = made(tmp_path / "ours", "ours")
    shutil.rmtree(root / "consumequeue" / "a")
    (root / "known-ends").unlink()
    with opened(root) as store:
        put(store, "a", 5)
        assert store.next_queue_offset("a", 0) == 5
    shutil.rmtree(root / "consumequeue" / "b")
    take(tmp_path / "ours-2", root, "known-ends")
    with opened(root) as store:
        assert store.next_queue_offset("a", 0) == 5
        assert store.next_queue_offset("b", 0) == 0
        assert bodies(store, "c") == expected(COUNTS)["c"]


@pytest.mark.parametrize("is_tied", [False, True])
def test_verify_names_hidden_messages_and_repair_shows_them(tmp_path, *, is_tied):
    root = made(tmp_path / "ours", "ours")
    take(tmp_path / "ours-0", root, "consumequeue/a", "consumequeue/b")
    if not is_tied:
        take(made(tmp_path / "theirs", "them"), root, "known-ends", "checkpoint")
    found = verify_store(root, CONFIG, now_ms=NOW_MS).findings
    assert {one.topic for one in found} >= {"a", "b"}
    assert repair_store(root, CONFIG, now_ms=NOW_MS).remaining == []
    check(root)


def test_known_ends_of_an_empty_store_hide_nothing(tmp_path):
    root = made(tmp_path / "ours", "ours")
    opened(tmp_path / "theirs").close()
    take(tmp_path / "ours-0", root, "consumequeue/a", "consumequeue/b")
    take(tmp_path / "theirs", root, "known-ends")
    check(root)
