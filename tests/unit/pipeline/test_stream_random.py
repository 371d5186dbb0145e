"""Several stores that grow, are cut and lose files at random: a stream has every row once.

It may lack what was lost before it was read, and only after it has said so.
"""

import json
import random

import pytest

from rocketstore.errors import StoreError
from rocketstore.pipeline.streaming.stream_options import UNLIMITED, BatchLimits, from_json
from rocketstore.units import QueueKey
from support.pipeline_tables import read_table
from support.store_files import StoreFiles
from support.stream_run import StreamRun

STEPS = 40


class RandomStore:
    """A store of which is known what it holds; entries may come later than their records."""

    def __init__(self, root, rnd):
        root.mkdir(parents=True)
        (root / "abort").touch()
        self.root, self.rnd = root, rnd
        self.files = StoreFiles(root, log_file_size=rnd.choice([2048, 4096]))
        self.records, self.late = [], []
        self.time_ms = self.count = 0
        self.has_lost = False
        self.put()

    def put(self):
        for _ in range(self.rnd.choice([1, 3, 10, 40])):
            self.time_ms += 1
            self.count += 1
            key = QueueKey("Topic" + self.rnd.choice("ABC"), self.rnd.choice([0, 0, 1]))
            is_late = bool(self.late) or self.rnd.random() < 0.1
            body = b"%s-%d-%s" % (
                self.root.name.encode(), self.count, b"x" * self.rnd.randint(0, 300)
            )  # fmt: skip
            at = self.files.put(
                key.topic, body, queue_id=key.queue_id, store_timestamp_ms=self.time_ms,
                dispatch=not is_late,
            )  # fmt: skip
            one = (at, key, self.files.next_offsets[key] - 1, body, self.files.end - at)
            self.records.append(one)
            self.late += [one] * is_late

    def dispatch(self):
        for at, key, number, _, size in self.late:
            self.files.write_entry(key, number, at, size)
        self.late = []

    def cut(self, *, zero):
        """Go back by some records, as recovery does, and go on with others."""
        self.has_lost = True
        kept = self.rnd.randint(max(0, len(self.records) - 12), len(self.records) - 1)
        gone, self.records = self.records[kept:], self.records[:kept]
        for one in gone:
            if one not in self.late:
                self.files.write_entry(one[1], one[2], 0, 0)
            self.files.next_offsets[one[1]] = min(self.files.next_offsets[one[1]], one[2])
        self.late = [one for one in self.late if one not in gone]
        self.files.end = end = gone[0][0]
        for path in (self.root / "commitlog").iterdir():
            if int(path.name) > end:
                path.unlink()
        if zero:
            size = self.files.log_file_size
            self.files.write_log(end, bytes(size - end % size))
        self.time_ms += 10
        self.put()

    def delete_first_file(self):
        self.has_lost = True
        self.dispatch()
        first, *others = sorted((self.root / "commitlog").iterdir())
        if others:
            first.unlink()
            self.records = [one for one in self.records if one[0] >= int(others[0].name)]


class Follower:
    """A stream that takes what it is given, and accepts losses once it was told of one."""

    def __init__(self, top, stores, mode):
        self.top, self.stores, self.mode = top, stores, mode
        self.run = StreamRun(top, startingOffsets="earliest", **mode)
        self.seen, self.saved = set(), {}
        self.has_lost = False

    def restart(self):
        tolerance = str(not self.has_lost).lower()
        self.run = StreamRun(
            self.top, self.run.checkpoint, startingOffsets="earliest", failOnDataLoss=tolerance,
            **self.mode,
        )  # fmt: skip

    def do(self, work):
        try:
            return work()
        except StoreError as error:
            if "data loss" not in str(error) or not any(
                one.has_lost for one in self.stores.values()
            ):
                raise
            self.has_lost = True
            self.restart()
            return work()

    def batch(self, limits):
        rows = self.do(lambda: self.run.batch(limits))
        saved = from_json(json.loads(self.run.checkpoint.offsets[-1]), self.run.kind)
        for key, place in saved.items():
            self.saved[key] = max(self.saved.get(key, 0), place.offset)
        for row in rows or ():
            name, place, body = row["brokerName"], row["physicalOffset"], row["body"]
            assert (name, body) not in self.seen
            assert (place, body) in {(one[0], one[3]) for one in self.stores[name].records}
            self.seen.add((name, body))
        return rows

    def plan(self, limits):
        """Stop after a batch was planned."""
        self.do(lambda: self.run.plan_next(limits))
        self.restart()

    def cut(self, store, *, zero):
        is_planned = self.run.checkpoint.committed < len(self.run.checkpoint.offsets)
        store.cut(zero=zero or is_planned)

    def may_lack(self, broker, record):
        is_passed = record[0] < self.saved.get(broker, 0)
        return self.has_lost and self.stores[broker].has_lost and is_passed


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_of_stores_that_lose_something_has_the_rest_once(tmp_path, mode, seed):
    rnd = random.Random(seed)
    stores = {one: RandomStore(tmp_path / "stores" / one, rnd) for one in "ab"}
    stream = Follower(tmp_path / "stores", stores, mode)
    weights = {"put": 8, "batch": 9, "plan": 3, "restart": 4, "dispatch": 3}
    # Every fourth loses nothing, and has what a query has.
    weights |= {"cut": 2, "delete": 1} if seed % 4 else {}

    def limits():
        return rnd.choice(
            [
                UNLIMITED,
                BatchLimits(rnd.randint(1, 20)),
                BatchLimits(None, 700),
                BatchLimits(9, 900),
            ]
        )

    for _ in range(STEPS):
        store = stores[rnd.choice("ab")]
        steps = {
            "put": store.put,
            "batch": lambda: stream.batch(limits()),
            "plan": lambda: stream.plan(limits()),
            "restart": stream.restart,
            "dispatch": store.dispatch,
            "cut": lambda one=store: stream.cut(one, zero=rnd.random() < 0.7),
            "delete": store.delete_first_file,
        }
        steps[rnd.choices([*weights], [*weights.values()])[0]]()
    for store in stores.values():
        store.dispatch()
    while stream.batch(limits()) is not None:
        pass
    held = {(broker, one[3]): one for broker, store in stores.items() for one in store.records}
    missing = held.keys() - stream.seen
    assert all(stream.may_lack(broker, held[broker, body]) for broker, body in missing)
    if not seed % 4:
        rows = read_table(tmp_path / "stores", **mode)
        assert {(row["brokerName"], row["body"]) for row in rows} == stream.seen == held.keys()
