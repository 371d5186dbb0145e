"""Where splits begin, and what belongs to them."""

from rocketstore.scan.scanner import scan_window
from support.synthetic_log import SyntheticLog, record_bytes


def found(log, start, stop, **options):
    batches = scan_window(bytes(log.data), base=log.base, start=start, stop=stop, **options)
    return [offset for batch in batches for offset in batch.columns.queue_offset.tolist()]


def test_a_record_belongs_to_the_split_of_its_first_byte():
    log = SyntheticLog(4096)
    for number in range(4):
        log.add(queue_offset=number)
    second, third = log.records[1][0], log.records[2][0]
    for lookback_bytes in (1, 50, 10_000):
        options = {"lookback_bytes": lookback_bytes}
        assert found(log, 0, second + 1, **options) == [0, 1]
        assert found(log, second + 1, third, **options) == []
        assert found(log, second, third, **options) == [1]
        assert found(log, third, len(log.data), **options) == [2, 3]


def test_a_split_inside_a_body_does_not_believe_the_record_that_the_body_carries():
    log = SyntheticLog(4096)
    log.add(queue_offset=0).add(queue_offset=1)
    place = 4096 + len(log.data) + 88 + 10
    log.add(queue_offset=2, body=b"y" * 10 + record_bytes(place, queue_offset=77)).add(
        queue_offset=3
    )
    middle = log.records[2][0] + 90
    assert found(log, middle, len(log.data)) == [3]
    # Nothing believable starts one byte before, so the search goes further back by itself.
    assert found(log, middle, len(log.data), lookback_bytes=1) == [3]


def test_a_split_after_a_blank_is_empty():
    log = SyntheticLog(0).add().blank(1000)
    for lookback_bytes in (1, 5000):
        (batch,) = scan_window(
            bytes(log.data), base=0, start=300, stop=600, lookback_bytes=lookback_bytes
        )
        assert (len(batch.columns), batch.blanks, batch.damage) == (0, [], [])


def test_a_split_of_zeros_knows_whether_a_record_follows():
    log = SyntheticLog(0).add()
    end = len(log.data)
    log.zeros(5000)
    (tail,) = scan_window(bytes(log.data), base=0, start=1000, stop=2000)
    assert (tail.damage, tail.unwritten_at) == ([], end)
    log.add()
    (hole,) = scan_window(bytes(log.data), base=0, start=0, stop=end + 1)
    assert [tuple(damage.range) for damage in hole.damage] == [(end, end + 5000)]
    assert hole.unwritten_at is None
    (rest,) = scan_window(bytes(log.data), base=0, start=1000, stop=2000)
    assert (rest.damage, rest.unwritten_at) == ([], None)
