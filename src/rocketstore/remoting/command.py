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


class HeaderKind(enum.IntEnum):
    """How a header is encoded: the byte in front of its length (SerializeType)."""

    JSON = 0
    ROCKETMQ = 1


class Command(msgspec.Struct):
    """One request or reply.

    `opaque` is the requester's number, which the reply has too; `flag` has the bits `RESPONSE` and
    `ONEWAY`, `language` is of who says it, None where that is not known; what this side says is
    JAVA, as with 4.9: a client that reads names as an enumeration of its own knows that one.
    `fields` are the custom header, texts by name (``extFields``). None is not the same as no text:
    4.9 writes ``{}`` for a header without values. Of a request that a `frame.Shortcut` has read,
    `header` has them as typed values, and there are no `fields`.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] | None = None
    remark: str | None = None
    language: Language | None = Language.JAVA
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
    """Return a reply; which request it answers is filled in when it is sent."""
    return Command(code, flag=RESPONSE, remark=remark, fields=fields, body=body)
