"""The message that users put; what they get back is a ``format.stored_message.StoredMessage``.

Law: a value. It knows no file, no clock and no byte layout; ``native.put`` makes bytes of it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

DEFAULT_HOST: Final = "127.0.0.1:0"
"""Born host of a message that names none."""

COMPRESSED_FLAG: Final = 0x1
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6_FLAG: Final = 0x10
STORE_HOST_V6_FLAG: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_TYPE_MASK: Final = 0x700
COMPRESSION_TYPE_ZLIB: Final = 0x300
"""Bits of sysFlag (MessageSysFlag). A compression type of 0 means zlib, as in 4.x."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to be put.

    Parameters
    ----------
    topic
        1 to 127 characters of ``%|a-zA-Z0-9_-``.
    body
        Stored as it is; empty is allowed.
    tags
        Value of the property ``TAGS``, or None for none.
    keys
        One key, or several; stored in the property ``KEYS`` joined by one blank. A key finds the
        message in ``MessageStore.find``.
    properties
        Further properties in the order they are stored, before ``KEYS``, ``UNIQ_KEY``, ``TAGS``.
    unique_key
        Value of the property ``UNIQ_KEY``; indexed like a key. The store adds none by itself.
    flag
        The application's own flag, opaque to the store; a signed 32-bit number.
    sys_flag
        Bits of 4.9's MessageSysFlag (``docs/format/record.md``); the store sets those of hosts.
    born_timestamp_ms
        When the message was made; None takes the time of the put.
    born_host
        ``ip:port`` or ``[v6]:port`` of its producer.
    reconsume_times
        How often consumers gave it back.
    prepared_transaction_offset
        CommitLog offset of the half message of a committed transaction, else 0.
    wait_flush
        False asks a SYNC_FLUSH store not to wait for the flush (property ``WAIT`` of a client,
        which is never stored).
    """

    topic: str
    body: bytes = b""
    tags: str | None = None
    keys: str | tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    unique_key: str | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int | None = None
    born_host: str = DEFAULT_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_flush: bool = True
