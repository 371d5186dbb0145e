/* CRC-32 of a short text of bytes: carry-less multiplication where the CPU has it, else tables.
 *
 * Law: the numbers are those of zlib. The constants are those of tests/support/oracle/checksum.py (`fold_constants`
 * of 128, 512 and 2048 bits, `lane_constants`). A call of a library through the interpreter costs more than 100 bytes do.
 */
#ifndef ROCKETSTORE_CRC32_H
#define ROCKETSTORE_CRC32_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#include <immintrin.h>
#define HAS_FOLDING 1
#else
#define HAS_FOLDING 0
#endif

enum { CRC_TABLES = 16, CRC_STEP = 16, CRC_LANES = 4, CRC_FOLDED_STEP = 64, CRC_WIDE_STEP = 256 };

/* How far ahead of the folding memory is asked for, into the second-level cache, as long as more follows: what is walked
 * is mostly not in a cache. */
enum { CRC_AHEAD = 2048 };

/* crc_tables[k][b] is what byte b contributes when k bytes follow it. */
static uint32_t crc_tables[CRC_TABLES][256];
static int crc_folds, crc_folds_wide;

/* Runs when the module that includes this is loaded. */
__attribute__((constructor)) static void
crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
        }
        crc_tables[0][byte] = crc;
    }
    for (int k = 1; k < CRC_TABLES; k++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc_tables[k - 1][byte];
            crc_tables[k][byte] = (before >> 8) ^ crc_tables[0][before & 0xFF];
        }
    }
#if HAS_FOLDING
    crc_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc_folds_wide = __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
#endif
}

/* What eight bytes after `crc` contribute when `following` bytes come after them. */
static inline uint32_t
crc_of_word(uint32_t crc, const unsigned char *at, int following)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    word = le64toh(word) ^ crc;
    crc = 0;
    for (int i = 0; i < 8; i++) {
        crc ^= crc_tables[following + 7 - i][(word >> (8 * i)) & 0xFF];
    }
    return crc;
}

static inline uint32_t
crc_by_tables(uint32_t crc, const unsigned char *at, size_t size)
{
    for (; size >= CRC_TABLES; at += CRC_TABLES, size -= CRC_TABLES) {
        crc = crc_of_word(crc, at, 8) ^ crc_of_word(0, at + 8, 0);
    }
    for (; size > 0; at++, size--) {
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ *at) & 0xFF];
    }
    return crc;
}

