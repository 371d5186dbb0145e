"""A command: one request or one reply, as both sides hold it.

Law: a command is a value; what bytes it had, and on which connection it came, is not in it.
How derived: RemotingCommand of 4.9.8.
"""

import enum
from typing import Any, Final

import msgspec

from rocketstore.remoting.codes import Language, ResponseCode

RESPONSE: Final = 1
ONEWAY: Final = 2
"""Bits of `Command.flag` (RemotingCommand.RPC_TYPE, RPC_ONEWAY)."""

VERSION: Final = 399
"""MQVersion.V4_9_3: a Java client asks a broker below 232 for no SQL92, and one of 4.9 has this."""

_JAVA: Final = Language.JAVA  # CPython 3.11 finds a member by a call of a function


class HeaderKind(enum.IntEnum):
    """How a header is encoded: the byte in front of its length (SerializeType)."""

    JSON = 0
    ROCKETMQ = 1


class Command(msgspec.Struct):
    """One request or reply.

    Attributes
    ----------
    opaque
        The requester's number; a reply has that of its request.
    flag
        `RESPONSE` and `ONEWAY`.
    fields
        The custom header, texts by name (``extFields``). None is not the same as no text: 4.9
        writes ``{}`` for a header without values.
    language
        Of who says it; None where that is not known.
    header
        The custom header as typed values, of a request that a `frame.Shortcut` has read; it has no
        `fields` then.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] | None = None
    remark: str | None = None
    language: Language | None = Language.PYTHON
    version: int = VERSION
    kind: HeaderKind = HeaderKind.JSON
    body: bytes = b""
    header: Any = None


def reply(
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    *,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Return a reply; which request it answers is filled in when it is sent.

    It says JAVA, as each reply of a 4.9 broker does: a client that reads names as an enumeration
    of its own knows that one.
    """
    return Command(code, flag=RESPONSE, remark=remark, fields=fields, body=body, language=_JAVA)
