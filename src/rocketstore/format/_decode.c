/* Decode one record of the CommitLog: the common case of `format.record.decode_plainly`, compiled.
 *
 * Law: a message comes out only if every check of `decode_plainly` holds, and then it equals what that
 * returns. Everything else (a length that does not agree, a wrong magic, address or checksum, an odd
 * type) gives None, and `decode_plainly` is asked, which says what is wrong. Every length is compared
 * with the buffer before a byte is read.
 *
 * Source: MessageDecoder.decode, CommitLog.checkMessageAndReturnSize of 4.9 (docs/format/record.md).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "_record_text.h"

enum {
    HOST_V4_SIZE = 8,
    HOST_V6_SIZE = 20,
    HEAD_SIZE_WITHOUT_HOSTS = 72,
    FIXED_SIZE = 91,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
    PROPERTIES_SIZE_MAX = 32767,
    KNOWN_NAMES = 16,
    FIELD_COUNT = 18,
};
static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu, CRC_MASK = 0x7FFFFFFFu;

static const char *const FIELD_NAMES[FIELD_COUNT] = {
    "topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "flag",
    "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "reconsume_times",
    "prepared_transaction_offset", "body_crc", "raw_body", "raw_properties", "properties",
    "message_id",
};

/* A text that was decoded lately, and the bytes it came from: most messages repeat it. */
typedef struct {
    PyObject *text;
    uint8_t size;
    uint8_t bytes[127];
} Known;

typedef struct {
    PyObject_HEAD
    PyObject *message_type;
    PyObject *crc32;
    PyObject *decode_host;
    PyObject *decode_properties;
    PyObject *field_names;
    Known topic, born_host, store_host;
    Known names[KNOWN_NAMES];
} Decoder;

static inline int32_t
read_i32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return (int32_t)be32toh(value);
}

static inline int64_t
read_i64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return (int64_t)be64toh(value);
}

static inline int
read_i16(const uint8_t *at)
{
    return (int16_t)(at[0] << 8 | at[1]);
}

static int
is_ascii(const uint8_t *at, Py_ssize_t size)
{
    uint8_t bits = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        bits |= at[i];
    }
    return !(bits & 0x80);
}

static int
is_known(const Known *known, const uint8_t *at, Py_ssize_t size)
{
    return known->text != NULL && known->size == size && memcmp(known->bytes, at, (size_t)size) == 0;
}

static void
remember(Known *known, PyObject *text, const uint8_t *at, Py_ssize_t size)
{
    if (size <= (Py_ssize_t)sizeof known->bytes) {
        known->size = (uint8_t)size;
        memcpy(known->bytes, at, (size_t)size);
        Py_XSETREF(known->text, Py_NewRef(text));
    }
}

static PyObject *
topic_text(Decoder *self, const uint8_t *at, Py_ssize_t size)
{
    if (is_known(&self->topic, at, size)) {
        return Py_NewRef(self->topic.text);
    }
    PyObject *text = PyUnicode_DecodeUTF8((const char *)at, size, "replace");
    if (text != NULL) {
        remember(&self->topic, text, at, size);
    }
    return text;
}

static PyObject *
host_text(Decoder *self, Known *known, const uint8_t *at, Py_ssize_t size)
{
    if (is_known(known, at, size)) {
        return Py_NewRef(known->text);
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)at, size);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *text = PyObject_CallOneArg(self->decode_host, bytes);
    if (text != NULL) {
        remember(known, text, (const uint8_t *)PyBytes_AS_STRING(bytes), size);
    }
    Py_DECREF(bytes);
    return text;
}

static PyObject *
ascii_text(const uint8_t *at, Py_ssize_t size)
{
    PyObject *text = PyUnicode_New(size, 127);
    if (text != NULL && size > 0) {
        memcpy(PyUnicode_1BYTE_DATA(text), at, (size_t)size);
    }
    return text;
}

static PyObject *
name_text(Decoder *self, const uint8_t *at, Py_ssize_t size)
{
    Known *known = &self->names[(at[0] + size) % KNOWN_NAMES];
    if (is_known(known, at, size)) {
        return Py_NewRef(known->text);
    }
    PyObject *text = ascii_text(at, size);
    if (text != NULL) {
        remember(known, text, at, size);
    }
    return text;
}

/* As `properties.decode_properties`; bytes that are not ASCII are left to it. */
static PyObject *
properties_dict(Decoder *self, PyObject *block)
{
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(block);
    const uint8_t *end = at + PyBytes_GET_SIZE(block);
    if (!is_ascii(at, end - at)) {
        return PyObject_CallOneArg(self->decode_properties, block);
    }
    PyObject *properties = PyDict_New();
    while (properties != NULL && at < end) {
        const uint8_t *part_end = memchr(at, 2, (size_t)(end - at));
        part_end = part_end == NULL ? end : part_end;
        const uint8_t *name_end = memchr(at, 1, (size_t)(part_end - at));
        if (name_end != NULL && name_end > at && name_end + 1 < part_end) {
            PyObject *name = name_text(self, at, name_end - at);
            PyObject *value = ascii_text(name_end + 1, part_end - name_end - 1);
            if (name == NULL || value == NULL || PyDict_SetItem(properties, name, value) < 0) {
                Py_CLEAR(properties);
            }
            Py_XDECREF(name);
            Py_XDECREF(value);
        }
        at = part_end + 1;
    }
    return properties;
}

