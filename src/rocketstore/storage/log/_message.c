/* Read what a put brings: the fields of a message, or of a prepared one, as a record to be written.
 *
 * Law: a message that is not plain (many properties, a text that is not ASCII, an odd type, a long body)
 * is not read, but left to the plain ways. Nothing here runs Python, so what is borrowed stays.
 */
#include "_put.h"
#include "../../format/_properties.h"

static const char *const FIELD_NAMES[MESSAGE_FIELDS] = {
    "topic",
    "body",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "wait_flush",
    "keys",
    "unique_key",
    "tags",
};

int
find_places(PyObject *type, int count, Layout *layout)
{
    Py_CLEAR(layout->type);
    if (!PyType_Check(type)) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        PyObject *found = PyObject_GetAttrString(type, FIELD_NAMES[i]);
        if (found == NULL) {
            PyErr_Clear();
            return 0;
        }
        int is_slot = Py_IS_TYPE(found, &PyMemberDescr_Type)
                      && ((PyDescrObject *)found)->d_type == (PyTypeObject *)type
                      && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
        layout->places[i] = is_slot ? ((PyMemberDescrObject *)found)->d_member->offset : 0;
        Py_DECREF(found);
        if (!is_slot) {
            return 0;
        }
    }
    Py_XSETREF(layout->type, (PyTypeObject *)Py_NewRef(type));
    return 1;
}

/* Read the fields that a message and a prepared one have in common. */
static int
read_common(const Layout *layout, PyObject *object, const Target *target, Record *record)
{
    for (int i = 0; i < PREPARED_FIELDS; i++) {
        if (field_of(layout, object, i) == NULL) {
            return 0;
        }
    }
    PyObject *born = field_of(layout, object, BORN_TIMESTAMP);
    record->born_host = piece_of(target->born_host);
    record->is_born_now = born == Py_None;
    record->born = 0;
    record->property_pieces = 0;
    record->properties_size = 0;
    if (!read_number(field_of(layout, object, FLAG), 32, &record->flag)
        || !read_number(field_of(layout, object, SYS_FLAG), 32, &record->sys_flag)
        || !read_number(field_of(layout, object, RECONSUME_TIMES), 32, &record->reconsume_times)
        || !read_number(field_of(layout, object, PREPARED_OFFSET), 64, &record->prepared_offset)
        || (born != Py_None && !read_number(born, 64, &record->born)) || record->sys_flag < 0) {
        return 0;
    }
    return 1;
}

static int
read_body(Putter *self, PyObject *body, Record *record)
{
    if (!PyBytes_CheckExact(body)) {
        return 0;
    }
    record->body = piece_of(body);
    return record->body.size <= SHORT_SIZE && record->body.size <= self->longest_body;
}

/* Add one of the properties that stand in fields of their own. */
static int
add_field(Record *record, const char *marked_name, size_t name_size, PyObject *value)
{
    if (value == NULL) {
        return 0;
    }
    if (is_absent(value)) {
        return 1;
    }
    if (!is_simple(value)) {
        return 0;
    }
    /* The name with the separator before it, which the first one goes without. */
    int is_first = record->property_pieces == 0;
    add_properties(record, marked_name + is_first, (Py_ssize_t)name_size - is_first);
    add_properties(record, PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value));
    return 1;
}

#define ADD_FIELD(record, name, value) add_field(record, "\2" name "\1", sizeof name + 1, value)

/* Add a text that may stand between separators as it is. */
static int
add_text(Record *record, PyObject *text)
{
    if (!is_simple(text)) {
        return 0;
    }
    add_properties(record, PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text));
    return 1;
}

/* Add KEYS: one key, or several, none of them empty or with a blank in it. */
static int
add_keys(Record *record, PyObject *keys)
{
    if (keys == NULL || !PyTuple_CheckExact(keys) || PyTuple_GET_SIZE(keys) == 0) {
        return ADD_FIELD(record, "KEYS", keys);
    }
    if (PyTuple_GET_SIZE(keys) > MOST_KEYS) {
        return 0;
    }
    static const char marked_name[] = "\2KEYS\1";
    int is_first = record->property_pieces == 0;
    add_properties(record, marked_name + is_first, (Py_ssize_t)sizeof marked_name - 1 - is_first);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (i > 0) {
            add_properties(record, " ", 1);
        }
        if (!add_text(record, key) || PyUnicode_GET_LENGTH(key) == 0
            || memchr(PyUnicode_1BYTE_DATA(key), ' ', (size_t)PyUnicode_GET_LENGTH(key)) != NULL) {
            return 0;
        }
    }
    return 1;
}

/* Whether a property asks for something that only the plain ways look at. */
static int
is_special(PyObject *name)
{
    static const char *const names[] = {"DELAY", "INNER_MULTI_DISPATCH", "WAIT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t size = strlen(names[i]);
        if ((size_t)PyUnicode_GET_LENGTH(name) == size
            && memcmp(PyUnicode_1BYTE_DATA(name), names[i], size) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Add further properties; they come before all others. */
static int
add_further(Record *record, PyObject *properties)
{
    if (!PyDict_CheckExact(properties) || PyDict_GET_SIZE(properties) > MOST_PROPERTIES) {
        return 0;
    }
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(properties, &at, &name, &value)) {
        if (record->property_pieces > 0) {
            add_properties(record, "\2", 1);
        }
        if (!add_text(record, name) || PyUnicode_GET_LENGTH(name) == 0 || is_special(name)) {
            return 0;
        }
        add_properties(record, "\1", 1);
        if (!add_text(record, value)) {
            return 0;
        }
    }
    return 1;
}

int
read_message(Putter *self, PyObject *message, const Target *target, Record *record)
{
    const Layout *layout = &self->message;
    if (!read_common(layout, message, target, record)) {
        return 0;
    }
    record->sys_flag &= ~(long long)(BORN_HOST_V6 | STORE_HOST_V6);
    record->sys_flag |= target->host_bits;
    return read_body(self, field_of(layout, message, BODY), record)
           && add_further(record, field_of(layout, message, PROPERTIES))
           && add_keys(record, field_of(layout, message, KEYS))
           && ADD_FIELD(record, "UNIQ_KEY", field_of(layout, message, UNIQUE_KEY))
           && ADD_FIELD(record, "TAGS", field_of(layout, message, TAGS))
           && measure(self->log, target->cell, record);
}

int
read_prepared(Putter *self, PyObject *prepared, PyObject *body, Target *target, Record *record)
{
    const Layout *layout = &self->prepared;
    PyObject *host = field_of(layout, prepared, BORN_HOST);
    PyObject *properties = field_of(layout, prepared, PROPERTIES);
    if (host == NULL || !PyBytes_CheckExact(host)) {
        return 0;
    }
    target->born_host = Py_NewRef(host);
    if (!read_common(layout, prepared, target, record) || !PyBytes_CheckExact(properties)) {
        return 0;
    }
    record->sys_flag |= self->host_bits;
    add_properties(record, PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties));
    return read_body(self, body == Py_None ? field_of(layout, prepared, BODY) : body, record)
           && measure(self->log, target->cell, record);
}
