"""The damage map of a store: what its scrubber knows to be damaged, kept over restarts.

It lies in the store's root as ``damage-map.json``, which 4.9 does not look at. The scrubber of an
open store writes it; tables and reports read it. A missing file says nothing; a broken one is
started again, because the next pass finds everything once more.
"""

from typing import Final

import msgspec

from rocketstore.errors import FormatError

DAMAGE_MAP_FILE_NAME: Final = "damage-map.json"

MAX_DAMAGED_RANGES: Final = 10_000
"""Ranges that the map keeps, the first ones of the log: about 2 MB, so that the file stays small
although a whole disk has rotted."""


class DamagedRange(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of the log without an intact record, and when (in ms) they were first found damaged."""

    physical_offset: int
    size: int
    reason: str
    evidence: str
    file: str
    found_timestamp: int

    @property
    def stop(self) -> int:
        """Physical offset after it."""
        return self.physical_offset + self.size


class DamageMap(msgspec.Struct, frozen=True, rename="camel"):
    """What is damaged, by place, and how far the check is.

    The running pass goes on from the physical offset `position`; the last of the whole `passes`
    ended at `last_pass_timestamp` (in ms), 0 without any.
    """

    position: int = 0
    passes: int = 0
    last_pass_timestamp: int = 0
    damage: tuple[DamagedRange, ...] = ()

    @property
    def damaged_bytes(self) -> dict[str, int]:
        """Damaged bytes by reason."""
        found: dict[str, int] = {}
        for one in self.damage:
            found[one.reason] = found.get(one.reason, 0) + one.size
        return found


def encode_damage_map(known: DamageMap) -> bytes:
    """Return the content of the file."""
    return msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n"


def decode_damage_map(content: bytes) -> DamageMap:
    """Return the map that a file holds; `FormatError` where it holds none."""
    try:
        return msgspec.json.decode(content, type=DamageMap)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(
            f"no damage map: {error}", hint="remove it; the next scrub finds all damage again"
        ) from error
