"""record: a message that stands where it says it stands, or the reason why none does."""

import importlib.util
import re
import struct
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.format.host import encode_host
from rocketstore.format.record import (
    BLANK_MAGIC,
    END_FILE_MIN_BLANK_SIZE,
    FIELDS,
    FIXED_SIZE,
    MESSAGE_MAGIC_V1,
    body_crc,
    encode_blank,
    host_flags,
    record_size,
)
from rocketstore.scan.columns import StopReason
from support.oracle.record import MESSAGE_MAGIC_V2, decode_record
from support.page_tables import DOCS
from support.scan_strategies import whole_properties
from support.synthetic_log import record_bytes
from support.vectors import vector

HOST_V4 = encode_host("10.0.0.1:1234")
HOST_V6 = encode_host("[2001:db8::1]:51111")

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.sampled_from([HOST_V4, HOST_V6]) | st.builds(
    lambda address, port: address.packed + port.to_bytes(4, "big"),
    st.ip_addresses(),
    st.integers(0, 65535),
)
topics = st.text("%|abcXYZ019_-", min_size=1, max_size=127).map(str.encode)


@st.composite
def record_fields(draw):
    """Draw keyword arguments of `record_bytes` for any record that 4.9 could write."""
    born_host, store_host = draw(hosts), draw(hosts)
    return {
        "topic": draw(topics),
        "body": draw(st.binary(max_size=100)),
        "properties": draw(whole_properties()),
        "queue_id": draw(int32),
        "queue_offset": draw(int64),
        "physical_offset": draw(st.integers(0, (1 << 62))),
        "born_timestamp_ms": draw(int64),
        "born_host": born_host,
        "store_timestamp_ms": draw(int64),
        "store_host": store_host,
        "flag": draw(int32),
        "sys_flag": draw(int32) & ~0x30 | host_flags(born_host, store_host),
        "reconsume_times": draw(int32),
        "prepared_transaction_offset": draw(int64),
    }


def fields(**change):
    """Return arguments of `record_bytes` for a plain record, with changes."""
    return {
        "topic": b"TopicTest",
        "body": b"Hello RocketMQ 0",
        "properties": b"TAGS\x01TagA\x02KEYS\x01k1",
        "queue_id": 1,
        "queue_offset": 5,
        "physical_offset": 847067,
        "born_timestamp_ms": 1600000000000,
        "born_host": encode_host("10.0.0.1:1234"),
        "store_timestamp_ms": 1600000000123,
        "store_host": encode_host("192.168.42.131:10911"),
    } | change


def record_v2(topic=b"t" * 130, **more):
    """Return a record of 5.x at physical offset 0."""
    return record_bytes(0, topic=topic, magic=MESSAGE_MAGIC_V2, **more)


def patched(record, offset, code, value):
    """Return `record` with the number at `offset` replaced."""
    changed = bytearray(record)
    struct.pack_into(f">{code}", changed, offset, value)
    return bytes(changed)


# --- the format ---------------------------------------------------------------------------------


def test_record_is_what_java_writes():
    assert record_bytes(**fields()) == vector("record/one-message")


def test_record_of_java_is_decoded():
    message = decode_record(vector("record/one-message"), 0, base=847067)
    assert message.to_dict() == {
        "topic": "TopicTest",
        "queueId": 1,
        "queueOffset": 5,
        "physicalOffset": 847067,
        "size": 133,
        "sysFlag": 0,
        "flag": 0,
        "bornTimestamp": 1600000000000,
        "bornHost": "10.0.0.1:1234",
        "storeTimestamp": 1600000000123,
        "storeHost": "192.168.42.131:10911",
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
        "bodyCRC": 613185359,
        "bodySize": 16,
        "body": "SGVsbG8gUm9ja2V0TVEgMA==",
        "properties": {"TAGS": "TagA", "KEYS": "k1"},
        "tags": "TagA",
        "keys": ["k1"],
        "uniqKey": None,
        "msgId": "C0A82A8300002A9F00000000000CECDB",
    }


