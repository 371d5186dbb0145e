"""queue_extension: any bytes are a unit that encodes to the same bytes, or none."""

from hypothesis import strategies as st

from rocketstore.format.queue_extension import decode_unit, encode_unit
from support.vectors import vector

GOLDEN = (vector("queue-extension/first-units"), vector("queue-extension/end-of-file"), b"")
ANY = st.binary(max_size=100)


def check(data: bytes) -> None:
    """Decode at every place; what was read encodes to the bytes that stand there."""
    for position in range(-1, len(data) + 1):
        unit = decode_unit(data, position)
        if unit is not None:
            assert encode_unit(unit) == data[position : position + unit.size]
