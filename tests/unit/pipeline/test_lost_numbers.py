"""Queues with numbers whose records are lost, by offsets and as a stream: no other row goes."""

import logging

import pytest

from rocketstore import Message
from rocketstore.errors import StoreError
from rocketstore.places.queue_files import QueueFiles
from rocketstore.units import QueueKey
from support.clock import START_MS, Clock
from support.pipeline_tables import read_table
from support.small_store import LOG_FILE_BYTES, flip_body, log_path, open_store, put_all
from support.stream_run import StreamRun, flat, places_of

BEFORE, AFTER = 150, 60


def put(root, clock, count):
    wanted = [Message(topic="Topic0", body=b"x" * 200) for _ in range(count)]
    with open_store(root, clock) as store:
        return put_all(store, wanted, clock)


@pytest.fixture
def filled(tmp_path):
    """A store that lost the end of its log and went on: fillers stand in the queue's middle."""
    root, clock = tmp_path / "store", Clock()
    places = put(root, clock, BEFORE)
    for number in (1, 2):
        log_path(root, number * LOG_FILE_BYTES).unlink()
    kept = [at for at in places if at < LOG_FILE_BYTES]
    rows = read_table(root, table="consumequeue")
    assert len(rows) == BEFORE
    return root, kept + put(root, clock, AFTER)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": '{"Topic0":{"0":-2}}'}, slice(None)),
        ({"startingOffsets": '{"Topic0":{"0":3}}'}, slice(3, None)),
        ({"startingOffsets": '{"Topic0":{"0":100}}'}, slice(-AFTER, None)),
        ({"endingOffsets": '{"Topic0":{"0":40}}'}, slice(40)),
    ],
)
def test_offsets_are_found_on_both_sides_of_fillers(filled, options, wanted):
    root, places = filled
    rows = read_table(root, subscribe="Topic0", **options)
    assert [row["physicalOffset"] for row in rows] == places[wanted]


def test_a_queue_begins_at_its_first_message_and_not_after_fillers(filled):
    root, _ = filled
    queue = QueueFiles(str(root), QueueKey("Topic0", 0))
    assert queue.first_left(0) == 0
    assert queue.first_left(1) == 1
    # All that was stored before the fillers is gone: what follows them is the first.
    assert queue.first_left(LOG_FILE_BYTES) == BEFORE
    with pytest.raises(StoreError, match="there are 0 to 210"):
        read_table(root, subscribe="Topic0", startingOffsets='{"Topic0":{"0":211}}')


@pytest.mark.parametrize("limit", [1000, 7])
@pytest.mark.parametrize("kind", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_a_stream_steps_over_fillers_and_says_so(filled, limit, kind, caplog):
    root, places = filled
    caplog.set_level(logging.WARNING)
    options = {kind: limit * (1 if kind == "maxOffsetsPerTrigger" else 300)}
    run = StreamRun(root, subscribe="Topic0", startingOffsets="earliest", **options)
    batches = run.drain()
    assert sorted(places_of(flat(batches))) == places
    assert max(map(len, batches)) <= limit
    assert "stream.fillers" in caplog.text


def test_a_time_is_found_in_front_of_a_damaged_record(tmp_path):
    root = tmp_path / "store"
    places = put(root, Clock(), 100)
    since_ms = START_MS + 31
    rows = read_table(root, columns="physicalOffset", startingTimestamp=since_ms)
    wanted = [row["physicalOffset"] for row in rows]
    for damaged in (50, 75, 87):
        flip_body(root, places[damaged])
        wanted.remove(places[damaged])
    run = StreamRun(root, subscribe="Topic0", startingTimestamp=since_ms, damage="skip")
    assert places_of(flat(run.drain())) == wanted


def test_a_queue_whose_last_record_is_damaged_ends_there_and_not_at_another_damaged_one(tmp_path):
    root = tmp_path / "store"
    places = put(root, Clock(), 100)
    damaged = (25, 50, 75, 99)
    for number in damaged:
        flip_body(root, places[number])
    wanted = [at for number, at in enumerate(places) if number not in damaged]
    run = StreamRun(root, subscribe="Topic0", startingOffsets="earliest", damage="skip")
    assert places_of(flat(run.drain())) == wanted


def test_an_entry_that_lies_loses_no_row_wherever_the_log_is_cut(tmp_path):
    root, clock = tmp_path / "store", Clock()
    # Between any two messages of the queue there is room for a lie that still points forward.
    wanted = [Message(topic=f"Topic{number % 2}", body=b"x" * 200) for number in range(40)]
    with open_store(root, clock) as store:
        put_all(store, wanted, clock)
    options = {"subscribe": "Topic0", "startingOffsets": '{"Topic0":{"0":1}}'}
    options |= {"endingOffsets": '{"Topic0":{"0":19}}', "maxSplitBytes": 2000}
    rows = read_table(root, **options)
    assert len(rows) == 18
    file = root / "consumequeue" / "Topic0" / "0" / f"{0:020}"
    honest = file.read_bytes()
    for number in range(2, 18):
        for shift in (-200, -1, 8, 200):
            at = int.from_bytes(honest[number * 20 : number * 20 + 8], "big") + shift
            lie = at.to_bytes(8, "big")
            file.write_bytes(honest[: number * 20] + lie + honest[number * 20 + 8 :])
            assert read_table(root, **options) == rows
