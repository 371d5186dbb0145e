/* What the compiled readers share of a record's bytes: where they stand, and how they are read.
 *
 * Law: nothing here compares a place with a map; the caller has.
 */
#ifndef ROCKETSTORE_RECORD_BYTES_H
#define ROCKETSTORE_RECORD_BYTES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <endian.h>
#include <stdint.h>
#include <string.h>

enum {
    FIXED_SIZE = 91,
    V6_EXTRA_SIZE = 12,
    BODY_AT = 88,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    AHEAD_BYTES = 1280,
    CACHE_LINE = 64,
};

static inline uint32_t
read_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return be32toh(value);
}

static inline int64_t
read_i64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return (int64_t)be64toh(value);
}

/* Have a record's first bytes on their way while something else is done. */
static inline void
fetch_ahead(const uint8_t *record, Py_ssize_t size)
{
    for (Py_ssize_t line = 0; line < size && line < AHEAD_BYTES; line += CACHE_LINE) {
        __builtin_prefetch(record + line);
    }
}

#endif
