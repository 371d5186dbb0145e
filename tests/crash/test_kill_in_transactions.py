"""SIGKILL anywhere in begin, commit, rollback and check: each transaction ends once, or is open."""

import random
from collections import Counter

from rocketstore import EndStatus, MessageStore
from rocketstore.transaction.ledger import open_transactions
from rocketstore.units import QueueKey
from support.fault_settings import base_seed, kill_count
from support.transaction_stores import all_of
from support.transaction_writer import (
    ENDS,
    GROUP,
    TOPIC,
    Journal,
    TransactionWriter,
    transaction_config,
)

LIVES = max(30, kill_count() // 2)
STEPS_MAX = 70
"""About as many steps as a life has that no kill ends."""


def test_each_transaction_ends_once_over_kill_after_kill(root):
    choices = random.Random(base_seed())
    killed = 0
    with TransactionWriter() as writer:
        for life in range(LIVES):
            killed += writer.run(root, life=life, steps=choices.randint(1, STEPS_MAX))["killed"]
    assert killed >= LIVES // 2
    journal = Journal(root)
    with MessageStore.open(root, transaction_config(), threads=False) as store:
        opened = {one.body.decode() for one in open_transactions(store)}
        delivered = Counter(one.body.decode() for one in all_of(store, QueueKey(TOPIC, 0)))
        assert {label: count for label, count in delivered.items() if count > 1} == {}, "twice"
        for label, place in journal.places.items():
            said = set(journal.was[label]) & set(ENDS)
            wanted = journal.wanted[label] & set(ENDS)
            is_open, is_delivered = label in opened, label in delivered
            assert not (is_open and is_delivered), f"{label} is both open and committed"
            if said:
                assert said == ({"committed"} if is_delivered else {"rolled-back"}), label
                assert not is_open, f"{label} is open after its end"
            elif not is_open:
                end = "committed" if is_delivered else "rolled-back"
                assert end in wanted, f"{label} is {end}, which nobody wanted"
            # What is open can be ended, by the offsets with which it began; what is not, cannot.
            result = store.end_transaction(GROUP, *place, commits=True)
            expected = EndStatus.COMMITTED if is_open else EndStatus.ENDED_ALREADY
            assert result.status is expected, label
