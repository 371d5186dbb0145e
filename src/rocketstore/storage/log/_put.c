/* The whole of a put that finds nothing to refuse, compiled: what `StoreWriter.put` is where it was built.
 *
 * Law: what is done here is what `StoreWriter.put_plainly` and its like would do, with the same bytes
 * and the same result. A put that they might refuse, or that is not plain (`_message.c`; a queue that got
 * no message yet, a store that is not open for puts), is left to them with the same arguments: there is
 * one place that says no.
 */
#include "_put.h"

enum { NANOS_PER_S = 1000000000, SLOW_NS = 1000000 };

static PyObject *bits_name, *note_slow_name, *put_plainly_name, *put_prepared_plainly_name, *zero;

/* --- where to -------------------------------------------------------------------------------- */

static long long
monotonic_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (long long)moment.tv_sec * NANOS_PER_S + moment.tv_nsec;
}

int
is_open(Putter *self)
{
    if (self->never || self->log == NULL || self->log->locked_since_ms != 0 || self->log->busy) {
        return 0;
    }
    PyObject **slot = find_slot(&self->bits, self->flags, bits_name);
    PyObject *bits = slot == NULL ? PyObject_GetAttr(self->flags, bits_name) : Py_XNewRef(*slot);
    if (bits == NULL) {
        PyErr_Clear();
        return 0;
    }
    /* What an int looks like inside changes from one CPython to the next, so it is asked. */
    int is_zero = PyLong_CheckExact(bits) && !PyObject_IsTrue(bits);
    Py_DECREF(bits);
    return is_zero;
}

int
find_cell(Putter *self, PyObject *topic, PyObject *queue_id, Target *target)
{
    if (topic == NULL || !PyUnicode_CheckExact(topic) || !PyLong_CheckExact(queue_id)) {
        return 0;
    }
    Py_INCREF(topic);
    PyObject *key = PyTuple_Pack(2, topic, queue_id);
    PyObject *cell = key == NULL ? NULL : PyDict_GetItemWithError(self->cells, key);
    Py_XDECREF(key);
    Py_DECREF(topic);
    if (cell == NULL || !Py_IS_TYPE(cell, self->log->cell_type)) {
        PyErr_Clear();
        return 0;
    }
    target->cell = (Cell *)Py_NewRef(cell);
    return 1;
}

int
find_host(Putter *self, PyObject *host, Target *target)
{
    if (host == NULL || !PyUnicode_CheckExact(host)) {
        return 0;
    }
    Py_INCREF(host);
    PyObject *known = PyDict_GetItemWithError(self->born_hosts, host);
    Py_DECREF(host);
    if (known == NULL || !PyTuple_CheckExact(known) || PyTuple_GET_SIZE(known) != 2
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(known, 0))
        || !read_number(PyTuple_GET_ITEM(known, 1), 32, &target->host_bits)) {
        PyErr_Clear();
        return 0;
    }
    target->born_host = Py_NewRef(PyTuple_GET_ITEM(known, 0));
    return 1;
}

int
find_time(Putter *self, Target *target)
{
    if (read_time(self->log, &target->now) < 0) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* --- put ------------------------------------------------------------------------------------- */

/* The result of a put of one message, which took a while. */
static PyObject *
result_of(Putter *self, const Place *place, long long began_ns)
{
    PyObject *status = Py_NewRef(self->done_status);
    if (status == NULL) {
        return NULL;
    }
    long long elapsed_ns = monotonic_ns() - began_ns;
    if (elapsed_ns >= SLOW_NS) {
        PyObject *millis = PyLong_FromLongLong(elapsed_ns / SLOW_NS);
        PyObject *noted = millis == NULL ? NULL
                                         : PyObject_CallMethodOneArg((PyObject *)self, note_slow_name, millis);
        Py_XDECREF(millis);
        Py_XDECREF(noted);
        if (noted == NULL) {
            Py_DECREF(status);
            return NULL;
        }
    }
    PyObject *fields[] = {
        status,
        PyLong_FromLongLong(place->offset),
        PyLong_FromLongLong(place->queue_offset),
        PyLong_FromLongLong(place->size),
        PyLong_FromLongLong(place->now),
        Py_NewRef(self->log->store_host),
    };
    PyObject *result = NULL;
    if (fields[1] != NULL && fields[2] != NULL && fields[3] != NULL && fields[4] != NULL) {
        result = PyObject_Vectorcall(self->result_type, fields, sizeof fields / sizeof *fields, NULL);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        Py_XDECREF(fields[i]);
    }
    return result;
}

static PyObject *
put_plainly(Putter *self, PyObject *name, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *method = PyObject_GetAttr((PyObject *)self, name);
    if (method == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)count, names);
    Py_DECREF(method);
    return result;
}

