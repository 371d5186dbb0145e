"""A Kafka job that is started again with other topics: the added ones are read whole, all once."""

import json
import random
import re
from collections import Counter

import pytest

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.streaming import live_queues
from rocketstore.pipeline.streaming.stream_options import BatchLimits
from rocketstore.units import QueueKey
from support.pipeline_tables import read_table
from support.store_files import StoreFiles
from support.stream_run import StreamRun, flat

KAFKA = {"columnNames": "kafka", "startingOffsets": "earliest"}
TOPICS = "ABC"


@pytest.fixture
def store(tmp_path):
    """Forty messages of four queues of two topics, by turns, in several files."""
    made = StoreFiles(tmp_path / "store", log_file_size=2048)
    for _ in range(10):
        for topic in ("TopicA", "TopicB"):
            for queue_id in (0, 1):
                made.put(topic, queue_id=queue_id)
    return made


def counts(batches):
    return Counter((row["topic"], row["partition"]) for row in flat(batches))


def saved(run, number=-1):
    return json.loads(run.checkpoint.offsets[number])["queues"]["store"]


# --- one topic more -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 3}])
@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        ({"subscribe": "TopicA"}, {"subscribe": "TopicA,TopicB"}, (0, 1)),
        ({"subscribe": "TopicA"}, {"subscribePattern": "Topic"}, (0, 1)),
        ({"subscribePattern": "A$"}, {"subscribePattern": "c[AB]$"}, (0, 1)),
        ({"assign": '{"TopicA":[0,1]}'}, {"assign": '{"TopicA":[0,1],"TopicB":[1]}'}, (1,)),
        ({"assign": '{"TopicB":[0]}'}, {"assign": '{"TopicB":[0,1]}'}, (1,)),
    ],
)
def test_an_added_topic_is_read_from_its_beginning_and_others_go_on(
    store, before, after, added, limit
):
    run = StreamRun(store.root, **KAFKA, **before)
    had = counts(run.drain())
    stood = saved(run)["offset"]
    store.put("TopicB", queue_id=1)
    again = StreamRun(store.root, run.checkpoint, **KAFKA, **after, **limit)
    wanted = {("TopicB", queue_id): 10 + (queue_id == 1) for queue_id in added}
    assert counts(again.drain()) == wanted
    assert not had.keys() & wanted.keys()
    assert max(map(len, run.checkpoint.offsets)) < 400
    assert saved(run)["offset"] > stood
    for topic in ("TopicA", "TopicB"):
        store.put(topic, queue_id=1)
    assert counts(again.drain()) == {key: 1 for key in (*had, *wanted) if key[1] == 1}


def test_the_same_queues_chosen_in_another_way_or_fewer_or_new_ones_are_not_read_again(store):
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA,TopicB")
    run.drain()
    store.put("Late")
    for choice in ({"subscribePattern": "^Topic"}, {"subscribe": "TopicA"}):
        again = StreamRun(store.root, run.checkpoint.copy(), **KAFKA, **choice)
        assert flat(again.drain()) == []
    again = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA,TopicB,Late")
    assert counts(again.drain()) == {("Late", 0): 1}


def test_a_topic_that_was_left_out_and_is_added_again_is_read_from_its_beginning_again(store):
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA,TopicB")
    assert counts(run.drain()).total() == 40
    fewer = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA")
    assert flat(fewer.drain()) == []
    again = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA,TopicB")
    assert counts(again.drain()) == {("TopicB", 0): 10, ("TopicB", 1): 10}


@pytest.mark.parametrize(
    ("name", "number"), [("startingOffsets", -2), ("startingOffsetsByTimestamp", 1)]
)
def test_a_start_of_topics_that_are_not_chosen_is_refused_when_it_counts_and_not_at_a_restart(
    store, name, number
):
    starts = {"columnNames": "kafka", name: json.dumps({"TopicA": {"0": number, "1": number}})}
    with pytest.raises(ConfigError, match=f"option {name} names topic 'TopicA', which is not"):
        StreamRun(store.root, **starts, subscribe="TopicB").batch()
    with pytest.raises(ConfigError, match="names topic 'TopicA', queue 1, which is not chosen"):
        StreamRun(store.root, **starts, assign='{"TopicA":[0]}').batch()
    run = StreamRun(store.root, **starts, subscribe="TopicA")
    run.drain()
    again = StreamRun(store.root, run.checkpoint, **starts, subscribe="TopicB")
    assert counts(again.drain()) == {("TopicB", 0): 10, ("TopicB", 1): 10}


