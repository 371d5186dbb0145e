"""`native.decode` and the plain codec: the same messages, None where the codec raises."""

import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.host import encode_host
from rocketstore.format.record import host_flags
from rocketstore.native.decode import decode
from support.guarded_memory import guarded
from support.leaks import assert_keeps_nothing
from support.oracle.record import MESSAGE_MAGIC_V2, decode_record
from support.scan_strategies import CHOICES, whole_properties
from support.synthetic_log import record_bytes

CHECKED, UNCHECKED = True, False

HOSTS = [encode_host("10.0.0.1:1234"), encode_host("[2001:db8::1]:51111"), b"\xff" * 8]
PIECES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"k1", b"\x01", b"\x02", b"\0", b"\xc3\xa9", b"\xe2\x82"]
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def number(chosen, bits):
    """Return a signed number of so many bits: of any size, or an end of the range."""
    end = 1 << bits - 1
    some = chosen.getrandbits(bits) - end
    return chosen.choice((some, some, some >> chosen.randrange(bits), 0, -1, -end, end - 1))


@st.composite
def records(draw, *, is_whole=False):
    """Draw a record with any numbers, hosts, topic and properties, and its physical offset."""
    chosen = draw(CHOICES)
    born_host, store_host = chosen.choice(HOSTS), chosen.choice(HOSTS)
    offset = draw(st.integers(0, 1 << 62))
    pieces = [*PIECES, chosen.randbytes(chosen.randint(0, 3))]
    topic = chosen.choice([b"orders", b"t" * 127, b"", chosen.randbytes(chosen.randint(0, 12))])
    record = record_bytes(
        topic=topic.rstrip(b"\0") if is_whole else topic,
        body=draw(st.binary(max_size=300)),
        properties=draw(whole_properties())
        if is_whole
        else b"".join(chosen.choices(pieces, k=chosen.randint(0, 20))),
        queue_id=number(chosen, 32),
        queue_offset=number(chosen, 64),
        physical_offset=offset,
        born_timestamp_ms=number(chosen, 64),
        born_host=born_host,
        store_timestamp_ms=number(chosen, 64),
        store_host=store_host,
        flag=number(chosen, 32),
        sys_flag=number(chosen, 32) & ~0x30 | host_flags(born_host, store_host),
        reconsume_times=number(chosen, 32),
        prepared_transaction_offset=number(chosen, 64),
    )
    return offset, record


def second_version(record: bytes) -> bytes:
    """Return the same record as 5.x writes it, with two bytes for the length of the topic."""
    hosts = sum(20 if struct.unpack_from(">i", record, 36)[0] & bit else 8 for bit in (0x10, 0x20))
    at = 72 + hosts + struct.unpack_from(">i", record, 68 + hosts)[0]
    start = struct.pack(">iI", len(record) + 1, MESSAGE_MAGIC_V2)
    return start + record[8:at] + b"\0" + record[at:]


def plainly(data, position, base, check_crc):
    try:
        return decode_record(data, position, base=base, check_crc=check_crc)
    except FormatError:
        return None


def check_equal(data, position, base, check_crc):
    expected = plainly(data, position, base, check_crc)
    found = decode(guarded(data), position, base, check_crc)
    assert found == expected
    if found is not None:
        assert list(found.properties.items()) == list(expected.properties.items())
        assert repr(found) == repr(expected)
        assert hash(found.message_id) == hash(expected.message_id)
    return found


@given(records(is_whole=True), st.binary(max_size=20), st.binary(max_size=20))
def test_an_intact_record_gives_the_same_message(drawn, before, behind):
    offset, record = drawn
    if offset < len(before):
        before = b""
    for version in (record, second_version(record)):
        data = before + version + behind
        assert check_equal(data, len(before), offset - len(before), check_crc=True) is not None


@given(records(), st.data())
def test_a_changed_record_gives_the_same_message_or_none(drawn, data):
    offset, record = drawn
    changed = bytearray(data.draw(st.sampled_from([record, second_version(record)])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=4))
        changed[at : at + len(patch)] = patch
    stop = data.draw(st.just(len(changed)) | st.integers(0, len(changed)))
    for check_crc in (CHECKED, UNCHECKED):
        check_equal(bytes(changed[:stop]), 0, offset, check_crc)


@given(st.binary(max_size=200), st.integers(-5, 250), int64)
def test_any_bytes_give_what_the_plain_way_gives(data, position, base):
    check_equal(data, position, base, check_crc=True)


def simple_record(body=b"hello", topic=b"orders") -> bytes:
    properties = b"KEYS\x01k1\x02TAGS\x01t"
    return record_bytes(0, topic=topic, body=body, properties=properties)


def test_every_kind_of_buffer_is_read_and_given_back():
    record = simple_record()
    expected = decode_record(record, 0, base=0)
    with mmap.mmap(-1, 4096) as mapping:
        mapping[: len(record)] = record
        grown = bytearray(record)
        for data in (record, grown, memoryview(record), mapping, memoryview(mapping)):
            assert decode(data, 0, 0, CHECKED) == expected
        grown += b"x"  # a buffer that is still lent could not grow
        del data


@pytest.mark.parametrize(
    "arguments", [("text", 0, 0), (memoryview(bytes(200))[::2], 0, 0), (bytes(9), "0", 0)]
)
def test_odd_calls_are_errors_of_python(arguments):
    with pytest.raises((TypeError, BufferError, OverflowError, ValueError)):
        decode(*arguments, CHECKED)


def test_decoding_leaves_nothing_behind():
    intact = [simple_record(bytes([n]) * n, b"t%d" % n) for n in range(1, 50)]
    broken = simple_record()[:-3] + b"abc"

    def decode_all():
        for record in intact:
            decode(record, 0, 0, CHECKED)
            decode(record, 0, 1, CHECKED)
            decode(b"\0" + record, 1, 0, CHECKED)
        decode(broken, 0, 0, CHECKED)

    assert_keeps_nothing(decode_all, 40, *intact, broken)
