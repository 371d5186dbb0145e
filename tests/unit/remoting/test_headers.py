"""Headers of both kinds: what genuine sides wrote is read, and written alike."""

import json

import pytest

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.remoting import binary_header, json_header
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command, HeaderKind
from support.wire import recorded, recorded_headers

BINARY = bytes.fromhex(  # GET_MAX_OFFSET of the 4.9.3 encoder
    "001e 03 018f 00000009 00000000 00000000 0000001b"
    "0005 746f706963 00000002 5431 0007 71756575654964 00000001 31"
)
QUESTION = Command(
    30, 9, 0, {"topic": "T1", "queueId": "1"}, None, Language.PYTHON, 399, HeaderKind.ROCKETMQ
)


@pytest.mark.parametrize(
    ("escapes", "text"),
    [
        (r"\ud83d\ude00", "\U0001f600"),
        (r"half \ud83d", "half ?"),
        (r"\uD83Dx\uDE00", "?x?"),
        (r"\ude00\ud83d", "??"),
        (r"\ud83d\ud83d\ude00", "?\U0001f600"),
        (r"\\ud83d\n\ud83d", "\\ud83d\n?"),
        (r"\ud83d\\ude00", "?\\ude00"),
    ],
)
def test_half_a_character_is_a_question_mark_as_java_stores_it(escapes, text):
    """JavaScript writes such escapes of a text that was cut off; the header is one all the same."""
    header = f'{{"code":310,"extFields":{{"i":"{escapes}","{escapes}":"1"}},"remark":"{escapes}"}}'
    command = json_header.decode(header.encode())
    assert (command.fields, command.remark) == ({"i": text, text: "1"}, text)


@pytest.mark.parametrize(("by", "header"), recorded_headers())
def test_a_header_of_each_client_says_what_it_said(by, header):
    said = json.loads(header)
    command = json_header.decode(header)
    assert (command.code, command.opaque, command.flag) == (
        said["code"], said["opaque"], said["flag"],
    )  # fmt: skip
    assert command.version == said["version"]
    assert command.remark == said.get("remark")
    language = Language(3) if by == "pyrocketmq" else Language[said["language"]]
    assert command.language is language
    fields = said.get("extFields")
    texts = fields and {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
    assert command.fields == texts


@pytest.mark.parametrize("header", [header for by, header in recorded_headers() if "4.9.3" in by])
def test_a_header_is_written_byte_for_byte_as_4_9_writes_it(header):
    assert json_header.encode(json_header.decode(header)) == header


@pytest.mark.parametrize("pair", recorded("name-server"), ids=lambda pair: pair["name"])
def test_a_recorded_request_says_the_same_in_a_binary_header(pair):
    command = json_header.decode(json.dumps(pair["request_header"]).encode())
    command.kind = HeaderKind.ROCKETMQ
    again = binary_header.decode(binary_header.encode(command))
    assert again == command


def test_the_binary_header_is_the_genuine_encoder_s():
    assert binary_header.decode(BINARY) == QUESTION
    assert binary_header.encode(QUESTION) == BINARY
    assert binary_header.encode(json_header.decode(b'{"code":1,"language":"RUST"}'))[2] == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"extFields":{"a":4,"b":true,"c":null,"d":{"x": [1]},"e":"s","f":1.50}}',
         {"a": "4", "b": "true", "d": '{"x": [1]}', "e": "s", "f": "1.50"}),
        ('{"extFields":{"a":"1","a":"2"}}', {"a": "2"}),
        ('{"extFields":null,"remark":null,"more":[{}]}', None),
        ('{"extFields":{}} \n', {}),
        ('{"extFields":{"i":"KEYS\1k\2TAGS\1a"}}', {"i": "KEYS\1k\2TAGS\1a"}),
    ],
)  # fmt: skip
def test_custom_fields_are_texts_whatever_was_written(text, expected):
    assert json_header.decode(text.encode()).fields == expected


def test_bytes_that_are_no_utf_8_are_read_as_java_reads_them():
    assert json_header.decode(b'{"extFields":{"a":"\xbc\xfc"}}').fields == {"a": "\ufffd\ufffd"}
    broken = binary_header.decode(BINARY[:23] + b"\xff" + BINARY[24:])
    assert next(iter(broken.fields or ()))[0] == "\ufffd"


@pytest.mark.parametrize(
    ("text", "code", "language"),
    [
        ('{"code":"5"}', 5, Language.JAVA),
        ('{"language":9}', 0, Language.GO),
        ('{"language":"RUST"}', 0, None),
        ('{"language":null}', 0, None),
        ("{}", 0, Language.JAVA),
    ],
)
def test_what_4_9_tolerates_is_tolerated(text, code, language):
    command = json_header.decode(text.encode())
    assert (command.code, command.language) == (code, language)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"[]", b"null", b"{}x", b'{"code":true}', b'{"code":1.5}',
        b'{"code":4294967296}',
        b'{"extFields":[]}', b'{"remark":7}', b'{"code":1e400}', b'{"x":' + b"[" * 1_000_000,
        b"{}\0",
        b'{"extFields":{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}", b"\xef\xbb\xbf{}",
    ],
    ids=lambda header: str(header[:30]),
)  # fmt: skip
def test_what_is_no_json_header_is_a_format_error(header):
    with pytest.raises(FormatError):
        json_header.decode(header)


@pytest.mark.parametrize(
    ("at", "bytes_"),
    [
        (13, b"\x7f\xff\xff\xff"),  # a remark
        (13, b"\xff\xff\xff\xff"),
        (17, b"\x00\x00\x00\x1c"),  # the fields, by one too many
        (17, b"\x00\x00\x00\x1a"),
        (17, b"\x80\x00\x00\x00"),
        (21, b"\x7f\xff"),  # a name
        (21, b"\xff\xff"),
        (28, b"\x7f\xff\xff\xff"),  # a value
        (28, b"\xff\xff\xff\xff"),
        (len(BINARY) - 5, b"\x00\x00\x00\x02"),  # the last value, by one too many
    ],
)
def test_a_binary_header_that_lies_about_a_size_is_a_format_error(at, bytes_):
    broken = BINARY[:at] + bytes_ + BINARY[at + len(bytes_) :]
    with pytest.raises(FormatError):
        binary_header.decode(broken)


@pytest.mark.parametrize("size", range(len(BINARY)))
def test_a_part_of_a_binary_header_is_a_format_error(size):
    with pytest.raises(FormatError):
        binary_header.decode(BINARY[:size])


@pytest.mark.parametrize("command", [Command(70_000), Command(1, fields={"n" * 40_000: "v"})])
def test_what_does_not_fit_a_binary_header_is_refused(command):
    with pytest.raises(FieldRangeError):
        binary_header.encode(command)
