"""The compiled twin of ``record.decode_plainly``, where it was built (``_decode.c``).

It is optional: built with the package where there is a C compiler, left out elsewhere or with
``ROCKETSTORE_KERNELS=off``.

Law: it returns the message that `decode_plainly` would return, or None, never an error of its own
(property test); whoever gets None asks `decode_plainly`, which says what is wrong.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, TypeAlias

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
    # The switch of scan.kernels, on which nothing here may depend.
    if os.environ.get("ROCKETSTORE_KERNELS", "on").strip().lower() in {"off", "0", "no", "false"}:
        return None
    try:
        module = importlib.import_module("rocketstore.format._decode")
    except ImportError:
        return None
    decode: IntactDecoder = module.Decoder(
        StoredMessage, crc32, decode_host, decode_properties
    ).decode
    return decode
