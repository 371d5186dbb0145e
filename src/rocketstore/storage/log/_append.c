/* Append one record to a mapped CommitLog file: the inside of `CommitLog.append_plainly`, compiled.
 *
 * Law: only the common case is done here, without giving up the interpreter's lock between the first
 * look at the log's end and its move, so no other thread of Python can be in between. Everything else
 * (no room, a clock that went back, a transaction, an odd type, a batch under way) is left to
 * `append_plainly`, which is called with the same arguments. Every length is compared with the mapping
 * before a byte is written; the bytes are those of `format.record.encode_record`.
 *
 * Source: CommitLog.DefaultAppendMessageCallback.doAppend of 4.9 (docs/format/record.md).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <endian.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    FIXED_SIZE_WITHOUT_HOSTS = 75,
    TRANSACTION_MASK = 0xC,
    BORN_HOST_V6 = 0x10,
    STORE_HOST_V6 = 0x20,
};
static const uint32_t MAGIC = 0xDAA320A7u;

static PyObject *append_plainly_name, *write_position_name;
static struct PyModuleDef module_definition;

/* --- QueueCell ------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *key;
    PyObject *topic;
    long long queue_id;
    long long next_offset;
    long long first_offset;
    long long stored_bytes;
} Cell;

static int
cell_init(Cell *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "topic", "queue_id", "next_offset", NULL};
    PyObject *key, *topic;
    long long queue_id, next_offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OSLL", names, &key, &topic, &queue_id, &next_offset)) {
        return -1;
    }
    Py_XSETREF(self->key, Py_NewRef(key));
    Py_XSETREF(self->topic, Py_NewRef(topic));
    self->queue_id = queue_id;
    self->next_offset = self->first_offset = next_offset;
    self->stored_bytes = 0;
    return 0;
}

static int
cell_traverse(Cell *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->key);
    return 0;
}

static int
cell_clear(Cell *self)
{
    Py_CLEAR(self->key);
    Py_CLEAR(self->topic);
    return 0;
}

static void
cell_dealloc(Cell *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    cell_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
cell_topic_size(Cell *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->topic == NULL ? 0 : PyBytes_GET_SIZE(self->topic));
}

static PyMemberDef cell_members[] = {
    {"key", T_OBJECT, offsetof(Cell, key), READONLY, NULL},
    {"topic", T_OBJECT, offsetof(Cell, topic), READONLY, NULL},
    {"queue_id", T_LONGLONG, offsetof(Cell, queue_id), READONLY, NULL},
    {"next_offset", T_LONGLONG, offsetof(Cell, next_offset), 0, NULL},
    {"first_offset", T_LONGLONG, offsetof(Cell, first_offset), READONLY, NULL},
    {"stored_bytes", T_LONGLONG, offsetof(Cell, stored_bytes), 0, NULL},
    {NULL},
};

static PyGetSetDef cell_getset[] = {
    {"topic_size", (getter)cell_topic_size, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot cell_slots[] = {
    {Py_tp_doc, "The next offset of one queue, and what every record of it repeats."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, cell_init},
    {Py_tp_traverse, cell_traverse},
    {Py_tp_clear, cell_clear},
    {Py_tp_dealloc, cell_dealloc},
    {Py_tp_members, cell_members},
    {Py_tp_getset, cell_getset},
    {0, NULL},
};

static PyType_Spec cell_spec = {
    .name = "rocketstore.storage.log._append.QueueCell",
    .basicsize = sizeof(Cell),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = cell_slots,
};

/* --- AppendState ----------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyTypeObject *cell_type;
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
    int busy;
    int is_system_clock;
} State;

static void
release_view(State *self)
{
    if (self->view.obj != NULL) {
        PyBuffer_Release(&self->view);
        memset(&self->view, 0, sizeof self->view);
    }
}

static PyObject *
state_get_mapping(State *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->mapping == NULL ? Py_None : self->mapping);
}

static int
state_set_mapping(State *self, PyObject *value, void *Py_UNUSED(closure))
{
    Py_buffer view;
    memset(&view, 0, sizeof view);
    if (value != NULL && value != Py_None
        && PyObject_GetBuffer(value, &view, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    release_view(self);
    self->view = view;
    Py_XSETREF(self->mapping, Py_XNewRef(value));
    return 0;
}

static int
state_traverse(State *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->cell_type);
    Py_VISIT(self->file);
    Py_VISIT(self->mapping);
    Py_VISIT(self->crc32);
    Py_VISIT(self->clock);
    return 0;
}

static int
state_clear(State *self)
{
    release_view(self);
    Py_CLEAR(self->cell_type);
    Py_CLEAR(self->file);
    Py_CLEAR(self->mapping);
    Py_CLEAR(self->store_host);
    Py_CLEAR(self->crc32);
    Py_CLEAR(self->clock);
    return 0;
}

static void
state_dealloc(State *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    state_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
state_init(State *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"clock", "is_system_clock", "crc32", "store_host", NULL};
    PyObject *clock, *crc32, *store_host;
    int is_system_clock;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OpOS", names, &clock, &is_system_clock, &crc32,
                                     &store_host)) {
        return -1;
    }
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &module_definition);
    if (module == NULL) {
        return -1;
    }
    PyTypeObject **cell_type = PyModule_GetState(module);
    Py_XSETREF(self->cell_type, (PyTypeObject *)Py_NewRef((PyObject *)*cell_type));
    Py_XSETREF(self->clock, Py_NewRef(clock));
    Py_XSETREF(self->crc32, Py_NewRef(crc32));
    Py_XSETREF(self->store_host, Py_NewRef(store_host));
    self->is_system_clock = is_system_clock;
    self->limit = -1;
    return 0;
}

static inline unsigned char *
put16(unsigned char *at, uint16_t value)
{
    value = htobe16(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline unsigned char *
put32(unsigned char *at, uint32_t value)
{
    value = htobe32(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline unsigned char *
put64(unsigned char *at, uint64_t value)
{
    value = htobe64(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline unsigned char *
put_bytes(unsigned char *at, PyObject *bytes)
{
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    memcpy(at, PyBytes_AS_STRING(bytes), (size_t)size);
    return at + size;
}

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

static inline int
host_agrees(PyObject *host, long long sys_flag, int bit)
{
    Py_ssize_t size = PyBytes_GET_SIZE(host);
    return size == ((sys_flag & bit) ? 20 : 8);
}

/* The time in ms, and the checksum of the body; both may run Python. -1 on an error. */
static int
read_time_and_crc(State *self, PyObject *body, long long *now, uint32_t *crc)
{
    PyObject *value;
    if (PyBytes_GET_SIZE(body) == 0) {
        *crc = 0;
    }
    else {
        value = PyObject_CallOneArg(self->crc32, body);
        if (value == NULL) {
            return -1;
        }
        *crc = (uint32_t)PyLong_AsUnsignedLongMask(value) & 0x7FFFFFFFu;
        Py_DECREF(value);
    }
    if (self->is_system_clock) {
        struct timespec moment;
        clock_gettime(CLOCK_REALTIME, &moment);
        *now = (long long)moment.tv_sec * 1000 + moment.tv_nsec / 1000000;
        return 0;
    }
    value = PyObject_CallNoArgs(self->clock);
    if (value == NULL) {
        return -1;
    }
    *now = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

typedef struct {
    long long flag, sys_flag, born, reconsume_times, prepared_offset, now, queue_offset, offset;
    uint32_t crc;
    PyObject *body, *properties, *born_host, *store_host;
    uint32_t size;
} Record;

/* The length, without which there is no record, comes last: a process that is killed in the middle
 * leaves nothing that could be taken for a message. */
static void
write_record(unsigned char *start, const Record *record, const Cell *cell)
{
    unsigned char *at = start + sizeof record->size;
    at = put32(at, MAGIC);
    at = put32(at, record->crc);
    at = put32(at, (uint32_t)cell->queue_id);
    at = put32(at, (uint32_t)record->flag);
    at = put64(at, (uint64_t)record->queue_offset);
    at = put64(at, (uint64_t)record->offset);
    at = put32(at, (uint32_t)record->sys_flag);
    at = put64(at, (uint64_t)record->born);
    at = put_bytes(at, record->born_host);
    at = put64(at, (uint64_t)record->now);
    at = put_bytes(at, record->store_host);
    at = put32(at, (uint32_t)record->reconsume_times);
    at = put64(at, (uint64_t)record->prepared_offset);
    at = put32(at, (uint32_t)PyBytes_GET_SIZE(record->body));
    at = put_bytes(at, record->body);
    *at++ = (unsigned char)PyBytes_GET_SIZE(cell->topic);
    at = put_bytes(at, cell->topic);
    at = put16(at, (uint16_t)PyBytes_GET_SIZE(record->properties));
    put_bytes(at, record->properties);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    put32(start, record->size);
}

/* Fill everything of `record` that needs no look at the log; 0 when this is not the common case. */
static int
read_arguments(State *self, PyObject *const *args, Record *record)
{
    if (!Py_IS_TYPE(args[0], self->cell_type) || !PyBytes_CheckExact(args[1])
        || !PyBytes_CheckExact(args[2]) || !PyBytes_CheckExact(args[6])
        || self->store_host == NULL || !PyBytes_CheckExact(self->store_host)) {
        return 0;
    }
    const Cell *cell = (Cell *)args[0];
    record->body = args[1];
    record->properties = args[2];
    record->born_host = args[6];
    record->store_host = self->store_host;
    if (!read_number(args[3], 32, &record->flag) || !read_number(args[4], 32, &record->sys_flag)
        || !read_number(args[7], 32, &record->reconsume_times)
        || !read_number(args[8], 64, &record->prepared_offset)
        || (args[5] != Py_None && !read_number(args[5], 64, &record->born))) {
        return 0;
    }
    long long size = FIXED_SIZE_WITHOUT_HOSTS + (long long)PyBytes_GET_SIZE(record->body)
                     + PyBytes_GET_SIZE(record->properties) + PyBytes_GET_SIZE(record->born_host)
                     + PyBytes_GET_SIZE(record->store_host) + PyBytes_GET_SIZE(cell->topic);
    record->size = (uint32_t)size;
    return (record->sys_flag & TRANSACTION_MASK) == 0 && size <= INT32_MAX
           && PyBytes_GET_SIZE(cell->topic) <= 127 && PyBytes_GET_SIZE(record->properties) <= 32767
           && host_agrees(record->born_host, record->sys_flag, BORN_HOST_V6)
           && host_agrees(record->store_host, record->sys_flag, STORE_HOST_V6);
}

/* Append if there is room and nobody else is at it: 1 done, 0 not the common case, -1 an error.
 * No Python runs between the comparison and the move of the end. */
static int
append_now(State *self, Cell *cell, Record *record)
{
    long long end = self->position + record->size;
    if (self->busy || self->view.buf == NULL || end > self->limit || end > self->view.len
        || record->now < self->last_store_timestamp_ms) {
        return 0;
    }
    PyObject *written = PyLong_FromLongLong(end);
    if (written == NULL) {
        return -1;
    }
    record->queue_offset = cell->next_offset;
    record->offset = self->base + self->position;
    write_record((unsigned char *)self->view.buf + self->position, record, cell);
    self->position = end;
    self->last_store_timestamp_ms = record->now;
    cell->next_offset += 1;
    cell->stored_bytes += record->size;
    /* A slot of MappedFile; the file must know before anybody hears of the new end. */
    int failed = PyObject_SetAttr(self->file, write_position_name, written);
    Py_DECREF(written);
    self->max_offset = self->base + end;
    return failed < 0 ? -1 : 1;
}

static PyObject *
state_append(State *self, PyObject *const *args, Py_ssize_t count)
{
    Record record = {0};
    if (count == 9 && !self->busy && read_arguments(self, args, &record)) {
        if (read_time_and_crc(self, record.body, &record.now, &record.crc) < 0) {
            return NULL;
        }
        if (args[5] == Py_None) {
            record.born = record.now;
        }
        int done = append_now(self, (Cell *)args[0], &record);
        if (done < 0) {
            return NULL;
        }
        if (done > 0) {
            PyObject *result = PyTuple_New(4);
            if (result == NULL) {
                return NULL;
            }
            PyTuple_SET_ITEM(result, 0, PyLong_FromLongLong(record.offset));
            PyTuple_SET_ITEM(result, 1, PyLong_FromUnsignedLong(record.size));
            PyTuple_SET_ITEM(result, 2, PyLong_FromLongLong(record.queue_offset));
            PyTuple_SET_ITEM(result, 3, PyLong_FromLongLong(record.now));
            for (int at = 0; at < 4; at++) {
                if (PyTuple_GET_ITEM(result, at) == NULL) {
                    Py_DECREF(result);
                    return NULL;
                }
            }
            return result;
        }
    }
    PyObject *method = PyObject_GetAttr((PyObject *)self, append_plainly_name);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)count, NULL);
    Py_DECREF(method);
    return result;
}

