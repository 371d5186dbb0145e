"""A log of terabytes, most of them never written, costs what is there."""

import pickle
import time
import tracemalloc
from datetime import UTC, datetime

import pytest

from rocketstore import StoreConfig
from rocketstore.pipeline import planning
from rocketstore.pipeline.jobs import execution
from rocketstore.pipeline.jobs.audit.audit_plan import log_cuts
from rocketstore.pipeline.log_read import read_split
from rocketstore.places import log_files
from rocketstore.places.store_listing import list_store
from support.archiving import archived
from support.pipeline_tables import plan_table, read_table
from support.sparse_log import BEGIN_MS, FILE_MS, GIB, far_apart, make_sparse_log
from support.stream_run import StreamRun, sorted_places

FILES = 2000


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    root = tmp_path_factory.mktemp("sparse") / "store"
    return root, make_sparse_log(root, FILES)


def test_two_terabytes_are_planned_in_seconds_and_megabytes(sparse):
    root, _ = sparse
    tracemalloc.start()
    begin = time.process_time()
    tasks = plan_table(root)
    seconds, (_, most) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    parts = [part for task in tasks for part in task]
    assert 4 * (FILES - 1) < len(parts) <= 4 * FILES
    # A task costs Spark 0.1 s, however little it reads.
    assert len(tasks) <= 4 * FILES / planning.PIECES_OF_TASK + 1
    assert sum(part.byte_count for task in tasks for part in task) > (FILES - 1) * GIB
    # Of 20 TB that is a tenth; tracing costs most of the time here.
    assert most < 50 << 20
    assert seconds < 6


class _Planned(Exception):  # noqa: N818 - no error
    """What an archive is about to do."""


def test_one_topic_of_many_is_planned_without_a_look_at_the_others(tmp_path, looks):
    root, topics = tmp_path / "store", tuple(f"Topic{number:04}" for number in range(1000))
    offsets = make_sparse_log(root, 50, topics=topics, records_per_file=100)
    looks.clear()
    tasks = plan_table(root, subscribe="Topic0007")
    looked = {path.partition("/consumequeue/")[2][:9] for path in looks} - {""}
    # The log's last record, of another topic, says how far all queues have come.
    assert looked == {"Topic0007", "Topic0999"}
    assert sum(part.byte_count for task in tasks for part in task) < 50 * GIB
    wanted = offsets[7::1000]
    rows = read_table(root, subscribe="Topic0007")
    assert [row["physicalOffset"] for row in rows] == wanted


def test_a_part_of_a_queue_of_a_billion_messages_is_planned_by_few_looks(tmp_path, looks):
    root = tmp_path / "store"
    numbers = far_apart(10**9, 3 * FILES)
    offsets = make_sparse_log(root, FILES, topics=("Topic",), number_of=numbers)
    looks.clear()
    first, stop = numbers(3000), numbers(3005) + 1
    places = {"startingOffsets": f'{{"Topic":{{"0":{first}}}}}'}
    places["endingOffsets"] = f'{{"Topic":{{"0":{stop}}}}}'
    tasks = plan_table(root, subscribe="Topic", **places)
    assert len(looks) < 300
    assert sum(part.byte_count for task in tasks for part in task) < 3 * GIB
    rows = read_table(root, subscribe="Topic", **places)
    assert [row["physicalOffset"] for row in rows] == offsets[3000:3006]


def test_an_archive_of_hardly_anything_is_made_by_few_tasks(sparse, tmp_path):
    root, _ = sparse

    def show(_spark, tasks, *_):
        raise _Planned(tasks)

    with pytest.raises(_Planned) as planned:
        archived(root, tmp_path / "archive", stretch=512 << 20, run=show)
    (tasks,) = planned.value.args
    stretches = [one for task in tasks for one in task.parts]
    assert len(stretches) == 2 * FILES
    assert sum(one.stop - one.start for one in stretches) == FILES * GIB
    assert [task.parts for task in tasks if task.known] == [()]  # one writes what the plan knows
    assert len(tasks) - 1 <= 2 * FILES / planning.PIECES_OF_TASK + 1


