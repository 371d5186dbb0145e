"""The same puts at the same times, chosen by a seed: both stores write the same bytes."""

import random

import msgspec
import pytest

from rocketstore import Message, MessageStore
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.index_file import FIRST_ITEM, IndexLayout
from rocketstore.format.properties import message_properties
from support.both_sides import IPV4_HOST, IPV6_HOST, for_java, small_config
from support.clock import Clock
from support.java_store import JavaStore
from support.trees import tree

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

PUTS = 150
BODY = 400
STORE_HOSTS = ("127.0.0.1:10911", "[2001:db8::1]:10911")
HEADER = 91
"""Bytes of a record with IPv4 hosts, besides body, topic and properties."""


def settings(chosen):
    return {
        "mappedFileSizeCommitLog": chosen.choice((2000, 2048, 4096, 5003)),
        "mappedFileSizeConsumeQueue": chosen.choice((20, 60, 2000)),
        "mappedFileSizeConsumeQueueExt": 200,
        "enableConsumeQueueExt": chosen.choice(("true", "false")),
        "maxHashSlotNum": chosen.choice((1, 5, 50)),
        "maxIndexNum": chosen.choice((40, 1000)),
        "maxMessageSize": BODY,
        "messageDelayLevel": "1h 2h 3h",
    }


def some_message(chosen):
    levels = ("0", "1", "3", "4", "-1", "+2", "003", "2147483647")
    properties = {f"p{one}": chosen.choice(("é", "送𝄞", "e" * 30)) for one in range(2)}
    properties |= {"DELAY": chosen.choice(levels)} if chosen.random() < 0.2 else {}
    return Message(
        topic=chosen.choice(("a", "orders", "t" * 127, "%RETRY%g")),
        body=chosen.randbytes(chosen.choice((0, 1, 50, BODY, BODY + 1))),
        tags=chosen.choice((None, "Aa", "BB", "größe")),
        keys=chosen.choice(((), ("k",), ("Aa", "BB"), ("k", "k"))),
        properties=properties if chosen.random() < 0.7 else {},
        unique_key=chosen.choice((None, "7F00000100002A9F")),
        flag=chosen.choice((0, -(2**31), 2**31 - 1)),
        born_timestamp_ms=chosen.choice((0, -1, 2**63 - 1)),
        born_host=chosen.choice((IPV4_HOST, IPV6_HOST)),
        reconsume_times=chosen.choice((0, 16)),
    )


def fitted(message, left, store_host):
    """Return the message with a body that makes its record so long, if it can be."""
    size = HEADER + len(message.topic) + len(message_properties(message))
    size += 12 * sum(host.startswith("[") for host in (message.born_host, store_host))
    if "DELAY" in message.properties or not 0 <= left - size <= BODY:
        return message
    return msgspec.structs.replace(message, body=bytes(left - size))


def put_one(ours, java, chosen, clock):
    """Put a message into both stores, often one that ends near the end of a log file."""
    file_size, store_host = ours.config.mapped_file_size_commit_log, ours.config.store_host
    message, queue_id = some_message(chosen), chosen.choice((0, 7))
    if chosen.random() < 0.5:
        left = file_size - ours.appended_physical_offset % file_size
        message = fitted(message, left - chosen.choice((0, 7, 8, 9, 15, 16)), store_host)
    (expected,) = java.put([for_java(message, queue_id, store_host)])
    clock.now_ms = expected.get("storeTimestamp", clock.now_ms)
    assert_equal(ours.put(message, queue_id), expected)


def put_batch(ours, java, chosen, clock):
    """Put a batch as a client encodes it into both stores."""
    messages, queue_id = [some_message(chosen) for _ in range(3)], chosen.choice((0, 7))
    for one in messages:
        one.properties.pop("DELAY", None)
    first, store_host = messages[0], ours.config.store_host
    expected = java.put_batch([for_java(one, queue_id, store_host) for one in messages])
    clock.now_ms = expected.get("storeTimestamp", clock.now_ms)
    encoded = encode_client_batch((one.flag, one.body, message_properties(one)) for one in messages)
    result = ours.put_client_batch(
        first.topic, queue_id, encoded, born_host=first.born_host,
        born_timestamp_ms=first.born_timestamp_ms, reconsume_times=first.reconsume_times,
    )  # fmt: skip
    assert_equal(result, expected)


def assert_equal(result, expected):
    """Assert that a put of ours had the outcome of Java's."""
    found = {"status": result.status.name}
    if result.is_stored:
        found |= {"physicalOffset": result.physical_offset, "queueOffset": result.queue_offset}
        found |= {"msgId": result.message_id}
    assert {name: expected[name] for name in found} == found


def index_bytes(root, slots):
    """Return the index files without the time of their first items (K-I5), and without empty ones.

    Java makes a file before it knows whether a message has keys.
    """
    at = IndexLayout(slots, 0).item_position(FIRST_ITEM) + 12
    files = [bytearray(content) for content in tree(root / "index").values()]
    for content in files:
        content[at : at + 4] = bytes(4)
    return [bytes(content) for content in files if any(content[36:40])]


def written(root, directory):
    """Return the files that have bytes other than zero."""
    return {name: content for name, content in tree(root / directory).items() if any(content)}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_puts_make_the_same_files(seed, tmp_path):
    chosen, clock = random.Random(seed), Clock()
    sizes, store_host = settings(chosen), chosen.choice(STORE_HOSTS)
    config = small_config(**sizes, storeHost=store_host)
    theirs, mine = tmp_path / "java", tmp_path / "ours"
    with (
        JavaStore(theirs, sizes) as java,
        MessageStore.open(mine, config, clock=clock, threads=False) as ours,
    ):
        for _ in range(PUTS):
            put = put_batch if chosen.random() < 0.2 else put_one
            put(ours, java, chosen, clock)
            java.wait_dispatched()  # two index files of one millisecond have one name (K-I4)
            ours.wait_dispatched()
        for directory in ("commitlog", "consumequeue", "consumequeue_ext"):
            assert written(mine, directory) == written(theirs, directory)
        slots = sizes["maxHashSlotNum"]
        assert index_bytes(mine, slots) == index_bytes(theirs, slots)
