"""Messages for several queues and the genuine store: the same records, and either goes on."""

import pytest

from rocketstore import Message, MessageStore, verify_store
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from support.both_sides import all_of_java, all_of_ours, for_java, offsets, small_config
from support.java_store import SMALL_FILES, JavaStore
from support.patience import wait_until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

ON = {"enableMultiDispatch": "true", "enableLmq": "true"}
NAMES = "INNER_MULTI_DISPATCH"
LISTS = ("%LMQ%a", "%LMQ%b,copies", "copies,%LMQ%a,", "%LMQ%c,%LMQ%b,%LMQ%a")
STORE_HOST = "127.0.0.1:10911"


def sample(count: int, first: int = 0) -> list[tuple[Message, int]]:
    """Return messages, every fifth without a list, and their queues."""
    made = []
    for number in range(first, first + count):
        properties = {f"größe-{one}": f"v{number}" for one in range(number % 16)}
        properties |= {"WAIT": "true"} if number % 3 else {}
        properties |= {NAMES: LISTS[number % 4]} if number % 5 else {"x": "y"}
        message = Message(
            topic="orders", body=b"%d" % number, tags=f"T{number % 2}", keys=(f"k{number}",),
            properties=properties, born_timestamp_ms=1_600_000_000_000 + number,
        )  # fmt: skip
        made.append((message, number % 2))
    return made


def put_ours(store: MessageStore, messages: list[tuple[Message, int]]) -> None:
    for message, queue_id in messages:
        store.put(message, queue_id).raise_for_status()
    store.wait_dispatched()


def put_java(java: JavaStore, messages: list[tuple[Message, int]]) -> None:
    results = java.put([for_java(message, queue, STORE_HOST) for message, queue in messages])
    assert {result["status"] for result in results} == {"PUT_OK"}
    java.wait_dispatched()


def with_lists(store: Reader) -> dict[tuple[str, int], list[tuple[int, int, dict]]]:
    """Return place, size and properties of the messages with lists, by queue.

    The process around the genuine store keeps properties in the order that they came in, which a
    broker does not; the golden store `multidispatch` has a broker's order.
    """
    found = {}
    for key in store.queues():
        found[tuple(key)] = [
            (one.physical_offset, one.size, one.properties)
            for offset in range(0, store.max_offset(*key), 32)
            for one in store.get(*key, offset, 32).messages
            if NAMES in one.properties
        ]
    return found


def test_the_same_puts_make_the_same_records_and_either_reads_on(tmp_path):
    with JavaStore(tmp_path / "java", {**SMALL_FILES, **ON}) as java:
        put_java(java, sample(80))
    with MessageStore.open(tmp_path / "ours", small_config(**ON)) as ours:
        put_ours(ours, sample(80))
        expected = with_lists(ours)
    with ReadOnlyStore.open(tmp_path / "java", small_config(**ON)) as theirs:
        assert with_lists(theirs) == expected
    for root in (tmp_path / "java", tmp_path / "ours"):
        with MessageStore.open(root, small_config(**ON)) as ours:
            put_ours(ours, sample(40, 80))  # K-L2: the genuine store would begin at 0 again
        with JavaStore(root, {**SMALL_FILES, **ON}) as java:
            with ReadOnlyStore.open(root, small_config(**ON)) as reader:
                found, wanted = all_of_ours(reader), all_of_java(java)
            assert set(found) == set(wanted)
            assert sum(map(len, wanted.values())) == 120 + sum(
                len([name for name in message.properties.get(NAMES, "").split(",") if name])
                for message, _ in sample(120)
            )
            for key, messages in wanted.items():
                assert offsets(found[key]) == offsets(messages)


def test_java_enters_a_message_that_we_let_wait_when_it_delivers_it(tmp_path):
    waiting = Message(topic="later", body=b"1", properties={NAMES: "%LMQ%a", "DELAY": "1"})
    with MessageStore.open(tmp_path, small_config(**ON)) as ours:
        ours.put(waiting).raise_for_status()
        ours.wait_dispatched()
        assert "%LMQ%a" not in ours.topics()
    with JavaStore(tmp_path, {**SMALL_FILES, **ON}) as java:
        wait_until(lambda: java.read_queue("%LMQ%a"), "it is delivered")
        assert [one["topic"] for one in java.read_queue("%LMQ%a")] == ["later"]
        # What it is given to let wait, it enters at once, and once more when it is due (K-L6).
        put_java(java, [(waiting, 0)])
        assert [one["topic"] for one in java.read_queue("%LMQ%a")] == [
            "later", "SCHEDULE_TOPIC_XXXX"
        ]  # fmt: skip
    assert verify_store(tmp_path, small_config(**ON)).findings == []