static PyObject *
message_id(const uint8_t *store_host, Py_ssize_t host_size, const uint8_t *address)
{
    static const char digits[] = "0123456789ABCDEF";
    PyObject *text = PyUnicode_New(2 * (host_size + 8), 127);
    if (text == NULL) {
        return NULL;
    }
    uint8_t *to = PyUnicode_1BYTE_DATA(text);
    for (Py_ssize_t i = 0; i < host_size + 8; i++) {
        uint8_t byte = i < host_size ? store_host[i] : address[i - host_size];
        *to++ = (uint8_t)digits[byte >> 4];
        *to++ = (uint8_t)digits[byte & 15];
    }
    return text;
}

/* Whether `body` has the stored checksum; -1 with an error set. */
static int
has_checksum(Decoder *self, PyObject *body, int32_t stored)
{
    PyObject *number = PyObject_CallOneArg(self->crc32, body);
    if (number == NULL) {
        return -1;
    }
    unsigned long crc = PyLong_AsUnsignedLongMask(number);
    Py_DECREF(number);
    if (crc == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    return stored >= 0 && ((uint32_t)crc & CRC_MASK) == (uint32_t)stored;
}

/* Where the parts of a record are, relative to its start. */
typedef struct {
    Py_ssize_t size, born_host_size, store_host_size, body_at, body_size, topic_at, topic_size;
    Py_ssize_t properties_at, properties_size;
} Places;

/* Find the parts of the record at `at`; 0 when any length, the address or the text does not hold. */
static int
find_places(const uint8_t *at, Py_ssize_t room, int64_t address, Places *places)
{
    if (room < FIXED_SIZE) {
        return 0;
    }
    uint32_t magic = (uint32_t)read_i32(at + 4);
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || read_i64(at + 28) != address) {
        return 0;
    }
    Py_ssize_t length_size = magic == MAGIC_V1 ? 1 : 2;
    int32_t sys_flag = read_i32(at + 36);
    places->size = read_i32(at);
    places->born_host_size = sys_flag & BORN_HOST_V6 ? HOST_V6_SIZE : HOST_V4_SIZE;
    places->store_host_size = sys_flag & STORE_HOST_V6 ? HOST_V6_SIZE : HOST_V4_SIZE;
    Py_ssize_t head = HEAD_SIZE_WITHOUT_HOSTS + places->born_host_size + places->store_host_size;
    if (places->size > room || places->size < head + length_size + 2) {
        return 0;
    }
    places->body_at = head;
    places->body_size = read_i32(at + head - 4);
    if (places->body_size < 0
        || places->body_size > places->size - head - length_size - 2) {
        return 0;
    }
    Py_ssize_t length_at = head + places->body_size;
    places->topic_at = length_at + length_size;
    places->topic_size = length_size == 1 ? (int8_t)at[length_at] : read_i16(at + length_at);
    if (places->topic_size < 0 || places->topic_at + places->topic_size + 2 > places->size) {
        return 0;
    }
    places->properties_at = places->topic_at + places->topic_size + 2;
    places->properties_size = read_i16(at + places->properties_at - 2);
    return places->properties_size >= 0
        && places->properties_at + places->properties_size == places->size
        && is_text_whole(at + places->topic_at, places->size - places->topic_at, places->topic_size,
                         address + places->topic_at);
}

static PyObject *
bytes_of(const uint8_t *at, Py_ssize_t size)
{
    return PyBytes_FromStringAndSize((const char *)at, size);
}

