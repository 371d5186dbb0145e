"""The numbers behind the CRC of a body."""

from __future__ import annotations

import re
from pathlib import Path

from support.oracle.checksum import fold_constants, lane_constants


def test_the_fold_constants_are_those_of_the_literature():
    # Gopal et al. 2009, also in zlib's and Linux's folding code.
    assert fold_constants(512) == (0x154442BD4, 0x1C6E41596)
    assert fold_constants(128) == (0x1751997D0, 0x0CCAA009E)


def test_the_header_folds_with_these_numbers():
    header = Path(__file__).parents[3] / "src/rocketstore/native/crc32.h"
    numbers = {int(one, 16) for one in re.findall(r"0x[0-9a-f]+", header.read_text("utf-8"))}
    for distance_bits in (128, 512, 2048):
        assert set(fold_constants(distance_bits)) <= numbers
    assert {*lane_constants()} <= numbers
