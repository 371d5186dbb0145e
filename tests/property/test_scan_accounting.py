"""A scan accounts for every byte, and splits put together are the whole."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.pipeline.planning import SplitTask, cut
from rocketstore.scan.scanner import scan_window
from support.golden import golden_segments
from support.scan_strategies import damaged_logs, record_fields
from support.synthetic_log import SyntheticLog


def extents(batches):
    """Return all (start, stop, kind) in physical order, pieces of one damage joined."""
    found = []
    for batch in batches:
        columns = batch.columns
        found += [
            (at, at + size, "record")
            for at, size in zip(
                columns.physical_offset.tolist(), columns.size.tolist(), strict=True
            )
        ]
        found += [(blank.physical_offset, blank.physical_offset + blank.size, "blank")
                  for blank in batch.blanks]  # fmt: skip
        found += [(*damage.range, damage.reason.name) for damage in batch.damage]
    found.sort()
    joined = []
    for start, stop, kind in found:
        if joined and joined[-1][1:] == (start, kind) and kind not in {"record", "blank"}:
            joined[-1] = (joined[-1][0], stop, kind)
        else:
            joined.append((start, stop, kind))
    return joined


def rows(batches):
    return np.concatenate([batch.columns.cols for batch in batches]).tolist()


@given(damaged_logs(), st.integers(1, 5), st.booleans(), st.integers(0, 100))
def test_every_byte_ends_in_exactly_one_record_blank_damage_or_the_zero_tail(
    log, batch_records, check_crc, missing
):
    data = bytes(log.data)
    batches = list(
        scan_window(
            data,
            base=log.base,
            file_size=len(data) + missing,
            check_crc=check_crc,
            batch_records=batch_records,
        )
    )
    reached = log.base
    for start, stop, _ in extents(batches):
        assert start == reached
        assert stop > start
        reached = stop
    tail = data[reached - log.base :]
    assert not any(tail)
    assert batches[-1].unwritten_at == (reached if tail else None)
    assert all(batch.unwritten_at is None for batch in batches[:-1])


@given(damaged_logs())
def test_batches_of_any_size_are_the_same_scan(log):
    data = bytes(log.data)
    whole = list(scan_window(data, base=log.base))
    small = list(scan_window(data, base=log.base, batch_records=1))
    assert rows(whole) == rows(small)
    assert extents(whole) == extents(small)
    assert run_starts(whole) == run_starts(small)
    assert whole[-1].end_of_data == small[-1].end_of_data


def run_starts(batches):
    return [
        int(batch.columns.physical_offset[row]) for batch in batches for row in batch.run_starts
    ]


@given(damaged_logs())
def test_runs_start_exactly_after_damage(log):
    batches = list(scan_window(bytes(log.data), base=log.base))
    whole = extents(batches)
    behind_damage = [
        start
        for (_, _, before), (start, _, kind) in pairwise(whole)
        if kind == "record" and before not in {"record", "blank"}
    ]
    assert run_starts(batches) == behind_damage


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
        assert batch.columns.record(row) == log.data[at : at + size]


def merged_splits(data, base, edges, **options):
    batches = []
    for start, stop in pairwise(edges):
        batches += scan_window(data, base=base, start=start, stop=stop, **options)
    return batches


@given(damaged_logs(), st.data())
def test_splits_put_together_are_the_whole(log, data):
    content = bytes(log.data)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    file_size = len(content) + data.draw(st.integers(0, 99))
    edges = sorted({0, len(content), *cuts})
    # A look-back as long as the longest record here; bodies carry records with true addresses.
    batches = merged_splits(content, log.base, edges, lookback_bytes=1500, file_size=file_size)
    whole = list(scan_window(content, base=log.base, file_size=file_size))
    assert rows(batches) == rows(whole) if batches else rows(whole) == []
    assert extents(batches) == extents(whole)
    assert run_starts(batches) == run_starts(whole)
    tails = [batch.unwritten_at for batch in batches if batch.unwritten_at is not None]
    assert min(tails, default=None) == whole[-1].unwritten_at


@pytest.mark.parametrize("max_split_bytes", [777, 20_000, 65_536])
def test_splits_of_golden_logs_put_together_are_the_whole(max_split_bytes):
    distinct = {}
    for path in golden_segments():
        data = path.read_bytes()
        distinct.setdefault((path.name, data), path)
    assert len(distinct) > 20
    for name, data in distinct:
        base = int(name)
        edges = [*range(0, len(data), max_split_bytes), len(data)]
        batches = merged_splits(data, base, edges, lookback_bytes=3000)
        whole = list(scan_window(data, base=base))
        assert rows(batches) == rows(whole)
        assert extents(batches) == extents(whole)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 5000))
def test_planned_splits_cover_a_range_without_gap_or_overlap(start, size, max_split_bytes):
    parts = cut(SplitTask(None, None, start, start + size), max_split_bytes)
    assert all(0 < part.byte_count <= max_split_bytes for part in parts)
    assert sum(part.byte_count for part in parts) == size
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert [part.start for part in parts[:1]] == [start] * bool(size)
