"""properties: any bytes are a mapping, and what was read can be written and read again."""

from hypothesis import strategies as st

from rocketstore.format.properties import decode_properties, encode_properties

GOLDEN = (
    b"TAGS\x01TagA\x02KEYS\x01k1",
    b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
    "中文\x01值 \U0001f600 0\x02UNIQ_KEY\x017F0000012A139A550000000000001000".encode(),
    b"\x01\x02\x02\x01",
)
ANY = st.binary(max_size=200) | st.lists(st.sampled_from([b"a", b"\x01", b"\x02"])).map(b"".join)


def check(data: bytes) -> None:
    """Read the bytes; write what was read, and read that."""
    properties = decode_properties(data)
    assert all(name and value for name, value in properties.items())
    assert not any("\x01" in name or "\x02" in name + value for name, value in properties.items())
    assert decode_properties(encode_properties(properties)) == properties
