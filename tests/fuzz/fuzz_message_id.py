"""message_id and host: any text is an id or host that is written back alike, or a FormatError."""

from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.host import decode_host, decode_message_id, encode_host, encode_message_id

GOLDEN = (
    b"C0A82A8300002A9F00000000000CECDB",
    b"FE80000000000000123456789ABCDEF000002A9F000000000000029E",
    b"7F0000012A139A550000000000001000",
    b"192.168.42.131:10911",
    b"[2001:db8:85a3::8a2e:370:7334]:51111",
    b"[::ffff:10.0.0.1]:80",
)
IDS = st.text(max_size=60) | st.text("0123456789abcdefABCDEF", min_size=30, max_size=57)
ANY = IDS.map(lambda text: text.encode("utf-8", "surrogatepass"))


def check(data: bytes) -> None:
    """Read the bytes as text, as an id and as a host."""
    text = data.decode("utf-8", "surrogateescape")
    check_message_id(text)
    check_host(text, data)


def check_message_id(text: str) -> None:
    try:
        host, physical_offset = decode_message_id(text)
        stored = encode_host(host)
    except FormatError as error:
        str(error)
        return
    assert encode_message_id(stored, physical_offset) == text.upper()


def check_host(text: str, data: bytes) -> None:
    for decode in (lambda: encode_host(text), lambda: encode_host(decode_host(data))):
        try:
            stored = decode()
        except FormatError as error:
            str(error)
            continue
        assert encode_host(decode_host(stored)) == stored


@given(st.text("0123456789.:[]f%", max_size=30))
def test_any_text_is_a_host_or_a_format_error(text):
    check(text.encode())
