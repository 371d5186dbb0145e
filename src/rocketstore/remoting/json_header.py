"""The JSON header: what fastjson writes, and what clients write in place of it.

Read leniently, as 4.9 does: any order, unknown keys, values of ``extFields`` that are numbers,
booleans or objects (they become their text), a language by its number, blanks at the end, the
separators of properties as they are, a ? of Unicode for what is no UTF-8. Written strictly: every
value of ``extFields`` is a string, keys stand in alphabetical order, what is null is left out.

Law: bytes in, a `Command` without body out, or a `FormatError`.
How derived: RemotingSerializable, fastjson 1.2.76. Not taken: single quotes, bare names, comments.
"""

import re
from typing import Any, Final, Generic, TypeVar

import msgspec

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.format.metadata_json import Int32, whole_characters
from rocketstore.remoting.codes import Language
from rocketstore.remoting.command import Command

Value = TypeVar("Value")

LANGUAGES: Final[dict[str | int | None, Language]] = {
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}
"""By name, and by number as pyrocketmq writes it; any other is not known, as in 4.9."""

_NAMES: Final = tuple(language.name for language in sorted(Language))


class _Header(msgspec.Struct, Generic[Value], rename="camel"):
    """A header, whose texts are strings or whatever stands there."""

    code: Int32 = 0
    ext_fields: dict[str, Value] | None = None
    flag: Int32 = 0
    language: str | int | None = "JAVA"
    opaque: Int32 = 0
    remark: str | None = None
    serialize_type: Any = msgspec.field(default="JSON", name="serializeTypeCurrentRPC")
    version: Int32 = 0


_NOT_WRITTEN: Final[Any] = msgspec.UNSET
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_read: Final[Any] = msgspec.json.Decoder(_Header[str]).decode
_read_leniently: Final[Any] = msgspec.json.Decoder(_Header[msgspec.Raw], strict=False).decode
_write: Final = msgspec.json.Encoder().encode


def decode(header: bytes) -> Command:
    """Return the command of a JSON header.

    `FieldRangeError`: a field of the protocol has another type, or a number that Java's ``int``
    cannot hold. `FormatError`: it is no JSON object, or is nested too deep for Python's stack.
    """
    try:
        try:
            read: _Header[Any] = _read(header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = whole_characters(header).decode(errors="replace")
            read = _read_leniently(_CONTROLS.sub(lambda one: f"\\u{ord(one[0]):04x}", text))
            read.ext_fields = read.ext_fields and _texts(read.ext_fields)
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"header: {error}", field="header") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"header is no JSON: {error}", field="header") from error
    fields, language = read.ext_fields, LANGUAGES.get(read.language)
    return Command(read.code, read.opaque, read.flag, fields, read.remark, language, read.version)


def _texts(fields: dict[str, msgspec.Raw]) -> dict[str, str]:
    """Return each value as its text; a null is left out, as 4.9 does."""
    texts = {}
    for name, raw in fields.items():
        found = bytes(raw)
        if found.startswith(b'"'):
            texts[name] = msgspec.json.decode(found, type=str)
        elif found != b"null":
            texts[name] = found.decode()
    return texts


def encode(command: Command) -> bytes:
    """Return the JSON header of a command."""
    fields, language, remark = command.fields, command.language, command.remark
    return _write(
        _Header(
            command.code, _NOT_WRITTEN if fields is None else fields, command.flag,
            "OTHER" if language is None else _NAMES[language], command.opaque,
            _NOT_WRITTEN if remark is None else remark, "JSON", command.version,
        )
    )  # fmt: skip
