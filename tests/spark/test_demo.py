"""The demo's second half, on a part of the flights."""

import itertools

import msgspec
import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.cli.demo import consume_half, flight_message, flights_file, read_flights
from rocketstore.cli.demo_pipeline import run_jobs

pytestmark = [pytest.mark.spark]

FLIGHTS = 3000


def test_the_demo_takes_the_flights_through_every_job(spark, tmp_path, capsys):
    encoder = msgspec.json.Encoder()
    config = StoreConfig(
        mapped_file_size_commit_log=512 * 1024, max_hash_slot_num=500, max_index_num=2000
    )
    store = tmp_path / "flights"
    with MessageStore.open(store, config) as opened:
        for row in itertools.islice(read_flights(flights_file()), FLIGHTS):
            opened.put(*flight_message(row, encoder))
        opened.wait_dispatched()
        consume_half(opened)
        ends = [opened.max_offset("EWR", queue_id) for queue_id in range(4)]
    assert run_jobs(spark, store, tmp_path) == 0
    printed = capsys.readouterr().out
    assert "3,000 records, 3,000 queue entries" in printed
    assert "nothing to find" in printed
    assert "the 3 files of the CommitLog, and 12 queue files made from it: identical" in printed
    behind = f"{sum(end - end // 2 for end in ends):,} of {sum(ends):,} messages of EWR"
    assert f"departures-board has {behind} still to read" in printed
    assert "UA from EWR: " in printed
    assert "the 12 queue files are identical" in printed
    carriers = [line.split() for line in printed.splitlines() if line.startswith(" " * 11 + "UA  ")]
    assert len(carriers) == 1
    assert int(carriers[0][1].replace(",", "")) > 400
    assert (tmp_path / "report" / "index.html").read_text().startswith("<!DOCTYPE html>")
