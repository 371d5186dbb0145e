/* A page of raw records that all stand in one CommitLog file, compiled: from the maps into the bytes
 * of the result, and nothing in between.
 *
 * Law: a page comes out only if every entry of it points at an intact record of the topic and queue
 * asked for, and then it equals what the kernel `native.page` selects. Everything else (a
 * filler, a lost record, another file or queue, more than
 * `MOST_RECORDS` or `MOST_BYTES`) gives None, and the kernel is asked. Every length is compared with
 * the maps before a byte is read; the caller holds them, and the buffers are held here, where the
 * interpreter's lock is given up.
 *
 * Source: DefaultMessageStore.getMessage of 4.9 (docs/how-it-works/reading.md).
 */
#include "../../format/_record_text.h"
#include "_record_bytes.h"

enum {
    ENTRY_SIZE = 20,
    MOST_RECORDS = 128,
    MOST_BYTES = 4 * 1024 * 1024,
    SHORT_PAGE_BYTES = 64 * 1024,
    AHEAD_RECORDS = 8,
    RESULT_FIELDS = 7,
    PAGE_ARGUMENTS = 11,
    TOPIC_SIZE_MAX = 127,
};
static const uint32_t MAGIC = 0xDAA320A7u;

typedef struct {
    PyObject_HEAD
    PyObject *topic;
    PyObject *result_type;
    PyObject *found;
    long long memory_bytes, memory_count, disk_bytes, disk_count;
    int queue_id;
} Gatherer;

/* A record that an entry points at: its place in the file, and its length. */
typedef struct {
    Py_ssize_t at, size;
} Target;

/* Whether an intact record of `size` bytes, which lie inside the map, stands there, and whose it is.
 * `offset` is its physical offset. */
static int
is_wanted(const Gatherer *self, const uint8_t *record, Py_ssize_t size, int64_t offset)
{
    if (read_u32(record) != (uint32_t)size || read_u32(record + 4) != MAGIC
        || read_u32(record + 12) != (uint32_t)self->queue_id || read_i64(record + 28) != offset) {
        return 0;
    }
    uint32_t sys_flag = read_u32(record + 36);
    Py_ssize_t extra = (sys_flag & BORN_HOST_V6 ? V6_EXTRA_SIZE : 0)
                       + (sys_flag & STORE_HOST_V6 ? V6_EXTRA_SIZE : 0);
    Py_ssize_t topic_size = PyBytes_GET_SIZE(self->topic);
    Py_ssize_t room = size - FIXED_SIZE - extra - topic_size;
    if (room < 0 || topic_size > TOPIC_SIZE_MAX) {
        return 0;
    }
    Py_ssize_t body_at = BODY_AT + extra;
    uint32_t body_size = read_u32(record + body_at - 4);
    if (body_size > (uint64_t)room) {
        return 0;
    }
    const uint8_t *tail = record + body_at + body_size;
    room -= body_size;
    return tail[0] == topic_size
           && memcmp(tail + 1, PyBytes_AS_STRING(self->topic), (size_t)topic_size) == 0
           && (tail[1 + topic_size] << 8 | tail[2 + topic_size]) == room && room <= INT16_MAX
           && is_text_whole(tail + 1, topic_size + 2 + room, topic_size, offset + (tail + 1 - record));
}

/* Numbers of one call. */
typedef struct {
    long long base, readable, entries_base, offset, stop, max_messages, in_disk_below;
} Page;

