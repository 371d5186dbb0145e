"""Stores with transactions whose process is killed at a chosen step of a life full of them.

Run as a program it forks a store for each command, as `delay_writer` does. The steps that count:
before and after each put of a half, final or op message and of the copy of a check, and around each
system call of saving ``consumerOffset.json``.

What was wanted and what was answered stands in a journal beside the store: a line
``wanted LABEL END`` before each call, ``was LABEL END QUEUE_OFFSET PHYSICAL_OFFSET`` after it.
"""

import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocketstore import CheckAnswer, Message, MessageStore, StoreConfig, StoredMessage
from rocketstore.transaction import ledger, transactions
from rocketstore.units import system_clock_ms
from support.configured_store import small_config
from support.delay_writer import DelayWriter, KillingDisk, Steps, serve

TOPIC: Final = "kill"
GROUP: Final = "billing"
CALLS: Final = 14
ENDS: Final = ("committed", "rolled-back")


class TransactionWriter(DelayWriter):
    """The process that forks."""

    program = __file__


def transaction_config() -> StoreConfig:
    """Return settings with which every half message is asked about at every turn."""
    return small_config(
        transaction_time_out=0, transaction_check_max=1_000, flush_interval_commit_log=1
    )


class Journal:
    """What was wanted of each transaction, and what was answered."""

    def __init__(self, root: Path) -> None:
        self.path = root.parent / "journal"
        self.wanted: dict[str, set[str]] = defaultdict(set)
        self.was: dict[str, list[str]] = defaultdict(list)
        self.places: dict[str, tuple[int, int]] = {}
        self.path.touch()
        for line in self.path.read_text().splitlines():
            self._take(line)

    def say(self, *words: object) -> None:
        """Write a line, which outlives this process at once."""
        line = " ".join(map(str, words))
        with self.path.open("a") as file:
            file.write(line + "\n")
        self._take(line)

    def _take(self, line: str) -> None:
        kind, label, end, *place = line.split()
        if kind == "wanted":
            self.wanted[label].add(end)
            return
        self.was[label].append(end)
        if end == "begun":
            self.places[label] = int(place[0]), int(place[1])

    @property
    def unfinished(self) -> list[str]:
        """Begun, and no end was answered."""
        return [label for label in self.places if not set(ENDS) & set(self.was[label])]


def _live(root: Path, life: int, steps: Steps) -> None:
    """Begin, end and check transactions, also those of earlier lives."""
    journal, chance = Journal(root), random.Random(life)
    transactions.SETTLE_EVERY = ledger.LONGEST = 3
    disk = KillingDisk(steps, "consumerOffset.json")
    with MessageStore.open(root, transaction_config(), disk=disk) as store:
        steps.count_puts(store)
        for number in range(CALLS):
            if number % 3 == 0:
                _begin(store, journal, f"{life}-{number}")
            elif number == CALLS - 1 or chance.random() < 0.2:
                _check(store, journal, chance)
            elif journal.unfinished:
                label = chance.choice(journal.unfinished[-4:])
                _end(store, journal, label, chance.choice(ENDS))
            if chance.random() < 0.2:
                store.consumer_offsets.save()


def _begin(store: MessageStore, journal: Journal, label: str) -> None:
    journal.say("wanted", label, "begun")
    half = store.begin(Message(topic=TOPIC, body=label.encode()), producer_group=GROUP)
    half.put.raise_for_status()
    journal.say("was", label, "begun", half.queue_offset, half.physical_offset)


def _end(store: MessageStore, journal: Journal, label: str, end: str) -> None:
    journal.say("wanted", label, end)
    commits = end == "committed"
    result = store.end_transaction(GROUP, *journal.places[label], commits=commits)
    if result.put is not None:
        journal.say("was", label, end)


def _check(store: MessageStore, journal: Journal, chance: random.Random) -> None:
    answers = {
        "committed": CheckAnswer.COMMIT,
        "rolled-back": CheckAnswer.ROLLBACK,
        "unknown": CheckAnswer.UNKNOWN,
    }
    given = []

    def on_check(half: StoredMessage) -> CheckAnswer:
        label, end = half.body.decode(), chance.choice(list(answers))
        journal.say("wanted", label, end)
        given.append((label, end))
        return answers[end]

    store.wait_dispatched()
    store.check_transactions(on_check)
    store.transaction_checks.turn(system_clock_ms() + 1)
    for label, end in given:
        journal.say("was", label, end)


if __name__ == "__main__":
    serve(_live)