def test_holes_are_not_read(sparse, reads):
    root, offsets = sparse
    tasks = [(part,) for task in plan_table(root) for part in task][: 4 * 20]
    reads.clear()
    found = [
        int(at)
        for task in tasks
        for part in task
        for columns, damage in read_split(part)
        for at in columns.physical_offset
        if not damage
    ]
    assert found == offsets[: 3 * 20]
    # Of each file a window as long as its data, and the piece in which they end.
    assert sum(size for _, _, size in reads) <= 20 * 4 * 65_536
    assert {position // (256 << 20) for _, position, _ in reads} == {0}


def test_a_batch_of_a_stream_reads_no_holes(tmp_path, reads):
    offsets = make_sparse_log(tmp_path / "store", 20)
    options = {"subscribePattern": "Topic.*", "startingOffsets": "earliest"}
    assert sorted_places(StreamRun(tmp_path / "store", **options).drain()) == offsets
    assert sum(size for _, _, size in reads) <= 64 << 20


def test_a_time_is_found_by_looks_at_few_files(sparse, monkeypatch):
    root, _ = sparse
    looks = []
    look = planning.store_timestamp_ms
    monkeypatch.setattr(
        planning,
        "store_timestamp_ms",
        lambda place, segment: looks.append(segment.base) or look(place, segment),
    )
    for number in (0, 1, 777, FILES - 1):
        looks.clear()
        start = BEGIN_MS + number * FILE_MS
        rows = read_table(root, startingTimestamp=start, endingTimestamp=start + 1)
        instants = [datetime.fromtimestamp(start / 1000, UTC)]
        assert [row["storeTimestamp"] for row in rows] == instants
        assert len(looks) < planning.FIRST_LOOKS + 20
        planned = plan_table(root, startingTimestamp=start, endingTimestamp=start + 1)
        # Ten minutes of margin on both sides are ten files each here.
        assert len({part.segment.base for task in planned for part in task}) <= 24


def test_more_bytes_than_spark_can_have_tasks_for_are_read_by_larger_tasks(sparse, monkeypatch):
    root, _ = sparse
    monkeypatch.setattr(planning, "MOST_TASKS", 1000)
    tasks = plan_table(root)
    assert len(tasks) <= 1001
    assert sum(map(len, tasks)) == FILES
    whole = [part for task in plan_table(root, maxSplitBytes="1024g") for part in task]
    assert sum(part.byte_count for task in tasks for part in task) == sum(
        part.byte_count for part in whole
    )


def test_tiny_splits_are_raised_where_they_would_be_many_tasks(sparse, caplog):
    root, _ = sparse
    planning._warn_of_tiny_splits.cache_clear()
    tasks = plan_table(root, maxSplitBytes="4k")
    assert sum(map(len, tasks)) <= planning.MOST_TASKS + FILES
    assert "plan.tiny_splits" in caplog.text
    assert "splits of 4096 bytes are raised" in caplog.text
    # An audit and a rebuild cut what is stored of the same log by the same rule.
    caplog.clear()
    cuts = log_cuts(list_store(str(root), StoreConfig()), 1)
    assert len(cuts) <= planning.FEW_TASKS + FILES
    assert planning.split_bytes(1 << 40, 1) == -(-(2 << 40) // planning.MOST_TASKS)
    assert planning.split_bytes(4 << 30, 1) == planning.LEAST_SPLIT_BYTES
    assert planning.split_bytes(2000, 1) == 1


def test_more_tasks_than_spark_can_have_share_partitions_in_their_order(monkeypatch):
    monkeypatch.setattr(execution, "MOST_TASKS", 4)
    found = []

    class Session:
        def createDataFrame(self, rows, schema):  # noqa: N802 - Spark's name
            assert schema.simpleString() == "struct<number:int,task:binary>"
            found.append(rows)
            return self

        def repartitionById(self, *given):  # noqa: N802 - Spark's name
            found.append(given)

    execution.task_rows(Session(), range(10))
    execution.task_rows(Session(), [])
    assert found[0].column("number").to_pylist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [pickle.loads(one) for one in found[0].column("task").to_pylist()] == [*range(10)]  # noqa: S301
    assert (found[1], found[3]) == ((4, "number"), (1, "number"))


def test_zeros_that_no_blank_covers_are_damage_however_the_file_is_cut(tmp_path):
    root = tmp_path / "store"
    make_sparse_log(root, 3, file_size=1 << 20)
    with (root / "commitlog" / f"{1 << 20:020d}").open("r+b") as file:
        file.truncate(4096)
        file.seek(0)
        at = file.read().rindex(b"\xcb\xd4\x31\x94") - 4
        file.seek(at)
        file.write(bytes(8))
        file.truncate(1 << 20)
    for size in ("1g", "256k", "5000"):
        (row,) = read_table(root, table="damage", maxSplitBytes=size)
        assert (row["physicalOffset"], row["size"]) == ((1 << 20) + at, (1 << 20) - at)
        assert row["reason"] == "unwritten hole"
    assert log_files.list_segments(str(root))[1].size == 1 << 20
