"""A genuine broker of 5.3.3 and we on one store: each goes on where the other stopped.

All that is kept of such brokers is judged in tests/golden_store. To make all of it again, as after
a change of what makes it or of the broker's version, set ``ROCKETSTORE_NEWER_STORES=all``.
"""

import os
from pathlib import Path

import pytest

from rocketstore import EndStatus, Message, MessageStore, StoreError, verify_store
from rocketstore.storage.layout import StoreLayout
from rocketstore.storage.queues.pread_queue import newer_in
from rocketstore.transaction.ledger import open_transactions
from support.both_sides import small_config
from support.golden import golden_case
from support.java_store import require_java
from support.memory import memory_directory
from support.newer_broker import GROUP, MAKERS, ORDERS, NewerBroker, newer_class_path

pytestmark = [pytest.mark.java]

IS_ALL = os.environ.get("ROCKETSTORE_NEWER_STORES") == "all"
MADE = tuple(MAKERS) if IS_ALL else ("files", "timers", "pops")
"""Each broker takes seconds of processor time."""


@pytest.fixture(scope="module")
def broker():
    require_java(newer_class_path)
    with NewerBroker() as started:
        yield started


@pytest.fixture(scope="module")
def made(broker):
    """Make the stores; to shut a broker down takes 5 s, and all do it at the same time."""
    with memory_directory() as root:
        for name in MADE:
            MAKERS[name](broker, root / name)
        broker.close()
        yield root


def judged(root: Path) -> list[tuple[str, str]]:
    """Return what is said of a store's newer parts."""
    try:
        return [(one.file, one.reason) for one in newer_in(StoreLayout.of(root))] or [
            (one.file, one.reason) for one in verify_store(root, small_config()).findings
        ]
    except StoreError as error:
        return [("", error.message.replace(str(root), ""))]


@pytest.mark.parametrize("name", MADE)
def test_what_the_broker_writes_today_is_judged_as_what_is_kept_of_it(name, made):
    assert judged(made / name) == judged(golden_case("newer") / name)


def test_each_goes_on_with_what_the_other_wrote(broker, tmp_path):
    root = tmp_path / "store"
    broker.open(root)
    broker.put(ORDERS, b"5's", KEYS="k")
    ended, left = broker.begin(b"ended"), broker.begin(b"left")
    broker.end(ended, commits=True)
    broker.ask("writeOps")
    broker.close()
    with MessageStore.open(root, small_config()) as ours:
        assert [one.body for one in ours.get(ORDERS, 0, 0).messages] == [b"5's"]
        assert ours.put(Message(topic=ORDERS, body=b"ours"), 0).is_stored
        begun = [
            ours.begin(Message(topic=ORDERS, body=body), 3, producer_group=GROUP)
            for body in (b"by us", b"by 5", b"open")
        ]
        assert ours.commit(begun[0]).status is EndStatus.COMMITTED
        assert ours.end_transaction(GROUP, *ended, commits=True).status is EndStatus.ENDED_ALREADY
        assert ours.end_transaction(GROUP, *left, commits=False).status is EndStatus.ROLLED_BACK
    assert verify_store(root, small_config()).findings == []
    broker.open(root)
    assert broker.read(ORDERS) == [b"5's", b"ours"]
    broker.end((begun[1].queue_offset, begun[1].physical_offset), commits=True)
    broker.ask("writeOps")
    broker.put(ORDERS, b"5's again")
    broker.close()
    with MessageStore.open(root, small_config()) as ours:
        assert [one.body for one in ours.get(ORDERS, 0, 0).messages] == [
            b"5's", b"ours", b"5's again",
        ]  # fmt: skip
        assert [one.body for one in ours.get(ORDERS, 3, 0).messages] == [
            b"ended", b"by us", b"by 5",
        ]  # fmt: skip
        assert [one.body for one in open_transactions(ours)] == [b"open"]
    assert verify_store(root, small_config()).findings == []
