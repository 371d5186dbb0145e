"""A stream of queues stands at a place in the log: what that costs, begins, passes and misses."""

import json

import pytest

from rocketstore.errors import StoreError
from rocketstore.pipeline.streaming import live_queues
from rocketstore.pipeline.streaming.stream_options import BatchLimits
from rocketstore.units import QueueKey
from support.store_files import StoreFiles
from support.stream_run import StreamRun, flat, places_of

ALL = {"startingOffsets": "earliest"}
LOG_FILE_BYTES = 8192


@pytest.fixture
def store(tmp_path):
    return StoreFiles(tmp_path / "store", log_file_size=LOG_FILE_BYTES)


def put(store, count, topic="Topic", body=b"x" * 50, **more):
    return [store.put(topic, body, **more) for _ in range(count)]


def saved(run):
    return json.loads(run.checkpoint.offsets[-1])["queues"]["store"]


# --- what a trigger costs -----------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_an_idle_trigger_and_its_offset_do_not_know_how_many_topics_there_are(
    tmp_path, looks, begin
):
    idle, sizes = [], []
    for topics in (5, 300):
        store = StoreFiles(tmp_path / str(topics) / "store", log_file_size=1 << 20)
        for number in range(topics):
            put(store, 1, f"Topic{number}", queue_id=number % 8)
        run = StreamRun(store.root, startingOffsets=begin, subscribePattern="Topic.*")
        assert len(run.batch()) == (topics if begin == "earliest" else 0)
        looks.clear()
        assert run.batch() is None
        idle.append(len(looks))
        sizes.append(len(run.checkpoint.offsets[-1]))
        assert not [path for path in looks if "consumequeue" in path]
    assert idle[0] == idle[1] < 20
    assert max(sizes) < 200


def test_topics_that_come_by_the_thousand_between_two_triggers_are_read_once(store):
    put(store, 1, "Topic")
    run = StreamRun(store.root, **ALL, subscribePattern=".*", maxOffsetsPerTrigger=700)
    assert len(run.batch()) == 1
    later = [at for number in range(1000) for at in put(store, 1, f"New{number}", b"")]
    batches = run.drain()
    assert [len(rows) for rows in batches] == [700, 300]
    assert places_of(flat(batches)) == later


def test_what_other_topics_put_makes_no_batch_until_it_is_much(store, monkeypatch):
    put(store, 3)
    run = StreamRun(store.root, **ALL, subscribe="Topic")
    assert len(run.batch()) == 3
    put(store, 20, "Other")
    before = run.checkpoint.offsets[-1]
    assert run.batch() is None
    monkeypatch.setattr(live_queues, "LOOK_BYTES", 1000)
    assert run.batch() == []
    assert saved(run)["offset"] > json.loads(before)["queues"]["store"]["offset"]
    wanted = put(store, 2)
    assert places_of(run.batch()) == wanted


def test_of_a_long_batch_only_stretches_with_rows_are_read(store, monkeypatch):
    rare = []
    for _ in range(4):
        rare += put(store, 1, "Rare", queue_id=1)
        put(store, 30, "Other", b"x" * 900)
    monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    monkeypatch.setattr(live_queues, "MiB", 4096)
    run = StreamRun(store.root, **ALL, subscribe="Rare")
    assert places_of(run.batch()) == rare
    parts = [
        part
        for task in run.reader.partitions(
            run.reader.initialOffset(), json.loads(run.checkpoint.offsets[-1])
        )
        for part in task.value
    ]
    assert [(part.segment.base + part.start, part.byte_count) for part in parts] == [
        (at, 1) for at in rare
    ]
    # A limit is counted by entries, and an absent queue that had messages makes all be read.
    limited = StreamRun(store.root, **ALL, subscribe="Rare", maxOffsetsPerTrigger=3)
    looked = []
    believed = live_queues.LiveQueues._believed
    monkeypatch.setattr(
        live_queues.LiveQueues, "_believed", lambda *given: looked.append(given) or believed(*given)
    )
    assert places_of(limited.batch()) == rare[:3]
    # Where it ends and which ranges it has are asked apart, each once.
    assert len(looked) == 2
    assert [places_of(rows) for rows in limited.drain()] == [rare[3:]]
    for path in store.queue_directory(QueueKey("Rare", 1)).iterdir():
        path.unlink()
    store.queue_directory(QueueKey("Rare", 1)).rmdir()
    again = StreamRun(store.root, **ALL, subscribe="Rare", maxOffsetsPerTrigger=3)
    assert places_of(flat(again.drain())) == rare


