"""The numbers behind the CRC kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

from rocketstore.scan.crc import fold_constants, slicing_tables


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


def test_a_processor_without_carryless_multiplication_uses_the_tables(tmp_path):
    code = (
        "import numpy as np, zlib\n"
        "from rocketstore.scan.compiled import crc\n"
        "data = np.arange(250, dtype=np.uint8)\n"
        "assert not crc.has_carryless_multiply()\n"
        "assert crc.body_crc(data, 1, 249) == zlib.crc32(data[1:]) & 0x7FFFFFFF\n"
        "print('equal')"
    )
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout == "equal\n"
