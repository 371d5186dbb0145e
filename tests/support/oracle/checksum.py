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

POLYNOMIAL: Final = 0x104C11DB7
"""P, its bit 32 included, highest power first."""


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
