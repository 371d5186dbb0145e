"""A choice of topics leaves out what its queues show to be others', and never a row."""

import random
import shutil
from copy import deepcopy
from pathlib import Path

import pytest

from rocketstore.format.file_name import CONSUME_QUEUE_DIRECTORY
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.pipeline.log_read import chosen_records
from rocketstore.pipeline.options import parse_options
from rocketstore.places.queue_files import list_queues
from rocketstore.units import QueueKey
from support.golden_stores import QUEUES, golden_root
from support.memory import memory_directory
from support.pipeline_tables import plan_table, planned_bytes, read_table
from support.store_files import StoreFiles, overwrite_file
from support.stream_run import places_of

HAS_NO_PLACE = (4, 12)
"""Prepared and rolled back: sysFlag & 12."""


def rows_of(path, topics, **options):
    """What a choice of topics means, from a read without one."""
    return [
        row
        for row in read_table(path, **options)
        if row["topic"] in topics and row["sysFlag"] & 12 not in HAS_NO_PLACE
    ]


@pytest.mark.parametrize("name", QUEUES)
def test_of_golden_stores_each_topic_has_the_rows_of_an_unpruned_read(name):
    store = golden_root(name)
    options = {"columns": "topic,sysFlag,physicalOffset", "damage": "skip"}
    options |= {"failOnDataLoss": False}
    everything = read_table(store, **options)
    for topic in sorted({row["topic"] for row in everything}):
        if "," in topic:
            continue
        expected = [
            row for row in everything
            if row["topic"] == topic and row["sysFlag"] & 12 not in HAS_NO_PLACE
        ]  # fmt: skip
        assert read_table(store, subscribe=topic, maxSplitBytes="20000", **options) == expected


def copy_with_hole(source, target):
    """Copy a file; what is zeros up to its end is a hole of the copy, and no data."""
    content = Path(source).read_bytes()
    with Path(target).open("wb") as file:
        file.write(content.rstrip(b"\0"))
        file.truncate(len(content))


def copied(store, root):
    shutil.copytree(store.root, root, copy_function=copy_with_hole)
    copy = deepcopy(store)
    copy.root = root
    return copy


@pytest.fixture(scope="module")
def written():
    with memory_directory() as directory:
        yield write_stretches(directory / "stretches"), write_in_turn(directory / "in-turn")


@pytest.fixture
def stretches(tmp_path, written):
    """A hundred topics, each written in one go, of which the last three records are of the tail."""
    return copied(written[0], tmp_path / "store")


def write_stretches(root):
    store = StoreFiles(root, log_file_size=65_536, queue_file_size=2000)
    for topic in range(100):
        for record in range(40):
            store.put(f"Topic{topic:02d}", bytes(100), queue_id=record % 2)
    return store


@pytest.mark.parametrize("number", [0, 50, 99])
def test_one_topic_of_a_hundred_costs_its_stretch(stretches, number):
    topic = f"Topic{number:02d}"
    whole = planned_bytes(stretches.root)
    assert planned_bytes(stretches.root, subscribe=topic) <= 0.03 * whole
    assert planned_bytes(stretches.root, assign=f'{{"{topic}":[0,1]}}') <= 0.03 * whole
    assert planned_bytes(stretches.root, subscribePattern=topic) <= 0.03 * whole
    assert planned_bytes(stretches.root, subscribe="Topic10,Topic80") <= 0.05 * whole
    rows = read_table(stretches.root, subscribe=topic)
    assert rows == rows_of(stretches.root, {topic})
    assert len(rows) == 40


@pytest.fixture
def interleaved(tmp_path, written):
    """A hundred topics in turn, in records of 1 KiB."""
    return copied(written[1], tmp_path / "store")


