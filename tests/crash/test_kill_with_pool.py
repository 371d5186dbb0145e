"""SIGKILL of a writer with a transient store pool: what was committed is there, and whole."""

from pathlib import Path

from rocketstore import MessageStore, StoredMessage, verify_store
from rocketstore.storage.read_only import ReadOnlyStore
from support.both_sides import QUEUE_COUNT, queue_of, sample_messages, small_config
from support.killed_writer import kill_a_writer

ACKNOWLEDGED = 500
KILLS = 3


def test_a_kill_takes_the_latest_messages_only_and_none_that_was_seen(tmp_path):
    known = [0] * QUEUE_COUNT
    for _ in range(KILLS):
        seen: list[int] = []
        acknowledged = kill_a_writer(
            tmp_path, "ASYNC_FLUSH", "true", lines=ACKNOWLEDGED,
            look=lambda seen=seen: seen.append(seen_by_others(tmp_path)),
        )  # fmt: skip
        with MessageStore.open(tmp_path, small_config(transientStorePoolEnable=True)) as store:
            store.wait_dispatched()
            found = [messages_from(store, queue, known[queue]) for queue in range(QUEUE_COUNT)]
        count = sum(map(len, found))
        known = [before + len(new) for before, new in zip(known, found, strict=True)]
        assert seen[0] <= sum(known), "a consumer saw more"
        assert count <= acknowledged + 1
        # What is lost is the end of what this writer put: no hole, and nothing of it twice.
        for number, message in enumerate(sample_messages(count)):
            assert found[queue_of(number)][number // QUEUE_COUNT].raw_body == message.body
        report = verify_store(tmp_path)
        assert [one for one in report.findings if one.severity.value != "note"] == []


def messages_from(store: MessageStore, queue: int, offset: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while page := store.get("orders", queue, offset + len(found)).messages:
        found += page
    return found


def seen_by_others(root: Path) -> int:
    with ReadOnlyStore.open(root) as reader:
        return sum(reader.max_offset(*key) for key in reader.queues())
