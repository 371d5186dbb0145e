"""Throw broken bytes at a codec: mutations of golden bytes under pytest, or atheris by hand.

A harness is a function ``check(data)`` that returns whatever the bytes are, unless the codec breaks
its law. Under pytest, `FUZZ_SEED` and `FUZZ_COUNT` of the environment choose the mutations. With
atheris installed, ``PYTHONPATH=tests python -m support.fuzzing fuzz_record -max_total_time=60``
lets it search by coverage.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from rocketstore.errors import FormatError

DEFAULT_SEED = 20261121
DEFAULT_COUNT = 10_000

NUMBERS = (0, 1, -1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, -0x80000000)
"""Values at which lengths are likely to be mistaken."""


def mutations(golden: Sequence[bytes], *, count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` broken copies of `golden`, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(golden))
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            chance.choice(MUTATIONS)(data, chance)
        yield bytes(data)


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data)) if data else 0


def _flip_bit(data: bytearray, chance: random.Random) -> None:
    if data:
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _set_number(data: bytearray, chance: random.Random) -> None:
    width = chance.choice((1, 2, 4, 8))
    at = _place(data, chance)
    number = chance.choice((*NUMBERS, len(data), len(data) - 1, len(data) + 1))
    data[at : at + width] = (number & ((1 << (8 * width)) - 1)).to_bytes(width, "big")


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[_place(data, chance) :]


def _drop_range(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    del data[at : at + chance.randrange(1, 64)]


def _repeat_range(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    data[at:at] = data[at : at + chance.randrange(1, 64)]


def _zero_range(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    size = min(chance.randrange(1, 64), len(data) - at)
    data[at : at + size] = bytes(size)


def _insert_garbage(data: bytearray, chance: random.Random) -> None:
    at = _place(data, chance)
    data[at:at] = chance.randbytes(chance.randrange(1, 16))


MUTATIONS = (
    _flip_bit, _set_number, _set_number, _cut, _drop_range, _repeat_range, _zero_range,
    _insert_garbage,
)  # fmt: skip


def check_mutations(
    check: Callable[[bytes], None], golden: Sequence[bytes], default_count: int = DEFAULT_COUNT
) -> None:
    """Call `check` with golden bytes and mutations of them; a failure shows the bytes."""
    seed = int(os.environ.get("FUZZ_SEED", DEFAULT_SEED))
    count = int(os.environ.get("FUZZ_COUNT", default_count))
    for data in (*golden, *mutations(golden, count=count, seed=seed)):
        try:
            check(data)
        except BaseException as error:
            error.add_note(f"replay: {check.__module__}.check(bytes.fromhex({data.hex()!r}))")
            raise


def check_places(decode: Callable[[bytes, int], object], size: int, data: bytes) -> None:
    """See that entries of one size are decoded where a whole one lies, and refused elsewhere."""
    for position in (-1, 0, len(data) // 2, len(data) - size, len(data)):
        inside = 0 <= position <= len(data) - size
        try:
            decode(data, position)
        except FormatError as error:
            str(error)
            assert not inside
        else:
            assert inside


def fuzz_with_atheris(check: Callable[[bytes], None]) -> None:
    """Run `check` under atheris, with the options of the command line."""
    try:
        import atheris  # noqa: PLC0415 - only wanted here, and not on every machine
    except ImportError:
        sys.exit("atheris is not installed; run tests/fuzz with pytest instead")
    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz_with_atheris(import_module(f"fuzz.{sys.argv.pop(1)}").check)
