"""The message that users get back, and the fields that are decoded when they are read.

Law: a value that owns its bytes and outlives the store. Properties, id and inflated body are made
when they are asked for: most readers forward a message, or look at its body only.
"""

import base64
import zlib
from typing import Any, Final

import msgspec

from rocketstore.errors import BodyTooLargeError, CompressedBodyError
from rocketstore.format.host import encode_message_id, stored_host
from rocketstore.format.properties import KEYS, TAGS, UNIQ_KEY, decode_properties, split_keys
from rocketstore.message import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK, COMPRESSION_TYPE_ZLIB
from rocketstore.units import MiB

INFLATED_BODY_LIMIT_BYTES: Final = 256 * MiB
"""Most bytes that ``StoredMessage.body`` inflates; a body of 4 MiB (the store's default limit)
cannot honestly exceed it by more than zlib's best ratio of about 1,030, and a crafted one may not
take the process down. A larger body stays compressed in ``raw_body``."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it stands in the CommitLog; owns its bytes and outlives the store.

    Properties and what is made of them, the id, and a compressed body are made at each access.

    Attributes
    ----------
    raw_body, raw_properties
        The stored bytes; `raw_body` is compressed when the producer compressed it.
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

    @property
    def properties(self) -> dict[str, str]:
        """In stored order, a later duplicate wins; malformed parts are left out, as 4.9 does."""
        return decode_properties(self.raw_properties)

    @property
    def message_id(self) -> str:
        """Upper-case hex of store host and physical offset (``docs/format/message-id.md``)."""
        return encode_message_id(stored_host(self.store_host), self.physical_offset)

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
        if not self.is_compressed:  # and no id is needed
            return self.raw_body
        return inflated(self.raw_body, self.sys_flag, self.message_id)

    @property
    def tags(self) -> str | None:
        """Value of the property ``TAGS``."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the property ``KEYS``, which joins them by blanks."""
        return tuple(split_keys(self.properties.get(KEYS, "")))

    @property
    def unique_key(self) -> str | None:
        """Value of the property ``UNIQ_KEY``."""
        return self.properties.get(UNIQ_KEY)

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
