"""queue_extension: any bytes are a unit that encodes to the same bytes, or none."""

from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.queue_extension import decode_unit, encode_unit
from support.fuzzing import check_mutations, fuzz_with_atheris
from support.vectors import vector

GOLDEN = (vector("queue-extension/first-units"), vector("queue-extension/end-of-file"), b"")


def check(data: bytes) -> None:
    """Decode at every place; what was read encodes to the bytes that stand there."""
    for position in range(-1, len(data) + 1):
        unit = decode_unit(data, position)
        if unit is not None:
            assert encode_unit(unit) == data[position : position + unit.size]


@given(st.binary(max_size=100))
def test_any_bytes_are_units_or_none(data):
    check(data)


def test_broken_golden_units_are_units_or_none():
    check_mutations(check, GOLDEN)


if __name__ == "__main__":
    fuzz_with_atheris(check)
