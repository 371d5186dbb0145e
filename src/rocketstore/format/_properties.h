/* Which texts may stand between the separators of properties as they are; for all who encode them. */
#ifndef ROCKETSTORE_PROPERTIES_H
#define ROCKETSTORE_PROPERTIES_H

#include <Python.h>

enum { NAME_END = 1, VALUE_END = 2 };

/* Whether a text may stand between separators as it is. */
static inline int
is_simple(PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return 0;
    }
    const uint8_t *at = PyUnicode_1BYTE_DATA(text);
    int found = 0;
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        found |= (at[i] == NAME_END) | (at[i] == VALUE_END);
    }
    return !found;
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
