"""A scan of a part, or through a small window, is that of the whole file."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.pipeline.planning import SplitTask, cut
from rocketstore.scan.scanner import scan_window
from support.golden import golden_segments
from support.scan_strategies import damaged_logs, record_fields, stored_record
from support.synthetic_log import SyntheticLog


class MemoryFile:
    """A file in memory that remembers how much was asked for at once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.longest_read = 0
        self.read_bytes = 0

    def read_into(self, position: int, view: memoryview) -> int:
        self.longest_read = max(self.longest_read, len(view))
        piece = self.data[position : position + len(view)]
        self.read_bytes += len(piece)
        view[: len(piece)] = piece
        return len(piece)


def evidence_of(batches):
    """Return everything that a scan says, with places of records as physical offsets."""
    rows, extents, runs, tails = [], [], [], []
    for batch in batches:
        columns = batch.columns
        first = len(rows)
        rows += [
            (at, stored_record(columns, row), columns.topic(row), columns.body(row))
            for row, at in enumerate(columns.physical_offset.tolist())
        ]
        runs += [first + row for row in batch.run_starts]
        extents += [(blank.physical_offset, "blank", blank.size) for blank in batch.blanks]
        extents += [
            (one.range.start, one.reason.name, one.range.stop, one.evidence) for one in batch.damage
        ]
        if batch.unwritten_at is not None:
            tails.append(batch.unwritten_at)
    return rows, sorted(extents), runs, tails, batches[-1].end_of_data


WINDOWS = st.none() | st.integers(256, 700)
"""How much of a file is seen at once; None for all of it, in memory."""


def windowed(data, window_bytes=None, **options):
    """Scan and keep what each batch says before the window moves on."""
    source = data
    if window_bytes is not None:
        source = data if isinstance(data, MemoryFile) else MemoryFile(data)
        options = {"size": len(source.data), "window_bytes": window_bytes} | options
    kept = []
    for batch in scan_window(source, **options):
        buffer = batch.columns.buffer.copy()
        columns = type(batch.columns)(buffer, batch.columns.cols, batch.columns.base)
        kept.append(batch._replace(columns=columns))
    return kept