/* List the records that a page takes, as far as entries tell; 0 when the kernel must be asked. */
static Py_ssize_t
list_targets(const Gatherer *self, const Page *page, const Py_buffer *log, const Py_buffer *entries,
             Target *targets, Py_ssize_t *total)
{
    long long readable = page->readable < log->len ? page->readable : log->len;
    long long known = entries->len / ENTRY_SIZE;
    if (page->offset < page->entries_base || page->offset - page->entries_base > known) {
        return 0;
    }
    Py_ssize_t count = 0;
    *total = 0;
    for (long long entry = page->offset - page->entries_base; entry < known && entry < page->stop; entry++) {
        if (count > 0 && count >= page->max_messages) {
            break;
        }
        const uint8_t *at = (const uint8_t *)entries->buf + entry * ENTRY_SIZE;
        int64_t offset = read_i64(at);
        long long size = (int32_t)read_u32(at + 8);
        int is_in_disk = offset < page->in_disk_below;
        long long most_bytes = is_in_disk ? self->disk_bytes : self->memory_bytes;
        long long most_count = is_in_disk ? self->disk_count : self->memory_count;
        if (count > 0 && (*total + size > most_bytes || count >= most_count)) {
            /* A filler there is looked at first. */
            if (size <= 0 || size == INT32_MAX) {
                return 0;
            }
            break;
        }
        if (size < FIXED_SIZE || offset < page->base || offset - page->base > readable - size
            || count == MOST_RECORDS || size > MOST_BYTES - *total) {
            return 0;
        }
        targets[count] = (Target){(Py_ssize_t)(offset - page->base), (Py_ssize_t)size};
        *total += (Py_ssize_t)size;
        count++;
    }
    return count;
}

/* Copy the records if all are wanted; does not need the interpreter's lock. */
static int
copy_records(const Gatherer *self, const uint8_t *log, long long base, const Target *targets,
             Py_ssize_t count, char *to)
{
    for (Py_ssize_t i = 0; i < count && i < AHEAD_RECORDS; i++) {
        fetch_ahead(log + targets[i].at, targets[i].size);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD_RECORDS < count) {
            fetch_ahead(log + targets[i + AHEAD_RECORDS].at, targets[i + AHEAD_RECORDS].size);
        }
        const uint8_t *record = log + targets[i].at;
        if (!is_wanted(self, record, targets[i].size, base + targets[i].at)) {
            return 0;
        }
        memcpy(to, record, (size_t)targets[i].size);
        to += targets[i].size;
    }
    return 1;
}

/* The records of a page as bytes; NULL, mostly without an error, when the kernel must be asked. */
static PyObject *
gather(const Gatherer *self, const Page *page, const Py_buffer *log, const Py_buffer *entries,
       Py_ssize_t *count)
{
    Target targets[MOST_RECORDS];
    Py_ssize_t total;
    *count = list_targets(self, page, log, entries, targets, &total);
    PyObject *records = *count == 0 ? NULL : PyBytes_FromStringAndSize(NULL, total);
    if (records == NULL) {
        return NULL;
    }
    /* Whoever gives up the interpreter's lock may wait milliseconds for it. A short page that is
     * likely in memory takes microseconds; of the others, the first record is the oldest. */
    int is_short = total <= SHORT_PAGE_BYTES && page->base + targets[0].at >= page->in_disk_below;
    PyThreadState *state = is_short ? NULL : PyEval_SaveThread();
    int is_whole
        = copy_records(self, log->buf, page->base, targets, *count, PyBytes_AS_STRING(records));
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (!is_whole) {
        Py_CLEAR(records);
    }
    return records;
}

/* Fill the result, which is a tuple of a class of its own; takes `records` over. */
static PyObject *
result_of(Gatherer *self, PyObject *records, Py_ssize_t count, long long next_offset, PyObject *minimum,
          PyObject *maximum)
{
    PyTypeObject *type = (PyTypeObject *)self->result_type;
    PyObject *fields[RESULT_FIELDS] = {
        Py_NewRef(self->found),
        records,
        PyLong_FromSsize_t(count),
        PyLong_FromLongLong(next_offset),
        Py_NewRef(minimum),
        Py_NewRef(maximum),
        PyLong_FromLong(0),
    };
    PyObject *result = fields[2] == NULL || fields[3] == NULL || fields[6] == NULL
                           ? NULL
                           : type->tp_alloc(type, RESULT_FIELDS);
    for (int i = 0; i < RESULT_FIELDS; i++) {
        if (result != NULL) {
            PyTuple_SET_ITEM(result, i, fields[i]);
        }
        else {
            Py_XDECREF(fields[i]);
        }
    }
    return result;
}

