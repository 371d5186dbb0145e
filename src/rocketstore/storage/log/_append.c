/* Append records to a mapped CommitLog file: the inside of `CommitLog.append_plainly`, compiled.
 *
 * Law: only the common case is done here, without giving up the interpreter's lock between the first
 * look at the log's end and its move, so no other thread of Python can be in between. Everything else
 * (no room, a clock that went back, a transaction, an odd type, a batch under way) is left to
 * `append_plainly`, which is called with the same arguments. Every length is compared with the mapping
 * before a byte is written; the bytes are those of `format.record.encode_record`.
 *
 * Source: CommitLog.DefaultAppendMessageCallback.doAppend of 4.9 (docs/format/record.md).
 */
#include "_append.h"
#include "crc32.h"

static const uint32_t MAGIC = 0xDAA320A7u;

static PyObject *append_plainly_name, *write_position_name;

Py_ssize_t
place_in(PyTypeObject *type, PyObject *name)
{
    Py_ssize_t place = 0;
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    if (found == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)
        && PyType_IsSubtype(type, ((PyDescrObject *)found)->d_type)
        && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX
        && type->tp_getattro == PyObject_GenericGetAttr
        && type->tp_setattro == PyObject_GenericSetAttr) {
        place = ((PyMemberDescrObject *)found)->d_member->offset;
    }
    Py_DECREF(found);
    return place;
}

/* --- QueueCell ------------------------------------------------------------------------------- */

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
    Py_VISIT(self->write_position.type);
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
    Py_CLEAR(self->write_position.type);
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
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &append_module);
    if (module == NULL) {
        return -1;
    }
    PyTypeObject *cell_type = ((ModuleTypes *)PyModule_GetState(module))->cell_type;
    Py_XSETREF(self->cell_type, (PyTypeObject *)Py_NewRef((PyObject *)cell_type));
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
put_piece(unsigned char *at, Piece piece)
{
    memcpy(at, piece.at, (size_t)piece.size);
    return at + piece.size;
}

static inline int
host_agrees(Py_ssize_t size, long long sys_flag, int bit)
{
    return size == ((sys_flag & bit) ? 20 : 8);
}

