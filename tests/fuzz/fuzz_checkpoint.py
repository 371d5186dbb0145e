"""checkpoint: any bytes are three times, or a FormatError."""

from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.checkpoint import (
    CHECKPOINT_STRUCT,
    decode_checkpoint,
    encode_checkpoint,
    encode_times,
)
from support.fuzzing import check_mutations, fuzz_with_atheris
from support.vectors import vector

TIMES = vector("checkpoint/clean-stop")
GOLDEN = (TIMES, TIMES.ljust(64, b"\0"), b"")


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


@given(st.binary(max_size=64))
def test_any_bytes_are_times_or_a_format_error(data):
    check(data)


def test_broken_golden_checkpoints_are_times_or_a_format_error():
    check_mutations(check, GOLDEN)


if __name__ == "__main__":
    fuzz_with_atheris(check)
