"""The compiled twin of ``record.decode_plainly``, where it was built (``_decode.c``).

Law: it returns the message that `decode_plainly` would return, or None, never an error of its own
(property test); whoever gets None asks `decode_plainly`, which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rocketstore.format.compiled_module import compiled_module
from rocketstore.format.host import decode_host
from rocketstore.format.properties import decode_properties
from rocketstore.message import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    IntactDecoder: TypeAlias = Callable[[object, int, int, bool], StoredMessage | None]


def compiled_decoder(crc32: Callable[[bytes], int]) -> IntactDecoder | None:
    """Return what decodes an intact record of (view, position, base, check_crc), None without it.

    Parameters
    ----------
    crc32
        The function that makes checksums of bodies.
    """
    module = compiled_module("_decode")
    if module is None:
        return None
    decode: IntactDecoder = module.Decoder(
        StoredMessage, crc32, decode_host, decode_properties
    ).decode
    return decode
