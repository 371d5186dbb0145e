"""Work grows with what there is and not with its square: files listed and opened, counted."""

import gc
import json
import sys
import tracemalloc

import pyarrow as pa
import pytest

from rocketstore.format.queue_entry import DELAY_TOPIC, ENTRY_SIZE_BYTES
from rocketstore.pipeline.columns import TABLES
from rocketstore.pipeline.options import parse_options
from rocketstore.pipeline.tables import READERS
from rocketstore.places import files
from rocketstore.places.queue_files import QueueFiles
from rocketstore.units import QueueKey
from support.pipeline_tables import plan_table, read_table
from support.store_files import StoreFiles
from support.stream_run import StreamRun

DELAYED = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "DELAY": "1"}


@pytest.fixture
def counted(monkeypatch):
    """What was listed, entry by entry, and what was opened."""
    found = []
    plain_list, plain_open = files.LocalFiles.list, files.LocalFiles.open

    def listing(self, path):
        entries = plain_list(self, path)
        found.extend(["listed"] * (1 + len(entries)))
        return entries

    def opening(self, path):
        found.append("opened")
        return plain_open(self, path)

    monkeypatch.setattr(files.LocalFiles, "list", listing)
    monkeypatch.setattr(files.LocalFiles, "open", opening)
    return found


def long_queue(root, count):
    """One queue, in so many files, beside a queue of delayed messages in as many."""
    store = StoreFiles(root, log_file_size=8192, queue_file_size=2 * ENTRY_SIZE_BYTES)
    for number in range(2 * count):
        store.put("Topic", b"x" * 10, keys=f"key{number}")
        store.put(DELAY_TOPIC, b"x" * 10, properties=DELAYED)
        store.put(f"Other{number % 3}", b"x" * 1000)
    return store


def many_queues(root, count):
    """As many topics, and as many queues of one topic."""
    store = StoreFiles(root, log_file_size=8192, queue_file_size=2 * ENTRY_SIZE_BYTES)
    for number in range(count):
        store.put("Topic", b"x" * 300, queue_id=number)
        store.put(f"Topic{number}", b"x" * 300)
    return store


def of_streams(path):
    run = StreamRun(
        path, startingOffsets="earliest", subscribe="Topic", maxOffsetsPerTrigger=10_000
    )
    return [row for batch in run.drain() for row in batch]


def from_each_queue(path):
    numbers = {str(one.name): 0 for one in (path / "consumequeue/Topic").iterdir()}
    starts = json.dumps({"Topic": numbers})
    return plan_table(path, subscribe="Topic", startingOffsets=starts)


READS = {
    **{
        f"table {name}": lambda path, name=name: read_table(path, table=name)
        for name in TABLES
        if name != "delays"  # looks around each range of the log, some hundred entries far
    },
    "plan of delays": lambda path: plan_table(path, table="delays"),
    "plan of a topic": lambda path: plan_table(path, subscribe="Topic"),
    "plan of a pattern": lambda path: plan_table(path, subscribePattern="Topic.*"),
    "plan of small tasks": lambda path: plan_table(path, subscribe="Topic", maxSplitBytes="8k"),
    "queues of some topics": lambda path: read_table(path, table="queues", subscribe="Topic"),
    "plan of offsets of each queue": from_each_queue,
    "stream": of_streams,
}


@pytest.mark.parametrize("make", [long_queue, many_queues])
@pytest.mark.parametrize("name", READS)
def test_twice_as_many_files_or_queues_are_about_twice_the_work(tmp_path, counted, make, name):
    work = []
    for count in (30, 60):
        store = make(tmp_path / str(count), count)
        counted.clear()
        READS[name](store.root)
        work.append(len(counted))
    assert work[1] <= 2.4 * work[0] + 20


def test_one_queue_of_many_files_is_listed_a_few_times_however_many_there_are(tmp_path, counted):
    store = long_queue(tmp_path / "store", 100)
    counted.clear()
    assert len(read_table(store.root, table="consumequeue", subscribe="Topic")) == 200
    assert counted.count("opened") <= 110
    assert counted.count("listed") <= 3 * 110