int
read_time(State *self, long long *now)
{
    if (self->is_system_clock) {
        struct timespec moment;
        clock_gettime(CLOCK_REALTIME, &moment);
        *now = (long long)moment.tv_sec * 1000 + moment.tv_nsec / 1000000;
        return 0;
    }
    if (self->clock == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the log has no clock");
        return -1;
    }
    PyObject *value = PyObject_CallNoArgs(self->clock);
    if (value == NULL) {
        return -1;
    }
    *now = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

uint32_t
short_body_crc(Piece body)
{
    return crc32_of(body.at, (size_t)body.size) & BODY_CRC_MASK;
}

/* The checksum of any body; a long one is left to the library, which may give up the lock. */
static int
body_crc(State *self, PyObject *body, uint32_t *crc)
{
    if (PyBytes_GET_SIZE(body) <= SHORT_SIZE) {
        *crc = short_body_crc(piece_of(body));
        return 0;
    }
    PyObject *value = PyObject_CallOneArg(self->crc32, body);
    if (value == NULL) {
        return -1;
    }
    *crc = (uint32_t)PyLong_AsUnsignedLongMask(value) & BODY_CRC_MASK;
    Py_DECREF(value);
    return 0;
}

int
measure(const State *self, const Cell *cell, Record *record)
{
    if (self->store_host == NULL || !PyBytes_CheckExact(self->store_host) || cell->topic == NULL) {
        return 0;
    }
    Py_ssize_t store_host_size = PyBytes_GET_SIZE(self->store_host);
    Py_ssize_t topic_size = PyBytes_GET_SIZE(cell->topic);
    long long size = FIXED_SIZE_WITHOUT_HOSTS + (long long)record->body.size
                     + record->properties_size + record->born_host.size + store_host_size
                     + topic_size;
    record->size = (uint32_t)size;
    return (record->sys_flag & TRANSACTION_MASK) == 0 && size <= INT32_MAX
           && topic_size <= TOPIC_SIZE_MAX && record->properties_size <= PROPERTIES_SIZE_MAX
           && host_agrees(record->born_host.size, record->sys_flag, BORN_HOST_V6)
           && host_agrees(store_host_size, record->sys_flag, STORE_HOST_V6);
}

/* The length, without which there is no record, comes last: a process that is killed in the middle
 * leaves nothing that could be taken for a message. */
static void
write_record(const State *self, const Cell *cell, const Record *record, const Place *place)
{
    unsigned char *start = (unsigned char *)self->view.buf + (place->offset - self->base);
    unsigned char *at = start + sizeof record->size;
    at = put32(at, MAGIC);
    at = put32(at, record->crc);
    at = put32(at, (uint32_t)cell->queue_id);
    at = put32(at, (uint32_t)record->flag);
    at = put64(at, (uint64_t)place->queue_offset);
    at = put64(at, (uint64_t)place->offset);
    at = put32(at, (uint32_t)record->sys_flag);
    at = put64(at, (uint64_t)(record->is_born_now ? place->now : record->born));
    at = put_piece(at, record->born_host);
    at = put64(at, (uint64_t)place->now);
    at = put_piece(at, piece_of(self->store_host));
    at = put32(at, (uint32_t)record->reconsume_times);
    at = put64(at, (uint64_t)record->prepared_offset);
    at = put32(at, (uint32_t)record->body.size);
    at = put_piece(at, record->body);
    *at++ = (unsigned char)PyBytes_GET_SIZE(cell->topic);
    at = put_piece(at, piece_of(cell->topic));
    at = put16(at, (uint16_t)record->properties_size);
    for (int i = 0; i < record->property_pieces; i++) {
        at = put_piece(at, record->properties[i]);
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    put32(start, record->size);
}

int
append_now(State *self, Cell *cell, Record *records, Py_ssize_t count, long long now, Place *place)
{
    long long size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size += records[i].size;
    }
    if (self->busy || self->view.buf == NULL || now < self->last_store_timestamp_ms
        || self->position < 0 || self->position > self->view.len - size
        || self->position > self->limit - size) {
        return 0;
    }
    long long end = self->position + size;
    PyObject *written = PyLong_FromLongLong(end);
    if (written == NULL) {
        return -1;
    }
    *place = (Place){self->base + self->position, cell->next_offset, size, now};
    Place here = *place;
    for (Py_ssize_t i = 0; i < count; i++) {
        write_record(self, cell, &records[i], &here);
        here.offset += records[i].size;
        here.queue_offset += 1;
    }
    self->position = end;
    self->last_store_timestamp_ms = now;
    cell->next_offset += count;
    cell->stored_bytes += size;
    /* The file must know before anybody hears of the new end. */
    PyObject **slot = find_slot(&self->write_position, self->file, write_position_name);
    int failed = 0;
    if (slot != NULL) {
        Py_XSETREF(*slot, written);
    }
    else {
        failed = PyObject_SetAttr(self->file, write_position_name, written);
        Py_DECREF(written);
    }
    self->max_offset = self->base + end;
    return failed < 0 ? -1 : 1;
}

/* Fill everything of `record` that needs no look at the log; 0 when this is not the common case. */
static int
read_arguments(State *self, PyObject *const *args, Record *record)
{
    if (!Py_IS_TYPE(args[0], self->cell_type) || !PyBytes_CheckExact(args[1])
        || !PyBytes_CheckExact(args[2]) || !PyBytes_CheckExact(args[6])) {
        return 0;
    }
    record->body = piece_of(args[1]);
    record->born_host = piece_of(args[6]);
    record->property_pieces = 0;
    record->properties_size = 0;
    add_properties(record, PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]));
    record->is_born_now = args[5] == Py_None;
    return read_number(args[3], 32, &record->flag) && read_number(args[4], 32, &record->sys_flag)
           && read_number(args[7], 32, &record->reconsume_times)
           && read_number(args[8], 64, &record->prepared_offset)
           && (record->is_born_now || read_number(args[5], 64, &record->born))
           && measure(self, (Cell *)args[0], record);
}

static PyObject *
tuple_of(const Place *place)
{
    const long long numbers[] = {place->offset, place->size, place->queue_offset, place->now};
    const Py_ssize_t count = sizeof numbers / sizeof *numbers;
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
        }
        else {
            PyTuple_SET_ITEM(tuple, i, number);
        }
    }
    return tuple;
}

static PyObject *
state_append(State *self, PyObject *const *args, Py_ssize_t count)
{
    Record record;
    if (count == 9 && !self->busy && read_arguments(self, args, &record)) {
        long long now;
        Place place;
        if (body_crc(self, args[1], &record.crc) < 0 || read_time(self, &now) < 0) {
            return NULL;
        }
        int done = append_now(self, (Cell *)args[0], &record, 1, now, &place);
        if (done < 0) {
            return NULL;
        }
        if (done > 0) {
            return tuple_of(&place);
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
    {"locked_since_ms", T_LONGLONG, offsetof(State, locked_since_ms), 0, NULL},
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
    if (append_plainly_name == NULL || write_position_name == NULL || !prepare_puts()) {
        return -1;
    }
    ModuleTypes *types = PyModule_GetState(module);
    types->cell_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &cell_spec, NULL);
    types->state_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &state_spec, NULL);
    PyObject *put_type = PyType_FromModuleAndSpec(module, &put_state_spec, NULL);
    int failed = types->cell_type == NULL || types->state_type == NULL || put_type == NULL
                 || PyModule_AddType(module, types->cell_type) < 0
                 || PyModule_AddType(module, types->state_type) < 0
                 || PyModule_AddType(module, (PyTypeObject *)put_type) < 0;
    Py_XDECREF(put_type);
    return failed ? -1 : 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleTypes *types = PyModule_GetState(module);
    Py_VISIT(types->cell_type);
    Py_VISIT(types->state_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

struct PyModuleDef append_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_append",
    .m_doc = "Append records to a mapped CommitLog file, compiled.",
    .m_size = sizeof(ModuleTypes),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
};

PyMODINIT_FUNC
PyInit__append(void)
{
    return PyModuleDef_Init(&append_module);
}