def test_few_messages_of_an_added_topic_do_not_wait_for_as_many_as_a_batch_is_to_have(store):
    options = {**KAFKA, "maxOffsetsPerTrigger": 8, "minOffsetsPerTrigger": 8, "clock": lambda: 0.0}
    run = StreamRun(store.root, **options, subscribe="TopicA")
    assert [len(rows) for rows in run.drain()] == [8, 8]  # four wait for others
    run = StreamRun(store.root, run.checkpoint, **options, subscribe="TopicA,TopicB")
    for _ in range(12):
        store.put("TopicA")
    # Fourteen before the place at which it stood, and what comes after it.
    assert [len(rows) for rows in run.drain()] == [8, 6, 8, 8]


def test_added_messages_without_an_entry_yet_are_read_as_well(store):
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA")
    for _ in range(3):
        store.put("TopicC", dispatch=False)
    store.put("TopicA", dispatch=False)
    run.drain()
    again = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA,TopicC")
    assert counts(again.drain()) == {("TopicC", 0): 3}


def test_queues_that_began_at_a_number_do_so_after_the_stream_went_back(store):
    starts = {"columnNames": "kafka", "startingOffsets": '{"TopicA":{"0":2,"1":9}}'}
    run = StreamRun(store.root, **starts, subscribe="TopicA", maxOffsetsPerTrigger=3)
    assert counts([run.batch()]) == {("TopicA", 0): 3}
    again = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA,TopicB")
    assert counts(again.drain()) == {
        ("TopicB", 0): 10, ("TopicB", 1): 10, ("TopicA", 0): 5, ("TopicA", 1): 1,
    }  # fmt: skip


def test_a_batch_that_is_run_again_has_the_topics_it_was_planned_with(store):
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA")
    assert run.plan_next()
    for choice in ("TopicA,TopicB", "TopicB"):
        other = StreamRun(store.root, run.checkpoint.copy(), **KAFKA, subscribe=choice)
        assert counts([other.batch()]) == {("TopicA", 0): 10, ("TopicA", 1): 10}
        assert counts(other.drain()) == {("TopicB", 0): 10, ("TopicB", 1): 10}


def test_retention_that_overtakes_a_stream_which_went_back_is_a_loss_of_what_it_lacks(tmp_path):
    store, found = StoreFiles(tmp_path / "store", log_file_size=2048), []
    options = {**KAFKA, "subscribe": "TopicA,TopicB"}

    def put(count):
        for _ in range(count):
            for topic in ("TopicA", "TopicB"):
                store.put(topic, bytes(200))

    def left():
        return len(read_table(store.root, subscribe="TopicB"))

    put(20)
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA")
    run.drain()
    again = StreamRun(store.root, run.checkpoint, **options, maxOffsetsPerTrigger=5)
    assert counts([again.batch()]) == {("TopicB", 0): 5}
    files = sorted((store.root / "commitlog").iterdir())
    for path in files[:3]:
        path.unlink()
    gone = 15 - left()
    assert gone > 0
    with pytest.raises(StoreError, match=rf"data loss: .*: {gone} messages are gone"):
        StreamRun(store.root, run.checkpoint, **options).batch()
    again = StreamRun(store.root, run.checkpoint, **options, failOnDataLoss="false")
    assert counts([again.batch(BatchLimits(2))]) == {("TopicB", 0): 2}
    # Now more is gone than up to the place to which the stream returns.
    put(20)
    for path in sorted((store.root / "commitlog").iterdir())[:-1]:
        path.unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"data loss: .* messages are gone"):
            StreamRun(store.root, run.checkpoint, **options).drain()
        found += StreamRun(store.root, run.checkpoint, **options, failOnDataLoss="false").batch()
    assert counts([found]) == {("TopicA", 0): left(), ("TopicB", 0): left()}
    assert StreamRun(store.root, run.checkpoint, **options).drain() == []


def test_a_batch_of_added_topics_is_shown_by_its_offset(store):
    run = StreamRun(store.root, **KAFKA, subscribe="TopicA")
    run.drain()
    again = StreamRun(store.root, run.checkpoint, **KAFKA, subscribe="TopicA,TopicB")
    assert counts([again.batch()]).total() == 20
    rows = read_table(
        store.root, table="reads", subscribe="TopicA", endOffset=run.checkpoint.offsets[-1]
    )
    assert sum(row["rows"] for row in rows) == 20


def test_a_message_that_also_stands_in_a_queue_that_is_not_assigned_is_no_loss(tmp_path):
    store = StoreFiles(tmp_path / "store")
    for _ in range(3):
        store.put("TopicA", queue_id=1)
    at = store.put(
        "TopicB", queue_id=1,
        properties={"INNER_MULTI_DISPATCH": "TopicA", "INNER_MULTI_QUEUE_OFFSET": "3"},
    )  # fmt: skip
    store.enter(QueueKey("TopicA", 1), at, store.end - at, 0)
    store.put("TopicA", queue_id=0)
    run = StreamRun(store.root, **KAFKA, assign='{"TopicA":[0]}')
    assert counts(run.drain()) == {("TopicA", 0): 1}