@pytest.mark.parametrize("choice", [{"subscribe": "Topic"}, {"table": "delays"}])
def test_a_task_of_many_ranges_lists_its_queues_once(tmp_path, counted, choice):
    store = long_queue(tmp_path / "store", 60)
    (task,) = plan_table(store.root, **choice)
    assert len(task) > 10
    counted.clear()
    options = parse_options({"path": str(store.root)} | choice)
    columns = pa.schema([("queueOffset", pa.int64())])
    found = list(READERS[options.table].read(task, options, columns))
    assert sum(len(one) for one in found) == 120
    assert counted.count("listed") == 61


def test_where_a_topic_of_one_queue_has_its_entry_is_searched_not_walked_to(tmp_path, monkeypatch):
    store = long_queue(tmp_path / "store", 500)
    queue = QueueFiles(str(store.root), QueueKey("Topic", 0))
    seen = []

    class Counted(list):
        def __getitem__(self, at):
            seen.append(at)
            return list.__getitem__(self, at)

        def __iter__(self):
            raise AssertionError("all files are walked over")

    queue.files.files = Counted(queue.files.files)
    for number in (0, 1, 499, 999):
        assert queue.entry(number).record_size > 0
    assert queue.entry(1000) is None
    assert queue.entry(-1) is None
    assert len(seen) <= 5 * 6 * 12


@pytest.mark.parametrize("option", ["assign", "startingOffsets", "endingOffsetsByTimestamp"])
def test_each_queue_that_is_named_is_looked_for_a_few_times_however_long_the_log(tmp_path, option):
    store, calls = many_queues(tmp_path / "store", 100), []
    for count in (100, 100, 1100):  # the first one loads modules
        numbers = dict.fromkeys(range(count), 10**13 * ("T" in option))
        named = {"Topic": [*numbers] if option == "assign" else numbers}
        given = {option: json.dumps(named), "failOnDataLoss": "false", "columns": "queueId"}
        given |= {} if option == "assign" else {"subscribe": "Topic"}
        seen = []
        sys.setprofile(lambda *_, seen=seen: seen.append(None))
        try:
            rows = read_table(store.root, **given)
        finally:
            sys.setprofile(None)
        assert len(rows) == 100
        calls.append(len(seen))
    # The log has 8 files, and 100 other topics.
    assert calls[2] - calls[1] < 200 * 1000


def test_a_stream_holds_no_more_after_some_triggers_and_its_offset_is_small(tmp_path):
    store = long_queue(tmp_path / "store", 100)  # of few topics, whose names are cached
    given = {"subscribePattern": "Topic.*", "startingOffsets": "earliest"}
    reader = StreamRun(store.root, maxOffsetsPerTrigger=2, **given).reader
    offset, held, moved = reader.initialOffset(), [], 0
    tracemalloc.start()
    for number in range(200):  # half of them have something; the benchmark has 10,000
        begin, offset = offset, reader.latestOffset(offset, reader.getDefaultReadLimit())
        moved += begin != offset and len(reader.partitions(begin, offset))
        reader.reportLatestOffset()
        if number in (20, 90, 199):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert moved == 100
    assert max(held) - held[0] < 20_000
    assert len(json.dumps(offset)) <= 200


def test_tasks_share_what_is_named_and_after_the_last_of_it_have_nothing_of_it(tmp_path):
    store = many_queues(tmp_path / "store", 60)
    given = {
        "subscribe": "Topic",
        "startingOffsets": json.dumps({"Topic": dict.fromkeys(range(30), 0)}),
    }
    run = StreamRun(store.root, **given)
    assert run.plan_next()
    ends = json.loads(run.start_text(0)), json.loads(run.checkpoint.offsets[0])
    tasks = [part.queue_ranges for one in run.reader.partitions(*ends) for part in one.value]
    carried = [len(one) for one in tasks]
    assert (carried[0], carried[-1]) == (30, 0)
    assert carried == sorted(carried, reverse=True)
    assert len(run.run_planned()) == 60
    planned = [part.queue_ranges for one in plan_table(store.root, **given) for part in one]
    assert len(planned) > 1 == len({*map(id, planned)}) == len({id(one) for one in tasks if one})