@given(damaged_logs(), WINDOWS, st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_windows_and_batches_of_any_length_see_what_the_whole_file_shows(
    log, window_bytes, batch_records, check_crc, missing
):
    data = bytes(log.data)
    options = {"base": log.base, "file_size": len(data) + missing, "check_crc": check_crc}
    whole = list(scan_window(data, **options))
    seen = windowed(data, window_bytes, batch_records=batch_records, **options)
    assert evidence_of(seen) == evidence_of(whole)


def splits_of(data, window_bytes, edges, **options):
    batches = []
    for start, stop in pairwise(edges):
        batches += windowed(data, window_bytes, start=start, stop=stop, **options)
    return batches


@given(damaged_logs(), WINDOWS, st.data())
def test_splits_put_together_are_the_whole(log, window_bytes, data):
    content = bytes(log.data)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    edges = sorted({0, len(content), *cuts})
    options = {"base": log.base, "file_size": len(content) + data.draw(st.integers(0, 99))}
    whole = evidence_of(list(scan_window(content, **options)))
    # A look-back as long as the longest record here; bodies carry records with true addresses.
    batches = splits_of(content, window_bytes, edges, lookback_bytes=1500, **options)
    if not batches:
        assert whole[0] == []
        return
    found = evidence_of(batches)
    assert found[:3] == whole[:3]
    assert min(found[3], default=None) == min(whole[3], default=None)


@given(damaged_logs(), st.integers(1, 400), WINDOWS)
def test_a_tail_that_is_known_to_be_zeros_need_not_be_read(log, zeros, window_bytes):
    data_stop = len(log.data)
    log.zeros(zeros)
    data = bytes(log.data)
    whole = list(scan_window(data, base=log.base))
    seen = windowed(data, window_bytes, base=log.base, data_stop=data_stop)
    assert evidence_of(seen) == evidence_of(whole)


def test_memory_is_the_window_or_one_long_record_whatever_lengths_the_file_claims():
    log = SyntheticLog(0)
    for number in range(40):
        log.add(body=bytes([number]) * 500)
    log.add(body=b"long" * 2000)
    # A length that nobody vouches for: right magic, wrong address.
    log.garbage((900_000).to_bytes(4, "big") + b"\xda\xa3\x20\xa7" + b"\x01" * 300)
    for number in range(2000):
        log.add(body=bytes([number % 256]) * 500)
    data = bytes(log.data)
    source = MemoryFile(data)
    seen = windowed(source, 4096, base=0)
    assert evidence_of(seen) == evidence_of(list(scan_window(data, base=0)))
    assert source.longest_read < 8300
    assert source.read_bytes < 1.2 * len(data)


@pytest.mark.parametrize("claimed", [5000, 60_000, 2**31 - 1])
def test_a_record_that_claims_more_than_the_file_has_is_the_same_damage(claimed):
    log = SyntheticLog(0)
    log.add(body=b"a" * 500)
    at, _ = log.add(body=b"b" * 500).records[-1]
    for _ in range(40):
        log.add(body=b"c" * 500)
    log.data[at : at + 4] = claimed.to_bytes(4, "big")
    data = bytes(log.data)
    options = {"base": 0, "file_size": 65_536}
    seen = windowed(data, 700, **options)
    assert evidence_of(seen) == evidence_of(list(scan_window(data, **options)))


@pytest.mark.parametrize(("window_bytes", "more"), [(16_384, 3 * 16_384), (1 << 23, 66 * 1024)])
def test_a_split_reads_its_range_the_look_back_and_no_more(window_bytes, more):
    log = SyntheticLog(0)
    for number in range(3000):
        log.add(body=bytes([number % 256]) * 300)
    data = bytes(log.data)
    source = MemoryFile(data)
    middle = len(data) // 2
    windowed(
        source, window_bytes, base=0, start=middle, stop=middle + 100_000,
        lookback_bytes=20_000,
    )  # fmt: skip
    assert source.read_bytes < 100_000 + 20_000 + more


def test_a_file_that_was_cut_short_meanwhile_ends_in_an_unwritten_tail():
    log = SyntheticLog(0)
    for _ in range(20):
        log.add(body=b"x" * 100)
    size = len(log.data)
    source = MemoryFile(bytes(log.data[: log.records[10][0]]))
    seen = windowed(source, 1024, base=0, size=size)
    rows, extents, _, tails, end = evidence_of(seen)
    assert len(rows) == 10
    assert extents == []
    assert tails == [end] == [log.records[10][0]]


@pytest.mark.parametrize(
    ("max_split_bytes", "window_bytes"),
    [(777, None), (20_000, None), (65_536, None), (20_000, 4096), (65_536, 4096)],
)
def test_splits_of_golden_logs_put_together_are_the_whole(max_split_bytes, window_bytes):
    distinct = {(path.name, path.read_bytes()) for path in golden_segments()}
    assert len(distinct) > 20
    for name, data in distinct:
        base = int(name)
        edges = [*range(0, len(data), max_split_bytes), len(data)]
        found = evidence_of(splits_of(data, window_bytes, edges, base=base, lookback_bytes=3000))
        whole = evidence_of(list(scan_window(data, base=base)))
        assert found[:2] == whole[:2]


@given(damaged_logs())
def test_runs_start_exactly_after_damage(log):
    batches = list(scan_window(bytes(log.data), base=log.base))
    rows, _, runs, *_ = evidence_of(batches)
    ends = {damage.range.stop for batch in batches for damage in batch.damage}
    assert runs == [number for number, (at, *_) in enumerate(rows) if at in ends]


@given(st.lists(record_fields(is_whole=True), max_size=8), st.sampled_from([0, 4096, 1 << 33]))
def test_a_healthy_log_is_all_records(fields, base):
    log = SyntheticLog(base)
    for one in fields:
        # Zeros in texts may look like a sector that was never written.
        one.update({name: one[name].replace(b"\0", b"0") for name in ("topic", "properties")})
        log.add(**one)
    log.blank(64)
    (batch,) = scan_window(bytes(log.data), base=base)
    assert batch.damage == []
    assert batch.run_starts == []
    assert batch.blanks == [(base + len(log.data) - 64, 64)]
    assert batch.columns.physical_offset.tolist() == [base + at for at, _ in log.records]
    assert batch.columns.size.tolist() == [size for _, size in log.records]
    assert batch.columns.queue_offset.tolist() == [one["queue_offset"] for one in fields]
    for row, one in enumerate(fields):
        assert batch.columns.body(row) == one["body"]
        assert batch.columns.topic(row) == one["topic"].decode("utf-8", "replace")
        assert batch.columns.properties(row) == one["properties"]
        at, size = log.records[row]
        assert stored_record(batch.columns, row) == log.data[at : at + size]


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 5000))
def test_planned_splits_cover_a_range_without_gap_or_overlap(start, size, max_split_bytes):
    parts = cut(SplitTask(None, None, start, start + size), max_split_bytes)
    assert all(0 < part.byte_count <= max_split_bytes for part in parts)
    assert sum(part.byte_count for part in parts) == size
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert [part.start for part in parts[:1]] == [start] * bool(size)
