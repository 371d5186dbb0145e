"""checkpoint: any bytes are three times, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.checkpoint import (
    CHECKPOINT_STRUCT,
    decode_checkpoint,
    encode_checkpoint,
    encode_times,
)
from support.vectors import vector

TIMES = vector("checkpoint/clean-stop")
GOLDEN = (TIMES, TIMES.ljust(64, b"\0"), b"")
ANY = st.binary(max_size=64)


def check(data: bytes) -> None:
    """Read the times; they encode to the same bytes, and recovery never starts behind them."""
    try:
        checkpoint = decode_checkpoint(data)
    except FormatError as error:
        str(error)
        assert len(data) < CHECKPOINT_STRUCT.size
        return
    assert encode_times(checkpoint) == data[: CHECKPOINT_STRUCT.size]
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert 0 <= checkpoint.min_timestamp <= max(0, *checkpoint)
    assert checkpoint.min_timestamp_index <= checkpoint.min_timestamp
