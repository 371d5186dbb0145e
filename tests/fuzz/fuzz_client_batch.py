"""client_batch: any bytes are whole messages that fill them, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.client_batch import decode_client_batch, encode_client_batch
from support.vectors import vector

ONE = vector("client-batch/one-message")
GOLDEN = (ONE, ONE * 3, encode_client_batch([(7, b"", b""), (-1, b"x" * 90, b"TAGS\x01t")]))
ANY = st.binary(max_size=200)


def check(data: bytes) -> None:
    """Decode; what was decoded says the same when it is encoded again."""
    try:
        messages = list(decode_client_batch(data))
    except FormatError as error:
        str(error)
        return
    encoded = encode_client_batch(messages)
    assert len(encoded) == len(data)
    assert list(decode_client_batch(encoded)) == messages
