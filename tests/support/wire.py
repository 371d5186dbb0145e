"""Recorded requests and replies, and frames made by hand."""

import json
from typing import Any

from rocketstore.remoting.channel import Turns
from rocketstore.remoting.command import Command
from rocketstore.remoting.frame import encode_frame
from rocketstore.remoting.requests import RequestTable
from rocketstore.remoting.server import RemotingServer
from support.vectors import VECTOR_ROOT


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the lines of ``tests/golden/wire/<name>.jsonl``."""
    text = (VECTOR_ROOT / "wire" / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def recorded_headers() -> list[tuple[str, bytes]]:
    """Return who wrote a header, and its bytes."""
    return [
        (one["by"], one["header"].encode().ljust(one["size"], b"\n")) for one in recorded("headers")
    ]


def frame(header: bytes, body: bytes = b"", *, kind: int = 0, header_size: int | None = None,
          length: int | None = None) -> bytes:  # fmt: skip
    """Return a frame, whose sizes may lie."""
    size = len(header) if header_size is None else header_size
    content = bytes([kind]) + size.to_bytes(3, "big") + header + body
    stated = len(content) if length is None else length
    return (stated & 0xFFFFFFFF).to_bytes(4, "big") + content


def framed(command: Command) -> bytes:
    """Return the bytes of a command."""
    return b"".join(encode_frame(command))


async def opened(table: RequestTable, *, port: int = 0, **settings: Any) -> RemotingServer:
    """Return a server that listens; `settings` are those of its `Turns`."""
    server = RemotingServer(Turns(table, **settings))
    await server.listen(port=port)
    return server
