"""message ids: those that the store gives, digit for digit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import (
    decode_message_id,
    encode_host,
    encode_message_id,
    encode_message_ids,
)

hosts = st.builds(
    lambda address, port: f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}",
    st.ip_addresses(),
    st.integers(0, 65535),
)


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


@pytest.mark.parametrize(
    "text",
    ["", "0" * 31, "0" * 33, "0" * 55, "G" * 32, "0 " * 16, " " * 32, "\u0660" * 32, "é" * 56],
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(FieldRangeError, match="not a message id"):
        decode_message_id(text)


def test_id_with_a_negative_offset_is_refused():
    with pytest.raises(FieldRangeError, match="physical offset cannot"):
        decode_message_id("C0A82A8300002A9F" + "F" * 16)


@pytest.mark.parametrize("host", ["192.168.42.131:10911", "[fe80::1234:5678:9abc:def0]:10911"])
@pytest.mark.parametrize("offsets", [[0], [0, 847067, 2**63 - 1]], ids=len)
def test_ids_of_records_are_those_of_each(host, offsets):
    stored = encode_host(host)
    ids = [encode_message_id(stored, offset) for offset in offsets]
    assert encode_message_ids(stored, offsets) == ",".join(ids)