static PyMemberDef state_members[] = {
    {"_file", T_OBJECT, offsetof(State, file), 0, NULL},
    {"store_host", T_OBJECT, offsetof(State, store_host), 0, NULL},
    {"_clock", T_OBJECT, offsetof(State, clock), READONLY, NULL},
    {"_base", T_LONGLONG, offsetof(State, base), 0, NULL},
    {"_position", T_LONGLONG, offsetof(State, position), 0, NULL},
    {"_limit", T_LONGLONG, offsetof(State, limit), 0, NULL},
    {"max_offset", T_LONGLONG, offsetof(State, max_offset), 0, NULL},
    {"last_store_timestamp_ms", T_LONGLONG, offsetof(State, last_store_timestamp_ms), 0, NULL},
    {"_busy", T_INT, offsetof(State, busy), 0, NULL},
    {NULL},
};

static PyGetSetDef state_getset[] = {
    {"_mapping", (getter)state_get_mapping, (setter)state_set_mapping, NULL, NULL},
    {NULL},
};

static PyMethodDef state_methods[] = {
    {"append", (PyCFunction)(void (*)(void))state_append, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot state_slots[] = {
    {Py_tp_doc, "The end of a CommitLog, and the compiled way to move it."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, state_init},
    {Py_tp_traverse, state_traverse},
    {Py_tp_clear, state_clear},
    {Py_tp_dealloc, state_dealloc},
    {Py_tp_members, state_members},
    {Py_tp_getset, state_getset},
    {Py_tp_methods, state_methods},
    {0, NULL},
};

static PyType_Spec state_spec = {
    .name = "rocketstore.storage.log._append.AppendState",
    .basicsize = sizeof(State),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = state_slots,
};

/* --- the module ------------------------------------------------------------------------------ */

static int
module_exec(PyObject *module)
{
    append_plainly_name = PyUnicode_InternFromString("append_plainly");
    write_position_name = PyUnicode_InternFromString("write_position");
    PyObject *cell_type = PyType_FromModuleAndSpec(module, &cell_spec, NULL);
    PyObject *state_type = PyType_FromModuleAndSpec(module, &state_spec, NULL);
    if (append_plainly_name == NULL || write_position_name == NULL || cell_type == NULL
        || state_type == NULL) {
        return -1;
    }
    *(PyTypeObject **)PyModule_GetState(module) = (PyTypeObject *)Py_NewRef(cell_type);
    if (PyModule_AddObjectRef(module, "QueueCell", cell_type) < 0
        || PyModule_AddObjectRef(module, "AppendState", state_type) < 0) {
        return -1;
    }
    Py_DECREF(cell_type);
    Py_DECREF(state_type);
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(*(PyTypeObject **)PyModule_GetState(module));
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_append",
    .m_doc = "Append one record to a mapped CommitLog file, compiled.",
    .m_size = sizeof(PyTypeObject *),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
};

PyMODINIT_FUNC
PyInit__append(void)
{
    return PyModuleDef_Init(&module_definition);
}