# --- at random ----------------------------------------------------------------------------------


def chooses(choice, key):
    """Whether an option of Kafka chooses a queue, by what its page says."""
    ((name, text),) = choice.items()
    if name == "assign":
        return key.queue_id in json.loads(text).get(key.topic, [])
    return bool(re.search(text, key.topic)) if "Pattern" in name else key.topic in text.split(",")


class Stores:
    """Stores of which is known what they hold; entries may come later than their records."""

    def __init__(self, top, rnd):
        self.top, self.rnd = top, rnd
        self.files, self.late = {}, []
        self.records = {}  # by broker, topic, queue and offset
        for name in rnd.choice(["a", "ab"]):
            (top / name).mkdir(parents=True)
            (top / name / "abort").touch()
            self.files[name] = StoreFiles(top / name, log_file_size=rnd.choice([2048, 8192]))
            for topic in TOPICS:
                self.put(name, [QueueKey("Topic" + topic, 0)], late=0)

    def put(self, name, keys=(), late=0.05):
        files = self.files[name]
        for key in keys or [
            QueueKey("Topic" + self.rnd.choice(TOPICS), self.rnd.choice([0, 0, 1]))
            for _ in range(self.rnd.choice([1, 3, 10, 30]))
        ]:
            is_late = any(one[0] == name for one in self.late) or self.rnd.random() < late
            body = name.encode() + self.rnd.randbytes(self.rnd.randint(0, 200))
            at = files.put(key.topic, body, queue_id=key.queue_id, dispatch=not is_late)
            offset = files.next_offsets[key] - 1
            self.records[name, key, offset] = body
            self.late += [(name, key, offset, at, files.end - at)] * is_late

    def dispatch(self):
        for name, *entry in self.late:
            self.files[name].write_entry(*entry)
        self.late = []


class Job:
    """A job that is stopped and killed, whose choice changes, and what it has delivered.

    From a queue that is chosen again everything is delivered, whatever was read before.
    """

    def __init__(self, stores, rnd):
        self.stores, self.rnd = stores, rnd
        self.checkpoint, self.planned = None, []  # the choice of each batch
        self.seen, self.ever = set(), set()
        self.choice = {"subscribe": "TopicA"}
        self.start()

    def start(self):
        limit = self.rnd.choice([None, 1, 7, 40])
        more = {"maxOffsetsPerTrigger": limit} if limit else {}
        self.run = StreamRun(
            self.stores.top, self.checkpoint, **KAFKA, **self.choice,
            **more, available_now=self.rnd.random() < 0.3,
        )  # fmt: skip
        self.checkpoint = self.run.checkpoint

    def choose(self):
        names = ["Topic" + one for one in TOPICS if self.rnd.random() < 0.6] or ["TopicA"]
        assigned = {name: self.rnd.choice([[0], [1], [0, 1]]) for name in names}
        self.choice = self.rnd.choice([
            {"subscribe": ",".join(names)},
            {"subscribePattern": f"c[{''.join(name[-1] for name in names)}]$"},
            {"assign": json.dumps(assigned)},
        ])  # fmt: skip
        self.start()

    def plan(self):
        if not self.run.plan_next():
            return False
        if len(self.checkpoint.offsets) > len(self.planned):
            self.planned.append(self.choice)
            before = self.planned[-2] if self.planned[1:] else self.choice
            self.seen = {one for one in self.seen if chooses(before, one[1])}
        return True

    def batch(self):
        """Run a batch, or as much of it as a kill lets through; it is then run again."""
        if not self.plan():
            return False
        if self.rnd.random() < 0.2:
            self.run.run_planned()
            self.choose()
        rows = self.run.run_planned()
        choice = self.planned[-1]
        for row in rows:
            key = QueueKey(row["topic"], row["partition"])
            one = row["value"][:1].decode(), key, row["offset"]
            assert self.stores.records[one] == row["value"]
            assert chooses(choice, key)
            assert one not in self.seen
            self.seen.add(one)
            self.ever.add(one)
        self.run.commit()
        return True


@pytest.mark.parametrize("way", ["log", "entries"])
@pytest.mark.parametrize("seed", range(8))
def test_added_topics_are_read_whole_and_all_once_over_restarts_and_kills(
    tmp_path, monkeypatch, seed, way
):
    if way == "entries":
        monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    rnd = random.Random(seed)
    stores = Stores(tmp_path / "stores", rnd)
    job = Job(stores, rnd)
    for _ in range(40):
        rnd.choice([
            lambda: stores.put(rnd.choice([*stores.files])),
            stores.dispatch, job.batch, job.batch, job.batch, job.plan, job.start, job.choose,
        ])()  # fmt: skip
    job.start()
    while job.batch():
        pass
    wanted = {one for one in stores.records if chooses(job.choice, one[1])}
    assert wanted <= job.ever
