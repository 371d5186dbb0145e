"""host: text to stored bytes and back, without resolving anything."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError
from rocketstore.format.host import decode_host, encode_host, stored_host

ports = st.integers(0, 65535)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("192.168.42.131:10911", "c0a82a8300002a9f"),
        ("0.0.0.0:0", "0000000000000000"),
        ("255.255.255.255:65535", "ffffffff0000ffff"),
        ("[::1]:1", "00000000000000000000000000000001" + "00000001"),
        ("[2001:db8:85a3::8a2e:370:7334]:51111", "20010db885a3000000008a2e03707334" + "0000c7a7"),
        ("[::ffff:10.0.0.1]:80", "00000000000000000000ffff0a000001" + "00000050"),
    ],
)
def test_known_hosts_are_stored_as_these_bytes(text, stored):
    assert encode_host(text).hex() == stored
    assert decode_host(bytes.fromhex(stored)) == text


@given(st.ip_addresses(v=4), ports)
def test_every_ipv4_host_survives(address, port):
    text = f"{address}:{port}"
    assert decode_host(encode_host(text)) == text


@given(st.ip_addresses(v=6), ports)
def test_every_ipv6_host_survives(address, port):
    stored = encode_host(f"[{address}]:{port}")
    assert stored == address.packed + port.to_bytes(4, "big")
    text = decode_host(stored)
    assert encode_host(text) == stored
    assert ipaddress.ip_address(text[1:].partition("]")[0]) == address


@given(st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20))
def test_the_text_of_any_stored_host_leads_back_to_its_bytes(stored):
    assert stored_host(decode_host(stored)) == stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "localhost:1",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:-1",
        "10.0.0.1:+1",
        "10.0.0.1: 1",
        "10.0.0.1:1_0",
        "10.0.0.1:\u0661",
        "10.0.0.1:65536",
        "10.0.0.1:" + "9" * 5000,
        "10.0.0.256:1",
        "10.0.0:1",
        "::1:1",
        "[::1:1",
        "[10.0.0.1]:1",
        "[fe80::1%eth0]:1",
        "[::1]",
    ],
)
def test_what_is_no_numeric_host_is_refused(text):
    with pytest.raises(FieldRangeError, match="host is not an address with a port"):
        encode_host(text)


@pytest.mark.parametrize("size", [0, 7, 9, 16, 19, 21])
def test_stored_host_of_another_length_is_refused(size):
    with pytest.raises(FieldRangeError, match="8 or 20 bytes"):
        decode_host(bytes(size))


def test_broken_port_is_shown_as_it_stands():
    assert decode_host(bytes.fromhex("0a000001ffffffff")) == "10.0.0.1:-1"
    assert decode_host(bytes(16) + bytes.fromhex("00010000")) == "[::]:65536"
