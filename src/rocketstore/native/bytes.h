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

/* Has a line of memory come near that is about to be written. */
static inline void
prefetch_to_write(const unsigned char *address)
{
#if defined(__x86_64__)
    /* The compiler's builtin prefetches for reading only, unless it is built for one processor. */
    __asm__ volatile("prefetchw %0" : : "m"(*address));
#else
    __builtin_prefetch(address, 1);
#endif
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

/* Where a byte stands first in [at, end), or end. */
static inline ptrdiff_t
find_byte(Bytes bytes, ptrdiff_t at, ptrdiff_t end, int byte)
{
    CHECK_RANGE(bytes, at, end - at);
#if HAS_FOLDING /* crc32.h includes what compares sixteen bytes at once; the last ones may go on after the end */
    for (; at < end && at + 16 <= bytes.size; at += 16) {
        __m128i sixteen = _mm_loadu_si128((const __m128i *)(bytes.start + at));
        int equal = _mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, _mm_set1_epi8((char)byte)));
        if (equal != 0) {
            at += __builtin_ctz(equal);
            return at < end ? at : end;
        }
    }
#endif
    const void *found = at < end ? memchr(bytes.start + at, byte, end - at) : NULL;
    return found == NULL ? end : (const unsigned char *)found - bytes.start;
}

#endif
