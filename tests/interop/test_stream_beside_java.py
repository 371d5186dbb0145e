"""A stream follows the Java store while it writes, and over its crash."""

import random

import pytest

from rocketstore.pipeline.streaming.stream_options import BatchLimits
from support.java_store import JavaStore, message_json, require_java
from support.stream_run import StreamRun, flat, places_of

pytestmark = [pytest.mark.java]

MODES = {"log": {}, "queues": {"subscribePattern": "Topic.*"}}
SETTINGS = {"mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 6_000}


@pytest.fixture(autouse=True)
def java():
    require_java()


def some_messages(rnd, count):
    return [
        message_json(
            f"Topic{rnd.randrange(3)}",
            rnd.randbytes(rnd.choice([0, 10, 900, 3_000])),
            queue_id=rnd.randrange(2),
        )
        for _ in range(count)
    ]


def put(store, rnd, count):
    return [answer["physicalOffset"] for answer in store.put(some_messages(rnd, count))]


def test_what_java_puts_while_a_stream_runs_comes_once(tmp_path):
    rnd = random.Random(7)
    root = tmp_path / "store"
    expected: list[int] = []
    found: dict[str, list[int]] = {mode: [] for mode in MODES}
    with JavaStore(root, SETTINGS) as store:
        runs = {mode: StreamRun(root, startingOffsets="earliest", **MODES[mode]) for mode in MODES}
        for _ in range(30):
            expected += put(store, rnd, rnd.randrange(1, 30))
            for mode, run in runs.items():
                found[mode] += places_of(run.batch(BatchLimits(rnd.choice([1, 5, 50]))) or [])
        store.wait_dispatched()
        for mode, run in runs.items():
            found[mode] += places_of(flat(run.drain()))
            assert sorted(found[mode]) == sorted(expected)
        store.halt()
    with JavaStore(root, SETTINGS) as store:
        later = put(store, rnd, 20)
        store.wait_dispatched()
        for run in runs.values():
            assert sorted(places_of(flat(run.drain()))) == sorted(later)