#if HAS_FOLDING
/* Move a lane forward by the distance of `factors`, and add the data found there. */
__attribute__((target("pclmul,sse2"))) static inline __m128i
crc_fold(__m128i lane, __m128i factors, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(lane, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* What the 16 bytes of a lane come to: as 12, as 8, then what is left of a division by the polynomial (Barrett's). */
__attribute__((target("pclmul,sse2"))) static inline uint32_t
crc_of_lane(__m128i lane)
{
    const __m128i over_8_and_4 = _mm_set_epi64x(0x163cd6124, 0x0ccaa009e);
    const __m128i inverse_and_divisor = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i word = _mm_cvtsi32_si128(-1);
    lane = _mm_xor_si128(_mm_srli_si128(lane, 8), _mm_clmulepi64_si128(lane, over_8_and_4, 0x00));
    lane = _mm_xor_si128(_mm_srli_si128(lane, 4), _mm_clmulepi64_si128(_mm_and_si128(lane, word), over_8_and_4, 0x10));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, word), inverse_and_divisor, 0x10);
    lane = _mm_xor_si128(lane, _mm_clmulepi64_si128(_mm_and_si128(quotient, word), inverse_and_divisor, 0x00));
    return (uint32_t)_mm_cvtsi128_si32(_mm_srli_si128(lane, 4));
}

#define WIDE __attribute__((target("vpclmulqdq,avx512f")))

/* The same for the four lanes of a register. */
WIDE static inline __m512i
crc_fold_wide(__m512i lanes, __m512i factors, __m512i data)
{
    __m512i low = _mm512_clmulepi64_epi128(lanes, factors, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(lanes, factors, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(low, high), data);
}

/* Make lanes of the first whole wide steps, four registers abreast; return how many bytes those are. */
WIDE static size_t
crc_by_wide_folding(__m128i lanes[CRC_LANES], uint32_t crc, const unsigned char *at, size_t size, size_t ahead)
{
    const __m512i over_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));
    const __m512i over_64 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    const unsigned char *data = at;
    __m512i wide[4];
    for (int i = 0; i < 4; i++, data += sizeof wide[0]) {
        wide[i] = _mm512_loadu_si512(data);
    }
    wide[0] = _mm512_xor_si512(wide[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (size -= CRC_WIDE_STEP; size >= CRC_WIDE_STEP; size -= CRC_WIDE_STEP) {
        for (int i = 0; i < 4; i++, data += sizeof wide[0]) {
            __builtin_prefetch(data + ahead, 0, 2);
            wide[i] = crc_fold_wide(wide[i], over_256, _mm512_loadu_si512(data));
        }
    }
    for (int i = 1; i < 4; i++) {
        wide[i] = crc_fold_wide(wide[i - 1], over_64, wide[i]);
    }
    _mm512_storeu_si512(lanes, wide[3]);
    return (size_t)(data - at);
}

/* Loaded from byte 16 - k on, it moves bytes up by k; from 16 + k on, as many down: what moves in is zero. */
static const int8_t crc_moves[48] = {
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0,  1,  2,  3,  4,  5,  6,  7,
    8,  9,  10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
};

__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc_by_folding(uint32_t crc, const unsigned char *at, size_t size, size_t ahead)
{
    const __m128i *data = (const __m128i *)at;
    const __m128i over_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i over_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i lanes[CRC_LANES];
    size_t begun = 0;
    if (crc_folds_wide && size >= CRC_WIDE_STEP) {
        begun = crc_by_wide_folding(lanes, crc, at, size, ahead);
    }
    if (begun == 0) {
        begun = size < CRC_FOLDED_STEP ? CRC_STEP : CRC_FOLDED_STEP;
        lanes[0] = _mm_xor_si128(_mm_loadu_si128(data), _mm_cvtsi32_si128((int)crc));
        for (int i = 1; i < CRC_LANES && begun > CRC_STEP; i++) {
            lanes[i] = _mm_loadu_si128(data + i);
        }
    }
    data += begun / sizeof *data;
    size -= begun;
    for (; size >= CRC_FOLDED_STEP; size -= CRC_FOLDED_STEP) {
        __builtin_prefetch((const char *)data + ahead, 0, 2);
        for (int i = 0; i < CRC_LANES; i++) {
            lanes[i] = crc_fold(lanes[i], over_64, _mm_loadu_si128(data++));
        }
    }
    __m128i lane = lanes[0];
    for (int i = 1; i < CRC_LANES && begun > CRC_STEP; i++) {
        lane = crc_fold(lane, over_16, lanes[i]);
    }
    for (; size >= CRC_STEP; size -= CRC_STEP) {
        lane = crc_fold(lane, over_16, _mm_loadu_si128(data++));
    }
    if (size > 0) { /* the last 16 bytes are the next lane: what the lane has before them is folded into it */
        __m128i up = _mm_loadu_si128((const __m128i *)(crc_moves + size));
        __m128i down = _mm_loadu_si128((const __m128i *)(crc_moves + 16 + size));
        __m128i last = _mm_loadu_si128((const __m128i *)((const char *)data + size - CRC_STEP));
        last = _mm_blendv_epi8(last, _mm_shuffle_epi8(lane, down), up);
        lane = crc_fold(_mm_shuffle_epi8(lane, up), over_16, last);
    }
    return crc_of_lane(lane);
}
#endif

/* The CRC-32 of bytes whose beginning has `crc` and whose rest is given; `more` bytes follow those, which are read next. */
static uint32_t
crc32_continued(uint32_t crc, const unsigned char *at, size_t size, size_t more)
{
#if HAS_FOLDING
    if (crc_folds && size >= CRC_STEP) {
        return ~crc_by_folding(~crc, at, size, more < CRC_AHEAD ? 0 : CRC_AHEAD);
    }
#endif
    return ~crc_by_tables(~crc, at, size);
}

#endif