def test_ipv6_hosts_shift_what_follows_them():
    message = decode_record(vector("record/ipv6-hosts"), 0, base=670)
    assert message.born_host == "[2001:db8:85a3::8a2e:370:7334]:51111"
    assert message.store_host == "[fe80::1234:5678:9abc:def0]:10911"
    assert message.store_timestamp_ms == 1795237418951
    assert message.raw_body == b"body"
    assert message.properties["KEYS"] == "v6k4"
    assert message.message_id == "FE80000000000000123456789ABCDEF000002A9F000000000000029E"


def test_compressed_body_and_unicode_properties_are_decoded():
    message = decode_record(vector("record/compressed-unicode"), 0, base=0)
    assert message.is_compressed
    assert message.body == b""
    assert message.raw_body == zlib.compress(b"", 5)
    assert message.properties["中文"] == "值 \U0001f600 0"


def test_empty_body_is_a_message():
    message = decode_record(vector("record/empty-body"), 0, base=236206)
    assert (message.raw_body, message.body, message.body_crc) == (b"", b"", 0)
    assert message.keys == ("mk322", "shared2")


def test_v2_record_with_a_long_topic_is_read():
    message = decode_record(vector("record/v2-long-topic"), 0, base=0)
    assert message.topic == "t" * 130
    assert message.size == 92 + 130 + 16 + 10
    assert message.properties == {"TAGS": "TagA"}
    assert message.raw_body == b"Hello RocketMQ 0"


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("topic_size", [0, 1, 127, 128, 255, 256, 32767])
def test_v2_topic_size_takes_two_bytes_with_any_hosts(sys_flag, topic_size):
    record = record_v2(topic=b"t" * topic_size, sys_flag=sys_flag, properties=b"a\x01b")
    message = decode_record(record, 0, base=0)
    assert message.topic == "t" * topic_size
    assert message.properties == {"a": "b"}
    assert message.size == len(record)


def test_magics_are_the_numbers_java_prints():
    assert MESSAGE_MAGIC_V1 - 2**32 == -626843481
    assert MESSAGE_MAGIC_V2 - 2**32 == -626843477
    assert BLANK_MAGIC - 2**32 == -875286124


def test_body_crc_is_masked_to_31_bits():
    assert body_crc(b"Hello RocketMQ 0") == 613185359
    assert body_crc(b"Hello RocketMQ 1") == 1401636825
    assert body_crc(b"") == 0
    assert zlib.crc32(b"abcd") > 0x7FFFFFFF
    assert body_crc(memoryview(b"abcd")) == zlib.crc32(b"abcd") & 0x7FFFFFFF


def test_body_crc_needs_no_extra_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    specification = importlib.util.find_spec("rocketstore.format.record")
    plain = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(plain)
    assert plain.body_crc.__globals__["_crc32"] is zlib.crc32
    assert plain.body_crc(b"Hello RocketMQ 0") == 613185359


@pytest.mark.parametrize(
    ("sys_flag", "fixed"), [(0, 91), (0x10, 103), (0x20, 103), (0x30, 115), (0x70F, 91)]
)
def test_record_size_grows_by_12_for_each_ipv6_host(sys_flag, fixed):
    size = record_size(body_size=10, topic_size=5, properties_size=7, sys_flag=sys_flag)
    assert size == fixed + 22


# --- inverse ------------------------------------------------------------------------------------


@given(record_fields(), st.integers(0, 40), st.binary(max_size=9))
def test_what_is_encoded_is_decoded_again(drawn, position, behind):
    record = record_bytes(**drawn)
    assert len(record) == record_size(
        body_size=len(drawn["body"]),
        topic_size=len(drawn["topic"]),
        properties_size=len(drawn["properties"]),
        sys_flag=drawn["sys_flag"],
    )
    base = drawn["physical_offset"] - position
    message = decode_record(bytes(position) + record + behind, position, base=base)
    read = {
        "topic": message.topic.encode(),
        "body": message.raw_body,
        "properties": message.raw_properties,
        "born_host": encode_host(message.born_host),
        "store_host": encode_host(message.store_host),
    }
    assert read == {name: drawn[name] for name in read}
    for name in set(drawn) - set(read):
        assert getattr(message, name) == drawn[name]
    assert message.size == len(record)
    assert message.body_crc == body_crc(drawn["body"])


