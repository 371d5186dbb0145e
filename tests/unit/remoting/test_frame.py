"""Frames: any pieces of a stream give the same commands, and a bad one is named."""

import pytest

from rocketstore.errors import FieldRangeError
from rocketstore.remoting.command import Command, HeaderKind, reply
from rocketstore.remoting.frame import LONGEST_FRAME, FrameFault, FrameReader, encode_frame
from support.wire import frame, framed, recorded_headers

COMMANDS = [
    Command(105, 1, fields={"topic": "T"}),
    Command(310, 2, body=b"x" * 300, kind=HeaderKind.ROCKETMQ),
    reply(17, "no such topic"),
    Command(34, 3, body=b"{}"),
]
STREAM = b"".join(map(framed, COMMANDS))


def commands_of(pieces):
    reader = FrameReader()
    found = []
    for piece in pieces:
        frames, error = reader.feed(piece)
        assert error is None
        found += [command for command, _ in frames]
    assert reader.kept_bytes == 0
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 300, len(STREAM)])
def test_any_pieces_give_the_same_commands(size):
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert commands_of(pieces) == COMMANDS


def test_a_cut_anywhere_changes_nothing():
    for at in range(len(STREAM)):
        assert commands_of([STREAM[:at], STREAM[at:]]) == COMMANDS


def test_recorded_headers_come_out_of_their_frames():
    for _by, header in recorded_headers():
        [(command, size)], error = FrameReader().feed(frame(header, b"body"))
        assert error is None
        assert command.body == b"body"
        assert size == 8 + len(header) + 4


def test_a_frame_of_the_limit_is_taken_and_one_more_byte_is_not():
    header = b"{}"
    reader = FrameReader()
    data = frame(header, bytes(LONGEST_FRAME - 4 - len(header)))
    assert data.startswith((16_777_212).to_bytes(4, "big"))
    [(command, size)], error = reader.feed(data)
    assert (size, len(command.body), error) == (16_777_216, LONGEST_FRAME - 6, None)
    frames, fault = reader.feed((16_777_213).to_bytes(4, "big"))
    assert (frames, fault) == ([], FrameFault.TOO_LONG)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (frame(b"{}", length=LONGEST_FRAME + 1), FrameFault.TOO_LONG),
        (frame(b"{}", length=2**31 - 1), FrameFault.TOO_LONG),
        (frame(b"{}", length=-1), FrameFault.NEGATIVE_LENGTH),
        (frame(b"{}", length=-(2**31)), FrameFault.NEGATIVE_LENGTH),
        (frame(b"{}", length=3), FrameFault.TOO_SHORT),
        (frame(b"{}", length=0), FrameFault.TOO_SHORT),
        (frame(b"{}", kind=2), FrameFault.UNKNOWN_KIND),
        (frame(b"{}", kind=255), FrameFault.UNKNOWN_KIND),
        (frame(b"{}", header_size=3), FrameFault.HEADER_PAST_FRAME),
        (frame(b"{}", header_size=0xFFFFFF), FrameFault.HEADER_PAST_FRAME),
        (frame(b"{}", header_size=1), FrameFault.BAD_HEADER),
        (frame(b"", b"x"), FrameFault.BAD_HEADER),
        (frame(b"{}", kind=1), FrameFault.BAD_HEADER),
        (bytes.fromhex("16030100c8010000c4"), FrameFault.TLS),
        (b"GET / HTTP/1.1\r\n\r\n", FrameFault.TOO_LONG),
    ],
)
@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_a_bad_frame_is_named_and_what_came_before_it_is_kept(data, fault, is_in_pieces):
    reader = FrameReader()
    stream = STREAM + data
    found, named = [], None
    for piece in [stream[at : at + 1] for at in range(len(stream))] if is_in_pieces else [stream]:
        frames, named = reader.feed(piece)
        found += [command for command, _ in frames]
        if named is not None:
            break
    assert found == COMMANDS
    assert named is fault


def test_a_length_alone_takes_no_memory():
    reader = FrameReader()
    assert reader.feed(LONGEST_FRAME.to_bytes(4, "big")) == ([], None)
    assert reader.kept_bytes == 4


def test_a_command_that_is_longer_than_a_frame_is_refused():
    with pytest.raises(FieldRangeError, match="at most 16777212"):
        encode_frame(Command(310, body=bytes(LONGEST_FRAME)))
