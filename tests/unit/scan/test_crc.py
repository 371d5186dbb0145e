"""The numbers behind the CRC of a body."""

import re
import zlib
from pathlib import Path

import numpy as np

from rocketstore.scan import kernels
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


def test_bodies_of_every_length_have_the_checksum_of_zlib():
    data = np.random.default_rng(5).integers(0, 256, 1200, np.uint8)
    sizes = np.arange(1100, dtype=np.int64)  # by tables, by 16, 64 and 256 bytes, and every rest
    for start in (0, 1, 15):
        found = np.zeros_like(sizes)
        places = np.full_like(sizes, start)
        assert kernels.slice_crcs(data, places, sizes, found) == len(sizes)
        expected = [zlib.crc32(data[start : start + size]) & 0x7FFFFFFF for size in sizes.tolist()]
        assert found.tolist() == expected
