"""Loads and stores inside kernels are big-endian, signed and need no alignment."""

from __future__ import annotations

import struct

import numba
import numpy as np
import pytest

from rocketstore.scan.compiled import memory

PATTERN = bytes.fromhex("00ff8001fe7f0280ff00017f80feff0000")


@pytest.mark.parametrize(
    ("load", "form"),
    [
        (memory.load_u8, ">B"),
        (memory.load_i16, ">h"),
        (memory.load_u16, ">H"),
        (memory.load_i32, ">i"),
        (memory.load_u32, ">I"),
        (memory.load_i64, ">q"),
        (memory.load_word, "<Q"),
    ],
)
def test_a_load_is_that_of_struct_at_every_place(load, form):
    run = numba.njit(lambda buffer, position: load(buffer, position))  # noqa: PLW0108 - numba compiles functions only
    buffer = np.frombuffer(PATTERN, dtype=np.uint8)
    for position in range(len(PATTERN) - struct.calcsize(form) + 1):
        assert run(buffer, position) == struct.unpack_from(form, PATTERN, position)[0]


@pytest.mark.parametrize(
    ("store", "load", "form"),
    [
        (memory.store_i16_address, memory.load_i16_address, ">h"),
        (memory.store_i32_address, memory.load_i32_address, ">i"),
        (memory.store_i64_address, memory.load_i64_address, ">q"),
    ],
)
def test_an_address_is_written_and_read_like_a_place_in_an_array(store, load, form):
    @numba.njit
    def run(buffer, position, value):
        address = memory.address_of(buffer, position)
        store(address, value)
        return load(address)

    for value in (0, 1, -1, -(2**15), 2**15 - 1):
        buffer = np.zeros(16, dtype=np.uint8)
        assert run(buffer, 3, value) == value
        assert buffer.tobytes() == bytes(3) + struct.pack(form, value).ljust(13, b"\0")


@pytest.mark.parametrize(
    ("store", "form"),
    [(memory.store_i16, ">h"), (memory.store_i32, ">i"), (memory.store_i64, ">q")],
)
def test_a_store_keeps_the_low_bits_and_touches_nothing_else(store, form):
    run = numba.njit(lambda buffer, position, value: store(buffer, position, value))  # noqa: PLW0108
    size = struct.calcsize(form)
    buffer = np.full(16, 0xEE, dtype=np.uint8)
    run(buffer, 5, -2)
    assert buffer.tobytes() == b"\xee" * 5 + struct.pack(form, -2) + b"\xee" * (11 - size)


def test_a_read_only_array_is_never_written():
    run = numba.njit(lambda buffer: memory.store_i32(buffer, 0, 1))
    with pytest.raises(numba.core.errors.TypingError):
        run(np.frombuffer(PATTERN, dtype=np.uint8))


def test_copies_may_overlap():
    @numba.njit
    def run(buffer):
        memory.copy_bytes(buffer, 2, buffer, 0, 6)
        start = memory.address_of(buffer, 8)
        memory.copy_address(start, memory.address_of(buffer, 2), 6)

    buffer = np.arange(16, dtype=np.uint8)
    run(buffer)
    assert buffer.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 14, 15]


def test_words_are_reversed_and_their_zero_bits_counted():
    run = numba.njit(
        lambda value: (
            memory.bswap64(value),
            memory.bswap32(value),
            memory.trailing_zeros(np.uint64(value)),
        )
    )
    assert run(0x10) == (0x10 << 56, 0x10 << 24, 4)


def test_what_one_thread_publishes_is_read_back():
    @numba.njit
    def run(numbers):
        memory.publish(numbers, 1, 42)
        return memory.load_published(numbers, 1)

    numbers = np.zeros(3, dtype=np.int64)
    assert run(numbers) == 42
    assert numbers.tolist() == [0, 42, 0]
