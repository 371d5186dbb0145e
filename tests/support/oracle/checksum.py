"""Tables of the CRC-32 kernel, derived here instead of copied.

A CRC-32 (IEEE 802.3, the one of zlib and ``java.util.zip``) is the remainder of a polynomial over
GF(2) divided by P, with the bits of each byte reflected. Two ways to go faster than a byte a step:

- *Slicing*: tables that say what a byte contributes when 0 to 15 bytes follow it, so that 16 bytes
  are one step.
- *Folding* (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel 2009): a 128-bit lane is
  moved forward over D bits by multiplying its halves with x^(D+32) mod P and x^(D-32) mod P.

Law: pure numbers; no file, no kernel.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

POLYNOMIAL: Final = 0x104C11DB7
"""P, its bit 32 included, highest power first."""

CRC_MASK: Final = 0x7FFFFFFF
# Compatible: 4.9 masks the CRC to 31 bits (UtilAll.crc32; spec F3.2).
"""Bits of the CRC that a record keeps."""


def reflected(value: int, bits: int) -> int:
    """Return the lowest `bits` bits of a number in reverse order."""
    return int(f"{value:0{bits}b}"[::-1], 2)


def power_of_x(exponent: int) -> int:
    """Return x^exponent mod P, highest power first."""
    remainder = 1
    for _ in range(exponent):
        remainder <<= 1
        if remainder >> 32:
            remainder ^= POLYNOMIAL
    return remainder


def multiplied(a: int, b: int) -> int:
    """Return a times b mod P, all three reflected (lowest power in bit 31)."""
    polynomial = reflected(POLYNOMIAL & 0xFFFFFFFF, 32)
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (polynomial if b & 1 else 0)
    return product


SUM_BLOCK_BYTES: Final = 4096
"""How far apart the checksums of a prefix stand that `resync` keeps."""

CRC_BUDGET_BYTES: Final = 16 << 20
"""What one `resync` spends on bodies before it keeps such checksums: 4 ms of work."""


def block_shifts(count: int = 40) -> npt.NDArray[np.int64]:
    """Return by what a CRC is multiplied when 1, 2, 4, … blocks of other bytes follow."""
    shift = reflected(power_of_x(8 * SUM_BLOCK_BYTES), 32)
    shifts = np.zeros(count, dtype=np.int64)
    for number in range(count):
        shifts[number] = shift
        shift = multiplied(shift, shift)
    return shifts


def fold_constants(distance_bits: int) -> tuple[int, int]:
    """Return the multipliers of a lane's lower and upper half for a fold over that many bits."""
    lower = reflected(power_of_x(distance_bits + 32), 32) << 1
    upper = reflected(power_of_x(distance_bits - 32), 32) << 1
    return lower, upper


def lane_constants() -> tuple[int, int, int, int]:
    """Return what makes a lane its remainder: x^96 and x^64 mod P, x^64 divided by P, and P."""
    quotient, rest = 0, 1 << 64
    for bit in range(32, -1, -1):
        if rest >> bit + 32 & 1:
            quotient |= 1 << bit
            rest ^= POLYNOMIAL << bit
    over_8, over_4 = (reflected(power_of_x(exponent), 32) << 1 for exponent in (96, 64))
    return over_8, over_4, reflected(quotient, 33), reflected(POLYNOMIAL, 33)