/* page(log, base, readable, entries, entries_base, offset, stop, max_messages, in_disk_below, minimum,
 * maximum) */
static PyObject *
gatherer_page(Gatherer *self, PyObject *const *args, Py_ssize_t argument_count)
{
    Page page;
    long long *const numbers[] = {
        NULL, &page.base, &page.readable, NULL, &page.entries_base, &page.offset, &page.stop,
        &page.max_messages, &page.in_disk_below,
    };
    if (argument_count != PAGE_ARGUMENTS || self->topic == NULL) {
        PyErr_SetString(PyExc_TypeError, "page takes eleven arguments");
        return NULL;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i] != NULL) {
            *numbers[i] = PyLong_AsLongLong(args[i]);
            if (*numbers[i] == -1 && PyErr_Occurred()) {
                return NULL;
            }
        }
    }
    if (page.base < 0 || page.readable < 0 || page.entries_base < 0 || page.offset < 0) {
        Py_RETURN_NONE;
    }
    page.stop -= page.entries_base;
    Py_buffer log, entries;
    if (PyObject_GetBuffer(args[0], &log, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(args[3], &entries, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&log);
        return NULL;
    }
    Py_ssize_t count;
    PyObject *records = gather(self, &page, &log, &entries, &count);
    PyBuffer_Release(&entries);
    PyBuffer_Release(&log);
    if (records != NULL) {
        return result_of(self, records, count, page.offset + count, args[9], args[10]);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* --- the type -------------------------------------------------------------------------------- */

static int
gatherer_init(Gatherer *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"topic", "queue_id", "limits", "result_type", "found", NULL};
    PyObject *topic, *result_type, *found;
    int queue_id;
    long long memory_bytes, memory_count, disk_bytes, disk_count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Si(LLLL)O!O", names, &topic, &queue_id,
                                     &memory_bytes, &memory_count, &disk_bytes, &disk_count,
                                     &PyType_Type, &result_type, &found)) {
        return -1;
    }
    PyTypeObject *type = (PyTypeObject *)result_type;
    if (!PyType_IsSubtype(type, &PyTuple_Type) || type->tp_basicsize != PyTuple_Type.tp_basicsize) {
        PyErr_SetString(PyExc_TypeError, "the result is no tuple");
        return -1;
    }
    if (self->topic != NULL) {
        /* Somebody may be reading with it, without the interpreter's lock. */
        PyErr_SetString(PyExc_TypeError, "it was made already");
        return -1;
    }
    self->topic = Py_NewRef(topic);
    self->result_type = Py_NewRef(result_type);
    self->found = Py_NewRef(found);
    self->queue_id = queue_id;
    self->memory_bytes = memory_bytes;
    self->memory_count = memory_count;
    self->disk_bytes = disk_bytes;
    self->disk_count = disk_count;
    return 0;
}

static int
gatherer_traverse(Gatherer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->result_type);
    Py_VISIT(self->found);
    return 0;
}

static int
gatherer_clear(Gatherer *self)
{
    Py_CLEAR(self->topic);
    Py_CLEAR(self->result_type);
    Py_CLEAR(self->found);
    return 0;
}

static void
gatherer_dealloc(Gatherer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gatherer_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef gatherer_methods[] = {
    {"page", (PyCFunction)(void (*)(void))gatherer_page, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot gatherer_slots[] = {
    {Py_tp_doc, "Copies pages of one queue that are nothing but intact records in one file."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, gatherer_init},
    {Py_tp_traverse, gatherer_traverse},
    {Py_tp_clear, gatherer_clear},
    {Py_tp_dealloc, gatherer_dealloc},
    {Py_tp_methods, gatherer_methods},
    {0, NULL},
};

static PyType_Spec gatherer_spec = {
    .name = "rocketstore.storage.reading._gather.Gatherer",
    .basicsize = sizeof(Gatherer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = gatherer_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &gatherer_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Gatherer", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_gather",
    .m_doc = "Copy pages of raw records, compiled.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__gather(void)
{
    return PyModuleDef_Init(&module_definition);
}
