"""SIGKILL between a delivery and its being written down: nothing is delivered twice, or lost."""

import random
from collections import Counter

from rocketstore import MessageStore
from support.delay_writer import TOPIC, DelayWriter, delay_config, is_all_delivered
from support.fault_settings import base_seed, kill_count
from support.patience import PATIENCE_S, wait_until
from support.reading import all_messages

LIVES = max(30, kill_count() // 4)
STEPS_MAX = 30
"""About as many steps as a life has that no kill ends."""


def test_each_message_is_delivered_once_over_kill_after_kill(root):
    choices = random.Random(base_seed())
    killed = 0
    with DelayWriter() as writer:
        for life in range(LIVES):
            killed += writer.run(root, life=life, steps=choices.randint(1, STEPS_MAX))["killed"]
    assert killed >= LIVES // 2
    with MessageStore.open(root, delay_config()) as store:
        wait_until(lambda: is_all_delivered(store), "all are delivered")
        store.wait_dispatched(timeout_s=PATIENCE_S)
        found = Counter(
            one.body.decode() for number in range(2) for one in all_messages(store, TOPIC, number)
        )
    acknowledged = (root.parent / "acknowledged").read_text().split()
    assert not set(acknowledged) - set(found), "lost"
    assert {label: count for label, count in found.items() if count > 1} == {}, "delivered twice"
