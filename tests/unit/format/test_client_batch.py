"""client_batch: whole messages or a typed error, and no length used unchecked."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError, TruncatedRecordError
from rocketstore.format.client_batch import (
    BATCH_MESSAGE_FIXED_SIZE,
    BatchMessage,
    decode_client_batch,
    encode_client_batch,
)
from support.vectors import vector

messages = st.lists(
    st.builds(
        BatchMessage,
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=64),
        st.binary(max_size=64),
    ),
    max_size=6,
)


def one(**change):
    fields = {"size": 26, "magic": 0, "crc": 0, "flag": 0, "body_size": 1, "properties_size": 3}
    fields.update(change)
    return (
        struct.pack(
            ">5i",
            fields["size"],
            fields["magic"],
            fields["crc"],
            fields["flag"],
            fields["body_size"],
        )
        + b"a"
        + struct.pack(">h", fields["properties_size"])
        + b"K\x01v"
    )


def test_batch_is_what_java_sends():
    batch = vector("client-batch/one-message")
    assert encode_client_batch([(0, b"a", b"K\x01v")]) == batch
    assert list(decode_client_batch(batch)) == [(0, b"a", b"K\x01v")]


@given(messages)
def test_every_batch_survives(batch):
    encoded = encode_client_batch(batch)
    size = sum(BATCH_MESSAGE_FIXED_SIZE + len(m.body) + len(m.properties) for m in batch)
    assert len(encoded) == size
    for view in (encoded, bytearray(encoded), memoryview(encoded)):
        assert list(decode_client_batch(view)) == batch


def test_batch_of_nothing_has_no_message():
    assert encode_client_batch([]) == b""
    assert list(decode_client_batch(b"")) == []


@pytest.mark.parametrize("field", ["size", "magic", "crc"])
def test_fields_that_the_store_does_not_read_may_hold_anything(field):
    assert list(decode_client_batch(one(**{field: -77}))) == [(0, b"a", b"K\x01v")]


@given(messages.filter(bool), st.data())
def test_cut_batch_is_truncated_or_ends_between_messages(batch, data):
    encoded = encode_client_batch(batch)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    ends = {len(encode_client_batch(batch[:count])) for count in range(len(batch))}
    if len(cut) in ends:
        assert list(decode_client_batch(cut)) == batch[: len(list(decode_client_batch(cut)))]
    else:
        with pytest.raises(TruncatedRecordError):
            list(decode_client_batch(cut))


@pytest.mark.parametrize(
    ("field", "bits", "offset"), [("body_size", 31, 16), ("properties_size", 15, 21)]
)
def test_negative_sizes_are_refused(field, bits, offset):
    for size in (-1, -(1 << bits)):
        with pytest.raises(FieldRangeError, match=f"{field} of a batched message is neg") as info:
            list(decode_client_batch(one(**{field: size})))
        assert info.value.offset == offset


@pytest.mark.parametrize("change", [{"body_size": 0x7FFFFFFF}, {"properties_size": 0x7FFF}])
def test_huge_size_is_truncated_and_allocates_nothing(change):
    with pytest.raises(TruncatedRecordError) as info:
        list(decode_client_batch(one(**change)))
    assert int(info.value.expected.split()[0]) > len(one())


@pytest.mark.parametrize("flag", [1 << 31, -(1 << 31) - 1])
def test_flag_out_of_range_is_refused(flag):
    with pytest.raises(FieldRangeError, match="flag, size or properties do not fit"):
        encode_client_batch([(flag, b"", b"")])


def test_properties_over_32767_bytes_are_refused():
    assert len(encode_client_batch([(0, b"", bytes(32767))])) == 22 + 32767
    with pytest.raises(FieldRangeError, match="at most 32767 bytes"):
        encode_client_batch([(0, b"", bytes(32768))])
