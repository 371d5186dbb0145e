"""What users hold: the message they put, and the message they get back.

Law: these are values. They know no file, no clock and no byte layout; ``format.record`` turns them
into bytes and back.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping  # noqa: TC003 - inspect.signature(Message) resolves it
from typing import Any, Final

import msgspec

from rocketstore.errors import BodyTooLargeError, CompressedBodyError
from rocketstore.units import MiB

DEFAULT_HOST: Final = "127.0.0.1:0"
"""Born host of a message that names none."""

INFLATED_BODY_LIMIT_BYTES: Final = 256 * MiB
"""Most bytes that ``StoredMessage.body`` inflates; a body of 4 MiB (the store's default limit)
cannot honestly exceed it by more than zlib's best ratio of about 1,030, and a crafted one may not
take the process down. A larger body stays compressed in ``raw_body``."""

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


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it stands in the CommitLog; owns its bytes and outlives the store.

    Attributes
    ----------
    raw_body, raw_properties
        The stored bytes, undecoded; `raw_body` is compressed when the producer compressed it.
    properties
        In stored order, a later duplicate wins; malformed parts are left out, as 4.9 does.
    message_id
        Upper-case hex of store host and physical offset (``docs/format/message-id.md``).
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    raw_body: bytes
    raw_properties: bytes
    properties: dict[str, str]
    message_id: str

    @property
    def is_compressed(self) -> bool:
        """Whether ``raw_body`` is compressed (sysFlag bit 0)."""
        return bool(self.sys_flag & COMPRESSED_FLAG)

    @property
    def body(self) -> bytes:
        """The body, inflated when sysFlag says that it is zlib; other codecs stay as stored.

        Raises
        ------
        BodyTooLargeError
            Inflating would give more than ``INFLATED_BODY_LIMIT_BYTES``.
        CompressedBodyError
            The stored bytes are no whole zlib stream although sysFlag says so.
        """
        return inflated(self.raw_body, self.sys_flag, self.message_id)

    @property
    def tags(self) -> str | None:
        """Value of the property ``TAGS``."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the property ``KEYS``, which joins them by blanks."""
        return tuple(key for key in self.properties.get("KEYS", "").split(" ") if key)

    @property
    def unique_key(self) -> str | None:
        """Value of the property ``UNIQ_KEY``."""
        return self.properties.get("UNIQ_KEY")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that is the same everywhere (``message get``, ``store scan``, …)."""
        return {
            "topic": self.topic,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "physicalOffset": self.physical_offset,
            "size": self.size,
            "sysFlag": self.sys_flag,
            "flag": self.flag,
            "bornTimestamp": self.born_timestamp_ms,
            "bornHost": self.born_host,
            "storeTimestamp": self.store_timestamp_ms,
            "storeHost": self.store_host,
            "reconsumeTimes": self.reconsume_times,
            "preparedTransactionOffset": self.prepared_transaction_offset,
            "bodyCRC": self.body_crc,
            "bodySize": len(self.raw_body),
            "body": base64.b64encode(self.raw_body).decode("ascii"),
            "properties": self.properties,
            "tags": self.tags,
            "keys": list(self.keys),
            "uniqKey": self.unique_key,
            "msgId": self.message_id,
        }


def inflated(raw_body: bytes, sys_flag: int, message_id: str) -> bytes:
    """Return a stored body as `StoredMessage.body` does; the id is for errors."""
    is_zlib = sys_flag & COMPRESSION_TYPE_MASK in (0, COMPRESSION_TYPE_ZLIB)
    if not (raw_body and is_zlib and sys_flag & COMPRESSED_FLAG):
        return raw_body
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(raw_body, INFLATED_BODY_LIMIT_BYTES + 1)
    except zlib.error as error:
        raise CompressedBodyError(
            f"body of message {message_id} does not inflate ({error})",
            field="body",
            hint="raw_body holds it as stored",
        ) from error
    if len(body) > INFLATED_BODY_LIMIT_BYTES:
        raise BodyTooLargeError(
            f"body of message {message_id} inflates to more than {INFLATED_BODY_LIMIT_BYTES} bytes",
            field="body",
            hint="read raw_body and inflate it in pieces",
        )
    if inflater.eof:
        return body
    raise CompressedBodyError(
        f"compressed body of message {message_id} is cut off after {len(raw_body)} bytes",
        field="body",
        hint="raw_body holds it as stored",
    )
