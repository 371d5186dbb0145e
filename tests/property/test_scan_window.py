"""A scan through a small window is the scan of the whole file."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.scan.scanner import scan_window
from support.golden import golden_segments
from support.scan_strategies import damaged_logs
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
            (columns.record(row).tobytes(), columns.topic(row), columns.body(row))
            for row in range(len(columns))
        ]
        runs += [first + row for row in batch.run_starts]
        extents += [(blank.physical_offset, "blank", blank.size) for blank in batch.blanks]
        extents += [
            (one.range.start, one.reason.name, one.range.stop, one.evidence) for one in batch.damage
        ]
        if batch.unwritten_at is not None:
            tails.append(batch.unwritten_at)
    return rows, sorted(extents), runs, tails, batches[-1].end_of_data


def windowed(source, **options):
    """Scan and keep what each batch says before the window moves on."""
    kept = []
    for batch in scan_window(source, **options):
        buffer = batch.columns.buffer.copy()
        columns = type(batch.columns)(buffer, batch.columns.cols, batch.columns.base)
        kept.append(batch._replace(columns=columns))
    return kept


@given(damaged_logs(), st.integers(256, 700), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_a_window_of_any_length_sees_what_the_whole_file_shows(
    log, window_bytes, batch_records, check_crc, missing
):
    data = bytes(log.data)
    options = {"base": log.base, "file_size": len(data) + missing, "check_crc": check_crc}
    whole = list(scan_window(data, **options))
    seen = windowed(
        MemoryFile(data), size=len(data), start=0, stop=len(data),
        window_bytes=window_bytes, batch_records=batch_records, **options,
    )  # fmt: skip
    assert evidence_of(seen) == evidence_of(whole)


def splits_of(data, base, edges, **options):
    batches = []
    for start, stop in pairwise(edges):
        batches += windowed(
            MemoryFile(data), base=base, size=len(data), start=start, stop=stop, **options
        )
    return batches


def joined(extents):
    """Join the pieces of one damage; evidence is of each piece's own beginning."""
    parts = []
    for start, kind, end, *_ in extents:
        if parts and kind != "blank" and parts[-1][1:] == (kind, start):
            parts[-1] = (parts[-1][0], kind, end)
        else:
            parts.append((start, kind, end))
    return parts


@given(damaged_logs(), st.integers(256, 700), st.data())
def test_windowed_splits_put_together_are_the_whole(log, window_bytes, data):
    content = bytes(log.data)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    edges = sorted({0, len(content), *cuts})
    file_size = len(content) + data.draw(st.integers(0, 99))
    whole = evidence_of(list(scan_window(content, base=log.base, file_size=file_size)))
    batches = splits_of(
        content, log.base, edges, lookback_bytes=1500, file_size=file_size,
        window_bytes=window_bytes,
    )  # fmt: skip
    if not batches:
        assert whole[0] == []
        return
    found = evidence_of(batches)
    assert found[0] == whole[0]
    assert joined(found[1]) == joined(whole[1])
    assert found[2] == whole[2]
    assert min(found[3], default=None) == min(whole[3], default=None)


@given(damaged_logs(), st.integers(256, 700), st.data())
def test_whole_damage_is_in_exactly_one_split(log, window_bytes, data):
    content = bytes(log.data)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    edges = sorted({0, len(content), *cuts})
    whole = evidence_of(list(scan_window(content, base=log.base)))
    batches = splits_of(
        content, log.base, edges, lookback_bytes=1500, window_bytes=window_bytes, whole_damage=True
    )
    if batches:
        assert evidence_of(batches)[1] == whole[1]


@given(damaged_logs(), st.integers(1, 400), st.integers(256, 700))
def test_a_tail_that_is_known_to_be_zeros_need_not_be_read(log, zeros, window_bytes):
    data_stop = len(log.data)
    log.zeros(zeros)
    data = bytes(log.data)
    whole = list(scan_window(data, base=log.base))
    seen = windowed(
        MemoryFile(data), base=log.base, size=len(data), start=0, stop=len(data),
        data_stop=data_stop, window_bytes=window_bytes,
    )  # fmt: skip
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
    seen = windowed(source, base=0, size=len(data), start=0, stop=len(data), window_bytes=4096)
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
    seen = windowed(
        MemoryFile(data), size=len(data), start=0, stop=len(data), window_bytes=700, **options
    )
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
        source, base=0, size=len(data), start=middle, stop=middle + 100_000,
        lookback_bytes=20_000, window_bytes=window_bytes,
    )  # fmt: skip
    assert source.read_bytes < 100_000 + 20_000 + more


def test_a_file_that_was_cut_short_meanwhile_ends_in_an_unwritten_tail():
    log = SyntheticLog(0)
    for _ in range(20):
        log.add(body=b"x" * 100)
    size = len(log.data)
    source = MemoryFile(bytes(log.data[: log.records[10][0]]))
    seen = windowed(source, base=0, size=size, start=0, stop=size, window_bytes=1024)
    rows, extents, _, tails, end = evidence_of(seen)
    assert len(rows) == 10
    assert extents == []
    assert tails == [end] == [log.records[10][0]]


@pytest.mark.parametrize("max_split_bytes", [20_000, 65_536])
def test_windowed_splits_of_golden_logs_are_the_whole(max_split_bytes):
    distinct = {(path.name, path.read_bytes()) for path in golden_segments()}
    assert len(distinct) > 20
    for name, data in distinct:
        base = int(name)
        edges = [*range(0, len(data), max_split_bytes), len(data)]
        found = evidence_of(splits_of(data, base, edges, lookback_bytes=3000, window_bytes=4096))
        whole = evidence_of(list(scan_window(data, base=base)))
        assert found[0] == whole[0]
        assert joined(found[1]) == joined(whole[1])
