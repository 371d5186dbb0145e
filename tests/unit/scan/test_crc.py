"""The numbers behind the CRC of a body."""

from __future__ import annotations

import zlib

from rocketstore.native.checksum import fold_constants, slicing_tables


def test_the_fold_constants_are_those_of_the_literature():
    # Gopal et al. 2009, also in zlib's and Linux's folding code.
    assert fold_constants(512) == (0x154442BD4, 0x1C6E41596)
    assert fold_constants(128) == (0x1751997D0, 0x0CCAA009E)


def test_the_first_table_steps_the_checksum_of_zlib_by_a_byte():
    table = slicing_tables(1)
    register = 0xFFFFFFFF
    for byte in b"Hello RocketMQ 0":
        register = (register >> 8) ^ int(table[(register ^ byte) & 0xFF])
    assert register ^ 0xFFFFFFFF == zlib.crc32(b"Hello RocketMQ 0")