def write_in_turn(root):
    store = StoreFiles(root, log_file_size=1 << 20, queue_file_size=2000)
    for number in range(6000):
        body = number.to_bytes(2, "big") * 500
        store.put(f"Topic{number % 100:02d}", body, queue_id=number % 3 // 2)
    return store


@pytest.mark.parametrize("topic", ["Topic00", "Topic37"])
def test_one_topic_of_a_hundred_in_turn_costs_its_records(interleaved, reads, topic):
    whole = planned_bytes(interleaved.root)
    expected = rows_of(interleaved.root, {topic})
    assert len(expected) == 60
    for size in ("1g", "300k"):
        tasks = plan_table(interleaved.root, subscribe=topic, maxSplitBytes=size)
        reads.clear()
        options = parse_options({"path": str(interleaved.root), "subscribe": topic})
        parts = [part for task in tasks for part in task]
        found = [
            columns.physical_offset.tolist()
            for part in parts
            for columns in chosen_records(part, options)
        ]
        assert set(places_of(expected)) <= {at for batch in found for at in batch}
        # Records that lie apart are one batch all the same; the end of the log is another.
        assert len(found) <= len(parts) + 1
        # Its records, and the end of the log, where no queue may have a record yet.
        assert sum(
            size for path, _, size in reads if "commitlog" in path
        ) <= 0.02 * whole + whole % (1 << 20)
        assert read_table(interleaved.root, subscribe=topic, maxSplitBytes=size) == expected


def test_an_entry_that_lies_between_others_has_its_range_scanned(interleaved):
    expected = rows_of(interleaved.root, {"Topic37"})
    key = QueueKey("Topic37", 0)
    count = interleaved.next_offsets[key]
    for lie in ((0, 100), (expected[3]["physicalOffset"] + 1, 1100), (1 << 40, 1100), (-1, 0)):
        interleaved.write_entry(key, count // 2, *lie)
        rows = read_table(interleaved.root, subscribe="Topic37")
        assert sorted(places_of(rows)) == places_of(expected)


def test_what_is_not_dispatched_yet_is_read(stretches):
    late = [stretches.put("Topic00", bytes(100), dispatch=False) for _ in range(3)]
    rows = read_table(stretches.root, subscribe="Topic00")
    assert places_of(rows)[-3:] == late
    assert rows == rows_of(stretches.root, {"Topic00"})


def queue_of(store, topic="Topic50", queue_id=0):
    return store.root / CONSUME_QUEUE_DIRECTORY / topic / str(queue_id)


def remove(store):
    """As a group that has read of it knows: that it is not there says nothing by itself."""
    shutil.rmtree(queue_of(store))
    (store.root / "config").mkdir(exist_ok=True)
    (store.root / "config/consumerOffset.json").write_text('{"offsetTable":{"Topic50@g":{0:1}}}')


def empty(store):
    for path in queue_of(store).iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def zeros_at_the_begin(store):
    (path,) = queue_of(store).iterdir()
    path.write_bytes(bytes(5 * ENTRY_SIZE_BYTES) + path.read_bytes()[5 * ENTRY_SIZE_BYTES :])


def zeros_in_the_middle(store):
    (path,) = queue_of(store).iterdir()
    overwrite_file(path, 5 * ENTRY_SIZE_BYTES, bytes(7 * ENTRY_SIZE_BYTES))


def last_entry_of_another_queue(store):
    key = QueueKey("Topic50", 0)
    store.write_entry(key, 19, 0, 231)


def last_entry_that_counts_as_none(store):
    store.write_entry(QueueKey("Topic50", 0), 19, -1, 0)


def first_entry_beyond_the_log(store):
    store.write_entry(QueueKey("Topic50", 0), 0, 1 << 40, 231)


def first_entry_a_filler(store):
    store.write_entry(QueueKey("Topic50", 0), 0, 0, 0x7FFFFFFF)


def queue_of_another_topic(store):
    remove(store)
    shutil.copytree(queue_of(store, "Topic51"), queue_of(store))


@pytest.mark.parametrize(
    "damage",
    [
        remove,
        empty,
        zeros_at_the_begin,
        last_entry_of_another_queue,
        last_entry_that_counts_as_none,
        first_entry_beyond_the_log,
        queue_of_another_topic,
    ],
)
def test_a_queue_that_cannot_be_trusted_leaves_out_nothing_and_is_named_once(
    stretches, damage, caplog
):
    damage(stretches)
    expected = rows_of(stretches.root, {"Topic50"})
    assert len(expected) == 40
    for choice in ({"subscribe": "Topic50"}, {"assign": '{"Topic50":[0,1]}'}):
        caplog.clear()
        assert planned_bytes(stretches.root, **choice) == planned_bytes(stretches.root)
        (said,) = [one for one in caplog.messages if one.startswith("plan.reads_all")]
        assert "Topic50/0" in said
        assert read_table(stretches.root, **choice) == expected
    # The others are as they were.
    assert planned_bytes(stretches.root, subscribe="Topic40") < 3000 + 40 * 250


@pytest.mark.parametrize("damage", [zeros_in_the_middle, first_entry_a_filler])
def test_entries_between_the_first_and_the_last_do_not_matter(stretches, damage):
    damage(stretches)
    assert (
        places_of(read_table(stretches.root, subscribe="Topic50"))[1:]
        == places_of(rows_of(stretches.root, {"Topic50"}))[1:]
    )


def test_an_expired_begin_is_found_by_a_search(stretches):
    for base in (0, 65_536):
        stretches.log_path(base).unlink()
    first = next(row for row in read_table(stretches.root))
    assert planned_bytes(stretches.root, subscribe=first["topic"]) < 20_000
    assert read_table(stretches.root, subscribe=first["topic"]) == rows_of(
        stretches.root, {first["topic"]}
    )


def test_where_nothing_has_expired_no_search_finds_the_first_entry(tmp_path, looks):
    counts = []
    for count in (10, 3000):
        store = StoreFiles(tmp_path / str(count), log_file_size=1 << 20)
        for _ in range(count):
            store.put("Topic", b"x")
        looks.clear()
        assert planned_bytes(store.root, subscribe="Topic")
        counts.append(len([path for path in looks if "consumequeue" in path]))
    assert counts[0] == counts[1]


def test_an_entry_that_lies_does_not_lead_past_what_is_before_it(interleaved):
    for base in (0, 1 << 20):
        interleaved.log_path(base).unlink()
    expected = [row for row in rows_of(interleaved.root, {"Topic37"}) if row["queueId"] == 0]
    key = QueueKey("Topic37", 0)
    interleaved.write_entry(key, interleaved.next_offsets[key] // 2, 0, 1100)
    rows = read_table(interleaved.root, assign='{"Topic37":[0]}')
    assert sorted(places_of(rows)) == places_of(expected)


def damage_entries(store, chance):
    """Write zeros or anything over some entries; of zeros at its end nothing tells a queue."""
    files = sorted((store.root / CONSUME_QUEUE_DIRECTORY).rglob("0*0"))
    paths = [path for path in files if path.is_file()]
    for _ in range(chance.randrange(4)):
        path = chance.choice(paths)
        data = bytearray(path.read_bytes())
        at, size = chance.randrange(len(data)), chance.choice((1, 20, 60))
        junk = chance.choice((bytes(size), chance.randbytes(size)))[: len(data) - at]
        after = data[at + len(junk) :] if path.parent == paths[-1].parent else b""
        if any(junk) or any(after):
            data[at : at + len(junk)] = junk
        path.write_bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_of_random_stores_each_choice_has_the_rows_of_an_unpruned_read(tmp_path, seed):
    chance = random.Random(seed)
    store = StoreFiles(tmp_path / "store", queue_file_size=5 * ENTRY_SIZE_BYTES)
    topics = ["A", "B", "C", "D"]
    for topic in topics:
        if chance.random() < 0.3:
            store.fill(QueueKey(topic, 0), chance.randrange(1, 12))
    for _ in range(chance.randrange(20, 150)):
        topic = topics[min(chance.randrange(5), 3)]
        store.put(topic, bytes(chance.randrange(300)), queue_id=chance.randrange(2))
        if chance.random() < 0.02:
            store.fill(QueueKey(topic, 0), chance.randrange(1, 7))
    for _ in range(chance.randrange(4)):
        store.put(chance.choice(topics), dispatch=False)
    damage_entries(store, chance)
    if chance.random() < 0.4:
        log = sorted((store.root / "commitlog").iterdir())
        for path in log[: chance.randrange(len(log))]:
            path.unlink()
    options = {"failOnDataLoss": False, "damage": "skip"}
    options |= {"columns": "topic,sysFlag,physicalOffset"}
    everything = rows_of(store.root, topics, **options)
    for topic in topics:
        expected = [row for row in everything if row["topic"] == topic]
        for size in ("1g", "1000"):
            found = read_table(store.root, subscribe=topic, maxSplitBytes=size, **options)
            assert found == expected, topic


def test_a_directory_that_is_no_number_s_own_spelling_is_no_queue(tmp_path):
    store = StoreFiles(tmp_path / "store")
    for queue_id in (0, 7, 11):
        store.put("Topic", b"", queue_id=queue_id)
    for name in ("00", "007", "x"):
        (store.root / CONSUME_QUEUE_DIRECTORY / "Topic" / name).mkdir()
    expected = [QueueKey("Topic", number) for number in (0, 7, 11)]
    assert list_queues(str(store.root)) == expected
