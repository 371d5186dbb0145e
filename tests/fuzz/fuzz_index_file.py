"""index_file: any bytes are a header and items that say the same when written, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.index_file import (
    INDEX_HEADER_SIZE,
    ITEM_SIZE_BYTES,
    IndexLayout,
    decode_header,
    encode_header,
    item_array,
    layout_of,
    used_item_count,
)
from support.oracle.codecs import decode_item, encode_item
from support.vectors import vector

LAYOUT = IndexLayout(slot_count=2, item_count=8)


def golden_file() -> bytes:
    """Build a file of two slots around genuine items, all of them chained from the slots."""
    header = decode_header(vector("index-file/header"))._replace(index_count=4)
    table = vector("index-file/first-items").ljust(LAYOUT.item_count * ITEM_SIZE_BYTES, b"\0")
    slots = b"\0\0\0\2" + b"\0\0\0\3"
    return encode_header(header) + slots + table


GOLDEN = (golden_file(), golden_file()[:INDEX_HEADER_SIZE], b"")
ANY = st.binary(max_size=LAYOUT.size_bytes + 8)


def check(data: bytes) -> None:
    """Read header and items of the bytes, and of the bytes brought to full length."""
    check_as_it_is(data)
    size = LAYOUT.size_bytes
    check_as_it_is(data[:size].ljust(size, b"\0"))


def check_as_it_is(data: bytes) -> None:
    layout = learnt_layout(data)
    try:
        header = decode_header(data)
        assert encode_header(header) == data[:INDEX_HEADER_SIZE]
        items = item_array(data, layout)
    except FormatError as error:
        str(error)
        assert len(data) != layout.size_bytes or len(data) < INDEX_HEADER_SIZE
        return
    assert len(items) == layout.item_count
    assert 1 <= used_item_count(header, layout) <= layout.item_count
    for number in range(layout.item_count):
        item = decode_item(data, layout.item_position(number))
        assert encode_item(item) == bytes(items[number])


def learnt_layout(data: bytes) -> IndexLayout:
    try:
        layout = layout_of(len(data))
    except FormatError:
        return LAYOUT
    assert layout.size_bytes == len(data)
    return layout
