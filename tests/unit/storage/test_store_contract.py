"""What a store answers does not depend on which kind of store it is that is asked."""

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from support.clock import START_MS, Clock
from support.configured_store import open_small

TOPICS = ("a", "b")
KINDS = ("writing", "writing again", "read only", "read only beside the writer")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("contract") / "store"
    with open_small(root, clock := Clock()) as store:
        for number in range(40):
            clock.now_ms += 10
            tag = ("x", "y")[number % 2]
            message = Message(
                topic=TOPICS[number % 2], body=bytes(number) * 50, tags=tag, keys=f"k{number % 3}"
            )
            store.put(message, queue_id=number % 3)
        store.put_batch([Message(topic="a", body=b"batch", keys="k0")] * 3)
    return root


@pytest.fixture(scope="module")
def answers(root):
    with open_small(root) as store:
        return everything(store)


@pytest.fixture(params=KINDS)
def store(request, root):
    if request.param == "writing":
        with open_small(root) as store:
            yield store
    elif request.param == "writing again":
        with MessageStore.open(root, StoreConfig(retention=False), clock=Clock()) as store:
            yield store
    elif request.param == "read only":
        with MessageStore.open(root, read_only=True) as store:
            yield store
    else:
        with open_small(root), MessageStore.open(root, read_only=True) as store:
            yield store


def everything(store):
    """All that a store answers about its messages."""
    queues = sorted(store.queues())
    found = {"queues": queues, "ends": (store.min_physical_offset, store.max_physical_offset)}
    for topic, queue in queues:
        low, high = store.min_offset(topic, queue), store.max_offset(topic, queue)
        page = store.get(topic, queue, 0, 100)
        found[topic, queue] = {
            "offsets": (low, high),
            "page": page,
            "raw": bytes(store.get_raw(topic, queue, 0, 100).records),
            "views": [bytes(view) for view in store.get_views(topic, queue, 0, 100).records],
            "tags": store.get(topic, queue, 0, 100, tags="x").messages,
            "beyond": store.get(topic, queue, high + 1),
            "entries": list(store.queue_entries(topic, queue)),
            "at": [store.offset_at(topic, queue, START_MS + ms) for ms in (0, 155, 10_000)],
            "by id": [store.by_id(message.message_id) for message in page.messages],
        }
    for topic in TOPICS:
        for key in ("k0", "k1", "k2", "none"):
            found[topic, key] = store.find(topic, key)
    found["unknown"] = (store.get("none", 0, 0), store.find("none", "k"), store.max_offset("n", 0))
    return found


def test_every_kind_of_store_gives_the_same_answers(answers, store):
    given = everything(store)
    assert len(given["queues"]) == 6
    assert len(given["a", "k0"]) > 5
    assert given == answers