/* Whether a put of this object is done when it is appended, or waits for its sync. */
static inline int
is_common(Putter *self, const Layout *layout, PyObject *object)
{
    return is_open(self) && Py_IS_TYPE(object, layout->type)
           && self->is_immediate;
}

/* put(message, queue_id=0) */
static PyObject *
putter_put(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (names == NULL && (count == 1 || count == 2)
        && is_common(self, &self->message, args[0])) {
        long long began_ns = monotonic_ns();
        PyObject *queue_id = count == 2 ? args[1] : zero;
        Target target = {0};
        Record record;
        Place place;
        int done = 0;
        if (find_time(self, &target)
            && find_cell(self, field_of(&self->message, args[0], TOPIC), queue_id, &target)
            && find_host(self, field_of(&self->message, args[0], BORN_HOST), &target)
            && read_message(self, args[0], &target, &record)) {
            record.crc = short_body_crc(record.body);
            done = append_now(self->log, target.cell, &record, 1, target.now, &place);
        }
        release_target(&target);
        if (done != 0) {
            return done < 0 ? NULL : result_of(self, &place, began_ns);
        }
    }
    return put_plainly(self, put_plainly_name, args, count, names);
}

/* put_prepared(prepared, body=None, queue_id=0) */
static PyObject *
putter_put_prepared(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (names == NULL && count >= 1 && count <= 3
        && is_common(self, &self->prepared, args[0])) {
        long long began_ns = monotonic_ns();
        PyObject *body = count >= 2 ? args[1] : Py_None;
        PyObject *queue_id = count == 3 ? args[2] : zero;
        Target target = {0};
        Record record;
        Place place;
        int done = 0;
        if (find_time(self, &target)
            && find_cell(self, field_of(&self->prepared, args[0], TOPIC), queue_id, &target)
            && read_prepared(self, args[0], body, &target, &record)) {
            record.crc = short_body_crc(record.body);
            done = append_now(self->log, target.cell, &record, 1, target.now, &place);
        }
        release_target(&target);
        if (done != 0) {
            return done < 0 ? NULL : result_of(self, &place, began_ns);
        }
    }
    return put_plainly(self, put_prepared_plainly_name, args, count, names);
}

/* --- the type -------------------------------------------------------------------------------- */

static int
putter_init(Putter *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"log", "flags", "born_hosts", "message_type", "prepared_type", "result_type",
                            "done_status", "longest_body", "host_bits", "is_immediate", NULL};
    PyObject *log, *flags, *born_hosts, *message_type, *prepared_type, *result_type, *done_status;
    long long longest_body, host_bits;
    int is_immediate;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OOOOLLp", names, &log, &flags, &PyDict_Type,
                                     &born_hosts, &message_type, &prepared_type, &result_type,
                                     &done_status, &longest_body, &host_bits, &is_immediate)) {
        return -1;
    }
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &append_module);
    if (module == NULL) {
        return -1;
    }
    PyTypeObject *state_type = ((ModuleTypes *)PyModule_GetState(module))->state_type;
    if (!PyObject_TypeCheck(log, state_type)) {
        PyErr_SetString(PyExc_TypeError, "the log is no AppendState");
        return -1;
    }
    PyObject *cells = PyObject_GetAttrString(log, "cells");
    if (cells == NULL || !PyDict_CheckExact(cells)) {
        Py_XDECREF(cells);
        PyErr_SetString(PyExc_TypeError, "the cells of the log are no dict");
        return -1;
    }
    Py_XSETREF(self->cells, cells);
    Py_XSETREF(self->log, (State *)Py_NewRef(log));
    Py_XSETREF(self->flags, Py_NewRef(flags));
    Py_XSETREF(self->born_hosts, Py_NewRef(born_hosts));
    Py_XSETREF(self->result_type, Py_NewRef(result_type));
    Py_XSETREF(self->done_status, Py_NewRef(done_status));
    self->longest_body = longest_body;
    self->host_bits = host_bits;
    /* Without its places no object is of the type: all is left to the plain way. */
    find_places(message_type, MESSAGE_FIELDS, &self->message);
    find_places(prepared_type, PREPARED_FIELDS, &self->prepared);
    self->is_immediate = (char)is_immediate;
    return 0;
}

