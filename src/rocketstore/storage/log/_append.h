/* What the two parts of the compiled append share: the end of the log, and a record to be written.
 *
 * Law: no Python runs from the first look at the log's end to its move, so nobody is in between; no
 * byte is written before every length was compared with the mapping.
 */
#ifndef ROCKETSTORE_APPEND_H
#define ROCKETSTORE_APPEND_H

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <endian.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

enum {
    FIXED_SIZE_WITHOUT_HOSTS = 75,
    TOPIC_SIZE_MAX = 127,
    PROPERTIES_SIZE_MAX = 32767,
    BODY_CRC_MASK = 0x7FFFFFFF,
    TRANSACTION_MASK = 0xC,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    /* Four for each further property, eight for KEYS, two for each of UNIQ_KEY and TAGS. */
    MOST_PROPERTIES = 6,
    MOST_KEYS = 4,
    PROPERTY_PIECES = 4 * MOST_PROPERTIES + 2 * MOST_KEYS + 4,
    /* More than this at once is left to those who give up the interpreter's lock meanwhile. */
    SHORT_SIZE = 64 * 1024,
    SHORT_BATCH_SIZE = 256 * 1024,
};

/* The next offset of one queue, and what every record of it repeats. */
typedef struct {
    PyObject_HEAD
    PyObject *key;
    PyObject *topic;
    long long queue_id;
    long long next_offset;
    long long first_offset;
    long long stored_bytes;
} Cell;

/* Where objects of a class keep one attribute: looking that up costs more than the attribute. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t place;
} Slot;

/* The end of a CommitLog. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *cell_type;
    Slot write_position;
    PyObject *file;
    PyObject *mapping;
    PyObject *store_host;
    PyObject *crc32;
    PyObject *clock;
    Py_buffer view;
    long long base;
    long long position;
    long long limit;
    long long max_offset;
    long long last_store_timestamp_ms;
    long long locked_since_ms;
    int busy;
    int is_system_clock;
} State;

/* Bytes that somebody else keeps alive. */
typedef struct {
    const void *at;
    Py_ssize_t size;
} Piece;

/* What a put brings of a record. Its properties may stand in several pieces, which come last here: a
 * copy need not take those along that are not filled. */
typedef struct {
    long long flag, sys_flag, born, reconsume_times, prepared_offset;
    Piece body, born_host;
    Py_ssize_t properties_size;
    int property_pieces;
    int is_born_now;
    uint32_t crc;
    uint32_t size;
    Piece properties[PROPERTY_PIECES];
} Record;

/* Where records were put. */
typedef struct {
    long long offset, queue_offset, size, now;
} Place;

/* Both types know the others through this. */
typedef struct {
    PyTypeObject *cell_type;
    PyTypeObject *state_type;
} ModuleTypes;

extern struct PyModuleDef append_module;
extern PyType_Spec put_state_spec;

/* Make the names that puts use; 0 on an error. */
int prepare_puts(void);

/* The place of a slot in objects of a class, 0 when the attribute is kept in another way. */
Py_ssize_t place_in(PyTypeObject *type, PyObject *name);

/* Where an object keeps an attribute, NULL when that is no slot; looked up when the class is another one. */
static inline PyObject **
find_slot(Slot *slot, PyObject *object, PyObject *name)
{
    if (!Py_IS_TYPE(object, slot->type)) {
        slot->place = place_in(Py_TYPE(object), name);
        Py_XSETREF(slot->type, (PyTypeObject *)Py_NewRef(Py_TYPE(object)));
    }
    return slot->place == 0 ? NULL : (PyObject **)((char *)object + slot->place);
}

/* The time in ms, which may run Python; -1 on an error. */
int read_time(State *self, long long *now);

/* The checksum that a record keeps of a short body. */
uint32_t short_body_crc(Piece body);

/* Compute a record's size; 0 when it is not one that can be written here. */
int measure(const State *self, const Cell *cell, Record *record);

/* Append records that were measured: 1 done, 0 not the common case, -1 an error. */
int append_now(State *self, Cell *cell, Record *records, Py_ssize_t count, long long now, Place *place);

/* Read an exact int of at most `bits` bits; 0 when it is something else. */
static inline int
read_number(PyObject *value, int bits, long long *number)
{
    int overflow;
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) {
        return 0;
    }
    return bits == 64 || (*number >= INT32_MIN && *number <= INT32_MAX);
}

static inline Piece
piece_of(PyObject *bytes)
{
    return (Piece){PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes)};
}

/* Add to the properties of a record what fits it. */
static inline void
add_properties(Record *record, const void *at, Py_ssize_t size)
{
    record->properties[record->property_pieces++] = (Piece){at, size};
    record->properties_size += size;
}

#endif