def test_stored_crc_can_be_repeated_as_it_was():
    record = record_bytes(**fields(crc=7))
    assert decode_record(record, 0, base=847067, check_crc=False).body_crc == 7


@pytest.mark.parametrize("sys_flag", [1 << bit for bit in range(31) if bit not in (4, 5)])
def test_every_other_bit_of_sys_flag_leaves_the_layout_alone(sys_flag):
    message = decode_record(record_bytes(**fields(sys_flag=sys_flag)), 0, base=847067)
    assert message.sys_flag == sys_flag
    assert message.raw_body == b"Hello RocketMQ 0"


# --- what cannot be read ------------------------------------------------------------------------

RECORD = record_bytes(**fields(physical_offset=0))
BODY_SIZE_AT = 84
TOPIC_SIZE_AT = 88 + 16
PROPERTIES_SIZE_AT = TOPIC_SIZE_AT + 1 + 9
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1


def check_refused(reason, record, position=0, base=0):
    with pytest.raises(FormatError, match=f"^{reason.name}: .* {base + position}$"):
        decode_record(record, position, base=base)


@pytest.mark.parametrize("magic", [0, 0xFFFFFFFF, MESSAGE_MAGIC_V1 - 1, MESSAGE_MAGIC_V2 + 1])
@pytest.mark.parametrize("stop", [8, 90, 91, None])
def test_unknown_magic_is_no_message(magic, stop):
    check_refused(StopReason.BAD_MAGIC, patched(RECORD, 4, "I", magic)[:stop])


def test_blank_is_no_message_and_named():
    check_refused(StopReason.BLANK, encode_blank(100) + bytes(92))


def test_unwritten_bytes_are_no_message():
    check_refused(StopReason.UNWRITTEN, bytes(200), 100, 900)


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_record_cut_anywhere_is_no_message(sys_flag):
    record = record_bytes(0, sys_flag=sys_flag)
    for stop in range(len(record)):
        is_written = any(record[:stop])
        check_refused(StopReason.BAD_LENGTH if is_written else StopReason.UNWRITTEN, record[:stop])


@pytest.mark.parametrize("position", [-1, -91, len(RECORD) + 1, 1 << 62])
def test_position_outside_the_bytes_is_refused(position):
    with pytest.raises(FieldRangeError, match="position is outside"):
        decode_record(RECORD, position, base=-position)


@pytest.mark.parametrize("total_size", [INT_MIN, -1, 0, 8, 90, len(RECORD) + 1, 1 << 20, INT_MAX])
def test_total_size_that_does_not_fit_is_refused(total_size):
    for stop in (89, len(RECORD)):
        check_refused(StopReason.BAD_LENGTH, patched(RECORD, 0, "i", total_size)[:stop])


@pytest.mark.parametrize(("sys_flag", "minimum"), [(0x10, 103), (0x20, 103), (0x30, 115)])
def test_ipv6_hosts_raise_the_least_total_size(sys_flag, minimum):
    record = patched(patched(RECORD, 36, "i", sys_flag), 0, "i", minimum - 1)
    check_refused(StopReason.BAD_FIELDS, record)


def test_v2_raises_the_least_total_size_by_one():
    check_refused(StopReason.BAD_LENGTH, patched(record_v2(topic=b"", body=b""), 0, "i", 91))


@pytest.mark.parametrize("stated", [-1, 1, 65536, -(1 << 63)])
def test_record_of_another_address_is_misaddressed(stated):
    check_refused(StopReason.BAD_ADDRESS, patched(RECORD, 28, "q", stated))


def test_record_inside_the_body_of_another_is_misaddressed():
    outer = record_bytes(**fields(physical_offset=1000, body=RECORD, properties=b""))
    check_refused(StopReason.BAD_ADDRESS, outer, 88, 1000)