static int
putter_traverse(Putter *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->log);
    Py_VISIT(self->flags);
    Py_VISIT(self->bits.type);
    Py_VISIT(self->cells);
    Py_VISIT(self->born_hosts);
    Py_VISIT(self->result_type);
    Py_VISIT(self->done_status);
    Py_VISIT(self->message.type);
    Py_VISIT(self->prepared.type);
    return 0;
}

static int
putter_clear(Putter *self)
{
    Py_CLEAR(self->log);
    Py_CLEAR(self->flags);
    Py_CLEAR(self->bits.type);
    Py_CLEAR(self->cells);
    Py_CLEAR(self->born_hosts);
    Py_CLEAR(self->result_type);
    Py_CLEAR(self->done_status);
    Py_CLEAR(self->message.type);
    Py_CLEAR(self->prepared.type);
    return 0;
}

static void
putter_dealloc(Putter *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    putter_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef putter_members[] = {
    {"_log", T_OBJECT, offsetof(Putter, log), READONLY, NULL},
    {"_flags", T_OBJECT, offsetof(Putter, flags), READONLY, NULL},
    {"_cells", T_OBJECT, offsetof(Putter, cells), READONLY, NULL},
    {"_born_hosts", T_OBJECT, offsetof(Putter, born_hosts), READONLY, NULL},
    {"_never", T_BOOL, offsetof(Putter, never), 0, NULL},
    {NULL},
};

static PyMethodDef putter_methods[] = {
    {"put", (PyCFunction)(void (*)(void))putter_put, METH_FASTCALL | METH_KEYWORDS,
     "put($self, message, queue_id=0, /)\n--\n\nStore a message; see `MessageStore.put`."},
    {"put_prepared", (PyCFunction)(void (*)(void))putter_put_prepared, METH_FASTCALL | METH_KEYWORDS,
     "put_prepared($self, prepared, body=None, queue_id=0, /)\n--\n\nStore a prepared message."},
    {"append_messages", (PyCFunction)(void (*)(void))putter_append_messages, METH_FASTCALL, NULL},
    {"append_encoded", (PyCFunction)(void (*)(void))putter_append_encoded, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot putter_slots[] = {
    {Py_tp_doc, "The common case of puts, and where everything else is left to plain methods."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, putter_init},
    {Py_tp_traverse, putter_traverse},
    {Py_tp_clear, putter_clear},
    {Py_tp_dealloc, putter_dealloc},
    {Py_tp_members, putter_members},
    {Py_tp_methods, putter_methods},
    {0, NULL},
};

PyType_Spec put_state_spec = {
    .name = "rocketstore.storage.log._append.PutState",
    .basicsize = sizeof(Putter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = putter_slots,
};

int
prepare_puts(void)
{
    bits_name = PyUnicode_InternFromString("bits");
    note_slow_name = PyUnicode_InternFromString("note_slow");
    put_plainly_name = PyUnicode_InternFromString("put_plainly");
    put_prepared_plainly_name = PyUnicode_InternFromString("put_prepared_plainly");
    zero = PyLong_FromLong(0);
    return bits_name != NULL && note_slow_name != NULL && put_plainly_name != NULL
           && put_prepared_plainly_name != NULL && zero != NULL;
}
