/* The puts that wait for a sync: `put_group.PlainPutGroup`, compiled.
 *
 * Law: as there. Besides, nothing here is done with the interpreter's lock but reading arguments: a put
 * gives it up before anybody hears that it waits, and whoever is woken tries for it only in its turn.
 *
 * Rounds: as long as all who wait want bytes of one file, the thread that serves syncs that by itself and
 * never runs Python; `flush.py` hears of it every few milliseconds, or when somebody asks.
 */
#include "_group.h"
#include <errno.h>
#include <math.h>
#include <structmember.h>
#include "_put_group.h"

/* --- puts, and the thread that serves them ----------------------------------------------------- */

static int
group_wait(PyObject *group, long long offset, double timeout_s)
{
    Group *self = (Group *)group;
    Waiter waiter;
    int failure;
    if (isnan(timeout_s)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds");
        return -1;
    }
    struct timespec until = moment_after(timeout_s);
    sem_init(&waiter.permit, 0, 0);
    waiter.offset = offset;
    Py_INCREF(group);
    do {
        Py_BEGIN_ALLOW_THREADS
        end_turn();
        failure = wait_until_flushed(self, &waiter, &until);
        begin_turn();
        Py_END_ALLOW_THREADS
    } while (failure == EINTR && PyErr_CheckSignals() == 0);
    sem_destroy(&waiter.permit);
    Py_DECREF(group);
    return failure == EINTR ? -1 : failure == 0;
}

static PyObject *
group_gather(Group *self, PyObject *sync)
{
    int was_asked;
    double sync_s = PyFloat_AsDouble(sync);
    if (sync_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    end_turn();
    pthread_mutex_lock(&self->lock);
    was_asked = gather(self, sync_s, -1);
    pthread_mutex_unlock(&self->lock);
    begin_turn();
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    return PyBool_FromLong(was_asked);
}

static PyObject *
group_sync_rounds(Group *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "sync_rounds takes what syncs, a limit and a time in seconds");
        return NULL;
    }
    PyObject *call = PyLong_Check(args[0]) ? NULL : args[0];
    long descriptor = call == NULL ? PyLong_AsLong(args[0]) : -1;
    long long limit = PyLong_AsLongLong(args[1]);
    double longest_s = PyFloat_AsDouble(args[2]), sync_s = -1.0;
    if (PyErr_Occurred()) {
        return NULL;
    }
    long long longest_ns = (long long)(fmin(fmax(longest_s, 0), LONGEST_S) * NANOS_PER_S);
    int failure;
    Py_BEGIN_ALLOW_THREADS
    end_turn();
    failure = serve_rounds(self, (int)descriptor, call, limit, longest_ns, &sync_s);
    begin_turn();
    Py_END_ALLOW_THREADS
    if (failure > 0) {
        errno = failure;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (failure < 0 || PyErr_CheckSignals() < 0) {
        return NULL;
    }
    if (sync_s < 0) {
        Py_RETURN_NONE;
    }
    return PyFloat_FromDouble(sync_s);
}

static PyObject *
group_rest(Group *self, PyObject *timeout)
{
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    long long timeout_ns = (long long)(fmin(fmax(timeout_s, 0), LONGEST_S) * NANOS_PER_S);
    Py_BEGIN_ALLOW_THREADS
    end_turn();
    pthread_mutex_lock(&self->lock);
    rest(self, timeout_ns);
    pthread_mutex_unlock(&self->lock);
    begin_turn();
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
group_take(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    move_all(self, WAITING, TAKEN);
    Py_ssize_t count = self->rows[TAKEN].count;
    pthread_mutex_unlock(&self->lock);
    return PyLong_FromSsize_t(count);
}

static PyObject *
group_serve(Group *self, PyObject *flushed)
{
    long long offset = PyLong_AsLongLong(flushed);
    if (offset == -1 && PyErr_Occurred()) {
        return NULL;
    }
    pthread_mutex_lock(&self->lock);
    serve(self, offset);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_let_go(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    wake_all(self, SERVED);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_ask(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    __atomic_store_n(&self->is_asked, 1, __ATOMIC_RELAXED);
    int must = must_ring(self);
    pthread_mutex_unlock(&self->lock);
    if (must) {
        sem_post(&self->bell);
    }
    Py_RETURN_NONE;
}

static PyObject *
group_open(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    self->is_open = 1;
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_close(Group *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&self->lock);
    self->is_open = 0;
    for (enum Place place = WAITING; place <= SERVED; place++) {
        wake_all(self, place);
    }
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *
group_wait_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "wait takes an offset and a timeout in seconds");
        return NULL;
    }
    long long offset = PyLong_AsLongLong(args[0]);
    double timeout_s = offset == -1 && PyErr_Occurred() ? -1.0 : PyFloat_AsDouble(args[1]);
    if (timeout_s == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    int is_flushed = group_wait(self, offset, timeout_s);
    return is_flushed < 0 ? NULL : PyBool_FromLong(is_flushed);
}

static PyObject *
group_get_flushed(Group *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(flushed_offset(self));
}

static int
group_set_flushed(Group *self, PyObject *value, void *Py_UNUSED(closure))
{
    long long offset = value == NULL ? -1 : PyLong_AsLongLong(value);
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "flushed_offset stays");
    }
    if (PyErr_Occurred()) {
        return -1;
    }
    set_flushed_offset(self, offset);
    return 0;
}

