"""metadata_json: any bytes are a table that can be written and read again, or a FormatError."""

from hypothesis import strategies as st

from rocketstore.errors import FormatError
from rocketstore.format.metadata_json import (
    ConsumerFilterTable,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroupTable,
    TopicTable,
    decode_table,
    dumps,
    encode_table,
    loads,
)
from support.vectors import VECTOR_ROOT

TABLES = (TopicTable, SubscriptionGroupTable, ConsumerOffsets, DelayOffsets, ConsumerFilterTable)


def golden_tables() -> tuple[bytes, ...]:
    """Return genuine tables, the long ones cut to two entries so that mutations hit something."""
    texts = []
    for path in sorted((VECTOR_ROOT / "metadata").glob("*.json")):
        value = loads(path.read_bytes())
        for name, member in value.items():
            if name.endswith(("ConfigTable", "GroupTable")):
                value[name] = dict(list(member.items())[:2])
        texts.append(dumps(value).encode())
    return tuple(texts)


GOLDEN = golden_tables()
FRAGMENTS = ("{", "}", "[", "]", ":", ",", '"', "\\", "0", "-1", "a", "1.5", "null", " ", "\ufdd0")
ANY = st.binary(max_size=60) | st.lists(st.sampled_from(FRAGMENTS)).map("".join).map(str.encode)


def check(data: bytes) -> None:
    """Read as plain values and as each table; what was read is written and read again."""
    try:
        value = loads(data)
    except FormatError as error:
        str(error)
        return
    check_written_again(value)
    for table in TABLES:
        try:
            decoded = decode_table(data, table)
        except FormatError as error:
            str(error)
            continue
        try:
            text = encode_table(decoded)
        except FormatError:
            # A fraction in a field that no table knows.
            continue
        assert encode_table(decode_table(text, table)) == text


def check_written_again(value: object) -> None:
    try:
        text = dumps(value)
    except FormatError:
        return
    assert dumps(loads(text)) == text
