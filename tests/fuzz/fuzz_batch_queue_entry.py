"""batch_queue_entry: any bytes are entries, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.format.batch_queue_entry import (
    BATCH_COUNT_MAX,
    BATCH_ENTRY_SIZE_BYTES,
    BATCH_ENTRY_STRUCT,
    decode_batch_entry,
    encode_batch_entry,
)
from support.fuzzing import check_places
from support.vectors import vector

GOLDEN = (vector("batch-queue/entries"), b"")
ANY = st.binary(max_size=200)


def check(data: bytes) -> None:
    """Read all whole entries, which encode to the same bytes; a part of one is refused."""
    whole = len(data) - len(data) % BATCH_ENTRY_SIZE_BYTES
    rows = list(BATCH_ENTRY_STRUCT.iter_unpack(data[:whole]))
    for number, row in enumerate(rows):
        entry = decode_batch_entry(data, number * BATCH_ENTRY_SIZE_BYTES)
        assert entry == row
        assert encode_batch_entry(entry) == BATCH_ENTRY_STRUCT.pack(*row)
        if entry.is_written:
            assert entry.base_offset < entry.stop_offset <= entry.base_offset + BATCH_COUNT_MAX
    check_places(decode_batch_entry, BATCH_ENTRY_SIZE_BYTES, data)