/* --- the type ---------------------------------------------------------------------------------- */

static PyObject *
group_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Group *self = (Group *)type->tp_alloc(type, 0);
    if (self != NULL) {
        pthread_mutex_init(&self->lock, NULL);
        sem_init(&self->bell, 0, 0);
        self->ring_at = 1;
        self->apart_next = 1;
        self->flushed = -1;
    }
    return (PyObject *)self;
}

static void
group_dealloc(Group *self)
{
    PyTypeObject *type = Py_TYPE(self);
    sem_destroy(&self->bell);
    pthread_mutex_destroy(&self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
group_length(Group *self)
{
    return self->rows[WAITING].count;
}

static PyMemberDef group_members[] = {
    {"company", T_LONGLONG, offsetof(Group, company), 0, NULL},
    {"rounds_apart", T_LONGLONG, offsetof(Group, rounds_apart), 0, NULL},
    {NULL},
};
static PyGetSetDef group_getset[] = {
    {"flushed_offset", (getter)group_get_flushed, (setter)group_set_flushed, NULL, NULL},
    {NULL},
};
static PyMethodDef group_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))group_wait_method, METH_FASTCALL, NULL},
    {"ask", (PyCFunction)group_ask, METH_NOARGS, NULL},
    {"gather", (PyCFunction)group_gather, METH_O, NULL},
    {"sync_rounds", (PyCFunction)(void (*)(void))group_sync_rounds, METH_FASTCALL, NULL},
    {"rest", (PyCFunction)group_rest, METH_O, NULL},
    {"take", (PyCFunction)group_take, METH_NOARGS, NULL},
    {"serve", (PyCFunction)group_serve, METH_O, NULL},
    {"let_go", (PyCFunction)group_let_go, METH_NOARGS, NULL},
    {"open", (PyCFunction)group_open, METH_NOARGS, NULL},
    {"close", (PyCFunction)group_close, METH_NOARGS, NULL},
    {NULL},
};
static PyType_Slot group_slots[] = {
    {Py_tp_doc, "Puts that wait for one thread."},
    {Py_tp_new, group_new},
    {Py_tp_dealloc, group_dealloc},
    {Py_tp_members, group_members},
    {Py_tp_getset, group_getset},
    {Py_tp_methods, group_methods},
    {Py_sq_length, group_length},
    {0, NULL},
};
static PyType_Spec group_spec = {
    .name = "rocketstore.storage.log._put_group.PutGroup",
    .basicsize = sizeof(Group),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = group_slots,
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_put_group", .m_size = -1,
};
static PutGroupCalls calls = {.wait = group_wait};

PyMODINIT_FUNC
PyInit__put_group(void)
{
    prepare_turns();
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&group_spec);
    PyObject *capsule = type == NULL ? NULL : PyCapsule_New(&calls, PUT_GROUP_CALLS, NULL);
    calls.type = (PyTypeObject *)Py_XNewRef(type);
    if (capsule == NULL || PyModule_AddObjectRef(module, "PutGroup", type) < 0
        || PyModule_AddObjectRef(module, "calls", capsule) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(capsule);
    Py_XDECREF(type);
    return module;
}
