"""Compiled batch kernel and plain-Python reference: the same bytes, or the same refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import DELAY, INNER_MULTI_DISPATCH, decode_properties
from rocketstore.format.record import decode_record
from rocketstore.native.batch_state import (
    BATCH_COLUMN_COUNT,
    COUNT_SHIFT,
    MESSAGE_FIXED_SIZE,
    NO_TIMESTAMP,
    BatchColumn,
    BatchPlan,
    BatchRefusal,
)
from support.oracle import batch as reference

compiled = pytest.importorskip("rocketstore.native.batch")

V4_HOST = bytes([10, 0, 0, 1, 0, 0, 4, 210])
V6_HOST = bytes(range(16)) + bytes([0, 0, 4, 210])
TOPIC = b"orders"
ROOM = 20_000
NOW_MS = 1_700_000_000_123

INT32 = st.integers(-(2**31), 2**31 - 1)
BLOCKS = st.sampled_from(
    [b"", b"TAGS\x01a", b"TAGS\x01a\x02", b"\x02a\x01", b"a\x01b\0", "schlüssel\x01ß".encode()]
)
MESSAGES = st.lists(st.tuples(INT32, st.binary(max_size=200), BLOCKS), max_size=20)
SPECIAL_PARTS = st.lists(
    st.sampled_from(
        [
            b"DELAY\x013", b"DELAY\x01", b"DELAY", b"DELAYED\x013", b"aDELAY\x013",
            b"x\x01DELAY\x01", b"INNER_MULTI_DISPATCH\x01q", b"INNER_MULTI_QUEUE_OFFSET\x010",
            b"INNER_", b"", b"k\x01v", b"a-longer-name\x01and a longer value", b"seven77",
            b"eight888",
        ]
    ),
    max_size=6,
).map(lambda parts: b"\x02".join([*parts, b"k\x01v"]))  # fmt: skip


class Batch:
    """A source with everything that its plan names."""

    def __init__(
        self,
        payload: bytes,
        *,
        count: int = -1,
        is_checked: bool = True,
        born: int = NO_TIMESTAMP,
        born_host: bytes = V4_HOST,
        store_host: bytes = V4_HOST,
        more: bytes = b"",
    ) -> None:
        self.source = payload + born_host + store_host + TOPIC + more
        size = len(payload)
        sys_flag = (len(born_host) == 20) * 0x10 | (len(store_host) == 20) * 0x20
        store_host_at = size + len(born_host)
        topic_at = store_host_at + len(store_host)
        self.plan = [0] * len(BatchPlan)
        for place, value in (
            (BatchPlan.MESSAGE_COUNT, count),
            (BatchPlan.BATCH_SIZE, size),
            (BatchPlan.IS_CHECKED, int(is_checked)),
            (BatchPlan.SYS_FLAG, sys_flag),
            (BatchPlan.BORN_TIMESTAMP, born),
            (BatchPlan.BORN_HOST_AT, size),
            (BatchPlan.RECONSUME_TIMES, 3),
            (BatchPlan.STORE_HOST_AT, store_host_at),
            (BatchPlan.STORE_HOST_SIZE, len(store_host)),
            (BatchPlan.TOPIC_AT, topic_at),
            (BatchPlan.TOPIC_SIZE, len(TOPIC)),
            (BatchPlan.MORE_AT, topic_at + len(TOPIC)),
            (BatchPlan.MORE_SIZE, len(more)),
        ):
            self.plan[place] = value

    def write(
        self,
        module,
        *,
        table: np.ndarray | None = None,
        numbers: tuple[int, int, int, int] = (0, 0, NOW_MS, 0),
        position: int = 0,
        room: int = ROOM,
    ) -> tuple[int, np.ndarray, bytes]:
        rows = len(self.source) // MESSAGE_FIXED_SIZE + 1
        table = np.full((rows, BATCH_COLUMN_COUNT), -7, np.int64) if table is None else table.copy()
        target = np.zeros(room, np.uint8)
        source = np.frombuffer(self.source, np.uint8)
        done = module.write_batch(source, table, tuple(self.plan), numbers, target, position)
        return done, table, target.tobytes()

    def write_both(self, **options) -> tuple[int, np.ndarray, bytes]:
        """Return what both made of it, which is the same."""
        (done, table, content), (expected, rows, other) = (
            self.write(module, **options) for module in (compiled, reference)
        )
        assert done == expected
        assert content == other
        if done > 0:
            assert np.array_equal(table[: done >> COUNT_SHIFT], rows[: done >> COUNT_SHIFT])
        else:
            assert not any(content)
        return done, table, content


@settings(max_examples=300)
@given(
    messages=MESSAGES,
    more=BLOCKS.filter(lambda block: block[-1:] != b"\0"),
    position=st.integers(0, ROOM),
    born=st.sampled_from([NO_TIMESTAMP, 0, 1_700_000_000_000]),
    hosts=st.tuples(st.sampled_from([V4_HOST, V6_HOST]), st.sampled_from([V4_HOST, V6_HOST])),
    numbers=st.tuples(INT32, st.integers(0, 2**40), st.integers(0, 2**60)),
)
def test_a_client_s_batch_becomes_the_same_records(messages, more, position, born, hosts, numbers):
    queue_id, queue_offset, base = numbers
    batch = Batch(
        encode_client_batch(messages), born=born, born_host=hosts[0], store_host=hosts[1], more=more
    )
    done, table, content = batch.write_both(
        numbers=(queue_id, queue_offset, NOW_MS, base), position=position
    )
    if done <= BatchRefusal.NO_ROOM:
        assert BatchRefusal.NO_ROOM - done > ROOM - 8 - position
        return
    if not messages:
        assert done == BatchRefusal.EMPTY
        return
    assert done >> COUNT_SHIFT == len(messages)
    at = position
    for number, (flag, body, block) in enumerate(messages):
        record = decode_record(content, at, base=base)
        assert (record.flag, record.raw_body) == (flag, body)
        assert record.raw_properties.startswith(block)
        assert record.raw_properties.endswith(more)
        assert (record.queue_id, record.queue_offset) == (queue_id, queue_offset + number)
        assert record.born_timestamp_ms == (NOW_MS if born == NO_TIMESTAMP else born)
        assert (record.topic, record.reconsume_times) == ("orders", 3)
        assert record.size == table[number, BatchColumn.RECORD_SIZE]
        at += record.size
    assert at == position + (done & 0xFFFFFFFF)
    assert not any(content[at:])


@given(st.binary(max_size=300) | MESSAGES.map(encode_client_batch), st.integers(0, 400), INT32)
def test_anything_is_parsed_alike_without_leaving_the_batch(payload, cut, number):
    payload = payload[:cut]
    if len(payload) >= 20 and cut % 3 == 0:
        payload = payload[:16] + number.to_bytes(4, "big", signed=True) + payload[20:]
    Batch(payload).write_both()


@given(st.lists(st.tuples(st.just(0), st.just(b"DELAY\x019"), SPECIAL_PARTS), max_size=4))
def test_what_must_be_looked_at_closer_is_found_and_nothing_is_written(messages):
    batch = Batch(encode_client_batch(messages), is_checked=False)
    done, _, _ = batch.write_both()
    names = {name for _, _, block in messages for name in decode_properties(block)}
    if names & {DELAY, INNER_MULTI_DISPATCH}:
        assert done == BatchRefusal.SPECIAL
    batch.plan[BatchPlan.IS_CHECKED] = 1
    done, _, _ = batch.write_both()
    assert done == (len(messages) << COUNT_SHIFT | done & 0xFFFFFFFF if messages else -4)


@given(st.lists(st.tuples(*[st.integers(-5, 60)] * BATCH_COLUMN_COUNT), min_size=1, max_size=4))
def test_a_table_of_anything_is_refused_alike_or_written_alike(rows):
    table = np.array(rows, np.int64)
    table[:, BatchColumn.SYS_FLAG] &= 0x1F  # the store host is IPv4
    Batch(bytes(range(50)), count=len(rows)).write_both(table=table)


@given(st.tuples(*[st.integers(-5, 60)] * len(BatchPlan)))
def test_a_plan_of_anything_is_refused_alike_or_written_alike(plan):
    batch = Batch(encode_client_batch([(0, b"body", b"k\x01v")]))
    batch.plan = list(plan)
    batch.write_both(table=np.zeros((3, BATCH_COLUMN_COUNT), np.int64))


def test_properties_that_are_too_long_together_are_refused_before_anything_is_written():
    messages = [(0, b"", b""), (0, b"", b"n\x01".ljust(20_000, b"x"))]
    batch = Batch(encode_client_batch(messages), more=b"y" * 12_767)
    assert batch.write_both(room=100_000)[0] == BatchRefusal.PROPERTIES_TOO_LONG
    batch = Batch(encode_client_batch(messages), more=b"y" * 12_766)
    assert batch.write_both(room=100_000)[0] > 0


@pytest.mark.parametrize("module", [compiled, reference])
def test_a_batch_that_is_cut_off_says_where(module):
    payload = encode_client_batch([(0, b"abc", b""), (0, b"def", b"k\x01v")])
    first_size = MESSAGE_FIXED_SIZE + 3
    done, _, _ = Batch(payload[:-1]).write(module)
    assert done == BatchRefusal.CUT_OFF - first_size


@pytest.mark.parametrize("module", [compiled, reference])
@pytest.mark.parametrize("block", [b"a\x01\xff", b"no name", b"\x02", b"\0\0"])
def test_properties_that_readers_would_call_damage_are_refused(module, block):
    payload = encode_client_batch([(0, b"abc", b"k\x01v"), (0, b"def", block)])
    done, _, content = Batch(payload).write(module)
    assert done == BatchRefusal.BAD_PROPERTIES
    assert not any(content)


@pytest.mark.parametrize("module", [compiled, reference])
def test_without_room_the_size_needed_is_told(module):
    batch = Batch(encode_client_batch([(0, b"abc", b"")]))
    size = 91 + 3 + len(TOPIC)
    assert batch.write(module, room=size + 7)[0] == BatchRefusal.NO_ROOM - size
    assert batch.write(module, room=size + 8)[0] == 1 << COUNT_SHIFT | size


class WrittenParts:
    """A target that notes which parts of it are written, and in which order."""

    def __init__(self) -> None:
        self.data = self
        self.parts: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return ROOM

    def __setitem__(self, part: slice, content: bytes) -> None:
        assert len(content) == part.stop - part.start
        self.parts.append((part.start, part.stop))


def test_plain_records_are_written_one_by_one_and_each_length_last():
    """So a writer that is killed amid a batch leaves no gap in front of an intact record."""
    batch = Batch(encode_client_batch([(0, b"a" * size, b"") for size in (90, 400, 10)]))
    table = np.zeros((3, BATCH_COLUMN_COUNT), np.int64)
    target = WrittenParts()
    source = np.frombuffer(batch.source, np.uint8)
    reference.write_batch(source, table, tuple(batch.plan), (0, 0, NOW_MS, 0), target, 50)
    at, expected = 50, []
    for size in map(int, table[:, BatchColumn.RECORD_SIZE]):
        expected += [(at + 4, at + size), (at, at + 4)]
        at += size
    assert target.parts == expected