@pytest.mark.parametrize(
    ("at", "code", "size"),
    [
        *((BODY_SIZE_AT, "i", size) for size in (-1, INT_MIN, 17 + 200, INT_MAX)),
        *((TOPIC_SIZE_AT, "B", size) for size in (0x80, 0xFF, 0x7F)),
        *((PROPERTIES_SIZE_AT, "h", size) for size in (-1, -(1 << 15), 0, 16, 18, 0x7FFF)),
    ],
)
def test_size_inside_that_is_negative_or_does_not_fit_is_refused(at, code, size):
    check_refused(StopReason.BAD_FIELDS, patched(RECORD, at, code, size))


def test_v2_topic_size_that_is_negative_is_refused():
    record = record_v2(topic=b"t" * 40000)  # its length is that minus 65536
    check_refused(StopReason.BAD_FIELDS, record)


def test_negative_properties_size_is_refused_even_if_the_record_is_long_enough():
    record = record_bytes(**fields(physical_offset=0, properties=b""))
    size = 40000
    record = patched(record, len(record) - 2, "H", size) + bytes(size)
    check_refused(StopReason.BAD_FIELDS, patched(record, 0, "i", len(record)))


@pytest.mark.parametrize("at", range(88, 104))
def test_flipped_bit_in_the_body_is_a_checksum_mismatch(at):
    check_refused(StopReason.BAD_CRC, patched(RECORD, at, "B", RECORD[at] ^ 4))


def test_checksum_is_not_compared_when_not_asked_for():
    record = patched(RECORD, 88, "B", RECORD[88] ^ 4)
    assert decode_record(record, 0, base=0, check_crc=False).raw_body == b"Lello RocketMQ 0"


def test_negative_stored_checksum_is_a_mismatch():
    check_refused(StopReason.BAD_CRC, patched(RECORD, 8, "i", -1))


def test_checksum_of_an_empty_body_is_not_compared():
    record = record_bytes(**fields(physical_offset=0, body=b"", crc=77))
    assert decode_record(record, 0, base=0).body_crc == 77


# --- what is read although it is odd ------------------------------------------------------------


def test_topic_that_is_no_utf8_is_read_with_replacement_characters():
    record = record_bytes(**fields(topic=b"a\xff\xfeb"))
    assert decode_record(record, 0, base=847067).topic == "a\ufffd\ufffdb"


def test_empty_topic_is_read():
    assert decode_record(record_bytes(**fields(topic=b"")), 0, base=847067).topic == ""


def test_broken_port_does_not_hide_a_message():
    record = patched(RECORD, 52, "i", -5)
    assert decode_record(record, 0, base=0).born_host == "10.0.0.1:-5"


# --- the record that fills a file after its last message ------------------------------------------


def test_blank_is_what_java_writes():
    assert encode_blank(100) == vector("blank/100-bytes-left")


@given(st.integers(END_FILE_MIN_BLANK_SIZE, 0x7FFFFFFF))
def test_blank_says_what_remains(remaining):
    assert struct.unpack(">iI", encode_blank(remaining)) == (remaining, BLANK_MAGIC)


@pytest.mark.parametrize("remaining", [-1, 0, 7, 0x80000000])
def test_blank_of_impossible_size_is_refused(remaining):
    with pytest.raises(FieldRangeError, match="a blank cannot have this size"):
        encode_blank(remaining)


# --- the page -----------------------------------------------------------------------------------


def test_fixed_fields_of_the_table_add_up():
    widths = [int(row.width.split()[0]) for row in FIELDS if row.width[0].isdigit()]
    assert sum(widths) == FIXED_SIZE
    for row in FIELDS:
        if row.code != "s":
            assert str(struct.calcsize(f">{row.code}")) == row.width.split()[0]


def test_example_of_the_page_is_the_golden_record():
    page = (DOCS / "format" / "record.md").read_text("utf-8")
    example = page.split("## Worked example")[1].split("```")[1]
    digits = re.findall(r"^[0-9a-f]{8}: +((?:[0-9a-f]{2,} )+)", example, re.MULTILINE)
    assert bytes.fromhex("".join(digits)) == vector("record/one-message")
