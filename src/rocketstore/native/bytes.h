/* Reads and writes of numbers in a stretch of bytes, for the modules of rocketstore.native.
 *
 * Law: numbers are big-endian and need no alignment. A caller compares every position with the
 * stretch before it uses it; a build with ROCKETSTORE_CHECKED ends the process where one did not.
 */
#ifndef ROCKETSTORE_BYTES_H
#define ROCKETSTORE_BYTES_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crc32.h"

typedef struct {
    unsigned char *start;
    ptrdiff_t size;
} Bytes;

#ifdef ROCKETSTORE_CHECKED
#define CHECK_RANGE(bytes, at, count)                                                               \
    do {                                                                                            \
        if ((at) < 0 || (count) < 0 || (at) > (bytes).size - (ptrdiff_t)(count)) {                  \
            abort();                                                                                \
        }                                                                                           \
    } while (0)
#else
#define CHECK_RANGE(bytes, at, count) ((void)0)
#endif

/* A run of numbers; the caller knows how many there are. */
typedef long long *Numbers;

/* No bytes have an address too: memcpy of none from NULL is undefined. */
static inline Bytes
bytes_at(const void *start, ptrdiff_t size)
{
    return (Bytes){(unsigned char *)(size > 0 ? start : ""), size};
}

/* A range as C knows texts. */
static inline const char *
chars_at(Bytes bytes, ptrdiff_t at, ptrdiff_t size)
{
    CHECK_RANGE(bytes, at, size);
    return (const char *)bytes.start + at;
}

/* Spell a range in hexadecimal digits; return how many there are. */
static inline ptrdiff_t
write_hex(char *to, Bytes bytes, ptrdiff_t at, ptrdiff_t size)
{
    static const char digits[] = "0123456789ABCDEF";
    CHECK_RANGE(bytes, at, size);
    for (ptrdiff_t i = 0; i < size; i++) {
        *to++ = digits[bytes.start[at + i] >> 4];
        *to++ = digits[bytes.start[at + i] & 15];
    }
    return 2 * size;
}

/* Whether two ranges hold the same bytes. */
static inline int
equal_bytes(Bytes first, ptrdiff_t at, Bytes second, ptrdiff_t other, ptrdiff_t size)
{
    CHECK_RANGE(first, at, size);
    CHECK_RANGE(second, other, size);
    return memcmp(first.start + at, second.start + other, (size_t)size) == 0;
}

#define DEFINE_LOAD(name, unsigned_type, in_order, type, result)                                    \
    static inline result name(Bytes bytes, ptrdiff_t at)                                            \
    {                                                                                               \
        unsigned_type value;                                                                        \
        CHECK_RANGE(bytes, at, sizeof value);                                                       \
        memcpy(&value, bytes.start + at, sizeof value);                                             \
        return (type)in_order(value);                                                               \
    }

DEFINE_LOAD(load_u8, uint8_t, , uint8_t, long long)
DEFINE_LOAD(load_i16, uint16_t, be16toh, int16_t, long long)
DEFINE_LOAD(load_u32, uint32_t, be32toh, uint32_t, long long)
DEFINE_LOAD(load_i32, uint32_t, be32toh, int32_t, long long)
DEFINE_LOAD(load_i64, uint64_t, be64toh, int64_t, long long)
/* Its lowest byte comes first. */
DEFINE_LOAD(load_word, uint64_t, le64toh, uint64_t, unsigned long long)

#define DEFINE_STORE(name, unsigned_type, in_order)                                                 \
    static inline void name(Bytes bytes, ptrdiff_t at, long long number)                            \
    {                                                                                               \
        unsigned_type value = in_order((unsigned_type)number);                                      \
        CHECK_RANGE(bytes, at, sizeof value);                                                       \
        memcpy(bytes.start + at, &value, sizeof value);                                             \
    }

DEFINE_STORE(store_u8, uint8_t, )
DEFINE_STORE(store_i16, uint16_t, htobe16)
DEFINE_STORE(store_i32, uint32_t, htobe32)
DEFINE_STORE(store_i64, uint64_t, htobe64)

/* Bytes of a mapping that its owner holds, by their address. */
static inline Bytes
bytes_mapped(long long address, ptrdiff_t size)
{
    return bytes_at((const void *)(uintptr_t)address, size);
}

static inline void
copy_bytes(Bytes target, ptrdiff_t to, Bytes source, ptrdiff_t at, ptrdiff_t size)
{
    CHECK_RANGE(target, to, size);
    CHECK_RANGE(source, at, size);
    if (size == 8) { /* a host, say: no call for it */
        memcpy(target.start + to, source.start + at, 8);
    } else {
        memcpy(target.start + to, source.start + at, (size_t)size);
    }
}

static inline void
clear_bytes(Bytes bytes, ptrdiff_t at, ptrdiff_t stop)
{
    CHECK_RANGE(bytes, at, stop - at);
    if (stop > at) /* what was never opened has no address */
        memset(bytes.start + at, 0, (size_t)(stop - at));
}

/* Let other threads see a number after everything that was written before it. */
static inline void
publish(Numbers numbers, ptrdiff_t at, long long number)
{
    __atomic_store_n(numbers + at, number, __ATOMIC_RELEASE);
}

/* How many zero bits stand below the lowest one of a word that is not zero. */
static inline int
trailing_zeros(unsigned long long word)
{
    return __builtin_ctzll(word);
}

/* Where a byte stands first in [at, end), or `end`. */
static inline ptrdiff_t
find_byte(Bytes bytes, ptrdiff_t at, ptrdiff_t end, int byte)
{
    CHECK_RANGE(bytes, at, end - at);
    const uint64_t each = 0x0101010101010101u;
    for (; at + 8 <= end; at += 8) {
        uint64_t word = load_word(bytes, at) ^ each * (unsigned)byte;
        uint64_t zeros = (word - each) & ~word & each << 7;
        if (zeros != 0) {
            return at + (__builtin_ctzll(zeros) >> 3);
        }
    }
    for (; at < end && bytes.start[at] != byte; at++) {
    }
    return at;
}

/* Ask for the cache line of a position, which may be outside. */
static inline void
prefetch(Bytes bytes, ptrdiff_t at)
{
    __builtin_prefetch((const void *)((uintptr_t)bytes.start + (uintptr_t)at));
}

/* CRC-32 of a range as a record keeps it, masked to 31 bits. */
static inline long long
crc_of(Bytes bytes, ptrdiff_t at, ptrdiff_t size)
{
    CHECK_RANGE(bytes, at, size);
    return crc32_continued(0, bytes.start + at, (size_t)size) & 0x7FFFFFFF;
}

/* The CRC-32 of bytes whose beginning has `crc` and whose rest is the range, unmasked. */
static inline long long
crc_continued(Bytes bytes, ptrdiff_t at, ptrdiff_t stop, long long crc)
{
    CHECK_RANGE(bytes, at, stop - at);
    return crc32_continued((uint32_t)crc, bytes.start + at, (size_t)(stop - at));
}

#endif