def test_an_entry_that_looks_expired_does_not_lead_past_rows_of_a_long_batch(store, monkeypatch):
    rare = []
    for _ in range(17):
        rare += put(store, 1, "Rare")
        put(store, 4, "Other", b"x" * 900)
    store.log_path(0).unlink()
    store.write_entry(QueueKey("Rare", 0), 8, 0, 100)
    monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    monkeypatch.setattr(live_queues, "MiB", 4096)
    run = StreamRun(store.root, **ALL, subscribe="Rare", damage="skip")
    assert places_of(run.batch()) == [at for at in rare if at >= LOG_FILE_BYTES]


def test_a_limit_without_entries_ends_with_a_file_and_passes_nothing_over(store, monkeypatch):
    monkeypatch.setattr(live_queues, "CUT_BYTES", LOG_FILE_BYTES)
    wanted = []
    for _ in range(4):
        put(store, 12, "Other", b"x" * 900)
        wanted += put(store, 1)
    run = StreamRun(store.root, **ALL, subscribe="Topic", maxOffsetsPerTrigger=100)
    batches = run.drain()
    assert places_of(flat(batches)) == wanted
    assert len(batches) > 2


# --- where it begins ----------------------------------------------------------------------------


def test_numbers_of_queues_are_carried_until_the_stream_has_passed_them(store):
    places = {
        (row, queue): put(store, 1, queue_id=queue)[0] for row in range(20) for queue in (0, 1, 2)
    }
    until = store.end
    starts = json.dumps({"Topic": {"0": 5, "1": 15, "2": -1}})
    run = StreamRun(store.root, subscribe="Topic", startingOffsets=starts, maxOffsetsPerTrigger=4)
    later = []
    found = []
    while (rows := run.batch()) is not None:
        found += places_of(rows)
        is_carried = saved(run)["since"] < until
        assert saved(run).get("until") == (until if is_carried else None)
        assert ("first" in saved(run)) == is_carried
        later += put(store, 5, queue_id=2) if len(found) == 4 else []
        run = StreamRun(store.root, run.checkpoint, subscribe="Topic", maxOffsetsPerTrigger=4)
    assert (
        found
        == sorted(
            [*(places[row, 0] for row in range(5, 20)), *(places[row, 1] for row in range(15, 20))]
        )
        + later
    )
    assert "first" not in saved(run)


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_stream_that_began_at_the_latest_message_goes_on_in_the_next_file(store, name):
    put(store, 3, body=b"x" * 1800)
    starts = {name: json.dumps({"Topic": {"0": -1 if name == "startingOffsets" else 1 << 60}})}
    run = StreamRun(store.root, subscribe="Topic", **starts)
    assert run.batch() == []
    assert saved(run)["offset"] == store.end
    later = put(store, 2, body=b"x" * 3000)
    assert later[0] == LOG_FILE_BYTES
    assert places_of(flat(run.drain())) == later


def test_a_number_that_a_queue_does_not_have_is_a_loss_or_the_nearest(store):
    places = put(store, 10)
    options = {"subscribe": "Topic", "startingOffsets": '{"Topic":{"0":12}}'}
    with pytest.raises(StoreError, match=r"asks for offset 12: expected it .*found 0 to 10"):
        StreamRun(store.root, **options).batch()
    run = StreamRun(store.root, failOnDataLoss="false", **options)
    assert run.batch() == []
    later = put(store, 3)
    assert places_of(flat(run.drain())) == later
    end = StreamRun(store.root, subscribe="Topic", startingOffsets='{"Topic":{"0":10}}')
    assert places_of(flat(end.drain())) == later
    assert places


