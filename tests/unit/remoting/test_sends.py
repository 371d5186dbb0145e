"""Usual sends by `SendReader`, compiled and interpreted: as the general codecs, or not at all."""

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.broker.send_headers import SendHeaderV2
from rocketstore.native import view
from rocketstore.remoting import json_header
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command, HeaderKind
from rocketstore.remoting.fields import decode_fields
from rocketstore.remoting.frame import FrameFault, FrameReader
from rocketstore.scan import kernels
from support.wire import frame, recorded_headers

LETTERS = "abcdefghijklm"
JAVA = next(header for _by, header in recorded_headers() if b'"code":310' in header)
ODD = [
    "", "-1", "+4", "01", "1e3", "2147483648", "99999999999999999999", " 1", "1.0", "true", "True",
    "1", "null", "x", "é", "\ud800", 'a"b', "a\\b", "a\nb", "k\x01v\x02", "\x7f", "\x00",
]  # fmt: skip
BODY = b"body"


def reader_of(path, *, module="rocketstore.native.sends"):
    loader = SourceFileLoader(module, str(path))
    source = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(source)
    return source.SendReader


def readers():
    from rocketstore.native import sends  # noqa: PLC0415 - beside its source

    source = Path(view.__file__).with_name("sends.py")
    made = [reader_of(source)] + ([sends.SendReader] if kernels.is_compiled() else [])
    for make in made:
        reader = make(Command, SendHeaderV2, HeaderKind.JSON, Language.__members__)
        reader.is_open = True
        yield reader


READERS = list(readers())


def agreed(header):
    """Return what all readers make of a header, after the general codecs agreed to it."""
    frames = b"before" + header + BODY
    stop = 6 + len(header)
    found = [reader.read(frames, 6, stop, len(frames)) for reader in READERS]
    assert found.count(found[0]) == len(found)
    if found[0] is not None:
        general = json_header.decode(header)
        assert found[0].header == decode_fields(general.fields, SendHeaderV2)
        general.fields, general.body, general.header = None, BODY, found[0].header
        assert found[0] == general
    return found[0]


def written(fields, **more):
    """Return the header of a send as Java writes it, with these fields."""
    said = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 7,
            "serializeTypeCurrentRPC": "JSON", "version": 401} | more  # fmt: skip
    return json.dumps(said, separators=(",", ":")).encode()


USUAL = {
    "a": "group", "b": "orders", "c": "TBW102", "d": "8", "e": "3", "f": "0",
    "g": "1795236880979", "h": "0", "i": "KEYS\x01k\x02WAIT\x01true", "j": "0", "k": "false",
    "l": "16", "m": "true",
}  # fmt: skip


def test_a_send_of_java_is_read():
    command = agreed(JAVA)
    assert (command.code, command.flag, command.opaque, command.version) == (310, 2, 6, 399)
    assert command.header.topic == "TJ"
    assert command.header.properties.startswith("KEYS\x01k3\x02UNIQ_KEY\x01")
    assert command.body == BODY


@pytest.mark.parametrize(
    "header",
    [
        written(USUAL), written({**USUAL, "n": "broker-a"}), written(USUAL, code=320),
        written({k: v for k, v in USUAL.items() if k < "i"}), written(USUAL, language="GO"),
    ],
    ids=["all", "of a newer client", "batch", "only what is needed", "go"],
)  # fmt: skip
def test_what_is_usual_is_read(header):
    assert agreed(header) is not None


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_field_of_another_kind_is_read_as_by_the_general_codecs_or_left_to_them(letter, value):
    text = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    agreed(written({**USUAL, letter: text}))
    raw = json.dumps({**USUAL, letter: "?"}, separators=(",", ":")).encode()
    for found in (json.dumps(text), json.dumps(text, ensure_ascii=False), text):
        agreed(written({}).replace(b"{}", raw.replace(b'"?"', found.encode())))


@pytest.mark.parametrize(
    "header",
    [
        written(USUAL, code=10), written(USUAL, code=31), written(USUAL, remark="r"),
        written(USUAL, opaque=-1), written(USUAL, opaque=2**31), written(USUAL, language="RUST"),
        written({k: v for k, v in USUAL.items() if k != "d"}), written({**USUAL, "long": "x"}),
        written({**USUAL, "d": 8}), written(None), written({}), b"", b"{}", b"[]", b"nonsense",
        written(USUAL).replace(b'"flag":0', b'"flag":0,"flag":0'),
        written(USUAL).replace(b'"d":"8"', b'"d":"8","d":"9"'),
        written(USUAL).replace(b",", b", "), written(USUAL) + b" ", written(USUAL)[1:],
    ],
)  # fmt: skip
def test_what_is_unusual_is_left(header):
    assert agreed(header) is None


def test_a_header_that_is_cut_off_is_left():
    for size in range(len(JAVA.rstrip())):
        assert agreed(JAVA[:size]) is None


@pytest.mark.parametrize(
    "place", [(-1, 5, 9), (0, 5, 10**9), (6, 5, 9), (0, 9, 5), (2**40, 2**40, 2**40)]
)
def test_positions_outside_of_the_bytes_are_left(place):
    for reader in READERS:
        assert reader.read(b"123456789", *place) is None
        assert reader.read(bytearray(JAVA), 0, len(JAVA), len(JAVA)) is None


TEXTS = st.sampled_from(ODD) | st.text(max_size=12) | st.integers(-9, 2**33).map(str)


@given(
    st.dictionaries(st.sampled_from([*LETTERS, "n", "ab", ""]), TEXTS, max_size=9),
    st.dictionaries(
        st.sampled_from(["code", "flag", "opaque", "version", "language", "remark", "x"]),
        st.sampled_from([310, 320, 0, -1, 2**31, None, "JAVA", "GO", True, 1.5]), max_size=2,
    ),
    st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=3)), max_size=2),
    st.booleans(),
)  # fmt: skip
def test_any_header_is_read_as_by_the_general_codecs_or_left_to_them(fields, more, edits, is_ascii):
    said = json.loads(written({**USUAL, **fields}, **more))
    try:
        text = json.dumps(said, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:
        return
    for number, new in edits:
        at = number % len(text)
        text = text[:at] + new + text[at + 1 :]
    agreed(text)


@given(st.binary(max_size=60).map(JAVA[:40].__add__) | st.binary(max_size=60))
def test_any_bytes_are_read_as_by_the_general_codecs_or_left_to_them(data):
    agreed(data)


def test_a_frame_of_a_shortcut_is_its_command_and_others_are_read_as_before():
    reader = READERS[-1]
    frames = frame(JAVA.rstrip(), BODY) + frame(b'{"code":31}', b"x") + frame(JAVA.rstrip())
    found, error = FrameReader(shortcut=reader.read).feed(frames)
    assert error is None
    assert [command.code for command, _ in found] == [310, 31, 310]
    assert [command.header is None for command, _ in found] == [False, True, False]
    assert [command.body for command, _ in found] == [BODY, b"x", b""]
    general, _ = FrameReader().feed(frames)
    assert [size for _, size in found] == [size for _, size in general]
    assert decode_fields(general[0][0].fields, SendHeaderV2) == found[0][0].header
    assert FrameReader(reader.read).feed(frame(b"{")) == ([], FrameFault.BAD_HEADER)
