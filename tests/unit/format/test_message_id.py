"""message_id: the store's id and the client's id, digit for digit."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import encode_host
from rocketstore.format.message_id import (
    UniqueKey,
    decode_message_id,
    decode_unique_key,
    encode_message_id,
    encode_unique_key,
    unique_key_timestamp_ms,
)

hosts = st.builds(
    lambda address, port: f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}",
    st.ip_addresses(),
    st.integers(0, 65535),
)


def ms(*moment, zone=UTC):
    return int(datetime(*moment, tzinfo=zone).timestamp()) * 1000


def test_known_ids():
    host = encode_host("192.168.42.131:10911")
    assert encode_message_id(host, 847067) == "C0A82A8300002A9F00000000000CECDB"
    # From the golden store "ipv6".
    text = "FE80000000000000123456789ABCDEF000002A9F000000000000029E"
    assert encode_message_id(encode_host("[fe80::1234:5678:9abc:def0]:10911"), 670) == text
    assert decode_message_id(text) == ("[fe80::1234:5678:9abc:def0]:10911", 670)


@given(hosts, st.integers(0, (1 << 63) - 1))
def test_every_id_survives_in_either_case(host, offset):
    stored = encode_host(host)
    text = encode_message_id(stored, offset)
    assert len(text) == 2 * (len(stored) + 8)
    for written in (text, text.lower()):
        decoded_host, decoded_offset = decode_message_id(written)
        assert (encode_host(decoded_host), decoded_offset) == (stored, offset)


@pytest.mark.parametrize("size", [0, 4, 9, 16, 21])
def test_id_of_a_host_of_wrong_length_is_refused(size):
    with pytest.raises(FieldRangeError, match="store host has a wrong length"):
        encode_message_id(bytes(size), 0)


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_id_of_an_impossible_offset_is_refused(offset):
    with pytest.raises(FieldRangeError, match="physical offset"):
        encode_message_id(bytes(8), offset)


@pytest.mark.parametrize(
    "text",
    ["", "0" * 31, "0" * 33, "0" * 55, "G" * 32, "0 " * 16, " " * 32, "\u0660" * 32, "é" * 56],
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(FieldRangeError, match="not a message id"):
        decode_message_id(text)
    with pytest.raises(FieldRangeError, match="not a message id"):
        decode_unique_key(text)


def test_id_with_a_negative_offset_is_refused():
    with pytest.raises(FieldRangeError, match="negative physical offset"):
        decode_message_id("C0A82A8300002A9F" + "F" * 16)


def test_unique_key_of_a_java_client():
    # From the golden store "basic".
    key = decode_unique_key("7F0000012A139A550000000000001000")
    assert key == UniqueKey("127.0.0.1", 0x2A13, 0x9A550000 - (1 << 32), 0, 0x1000)
    # From the golden store "broker": a client with an IPv6 address.
    key = decode_unique_key("FD00000000000000000000000000000267175FFD2B276820B3410005")
    assert key == UniqueKey("fd00::2", 0x6717, 0x5FFD2B27, 0x6820B341, 5)


@given(
    st.ip_addresses(),
    st.integers(0, 0xFFFF),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFF),
)
def test_every_unique_key_survives(address, process_id, loader, since, counter):
    key = UniqueKey(str(address), process_id, loader, since, counter)
    text = encode_unique_key(key)
    assert text == text.upper()
    assert decode_unique_key(text) == key


@pytest.mark.parametrize(
    "change",
    [
        {"address": "localhost"},
        {"process_id": 1 << 16},
        {"class_loader_hash": 1 << 31},
        {"since_month_start_ms": -1},
        {"counter": 1 << 16},
    ],
)
def test_unique_key_with_a_part_out_of_range_is_refused(change):
    with pytest.raises(FieldRangeError, match="not the parts of a unique key"):
        encode_unique_key(UniqueKey("10.0.0.1", 1, 2, 3, 4)._replace(**change))


def key_made_after(since_ms):
    return UniqueKey("10.0.0.1", 1, 2, since_ms, 0)


def test_time_of_a_unique_key_is_in_the_current_month_when_it_can_be():
    now = ms(2024, 3, 15)
    day = 24 * 3600 * 1000
    assert unique_key_timestamp_ms(key_made_after(day), now_ms=now, zone=UTC) == ms(2024, 3, 2)


def test_time_of_a_unique_key_in_the_future_is_of_the_month_before():
    day = 24 * 3600 * 1000
    key = key_made_after(20 * day)
    assert unique_key_timestamp_ms(key, now_ms=ms(2024, 3, 15), zone=UTC) == ms(2024, 2, 21)
    assert unique_key_timestamp_ms(key, now_ms=ms(2024, 1, 15), zone=UTC) == ms(2023, 12, 21)


def test_time_of_a_unique_key_follows_the_time_zone_of_the_client():
    zone = timezone(timedelta(hours=8))
    key = key_made_after(0)
    assert unique_key_timestamp_ms(key, now_ms=ms(2024, 3, 15), zone=zone) == ms(2024, 2, 29, 16)
    summer = ZoneInfo("Europe/Berlin")
    # April begins in summer time, two hours before UTC.
    assert unique_key_timestamp_ms(key, now_ms=ms(2024, 4, 15), zone=summer) == ms(2024, 3, 31, 22)


def test_time_late_in_a_month_does_not_turn_negative():
    # 30 days are more milliseconds than a signed 32-bit number holds.
    since = 30 * 24 * 3600 * 1000
    assert since > 0x7FFFFFFF
    key = decode_unique_key(encode_unique_key(key_made_after(since)))
    now = ms(2024, 1, 31, 12)
    assert unique_key_timestamp_ms(key, now_ms=now, zone=UTC) == ms(2024, 1, 31)
