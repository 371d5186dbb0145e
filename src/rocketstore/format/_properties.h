/* Which texts may stand between the separators of properties as they are; for all who encode them. */
#ifndef ROCKETSTORE_PROPERTIES_H
#define ROCKETSTORE_PROPERTIES_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { NAME_END = 1, VALUE_END = 2 };

/* Whether one of eight bytes is zero: the usual test, of which only the answer as a whole is right. */
static inline uint64_t
has_zero(uint64_t bytes)
{
    return (bytes - 0x0101010101010101u) & ~bytes & 0x8080808080808080u;
}

/* Whether a text may stand between separators as it is, and last of all: not with a zero at its end. */
static inline int
is_simple(PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    const uint8_t *at = PyUnicode_1BYTE_DATA(text);
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    uint64_t found = size > 0 && at[size - 1] == 0, bytes;
    for (; size >= (Py_ssize_t)sizeof bytes; at += sizeof bytes, size -= sizeof bytes) {
        memcpy(&bytes, at, sizeof bytes);
        found |= has_zero(bytes ^ 0x0101010101010101u * NAME_END)
                 | has_zero(bytes ^ 0x0101010101010101u * VALUE_END);
    }
    for (; size > 0; at++, size--) {
        found |= (*at == NAME_END) | (*at == VALUE_END);
    }
    return found == 0;
}

/* Whether a value stands for nothing: None, an empty text, no key. */
static inline int
is_absent(PyObject *value)
{
    return value == Py_None
        || (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 0)
        || (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) == 0);
}

#endif
