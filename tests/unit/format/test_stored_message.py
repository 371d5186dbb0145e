"""What a `StoredMessage` makes of its bytes when it is asked: its body, its properties."""

import zlib

import msgspec
import pytest

from rocketstore.errors import BodyTooLargeError, CompressedBodyError, FormatError
from rocketstore.format import stored_message
from rocketstore.format.properties import decode_properties
from support.oracle.record import decode_record
from support.synthetic_log import record_bytes

PLAIN = b"hello" * 100


def stored(body: bytes, sys_flag: int, properties: bytes = b""):
    record = record_bytes(
        0, body=body, properties=properties, sys_flag=sys_flag, store_host=bytes(8)
    )
    return decode_record(record, 0, base=0)


def test_a_compressed_body_is_inflated_and_kept_as_stored():
    message = stored(zlib.compress(PLAIN), 0x1)
    assert message.body == PLAIN
    assert message.raw_body == zlib.compress(PLAIN)


@pytest.mark.parametrize(
    "body", [b"no zlib stream", zlib.compress(PLAIN)[:-5], zlib.compress(PLAIN)[:4]]
)
def test_a_body_that_does_not_inflate_whole_is_a_typed_error(body):
    message = stored(body, 0x1)
    with pytest.raises(CompressedBodyError, match=message.message_id):
        _ = message.body
    assert message.raw_body == body
    assert msgspec.json.encode(message.to_dict())


def test_an_empty_body_is_empty_whatever_its_flags_say():
    assert stored(b"", 0x1).body == b""


def test_a_body_that_inflates_beyond_the_limit_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(stored_message, "INFLATED_BODY_LIMIT_BYTES", len(PLAIN) - 1)
    with pytest.raises(BodyTooLargeError) as caught:
        _ = stored(zlib.compress(PLAIN), 0x1).body
    assert isinstance(caught.value, FormatError)
    assert isinstance(caught.value, ValueError)


def test_a_body_of_exactly_the_limit_is_inflated(monkeypatch):
    monkeypatch.setattr(stored_message, "INFLATED_BODY_LIMIT_BYTES", len(PLAIN))
    assert stored(zlib.compress(PLAIN), 0x1).body == PLAIN


def test_properties_are_what_stands_in_the_record():
    block = b"KEYS\x01k1 k2\x02TAGS\x01paid"
    message = stored(b"", 0, block)
    assert message.properties == decode_properties(block)
    assert (message.tags, message.keys, message.unique_key) == ("paid", ("k1", "k2"), None)


def test_the_id_is_host_and_offset_as_they_stand_even_with_a_broken_port():
    message = stored(b"", 0)
    assert message.message_id == "00" * 16
    changed = msgspec.structs.replace(message, store_host="10.0.0.1:-1", physical_offset=1 << 40)
    assert changed.message_id == "0A000001FFFFFFFF" + "0000010000000000"