/* The message of an intact record; NULL without an error when its checksum is another. */
static PyObject *
message_of(Decoder *self, const uint8_t *at, const Places *places, int check_crc)
{
    const uint8_t *store_time_at = at + 48 + places->born_host_size;
    const uint8_t *store_host_at = store_time_at + 8;
    const uint8_t *tail_at = store_host_at + places->store_host_size;
    PyObject *fields[FIELD_COUNT] = {NULL};
    PyObject *message = NULL;
    fields[14] = bytes_of(at + places->body_at, places->body_size);
    if (fields[14] == NULL) {
        return NULL;
    }
    if (check_crc && places->body_size > 0) {
        if (has_checksum(self, fields[14], read_i32(at + 8)) <= 0) {
            Py_DECREF(fields[14]);
            return NULL;
        }
    }
    fields[0] = topic_text(self, at + places->topic_at, places->topic_size);
    fields[1] = PyLong_FromLong(read_i32(at + 12));
    fields[2] = PyLong_FromLongLong(read_i64(at + 20));
    fields[3] = PyLong_FromLongLong(read_i64(at + 28));
    fields[4] = PyLong_FromSsize_t(places->size);
    fields[5] = PyLong_FromLong(read_i32(at + 36));
    fields[6] = PyLong_FromLong(read_i32(at + 16));
    fields[7] = PyLong_FromLongLong(read_i64(at + 40));
    fields[8] = host_text(self, &self->born_host, at + 48, places->born_host_size);
    fields[9] = PyLong_FromLongLong(read_i64(store_time_at));
    fields[10] = host_text(self, &self->store_host, store_host_at, places->store_host_size);
    fields[11] = PyLong_FromLong(read_i32(tail_at));
    fields[12] = PyLong_FromLongLong(read_i64(tail_at + 4));
    fields[13] = PyLong_FromLong(read_i32(at + 8));
    fields[15] = bytes_of(at + places->properties_at, places->properties_size);
    fields[16] = fields[15] == NULL ? NULL : properties_dict(self, fields[15]);
    fields[17] = message_id(store_host_at, places->store_host_size, at + 28);
    int is_whole = 1;
    for (int i = 0; i < FIELD_COUNT; i++) {
        is_whole &= fields[i] != NULL;
    }
    if (is_whole) {
        message = PyObject_Vectorcall(self->message_type, fields, 0, self->field_names);
    }
    for (int i = 0; i < FIELD_COUNT; i++) {
        Py_XDECREF(fields[i]);
    }
    return message;
}

/* decode(view, position, base, check_crc) */
static PyObject *
decoder_decode(Decoder *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "decode takes view, position, base and check_crc");
        return NULL;
    }
    long long position = PyLong_Check(args[1]) ? PyLong_AsLongLong(args[1]) : -1;
    long long base = PyLong_Check(args[2]) ? PyLong_AsLongLong(args[2]) : -1;
    int check_crc = PyObject_IsTrue(args[3]);
    Py_buffer view;
    if (PyErr_Occurred() || position < 0 || base < 0 || base > INT64_MAX - position
        || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Places places;
    PyObject *message = NULL;
    if (position <= view.len) {
        const uint8_t *at = (const uint8_t *)view.buf + position;
        if (find_places(at, view.len - (Py_ssize_t)position, base + position, &places)) {
            message = message_of(self, at, &places, check_crc);
        }
    }
    PyBuffer_Release(&view);
    if (message == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return message;
}

/* --- the type -------------------------------------------------------------------------------- */

static int
decoder_init(Decoder *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"message_type", "crc32", "decode_host", "decode_properties", NULL};
    PyObject *message_type, *crc32, *decode_host, *decode_properties;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOOO", names, &message_type, &crc32, &decode_host, &decode_properties)) {
        return -1;
    }
    PyObject *field_names = PyTuple_New(FIELD_COUNT);
    for (int i = 0; field_names != NULL && i < FIELD_COUNT; i++) {
        PyObject *name = PyUnicode_InternFromString(FIELD_NAMES[i]);
        if (name == NULL) {
            Py_CLEAR(field_names);
            break;
        }
        PyTuple_SET_ITEM(field_names, i, name);
    }
    if (field_names == NULL) {
        return -1;
    }
    Py_XSETREF(self->field_names, field_names);
    Py_XSETREF(self->message_type, Py_NewRef(message_type));
    Py_XSETREF(self->crc32, Py_NewRef(crc32));
    Py_XSETREF(self->decode_host, Py_NewRef(decode_host));
    Py_XSETREF(self->decode_properties, Py_NewRef(decode_properties));
    return 0;
}

static int
decoder_traverse(Decoder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->message_type);
    Py_VISIT(self->crc32);
    Py_VISIT(self->decode_host);
    Py_VISIT(self->decode_properties);
    return 0;
}

static int
decoder_clear(Decoder *self)
{
    Py_CLEAR(self->message_type);
    Py_CLEAR(self->crc32);
    Py_CLEAR(self->decode_host);
    Py_CLEAR(self->decode_properties);
    Py_CLEAR(self->field_names);
    Py_CLEAR(self->topic.text);
    Py_CLEAR(self->born_host.text);
    Py_CLEAR(self->store_host.text);
    for (int i = 0; i < KNOWN_NAMES; i++) {
        Py_CLEAR(self->names[i].text);
    }
    return 0;
}

static void
decoder_dealloc(Decoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    decoder_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef decoder_methods[] = {
    {"decode", (PyCFunction)(void (*)(void))decoder_decode, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Makes messages of intact records, and None of all else."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, decoder_init},
    {Py_tp_traverse, decoder_traverse},
    {Py_tp_clear, decoder_clear},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "rocketstore.format._decode.Decoder",
    .basicsize = sizeof(Decoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = decoder_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &decoder_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Decoder", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_decode",
    .m_doc = "Decode one record of the CommitLog, compiled.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__decode(void)
{
    return PyModuleDef_Init(&module_definition);
}
