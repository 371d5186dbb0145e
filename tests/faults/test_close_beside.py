"""Close beside every public call: it answers as it would have, or says that the store was closed.

Another thread closes the store while the call stands at its n-th line. A day's run takes some lines
of every call, ``ROCKETSTORE_FAULT_WALK=all`` each.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rocketstore import Message, MessageStore, PutFailedError, PutMessageStatus, StoreClosedError
from rocketstore.storage.results import PutResult
from rocketstore.transaction.transactions import EndResult, HalfMessage
from support.close_at import CloseAt
from support.configured_store import open_small
from support.fault_settings import WALKS_ALL
from support.public_calls import CHANGES, READS, SERVICES
from support.trees import copy_tree

Call = Callable[[MessageStore], object]


MOST_LINES = None if WALKS_ALL else 20

NEVER = 1 << 30

VARIES = {"runtime_info", "statistics", "dispatch_health", "running_flags", "scrub"}
"""Says something else each time."""


def opened(root: Path) -> MessageStore:
    return open_small(root, retention=True)


def begin(root: Path) -> None:
    with opened(root) as store:
        for number in range(5):
            store.put(Message(topic="t", body=b"%d" % number, keys="k", tags="a"))
        store.wait_dispatched()


def rounds(root: Path, call: Call) -> Iterator[tuple[str, object]]:
    """Yield where a copy of the store ``begun`` was closed, and what the call came to then."""
    for line in spread(lines_of(copied(root), call)):
        with contextlib.closing(copied(root)) as store:
            close_at = CloseAt(line, store.close)
            outcome = close_at.run(lambda store=store: call(store))
            yield close_at.where, outcome


def lines_of(store: MessageStore, call: Call) -> int:
    """Return how many lines a call has."""
    with store:
        counting = CloseAt(NEVER, store.close)
        counting.run(lambda: call(store))
    return NEVER - counting.left


def spread(lines: int) -> Sequence[int]:
    """Return which lines of so many are tried."""
    return range(1, lines + 1, max(lines // (MOST_LINES or NEVER), 1))


def copied(root: Path) -> MessageStore:
    """Open a new copy of ``begun``."""
    shutil.rmtree(root / "store", ignore_errors=True)
    copy_tree(root / "begun", root / "store")
    return opened(root / "store")


@pytest.mark.parametrize(
    "use",
    [
        lambda part: part.min_offset, lambda part: part("t"), lambda part: part["t", 0, None],
        lambda part: "t" in part, list, len,
    ],
    ids=["attribute", "call", "item", "membership", "items", "length"],
)  # fmt: skip
def test_a_part_of_a_store_that_was_closed_says_so_however_it_is_used(use, tmp_path):
    """A call that took the part just before the close comes to this at its next line."""
    with opened(tmp_path) as store:
        pass
    for part in (store._log, store._queues, store._pages, store._kinds):
        with pytest.raises(StoreClosedError, match="was closed"):
            use(part)


@pytest.mark.parametrize("name", READS)
def test_a_read_beside_close_answers_the_truth_or_that_it_was_closed(name, tmp_path):
    begin(tmp_path / "begun")
    with copied(tmp_path) as store:
        expected = READS[name](store)
    wrong = {
        f"{where}: {outcome!r:.200}"
        for where, outcome in rounds(tmp_path, READS[name])
        if not isinstance(outcome, StoreClosedError)
        and (
            type(outcome) is not type(expected) if name in VARIES else str(outcome) != str(expected)
        )
    }
    assert not wrong


def is_honest(outcome: object) -> bool:
    """Whether a call that changes something may come to this beside a close."""
    if isinstance(outcome, PutFailedError):
        return "SERVICE_NOT_AVAILABLE" in str(outcome)
    if isinstance(outcome, StoreClosedError) or outcome is None:
        return True
    put = outcome.put if isinstance(outcome, (HalfMessage, EndResult)) else outcome
    if isinstance(put, PutResult):
        return put.status in (PutMessageStatus.PUT_OK, PutMessageStatus.SERVICE_NOT_AVAILABLE)
    return not isinstance(outcome, BaseException)


@pytest.mark.parametrize("name", CHANGES | SERVICES)
def test_a_change_beside_close_is_made_or_refused(name, tmp_path):
    begin(tmp_path / "begun")
    wrong = {
        f"{where}: {outcome!r:.200}"
        for where, outcome in rounds(tmp_path, (CHANGES | SERVICES)[name])
        if not is_honest(outcome)
    }
    assert not wrong
