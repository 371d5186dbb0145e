"""The binary header, which 4.9 calls ROCKETMQ.

====================  =====  ======================================================
field                 bytes  meaning
====================  =====  ======================================================
code                  2      signed
language              1      `Language`; another number is not known
version               2      signed
opaque, flag          4, 4   signed
remark size, remark   4, n   UTF-8; size 0: none
fields size, fields   4, n   name size (2), name, value size (4), value, and so on
====================  =====  ======================================================

Law: bytes in, a `Command` without body out, or a `FormatError`. No size is used before it is
compared with what remains.
How derived: RocketMQSerializable of 4.9.8.
"""

import struct
from typing import Final

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command, HeaderKind
from rocketstore.remoting.json_header import LANGUAGES

_FIXED: Final = struct.Struct(">hBhiii")
_SIZE: Final = struct.Struct(">i")
_NAME_SIZE: Final = struct.Struct(">h")


def decode(data: bytes) -> Command:
    """Return the command of a binary header.

    A size that is negative or more than remains, or bytes after the fields are a `FormatError`.
    """
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        remark, position = _text(data, _FIXED.size, remark_size)
        fields_size, position = _SIZE.unpack_from(data, position)[0], position + _SIZE.size
        if fields_size != len(data) - position:
            raise _not_true(fields_size, len(data) - position)
        fields: dict[str, str] = {}
        while position < len(data):
            [size] = _NAME_SIZE.unpack_from(data, position)
            name, position = _text(data, position + _NAME_SIZE.size, size)
            [size] = _SIZE.unpack_from(data, position)
            fields[name], position = _text(data, position + _SIZE.size, size)
    except struct.error as error:
        raise FormatError(f"header of {len(data)} bytes: {error}", field="header") from error
    known, kind = LANGUAGES.get(language), HeaderKind.ROCKETMQ
    return Command(code, opaque, flag, fields or None, remark or None, known, version, kind)


def _text(data: bytes, position: int, size: int) -> tuple[str, int]:
    if not 0 <= size <= len(data) - position:
        raise _not_true(size, len(data) - position)
    return data[position : position + size].decode(errors="replace"), position + size


def _not_true(size: int, left: int) -> FormatError:
    return FormatError("size in a header", expected=f"at most the {left} bytes left", found=size)


def encode(command: Command) -> bytes:
    """Return the binary header of a command; `FieldRangeError` where a number does not fit."""
    language = Language.OTHER if command.language is None else command.language
    remark = (command.remark or "").encode()
    try:
        fields = b"".join(
            part
            for name, value in (command.fields or {}).items()
            for part in (*_sized(_NAME_SIZE, name), *_sized(_SIZE, value))
        )
        fixed = _FIXED.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error as error:
        raise FieldRangeError(f"command {command.code} in a binary header: {error}") from error
    return b"".join((fixed, remark, _SIZE.pack(len(fields)), fields))


def _sized(form: struct.Struct, text: str) -> tuple[bytes, bytes]:
    data = text.encode()
    return form.pack(len(data)), data
