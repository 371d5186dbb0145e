"""Frames: a stream of bytes in, commands out; a command in, bytes out.

``length`` (4 bytes: what follows), the kind of the header (1) and its length (3), header, body.

Law: a frame is one command or the end of its connection: there is no place from which to go on
after a length that cannot be true. No memory is taken for bytes that have not come.
How derived: NettyDecoder, RemotingCommand.decode and encode of 4.9.8.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.remoting import binary_header, json_header
from rocketstore.remoting.command import Command, HeaderKind
from rocketstore.units import MiB

LONGEST_FRAME: Final = 16 * MiB - 4
"""The largest ``length`` that is taken: netty's limit of 16 MiB counts the length's own bytes."""

_HEADER_LENGTH: Final = 0xFFFFFF
"""The bits of a word that has the kind of a header in front of its length."""

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">II")
_WORD: Final = struct.Struct(">I")

_TLS_HANDSHAKE: Final = 0x1603
"""How the first record of TLS begins, of whatever version; no frame is so long."""

_DECODERS: Final = (json_header.decode, binary_header.decode)
_ENCODERS: Final = (json_header.encode, binary_header.encode)
assert tuple(HeaderKind) == (0, 1)


class FrameFault(enum.Enum):
    """What is wrong with a frame that ends its connection."""

    TLS = "a TLS handshake, which is not spoken here"
    TOO_LONG = "a frame is longer than the limit"
    NEGATIVE_LENGTH = "a frame has a negative length"
    TOO_SHORT = "a frame has no room for the length of its header"
    UNKNOWN_KIND = "a header is neither JSON nor binary"
    HEADER_PAST_FRAME = "a header ends after its frame"
    BAD_HEADER = "a header cannot be decoded"


Shortcut: TypeAlias = Callable[[bytes, int, int, int], Command | None]
"""Reads a frame of usual form in another way, or not (None); it is given the bytes that it is in,
and where its JSON header begins and ends and its body ends."""


class FrameReader:
    """Cuts a stream into frames, whatever pieces it comes in."""

    __slots__ = ("_part", "_shortcut", "_wanted")

    def __init__(self, shortcut: Shortcut | None = None) -> None:
        self._shortcut = shortcut
        self._part = bytearray()
        self._wanted = 0  # bytes of the whole frame that `_part` begins; 0 unknown

    @property
    def kept_bytes(self) -> int:
        """Bytes of the frame that is not whole yet."""
        return len(self._part)

    def feed(self, data: bytes) -> tuple[list[tuple[Command, int]], FrameFault | None]:
        """Take what came; return the commands that are whole now, with the sizes of their frames.

        Where a frame cannot be taken, those before it are returned with its fault, and nothing may
        be fed any more.
        """
        if self._part:
            self._part += data
            if len(self._part) < self._wanted:
                return [], None
            data, self._part = bytes(self._part), bytearray()
        frames: list[tuple[Command, int]] = []
        self._wanted = 0
        position, size = 0, len(data)
        while size - position >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(data, position)
            if not _WORD.size <= length <= LONGEST_FRAME:
                return frames, _fault_of(length)
            end = position + _LENGTH.size + length
            if end > size:
                self._wanted = end - position
                break
            found = _decode(data, position + _LENGTH.size, end, self._shortcut)
            if isinstance(found, FrameFault):
                return frames, found
            frames.append((found, end - position))
            position = end
        if position < size:
            self._part += memoryview(data)[position:]
        return frames, None


def _fault_of(length: int) -> FrameFault:
    if length >> 16 == _TLS_HANDSHAKE:
        return FrameFault.TLS
    if length > LONGEST_FRAME:
        return FrameFault.TOO_LONG
    return FrameFault.NEGATIVE_LENGTH if length < 0 else FrameFault.TOO_SHORT


def _decode(data: bytes, start: int, end: int, shortcut: Shortcut | None) -> Command | FrameFault:
    """Return the command of a frame whose length was taken off, or what is wrong with it."""
    [word] = _WORD.unpack_from(data, start)
    kind, start = word >> 24, start + _WORD.size
    header_end = start + (word & _HEADER_LENGTH)
    if kind >= len(_DECODERS):
        return FrameFault.UNKNOWN_KIND
    if header_end > end:
        return FrameFault.HEADER_PAST_FRAME
    if shortcut is not None and not kind:
        known = shortcut(data, start, header_end, end)
        if known is not None:
            return known
    try:
        command = _DECODERS[kind](data[start:header_end])
    except FormatError:
        return FrameFault.BAD_HEADER
    if header_end < end:
        command.body = data[header_end:end]
    return command


def encode_frame(command: Command) -> tuple[bytes, bytes]:
    """Return the bytes of a command: the frame up to its body, and the body.

    `FieldRangeError` where it would be longer than the other side takes.
    """
    header = _ENCODERS[command.kind](command)
    length = _WORD.size + len(header) + len(command.body)
    if length > LONGEST_FRAME:
        raise FieldRangeError(
            f"frame of command {command.code}", expected=f"at most {LONGEST_FRAME}", found=length
        )
    return _HEAD.pack(length, command.kind << 24 | len(header)) + header, command.body
