"""queue_entry: any bytes are entries, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.queue_entry import (
    ENTRY_SIZE_BYTES,
    FILLER,
    QueueEntry,
    decode_entry,
    entry_array,
    equal_mask,
    written_mask,
)
from support.fuzzing import check_places
from support.oracle.codecs import encode_entries, iterate_entries
from support.vectors import vector

GOLDEN = (vector("queue-entry/fillers-then-messages"), vector("queue-entry/first-messages"), b"")
ANY = st.binary(max_size=200)


def check(data: bytes) -> None:
    """Read the entries in three ways, which agree; what was read encodes to the same bytes."""
    whole = len(data) - len(data) % ENTRY_SIZE_BYTES
    entries = list(iterate_entries(data[:whole]))
    try:
        array = entry_array(data)
    except FormatError as error:
        str(error)
        assert whole != len(data)
        array = entry_array(data[:whole])
    assert [QueueEntry(*row) for row in array.tolist()] == entries
    assert written_mask(array).tolist() == [entry.is_written for entry in entries]
    assert equal_mask(array, FILLER).tolist() == [entry.is_filler for entry in entries]
    assert encode_entries(entries) == data[:whole]
    check_places(decode_entry, ENTRY_SIZE_BYTES, data)