# --- what is gone -------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [live_queues.MOST_COUNTED, 0])
def test_deleted_files_without_messages_of_the_queues_are_no_loss(store, monkeypatch, most):
    """Of many queues a loss is not counted, but it is one only if some had messages there."""
    monkeypatch.setattr(live_queues, "MOST_COUNTED", most)
    wanted = put(store, 2)
    run = StreamRun(store.root, **ALL, subscribe="Topic")
    assert places_of(run.batch()) == wanted
    put(store, 30, "Other", b"x" * 900)
    wanted = put(store, 2)
    planned = StreamRun(store.root, run.checkpoint.copy(), subscribe="Topic")
    assert planned.plan_next()
    store.log_path(0).unlink()
    # Also a file that is missing between others.
    store.log_path(2 * LOG_FILE_BYTES).unlink()
    put(store, 30, "Other", b"x" * 900)
    assert places_of(planned.run_planned()) == wanted
    assert places_of(flat(run.drain())) == wanted
    everything = StreamRun(store.root, **ALL, subscribePattern=".*")
    gone = r"\d+ messages are gone" if most else r"\d+ bytes were deleted"
    with pytest.raises(StoreError, match=rf"data loss.* is missing.*{gone}"):
        everything.batch()


def test_a_queue_whose_own_file_went_with_the_log_counts_as_a_loss(store, monkeypatch):
    wanted = put(store, 15)  # ten to a file of the queue
    run = StreamRun(store.root, **ALL, subscribe="Topic", maxOffsetsPerTrigger=5)
    assert places_of(run.batch()) == wanted[:5]
    put(store, 30, "Other", b"x" * 900)
    put(store, 6)
    store.log_path(0).unlink()
    for number in (0, 1):
        base = number * store.queue_file_size
        (store.queue_directory(QueueKey("Topic", 0)) / f"{base:020}").unlink()
    with pytest.raises(StoreError, match=r"0 messages are gone, and maybe others of 1 queues"):
        run.batch()
    monkeypatch.setattr(live_queues, "MOST_COUNTED", 0)
    with pytest.raises(StoreError, match=r"\d+ bytes were deleted"):
        StreamRun(store.root, run.checkpoint, subscribe="Topic").batch()


@pytest.mark.parametrize("count", [3, 90])
def test_a_damaged_header_that_no_checksum_covers_is_found_among_many_queues(store, count):
    places = [at for _ in range(3) for n in range(count) for at in put(store, 1, f"Topic{n}")]
    store.write_log(places[-count - 1] + 20, (999).to_bytes(8, "big"))
    run = StreamRun(store.root, **ALL, subscribePattern="Topic.*", maxSplitBytes="1g")
    with pytest.raises(StoreError, match=r"expected \d+ records of the batch's queues, found"):
        run.batch()


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "queues"])
@pytest.mark.parametrize("limit", [10, 3])
def test_a_limit_of_all_stores_is_divided_and_what_one_leaves_is_the_others(tmp_path, kind, limit):
    counts = {"a": 40, "b": 2, "c": 20}
    for name, count in counts.items():
        put(StoreFiles(tmp_path / "stores" / name), count)
    choice = {"subscribe": "Topic"} if kind == "queues" else {}
    run = StreamRun(
        tmp_path / "stores", **ALL, **choice, maxOffsetsPerTrigger=limit, triggerLimitOf="all"
    )
    batches = run.drain()
    assert [len(rows) for rows in batches[:-1]] == [limit] * (len(batches) - 1)
    assert len(flat(batches)) == 62
    first = [row["brokerName"] for row in batches[0]]
    each = {name: first.count(name) for name in counts}
    assert each == ({"a": 4, "b": 2, "c": 4} if limit == 10 else {"a": 1, "b": 1, "c": 1})


def test_a_common_limit_moves_each_store_by_a_record_at_least():
    assert BatchLimits(5, 100, of_all=True).share(2, 0, 0) == BatchLimits(2, 50)
    assert BatchLimits(5, None, of_all=True).share(3, 5, 900) == BatchLimits(1, None)
    assert BatchLimits(5, 100).share(2, 5, 100) == BatchLimits(5, 100)
