"""Table ``reads`` accounts for every written byte of the log, with what a query does there."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from rocketstore.errors import ConfigError
from rocketstore.pipeline.streaming import live_queues
from rocketstore.places import files
from support.pipeline_tables import read_table
from support.store_files import StoreFiles
from support.stream_run import StreamRun

FILE_BYTES = 65_536


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Ten topics, each written in one go."""
    made = StoreFiles(
        tmp_path_factory.mktemp("reads") / "store", log_file_size=FILE_BYTES, queue_file_size=2000
    )
    for topic in range(10):
        for record in range(200):
            made.put(f"Topic{topic}", bytes(100), queue_id=record % 2)
    return made.root


def sums(rows):
    total: Counter[str] = Counter()
    for row in rows:
        total[row["way"]] += row["size"]
        total.update({name: value for name, value in row.items() if isinstance(value, int)})
    return total


def whole_size(root):
    """Bytes of all records and BLANKs; the end of the last file was never written."""
    last = max((root / "commitlog").iterdir())
    return int(last.name) + len(last.read_bytes().rstrip(b"\0"))


def test_a_query_without_a_choice_reads_all_of_it(store):
    rows = read_table(store, table="reads")
    found = sums(rows)
    assert (found["records"], found["rows"]) == (2000, 2000)
    assert found["pruned"] == found["damagedBytes"] == found["resyncs"] == 0
    assert found["scanned"] == found["size"] >= whole_size(store)
    assert found["bytesRead"] >= whole_size(store)


@pytest.mark.parametrize(("split", "searches"), [("1g", 0), ("20000", 1)])
def test_what_is_pruned_and_what_is_read_are_together_the_log(store, split, searches):
    rows = read_table(store, table="reads", subscribe="Topic4", maxSplitBytes=split)
    found = sums(rows)
    assert found["rows"] == 200
    assert found["size"] >= whole_size(store)
    assert found["pruned"] > 0.8 * whole_size(store)
    assert found["scanned"] + found["by entries"] + found["pruned"] == found["size"]
    assert sum(row["bytesRead"] + row["records"] for row in rows if row["way"] == "pruned") == 0
    assert (found["resyncs"] > 0) >= bool(searches)
    ranges = sorted((row["physicalOffset"], row["size"]) for row in rows)
    for (at, size), (following, _) in pairwise(ranges):
        assert at + size <= following


def test_bytes_read_are_those_that_the_disk_was_asked_for(store, monkeypatch):
    asked = []
    read_into = files.LocalFile.read_into

    def counted(self, position, view):
        asked.append(read_into(self, position, view))
        return asked[-1]

    monkeypatch.setattr(files.LocalFile, "read_into", counted)
    for choice in ({}, {"subscribe": "Topic4"}, {"subscribe": "Topic4", "maxSplitBytes": "3000"}):
        asked.clear()
        assert sums(read_table(store, table="reads", **choice))["bytesRead"] == sum(asked)


def test_damage_is_counted_and_stops_nothing(store, tmp_path):
    made = StoreFiles(tmp_path / "store", log_file_size=FILE_BYTES, queue_file_size=2000)
    for _ in range(300):
        made.put("Topic", bytes(100))
    log = made.root / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        for at in (5_000, 30_000):
            file.seek(at)
            file.write(bytes(500))
    (damage,) = [sums(read_table(made.root, table="reads", maxSplitBytes="1g"))]
    listed = read_table(made.root, table="damage")
    assert damage["damagedRanges"] == len(listed) == 2
    assert damage["damagedBytes"] == sum(row["size"] for row in listed)
    assert damage["resyncs"] == 2
    assert 280 < damage["rows"] == damage["records"] < 300


@pytest.mark.parametrize("choice", [{}, {"subscribe": "Topic4"}])
def test_what_a_batch_of_a_stream_read_is_reported_by_its_end(store, monkeypatch, choice):
    monkeypatch.setattr(live_queues, "LONG_BYTES", 0)
    run = StreamRun(store, startingOffsets="earliest", maxOffsetsPerTrigger=150, **choice)
    for _ in range(2):
        rows = run.batch()
        end = run.checkpoint.offsets[-1]
        table = read_table(store, table="reads", endOffset=end, **choice)
        found = sums(table)
        (place,) = json.loads(end)[run.kind].values()
        assert found["rows"] == len(rows)
        assert found["size"] == place["offset"] - place["since"]
        assert min(row["physicalOffset"] for row in table) == place["since"]
        # Once the batch is planned, the next progress has what the driver knows of it.
        run.plan_next()
        (shown,) = run.reader.reportLatestOffset()[run.kind].values()
        assert shown["before"] == {"bytes": found["scanned"], "pruned": found["pruned"]}


def test_an_end_of_no_batch_is_refused_by_name(store):
    end = '{"version":1,"log":{"store":{"offset":4711,"since":0}}}'
    for wrong, choice in (("{", {}), ("[1]", {}), (end, {"subscribe": "Topic4"})):
        with pytest.raises(ConfigError, match="endOffset is not of a batch of a stream"):
            read_table(store, table="reads", endOffset=wrong, **choice)
